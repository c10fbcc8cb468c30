"""REST operations: each has a route and an entry in the OpenAPI document, built from its models.

Handlers read request bodies themselves, because other errors take precedence over those of the body.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onetool.schema import JSON
from onetool.transports.http.errors import STATUS
from onetool.version import __version__

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.json_schema import JsonSchemaMode

    from onetool.transports.http.models import Query

IN_JSON: Final = "application/json"
TEXT: Final[JSON] = {"type": "string"}
BYTES: Final[JSON] = {"type": "string", "format": "binary"}
DESCRIPTION: Final = "All connected tools over REST. Errors have the body {error: {code, message, details}}."
TOKEN: Final = "Identifies the agent. Not required on the local machine."  # noqa: S105 - no token
ERRORS_OF_ALL: Final = (
    *("invalid", "unauthorized", "forbidden", "too_large", "rate_limited", "internal", "busy", "storage_unavailable"),
)
ETAG: Final[JSON] = {"ETag": {"schema": TEXT, "description": "Changes with the content"}}
IF_CHANGED: Final = {"If-None-Match": "ETag of the cached version; returns 304 without a body if it is unchanged"}
PRECONDITIONS: Final = {
    "If-Match": "Apply the change only if the current ETag matches; otherwise returns 412",
    "If-None-Match": "Apply the change only if the current ETag does not match; `*` creates only if it does not exist",
}
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """A response in the OpenAPI document: the JSON model, and schemas for other media types."""

    description: str
    model: "type[BaseModel] | None" = None
    media: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """A REST operation. `errors` are its error codes beyond those that every operation has."""

    method: str
    path: str
    handler: Handler
    summary: str
    answers: Mapping[int, ResponseSpec]
    query: "type[Query] | None" = None
    body: "type[BaseModel] | Mapping[str, JSON] | None" = None  # a model, or schemas by their media types
    errors: Sequence[str] = ()
    is_tagged: bool = False
    is_conditional: bool = False  # a write with If-Match and If-None-Match

    @property
    def route(self) -> Route:
        return Route(self.path, self.handler, methods=[self.method])


# --- the document --------------------------------------------------------------------------------------------------


def document(operations: Iterable[Operation], path_schemas: Mapping[str, JSON]) -> JSON:
    """Return the OpenAPI document. `path_schemas` has the schemas of path parameters by name."""
    from pydantic.json_schema import models_json_schema

    from onetool.transports.http.models import ApiSchemas, ErrorResponse

    listed = tuple(operations)
    models = dict.fromkeys((pair for one in listed for pair in _models(one)), None) | {
        (ErrorResponse, "serialization"): None
    }
    refs, found = models_json_schema(
        list(models), by_alias=True, ref_template="#/components/schemas/{model}", schema_generator=ApiSchemas
    )
    paths: dict[str, JSON] = {}
    for each in listed:
        paths.setdefault(each.path, {})[each.method.lower()] = _describe_operation(each, refs, path_schemas)
    token = {"type": "http", "scheme": "bearer", "description": TOKEN}
    return {
        "openapi": "3.1.0",
        "info": {"title": "OneTool", "description": DESCRIPTION, "version": __version__},
        "paths": paths,
        "components": {"schemas": found["$defs"], "securitySchemes": {"token": token}},
        "security": [{}, {"token": []}],
    }


def _models(operation: Operation) -> "Iterator[tuple[type[BaseModel], JsonSchemaMode]]":
    for answer in operation.answers.values():
        if answer.model is not None:
            yield answer.model, "serialization"
    if isinstance(operation.body, type):
        yield operation.body, "validation"


def _describe_operation(operation: Operation, refs: Mapping[Any, JSON], path_schemas: Mapping[str, JSON]) -> JSON:
    # `getToolsBundlesByBundleID`: unlike handler names, it is unique
    words = re.sub(r"\{(\w+)\}", r"by/\1", operation.path).split("/")
    described: JSON = {
        "tags": [operation.path.split("/")[1]],
        "summary": operation.summary,
        "operationId": operation.method.lower() + "".join(word[:1].upper() + word[1:] for word in words),
        "parameters": [*_parameters(operation, path_schemas)],
        "responses": dict(_responses(operation, refs)),
    }
    if operation.body is not None:
        content = operation.body
        if isinstance(content, type):
            content = {IN_JSON: refs[content, "validation"]}
        described["requestBody"] = {"required": True, "content": _content(content)}
    return described


def _content(schemas: Mapping[str, JSON]) -> JSON:
    return {media_type: {"schema": schema} for media_type, schema in schemas.items()}


def _parameters(operation: Operation, path_schemas: Mapping[str, JSON]) -> Iterator[JSON]:
    for name in re.findall(r"\{(\w+)\}", operation.path):
        yield {"name": name, "in": "path", "required": True, "schema": path_schemas[name]}
    query = operation.query.parameters() if operation.query else {"properties": {}}
    for name, schema in query["properties"].items():
        shown = {key: value for key, value in schema.items() if key != "description" and value is not None}
        required = name in query.get("required", ())
        about = {"name": name, "in": "query", "required": required, "description": schema["description"]}
        yield {**about, "schema": shown}
    headers = PRECONDITIONS if operation.is_conditional else IF_CHANGED if operation.is_tagged else {}
    for name, words in headers.items():
        yield {"name": name, "in": "header", "required": False, "description": words, "schema": TEXT}


def _responses(operation: Operation, refs: Mapping[Any, JSON]) -> Iterator[tuple[str, JSON]]:
    from onetool.transports.http.models import ErrorResponse

    tag = {"headers": ETAG} if operation.is_tagged else {}
    for status, answer in operation.answers.items():
        schemas = {IN_JSON: refs[answer.model, "serialization"]} if answer.model else {}
        content = _content({**schemas, **answer.media})
        yield str(status), {"description": answer.description, **({"content": content} if content else {}), **tag}
    if operation.is_tagged:
        yield "304", {"description": "Not modified", **tag}
    codes = {*operation.errors, *ERRORS_OF_ALL}
    codes |= {"unsupported_media_type"} if isinstance(operation.body, type) else set()
    codes |= {"precondition_failed"} if operation.is_conditional else set()
    for status in sorted({STATUS[code] for code in codes}):
        words = " or ".join(sorted(code for code in codes if STATUS[code] == status))
        content = _content({IN_JSON: refs[ErrorResponse, "serialization"]})
        yield str(status), {"description": f"Error: {words}", "content": content}
