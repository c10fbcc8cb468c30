"""Server-sent events and plain responses at the ASGI level: messages, end of the stream and
cancellation.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from tests.support import TIMEOUT_SECONDS

from onetool.server.http.api import events
from onetool.server.http.api.events import MAX_WAITING_CHARS, EventStream, Feed
from onetool.server.http.auth import STOPPING
from onetool.server.http.errors import ApiError

Work = Callable[[Feed], Awaitable[None]]


class Client:
    """A client that records messages; `leave` disconnects it."""

    def __init__(self, stream: EventStream, **state: Any) -> None:
        self._stream, self._state = stream, state
        self.sent: list[dict[str, Any]] = []
        self.news, self._left = asyncio.Event(), asyncio.Event()

    async def listen(self) -> None:
        await self._stream(
            {"type": "http", "method": "GET", "state": self._state}, self._receive, self._send
        )

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        self.news.set()

    @property
    def body(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    @property
    def is_complete(self) -> bool:
        return (
            bool(self.sent)
            and not self.sent[-1].get("more_body", False)
            and "body" in self.sent[-1]
        )


def listen_to(work: Work) -> Client:
    async def listen() -> Client:
        client = Client(EventStream(work))
        await client.listen()
        return client

    return asyncio.run(listen())


def test_output_is_joined_and_the_latest_progress_is_sent() -> None:
    async def work(feed: Feed) -> None:
        for piece in ("a", "b", "\n"):
            feed.put("output", piece)
        feed.put("progress", {"message": "1"})
        feed.put("progress", {"message": "2"})
        feed.put("result", {"x": "\u2028\ud800"})

    client = listen_to(work)
    assert client.is_complete
    assert client.body.split("\n\n") == [
        'event: progress\ndata: {"message":"2"}',
        'event: output\ndata: {"text":"ab\\n"}',
        'event: result\ndata: {"x":"\\u2028?"}',
        "",
    ]


def test_output_is_batched_and_the_result_is_sent_at_once() -> None:
    async def work(feed: Feed) -> None:
        for _ in range(50):
            feed.put("output", "#")
            await asyncio.sleep(0.001)
        feed.put("result", {})

    client = listen_to(work)
    assert client.body.count("#") == 50
    assert client.body.count("event: output") < 25  # of 50; the machine may be busy


def test_output_is_omitted_for_slow_clients() -> None:
    async def work(feed: Feed) -> None:
        for _ in range(100):
            feed.put("output", "#" * (MAX_WAITING_CHARS // 10))
        feed.put("result", {"text": "whole"})

    body = listen_to(work).body
    assert body.count("#") <= 1.1 * MAX_WAITING_CHARS
    assert "characters omitted" in body
    assert 'event: result\ndata: {"text":"whole"}' in body


def test_events_from_other_threads_are_sent() -> None:
    async def work(feed: Feed) -> None:
        await asyncio.gather(*(asyncio.to_thread(feed.put, "call", {"n": n}) for n in range(100)))

    numbers = [
        json.loads(part.partition("data: ")[2])["n"]
        for part in listen_to(work).body.split("\n\n")
        if part
    ]
    assert sorted(numbers) == list(range(100))


def test_an_error_is_a_response_before_the_stream_and_an_event_in_it() -> None:
    async def at_once(_feed: Feed) -> None:
        raise ApiError("not_found", "there is nothing")

    async def later(feed: Feed) -> None:
        feed.put("call", {})
        await feed.wait_until_sent()
        raise ApiError("not_found", "there is nothing")

    client = listen_to(at_once)
    assert client.sent[0]["status"] == 404
    assert json.loads(client.body)["error"]["code"] == "not_found"
    client = listen_to(later)
    assert client.sent[0]["status"] == 200
    assert client.body.startswith("event: call\n")
    assert "event: refused\ndata: " in client.body


def test_an_unexpected_error_leaves_the_stream_unfinished() -> None:
    async def work(feed: Feed) -> None:
        feed.put("call", {})
        await feed.wait_until_sent()
        raise ZeroDivisionError

    async def listen() -> Client:
        client = Client(EventStream(work))
        with pytest.raises(ZeroDivisionError):
            await client.listen()
        return client

    assert not asyncio.run(listen()).is_complete


def test_idle_streams_send_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.001)

    async def listen() -> str:
        client = Client(EventStream(_run_forever))
        listening = asyncio.ensure_future(client.listen())
        while ":" not in client.body:
            client.news.clear()
            await client.news.wait()
        client.leave()
        await listening
        return client.body

    assert asyncio.run(listen()).startswith(": ")


async def _run_forever(_feed: Feed) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("way", ["leave", "stop", "cancel"])
def test_the_work_ends_with_the_client_the_server_or_the_task(way: str) -> None:
    async def listen() -> bool:
        stopping, began, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def work(feed: Feed) -> None:
            feed.put("start", {})
            await feed.wait_until_sent()
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)  # even if cleaning up takes time
                ended.set()

        client = Client(EventStream(work, ends_with_server=True), **{STOPPING: stopping})
        listening = asyncio.ensure_future(client.listen())
        await began.wait()
        ways: dict[str, Callable[[], object]] = {
            "leave": client.leave,
            "stop": stopping.set,
            "cancel": listening.cancel,
        }
        ways[way]()
        await asyncio.wait((listening,))
        assert client.is_complete is (way == "stop")
        return ended.is_set()

    assert asyncio.run(listen())


def test_the_stream_waits_for_slow_clients() -> None:
    async def listen() -> int:
        put = 0

        async def work(feed: Feed) -> None:
            nonlocal put
            while True:
                feed.put("call", {})
                put += 1
                await feed.wait_until_sent()

        client = SleepingClient(EventStream(work))
        listening = asyncio.ensure_future(client.listen())
        for _ in range(1000):
            await asyncio.sleep(0)
        client.leave()
        await listening
        return put

    assert asyncio.run(listen()) == 1


class SleepingClient(Client):
    async def _send(self, _message: Any) -> None:
        await asyncio.Event().wait()


def test_a_client_that_disconnects_during_an_event_is_gone() -> None:
    async def listen() -> None:
        for turns in range(20):
            begun: asyncio.Future[Feed] = asyncio.get_running_loop().create_future()

            async def work(feed: Feed, begun: asyncio.Future[Feed] = begun) -> None:
                begun.set_result(feed)
                await asyncio.Event().wait()

            client = Client(EventStream(work))
            listening = asyncio.ensure_future(client.listen())
            feed = await begun
            client.leave()
            for _ in range(turns):
                await asyncio.sleep(0)
            feed.put("call", {})
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await listening

    asyncio.run(listen())


# --- plain responses ------------------------------------------------------------------------------


class PlainClient:
    """A client that waits for a plain response; `leave` disconnects it."""

    def __init__(self) -> None:
        self._left = asyncio.Event()

    def leave(self) -> None:
        self._left.set()

    async def wait_for(self, work: Coroutine[Any, Any, str]) -> str:
        return await events.while_connected(Request({"type": "http"}, self._receive), work)

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}


@pytest.mark.anyio
async def test_work_is_cancelled_when_the_client_disconnects() -> None:
    client = PlainClient()
    ended = list[str]()

    async def work() -> str:
        client.leave()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # work may wait while it ends
            ended.append("cleanly")
        return ""

    with pytest.raises(ClientDisconnect):
        await client.wait_for(work())
    assert ended == ["cleanly"]
    await asyncio.sleep(0)  # nothing is left that cancels this task later


@pytest.mark.anyio
async def test_work_that_ends_in_spite_of_the_disconnect_has_its_result() -> None:
    client = PlainClient()

    async def work() -> str:
        client.leave()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done"

    assert await client.wait_for(work()) == "done"
    await asyncio.sleep(0)


@pytest.mark.anyio
async def test_another_cancellation_is_not_a_disconnect() -> None:
    started = asyncio.Event()

    async def work() -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    task = asyncio.ensure_future(PlainClient().wait_for(work()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.anyio
async def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    async def work() -> str:
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        await PlainClient().wait_for(work())


@pytest.mark.anyio
async def test_work_without_pauses_leaves_no_task() -> None:
    async def work() -> str:
        return "done"

    tasks = asyncio.all_tasks()
    assert await PlainClient().wait_for(work()) == "done"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
