"""`POST /api/run`: one run as an MCP client would have it, with its output as it comes for who wants that."""

import asyncio
import base64
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from onetool.errors import ToolError
from onetool.faces.activity import ms
from onetool.faces.http import callers
from onetool.faces.http.answers import answer
from onetool.faces.http.api import events
from onetool.faces.http.api.common import Api
from onetool.faces.http.api.events import EventStream, Feed
from onetool.faces.http.bodies import Sent
from onetool.faces.http.errors import ApiError
from onetool.faces.http.models import Medium, Run, RunAnswer, RunCall, RunRequest, Runs, Timeline
from onetool.faces.http.routing import TEXT, Answer, Operation
from onetool.faces.queue import turn
from onetool.runner.answer import Journal
from onetool.schema import JSON
from onetool.stats import history
from onetool.stats.record import CallRecord, RunRecord
from onetool.util.moments import in_utc

T = TypeVar("T")
ROOT: Final = "/api"
GATHER_SECONDS: Final = 0.05  # that what follows at once is sent together, which is far cheaper


class RunHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        ran = Answer("It ran", RunAnswer, events.described("start, output, call, progress, then result"))
        errors = ("permission_denied",)
        yield Operation("POST", f"{ROOT}/run", self.run, "Run code", {200: ran}, body=RunRequest, errors=errors)
        yield Operation("GET", f"{ROOT}/runs", self.listed, "List the last runs", {200: Answer("The last runs", Runs)})
        path, timeline = f"{ROOT}/runs/{{runID}}", {200: Answer("The run, call by call", Timeline)}
        yield Operation("GET", path, self.timeline, "Get a run", timeline, errors=("not_found",))
        words = "start with the last runs, then called, completed and failed of runs and calls; without an end"
        stream = {200: Answer(words, media={events.MEDIA_TYPE: TEXT})}
        yield Operation("GET", f"{ROOT}/activity", self.activity, "Watch what happens", stream)

    async def run(self, request: Request) -> Response:
        sent = await Sent.with_request(request)
        callers.context_of(request, self._api.app)  # an agent that is none is refused here
        asked, watch = await self._api.read(sent, RunRequest.parse), _Watch(self._api)
        work = self._run(asked, request, watch)
        if not events.are_wanted(request):
            body = await events.while_heard(request, work)
            return await self._api.in_thread(lambda: answer(body))

        async def told(feed: Feed) -> None:
            watch.feed = feed
            feed.put("result", await work)

        return EventStream(told)

    async def _run(self, asked: RunRequest, request: Request, watch: "_Watch") -> JSON:
        facts, app = callers.facts_of(request), self._api.app
        journal = Journal(listener=watch.hear, request_id=request.scope["state"]["request_id"])
        async with turn(request.scope, facts["agent"], is_run=True):
            found = await app.run(asked.command, journal=journal, preset_format=asked.format, **facts)

        def media() -> Iterator[Medium]:
            for handle in found.media:
                with suppress(ToolError):  # the code made the handle up
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

    # --- what has happened -----------------------------------------------------------------------------------------

    async def listed(self, request: Request) -> Response:
        found = await self._recent(callers.seen_agent(request))
        return await self._api.in_thread(lambda: self._api.answer(Runs(runs=found)))

    async def timeline(self, request: Request) -> Response:
        run_id, agent = str(request.path_params["runID"]), callers.seen_agent(request)
        found = self._api.activity.find(run_id, agent) or await self._ended(history.find_run, run_id, agent)
        if found is None:
            message = "there is no such run, or it was too long ago; GET /api/runs lists the last ones"
            raise ApiError("not_found", message, {"runID": run_id})
        return await self._api.in_thread(lambda: self._api.answer(timeline_of(*found)))

    async def activity(self, request: Request) -> Response:
        """Everything from now on, and first of all the last runs."""
        agent, activity = callers.seen_agent(request), self._api.activity

        async def work(feed: Feed) -> None:
            with activity.watched(agent) as happening:
                feed.put("start", self._api.show(Runs(runs=await self._recent(agent))))
                async for some in happening:
                    for event in some:
                        feed.put(event["event"], event)
                    await feed.is_sent()
                    await asyncio.sleep(GATHER_SECONDS)

        return EventStream(work, ends_with_server=True)

    async def _recent(self, agent: str | None) -> list[Run]:
        """The last runs. What begins while they are read is not among them, because a stream tells of it."""
        now, live = time.time(), {run.run_id: run for run in self._api.activity.runs(agent)}
        ended = (run for run in await self._ended(history.recent_runs, agent) or () if run.at <= now)
        runs = {**{run.run_id: run for run in ended}, **live}.values()
        return [line_of(run) for run in sorted(runs, key=lambda run: -run.at)[: history.MAX_RUNS]]

    async def _ended(self, read: Callable[..., T | None], *asked: Any) -> T | None:
        """What the history has. One that cannot be read is told by health, not here."""
        stores = self._api.app.stores

        def flushed() -> T | None:
            stores.recorder.flush()  # the runs of this very moment, too
            with suppress(ToolError, OSError):
                return read(stores.stats_file, *asked)
            return None

        return await self._api.in_thread(flushed)


class _Watch:
    """Listens to one run: remembers which it is, and tells the feed where there is one."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.run_id: str | None = None
        self.feed: Feed | None = None

    def hear(self, event: str, what: Any) -> None:
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


def line_of(run: RunRecord) -> Run:
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


def timeline_of(run: RunRecord, calls: list[CallRecord]) -> Timeline:
    """`lane` is a row in which no two calls overlap: each call gets the first one that is free when it begins."""
    free_from: list[float] = []
    shown = []
    for call in calls:
        lane = next((row for row, end in enumerate(free_from) if end <= call.at), len(free_from))
        free_from[lane : lane + 1] = [float("inf") if call.seconds is None else call.at + call.seconds]
        start, duration = max(0.0, round((call.at - run.at) * 1000, 1)), ms(call.seconds)
        shown.append(RunCall(name=call.name, start_ms=start, duration_ms=duration, error=call.error_type, lane=lane))
    left_out, line = max(0, run.calls - len(calls)), line_of(run).model_dump()
    return Timeline(**line, calls=shown, calls_left_out=left_out, most_at_once=len(free_from))
