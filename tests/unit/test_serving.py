"""The worker's side of the connection: requests are answered concurrently, with as few threads as
possible.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from tests.support import TIMEOUT_SECONDS, eventually

from onetool_child import serving
from onetool_child.errors import ToolError
from onetool_child.rpc import ConnectionLost
from onetool_child.serving import ServingPeer

Function = Callable[["Line", Any], Any]


class Line:
    """A serving peer and the server's side of its connection.

    Functions get the line and the value of the request.
    """

    def __init__(self, functions: dict[str, Function]) -> None:
        self._functions, self.patience = functions, TIMEOUT_SECONDS
        reader, self._to = os.pipe()
        back, writer = os.pipe()
        self._lines = os.fdopen(back, "rb")
        self._ends = (reader, writer)
        self._in_flight: set[int] = set()
        self.notices: list[tuple[str, dict[str, Any]]] = []
        self.peer = ServingPeer(
            reader,
            writer,
            json.dumps,
            self._respond,
            lambda name, params: self.notices.append((name, params)),
        )
        self.thread = threading.Thread(target=self.peer.serve, daemon=True)
        self.answers: dict[int, Any] = {}
        self.asked: list[dict[str, Any]] = []
        self._arrived = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self.thread.join(TIMEOUT_SECONDS)
        assert not self.thread.is_alive()
        assert eventually(
            lambda: not self._in_flight
        )  # every request in flight gets a response line
        os.close(self._ends[1])
        self._listener.join(TIMEOUT_SECONDS)
        self._lines.close()
        os.close(self._ends[0])

    def hang_up(self) -> None:
        if self._to >= 0:
            os.close(self._to)
            self._to = -1

    def send(self, ident: int, function: str, value: Any = None) -> None:
        self.write(
            {"id": ident, "method": "call", "params": {"function": function, "value": value}}
        )

    def write(self, *messages: dict[str, Any]) -> None:
        os.write(
            self._to,
            b"".join(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in messages),
        )

    def wait_for_response(self, ident: int) -> Any:
        with self._arrived:
            assert self._arrived.wait_for(lambda: ident in self.answers, self.patience), (
                f"no response to {ident}"
            )
            return self.answers[ident]

    def next_call(self) -> dict[str, Any]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.asked, TIMEOUT_SECONDS), "no call was made"
            return self.asked.pop(0)

    def _listen(self) -> None:
        for line in self._lines:
            message = json.loads(line)
            with self._arrived:
                if "method" in message:
                    self.asked.append(message)
                else:
                    self.answers[message["id"]] = message["result"]
                self._arrived.notify_all()

    def _respond(self, request: dict[str, Any]) -> None:
        self._in_flight.add(request["id"])
        try:
            self.peer.send_line(
                json.dumps({"id": request["id"], "result": self._compute(request["params"])})
            )
        finally:
            self._in_flight.discard(request["id"])

    def _compute(self, params: dict[str, Any]) -> Any:
        try:
            return self._functions[params["function"]](self, params["value"])
        except ToolError as error:
            return f"{type(error).__name__}: {error}"


GATE = threading.Event()


def echo(_line: Line, value: Any) -> Any:
    return value


def nap(_line: Line, seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def wait(_line: Line, _value: Any) -> bool:
    return GATE.wait(3 * TIMEOUT_SECONDS)


def ask(line: Line, value: Any) -> Any:
    return line.peer.request("call", {"asked": value})


def ask_twice(line: Line, value: Any) -> list[Any]:
    return [ask(line, [value, n]) for n in range(2)]


def ask_in_thread(line: Line, value: Any) -> list[Any]:
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(ask(line, [value, n]))) for n in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found)


FUNCTIONS: dict[str, Function] = {
    each.__name__: each for each in (echo, nap, wait, ask, ask_twice, ask_in_thread)
}


@pytest.fixture
def line() -> Iterator[Line]:
    GATE.clear()
    with Line(FUNCTIONS) as line:
        try:
            yield line
        finally:
            GATE.set()


def test_sequential_requests_are_answered(line: Line) -> None:
    for ident in range(200):
        line.send(ident, "echo", [ident])
        assert line.wait_for_response(ident) == [ident]


def test_concurrent_requests_get_their_own_responses(line: Line) -> None:
    for ident in range(500):
        line.send(ident, "echo", ident * 2)
    assert [line.wait_for_response(ident) for ident in range(500)] == [
        ident * 2 for ident in range(500)
    ]


def test_a_quick_request_needs_no_other_thread(line: Line) -> None:
    before = threading.active_count()
    for ident in range(50):
        line.send(ident, "echo", ident)
        line.wait_for_response(ident)
    assert threading.active_count() <= before + 15  # some requests may seem long on a busy machine


def test_a_long_request_does_not_delay_others(line: Line) -> None:
    line.send(1, "wait")
    for ident in range(2, 100):
        line.send(ident, "echo", ident)
        assert line.wait_for_response(ident) == ident
    assert 1 not in line.answers
    GATE.set()
    assert line.wait_for_response(1) is True


def test_a_long_request_after_an_idle_time_does_not_delay_others(line: Line) -> None:
    """The watcher sleeps after an idle time; the next request must wake it."""
    for round_ in range(3):
        GATE.clear()
        line.send(10 * round_, "echo")
        line.wait_for_response(10 * round_)
        assert eventually(lambda: not line.peer._busy.is_set())
        line.peer._slow_functions.clear()
        line.send(10 * round_ + 1, "wait")
        line.send(10 * round_ + 2, "echo", "through")
        assert line.wait_for_response(10 * round_ + 2) == "through"
        GATE.set()
        assert line.wait_for_response(10 * round_ + 1) is True


def test_a_request_that_arrives_while_the_watcher_falls_asleep_is_watched(line: Line) -> None:
    """Prolong the moment between the last check and the sleep."""

    class Busy(threading.Event):
        def clear(self) -> None:
            line.send(2, "wait")
            assert eventually(lambda: line.peer._busy_since is not None)
            self.clear = super().clear  # type: ignore[method-assign]
            super().clear()

    busy = Busy()
    old, line.peer._busy = line.peer._busy, busy
    old.set()  # threads that wait on the old event continue with the new one
    line.send(1, "echo", 1)
    assert line.wait_for_response(1) == 1
    assert eventually(lambda: "clear" in vars(busy))
    line.patience = 2.0
    line.send(3, "echo", "through")
    assert line.wait_for_response(3) == "through"


def test_slow_and_quick_requests_run_concurrently(line: Line) -> None:
    for ident in range(100):
        line.send(ident, *(("nap", 0.02) if ident % 3 == 0 else ("echo", ident)))
    assert [line.wait_for_response(ident) for ident in range(100)] == [
        0.02 if ident % 3 == 0 else ident for ident in range(100)
    ]


def test_more_long_requests_than_threads_all_complete(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_THREADS", 4)
    for ident in range(40):
        line.send(ident, "nap", 0.005)
    assert [line.wait_for_response(ident) for ident in range(40)] == [0.005] * 40


# --- calls to the other side ----------------------------------------------------------------------


def respond_to_calls(line: Line, count: int) -> None:
    for _ in range(count):
        call = line.next_call()
        line.write({"id": call["id"], "result": call["params"]["asked"]})


def test_a_request_may_call_the_other_side(line: Line) -> None:
    line.send(1, "ask", "x")
    respond_to_calls(line, 1)
    assert line.wait_for_response(1) == "x"


def test_other_requests_are_answered_while_one_waits_for_the_other_side(line: Line) -> None:
    line.send(1, "ask", "x")
    call = line.next_call()
    for ident in range(2, 50):
        line.send(ident, "echo", ident)
        assert line.wait_for_response(ident) == ident
    line.write({"id": call["id"], "result": "at last"})
    assert line.wait_for_response(1) == "at last"
    line.send(50, "echo", 50)
    assert line.wait_for_response(50) == 50


def test_each_response_goes_to_its_caller(line: Line) -> None:
    for ident in range(20):
        line.send(ident, "ask", ident)
    questions = [line.next_call() for _ in range(20)]
    for call in reversed(questions):
        line.write({"id": call["id"], "result": call["params"]["asked"]})
    assert [line.wait_for_response(ident) for ident in range(20)] == list(range(20))


@pytest.mark.parametrize("function", ["ask_twice", "ask_in_thread"])
def test_one_request_may_make_several_calls(line: Line, function: str) -> None:
    count = 2 if function == "ask_twice" else 5
    for ident in range(5):
        line.send(ident, function, ident)
    respond_to_calls(line, 5 * count)
    assert [line.wait_for_response(ident) for ident in range(5)] == [
        [[ident, n] for n in range(count)] for ident in range(5)
    ]


def test_an_error_of_the_other_side_is_raised_in_the_caller(line: Line) -> None:
    line.send(1, "ask", "x")
    error = {"class": "PermissionDenied", "message": "no"}
    line.write({"id": line.next_call()["id"], "error": {"code": 1, "message": "no", "data": error}})
    assert line.wait_for_response(1) == "PermissionDenied: no"


def test_all_threads_may_wait_for_the_other_side_at_once(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_THREADS", 3)
    for ident in range(3):
        line.send(ident, "ask", ident)
    respond_to_calls(line, 3)
    assert [line.wait_for_response(ident) for ident in range(3)] == [0, 1, 2]


def test_notifications_are_handled_by_any_reader(line: Line) -> None:
    line.write({"method": "cancel", "params": {"id": 1}})
    line.send(1, "ask", "x")
    call = line.next_call()
    line.write({"method": "cancel", "params": {"id": 2}}, {"id": call["id"], "result": 0})
    line.wait_for_response(1)
    assert line.notices == [("cancel", {"id": 1}), ("cancel", {"id": 2})]


# --- end of the connection ------------------------------------------------------------------------


def test_serving_ends_when_the_connection_is_closed() -> None:
    with Line(FUNCTIONS) as line:
        line.send(1, "echo", 1)
        line.wait_for_response(1)
        line.hang_up()
        line.thread.join(TIMEOUT_SECONDS)
        assert not line.thread.is_alive()


def test_serving_ends_while_calls_are_in_flight() -> None:
    GATE.clear()
    with Line(FUNCTIONS) as line:
        for ident in range(5):
            line.send(ident, "wait")
        line.send(9, "echo", 9)
        line.wait_for_response(9)
        line.hang_up()
        GATE.set()
        line.thread.join(TIMEOUT_SECONDS)
        assert not line.thread.is_alive()


def test_a_waiting_caller_learns_that_the_connection_is_lost() -> None:
    lost: list[bool] = []

    def ask_in_vain(line: Line, value: Any) -> Any:
        try:
            return ask(line, value)
        except ConnectionLost:
            lost.append(True)
            raise

    with Line({"ask": ask_in_vain}) as line:
        for ident in range(3):
            line.send(ident, "ask")
        for _ in range(3):
            line.next_call()
        line.hang_up()
        assert eventually(lambda: len(lost) == 3)
