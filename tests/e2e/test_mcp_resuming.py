"""Resuming MCP streams after a broken connection."""

import contextlib
import dataclasses
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp.server.streamable_http import EventMessage, EventStore
from mcp_types import JSONRPCNotification
from tests.conformance_support import Published, publish
from tests.e2e.test_mcp_http import SETTINGS, bearer, session
from tests.support import TIMEOUT_SECONDS, eventually

from onetool.transports.http.mcp_endpoint import ReplayBuffer


class Relay:
    """A proxy to the server whose connections can be closed."""

    def __init__(self, port: int) -> None:
        self._port, self._ends, self._threads = port, list[socket.socket](), list[threading.Thread]()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.cuts = 0
        self._begin(self._listen)

    def _begin(self, work: Callable[..., None], *given: socket.socket) -> None:
        self._threads.append(threading.Thread(target=work, args=given, daemon=True))
        self._threads[-1].start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._listening.accept()
                theirs = socket.create_connection(("127.0.0.1", self._port))
                self._ends += [ours, theirs]
                self._begin(self._pass_on, ours, theirs)
                self._begin(self._pass_on, theirs, ours)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with source:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    target.sendall(data)
            _hang_up(source, target)

    def cut(self) -> None:
        ends, self._ends = self._ends, []
        _hang_up(*ends)
        self.cuts += 1

    def close(self) -> None:
        _hang_up(self._listening)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Published]:
    with publish(tmp_path, SETTINGS) as published:
        yield published


@pytest.fixture
def relay(server: Published) -> Iterator[Relay]:
    with contextlib.closing(Relay(int(server.url.rpartition(":")[2]))) as found:
        yield found


def test_a_client_resumes_after_a_broken_connection(server: Published, relay: Relay) -> None:
    def cut_during_the_run() -> None:
        assert eventually(lambda: httpx2.get(f"{server.url}/api/runs", trust_env=False).json()["runs"])
        relay.cut()

    with dataclasses.replace(server, url=relay.url).client("legacy") as client:
        client.list_tools()
        cutting = threading.Thread(target=cut_during_the_run)
        cutting.start()
        assert client.said("run", command="import time\ntime.sleep(1.5)\n6 * 7") == "42"
        cutting.join()
        assert client.said("run", command="1 + 1") == "2"
    assert relay.cuts == 1


# --- on the wire ---------------------------------------------------------------------------------------------------


def events(text: str) -> list[tuple[str, str]]:
    """Return the id and data of each event."""
    return re.findall(r"^id: (\S+)\r?\n(?:event: \S+\r?\n)?data: ?(.*?)\r?$", text, re.MULTILINE)


def answered(server: Published, headers: dict[str, str], word: str = "secret") -> list[tuple[str, str]]:
    params = {"name": "run", "arguments": {"command": f"'{word}'.upper()"}}
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    return events(server.post(body, headers).text)


def came_back(server: Published, headers: dict[str, str], number: str) -> str:
    """Return the events that arrive immediately; a resumable stream stays open."""
    asked = {**headers, "accept": "text/event-stream", "last-event-id": number}
    seen = ""
    with (
        contextlib.suppress(httpx2.ReadTimeout),
        httpx2.stream("GET", f"{server.url}/mcp", headers=asked, timeout=1, trust_env=False) as stream,
    ):
        assert stream.status_code == 200, stream.read()
        for part in stream.iter_text():
            seen += part
    return seen


def in_session(server: Published, agent: str) -> dict[str, str]:
    number = session(server, **bearer(agent))
    return {**bearer(agent), "mcp-session-id": number, "mcp-protocol-version": "2025-11-25"}


def test_messages_are_replayed_to_their_session(server: Published) -> None:
    ada = in_session(server, "ada")
    (first, nothing), (_, answer) = answered(server, ada)
    assert nothing == ""
    assert "SECRET" in answer
    assert "SECRET" in came_back(server, ada, first)


@pytest.mark.parametrize("agent", ["ada", "bob"])
def test_messages_are_not_replayed_to_other_sessions(server: Published, agent: str) -> None:
    (first, _), (last, _) = answered(server, in_session(server, "ada"))
    other = in_session(server, agent)
    ((own, _), _) = answered(server, other, "own")
    for number in (first, last, "0", "99999", "9" * 5000, "-1", "x"):
        assert came_back(server, other, number) == ""
    found = came_back(server, other, own)
    assert "OWN" in found
    assert "SECRET" not in found


def test_sessions_of_other_agents_are_not_found(server: Published) -> None:
    ada = in_session(server, "ada")
    ((first, _), _) = answered(server, ada)
    asked = {**ada, **bearer("bob"), "accept": "text/event-stream", "last-event-id": first}
    assert httpx2.get(f"{server.url}/mcp", headers=asked, timeout=TIMEOUT_SECONDS, trust_env=False).status_code == 404


# --- how much of the past is kept ----------------------------------------------------------------------------------


def sent(word: str) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method=word)


def add(store: EventStore, stream: str, message: JSONRPCNotification | None) -> str:
    return anyio.run(store.store_event, stream, message)


def later(store: EventStore, event_id: str) -> tuple[str | None, list[str]]:
    """Return the stream of an event and its later events."""
    found: list[str] = []

    async def keep(event: EventMessage) -> None:
        found.append(getattr(event.message, "method", ""))

    return anyio.run(store.replay_events_after, event_id, keep), found


def test_the_oldest_messages_are_dropped_first() -> None:
    replays = ReplayBuffer(max_events=3)
    one, other = replays.open_session(), replays.open_session()
    first, second, foreign = add(one, "7", sent("a")), add(one, "7", sent("b")), add(other, "7", sent("c"))
    assert later(one, first) == ("7", ["b"])
    assert later(one, foreign) == later(one, "none") == (None, [])
    add(other, "7", sent("d"))
    assert later(one, first) == (None, [])
    assert later(one, second) == ("7", [])


def test_large_messages_displace_others() -> None:
    store = ReplayBuffer(max_bytes=1000).open_session()
    begun = add(store, "7", None)
    assert later(store, begun) == ("7", [])
    add(store, "7", sent("x" * 2000))
    assert later(store, begun) == (None, [])
    again = add(store, "7", None)
    add(store, "7", sent("small"))
    assert later(store, again) == ("7", ["small"])


def test_streams_of_a_session_are_separate() -> None:
    store = ReplayBuffer().open_session()
    first = add(store, "7", None)
    add(store, "8", sent("other"))
    add(store, "7", sent("own"))
    assert later(store, first) == ("7", ["own"])
