"""Server-sent events, and cancellation when the client disconnects.

A task puts events into a `Feed`, and an `EventStream` sends them. When the client disconnects, the
task is cancelled; `while_connected` does the same for a plain response. `ChangeHandlers` sends the
changes of the application.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onetool.admin.action import check_settings
from onetool.admin.catalog import read_version
from onetool.errors import ToolError
from onetool.server.http.api.common import Api, build_context
from onetool.server.http.auth import STOPPING
from onetool.server.http.errors import ApiError
from onetool.server.http.routing import TEXT, Operation, ResponseSpec
from onetool_child.data import text
from onetool_child.json_types import JsonObject

T = TypeVar("T")
MEDIA_TYPE = "text/event-stream"
HEARTBEAT_SECONDS = 15.0
OUTPUT_SECONDS = 0.05  # between two output events
MAX_WAITING_CHARS = 1 << 20  # of output, for clients that read slowly
OMITTED = "\n[{} characters omitted; see the result]\n"
HEARTBEAT = b": still here\n\n"
HEADERS = [(b"content-type", MEDIA_TYPE.encode()), (b"x-accel-buffering", b"no")]
# Some clients split there.
ESCAPED_LINE_BREAKS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
Event = tuple[str, Any]
PATH = "/api/changes"
KIND = "tools"


def describe_stream(description: str) -> dict[str, JsonObject]:
    """Return the OpenAPI schema of an event stream."""
    return {MEDIA_TYPE: {"type": "string", "description": f"Events: {description}"}}


def wants_events(request: Request) -> bool:
    accepted = ",".join(request.headers.getlist("accept")).split(",")
    return MEDIA_TYPE in {item.partition(";")[0].strip().lower() for item in accepted}


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work. Cancel it if the client disconnects."""
    try:
        async with asyncio.timeout(None) as connection:
            watching = asyncio.ensure_future(_end_with_client(request.receive, connection))
            try:
                return await work
            finally:
                watching.cancel()
    except TimeoutError:
        if connection.expired():
            raise ClientDisconnect from None
        raise


async def _end_with_client(receive: Receive, connection: asyncio.Timeout) -> None:
    with suppress(Exception):  # a client that sends too much is not waited for
        await _wait_for_disconnect(receive)
    connection.reschedule(0)


class Feed:
    """Events to send.

    Output is joined, and omitted if too much of it waits; only the latest progress is kept.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._progress: Any = None
        self._printed = self._omitted = 0  # waiting and omitted characters
        self._changed = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._end = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._end.is_set()

    def put(self, event: str, data: Any) -> None:
        """Add an event. Thread-safe; never blocks."""
        if event == "progress":
            self._progress = data
        elif event != "output" or self._has_room(data):
            self._events.append((event, data))
        self._loop.call_soon_threadsafe(self._changed.set)

    def _has_room(self, printed: str) -> bool:
        if self._printed >= MAX_WAITING_CHARS:
            self._omitted += len(printed)
            return False
        self._printed += len(printed)
        return True

    async def pause(self, seconds: float) -> None:
        """Wait for more events, unless the work is done."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._end.wait()

    async def wait_until_sent(self) -> None:
        """Wait until all events are sent: an endless stream must not run ahead of its client."""
        self._is_empty.clear()
        await self._is_empty.wait()

    def end(self) -> None:
        self._end.set()
        self._changed.set()

    async def take(self) -> list[Event]:
        """Return the waiting events; an empty list after HEARTBEAT_SECONDS without events."""
        while not (self._events or self._progress or self.is_over):
            self._is_empty.set()
            try:
                async with asyncio.timeout(
                    HEARTBEAT_SECONDS
                ):  # wait_for may swallow a cancellation
                    await self._changed.wait()
            except TimeoutError:
                return []
            self._changed.clear()
        return list(self._drain())

    def _drain(self) -> Iterator[Event]:
        progress = self._progress
        self._progress = None
        if progress is not None:
            yield "progress", progress
        while self._events:
            event, data = self._events.popleft()
            yield (event, self._join_output(data)) if event == "output" else (event, data)
        if self._omitted:
            omitted = self._omitted
            self._omitted = 0
            yield "output", {"text": OMITTED.format(omitted)}

    def _join_output(self, printed: str) -> dict[str, str]:
        parts = [printed]
        while self._events and self._events[0][0] == "output":
            parts.append(self._events.popleft()[1])
        self._printed -= sum(map(len, parts))
        return {"text": "".join(parts)}


class EventStream(Response):
    """A response with the events of a feed.

    An error before the first event becomes an ordinary error response.
    """

    def __init__(
        self, work: Callable[[Feed], Awaitable[None]], *, ends_with_server: bool = False
    ) -> None:
        super().__init__()
        self._work = work
        self._ends_with_server = ends_with_server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await send({"type": "http.response.body", "body": b""})
            return
        stopping = scope.get("state", {}).get(STOPPING) if self._ends_with_server else None
        ending = [
            _wait_for_disconnect(receive),
            *([stopping.wait()] if stopping is not None else []),
        ]
        waiting = [
            asyncio.ensure_future(work) for work in (self._send_all(scope, receive, send), *ending)
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            is_gone = waiting[1].done()
            is_stopping = not any(task.done() for task in waiting[:2])
            if waiting[0].done() and not is_gone:
                waiting[0].result()
        finally:
            await _cancel_all(*waiting)
        if is_stopping:
            with suppress(RuntimeError):  # the response had not begun
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        feed = Feed()
        working = asyncio.ensure_future(self._run_work(feed))
        has_started = is_over = False
        try:
            while not is_over:
                is_over = feed.is_over
                events = await feed.take()
                if not has_started and len(events) == 1 and isinstance(events[0][1], ApiError):
                    await events[0][1].response(scope, receive, send)
                    return
                idle = b"" if feed.is_over else HEARTBEAT
                has_started = await _send(events, send, idle, has_started=has_started)
                if any(event == "output" for event, _ in events):
                    await feed.pause(OUTPUT_SECONDS)
            await working
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await _cancel_all(working)

    async def _run_work(self, feed: Feed) -> None:
        try:
            await self._work(feed)
        except ApiError as error:
            feed.put("refused", error)
        except ToolError as error:
            feed.put("refused", ApiError.from_error(error))
        finally:
            feed.end()


async def _send(events: list[Event], send: Send, idle: bytes, *, has_started: bool) -> bool:
    if not has_started:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    serialized = (
        (event, text(data.body if isinstance(data, ApiError) else data)) for event, data in events
    )
    sent = "".join(
        f"event: {event}\ndata: {json.translate(ESCAPED_LINE_BREAKS)}\n\n"
        for event, json in serialized
    )
    await send(
        {
            "type": "http.response.body",
            "body": sent.encode("utf-8", "replace") or idle,
            "more_body": True,
        }
    )
    return True


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait until they end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# --- changes --------------------------------------------------------------------------------------


class ChangeHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._read_version = partial(read_version, api.app)
        api.app.changes.poll(KIND, self._read_version)

    def operations(self) -> Iterator[Operation]:
        description = (
            "Events: start, then changed after each change, with the version of the tools; endless"
        )
        stream = {200: ResponseSpec(description, media={MEDIA_TYPE: TEXT})}
        yield Operation(
            "GET", PATH, self.stream, "Stream changes of tools, packs and bundles", stream
        )

    async def stream(self, request: Request) -> Response:
        build_context(request, self._api.app)  # raises if the agent is unknown
        check_settings(self._api.app)
        return EventStream(self._watch, ends_with_server=True)

    async def _watch(self, feed: Feed) -> None:
        """Send the version of the tools, at first and after each change."""
        sent = None
        async for _ in self._api.app.changes.watch(KIND):
            version = await self._read_version()
            if version != sent:
                feed.put("start" if sent is None else "changed", {"version": version})
                sent = version
                await feed.wait_until_sent()
