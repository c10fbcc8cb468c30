"""The child's end of the line protocol: many threads, one pair of descriptors, no answer ever in the wrong hands."""

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

from onetool_child.errors import ArgumentError, ToolError, ToolNotFound
from onetool_child.rpc import ConnectionLost, Peer

Answer = Callable[[dict[str, Any]], dict[str, Any] | None]


class Other:
    """The other end: answers what it is asked, in whatever order the test wants."""

    def __init__(self) -> None:
        ours, self._socket = socket.socketpair()
        self._descriptor = ours.detach()
        self.peer = Peer(self._descriptor, self._descriptor)
        self._lines = self._socket.makefile("rb")

    def read(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._lines.readline())
        return message

    def write(self, *messages: dict[str, Any] | bytes) -> None:
        lines = (each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in messages)
        self._socket.sendall(b"".join(lines))

    def write_slowly(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def serve(self, count: int, shuffle: int = 1) -> None:
        """Answer so many requests with their own params, a handful at a time and in no order."""
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
def other() -> Iterator[Other]:
    other = Other()
    yield other
    other.close()


def _served(other: Other, count: int, shuffle: int = 1) -> threading.Thread:
    thread = threading.Thread(target=other.serve, args=[count, shuffle])
    thread.start()
    return thread


def test_a_request_is_a_line_and_its_answer_is_returned(other: Other) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(other.peer.request, "call", {"name": "x"})
        assert other.read() == {"jsonrpc": "2.0", "id": 1, "method": "call", "params": {"name": "x"}}
        other.write({"jsonrpc": "2.0", "id": 1, "result": [1, "ü"]})
        assert answer.result(5) == [1, "ü"]


def test_a_notice_is_a_line_without_an_id(other: Other) -> None:
    other.peer.notify("output", {"text": "x\ny"})
    assert other.read() == {"jsonrpc": "2.0", "method": "output", "params": {"text": "x\ny"}}


def test_one_message_is_one_line_of_ascii(other: Other) -> None:
    other.peer.notify("output", {"text": "ü\n\u2028\ud800"})
    line = other._lines.readline()
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
def test_an_error_is_raised_as_what_it_was(
    other: Other, data: dict[str, Any], kind: type[Exception], text: str
) -> None:
    other.write({"id": 1, "error": {"code": -32000, "message": text, "data": data}})
    with pytest.raises(kind) as caught:
        other.peer.request("call", {})
    assert str(caught.value) == text


def test_the_fields_of_an_error_arrive(other: Other) -> None:
    other.write({"id": 1, "error": {"data": {"class": "ArgumentError", "message": "m", "signature": "f(x)"}}})
    with pytest.raises(ArgumentError) as caught:
        other.peer.request("call", {})
    assert caught.value.signature == "f(x)"


def test_an_error_without_data_is_an_error_all_the_same(other: Other) -> None:
    other.write({"id": 1, "error": {"code": -1, "message": "plain"}})
    with pytest.raises(ToolError, match="plain"):
        other.peer.request("call", {})


def test_an_answer_that_came_in_pieces_is_put_together(other: Other) -> None:
    line = json.dumps({"id": 1, "result": "x" * 200_000}).encode() + b"\n"
    pieces = [line[start : start + 7919] for start in range(0, len(line), 7919)]
    sender = threading.Thread(target=other.write_slowly, args=[pieces])
    sender.start()
    assert other.peer.request("call", {}) == "x" * 200_000
    sender.join()


def test_answers_that_came_together_are_taken_apart(other: Other) -> None:
    other.write(*({"id": number, "result": number} for number in (3, 1, 2)))
    assert [other.peer.request("call", {}) for _ in range(3)] == [1, 2, 3]


def test_messages_that_answer_nothing_disturb_nobody(other: Other) -> None:
    other.write({"method": "cancel", "params": {}}, {"id": 99, "result": "stray"}, {"id": 1, "result": "mine"})
    assert other.peer.request("call", {}) == "mine"


@pytest.mark.parametrize("shuffle", [1, 8])
def test_a_thousand_calls_from_eight_threads_are_never_crossed(other: Other, shuffle: int) -> None:
    served = _served(other, 1000, shuffle)

    def ask(thread: int) -> bool:
        asked = [{"thread": thread, "number": number} for number in range(125)]
        return [other.peer.request("call", params) for params in asked] == asked

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [True] * 8
    served.join()


def test_a_slow_answer_keeps_no_other_thread_waiting(other: Other) -> None:
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(other.peer.request, "call", {"is": "slow"})
        assert other.read()["params"] == {"is": "slow"}
        quick = pool.submit(other.peer.request, "call", {"is": "quick"})
        assert other.read()["params"] == {"is": "quick"}
        other.write({"id": 2, "result": "second"})
        assert quick.result(5) == "second"
        assert not slow.done()
        other.write({"id": 1, "result": "first"})
        assert slow.result(5) == "first"


def test_whoever_reads_hands_over_when_it_has_its_own_answer(other: Other) -> None:
    """Eight threads wait; each answer is sent only after the one before was taken."""
    with ThreadPoolExecutor(8) as pool:
        waiting = {number: pool.submit(other.peer.request, "call", {"n": number}) for number in range(8)}
        asked = [other.read() for _ in range(8)]
        for message in reversed(asked):
            other.write({"id": message["id"], "result": message["params"]})
            assert waiting[message["params"]["n"]].result(5) == message["params"]


def test_everybody_who_waits_learns_that_the_connection_is_lost(other: Other) -> None:
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(other.peer.request, "call", {}) for _ in range(8)]
        for _ in range(8):
            other.read()
        other.hang_up()
        errors = [future.exception(5) for future in waiting]
    assert all(isinstance(error, ConnectionLost | OSError) for error in errors), errors


def test_a_connection_that_is_lost_in_the_middle_of_a_line_is_lost(other: Other) -> None:
    other.write(b'{"id": 1, "resu')
    other.hang_up()
    with pytest.raises((ConnectionLost, OSError)):
        other.peer.request("call", {})


def test_an_answer_that_arrived_before_the_loss_still_counts(other: Other) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(other.peer.request, "call", {})
        other.read()
        other.write({"id": 1, "result": "just in time"})
        other.hang_up()
        assert answer.result(5) == "just in time"


def test_lines_of_many_threads_never_run_into_each_other(other: Other) -> None:
    def talk(thread: int) -> None:
        for number in range(50):
            other.peer.notify("output", {"text": f"{thread}-{number}" * 2000})

    with ThreadPoolExecutor(8) as pool:
        talking = [pool.submit(talk, thread) for thread in range(8)]
        heard = [other.read()["params"]["text"] for _ in range(400)]
        assert [future.exception(5) for future in talking] == [None] * 8
    assert sorted(heard) == sorted(f"{thread}-{number}" * 2000 for thread in range(8) for number in range(50))


def test_a_value_that_is_no_data_is_the_callers_error_and_harms_no_other_call(other: Other) -> None:
    with pytest.raises(TypeError):
        other.peer.request("call", {"x": object()})
    other.write({"id": 2, "result": "fine"})
    assert other.peer.request("call", {}) == "fine"


def test_descriptors_may_be_given_later() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Peer(-1, -1)
        peer.connect(ours.fileno(), ours.fileno())
        peer.notify("ready", {})
        assert json.loads(theirs.recv(999))["method"] == "ready"


def test_two_pipes_serve_as_well_as_a_socket() -> None:
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


@pytest.mark.slow
def test_the_time_for_a_long_answer_grows_with_its_length_and_no_faster(other: Other) -> None:
    def seconds(size: int) -> float:
        line = b'{"id": %d, "result": "%s"}\n' % (other.peer._last_id + 1, b"x" * size)
        sender = threading.Thread(target=other.write, args=[line])
        sender.start()
        started = time.perf_counter()
        assert len(other.peer.request("call", {})) == size
        sender.join()
        return time.perf_counter() - started

    short, long = (min(seconds(size) for _ in range(5)) for size in (8_000_000, 64_000_000))
    assert long < 40 * short, f"eight times the length took {long / short:.0f} times as long"
