"""`/api/run`, `/api/runs` and `/api/activity`: run code, list runs and stream events."""

import asyncio
import base64
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from onetool.errors import ToolError
from onetool.runner.answer import Journal
from onetool.schema import JSON
from onetool.stats import history
from onetool.stats.record import CallRecord, RunRecord
from onetool.transports.fair_queue import turn
from onetool.transports.http import identity
from onetool.transports.http.api import events
from onetool.transports.http.api.common import Api
from onetool.transports.http.api.events import EventStream, Feed
from onetool.transports.http.errors import ApiError
from onetool.transports.http.json_body import RequestBody
from onetool.transports.http.models import Medium, Run, RunAnswer, RunCall, RunList, RunRequest, Timeline
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import TEXT, Operation, ResponseSpec
from onetool.transports.run_history import ms
from onetool.util.time_format import in_utc

T = TypeVar("T")
ROOT: Final = "/api"
GATHER_SECONDS: Final = 0.05  # collect events into one write, which is far cheaper


class RunHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        ran = ResponseSpec(
            "The run completed", RunAnswer, events.describe_stream("start, output, call, progress, then result")
        )
        errors = ("permission_denied",)
        yield Operation("POST", f"{ROOT}/run", self.run, "Run code", {200: ran}, body=RunRequest, errors=errors)
        yield Operation(
            "GET", f"{ROOT}/runs", self.list_runs, "List recent runs", {200: ResponseSpec("Recent runs", RunList)}
        )
        path, timeline = f"{ROOT}/runs/{{runID}}", {200: ResponseSpec("The run with its calls", Timeline)}
        yield Operation("GET", path, self.timeline, "Get a run", timeline, errors=("not_found",))
        words = "start with the recent runs, then called, completed and failed events of runs and calls; endless"
        activity = {200: ResponseSpec(words, media={events.MEDIA_TYPE: TEXT})}
        yield Operation("GET", f"{ROOT}/activity", self.activity, "Stream run and call events", activity)

    async def run(self, request: Request) -> Response:
        sent = await RequestBody.from_request(request)
        identity.build_context(request, self._api.app)  # raises if the agent is unknown
        asked, watch = await self._api.read(sent, RunRequest.parse), _Watch(self._api)
        work = self._run(asked, request, watch)
        if not events.wants_events(request):
            body = await events.while_connected(request, work)
            return await self._api.in_thread(lambda: json_response(body))

        async def send_result(feed: Feed) -> None:
            watch.feed = feed
            feed.put("result", await work)

        return EventStream(send_result)

    async def _run(self, asked: RunRequest, request: Request, watch: "_Watch") -> JSON:
        facts, app = identity.caller_fields(request), self._api.app
        journal = Journal(listener=watch.on_event, request_id=request.scope["state"]["request_id"])
        async with turn(request.scope, facts["agent"], is_run=True):
            found = await app.run(asked.command, journal=journal, preset_format=asked.format, **facts)

        def media() -> Iterator[Medium]:
            for handle in found.media:
                with suppress(ToolError):  # the code may invent a handle
                    data, mime_type = app.media.get(handle, facts["agent"], facts["token_id"])
                    encoded = base64.b64encode(data).decode("ascii")
                    yield Medium(handle=handle, mime_type=mime_type, data=encoded)

        shown = RunAnswer(
            run_id=watch.run_id,
            blocks=list(found.blocks),
            is_error=found.is_error,
            error=found.error or "",
            media=await self._api.in_thread(lambda: list(media())) if found.media else [],
        )
        return shown.as_json()

    # --- recent runs -----------------------------------------------------------------------------------------------

    async def list_runs(self, request: Request) -> Response:
        found = await self._recent(identity.visible_agent(request))
        return await self._api.in_thread(lambda: self._api.answer(RunList(runs=found)))

    async def timeline(self, request: Request) -> Response:
        run_id, agent = str(request.path_params["runID"]), identity.visible_agent(request)
        found = self._api.activity.find(run_id, agent) or await self._ended(history.find_run, run_id, agent)
        if found is None:
            hint = "list recent runs with GET /api/runs"
            raise ApiError("not_found", f"no run {run_id!r}, or it has expired", {"runID": run_id}, hint=hint)
        return await self._api.in_thread(lambda: self._api.answer(build_timeline(*found)))

    async def activity(self, request: Request) -> Response:
        """Stream the recent runs, then all events from now on."""
        agent, activity = identity.visible_agent(request), self._api.activity

        async def work(feed: Feed) -> None:
            with activity.watch(agent) as happening:
                feed.put("start", self._api.show(RunList(runs=await self._recent(agent))))
                async for some in happening:
                    for event in some:
                        feed.put(event["event"], event)
                    await feed.wait_until_sent()
                    await asyncio.sleep(GATHER_SECONDS)

        return EventStream(work, ends_with_server=True)

    async def _recent(self, agent: str | None) -> list[Run]:
        """Return the recent runs, without those that start meanwhile: the stream reports them."""
        now, live = time.time(), {run.run_id: run for run in self._api.activity.runs(agent)}
        ended = (run for run in await self._ended(history.recent_runs, agent) or () if run.at <= now)
        runs = {**{run.run_id: run for run in ended}, **live}.values()
        return [build_run(run) for run in sorted(runs, key=lambda run: -run.at)[: history.MAX_RUNS]]

    async def _ended(self, read: Callable[..., T | None], *asked: Any) -> T | None:
        """Read the history, or return None if it cannot be read; the health check reports that."""
        stores = self._api.app.stores

        def flushed() -> T | None:
            stores.recorder.flush()  # include runs that just ended
            with suppress(ToolError, OSError):
                return read(stores.stats_file, *asked)
            return None

        return await self._api.in_thread(flushed)


class _Watch:
    """A listener for one run: stores its id and forwards its events to the feed, if there is one."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.run_id: str | None = None
        self.feed: Feed | None = None

    def on_event(self, event: str, what: Any) -> None:
        if event == "start":
            self.run_id = what
        if self.feed is None:
            return
        match event:
            case "start":
                what = {"runID": what}
            case "call":
                what = {**what, "name": self._api.app.redact(what["name"])}
            case "progress":
                what = {"message": self._api.app.redact(what)}
        self.feed.put(event, what)


def build_run(run: RunRecord) -> Run:
    return Run(
        id=run.run_id,
        kind="run" if run.kind == "run" else "call",
        name=run.name,
        agent=run.agent,
        client=run.client,
        started_at=in_utc(run.at, "microseconds"),
        duration_ms=ms(run.seconds),
        state="running" if run.seconds is None else "failed" if run.error_type else "completed",
        error=run.error_type,
        command=run.command,
        call_count=run.calls,
        failed_count=run.failed,
    )


def build_timeline(run: RunRecord, calls: list[CallRecord]) -> Timeline:
    """Return the run with its calls. Each call gets the first lane that is free when it starts."""
    free_from: list[float] = []
    shown = []
    for call in calls:
        lane = next((row for row, end in enumerate(free_from) if end <= call.at), len(free_from))
        free_from[lane : lane + 1] = [float("inf") if call.seconds is None else call.at + call.seconds]
        start, duration = max(0.0, round((call.at - run.at) * 1000, 1)), ms(call.seconds)
        shown.append(RunCall(name=call.name, start_ms=start, duration_ms=duration, error=call.error_type, lane=lane))
    left_out, line = max(0, run.calls - len(calls)), build_run(run).model_dump()
    return Timeline(**line, calls=shown, calls_left_out=left_out, most_at_once=len(free_from))
