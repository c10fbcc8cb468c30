"""Conversion of an operation to a tool: a validated request body for the store."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from onetool.bundles.openapi import swagger
from onetool.bundles.openapi.additions import Additions
from onetool.bundles.openapi.bodies import BodyWriter, is_binary
from onetool.bundles.openapi.descriptions import describe_operation, shorten
from onetool.bundles.openapi.document import OpenApiDocument, as_list, as_mapping, as_text
from onetool.bundles.openapi.names import to_tags
from onetool.bundles.openapi.parameters import Parameter, ParameterWriter
from onetool.bundles.openapi.references import References
from onetool.bundles.openapi.request import VARIABLE, RequestBuilder, build_url_template, escape_literal
from onetool.bundles.openapi.schemas import SchemaTranslator
from onetool.bundles.openapi.security import SecuritySchemes
from onetool.bundles.openapi.servers import ServerUrls, find_servers
from onetool.bundles.rules import invalid
from onetool.errors import BundleError
from onetool.net.messages import EVENT_STREAM
from onetool_child.json_types import JsonMapping, JsonObject

MAX_NAME_LENGTH = 120
BASE_COST = 50  # of an operation, in schema nodes
SAVE_TO: JsonObject = {"type": "string", "description": "Path of the file to write the response to."}
FULL_RESPONSE: JsonObject = {
    "type": "boolean",
    "description": "Return status, headers, links and body, not only the body.",
}
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


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
            servers = swagger.convert_servers(self._document)
        else:
            servers = find_servers(location.operation, location.item, self._document.root)
        base = self._servers.find_base_url(servers)
        request = RequestBuilder(location.method.upper(), self._schemas)
        self._add_path_and_parameters(request, base, location.path, operation)
        BodyWriter(request).add(operation.get("requestBody"))
        secrets = self._add_credentials(request, operation)
        self._add_response(request, operation)
        for name, value in self._additions.headers.items():  # last, because they replace those of the document
            request.remove("header", name)
            request.headers[name] = value
        return ConvertedTool(self._build_tool(location, request), base, secrets, request.omissions)

    def _convert_to_version_3(self, location: OperationLocation) -> JsonMapping:
        parameters = self._merge_parameters(location)
        if self._document.is_swagger:
            return swagger.convert_operation(self._document, location.operation, parameters)
        return {**location.operation, "parameters": parameters}

    def _merge_parameters(self, location: OperationLocation) -> list[JsonMapping]:
        """Return the parameters of the path and the operation; those of the operation take precedence."""
        parameters: dict[tuple[str, str], JsonMapping] = {}
        for definition in [*as_list(location.item.get("parameters")), *as_list(location.operation.get("parameters"))]:
            parameter = self._references.resolve_mapping(definition)
            parameters[as_text(parameter.get("name")), as_text(parameter.get("in"))] = parameter
        return list(parameters.values())

    # --- the request -----------------------------------------------------------------------------------------------

    def _add_path_and_parameters(self, request: RequestBuilder, base: str, path: str, operation: JsonMapping) -> None:
        parameters = [Parameter(definition, self._schemas) for definition in operation["parameters"]]
        writer = ParameterWriter(request)
        path_parameters = {parameter.name: parameter for parameter in parameters if parameter.location == "path"}
        plain_path, _, query = path.partition("#")[0].partition("?")
        placeholders = {}
        for name in VARIABLE.findall(plain_path):  # including variables that the document does not describe
            if name not in placeholders:
                undeclared = {"name": name, "in": "path", "schema": {"type": "string"}}
                parameter = path_parameters.get(name) or Parameter(undeclared, self._schemas)
                placeholders[name] = writer.build_path_segment(parameter)
        request.url = build_url_template(base, plain_path, placeholders)
        request.query.update({escape_literal(name): escape_literal(value) for name, value in parse_qsl(query)})
        for parameter in parameters:
            if parameter.location != "path":
                writer.add(parameter)

    def _add_credentials(self, request: RequestBuilder, operation: JsonMapping) -> list[str]:
        """Add the credentials. A credential that is also described as a parameter does not become an argument."""
        security = operation.get("security", self._document.root.get("security"))
        credentials = self._security.find_credentials(security)
        if not credentials.secrets and security != []:
            credentials = self._security.create_default_credentials()
        described = {
            (parameter.get("in"), as_text(parameter.get("name")).lower()) for parameter in operation["parameters"]
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
        media_types = [media_type for response in successful for media_type in as_mapping(response.get("content"))]
        plain = [kind for kind in media_types if kind.isascii() and kind.isprintable() and "*" not in kind]
        bare = [kind.partition(";")[0].strip().lower() for kind in plain]
        json_type = next((kind for kind in plain if "json" in kind), None)
        if json_type:
            request.headers["Accept"] = escape_literal(json_type)
        elif EVENT_STREAM in bare:
            request.headers["Accept"] = EVENT_STREAM
            request.response["mode"] = "events"
        elif any(map(is_binary, bare)):
            request.response["saveTo"] = request.add_argument("save_to", "response", SAVE_TO, required=False)
        if any(as_mapping(response.get("headers")) for response in successful):
            request.response["full"] = request.add_argument("full_response", "response", FULL_RESPONSE, required=False)

    # --- the tool --------------------------------------------------------------------------------------------------

    def _build_tool(self, location: OperationLocation, request: RequestBuilder) -> JsonObject:
        from onetool.bundles.model import ToolDraft

        operation = location.operation
        body = {
            "displayName": self._choose_display_name(location),
            "isEnabled": True,
            "type": "http",
            "description": describe_operation(operation.get("summary"), operation.get("description")),
            "tags": to_tags(tag for tag in as_list(operation.get("tags")) if isinstance(tag, str)),
            "argSchema": request.build_schema(),
            "httpImpl": request.build_implementation(),
        }
        ToolDraft.of(body)
        return body

    @staticmethod
    def _choose_display_name(location: OperationLocation) -> str:
        for text in (location.operation.get("summary"), location.operation.get("operationId"), str(location)):
            name = " ".join(shorten(text, MAX_NAME_LENGTH).split())
            if name:
                return name
        return location.method.upper()


def iterate_operations(document: OpenApiDocument, references: References) -> Iterable[tuple[OperationLocation, str]]:
    """Yield all operations, with a reason for those that cannot be resolved."""
    for path, definition in document.get_section("paths").items():
        if not path.startswith("/") and path.startswith("x-"):
            continue
        yield from _iterate_path(path, definition, references)


def _iterate_path(path: str, definition: Any, references: References) -> Iterable[tuple[OperationLocation, str]]:
    try:
        item = references.resolve_mapping(definition)
    except BundleError as error:
        yield OperationLocation("any", path, {}, {}), error.message
        return
    for method in METHODS:
        if isinstance(item.get(method), dict):
            yield OperationLocation(method, path, item, item[method]), ""
