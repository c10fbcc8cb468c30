"""The ASGI application: all routes behind the authentication middleware."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Protocol

from anyio.to_thread import run_sync as run_in_thread
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router

from onetool.app import OneTool
from onetool.server.http import mcp_endpoint, resource_metadata, ui_files
from onetool.server.http.api import readiness
from onetool.server.http.api.changes import ChangeHandlers
from onetool.server.http.api.common import Api
from onetool.server.http.api.runs import RunHandlers
from onetool.server.http.api.session import SessionHandlers
from onetool.server.http.api.sign_ins import SignInHandlers
from onetool.server.http.api.tool_calls import ToolCallHandlers
from onetool.server.http.auth import AuthMiddleware
from onetool.server.http.errors import ErrorBoundary
from onetool.server.http.issuers import IssuerDirectory
from onetool.server.http.jwt_verifier import JwtVerifier
from onetool.server.http.live_tokens import LiveTokens
from onetool.server.http.metrics import Metrics
from onetool.server.http.request_checks import Bind
from onetool.server.http.responses import json_response
from onetool.server.http.route_table import ACTION_ROUTES
from onetool.server.http.routing import TEXT, Operation, ResponseSpec, build_document
from onetool.server.http.sessions import BrowserSessions
from onetool.server.http.sign_in import BrowserSignIn
from onetool.server.http.throttle import AuthThrottle
from onetool.server.http.token_use import TokenUse
from onetool.sources.bundles.model import Id, Slug, Version
from onetool_child.json_types import JsonObject


class Neighbors(Protocol):
    """Other applications of this process.

    `on_open` calls the function for each one, open or opened later.
    """

    def list_apps(self) -> Sequence[OneTool]: ...
    def on_open(self, listener: Callable[[OneTool], object], /) -> None: ...


PARTS = ("admin UI at /", "MCP at /mcp", "bundle API at /tools", "REST API at /api")
SEGMENT: JsonObject = {**TEXT, "minLength": 1, "pattern": r"^[^\u0000-\u001f/]+$"}
PLAIN_TEXT = {"text/plain": TEXT}


def build(
    app: OneTool,
    bind: Bind | None,
    tokens: LiveTokens | None = None,
    neighbors: Neighbors | None = None,
) -> AuthMiddleware:
    """Return the ASGI application of the server; `bind` is None if another program listens.

    The owner also sees the runs of the `neighbors`, other applications of this process.
    """
    metrics = Metrics(app)
    sessions = BrowserSessions(
        lambda: app.directories.user, lambda: app.state, issuers=lambda: app.settings.auth.issuers
    )
    issuers = IssuerDirectory(app.log)
    jwts = JwtVerifier(lambda: app.settings.auth.issuers, issuers, app.log)
    browser_sign_in = BrowserSignIn(
        lambda: app.settings.auth, bind, issuers, jwts=jwts, sessions=sessions, log=app.log
    )
    api = Api(app)
    if neighbors is not None:
        app.list_neighbors = neighbors.list_apps
        neighbors.on_open(lambda other: app.live_runs.follow(other.bus.events))
    sign_ins = SignInHandlers(api)
    mcp = mcp_endpoint.McpEndpoint(app)
    app.http_clients = mcp
    operations = (*_operations(api, metrics, sessions), *sign_ins.operations())

    @cache
    def build_response() -> Response:
        return json_response(build_document(operations, _path_schemas()))

    async def get_document(_request: Request) -> Response:
        return await run_in_thread(build_response)

    all_routes = [
        *ui_files.routes(),
        mcp_endpoint.route(mcp),
        *(operation.route for operation in operations),
    ]
    all_routes += [
        *browser_sign_in.routes(),
        *resource_metadata.routes(lambda: app.settings.auth, bind),
    ]
    all_routes += [*sign_ins.routes(), Route("/openapi.json", get_document)]
    router = Router(all_routes, redirect_slashes=False)
    accepted_tokens = (tokens or create_live_tokens(app)).keys
    allowed_hosts, limits = (lambda: app.settings.auth.allowed_hosts), (lambda: app.settings.limits)
    inner = ErrorBoundary(router, app.log, metrics.count_response)
    return AuthMiddleware(
        inner,
        bind,
        accepted_tokens,
        log=app.log,
        allowed_hosts=allowed_hosts,
        throttle=AuthThrottle(lambda: app.state.counters),
        limits=limits,
        sessions=sessions,
        jwts=jwts,
        use=TokenUse(lambda: app.state.token_use),
        settings=lambda: app.settings.auth,
    )


def create_live_tokens(app: OneTool) -> LiveTokens:
    return LiveTokens(
        lambda: app.live_settings.loaded,
        app.environment,
        lambda: app.state.tokens,
        is_invalid=lambda: app.config_error is not None,
    )


def _path_schemas() -> Mapping[str, JsonObject]:
    """Return the schemas of path parameters by name."""
    return {
        "bundleID": TypeAdapter(Id).json_schema(),
        "toolSlug": TypeAdapter(Slug).json_schema(),
        "version": TypeAdapter(Version).json_schema(),
        "name": {**SEGMENT, "description": "Name, as registered or as written in code"},
        "handle": {**TEXT, "pattern": "^[0-9a-f]{32}$"},
        "runID": SEGMENT,
        "agent": SEGMENT,
        "changeID": SEGMENT,
        "clientID": {**TEXT, "pattern": "^[0-9a-f]{16}$"},
    }


def _operations(api: Api, metrics: Metrics, sessions: BrowserSessions) -> Iterator[Operation]:
    api.app.bundles.keeps_running = True
    yield from (route.make_operation(api) for route in ACTION_ROUTES)
    yield from ToolCallHandlers(api).operations()
    yield from RunHandlers(api).operations()
    yield readiness.make_operation(api.app)
    yield from ChangeHandlers(api).operations()
    yield from SessionHandlers(api, sessions).operations()
    summary, responses = (
        "Get metrics in the Prometheus format",
        {200: ResponseSpec("Metrics", media=PLAIN_TEXT)},
    )
    yield Operation("GET", "/metrics", metrics.respond, summary, responses)

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    summary, responses = (
        "Check that the server is running",
        {200: ResponseSpec("The server is running", media=PLAIN_TEXT)},
    )
    yield Operation("GET", "/healthz", healthz, summary, responses)
