"""Conversion of an operation to a tool: a validated request body for the store.

The base URL is that of the first usable server of the document, with the defaults of its variables.
A relative URL cannot be resolved, because only the user knows where the document came from.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from onetool.errors import BundleError
from onetool.net.client import EVENT_STREAM
from onetool.sources.bundles.openapi.bodies import BodyWriter, Parameter, ParameterWriter, is_binary
from onetool.sources.bundles.openapi.document import (
    OpenApiDocument,
    References,
    as_list,
    as_mapping,
    as_text,
    convert_operation,
    convert_servers,
    describe_operation,
    shorten,
    to_tags,
)
from onetool.sources.bundles.openapi.request import (
    VARIABLE,
    RequestBuilder,
    SecuritySchemes,
    build_url_template,
    encode_path,
    escape_literal,
)
from onetool.sources.bundles.openapi.schemas import SchemaTranslator
from onetool.sources.bundles.rules import invalid
from onetool.sources.http.body import strip_parameters
from onetool.sources.http.placeholders import list_placeholders, parse
from onetool.sources.http.request import check_headers
from onetool.util.secret_finder import is_secret_name
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

_AUTHORITY = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
MAX_NAME_LENGTH = 120
BASE_COST = 50  # of an operation, in schema nodes
SAVE_TO: JsonObject = {
    "type": "string",
    "description": "Path of the file to write the response to.",
}
FULL_RESPONSE: JsonObject = {
    "type": "boolean",
    "description": "Return status, headers, links and body, not only the body.",
}
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


@dataclass(frozen=True, slots=True)
class Additions:
    """The `scheme` of operations that declare none, and `headers` that all tools send."""

    scheme: JsonMapping | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, auth: str | None, headers: Iterable[str]) -> Self:
        """Parse `bearer`, `basic`, `header:NAME` or `query:NAME`, and headers like `X-Version: 2`."""
        return cls(_parse_scheme(auth) if auth else None, _parse_headers(headers))

    @property
    def secrets(self) -> list[str]:
        """The names of the secrets in the headers."""
        parts = chain.from_iterable(map(parse, self.headers.values()))
        return [part.name for part in list_placeholders(parts)]


def _parse_scheme(auth: str) -> JsonMapping:
    kind, _, name = auth.partition(":")
    if auth in {"bearer", "basic"}:
        return {"type": "http", "scheme": auth}
    if kind not in {"header", "query"} or not name:
        raise invalid(
            f"invalid auth {quote(auth, 60)} (expected bearer, basic, header:NAME or query:NAME)"
        )
    return {"type": "apiKey", "in": kind, "name": name}


def _parse_headers(headers: Iterable[str]) -> dict[str, str]:
    parsed: dict[str, str] = {}
    for text in headers:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not value:
            raise invalid(
                f"invalid header {quote(name, 60)} (expected a header like 'X-Version: 2')"
            )
        try:
            check_headers({name: value})
            placeholders = list_placeholders(parse(value))
        except ValueError as error:
            raise invalid(f"invalid header {quote(name, 60)}: {error}") from None
        argument = next((part for part in placeholders if not part.is_secret), None)
        if argument is not None:
            raise invalid(
                f"invalid header {quote(name, 60)}: {argument} is not a secret (expected"
                " ${secret:NAME})"
            )
        if is_secret_name(name, or_key=True) and not placeholders:
            raise invalid(
                f"header {quote(name, 60)} contains a credential; run `onetool secret set NAME`, "
                f"and write '{name}: ${{secret:NAME}}'"
            )
        parsed[name] = value
    return parsed


class ServerUrls:
    """The base URLs of operations.

    `override` is a base URL from the user, which replaces those of the document.
    """

    def __init__(self, override: str | None) -> None:
        self._override = None
        if override is not None:
            self._override = _validate(override if "://" in override else f"https://{override}")

    def find_base_url(self, servers: Iterable[Any]) -> str:
        """Return the base URL without a trailing slash."""
        if self._override is not None:
            return self._override
        urls = [_fill_variables(as_mapping(server)) for server in servers] or ["/"]
        absolute = [url for url in urls if url.startswith(("https://", "http://"))]
        if not absolute:
            path = urls[0].strip("/")
            is_printable = path and re.fullmatch(r"[\w./~-]{0,79}", path)
            example = "https://api.example.com"
            if is_printable:
                example = f"{example}/{path}"
            only = quote(urls[0], 100)
            reason = f"the document does not declare the host of the API (only {only})"
            raise invalid(
                f'{reason}; set server="{example}"', needs="server", example=example, reason=reason
            )
        return next(filter(None, map(_validate_or_none, absolute)), None) or _validate(absolute[0])


def find_servers(*locations: JsonMapping) -> list[Any]:
    """Return the servers of the operation, else of its path, else of the document."""
    servers = (as_list(location.get("servers")) for location in locations)
    return next(filter(None, servers), [])


def _fill_variables(server: JsonMapping) -> str:
    variables = as_mapping(server.get("variables"))

    def get_default(match: re.Match[str]) -> str:
        variable = as_mapping(variables.get(match[1]))
        choices = as_list(variable.get("enum"))
        value = variable.get("default", choices[0] if choices else None)
        return str(value) if isinstance(value, str | int) else match[0]

    url = VARIABLE.sub(get_default, as_text(server.get("url")).strip())
    return f"https:{url}" if url.startswith("//") else url


def _validate_or_none(url: str) -> str | None:
    try:
        return _validate(url)
    except BundleError:
        return None


def _validate(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = (
            parts.scheme in {"http", "https"}
            and _AUTHORITY.fullmatch(parts.netloc)
            and parts.port != 0
        )
    except ValueError:  # a port over 65535, or half of a bracket
        is_valid = False
    if not is_valid:
        raise invalid(
            f"invalid base URL {quote(url, 200)} (expected a URL like https://api.example.com/v1)",
            needs="server",
        )
    if "{" in parts.path:
        raise invalid(
            f"the base URL {quote(url, 200)} has a variable without default; set the complete URL",
            needs="server",
        )
    return f"{parts.scheme}://{parts.netloc.lower()}{encode_path(parts.path).rstrip('/')}"


@dataclass(frozen=True, slots=True)
class OperationLocation:
    """An operation and its location in the document."""

    method: str
    path: str
    item: JsonMapping
    operation: JsonMapping

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path[:200]}"


@dataclass(frozen=True, slots=True)
class ConvertedTool:
    body: JsonObject
    base: str
    secrets: list[str]
    omissions: list[str]


class OperationConverter:
    def __init__(
        self,
        document: OpenApiDocument,
        servers: ServerUrls,
        security: SecuritySchemes,
        references: References,
        additions: Additions,
    ) -> None:
        self._document = document
        self._servers = servers
        self._security = security
        self._references = references
        self._additions = additions
        self._schemas = SchemaTranslator(references)

    @property
    def unresolved(self) -> set[str]:
        """Unresolved references inside schemas."""
        return self._schemas.unresolved

    def convert(self, location: OperationLocation) -> ConvertedTool:
        if location.method == "trace":
            raise invalid("TRACE is not supported, because it reveals credentials")
        self._schemas.spend(BASE_COST)
        operation = self._convert_to_version_3(location)
        if self._document.is_swagger:
            servers = convert_servers(self._document)
        else:
            servers = find_servers(location.operation, location.item, self._document.root)
        base = self._servers.find_base_url(servers)
        request = RequestBuilder(location.method.upper(), self._schemas)
        self._add_path_and_parameters(request, base, location.path, operation)
        BodyWriter(request).add(operation.get("requestBody"))
        secrets = self._add_credentials(request, operation)
        self._add_response(request, operation)
        for (
            name,
            value,
        ) in self._additions.headers.items():  # last, because they replace those of the document
            request.remove("header", name)
            request.headers[name] = value
        return ConvertedTool(self._build_tool(location, request), base, secrets, request.omissions)

    def _convert_to_version_3(self, location: OperationLocation) -> JsonMapping:
        parameters = self._merge_parameters(location)
        if self._document.is_swagger:
            return convert_operation(self._document, location.operation, parameters)
        return {**location.operation, "parameters": parameters}

    def _merge_parameters(self, location: OperationLocation) -> list[JsonMapping]:
        """Return path and operation parameters; those of the operation take precedence."""
        parameters: dict[tuple[str, str], JsonMapping] = {}
        for definition in [
            *as_list(location.item.get("parameters")),
            *as_list(location.operation.get("parameters")),
        ]:
            parameter = self._references.resolve_mapping(definition)
            parameters[as_text(parameter.get("name")), as_text(parameter.get("in"))] = parameter
        return list(parameters.values())

    # --- the request ------------------------------------------------------------------------------

    def _add_path_and_parameters(
        self, request: RequestBuilder, base: str, path: str, operation: JsonMapping
    ) -> None:
        parameters = [
            Parameter(definition, self._schemas) for definition in operation["parameters"]
        ]
        writer = ParameterWriter(request)
        path_parameters = {
            parameter.name: parameter for parameter in parameters if parameter.location == "path"
        }
        plain_path, _, query = path.partition("#")[0].partition("?")
        placeholders = {}
        # This includes variables that the document does not describe.
        for name in VARIABLE.findall(plain_path):
            if name not in placeholders:
                undeclared = {"name": name, "in": "path", "schema": {"type": "string"}}
                parameter = path_parameters.get(name) or Parameter(undeclared, self._schemas)
                placeholders[name] = writer.build_path_segment(parameter)
        request.url = build_url_template(base, plain_path, placeholders)
        request.query.update(
            {escape_literal(name): escape_literal(value) for name, value in parse_qsl(query)}
        )
        for parameter in parameters:
            if parameter.location != "path":
                writer.add(parameter)

    def _add_credentials(self, request: RequestBuilder, operation: JsonMapping) -> list[str]:
        """Add the credentials.

        A credential that is also described as a parameter does not become an argument.
        """
        security = operation.get("security", self._document.root.get("security"))
        credentials = self._security.find_credentials(security)
        if not credentials.secrets and security != []:
            credentials = self._security.create_default_credentials()
        described = {
            (parameter.get("in"), as_text(parameter.get("name")).lower())
            for parameter in operation["parameters"]
        }
        if credentials.auth is None and ("header", "authorization") in described:
            credentials = self._security.create_header_credentials("Authorization")
        for name in self._additions.headers:
            credentials.drop_header(name)
        for location, name in credentials.list_locations():
            request.remove(location, name)
        request.auth = credentials.auth
        request.headers |= credentials.headers
        request.query |= credentials.query
        return [*credentials.secrets, *self._additions.secrets]

    def _add_response(self, request: RequestBuilder, operation: JsonMapping) -> None:
        """Request JSON if the server offers it, because some servers respond with XML by default."""
        responses = as_mapping(operation.get("responses"))
        definitions = [responses[code] for code in responses if str(code).startswith("2")]
        successful = [self._references.resolve_or_empty(definition) for definition in definitions]
        contents = (as_mapping(response.get("content")) for response in successful)
        media_types = list(chain.from_iterable(contents))
        printable = [kind for kind in media_types if kind.isascii() and kind.isprintable()]
        plain = [kind for kind in printable if "*" not in kind]
        bare = [strip_parameters(kind) for kind in plain]
        json_type = next((kind for kind in plain if "json" in kind), None)
        if json_type:
            request.headers["Accept"] = escape_literal(json_type)
        elif EVENT_STREAM in bare:
            request.headers["Accept"] = EVENT_STREAM
            request.response["mode"] = "events"
        elif any(map(is_binary, bare)):
            request.response["saveTo"] = request.add_argument(
                "save_to", "response", SAVE_TO, required=False
            )
        if any(as_mapping(response.get("headers")) for response in successful):
            request.response["full"] = request.add_argument(
                "full_response", "response", FULL_RESPONSE, required=False
            )

    # --- the tool ---------------------------------------------------------------------------------

    def _build_tool(self, location: OperationLocation, request: RequestBuilder) -> JsonObject:
        from onetool.sources.bundles.model import ToolDraft

        operation = location.operation
        body = {
            "displayName": self._choose_display_name(location),
            "isEnabled": True,
            "type": "http",
            "description": describe_operation(
                operation.get("summary"), operation.get("description")
            ),
            "tags": to_tags(tag for tag in as_list(operation.get("tags")) if isinstance(tag, str)),
            "argSchema": request.build_schema(),
            "httpImpl": request.build_implementation(),
        }
        ToolDraft.of(body)
        return body

    @staticmethod
    def _choose_display_name(location: OperationLocation) -> str:
        for text in (
            location.operation.get("summary"),
            location.operation.get("operationId"),
            str(location),
        ):
            name = " ".join(shorten(text, MAX_NAME_LENGTH).split())
            if name:
                return name
        return location.method.upper()


def iterate_operations(
    document: OpenApiDocument, references: References
) -> Iterable[tuple[OperationLocation, str]]:
    """Yield all operations, with a reason for those that cannot be resolved."""
    for path, definition in document.get_section("paths").items():
        if not path.startswith("/") and path.startswith("x-"):
            continue
        yield from _iterate_path(path, definition, references)


def _iterate_path(
    path: str, definition: Any, references: References
) -> Iterable[tuple[OperationLocation, str]]:
    try:
        item = references.resolve_mapping(definition)
    except BundleError as error:
        yield OperationLocation("any", path, {}, {}), error.message
        return
    for method in METHODS:
        if isinstance(item.get(method), dict):
            yield OperationLocation(method, path, item, item[method]), ""
