"""The application behind the HTTP door: all routes, and one gate before them."""

import functools
import os
from typing import Final

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from ot.app import OneTool
from ot.faces.http import mcp, page
from ot.faces.http.answers import answer
from ot.faces.http.api import routes
from ot.faces.http.errors import ErrorBoundary
from ot.faces.http.gate import Bind, Gate
from ot.faces.http.keys import LiveTokens
from ot.faces.http.metrics import Metrics
from ot.faces.http.routing import document
from ot.storage import TokenStorage

PARTS: Final = ("the page at /", "MCP at /mcp", "REST at /tools", "programs at /api")


def build(app: OneTool, bind: Bind, tokens: TokenStorage | None = None) -> Gate:
    """Everything that the server answers to."""
    metrics = Metrics(app)
    operations = tuple(routes.operations(app, metrics))

    @functools.cache
    def described() -> Response:
        return answer(document(operations, routes.path_schemas()))

    async def describe(_request: Request) -> Response:
        return await anyio.to_thread.run_sync(described)

    all_routes = [*page.routes(), mcp.route(app), *(operation.route for operation in operations)]
    router = Router([*all_routes, Route("/openapi.json", describe)], redirect_slashes=False)
    keys = (tokens or live_tokens(app)).keys
    names, limits = (lambda: app.settings.auth.names), (lambda: app.settings.limits)
    inner = ErrorBoundary(router, app.log, metrics.count_answer)
    return Gate(inner, bind, keys, log=app.log, names=names, limits=limits)


def live_tokens(app: OneTool) -> LiveTokens:
    return LiveTokens(lambda: app.settings, os.environ, lambda: app.config_files)
