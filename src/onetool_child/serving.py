"""The side of a connection that answers requests, and what a worker serves: tests of a pack.

One thread is the reader: it reads a request and answers it itself, so a short call involves no
other thread. If a call takes longer, another thread becomes the reader. A thread that waits for a
response of the other side becomes the reader if there is none, and leaves requests to other
threads.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress

from onetool_child.rpc import ConnectionLost, Peer

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from onetool_child.json_types import JsonObject

    Request = JsonObject

MAX_THREADS = 64
LONG_CALL_SECONDS = 0.001  # if a call takes longer, another thread becomes the reader
MAX_IDLE_CHECKS = 50  # in a row, after which the watching thread sleeps
CONFIG_NAMES = ("tests/pytest.ini", "pytest.ini")


class ServingPeer(Peer):
    """A peer that answers requests with `answer`, and notifications in the reader."""

    def __init__(
        self,
        reader: int,
        writer: int,
        encode: Callable[[Any], str],
        answer: Callable[[Request], None],
        on_notification: Callable[[str, JsonObject], None],
    ) -> None:
        super().__init__(reader, writer, encode)
        self._answer = answer
        self._on_notification = on_notification
        self._reading_thread: int | None = None  # the reader
        self._busy_since: float | None = (
            None  # when the reader started to answer a request; None while it reads
        )
        self._current: Request = {}  # the request that the reader answers
        self._slow_functions: set[str] = set()
        self._requests: deque[Request] = deque()  # read by threads that wait for a response
        self._idle: list[threading.Lock] = []  # one per idle thread; the last one wakes first
        self._threads = 1
        self._is_over = False
        self._busy = threading.Event()

    def serve(self, in_background: Callable[[], None] = lambda: None) -> None:
        """Answer requests until the connection is lost.

        `in_background` runs in a separate thread meanwhile.
        """
        threading.Thread(target=self._watch, args=[in_background], daemon=True).start()
        self._work()

    # --- threads ----------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while True:
                self._answer(self._next_request())
        except (ConnectionLost, BrokenPipeError):
            self._end()
        except BaseException:  # noqa: BLE001 - for example because the pipes were closed: no request can be answered
            _abort()

    def _next_request(self) -> Request:
        me = threading.get_ident()
        while True:
            with self._state:
                self._busy_since = None if self._reading_thread == me else self._busy_since
                if self._is_over:
                    raise ConnectionLost
                if self._requests:
                    return self._requests.popleft()
                if self._reading_thread in {None, me}:
                    self._reading_thread = me
                    break
                idle = threading.Lock()
                idle.acquire()
                self._idle.append(idle)
            idle.acquire()
        return self._read_request()

    def _read_request(self) -> Request:
        while True:
            message = self.receive()
            if "id" in message and "method" in message:
                return self._start_request(message)
            with self._state:
                self._dispatch(message)

    def _start_request(self, request: Request) -> Request:
        """Start to answer a request.

        This thread stays the reader unless the function is known to be slow.
        """
        self._current = request
        self._busy_since = time.monotonic()
        if request["params"].get("function") in self._slow_functions:
            with self._state:
                if (
                    self._reading_thread == threading.get_ident()
                ):  # unless another thread has become the reader
                    self._hand_over_reading()
        elif not self._busy.is_set():
            self._busy.set()
        return request

    # --- the reader -------------------------------------------------------------------------------

    def _hand_over_reading(self) -> None:
        """Make an idle or a new thread the reader. Called with the state locked."""
        self._reading_thread = None
        self._busy_since = None
        self._wake_thread()

    def _wake_thread(self) -> None:
        if self._idle:
            self._idle.pop().release()
        elif self._threads < MAX_THREADS:
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()
        else:
            self._state.notify()  # a thread that waits for a response becomes the reader

    def _watch(self, in_background: Callable[[], None]) -> None:
        """Replace the reader when its call takes long; sleep while nothing happens."""
        in_background()
        while True:
            self._busy.wait()
            idle_checks = 0
            while idle_checks < MAX_IDLE_CHECKS:
                time.sleep(LONG_CALL_SECONDS)
                idle_checks = 0 if self._check_reader() else idle_checks + 1
            self._busy.clear()
            if self._check_reader():  # a request that arrived before `clear` did not set the event
                self._busy.set()

    def _check_reader(self) -> bool:
        """Replace the reader if its call takes long. Return whether it is busy."""
        with self._state:
            if self._busy_since is None:
                return False
            if time.monotonic() - self._busy_since > LONG_CALL_SECONDS:
                self._slow_functions.add(str(self._current["params"].get("function")))
                self._hand_over_reading()
            return True

    # --- responses of the other side --------------------------------------------------------------

    def _wait_for_answer(self, ident: int) -> JsonObject:
        me = threading.get_ident()
        with self._state, self._released_slot():
            while ident not in self._answers:
                if self._is_over:
                    raise ConnectionLost
                if self._reading_thread not in {None, me}:
                    self._state.wait()
                    continue
                self._reading_thread = me
                self._busy_since = None
                self._state.release()
                try:
                    message = self.receive()
                finally:
                    self._state.acquire()
                self._dispatch(message)
            if self._reading_thread == me:
                self._hand_over_reading()
            return self._answers.pop(ident)

    @contextmanager
    def _released_slot(self) -> Iterator[None]:
        """Allow one more thread while this one waits for a response that may need another."""
        self._threads -= 1
        try:
            yield
        finally:
            self._threads += 1

    def cancel_queued(self, ident: int) -> None:
        """Mark a queued request as cancelled. Called by `on_notification` with the state locked."""
        for request in self._requests:
            if request["id"] == ident:
                request["params"]["cancelled"] = True

    def _dispatch(self, message: JsonObject) -> None:
        """Pass a message to the thread that waits for it, or queue it.

        Called with the state locked.
        """
        if "method" not in message:
            self._answers[message["id"]] = message
            self._state.notify_all()
        elif "id" in message:
            self._requests.append(message)
            self._wake_thread()
        else:
            self._on_notification(message["method"], message["params"])

    def _end(self) -> None:
        with self._state:
            self._is_over = True
            self._reading_thread = None
            while self._idle:
                self._idle.pop().release()
            self._state.notify_all()


def _abort() -> None:
    import traceback

    with suppress(BaseException):
        traceback.print_exc()
    os._exit(1)


# --- tests of packs -------------------------------------------------------------------------------


def run_tests(directory: str, tests: list[str], packages: str) -> JsonObject:
    """Run tests; return pytest's exit status and the outcome of each test.

    `directory` is the directory of the pack. `packages` contains pytest, for environments that do
    not have it.
    """
    sys.path.append(packages)
    import builtins
    import importlib

    import pytest

    vars(builtins)["ot"] = importlib.import_module("ot")  # predefined in tests too, as in the pack

    paths = (os.path.join(directory, name) for name in CONFIG_NAMES)  # noqa: PTH118 - importing pathlib is slow
    # Files further up belong to another project.
    config = next(filter(os.path.isfile, paths), os.devnull)
    bounds = ["-c", config, "--rootdir", directory, "--confcutdir", directory]
    # Other ways to capture output need a temporary directory, which a sandbox may not have.
    options = ["-q", "--color=no", "--capture=sys", "-p", "no:cacheprovider"]
    collector = OutcomeCollector()
    status = pytest.main([*options, *bounds, *tests], plugins=[collector])
    return {"status": int(status), "tests": list(collector.tests.values())}


class OutcomeCollector:
    """A pytest plugin that records the outcome of each test."""

    def __init__(self) -> None:
        self.tests: dict[str, JsonObject] = {}

    def pytest_load_initial_conftests(self) -> None:
        """Write no bytecode beside the tests. That of pytest itself has been written by now."""
        sys.dont_write_bytecode = True

    def pytest_collectreport(self, report: Any) -> None:
        """Record a file that cannot be imported or skips all of its tests."""
        if not report.passed:
            self._record(report, 0.0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record a phase of a test: its setup, the call or its teardown."""
        self._record(report, report.duration)

    def _record(self, report: Any, seconds: float) -> None:
        new = {"name": report.nodeid, "status": "ok", "seconds": 0.0, "detail": ""}
        test = self.tests.setdefault(report.nodeid, new)
        test["seconds"] += seconds
        if report.failed:
            test.update(status="failed", detail=report.longreprtext)
        elif report.skipped and test["status"] == "ok":
            test.update(status="skipped", detail=_get_reason(report))


def _get_reason(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected failure: {report.wasxfail}"
    return str(report.longrepr[2]).removeprefix("Skipped: ")
