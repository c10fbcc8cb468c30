"""`/api/run` and `/api/activity`: run code and stream events."""

import asyncio
import base64
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.model import camel_case
from onetool.admin.runs import RunListQuery, list_runs
from onetool.errors import ToolError
from onetool.runs.run_output import ClientChannel, RunOutput
from onetool.server.fair_queue import turn
from onetool.server.http.api import events
from onetool.server.http.api.common import (
    Api,
    Medium,
    RunAnswer,
    RunRequest,
    build_context,
    get_person,
)
from onetool.server.http.api.events import EventStream, Feed
from onetool.server.http.errors import json_response
from onetool.server.http.json_body import RequestBody
from onetool.server.http.routing import TEXT, Operation, ResponseSpec
from onetool.settings.access import Token
from onetool.util.large_data import is_large
from onetool_child.json_types import JsonMapping, JsonObject

ROOT: Final = "/api"
GATHER_SECONDS: Final = 0.05  # collect events into one write, which is far cheaper


class RunHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._live_runs = api.app.live_runs
        self._live_runs.start()

    def operations(self) -> Iterator[Operation]:
        response = ResponseSpec(
            "The run completed",
            RunAnswer,
            events.describe_stream("start, output, call, progress, then result"),
        )
        errors = ("permission_denied",)
        yield Operation(
            "POST",
            f"{ROOT}/run",
            self.run,
            "Run Python code",
            {200: response},
            body=RunRequest,
            errors=errors,
        )
        description = (
            "Events: start with the recent runs, then called, completed, failed and changed;"
            " endless"
        )
        activity = {200: ResponseSpec(description, media={events.MEDIA_TYPE: TEXT})}
        yield Operation(
            "GET", f"{ROOT}/activity", self.activity, "Stream run and call events", activity
        )

    async def run(self, request: Request) -> Response:
        body = await RequestBody.from_request(request)
        build_context(request, self._api.app)  # raises if the agent is unknown
        run_request = await self._api.read(body, RunRequest.parse)
        listener = _RunListener(self._api)
        work = self._run(run_request, request, listener)
        if not events.wants_events(request):
            answer = await events.while_connected(request, work)
            return await self._api.run_in_thread_if(is_large(answer), lambda: json_response(answer))

        async def send_result(feed: Feed) -> None:
            listener.feed = feed
            feed.put("result", await work)

        return EventStream(send_result)

    async def _run(
        self, run_request: RunRequest, request: Request, listener: "_RunListener"
    ) -> JsonObject:
        caller = get_person(request).caller
        app = self._api.app
        channel = ClientChannel(
            request_id=request.scope["state"]["request_id"], listener=listener.on_event
        )
        output = RunOutput(channel)
        async with turn(request.scope, caller.agent, is_run=True):
            answer = await app.runs.run(run_request.command, caller, output, run_request.format)

        def media() -> Iterator[Medium]:
            for handle in answer.media:
                with suppress(ToolError):  # the code may invent a handle
                    data, mime_type = app.media.get(handle, caller.agent, caller.token_id)
                    encoded = base64.b64encode(data).decode("ascii")
                    yield Medium(handle=handle, mime_type=mime_type, data=encoded)

        response = RunAnswer(
            run_id=listener.run_id,
            blocks=list(answer.blocks),
            is_error=answer.is_error,
            error=answer.error or "",
            line=answer.line,
            media=await self._api.run_in_thread(lambda: list(media())) if answer.media else [],
        )
        return response.as_json()

    async def activity(self, request: Request) -> Response:
        """Stream the recent runs, then all events from now on."""
        person = get_person(request)
        app = self._api.app
        # Those that start from now on are events.
        query = RunListQuery().model_copy(update={"until": time.time()})
        app.audit.on_record = partial(self._live_runs.publish_change, "audit")

        async def work(feed: Feed) -> None:
            with (
                self._live_runs.watch(*person.visible_runs) as batches,
                _running(self._watch_tokens()),
            ):
                feed.put("start", self._api.to_json(await list_runs(app, person, query)))
                async for batch in batches:
                    for event in batch:
                        feed.put(event["event"], _to_camel_case(event))
                    await feed.wait_until_sent()
                    await asyncio.sleep(GATHER_SECONDS)

        return EventStream(work, ends_with_server=True)

    async def _watch_tokens(self) -> None:
        """Report changes of tokens, also those that the command line or another replica makes."""
        tokens = self._list_tokens()
        async for _ in self._api.app.changes.watch("settings", "tokens"):
            before = tokens
            tokens = self._list_tokens()
            if tokens != before:
                self._live_runs.publish_change("tokens")

    def _list_tokens(self) -> list[Token]:
        app = self._api.app
        with suppress(ToolError):  # the database is away
            return app.state.tokens.apply(app.settings.auth.tokens)
        return []


@contextmanager
def _running(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """Run the work in a task while the block runs."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()


def _to_camel_case(event: JsonMapping) -> JsonObject:
    return {camel_case(name): value for name, value in event.items()}


class _RunListener:
    """A listener for one run: stores its id and forwards its events to the feed, if there is one."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.run_id: str | None = None
        self.feed: Feed | None = None

    def on_event(self, event: str, data: Any) -> None:
        if event == "start":
            self.run_id = data
        if self.feed is None:
            return
        match event:
            case "start":
                data = {"runID": data}
            case "call":
                data = _to_camel_case({**data, "name": self._api.app.redact(data["name"])})
            case "progress":
                data = {"message": self._api.app.redact(data)}
        self.feed.put(event, data)
