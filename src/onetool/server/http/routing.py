"""REST operations: each has a route and an entry in the OpenAPI document, built from its models.

`ActionRoute` makes those of actions. Other handlers read request bodies themselves, because other
errors take precedence over those of the body.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onetool.server.http.errors import STATUS, ApiError
from onetool.util.text import quote, suggestion_hint
from onetool.util.version import __version__
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from typing import TypeVar

    from pydantic import BaseModel
    from pydantic.json_schema import JsonSchemaMode

    from onetool.admin.model import Query

    Q = TypeVar("Q", bound=Query)

JSON_MEDIA_TYPE = "application/json"
TEXT: JsonObject = {"type": "string"}
BYTES: JsonObject = {"type": "string", "format": "binary"}
DESCRIPTION = (
    "All connected tools over REST. Errors have the body {error: {code, message, details}}."
)
TOKEN = "Identifies the agent. Not required on the local machine."  # noqa: S105 - not a token
COMMON_ERRORS = (
    "invalid", "unauthorized", "forbidden", "too_large", "rate_limited", "internal", "busy", "storage_unavailable",
)  # fmt: skip
ETAG: JsonObject = {"ETag": {"schema": TEXT, "description": "Changes with the content"}}
READ_CONDITIONS = {
    "If-None-Match": "ETag of the cached version; returns 304 without a body if it is unchanged"
}
WRITE_CONDITIONS = {
    "If-Match": "Apply the change only if the current ETag matches; otherwise returns 412",
    "If-None-Match": (
        "Apply the change only if the current ETag does not match; `*` applies it only if nothing"
        " exists"
    ),
}
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """A response in the OpenAPI document: the JSON model, and schemas for other media types."""

    description: str
    model: "type[BaseModel] | None" = None
    media: Mapping[str, JsonObject] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """A REST operation. `errors` are its error codes beyond those that every operation has."""

    method: str
    path: str
    handler: Handler
    summary: str
    responses: Mapping[int, ResponseSpec]
    query: "type[Query] | None" = None
    body: "type[BaseModel] | Mapping[str, JsonObject] | None" = (
        None  # a model, or schemas by their media types
    )
    errors: Sequence[str] = ()
    has_etag: bool = False
    is_conditional: bool = False  # a write with If-Match and If-None-Match

    @property
    def route(self) -> Route:
        return Route(self.path, self._handle, methods=[self.method])

    async def _handle(self, request: Request) -> Response:
        parameters = _list_parameters(self.query)
        aliases = self.query.ALIASES if self.query else ()
        unknown = next(
            (name for name in request.query_params if name not in {*parameters, *aliases}), None
        )
        if unknown is not None:
            expected = (
                f"expected {', '.join(parameters)}" if parameters else "this operation has none"
            )
            message = f"unknown query parameter {quote(unknown)}: {expected}"
            raise ApiError(
                "invalid",
                message,
                {"parameter": unknown},
                hint=suggestion_hint(get_close_matches(unknown, parameters, 1)),
            )
        return await self.handler(request)


def read_query(kind: "type[Q]", request: Request) -> "Q":
    """Return the query parameters of a request."""
    query = request.query_params
    return kind.read({name: query.getlist(name) for name in query})


@cache
def _list_parameters(query: "type[Query] | None") -> Sequence[str]:
    return tuple(query.parameters()["properties"]) if query else ()


# --- the document ---------------------------------------------------------------------------------


def build_document(
    operations: Iterable[Operation], path_schemas: Mapping[str, JsonObject]
) -> JsonObject:
    """Return the OpenAPI document. `path_schemas` has the schemas of path parameters by name."""
    from pydantic.json_schema import models_json_schema

    from onetool.admin.model import ApiSchemas
    from onetool.server.http.api.common import ErrorResponse

    all_operations = tuple(operations)
    models = dict.fromkeys(
        (pair for operation in all_operations for pair in _models(operation)), None
    ) | {(ErrorResponse, "serialization"): None}
    refs, definitions = models_json_schema(
        list(models),
        by_alias=True,
        ref_template="#/components/schemas/{model}",
        schema_generator=ApiSchemas,
    )
    paths: dict[str, JsonObject] = {}
    for operation in all_operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe_operation(
            operation, refs, path_schemas
        )
    token = {"type": "http", "scheme": "bearer", "description": TOKEN}
    return {
        "openapi": "3.1.0",
        "info": {"title": "OneTool", "description": DESCRIPTION, "version": __version__},
        "paths": paths,
        "components": {"schemas": definitions["$defs"], "securitySchemes": {"token": token}},
        "security": [{}, {"token": []}],
    }


def _models(operation: Operation) -> "Iterator[tuple[type[BaseModel], JsonSchemaMode]]":
    for response in operation.responses.values():
        if response.model is not None:
            yield response.model, "serialization"
    if isinstance(operation.body, type):
        yield operation.body, "validation"


def _describe_operation(
    operation: Operation, refs: Mapping[Any, JsonObject], path_schemas: Mapping[str, JsonObject]
) -> JsonObject:
    # `getToolsBundlesByBundleID`: unlike handler names, it is unique
    parts = re.sub(r"\{(\w+)\}", r"by/\1", operation.path).split("/")
    description: JsonObject = {
        "tags": [operation.path.split("/")[1]],
        "summary": operation.summary,
        "operationId": (
            operation.method.lower() + "".join(part[:1].upper() + part[1:] for part in parts)
        ),
        "parameters": [*_parameters(operation, path_schemas)],
        "responses": dict(_responses(operation, refs)),
    }
    if operation.body is not None:
        content = operation.body
        if isinstance(content, type):
            content = {JSON_MEDIA_TYPE: refs[content, "validation"]}
        description["requestBody"] = {"required": True, "content": _content(content)}
    return description


def _content(schemas: Mapping[str, JsonObject]) -> JsonObject:
    return {media_type: {"schema": schema} for media_type, schema in schemas.items()}


def _parameters(
    operation: Operation, path_schemas: Mapping[str, JsonObject]
) -> Iterator[JsonObject]:
    for name in re.findall(r"\{(\w+)\}", operation.path):
        yield {"name": name, "in": "path", "required": True, "schema": path_schemas[name]}
    query = operation.query.parameters() if operation.query else {"properties": {}}
    for name, schema in query["properties"].items():
        value_schema = {
            key: value
            for key, value in schema.items()
            if key != "description" and value is not None
        }
        required = name in query.get("required", ())
        parameter = {
            "name": name,
            "in": "query",
            "required": required,
            "description": schema["description"],
        }
        yield {**parameter, "schema": value_schema}
    headers = (
        WRITE_CONDITIONS
        if operation.is_conditional
        else READ_CONDITIONS
        if operation.has_etag
        else {}
    )
    for name, description in headers.items():
        yield {
            "name": name,
            "in": "header",
            "required": False,
            "description": description,
            "schema": TEXT,
        }


def _responses(
    operation: Operation, refs: Mapping[Any, JsonObject]
) -> Iterator[tuple[str, JsonObject]]:
    from onetool.server.http.api.common import ErrorResponse

    tag = {"headers": ETAG} if operation.has_etag else {}
    for status, response in operation.responses.items():
        schemas = {JSON_MEDIA_TYPE: refs[response.model, "serialization"]} if response.model else {}
        content = _content({**schemas, **response.media})
        yield (
            str(status),
            {
                "description": response.description,
                **({"content": content} if content else {}),
                **tag,
            },
        )
    if operation.has_etag:
        yield "304", {"description": "Not modified", **tag}
    codes = {*operation.errors, *COMMON_ERRORS}
    codes |= {"unsupported_media_type"} if isinstance(operation.body, type) else set()
    codes |= {"precondition_failed"} if operation.is_conditional else set()
    for status in sorted({STATUS[code] for code in codes}):
        names = " or ".join(sorted(code for code in codes if STATUS[code] == status))
        content = _content({JSON_MEDIA_TYPE: refs[ErrorResponse, "serialization"]})
        yield str(status), {"description": f"Error: {names}", "content": content}
