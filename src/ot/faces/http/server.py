"""The application behind the HTTP door, put together: the parts, one gate before them, and refusals that look alike."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from ot.app import OneTool
from ot.errors import ToolError
from ot.faces.http import api, bundles, document, mcp, page
from ot.faces.http.api import shapes
from ot.faces.http.gate import Bind, Gate
from ot.faces.http.keys import LiveTokens
from ot.faces.http.refusals import STATUS, Refusal, refusal_of
from ot.faces.http.routing import Operation, add
from ot.faces.http.unexpected import Unexpected
from ot.version import __version__

DESCRIPTION = "Every tool there is, over REST. Refusals have one body: {error: {code, message, details}}."
BUSY_SECONDS: Final = "1"


@dataclass(frozen=True, slots=True)
class Part:
    """Something that the server offers; `words` tell a person where it is."""

    words: str
    add: Callable[[FastAPI, OneTool], None]


PARTS: Final = (
    Part("the page at /", page.add_routes),
    Part("MCP at /mcp", mcp.add_routes),
    Part("REST at /tools", bundles.add_routes),
    Part("programs at /api", api.add_routes),
)


def build(app: OneTool, bind: Bind, tokens: LiveTokens | None = None) -> Gate:
    """Everything that the server answers to."""
    web = FastAPI(
        title="OneTool",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for part in PARTS:
        part.add(web, app)
    add(web, Operation("GET", "/healthz", _healthy, "Whether the server answers at all", HEALTHY))
    _refuse_alike(web)
    _describe(web)
    web.add_middleware(Unexpected, log=app.log)

    keys = (tokens or live_tokens(app)).keys
    names, limits = (lambda: app.settings.auth.names), (lambda: app.settings.limits)
    return Gate(_PlainPaths(web), bind, keys, names=names, limits=limits)


def live_tokens(app: OneTool) -> LiveTokens:
    return LiveTokens(lambda: app.settings, os.environ, lambda: app.config_files)


HEALTHY: Final = {200: {"description": "It does", "content": {"text/plain": {"schema": {"type": "string"}}}}}


async def _healthy(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


class _PlainPaths:
    """A path means what it seems to mean: a part of it that hides a slash is not two parts."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._check(scope)
        await self._inner(scope, receive, send)

    @staticmethod
    def _check(scope: Scope) -> None:
        if b"%2f" in scope.get("raw_path", b"").lower():
            raise Refusal("invalid", "a slash that is written as %2F cannot stand in a path here")
        if any(letter < " " for letter in scope["path"]):
            raise Refusal("invalid", "a control character cannot stand in a path")


# --- the document --------------------------------------------------------------------------------------------------


def _describe(web: FastAPI) -> None:
    """The document, with the shapes that operations refer to."""

    def described() -> dict[str, Any]:
        if not web.openapi_schema:
            made = get_openapi(title=web.title, version=web.version, description=web.description, routes=web.routes)
            parts = made.setdefault("components", {})
            parts["schemas"] = {**parts.get("schemas", {}), **document.components(), **shapes.components()}
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "description": TOKEN}}
            web.openapi_schema = {**made, "security": [{}, {"token": []}]}
        return web.openapi_schema

    web.openapi = described  # type: ignore[method-assign]


TOKEN: Final = "Says which agent calls. On the machine itself none is needed."  # noqa: S105 - no token


# --- refusals ------------------------------------------------------------------------------------------------------


def _refuse_alike(web: FastAPI) -> None:
    """Whatever says no, says it with the same body."""
    web.add_exception_handler(Refusal, _refused)  # type: ignore[arg-type]
    web.add_exception_handler(ToolError, _of_a_tool)  # type: ignore[arg-type]
    web.add_exception_handler(RequestValidationError, _malformed)  # type: ignore[arg-type]
    web.add_exception_handler(HTTPException, _of_the_framework)  # type: ignore[arg-type]
    web.add_exception_handler(ClientDisconnect, _unheard)


async def _refused(_request: Request, refused: Refusal) -> Response:
    if refused.code == "busy":
        refused.headers.setdefault("retry-after", BUSY_SECONDS)
    return refused.response


async def _of_a_tool(request: Request, error: ToolError) -> Response:
    return await _refused(request, refusal_of(error))


async def _unheard(_request: Request, _error: Exception) -> Response:
    """Whoever asked has gone before the question was complete: nobody reads this."""
    return Response(status_code=400)


async def _malformed(_request: Request, error: RequestValidationError) -> Response:
    problems = [
        {"field": ".".join(map(str, one["loc"])), "problem": one["msg"].removeprefix("Value error, ")}
        for one in error.errors()
    ]
    text = "; ".join(f"{one['field']}: {one['problem']}" for one in problems)
    return Refusal("invalid", f"the request is not valid: {text}", {"problems": problems}).response


async def _of_the_framework(request: Request, error: HTTPException) -> Response:
    if error.status_code == STATUS["not_found"]:
        return Refusal("not_found", f"there is nothing at {request.url.path}").response
    if error.status_code == STATUS["method_not_allowed"]:
        return _wrong_method(request).response
    code = next((code for code, status in STATUS.items() if status == error.status_code), "invalid")
    return Refusal(code, str(error.detail), headers=error.headers).response


def _wrong_method(request: Request) -> Refusal:
    """The framework knows the methods of the first route that has this path, and there are others."""
    fitting = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    allowed = ", ".join(sorted({method for route in fitting for method in getattr(route, "methods", None) or ()}))
    message = f"{request.method} is not possible at {request.url.path}; {allowed} is" if allowed else "not possible"
    return Refusal("method_not_allowed", message, {"allowed": allowed.split(", ")}, {"allow": allowed})
