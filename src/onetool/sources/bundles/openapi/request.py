"""Builder of one request: its templates, the arguments that fill them, and credentials.

Each argument has a unique Python name, wherever its value is sent. Defaults of a document describe
what its server assumes; they are documented but not sent, because a change of one field must not
set all others. A default is used only for a required value.

Keys and tokens are never arguments: each becomes a secret, whose value the user adds.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote as percent_encode

from onetool.core.foreign_schema import ForeignSchema
from onetool.errors import ArgumentError, BundleError
from onetool.sources.bundles.openapi.document import (
    MAX_ARGUMENT_LENGTH,
    References,
    UniqueNames,
    as_mapping,
    as_text,
    shorten,
    to_argument_name,
    to_secret_name,
)
from onetool.sources.bundles.openapi.schemas import SchemaTranslator, list_strings
from onetool.sources.bundles.rules import invalid
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

MAX_ARGUMENTS = 1_000
_PATH_SAFE = "/:@!&'()*+,;=~%"  # without a dollar sign, which would escape a following placeholder
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ARGUMENT = re.compile(r"\$\{(?:\w+:)?(\w+)\}")
VARIABLE = re.compile(r"\{([^{}]*)\}")
HTTP = ("https://", "http://")
FLOWS = {"authorizationCode": ("authorizationUrl", "tokenUrl"), "clientCredentials": ("tokenUrl",)}


@dataclass(slots=True)
class RequestBuilder:
    """The templates and arguments of one request.

    `omissions` are the reasons for parts that are left out.
    """

    method: str
    schemas: SchemaTranslator
    url: str = ""
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cookies: list[str] = field(default_factory=list)
    body: Any = None
    auth: JsonObject | None = None
    response: JsonObject = field(default_factory=dict)
    arguments: dict[str, JsonObject] = field(default_factory=dict)
    names: UniqueNames = field(default_factory=lambda: UniqueNames("_"))
    required: list[str] = field(default_factory=list)
    rules: JsonObject = field(default_factory=dict)  # `anyOf` and `oneOf` over several arguments
    omissions: list[str] = field(default_factory=list)

    def add_argument(
        self, name: str, location: str, schema: JsonObject, *, required: bool, description: Any = ""
    ) -> str:
        """Add an argument and return its placeholder."""
        if len(self.arguments) + len(self.omissions) >= MAX_ARGUMENTS:
            raise invalid(f"it has more than {MAX_ARGUMENTS:,} arguments")
        argument_name = to_argument_name(name, location, self.names)
        definition = {key: value for key, value in schema.items() if key != "default"}
        choices = schema.get("enum", [])
        default = schema.get("default", choices[0] if required and len(choices) == 1 else None)
        text = shorten(description, MAX_ARGUMENT_LENGTH) or schema.get("description", "")
        if required:
            self.required.append(argument_name)
            definition = definition if default is None else {**definition, "default": default}
        elif default is not None:
            text = f"{text} Default: {json.dumps(default, ensure_ascii=False)}.".strip()
        self.arguments[argument_name] = {**definition, "description": text} if text else definition
        return f"${{{argument_name}}}"

    def omit(self, reason: str) -> None:
        self.omissions.append(reason)
        if len(self.omissions) > MAX_ARGUMENTS:
            raise invalid(f"it has more than {MAX_ARGUMENTS:,} arguments")

    def remove(self, location: str, name: str) -> None:
        """Remove the entry with this name and its argument."""
        entries = self.query if location == "query" else self.headers
        for entry in [entry for entry in entries if entry.lower() == name.lower()]:
            match = _ARGUMENT.fullmatch(entries.pop(entry))
            if match:
                self.arguments.pop(match[1], None)
                self.required = [other for other in self.required if other != match[1]]

    def build_schema(self) -> JsonObject:
        """Return `argSchema`."""
        definitions = self.schemas.collect_definitions(self.arguments.values())
        arguments = {
            name: _drop_invalid_default(part, definitions) for name, part in self.arguments.items()
        }
        required = [name for name in self.required if "default" not in arguments[name]]
        schema: JsonObject = {
            "type": "object",
            "properties": arguments,
            "additionalProperties": False,
            **self.rules,
        }
        if required:
            schema["required"] = required
        if definitions:
            schema["$defs"] = definitions
        return schema

    def build_implementation(self) -> JsonObject:
        """Return `httpImpl`."""
        cookies = [self.headers["Cookie"]] if "Cookie" in self.headers else []
        headers = dict(self.headers)
        if self.cookies:
            headers["Cookie"] = "; ".join([*cookies, *self.cookies])
        impl = {
            "method": self.method,
            "urlTemplate": self.url,
            "query": self.query,
            "headers": headers,
        }
        optional = {"body": self.body, "auth": self.auth, "response": self.response or None}
        return {**impl, **{key: value for key, value in optional.items() if value is not None}}


def build_url_template(base: str, path: str, placeholders: dict[str, str]) -> str:
    """Return a URL template: path variables become placeholders, the rest is percent-encoded."""
    pieces = VARIABLE.split(path)
    pieces[::2] = map(encode_path, pieces[::2])
    pieces[1::2] = map(placeholders.__getitem__, pieces[1::2])
    return f"{base}/{''.join(pieces).removeprefix('/')}"


def encode_path(text: str) -> str:
    return percent_encode(_BAD_ESCAPE.sub("%25", text), safe=_PATH_SAFE)


def escape_literal(text: str) -> str:
    """Escape a string for a template, so that it contains no placeholder."""
    return re.sub(r"(?<!\$)(\$++)(?=\{)", r"\1\1", text)


def _drop_invalid_default(schema: JsonObject, definitions: JsonObject) -> JsonObject:
    if "default" not in schema:
        return schema
    foreign = ForeignSchema.from_json({**schema, "$defs": definitions})
    try:
        is_valid = (
            not foreign.is_costly(schema["default"]) and foreign.problem(schema["default"]) is None
        )
    except (ArgumentError, ValueError):
        is_valid = False
    return schema if is_valid else {key: value for key, value in schema.items() if key != "default"}


# --- credentials ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Credentials:
    """The credentials of `httpImpl`.

    A tool has one `auth`; further keys are headers and query parameters.
    """

    auth: JsonObject | None = None
    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)

    def add(self, auth: JsonObject, name: str) -> None:
        """Add a credential whose value is the secret with this name."""
        auth = {**auth, "value": f"${{secret:{name}}}"}
        if self.auth is not None and _is_authorization(self.auth) and _is_authorization(auth):
            types = {self.auth["type"], auth["type"]}
            if types == {"bearer", "basic"}:
                raise invalid("it requires two kinds of authentication in the same header")
            return  # two descriptions of one token
        self.secrets.append(name)
        if self.auth is None:
            self.auth = auth
            return
        if auth["type"] != "apiKey":  # a key can also be a header or a parameter
            self.auth, auth = auth, self.auth
        (self.query if auth["in"] == "query" else self.headers)[auth["name"]] = auth["value"]

    def add_cookie(self, cookie: str, name: str) -> None:
        self.secrets.append(name)
        existing = f"{self.headers['Cookie']}; " if "Cookie" in self.headers else ""
        self.headers["Cookie"] = f"{existing}{escape_literal(cookie)}=${{secret:{name}}}"

    def drop_header(self, name: str) -> None:
        """Drop the credentials that are sent in a header."""
        dropped = [
            self.headers.pop(header) for header in [*self.headers] if header.lower() == name.lower()
        ]
        if self.auth is not None and _get_header(self.auth) == name.lower():
            dropped.append(self.auth["value"])
            self.auth = None
        text = " ".join(dropped)
        self.secrets = [secret for secret in self.secrets if f"${{secret:{secret}}}" not in text]

    def list_locations(self) -> list[tuple[str, str]]:
        """Return the locations of keys: `header` or `query`, and the name."""
        locations = [("header", name) for name in self.headers]
        locations += [("query", name) for name in self.query]
        if self.auth and self.auth["type"] == "apiKey":
            locations.append((str(self.auth["in"]), str(self.auth["name"])))
        return locations


def _is_authorization(auth: JsonObject) -> bool:
    return _get_header(auth) == "authorization"


def _get_header(auth: JsonObject) -> str:
    """Return the lower-case name of the header of a credential; empty if it is sent in the query."""
    if auth["type"] != "apiKey":
        return "authorization"
    return str(auth["name"]).lower() if auth["in"] == "header" else ""


class SecuritySchemes:
    """The security schemes of a document.

    `undefined` collects the names of used but undefined ones.
    """

    def __init__(
        self,
        schemes: JsonMapping,
        references: References,
        bundle: str,
        default: JsonMapping | None = None,
    ) -> None:
        self._schemes = schemes
        self._references = references
        self._bundle = bundle
        self._default = default  # a scheme for operations that declare none
        self.undefined: set[str] = set()

    def find_credentials(self, alternatives: Any) -> Credentials:
        """Return the credentials of the first supported alternative; empty if none is required."""
        if not isinstance(alternatives, list) or not alternatives:
            return Credentials()
        reasons: list[str] = []
        for alternative in map(as_mapping, alternatives):
            try:
                return self._combine(alternative)
            except BundleError as reason:
                reasons.append(reason.message)
        raise invalid(f"unsupported authentication: {'; '.join(dict.fromkeys(reasons))}")

    def create_default_credentials(self) -> Credentials:
        credentials = Credentials()
        if self._default is not None:
            self._add_scheme(credentials, "auth", self._default, [])
        return credentials

    def create_header_credentials(self, header: str) -> Credentials:
        """Return credentials for authentication that is only described as a header parameter."""
        credentials = Credentials()
        secret = to_secret_name(self._bundle, header)
        credentials.add({"type": "apiKey", "in": "header", "name": header}, secret)
        return credentials

    def _combine(self, alternative: JsonMapping) -> Credentials:
        credentials = Credentials()
        for name, scopes in alternative.items():
            if name in self._schemes:
                scheme = self._references.resolve_mapping(self._schemes[name])
                self._add_scheme(credentials, name, scheme, list_strings(scopes))
            else:
                self.undefined.add(name)  # its kind is unknown; the tool may work without it
        return credentials

    def _add_scheme(
        self, credentials: Credentials, name: str, scheme: JsonMapping, scopes: list[str]
    ) -> None:
        secret = to_secret_name(self._bundle, name)
        kind = as_text(scheme.get("type"))
        if kind == "apiKey":
            _add_api_key(credentials, name, scheme, secret)
        elif kind == "http":
            method = as_text(scheme.get("scheme")).lower()
            if method not in {"bearer", "basic"}:
                raise invalid(
                    f"the scheme {quote(name, 60)} is HTTP authentication of type"
                    f" {quote(method, 60)}"
                )
            credentials.add({"type": method}, secret)
        elif kind in {"oauth2", "openIdConnect"}:
            # The token is a secret, or that of a sign-in if the document has its endpoints.
            flow = _find_flow(scheme)
            if flow and scopes:
                flow["scopes"] = scopes
            credentials.add(
                {"type": "bearer", "oauth": flow} if flow else {"type": "bearer"}, secret
            )
        else:
            raise invalid(f"the scheme {quote(name, 60)} has the type {quote(kind, 60)}")


def _find_flow(scheme: JsonMapping) -> JsonObject:
    """Return the endpoints of a supported flow; empty if it has no absolute URLs."""
    if as_text(scheme.get("type")) == "openIdConnect":
        url = as_text(scheme.get("openIdConnectUrl"))
        return {"openIdConnectUrl": url} if url.startswith(HTTP) else {}
    # Swagger 2 has other names.
    old_kinds = {"accessCode": "authorizationCode", "application": "clientCredentials"}
    old_kind = old_kinds.get(as_text(scheme.get("flow")))
    flows = as_mapping(scheme.get("flows")) or ({old_kind: scheme} if old_kind else {})
    for kind, fields in FLOWS.items():
        endpoints = {field: as_text(as_mapping(flows.get(kind)).get(field)) for field in fields}
        if all(url.startswith(HTTP) for url in endpoints.values()):
            return endpoints
    return {}


def _add_api_key(credentials: Credentials, name: str, scheme: JsonMapping, secret: str) -> None:
    location = as_text(scheme.get("in"))
    parameter = as_text(scheme.get("name"))
    if location not in {"header", "query", "cookie"} or not parameter:
        raise invalid(f"the scheme {quote(name, 60)} does not declare the location of its key")
    if location == "cookie":
        credentials.add_cookie(parameter, secret)
    else:
        credentials.add(
            {"type": "apiKey", "in": location, "name": escape_literal(parameter)}, secret
        )
