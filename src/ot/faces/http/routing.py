"""One operation of the REST interface: its route, and what the OpenAPI document says of it, in one place.

Bodies are not read by the framework, because other refusals come before theirs; so they are described, not declared.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ot.faces.http import document as doc
from ot.schema import JSON

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """`refusals` are the codes beyond those that every operation has."""

    method: str
    path: str
    handler: Handler
    summary: str
    answers: Mapping[int, JSON]
    parameters: Sequence[JSON] = ()
    body: str | None = None
    refusals: Sequence[str] = ()
    is_tagged: bool = False
    is_conditional: bool = False  # a write with If-Match and If-None-Match


def add(web: FastAPI, operation: Operation) -> None:
    """What can be read can be asked for without its content, too."""
    web.add_api_route(
        operation.path,
        operation.handler,
        methods=[operation.method],
        status_code=min(operation.answers),
        summary=operation.summary,
        operation_id=_identity(operation),
        tags=[operation.path.split("/")[1]],
        responses=dict(_responses(operation)),
        response_class=JSONResponse if operation.method != "DELETE" else Response,
        response_model=None,
        openapi_extra=_extra(operation),
    )
    if operation.method == "GET":
        web.add_route(operation.path, operation.handler, ["HEAD"], include_in_schema=False)


def _identity(operation: Operation) -> str:
    """`getToolsBundlesByBundleID`: unlike the name of a handler it is there once."""
    words = re.sub(r"\{(\w+)\}", r"by/\1", operation.path).split("/")
    return operation.method.lower() + "".join(word[:1].upper() + word[1:] for word in words)


def _responses(operation: Operation) -> Iterator[tuple[int, JSON]]:
    for status, answer in operation.answers.items():
        yield status, doc.with_tag(answer) if operation.is_tagged else answer
    if operation.is_tagged:
        yield 304, doc.with_tag({"description": "It is still what If-None-Match says"})
    of_body = ("unsupported_media_type",) if operation.body else ()
    conditional = ("precondition_failed",) if operation.is_conditional else ()
    yield from doc.refused(*operation.refusals, *of_body, *conditional).items()


def _extra(operation: Operation) -> JSON:
    parameters = [*operation.parameters, *([doc.KNOWN_TAG] if operation.is_tagged else [])]
    parameters += doc.PRECONDITIONS if operation.is_conditional else ()
    extra: JSON = {"parameters": parameters}
    if operation.body is not None:
        extra["requestBody"] = doc.body(operation.body)
    return extra
