"""Conversion of an operation to a tool: a validated request body for the store."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from onetool.bundles.openapi import swagger
from onetool.bundles.openapi.bodies import Bodies
from onetool.bundles.openapi.document import OpenApiDocument, as_list, as_mapping, as_text
from onetool.bundles.openapi.keywords import JSON
from onetool.bundles.openapi.names import tags
from onetool.bundles.openapi.parameters import Parameter, Parameters
from onetool.bundles.openapi.references import References
from onetool.bundles.openapi.request import RequestBuilder, literal, url_template, variables
from onetool.bundles.openapi.schemas import SchemaTranslator
from onetool.bundles.openapi.security import Security
from onetool.bundles.openapi.servers import ServerUrls, find_servers
from onetool.bundles.openapi.texts import describe_operation, shorten
from onetool.bundles.rules import invalid
from onetool.errors import BundleError

MAX_NAME_LENGTH = 120
WORK_OF_ONE = 50  # in nodes of a schema
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


@dataclass(frozen=True, slots=True)
class OperationLocation:
    """An operation and its location in the document."""

    method: str
    path: str
    item: Mapping[str, Any]
    operation: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path[:200]}"


@dataclass(frozen=True, slots=True)
class ConvertedTool:
    body: JSON
    base: str
    secrets: list[str]
    left_out: list[str]


class Operations:
    def __init__(
        self, document: OpenApiDocument, servers: ServerUrls, security: Security, references: References
    ) -> None:
        self._document, self._servers, self._security, self._references = document, servers, security, references
        self._schemas = SchemaTranslator(references)

    @property
    def unresolved(self) -> set[str]:
        """Unresolved references inside schemas."""
        return self._schemas.unresolved

    def tool(self, place: OperationLocation) -> ConvertedTool:
        if place.method == "trace":
            raise invalid("TRACE is not supported, because it reveals credentials")
        self._schemas.work(WORK_OF_ONE)
        operation = self._as_version_3(place)
        levels = (place.operation, place.item, self._document.root)
        is_swagger = self._document.is_swagger
        base = self._servers.base(swagger.servers(self._document) if is_swagger else find_servers(*levels))
        request = RequestBuilder(place.method.upper())
        self._add_path_and_parameters(request, base, place.path, operation)
        Bodies(request, self._schemas, self._references).add(operation.get("requestBody"))
        secrets = self._add_credentials(request, operation)
        self._add_accept(request, operation)
        return ConvertedTool(self._put_body(place, request), base, secrets, request.left_out)

    def _as_version_3(self, place: OperationLocation) -> Mapping[str, Any]:
        parameters = self._parameters(place)
        if self._document.is_swagger:
            return swagger.operation(self._document, place.operation, parameters)
        return {**place.operation, "parameters": parameters}

    def _parameters(self, place: OperationLocation) -> list[Mapping[str, Any]]:
        """Return the parameters of the path and the operation; those of the operation take precedence."""
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        for given in [*as_list(place.item.get("parameters")), *as_list(place.operation.get("parameters"))]:
            parameter = self._references.mapping(given)
            found[as_text(parameter.get("name")), as_text(parameter.get("in"))] = parameter
        return list(found.values())

    # --- the request -----------------------------------------------------------------------------------------------

    def _add_path_and_parameters(
        self, request: RequestBuilder, base: str, path: str, operation: Mapping[str, Any]
    ) -> None:
        parameters = [Parameter(given, self._schemas, self._references) for given in operation["parameters"]]
        writer = Parameters(request, self._schemas)
        in_path = {parameter.name: parameter for parameter in parameters if parameter.place == "path"}
        bare, _, query = path.partition("#")[0].partition("?")
        filled = {}
        for name in variables(bare):  # including variables that the document does not describe
            undeclared = {"name": name, "in": "path", "schema": {"type": "string"}}
            filled[name] = writer.path(in_path.get(name) or Parameter(undeclared, self._schemas, self._references))
        request.url = url_template(base, bare, filled)
        request.query.update({literal(name): literal(value) for name, value in parse_qsl(query)})
        for parameter in parameters:
            if parameter.place != "path":
                writer.add(parameter)

    def _add_credentials(self, request: RequestBuilder, operation: Mapping[str, Any]) -> list[str]:
        """Add the credentials. A credential that is also described as a parameter does not become an argument."""
        credentials = self._security.credentials(operation.get("security", self._document.root.get("security")))
        described = {(one.get("in"), as_text(one.get("name")).lower()) for one in operation["parameters"]}
        if credentials.auth is None and ("header", "authorization") in described:
            credentials = self._security.header_credentials("Authorization")
        for place, name in credentials.places():
            request.drop(place, name)
        request.auth = credentials.auth
        request.headers |= credentials.headers
        request.query |= credentials.query
        return credentials.secrets

    @staticmethod
    def _add_accept(request: RequestBuilder, operation: Mapping[str, Any]) -> None:
        """Request JSON if the server offers it, because some servers respond with XML by default."""
        responses = as_mapping(operation.get("responses"))
        good = (as_mapping(responses[code]) for code in responses if str(code).startswith("2"))
        kinds = [kind for response in good for kind in as_mapping(response.get("content"))]
        wanted = next((kind for kind in kinds if "json" in kind and kind.isascii() and kind.isprintable()), None)
        if wanted and "*" not in wanted:
            request.headers["Accept"] = literal(wanted)

    # --- the tool --------------------------------------------------------------------------------------------------

    def _put_body(self, place: OperationLocation, request: RequestBuilder) -> JSON:
        from onetool.bundles.model import ToolDraft

        operation = place.operation
        body = {
            "displayName": self._display_name(place),
            "isEnabled": True,
            "type": "http",
            "description": describe_operation(operation.get("summary"), operation.get("description")),
            "tags": tags(tag for tag in as_list(operation.get("tags")) if isinstance(tag, str)),
            "argSchema": request.schema(self._schemas),
            "httpImpl": request.implementation(),
        }
        ToolDraft.of(body)
        return body

    @staticmethod
    def _display_name(place: OperationLocation) -> str:
        for text in (place.operation.get("summary"), place.operation.get("operationId"), str(place)):
            name = " ".join(shorten(text, MAX_NAME_LENGTH).split())
            if name:
                return name
        return place.method.upper()


def places(document: OpenApiDocument, references: References) -> Iterable[tuple[OperationLocation, str]]:
    """Yield all operations, with a reason for those that cannot be resolved."""
    for path, given in document.section("paths").items():
        if not path.startswith("/") and path.startswith("x-"):
            continue
        yield from _of_path(path, given, references)


def _of_path(path: str, given: Any, references: References) -> Iterable[tuple[OperationLocation, str]]:
    try:
        item = references.mapping(given)
    except BundleError as error:
        yield OperationLocation("any", path, {}, {}), error.message
        return
    for method in METHODS:
        if isinstance(item.get(method), dict):
            yield OperationLocation(method, path, item, item[method]), ""
