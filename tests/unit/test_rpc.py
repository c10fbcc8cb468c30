"""The child's end of the line protocol: many threads share one connection, and each gets its own
response.
"""

import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support import TIMEOUT_SECONDS, without_collections

from onetool_child.errors import ArgumentError, ToolError, ToolNotFound
from onetool_child.rpc import ConnectionLost, Peer

Answer = Callable[[dict[str, Any]], dict[str, Any] | None]


class FakeServer:
    """The server's end: responds in the order that the test wants."""

    def __init__(self) -> None:
        ours, self._socket = socket.socketpair()
        self._descriptor = ours.detach()
        self.peer = Peer(self._descriptor, self._descriptor)
        self._lines = self._socket.makefile("rb")

    def read(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._lines.readline())
        return message

    def write(self, *messages: dict[str, Any] | bytes) -> None:
        lines = (
            each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n"
            for each in messages
        )
        self._socket.sendall(b"".join(lines))

    def write_slowly(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def serve(self, count: int, shuffle: int = 1) -> None:
        """Respond to this many requests with their own params, several at a time in random order."""
        dice = random.Random(5)
        for _ in range(count // shuffle):
            requests = [self.read() for _ in range(shuffle)]
            dice.shuffle(requests)
            self.write(*({"id": each["id"], "result": each["params"]} for each in requests))

    def hang_up(self) -> None:
        self._lines.close()
        self._socket.close()

    def close(self) -> None:
        self.hang_up()
        os.close(self._descriptor)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


def _serve_in_thread(server: FakeServer, count: int, shuffle: int = 1) -> threading.Thread:
    thread = threading.Thread(target=server.serve, args=[count, shuffle])
    thread.start()
    return thread


def test_a_request_is_a_line_and_its_result_is_returned(server: FakeServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.peer.request, "call", {"name": "x"})
        assert server.read() == {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "call",
            "params": {"name": "x"},
        }
        server.write({"jsonrpc": "2.0", "id": 1, "result": [1, "ü"]})
        assert answer.result(TIMEOUT_SECONDS) == [1, "ü"]


def test_a_notification_is_a_line_without_an_id(server: FakeServer) -> None:
    server.peer.notify("output", {"text": "x\ny"})
    assert server.read() == {"jsonrpc": "2.0", "method": "output", "params": {"text": "x\ny"}}


def test_one_message_is_one_line_of_ascii(server: FakeServer) -> None:
    server.peer.notify("output", {"text": "ü\n\u2028\ud800"})
    line = server._lines.readline()
    assert line.isascii()
    assert json.loads(line)["params"] == {"text": "ü\n\u2028\ud800"}


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        ({"class": "ToolNotFound", "message": "gone", "nearest": ["x"]}, ToolNotFound, "gone"),
        ({"class": "ArgumentError", "message": "wrong"}, TypeError, "wrong"),
        ({"class": "KeyError", "message": "'k'"}, KeyError, "'k'"),
        ({"class": "KeyError", "message": "('a', 1)"}, KeyError, "('a', 1)"),
        ({"class": "KeyError", "message": "<object at 1>"}, KeyError, "<object at 1>"),
        ({"class": "Unheard", "message": "of"}, ToolError, "Unheard: of"),
        ({"class": "UnicodeDecodeError", "message": "m"}, ToolError, "UnicodeDecodeError: m"),
        ({"class": "SystemExit", "message": "m"}, ToolError, "SystemExit: m"),
        ({"class": "object", "message": "m"}, ToolError, "object: m"),
        ({}, ToolError, ""),
    ],
)
def test_an_error_is_raised_with_its_original_class(
    server: FakeServer, data: dict[str, Any], kind: type[Exception], text: str
) -> None:
    server.write({"id": 1, "error": {"code": -32000, "message": text, "data": data}})
    with pytest.raises(kind) as caught:
        server.peer.request("call", {})
    assert str(caught.value) == text


def test_the_fields_of_an_error_are_restored(server: FakeServer) -> None:
    server.write(
        {
            "id": 1,
            "error": {"data": {"class": "ArgumentError", "message": "m", "signature": "f(x)"}},
        }
    )
    with pytest.raises(ArgumentError) as caught:
        server.peer.request("call", {})
    assert caught.value.signature == "f(x)"


def test_an_error_without_data_is_raised(server: FakeServer) -> None:
    server.write({"id": 1, "error": {"code": -1, "message": "plain"}})
    with pytest.raises(ToolError, match="plain"):
        server.peer.request("call", {})


def test_a_response_in_chunks_is_reassembled(server: FakeServer) -> None:
    line = json.dumps({"id": 1, "result": "x" * 200_000}).encode() + b"\n"
    pieces = [line[start : start + 7919] for start in range(0, len(line), 7919)]
    sender = threading.Thread(target=server.write_slowly, args=[pieces])
    sender.start()
    assert server.peer.request("call", {}) == "x" * 200_000
    sender.join()


def test_responses_in_one_chunk_are_separated(server: FakeServer) -> None:
    server.write(*({"id": number, "result": number} for number in (3, 1, 2)))
    assert [server.peer.request("call", {}) for _ in range(3)] == [1, 2, 3]


def test_unknown_messages_are_ignored(server: FakeServer) -> None:
    server.write(
        {"method": "cancel", "params": {}},
        {"id": 99, "result": "stray"},
        {"id": 1, "result": "mine"},
    )
    assert server.peer.request("call", {}) == "mine"


@pytest.mark.parametrize("shuffle", [1, 8])
def test_responses_to_eight_threads_are_never_mixed_up(server: FakeServer, shuffle: int) -> None:
    served = _serve_in_thread(server, 1000, shuffle)

    def ask(thread: int) -> bool:
        asked = [{"thread": thread, "number": number} for number in range(125)]
        return [server.peer.request("call", params) for params in asked] == asked

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [True] * 8
    served.join()


def test_a_slow_response_does_not_delay_other_threads(server: FakeServer) -> None:
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(server.peer.request, "call", {"is": "slow"})
        assert server.read()["params"] == {"is": "slow"}
        quick = pool.submit(server.peer.request, "call", {"is": "quick"})
        assert server.read()["params"] == {"is": "quick"}
        server.write({"id": 2, "result": "second"})
        assert quick.result(TIMEOUT_SECONDS) == "second"
        assert not slow.done()
        server.write({"id": 1, "result": "first"})
        assert slow.result(TIMEOUT_SECONDS) == "first"


def test_a_reading_thread_hands_over_after_its_own_response(server: FakeServer) -> None:
    """Eight threads wait; each response is sent only after the previous one was received."""
    with ThreadPoolExecutor(8) as pool:
        waiting = {
            number: pool.submit(server.peer.request, "call", {"n": number}) for number in range(8)
        }
        asked = [server.read() for _ in range(8)]
        for message in reversed(asked):
            server.write({"id": message["id"], "result": message["params"]})
            assert waiting[message["params"]["n"]].result(TIMEOUT_SECONDS) == message["params"]


def test_all_waiting_threads_learn_that_the_connection_is_lost(server: FakeServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(server.peer.request, "call", {}) for _ in range(8)]
        for _ in range(8):
            server.read()
        server.hang_up()
        errors = [future.exception(5) for future in waiting]
    assert all(isinstance(error, ConnectionLost | OSError) for error in errors), errors


def test_a_connection_lost_in_the_middle_of_a_line_is_an_error(server: FakeServer) -> None:
    server.write(b'{"id": 1, "resu')
    server.hang_up()
    with pytest.raises((ConnectionLost, OSError)):
        server.peer.request("call", {})


def test_a_response_received_before_the_connection_is_lost_is_returned(server: FakeServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.peer.request, "call", {})
        server.read()
        server.write({"id": 1, "result": "just in time"})
        server.hang_up()
        assert answer.result(TIMEOUT_SECONDS) == "just in time"


def test_lines_of_concurrent_threads_are_not_mixed(server: FakeServer) -> None:
    def talk(thread: int) -> None:
        for number in range(50):
            server.peer.notify("output", {"text": f"{thread}-{number}" * 2000})

    with ThreadPoolExecutor(8) as pool:
        talking = [pool.submit(talk, thread) for thread in range(8)]
        heard = [server.read()["params"]["text"] for _ in range(400)]
        assert [future.exception(5) for future in talking] == [None] * 8
    assert sorted(heard) == sorted(
        f"{thread}-{number}" * 2000 for thread in range(8) for number in range(50)
    )


def test_a_value_that_is_not_serializable_is_an_error_of_the_caller(server: FakeServer) -> None:
    with pytest.raises(TypeError):
        server.peer.request("call", {"x": object()})
    server.write({"id": 2, "result": "fine"})
    assert server.peer.request("call", {}) == "fine"


def test_descriptors_may_be_set_later() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Peer(-1, -1)
        peer.connect(ours.fileno(), ours.fileno())
        peer.notify("ready", {})
        assert json.loads(theirs.recv(999))["method"] == "ready"


def test_two_pipes_work_like_a_socket() -> None:
    to_us, from_them = os.pipe()
    to_them, from_us = os.pipe()
    try:
        peer = Peer(to_us, from_us)
        os.write(from_them, b'{"id": 1, "result": 5}\n')
        assert peer.request("call", {}) == 5
        assert json.loads(os.read(to_them, 999))["id"] == 1
    finally:
        for descriptor in (to_us, from_them, to_them, from_us):
            os.close(descriptor)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_long_response_takes_linear_time(server: FakeServer) -> None:
    def measure_seconds(size: int) -> float:
        line = b'{"id": %d, "result": "%s"}\n' % (server.peer._last_id + 1, b"x" * size)
        sender = threading.Thread(target=server.write, args=[line])
        sender.start()
        started = (
            time.thread_time()
        )  # processor time of the reader, which does not depend on the load of the machine
        assert len(server.peer.request("call", {})) == size
        seconds = time.thread_time() - started
        sender.join()
        return seconds

    with without_collections():
        short, long = (
            min(measure_seconds(size) for _ in range(5)) for size in (8_000_000, 64_000_000)
        )
    assert long < 40 * short, f"eight times the length took {long / short:.0f} times as long"
