"""Conversion of security schemes to `auth`, headers and query of an HTTP tool.

Keys and tokens are never arguments: each becomes a secret, whose value the user adds.
"""

from dataclasses import dataclass, field
from typing import Any

from onetool.errors import BundleError
from onetool.sources.bundles.openapi.document import References, as_mapping, as_text
from onetool.sources.bundles.openapi.names import to_secret_name
from onetool.sources.bundles.openapi.request import escape_literal
from onetool.sources.bundles.openapi.schemas import list_strings
from onetool.sources.bundles.rules import invalid
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

HTTP = ("https://", "http://")
FLOWS = {"authorizationCode": ("authorizationUrl", "tokenUrl"), "clientCredentials": ("tokenUrl",)}


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
        keys = (
            [(str(self.auth["in"]), str(self.auth["name"]))]
            if self.auth and self.auth["type"] == "apiKey"
            else []
        )
        return [
            *keys,
            *(("header", name) for name in self.headers),
            *(("query", name) for name in self.query),
        ]


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
        """Return credentials for a document that describes its authentication only as a header
        parameter.
        """
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
    """Return the endpoints of a scheme; empty without absolute URLs of a flow that OneTool
    supports.
    """
    if as_text(scheme.get("type")) == "openIdConnect":
        url = as_text(scheme.get("openIdConnectUrl"))
        return {"openIdConnectUrl": url} if url.startswith(HTTP) else {}
    old_kinds = {
        "accessCode": "authorizationCode",
        "application": "clientCredentials",
    }  # of Swagger 2
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
