"""The ASGI application: all routes behind the authentication middleware."""

import gzip
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Protocol

from anyio.to_thread import run_sync as run_in_thread
from pydantic import TypeAdapter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router

from onetool.app import OneTool
from onetool.server.http import mcp_endpoint, resource_metadata
from onetool.server.http.api.common import Api
from onetool.server.http.api.events import ChangeHandlers
from onetool.server.http.api.runs import RunHandlers
from onetool.server.http.api.sign_ins import SessionHandlers, SignInHandlers
from onetool.server.http.api.tool_calls import ToolCallHandlers
from onetool.server.http.auth import AuthMiddleware
from onetool.server.http.errors import NO_CACHE, ApiError, ErrorBoundary, json_response
from onetool.server.http.issuers import IssuerDirectory
from onetool.server.http.jwt_verifier import JwtVerifier
from onetool.server.http.live_tokens import LiveTokens, TokenUse
from onetool.server.http.metrics import Metrics, make_readiness_operation
from onetool.server.http.request_checks import AuthThrottle, Bind
from onetool.server.http.route_table import ACTION_ROUTES
from onetool.server.http.routing import TEXT, Operation, ResponseSpec, build_document
from onetool.server.http.sessions import BrowserSessions
from onetool.server.http.sign_in import BrowserSignIn
from onetool.sources.bundles.model import Id, Slug, Version
from onetool_child.json_types import JsonObject

DIRECTORY = "ui"
URL_PREFIX = "page"
INDEX = "index.html"
TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
MIN_COMPRESSED_BYTES = 1000  # smaller files are not worth compressing


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
        *build_ui_routes(),
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
    yield make_readiness_operation(api.app)
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


# --- ui files -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    compressed: bytes | None
    tag: str
    media_type: str

    @classmethod
    def of(cls, name: str, content: bytes) -> "_File":
        compressed = (
            gzip.compress(content, mtime=0) if len(content) > MIN_COMPRESSED_BYTES else None
        )
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, compressed, tag, TYPES[name.rpartition(".")[2]])

    def respond(self, request_headers: Headers) -> Response:
        headers = {"etag": self.tag, "cache-control": NO_CACHE, "vary": "accept-encoding"}
        if self.tag in request_headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        if self.compressed is not None and "gzip" in request_headers.get("accept-encoding", ""):
            return Response(
                self.compressed, 200, {**headers, "content-encoding": "gzip"}, self.media_type
            )
        return Response(self.content, 200, headers, self.media_type)


def build_ui_routes() -> list[Route]:
    @cache
    def load_files() -> dict[str, _File]:
        return {
            name: _File.of(name, file.read_bytes())
            for name, file in _iter_files(files("onetool.server") / DIRECTORY)
        }

    async def serve_file(request: Request) -> Response:
        loaded = await run_in_thread(load_files)
        name = request.path_params.get("path", INDEX)
        if name not in loaded:
            raise ApiError("not_found", f"no such path: {request.url.path} (the admin UI is at /)")
        return loaded[name].respond(request.headers)

    return [Route(path, serve_file) for path in ("/", f"/{URL_PREFIX}/{{path:path}}")]


def _iter_files(directory: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in directory.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _iter_files(entry, f"{name}/")
        elif name.rpartition(".")[2] in TYPES:
            yield name, entry
