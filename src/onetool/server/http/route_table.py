"""The REST routes of all actions.

A route has no code of its own: `onetool.admin.action` describes it.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_args, get_origin
from urllib.parse import quote

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Router

from onetool.admin import (
    agents,
    approvals,
    audit,
    clients,
    health,
    imports,
    packs,
    request_preview,
    runs,
    secrets,
    servers,
    settings,
    sign_ins,
    statistics,
    stored_tools,
    tokens,
    tools,
)
from onetool.admin.action import WRITE, Action
from onetool.admin.imports import ExportedBundle
from onetool.admin.model import AdminError, ApiModel, Query, camel_case
from onetool.admin.precondition import Precondition, compute_etag
from onetool.admin.runs import StoredMedium
from onetool.admin.settings_edits import EditResult
from onetool.app import OneTool
from onetool.server.http.api import events
from onetool.server.http.api.common import Api, get_person
from onetool.server.http.api.events import EventStream, Feed
from onetool.server.http.errors import (
    ErrorBoundary,
    conditional_response,
    json_response,
    read_precondition,
)
from onetool.server.http.json_body import RequestBody
from onetool.server.http.routing import (
    BYTES,
    JSON_MEDIA_TYPE,
    TEXT,
    Operation,
    ResponseSpec,
    read_query,
)
from onetool_child.data import text
from onetool_child.json_types import JsonMapping, JsonObject

ZIP = "application/zip"
# Types that browsers display without running scripts; SVG can contain scripts.
IMAGES = ("png", "jpeg", "gif", "webp", "avif", "bmp")
AUDIO = ("mpeg", "wav", "x-wav", "ogg", "aac", "flac", "mp4", "webm")
INLINE_TYPES = frozenset(
    {*(f"image/{kind}" for kind in IMAGES), *(f"audio/{kind}" for kind in AUDIO)}
)
OTHER = "application/octet-stream"
REPLACED_HEADER = "onetool-replaced-credentials"  # header with the names of secrets
NO_CONTENT = 204
EDIT_ERRORS = ("not_found", "duplicate", "precondition_failed", "read_only")
JSON_LINES = "application/x-ndjson"
INPUTS = (str, bytes, Precondition, BaseModel)


@dataclass(frozen=True, slots=True)
class ActionRoute:
    """A route of an action. `media` are the media types of a body that is not JSON.

    `render` makes a response that is not JSON. An action that returns batches of models is an
    export as JSON Lines.
    """

    method: str
    path: str
    action: Action[..., Any]
    media: Mapping[str, JsonObject] | None = None
    render: Callable[[Any], Response] | None = None

    def make_operation(self, api: Api) -> Operation:
        signature = inspect.signature(self.action.function)
        annotations = {
            name: parameter.annotation for name, parameter in signature.parameters.items()
        }
        inputs = {name: kind for name, kind in annotations.items() if _is_input(kind)}
        models = [get_args(kind)[-1] if _is_late(kind) else kind for kind in inputs.values()]
        models = [kind for kind in models if issubclass(kind, BaseModel)]
        queries = [model for model in models if issubclass(model, Query)]
        bodies = [model for model in models if not issubclass(model, Query)]
        answer = signature.return_annotation
        if self.action.created:
            answer = get_args(answer)[0]
        return Operation(
            self.method,
            self.path,
            partial(self._handle, api, inputs),
            self.action.summary,
            self._describe_responses(answer),
            query=queries[0] if queries else None,
            body=bodies[0] if bodies else None if self.render else self.media,
            errors=[*self._list_errors(answer), *self.action.errors],
            has_etag=self._reads_with_etag,
            is_conditional=Precondition in inputs.values(),
        )

    def _list_errors(self, answer: Any) -> Iterator[str]:
        """Yield the error codes that follow from the path and from the action."""
        if "{" in self.path and not self.action.created:
            yield "not_found"
        if self.action.needs == WRITE:
            yield "permission_denied"
        if answer is EditResult:
            yield from EDIT_ERRORS

    @property
    def _is_stored(self) -> bool:
        """Whether this is a route of stored tools, which answers with stored JSON and an ETag."""
        return self.path.startswith("/tools")

    @property
    def _reads_with_etag(self) -> bool:
        return self.action.has_etag or (self._is_stored and self.method == "GET")

    def _describe_responses(self, answer: Any) -> dict[int, ResponseSpec]:
        if answer is None:
            return {NO_CONTENT: ResponseSpec(self.action.response)}
        if self.render is not None or get_origin(answer) is AsyncIterator:
            return {
                self.action.status: ResponseSpec(
                    self.action.response, media=self.media or {JSON_LINES: TEXT}
                )
            }
        described = f"{self._event}, at first and after each change; endless"
        media = events.describe_stream(described) if self.action.watches else {}
        responses = {self.action.status: ResponseSpec(self.action.response, answer, media)}
        if self.action.created:
            return {**responses, 201: ResponseSpec(self.action.created, answer)}
        return responses

    @property
    def _event(self) -> str:
        """The name of the events of a response that is watched."""
        return self.path.rpartition("/")[2]

    async def _handle(self, api: Api, inputs: Mapping[str, Any], request: Request) -> Response:
        person = get_person(request)
        self.action.authorize(api.app, person)  # before the input is read
        if self.action.command and person.transport == "cli":
            raise AdminError(
                "forbidden", "a person has to confirm this", hint=f"use `{self.action.command}`"
            )
        arguments = {
            name: await _read_input(api, request, name, kind) for name, kind in inputs.items()
        }
        execute = partial(self.action, api.app, person, **arguments)
        if self.action.watches and events.wants_events(request):
            return EventStream(partial(self._watch, api, execute), ends_with_server=True)
        answer = await execute()
        if isinstance(answer, AsyncIterator):
            return self._export(api, answer)
        status = self.action.status
        if self.action.created:
            answer, is_new = answer
            status = 201 if is_new else status
        return await api.run_in_thread(lambda: self._respond(api, answer, status, request))

    def _respond(self, api: Api, answer: Any, status: int, request: Request) -> Response:
        if self.render is not None:
            return self.render(answer)
        if answer is None:
            return Response(status_code=NO_CONTENT)
        is_redacted = self.action.is_redacted and not self._is_stored
        data = api.to_json(answer) if is_redacted else answer.as_json()
        if self._reads_with_etag:
            return conditional_response(data, request.headers)
        tag = getattr(answer, "etag", None)
        if tag is None and (self.action.sends_etag or self._is_stored):
            tag = compute_etag(data)
        return json_response(data, status, {"etag": tag} if tag else None)

    def _export(self, api: Api, batches: AsyncIterator[Iterable[ApiModel]]) -> Response:
        def render(batch: Iterable[ApiModel]) -> bytes:
            return "".join(f"{text(api.to_json(item))}\n" for item in batch).encode(
                "utf-8", "replace"
            )

        async def send() -> AsyncIterator[bytes]:
            async for batch in batches:
                yield await api.run_in_thread(partial(render, batch))

        name = self.path.split("/")[-2]
        headers = {"content-disposition": f'attachment; filename="{name}.jsonl"'}
        return StreamingResponse(send(), self.action.status, headers, JSON_LINES)

    async def _watch(
        self, api: Api, execute: Callable[[], Awaitable[ApiModel]], feed: Feed
    ) -> None:
        sent = None
        async for _ in api.app.changes.watch(self.action.watches):
            answer = await execute()
            if answer != sent:
                sent = answer
                feed.put(self._event, await api.run_in_thread(partial(api.to_json, answer)))
                await feed.wait_until_sent()


def _is_input(kind: Any) -> bool:
    return _is_late(kind) or (isinstance(kind, type) and issubclass(kind, INPUTS))


def _is_late(kind: Any) -> bool:
    """Return whether the action validates the body, because other errors take precedence."""
    return get_origin(kind) is Annotated


async def _read_input(api: Api, request: Request, name: str, kind: Any) -> Any:
    if kind is str:
        return request.path_params[camel_case(name)]
    if kind is bytes:
        return await request.body()
    if _is_late(kind):
        return await RequestBody.from_request(request)
    if kind is Precondition:
        return read_precondition(request.headers)
    if issubclass(kind, Query):
        return read_query(kind, request)
    return await api.parse(request, kind.parse)


def respond_archive(bundle: ExportedBundle) -> Response:
    name = (
        f"attachment; filename=\"bundle.zip\"; filename*=UTF-8''{quote(bundle.slug, safe='')}.zip"
    )
    replaced = {REPLACED_HEADER: ", ".join(bundle.secrets)} if bundle.secrets else {}
    return Response(
        bundle.content, media_type=ZIP, headers={"content-disposition": name, **replaced}
    )


def respond_medium(medium: StoredMedium) -> Response:
    if medium.mime_type in INLINE_TYPES:
        return Response(medium.content, media_type=medium.mime_type)
    return Response(medium.content, media_type=OTHER, headers={"content-disposition": "attachment"})


MODULES = (
    *(stored_tools, tools, packs, imports, request_preview, servers, agents, settings, secrets),
    *(sign_ins, statistics, health, clients, audit, approvals, runs, tokens),
)
# Other media types than JSON, and the functions that make such responses.
MEDIA: Mapping[object, JsonMapping] = {
    imports.import_bundle: {
        JSON_MEDIA_TYPE: {"type": "object"},
        "application/yaml": TEXT,
        ZIP: BYTES,
    },
    imports.export_bundle: {ZIP: BYTES},
    runs.read_medium: dict.fromkeys(("image/*", "audio/*", OTHER), BYTES),
}
RENDERERS: Mapping[object, Callable[..., Response]] = {
    imports.export_bundle: respond_archive,
    runs.read_medium: respond_medium,
}


def list_routes() -> list[ActionRoute]:
    """Return the routes of all actions, sorted: a fixed path precedes one with parameters."""
    routes = []
    for module in MODULES:
        for action in vars(module).values():
            is_own = isinstance(action, Action) and action.function.__module__ == module.__name__
            if is_own and action.route:
                method, *paths = action.route.split()
                media = MEDIA.get(action)
                render = RENDERERS.get(action)
                routes += [ActionRoute(method, path, action, media, render) for path in paths]
    return sorted(routes, key=lambda route: route.path)


ACTION_ROUTES = list_routes()


def build_actions(app: OneTool) -> ErrorBoundary:
    """Return an ASGI application with all actions and no authentication, for commands."""
    api = Api(app)
    routes = [route.make_operation(api).route for route in ACTION_ROUTES]
    return ErrorBoundary(
        Router(routes, redirect_slashes=False), app.log, lambda _scope, _status: None
    )
