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
from tests.e2e.test_mcp_http import SETTINGS, build_auth_header, open_session
from tests.support import TIMEOUT_SECONDS, eventually

from onetool.server.http.mcp_endpoint import ReplayBuffer


class Relay:
    """A proxy to the server whose connections can be closed."""

    def __init__(self, port: int) -> None:
        self._port, self._ends, self._threads = (
            port,
            list[socket.socket](),
            list[threading.Thread](),
        )
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
        assert eventually(
            lambda: httpx2.get(f"{server.url}/api/runs", trust_env=False).json()["runs"]
        )
        relay.cut()

    with dataclasses.replace(server, url=relay.url).client("legacy") as client:
        client.list_tools()
        cutting = threading.Thread(target=cut_during_the_run)
        cutting.start()
        assert client.said("run", command="import time\ntime.sleep(1.5)\n6 * 7") == "42"
        cutting.join()
        assert client.said("run", command="1 + 1") == "2"
    assert relay.cuts == 1


# --- on the wire ----------------------------------------------------------------------------------


def parse_events(text: str) -> list[tuple[str, str]]:
    """Return the id and data of each event."""
    return re.findall(r"^id: (\S+)\r?\n(?:event: \S+\r?\n)?data: ?(.*?)\r?$", text, re.MULTILINE)


def call_run(
    server: Published, headers: dict[str, str], word: str = "secret"
) -> list[tuple[str, str]]:
    params = {"name": "run", "arguments": {"command": f"'{word}'.upper()"}}
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    return parse_events(server.post(body, headers).text)


def resume(server: Published, headers: dict[str, str], number: str) -> str:
    """Return the events that arrive immediately; a resumable stream stays open."""
    resume_headers = {**headers, "accept": "text/event-stream", "last-event-id": number}
    seen = ""
    with (
        contextlib.suppress(httpx2.ReadTimeout),
        httpx2.stream(
            "GET", f"{server.url}/mcp", headers=resume_headers, timeout=1, trust_env=False
        ) as stream,
    ):
        assert stream.status_code == 200, stream.read()
        for part in stream.iter_text():
            seen += part
    return seen


def open_session_headers(server: Published, agent: str) -> dict[str, str]:
    number = open_session(server, **build_auth_header(agent))
    return {
        **build_auth_header(agent),
        "mcp-session-id": number,
        "mcp-protocol-version": "2025-11-25",
    }


def test_messages_are_replayed_to_their_session(server: Published) -> None:
    ada = open_session_headers(server, "ada")
    (first, nothing), (_, answer) = call_run(server, ada)
    assert nothing == ""
    assert "SECRET" in answer
    assert "SECRET" in resume(server, ada, first)


@pytest.mark.parametrize("agent", ["ada", "bob"])
def test_messages_are_not_replayed_to_other_sessions(server: Published, agent: str) -> None:
    (first, _), (last, _) = call_run(server, open_session_headers(server, "ada"))
    other = open_session_headers(server, agent)
    (own, _), _ = call_run(server, other, "own")
    for number in (first, last, "0", "99999", "9" * 5000, "-1", "x"):
        assert resume(server, other, number) == ""
    found = resume(server, other, own)
    assert "OWN" in found
    assert "SECRET" not in found


def test_sessions_of_other_agents_are_not_found(server: Published) -> None:
    ada = open_session_headers(server, "ada")
    (first, _), _ = call_run(server, ada)
    resume_headers = {
        **ada,
        **build_auth_header("bob"),
        "accept": "text/event-stream",
        "last-event-id": first,
    }
    assert (
        httpx2.get(
            f"{server.url}/mcp", headers=resume_headers, timeout=TIMEOUT_SECONDS, trust_env=False
        ).status_code
        == 404
    )


# --- limits of the replay buffer ------------------------------------------------------------------


def make_notification(word: str) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method=word)


def add(store: EventStore, stream: str, message: JSONRPCNotification | None) -> str:
    return anyio.run(store.store_event, stream, message)


def replay_after(store: EventStore, event_id: str) -> tuple[str | None, list[str]]:
    """Return the stream of an event and its later events."""
    found: list[str] = []

    async def keep(event: EventMessage) -> None:
        found.append(getattr(event.message, "method", ""))

    return anyio.run(store.replay_events_after, event_id, keep), found


def test_the_oldest_messages_are_dropped_first() -> None:
    replays = ReplayBuffer(max_events=3)
    one, other = replays.open_session(), replays.open_session()
    first, second, foreign = (
        add(one, "7", make_notification("a")),
        add(one, "7", make_notification("b")),
        add(other, "7", make_notification("c")),
    )
    assert replay_after(one, first) == ("7", ["b"])
    assert replay_after(one, foreign) == replay_after(one, "none") == (None, [])
    add(other, "7", make_notification("d"))
    assert replay_after(one, first) == (None, [])
    assert replay_after(one, second) == ("7", [])


def test_large_messages_displace_others() -> None:
    store = ReplayBuffer(max_bytes=1000).open_session()
    begun = add(store, "7", None)
    assert replay_after(store, begun) == ("7", [])
    add(store, "7", make_notification("x" * 2000))
    assert replay_after(store, begun) == (None, [])
    again = add(store, "7", None)
    add(store, "7", make_notification("small"))
    assert replay_after(store, again) == ("7", ["small"])


def test_streams_of_a_session_are_separate() -> None:
    store = ReplayBuffer().open_session()
    first = add(store, "7", None)
    add(store, "8", make_notification("other"))
    add(store, "7", make_notification("own"))
    assert replay_after(store, first) == ("7", ["own"])
