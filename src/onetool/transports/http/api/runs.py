"""`/api/run`, `/api/activity` and `/api/runs`: run code, stream events, and list, show or export runs.

These are the runs of this application and, for callers who see everything, of the others of this process.
"""

import asyncio
import base64
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from onetool.config.model import Token
from onetool.errors import ToolError, ToolNotFound
from onetool.runner.run_output import ClientChannel, RunOutput
from onetool.runs import run_list
from onetool.runs.views import describe_line, describe_run, find_run
from onetool.state.storage import State
from onetool.stats import history
from onetool.stats.details import StoredValues
from onetool.stats.history import Position, RunFilter, RunWithValues
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
    RunFilterQuery,
    RunList,
    RunListQuery,
    RunRequest,
    Timeline,
)
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import TEXT, Operation, ResponseSpec, read_query
from onetool.transports.run_history import to_ms
from onetool.util.time_format import in_utc
from onetool_child.data import text as to_json_text
from onetool_child.json_types import JsonObject

T = TypeVar("T")
RUNS: Final = "/api/runs"
JSON_LINES: Final = "application/x-ndjson"
ERROR_LINE: Final = re.compile(r"^  line ([0-9]{1,6})\b", re.MULTILINE)
POSITION: Final = re.compile(r"([0-9.e+-]{1,40})_([!-~]{1,300})", re.ASCII)
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
        description = "Events: start with the recent runs, then called, completed, failed and changed; endless"
        activity = {200: ResponseSpec(description, media={events.MEDIA_TYPE: TEXT})}
        yield Operation("GET", f"{ROOT}/activity", self.activity, "Stream run and call events", activity)
        runs = {200: ResponseSpec("Runs", RunList)}
        yield Operation("GET", RUNS, self.list_runs, "List runs", runs, RunListQuery)
        lines = {200: ResponseSpec("Runs with their calls and values, one per line", media={JSON_LINES: TEXT})}
        yield Operation("GET", f"{RUNS}/export", self.export, "Export runs as JSON Lines", lines, RunFilterQuery)
        path = f"{RUNS}/{{runID}}"
        timeline = {200: ResponseSpec("The run with its calls and values", RunDetails)}
        yield Operation("GET", path, self.show, "Get a run with its calls", timeline, errors=("not_found",))

    async def run(self, request: Request) -> Response:
        body = await RequestBody.from_request(request)
        identity.build_context(request, self._api.app)  # raises if the agent is unknown
        run_request = await self._api.read(body, RunRequest.parse)
        listener = _RunListener(self._api)
        work = self._run(run_request, request, listener)
        if not events.wants_events(request):
            answer = await events.while_connected(request, work)
            return await self._api.run_in_thread(lambda: json_response(answer))

        async def send_result(feed: Feed) -> None:
            listener.feed = feed
            feed.put("result", await work)

        return EventStream(send_result)

    async def _run(self, run_request: RunRequest, request: Request, listener: "_RunListener") -> JsonObject:
        caller = identity.get_person(request).caller
        app = self._api.app
        channel = ClientChannel(request_id=request.scope["state"]["request_id"], listener=listener.on_event)
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
        visible = identity.get_person(request).visible_runs
        live_runs = self._api.live_runs

        self._api.app.audit.on_record = partial(live_runs.publish_change, "audit")

        async def work(feed: Feed) -> None:
            with live_runs.watch(**visible) as batches, _running(self._watch_tokens()):
                feed.put("start", self._api.to_json(RunList(runs=await list_recent(self._api, **visible))))
                async for batch in batches:
                    for event in batch:
                        feed.put(event["event"], event)
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
                self._api.live_runs.publish_change("tokens")

    def _list_tokens(self) -> list[Token]:
        app = self._api.app
        with suppress(ToolError):  # the database is away
            return app.state.tokens.apply(app.settings.auth.tokens)
        return []

    # --- lists ------------------------------------------------------------------------------------------------------

    async def list_runs(self, request: Request) -> Response:
        query = read_query(RunListQuery, request)
        visible = identity.get_person(request).visible_runs
        after = parse_position(query.page_token)
        criteria = build_filter(query, **visible)
        page = await read_page(self._api, criteria, after, query.page_size, **visible)
        shown = [build_run(run, shows_directory=visible["agent"] is None) for run in page.runs]
        token = None if page.next is None else f"{page.next.value!r}_{page.next.run_id}"
        is_plain = after is None and criteria == build_filter(RunListQuery(), **visible)

        def respond() -> Response:
            durable = self._list_durable(**visible) if is_plain else []
            return self._api.respond(RunList(runs=shown, next_page_token=token, durable=durable))

        return await self._api.run_in_thread(respond)

    def _list_durable(self, agent: str | None, token_id: str | None) -> list[DurableRunLine]:
        app = self._api.app
        journal = app.state.runs
        lines: list[DurableRunLine] = []
        for run in journal.list_runs(agent=agent):
            if token_id in {None, run.token_id}:
                calls = len(journal.list_calls(run.id))
                lines.append(DurableRunLine(**describe_line(run, app.redact), calls=calls))
        return lines

    async def export(self, request: Request) -> Response:
        visible = identity.get_person(request).visible_runs
        criteria = build_filter(read_query(RunFilterQuery, request), **visible)
        sees_all = visible["agent"] is None

        async def send() -> AsyncIterator[bytes]:
            for shared in list_states(self._api, sees_all=sees_all):
                await self._api.run_in_thread(partial(flush_all, shared))
                batches = history.iter_runs(shared[0].recorder.database, criteria)
                while (batch := await self._api.run_in_thread(partial(next, batches, None))) is not None:
                    yield await self._api.run_in_thread(partial(self._render_lines, batch, sees_all))

        headers = {"content-disposition": 'attachment; filename="runs.jsonl"'}
        return StreamingResponse(send(), media_type=JSON_LINES, headers=headers)

    def _render_lines(self, batch: Iterable[RunWithValues], sees_all: bool) -> bytes:
        timelines = (build_timeline(found, shows_directory=sees_all) for found in batch)
        return "".join(f"{to_json_text(self._api.to_json(each))}\n" for each in timelines).encode("utf-8", "replace")

    async def show(self, request: Request) -> Response:
        run_id, visible = str(request.path_params["runID"]), identity.get_person(request).visible_runs
        if run_id.startswith("r_"):
            return await self._api.run_in_thread(lambda: self._api.respond(self._describe_durable(run_id, **visible)))
        live = self._api.live_runs.find(run_id, **visible)
        sees_all = visible["agent"] is None
        found = None if live is None else RunWithValues(*live, {})
        for states in () if found else list_states(self._api, sees_all=sees_all):
            found = found or await read(self._api, states, history.find_run, run_id, *visible.values())

        def respond() -> Response:
            if found is None:
                with suppress(ToolNotFound):  # one that waits, and whose process has ended, has no statistics
                    return self._api.respond(self._describe_durable(f"r_{run_id}", **visible))
                hint = "list recent runs with GET /api/runs"
                raise ApiError("not_found", f"no run {run_id!r}, or it has expired", {"runID": run_id}, hint=hint)
            timeline = build_timeline(found, shows_directory=sees_all)
            with suppress(ToolError):  # most runs are not in the journal
                durable = self._describe_durable(f"r_{run_id}", **visible)
                timeline.approvals = [call for call in durable.calls if call.by or call.reason]
            return self._api.respond(timeline)

        return await self._api.run_in_thread(respond)

    def _describe_durable(self, run_id: str, agent: str | None, token_id: str | None) -> DurableRun:
        app = self._api.app
        run = find_run(app.state.runs, run_id)
        if agent not in {None, run.agent} or token_id not in {None, run.token_id}:
            raise ToolNotFound(f"no run {run_id!r}, or it has expired")
        return DurableRun(**describe_run(app.state.runs, run.id, app.redact))


@contextmanager
def _running(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """Run the work in a task while the block runs."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()


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


# --- sources -------------------------------------------------------------------------------------------------------


def list_states(api: Api, *, sees_all: bool) -> list[list[State]]:
    """Return the states with runs that may be shown: those of all applications for the owner.

    Applications that share a directory or a database are in one list.
    """
    found: dict[str, list[State]] = {}
    for app in (api.app, *(api.list_neighbors() if sees_all else ())):
        found.setdefault(app.state.recorder.database.place, []).append(app.state)
    return list(found.values())


async def read(api: Api, shared: list[State], function: Callable[..., T], *arguments: Any) -> T | None:
    """Read statistics after writing what is queued. Return None if that fails; the health check reports it."""

    def flush_and_read() -> T | None:
        flush_all(shared)  # include runs that just ended
        with suppress(ToolError, OSError):
            return function(shared[0].recorder.database, *arguments)
        return None

    return await api.run_in_thread(flush_and_read)


def flush_all(shared: list[State]) -> None:
    for state in shared:
        state.recorder.flush()


async def read_page(
    api: Api,
    criteria: RunFilter,
    after: Position | None = None,
    size: int = history.MAX_RUNS,
    *,
    agent: str | None,
    token_id: str | None,
) -> run_list.ListPage:
    """Return a page of the runs that this caller may see, after writing what is queued.

    Sources that cannot be read are left out: health reports them.
    """
    sources = list_states(api, sees_all=agent is None)
    databases = [shared[0].recorder.database for shared in sources]
    active = api.live_runs.runs(agent, token_id)  # before the statistics, so that none is missing in both
    app = api.app
    runs = run_list.AllRuns(databases, app.state.runs, app.redact, active, skips_unreadable=True)

    def flush_and_read() -> run_list.ListPage:
        for shared in sources:
            flush_all(shared)
        return runs.list_page(criteria, after, size)

    return await api.run_in_thread(flush_and_read)


async def list_recent(api: Api, agent: str | None, token_id: str | None) -> list[Run]:
    """Return the recent runs, without those that start meanwhile: the stream of events reports them."""
    criteria = RunFilter(agent=agent, token_id=token_id, until=time.time())
    page = await read_page(api, criteria, agent=agent, token_id=token_id)
    return [build_run(run, shows_directory=agent is None) for run in page.runs]


# --- filters -------------------------------------------------------------------------------------------------------


def build_filter(query: RunFilterQuery, agent: str | None = None, token_id: str | None = None) -> RunFilter:
    """Return the filter of a query. A caller who sees only its own runs cannot choose others."""
    return RunFilter(
        agent=agent if agent is not None else query.agent or None,
        actor=query.actor or None if token_id is None else None,
        token_id=token_id,
        tool=query.tool,
        text=query.text,
        state=query.state,
        error=query.error,
        min_seconds=None if query.min_ms is None else query.min_ms / 1000,
        max_seconds=None if query.max_ms is None else query.max_ms / 1000,
        since=query.since,
        until=query.until,
        order=query.order,
    )


def parse_position(token: str) -> Position | None:
    if not token:
        return None
    found = POSITION.fullmatch(token)
    try:
        if found is not None:
            return Position(float(found[1]), found[2])
    except ValueError:
        pass
    raise ApiError("invalid", "pageToken: expected the nextPageToken of the previous page", {"parameter": "pageToken"})


# --- responses -----------------------------------------------------------------------------------------------------


def build_run(listed: run_list.ListedRun, *, shows_directory: bool = False) -> Run:
    run = listed.record
    return Run(
        id=run.run_id,
        kind="run" if run.kind == "run" else "call",
        name=run.name,
        agent=run.agent,
        actor=run.actor,
        client=run.client,
        started_at=in_utc(run.at, "microseconds"),
        duration_ms=to_ms(run.seconds),
        state=listed.state,
        error=run.error_type,
        command=run.command,
        call_count=run.calls,
        failed_count=run.failed,
        directory=run.directory if shows_directory else "",
    )


def build_timeline(found: RunWithValues, *, shows_directory: bool = False) -> Timeline:
    """Return the run with its calls. Each call gets the first lane that is free when it starts."""
    run, lane_ends, calls = found.run, list[float](), list[RunCall]()
    for call in found.calls:
        lane = next((row for row, end in enumerate(lane_ends) if end <= call.at), len(lane_ends))
        lane_ends[lane : lane + 1] = [float("inf") if call.seconds is None else call.at + call.seconds]
        values = found.values.get(call.call_id, StoredValues()) if call.call_id else StoredValues()
        calls.append(
            RunCall(
                name=call.name,
                start_ms=max(0.0, round((call.at - run.at) * 1000, 1)),
                duration_ms=to_ms(call.seconds),
                error=call.error_type,
                lane=lane,
                arguments=values.arguments,
                result=values.result,
                message=values.error,
            )
        )
    own = found.values.get(0, StoredValues())
    line = ERROR_LINE.search(own.error or "")
    return Timeline(
        **build_run(run_list.ListedRun(run), shows_directory=shows_directory).model_dump(),
        calls=calls,
        calls_left_out=max(0, run.calls - len(calls)),
        most_at_once=len(lane_ends),
        cost=run.cost,
        printed=own.printed,
        result=own.result,
        message=own.error,
        error_line=int(line[1]) if line else None,
    )
