"""`/api/run`, `/api/runs` and `/api/activity`: run code, list runs and stream events."""

import asyncio
import base64
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from onetool.app import OneTool
from onetool.errors import ToolError, ToolNotFound
from onetool.runner.answer import Journal
from onetool.runs.views import describe_run, describe_runs
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
from onetool.transports.http.models import (
    DurableRun,
    DurableRunLine,
    Medium,
    Run,
    RunAnswer,
    RunCall,
    RunDetails,
    RunList,
    RunRequest,
    Timeline,
)
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import TEXT, Operation, ResponseSpec
from onetool.transports.run_history import to_ms
from onetool.util.time_format import in_utc

T = TypeVar("T")
ROOT: Final = "/api"
GATHER_SECONDS: Final = 0.05  # collect events into one write, which is far cheaper


class RunHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        response = ResponseSpec(
            "The run completed", RunAnswer, events.describe_stream("start, output, call, progress, then result")
        )
        errors = ("permission_denied",)
        yield Operation(
            "POST", f"{ROOT}/run", self.run, "Run Python code", {200: response}, body=RunRequest, errors=errors
        )
        yield Operation(
            "GET", f"{ROOT}/runs", self.list_runs, "List recent runs", {200: ResponseSpec("Recent runs", RunList)}
        )
        path, timeline = f"{ROOT}/runs/{{runID}}", {200: ResponseSpec("The run with its calls", RunDetails)}
        yield Operation("GET", path, self.timeline, "Get a run with its calls", timeline, errors=("not_found",))
        description = "Events: start with the recent runs, then called, completed and failed; endless"
        activity = {200: ResponseSpec(description, media={events.MEDIA_TYPE: TEXT})}
        yield Operation("GET", f"{ROOT}/activity", self.activity, "Stream run and call events", activity)

    async def run(self, request: Request) -> Response:
        body = await RequestBody.from_request(request)
        identity.build_context(request, self._api.app)  # raises if the agent is unknown
        run_request, listener = await self._api.read(body, RunRequest.parse), _RunListener(self._api)
        work = self._run(run_request, request, listener)
        if not events.wants_events(request):
            answer = await events.while_connected(request, work)
            return await self._api.run_in_thread(lambda: json_response(answer))

        async def send_result(feed: Feed) -> None:
            listener.feed = feed
            feed.put("result", await work)

        return EventStream(send_result)

    async def _run(self, run_request: RunRequest, request: Request, listener: "_RunListener") -> JSON:
        facts, app = identity.caller_fields(request), self._api.app
        journal = Journal(listener=listener.on_event, request_id=request.scope["state"]["request_id"])
        async with turn(request.scope, facts["agent"], is_run=True):
            answer = await app.run(run_request.command, journal=journal, preset_format=run_request.format, **facts)

        def media() -> Iterator[Medium]:
            for handle in answer.media:
                with suppress(ToolError):  # the code may invent a handle
                    data, mime_type = app.media.get(handle, facts["agent"], facts["token_id"])
                    encoded = base64.b64encode(data).decode("ascii")
                    yield Medium(handle=handle, mime_type=mime_type, data=encoded)

        response = RunAnswer(
            run_id=listener.run_id,
            blocks=list(answer.blocks),
            is_error=answer.is_error,
            error=answer.error or "",
            media=await self._api.run_in_thread(lambda: list(media())) if answer.media else [],
        )
        return response.as_json()

    # --- recent runs -----------------------------------------------------------------------------------------------

    async def list_runs(self, request: Request) -> Response:
        agent, app = identity.visible_agent(request), self._api.app
        found = await self._list_recent(agent)

        def respond() -> Response:
            durable = describe_runs(app.stores.runs, app.redact, agent=agent)
            return self._api.respond(RunList(runs=found, durable=[DurableRunLine(**run) for run in durable]))

        return await self._api.run_in_thread(respond)

    async def timeline(self, request: Request) -> Response:
        run_id, agent = str(request.path_params["runID"]), identity.visible_agent(request)
        if run_id.startswith("r_"):
            return await self._api.run_in_thread(lambda: self._api.respond(self._describe_durable(run_id, agent)))
        found = self._api.live_runs.find(run_id, agent)
        for app in () if found else self._list_apps(agent):
            found = found or await self._read_history(app, history.find_run, run_id, agent)
        if found is None:
            hint = "list recent runs with GET /api/runs"
            raise ApiError("not_found", f"no run {run_id!r}, or it has expired", {"runID": run_id}, hint=hint)
        return await self._api.run_in_thread(lambda: self._api.respond(build_timeline(*found)))

    def _describe_durable(self, run_id: str, agent: str | None) -> DurableRun:
        app = self._api.app
        run = describe_run(app.stores.runs, run_id, app.redact)
        if agent not in {None, run["agent"]}:
            raise ToolNotFound(f"no run {run_id!a}, or it has expired")
        return DurableRun(**run)

    async def activity(self, request: Request) -> Response:
        """Stream the recent runs, then all events from now on."""
        agent, live_runs = identity.visible_agent(request), self._api.live_runs

        async def work(feed: Feed) -> None:
            with live_runs.watch(agent) as batches:
                feed.put("start", self._api.to_json(RunList(runs=await self._list_recent(agent))))
                async for batch in batches:
                    for event in batch:
                        feed.put(event["event"], event)
                    await feed.wait_until_sent()
                    await asyncio.sleep(GATHER_SECONDS)

        return EventStream(work, ends_with_server=True)

    async def _list_recent(self, agent: str | None) -> list[Run]:
        """Return the recent runs, without those that start meanwhile: the stream reports them."""
        now, live = time.time(), self._api.live_runs.runs(agent)
        found: dict[str, tuple[RunRecord, str]] = {}
        for app in self._list_apps(agent):
            directory = "" if app is self._api.app else str(app.directories.working_dir)
            completed = await self._read_history(app, history.recent_runs, agent) or ()
            found |= {run.run_id: (run, directory) for run in completed if run.at <= now and run.run_id not in found}
        found |= {run.run_id: (run, directory) for run, directory in live}
        newest = sorted(found.values(), key=lambda each: -each[0].at)[: history.MAX_RUNS]
        return [build_run(run, directory) for run, directory in newest]

    def _list_apps(self, agent: str | None) -> list[OneTool]:
        """Return the applications whose runs may be shown: all of this process for the owner, who is not an agent."""
        neighbors = self._api.list_neighbors() if agent is None else ()
        return [self._api.app, *neighbors]

    async def _read_history(self, app: OneTool, read: Callable[..., T | None], *arguments: Any) -> T | None:
        """Read the history, or return None if it cannot be read; the health check reports that."""
        stores = app.stores

        def flush_and_read() -> T | None:
            stores.recorder.flush()  # include runs that just ended
            with suppress(ToolError, OSError):
                return read(stores.statistics, *arguments)
            return None

        return await self._api.run_in_thread(flush_and_read)


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
                data = {**data, "name": self._api.app.redact(data["name"])}
            case "progress":
                data = {"message": self._api.app.redact(data)}
        self.feed.put(event, data)


def build_run(run: RunRecord, directory: str = "") -> Run:
    return Run(
        id=run.run_id,
        kind="run" if run.kind == "run" else "call",
        name=run.name,
        agent=run.agent,
        actor=run.actor,
        client=run.client,
        started_at=in_utc(run.at, "microseconds"),
        duration_ms=to_ms(run.seconds),
        state="running" if run.seconds is None else "failed" if run.error_type else "completed",
        error=run.error_type,
        command=run.command,
        call_count=run.calls,
        failed_count=run.failed,
        directory=directory,
    )


def build_timeline(run: RunRecord, calls: list[CallRecord]) -> Timeline:
    """Return the run with its calls. Each call gets the first lane that is free when it starts."""
    lane_ends: list[float] = []
    timeline_calls = []
    for call in calls:
        lane = next((row for row, end in enumerate(lane_ends) if end <= call.at), len(lane_ends))
        lane_ends[lane : lane + 1] = [float("inf") if call.seconds is None else call.at + call.seconds]
        start, duration = max(0.0, round((call.at - run.at) * 1000, 1)), to_ms(call.seconds)
        timeline_calls.append(
            RunCall(name=call.name, start_ms=start, duration_ms=duration, error=call.error_type, lane=lane)
        )
    omitted, run_fields = max(0, run.calls - len(calls)), build_run(run).model_dump()
    return Timeline(**run_fields, calls=timeline_calls, calls_left_out=omitted, most_at_once=len(lane_ends))
