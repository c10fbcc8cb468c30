"""The application behind the HTTP door: all routes, and one gate before them."""

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Final

import anyio.to_thread
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router

from onetool.app import OneTool
from onetool.bundles.model import Id, Slug, Version
from onetool.faces.activity import Activity
from onetool.faces.http import mcp, page
from onetool.faces.http.answers import answer
from onetool.faces.http.api.bundles import Bundles
from onetool.faces.http.api.catalogue import Catalogue
from onetool.faces.http.api.common import Api
from onetool.faces.http.api.figures import Figures
from onetool.faces.http.api.imports import Imports
from onetool.faces.http.api.packs import PackHandlers
from onetool.faces.http.api.results import Results
from onetool.faces.http.api.runs import RunHandlers
from onetool.faces.http.api.tools import Tools
from onetool.faces.http.errors import ErrorBoundary
from onetool.faces.http.gate import Bind, Gate
from onetool.faces.http.keys import LiveTokens
from onetool.faces.http.metrics import Metrics
from onetool.faces.http.routing import TEXT, Answer, Operation, document
from onetool.schema import JSON
from onetool.storage import TokenStorage

PARTS: Final = ("the page at /", "MCP at /mcp", "REST at /tools", "programs at /api")
SEGMENT: Final[JSON] = {**TEXT, "minLength": 1, "pattern": r"^[^\u0000-\u001f/]+$"}
PLAIN: Final = {"text/plain": TEXT}


def build(app: OneTool, bind: Bind, tokens: TokenStorage | None = None) -> Gate:
    """Everything that the server answers to."""
    metrics = Metrics(app)
    operations = tuple(_operations(app, metrics))

    @functools.cache
    def described() -> Response:
        return answer(document(operations, _path_schemas()))

    async def describe(_request: Request) -> Response:
        return await anyio.to_thread.run_sync(described)

    all_routes = [*page.routes(), mcp.route(app), *(operation.route for operation in operations)]
    router = Router([*all_routes, Route("/openapi.json", describe)], redirect_slashes=False)
    keys = (tokens or live_tokens(app)).keys
    names, limits = (lambda: app.settings.auth.allowed_hosts), (lambda: app.settings.limits)
    inner = ErrorBoundary(router, app.log, metrics.count_answer)
    return Gate(inner, bind, keys, log=app.log, names=names, limits=limits)


def live_tokens(app: OneTool) -> LiveTokens:
    return LiveTokens(lambda: app.settings, os.environ, lambda: app.config_files)


def _path_schemas() -> Mapping[str, JSON]:
    """Return the schemas of the parameters in paths."""
    return {
        "bundleID": TypeAdapter(Id).json_schema(),
        "toolSlug": TypeAdapter(Slug).json_schema(),
        "version": TypeAdapter(Version).json_schema(),
        "name": {**SEGMENT, "description": "A name, as it is or as code writes it"},
        "handle": {**TEXT, "pattern": "^[0-9a-f]{32}$"},
        "runID": SEGMENT,
    }


def _operations(app: OneTool, metrics: Metrics) -> Iterator[Operation]:
    api, catalogue = Api(app, Activity(app.bus.events)), Catalogue(app)
    yield from Bundles(api).operations()
    yield from Tools(api, catalogue).operations()
    yield from PackHandlers(api, catalogue).operations()
    yield from RunHandlers(api).operations()
    yield from Results(api).operations()
    yield from Figures(api).operations()
    yield from Imports(api).operations()
    yield Operation("GET", "/metrics", metrics.answer, "Figures for Prometheus", {200: Answer("They", media=PLAIN)})

    async def healthy(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    words, answers = "Whether the server answers at all", {200: Answer("It does", media=PLAIN)}
    yield Operation("GET", "/healthz", healthy, words, answers)
