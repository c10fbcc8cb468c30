"""REST routes of actions: the models of the function are those of the request and the response."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from onetool.admin.action import Action
from onetool.admin.model import ApiModel, Query, camel_case
from onetool.admin.precondition import Precondition, compute_etag
from onetool.transports.http import identity
from onetool.transports.http.api import events
from onetool.transports.http.api.common import Api
from onetool.transports.http.api.events import EventStream, Feed
from onetool.transports.http.json_body import RequestBody
from onetool.transports.http.responses import conditional_response, json_response, read_precondition
from onetool.transports.http.routing import TEXT, Operation, ResponseSpec, read_query
from onetool_child.data import text
from onetool_child.json_types import JsonObject

JSON_LINES = "application/x-ndjson"
INPUTS = (str, bytes, Precondition, BaseModel)


@dataclass(frozen=True, slots=True)
class ActionRoute:
    """The route of an action, whose parameters are those of the path, a query, a body and a precondition.

    `description` is that of the response. `errors` are error codes beyond those that every operation has. With
    `has_etag`, the response has an ETag, and no body if the client has it already. With `sends_etag`, the response to a
    write has the ETag of what was changed. `created` describes the response with status 201 of an action that returns
    whether the thing is new. `media` are the media types of a body that is not JSON, and `render` makes the response
    if it is not JSON. `watches` is a kind of state: a client may ask for events, with the response at first and after
    each change of that state. An action that returns batches of models is an export as JSON Lines. Parameters of the
    action of other types are for commands.
    """

    method: str
    path: str
    action: Action[..., Any]
    description: str
    status: int = 200
    errors: Sequence[str] = ()
    has_etag: bool = False
    sends_etag: bool = False
    created: str = ""
    is_redacted: bool = True  # secrets are removed from the response
    media: Mapping[str, JsonObject] | None = None
    render: Callable[[Any], Response] | None = None
    watches: str = ""

    def make_operation(self, api: Api) -> Operation:
        signature = inspect.signature(self.action.function)
        annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        inputs = {name: kind for name, kind in annotations.items() if _is_input(kind)}
        models = [get_args(kind)[-1] if _is_late(kind) else kind for kind in inputs.values()]
        models = [kind for kind in models if issubclass(kind, BaseModel)]
        answer = get_args(signature.return_annotation)[0] if self.created else signature.return_annotation
        return Operation(
            self.method,
            self.path,
            partial(self._handle, api, inputs),
            self.action.summary,
            self._describe_responses(answer),
            query=next((model for model in models if issubclass(model, Query)), None),
            body=next(
                (model for model in models if not issubclass(model, Query)), self.media if not self.render else None
            ),
            errors=self.errors,
            has_etag=self.has_etag,
            is_conditional=Precondition in inputs.values(),
        )

    def _describe_responses(self, answer: Any) -> dict[int, ResponseSpec]:
        if self.render is not None or get_origin(answer) is AsyncIterator:
            return {self.status: ResponseSpec(self.description, media=self.media or {JSON_LINES: TEXT})}
        described = f"{self._event}, at first and after each change; endless"
        media = events.describe_stream(described) if self.watches else {}
        responses = {self.status: ResponseSpec(self.description, answer, media)}
        return {**responses, 201: ResponseSpec(self.created, answer)} if self.created else responses

    @property
    def _event(self) -> str:
        """The name of the events of a response that is watched."""
        return self.path.rpartition("/")[2]

    async def _handle(self, api: Api, inputs: Mapping[str, Any], request: Request) -> Response:
        person = identity.get_person(request)
        self.action.authorize(api.app, person)  # before the input is read
        arguments = {name: await _read_input(api, request, name, kind) for name, kind in inputs.items()}
        execute = partial(self.action, api.app, person, **arguments)
        if self.watches and events.wants_events(request):
            return EventStream(partial(self._watch, api, execute), ends_with_server=True)
        answer = await execute()
        if isinstance(answer, AsyncIterator):
            return self._export(api, answer)
        status = self.status
        if self.created:
            answer, is_new = answer
            status = 201 if is_new else status
        return await api.run_in_thread(lambda: self._respond(api, answer, status, request))

    def _respond(self, api: Api, answer: Any, status: int, request: Request) -> Response:
        if self.render is not None:
            return self.render(answer)
        if answer is None:
            return Response(status_code=status)
        data = api.to_json(answer) if self.is_redacted else answer.as_json()
        if self.has_etag:
            return conditional_response(data, request.headers)
        tag = getattr(answer, "etag", None)
        if tag is None and self.sends_etag:
            tag = compute_etag(data)
        return json_response(data, status, {"etag": tag} if tag else None)

    def _export(self, api: Api, batches: AsyncIterator[Iterable[ApiModel]]) -> Response:
        def render(batch: Iterable[ApiModel]) -> bytes:
            return "".join(f"{text(api.to_json(item))}\n" for item in batch).encode("utf-8", "replace")

        async def send() -> AsyncIterator[bytes]:
            async for batch in batches:
                yield await api.run_in_thread(partial(render, batch))

        name = self.path.split("/")[-2]
        headers = {"content-disposition": f'attachment; filename="{name}.jsonl"'}
        return StreamingResponse(send(), self.status, headers, JSON_LINES)

    async def _watch(self, api: Api, execute: Callable[[], Awaitable[ApiModel]], feed: Feed) -> None:
        sent = None
        async for _ in api.app.changes.watch(self.watches):
            answer = await execute()
            if answer != sent:
                sent = answer
                feed.put(self._event, await api.run_in_thread(partial(api.to_json, answer)))
                await feed.wait_until_sent()


def _is_input(kind: Any) -> bool:
    return _is_late(kind) or (isinstance(kind, type) and issubclass(kind, INPUTS))


def _is_late(kind: Any) -> bool:
    """Return whether a body is validated by the action, because other errors take precedence over those of the body."""
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
