"""The end of a line that is asked things: requests are answered side by side, by as many threads as that takes.

One thread has the turn: it reads, and answers what it reads by itself. A call that is short costs no other thread
anything. Where one takes longer, the turn is taken from its thread and another goes on reading. A thread that waits
for an answer of the other end has the turn too, if nobody else has it, and leaves requests to others.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque

from onetool_child.rpc import ConnectionLost, Peer

TYPE_CHECKING = False  # to load `typing` takes a worker longer than all of its own modules
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Request = dict[str, Any]

MAX_THREADS = 64
LONG_SECONDS = 0.001  # a call that takes longer is one that others do not wait for
CALM_LOOKS = 50  # in a row without a call, after which nobody looks any more


class Serving(Peer):
    """`answer` deals with one request; `on_notice` is told what needs no answer, by whoever reads it."""

    def __init__(
        self,
        reader: int,
        writer: int,
        encode: Callable[[Any], str],
        answer: Callable[[Request], None],
        on_notice: Callable[[str, dict[str, Any]], None],
    ) -> None:
        super().__init__(reader, writer, encode)
        self._answer, self._on_notice = answer, on_notice
        self._turn: int | None = None  # the thread that has it
        self._since: float | None = None  # when that thread began with a request; None while it reads
        self._request: Request = {}  # which request that is
        self._long: set[str] = set()  # functions that are known to take long
        self._asked: deque[Request] = deque()  # read by somebody who waits for something else
        self._parked: list[threading.Lock] = []  # threads without work, the last to come first
        self._threads = 1
        self._is_over = False
        self._busy = threading.Event()

    def serve(self, beside: Callable[[], None] = lambda: None) -> None:
        """Answer until the other end is gone. `beside` is done by a thread that lives as long, and holds nobody up."""
        threading.Thread(target=self._watch, args=[beside], daemon=True).start()
        self._work()

    # --- a thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while True:
                self._answer(self._next())
        except (ConnectionLost, BrokenPipeError):
            self._end()
        except BaseException:  # noqa: BLE001 - its pipes were closed, say: nobody can be answered any more
            _give_up()

    def _next(self) -> Request:
        me = threading.get_ident()
        while True:
            with self._state:
                self._since = None if self._turn == me else self._since
                if self._is_over:
                    raise ConnectionLost
                if self._asked:
                    return self._asked.popleft()
                if self._turn in {None, me}:
                    self._turn = me
                    break
                parked = threading.Lock()
                parked.acquire()
                self._parked.append(parked)
            parked.acquire()
        return self._read_request()

    def _read_request(self) -> Request:
        while True:
            message = self.receive()
            if "id" in message and "method" in message:
                return self._begun(message)
            with self._state:
                self._sort(message)

    def _begun(self, request: Request) -> Request:
        """This thread answers it, and keeps the turn as long as that is quick."""
        self._request, self._since = request, time.monotonic()
        if request["params"].get("function") in self._long:
            with self._state:
                if self._turn == threading.get_ident():  # it may have been taken meanwhile, and two must not read
                    self._pass_the_turn()
        elif not self._busy.is_set():
            self._busy.set()
        return request

    # --- the turn ---------------------------------------------------------------------------------------------------

    def _pass_the_turn(self) -> None:
        """To a thread without work, or a new one. To be called with the state locked."""
        self._turn, self._since = None, None
        self._wake_one()

    def _wake_one(self) -> None:
        if self._parked:
            self._parked.pop().release()
        elif self._threads < MAX_THREADS:
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()
        else:
            self._state.notify()  # somebody who waits for an answer reads

    def _watch(self, beside: Callable[[], None]) -> None:
        """Take the turn from who is too long about it; sleep as long as nothing happens."""
        beside()
        while True:
            self._busy.wait()
            calm = 0
            while calm < CALM_LOOKS:
                time.sleep(LONG_SECONDS)
                calm = 0 if self._looked() else calm + 1
            self._busy.clear()
            if self._looked():  # a request that came just now has not set what was set still
                self._busy.set()

    def _looked(self) -> bool:
        """Whether there is something to look at."""
        with self._state:
            if self._since is None:
                return False
            if time.monotonic() - self._since > LONG_SECONDS:
                self._long.add(str(self._request["params"].get("function")))
                self._pass_the_turn()
            return True

    # --- answers of the other end -------------------------------------------------------------------------------------

    def _answer_to(self, ident: int) -> dict[str, Any]:
        me = threading.get_ident()
        with self._state, self._one_less():
            while ident not in self._answers:
                if self._is_over:
                    raise ConnectionLost
                if self._turn not in {None, me}:
                    self._state.wait()
                    continue
                self._turn, self._since = me, None
                self._state.release()
                try:
                    message = self.receive()
                finally:
                    self._state.acquire()
                self._sort(message)
            if self._turn == me:
                self._pass_the_turn()
            return self._answers.pop(ident)

    @contextlib.contextmanager
    def _one_less(self) -> Iterator[None]:
        """A thread that waits leaves its place to another: what it waits for may have to be done here."""
        self._threads -= 1
        try:
            yield
        finally:
            self._threads += 1

    def withdraw(self, ident: int) -> None:
        """Nobody waits for it any more. To be called by `on_notice`, which has the state locked."""
        for request in self._asked:
            if request["id"] == ident:
                request["params"]["withdrawn"] = True

    def _sort(self, message: dict[str, Any]) -> None:
        """To whom it belongs. To be called with the state locked."""
        if "method" not in message:
            self._answers[message["id"]] = message
            self._state.notify_all()
        elif "id" in message:
            self._asked.append(message)
            self._wake_one()
        else:
            self._on_notice(message["method"], message["params"])

    def _end(self) -> None:
        with self._state:
            self._is_over = True
            self._turn = None
            while self._parked:
                self._parked.pop().release()
            self._state.notify_all()


def _give_up() -> None:
    import traceback

    with contextlib.suppress(BaseException):
        traceback.print_exc()
    os._exit(1)
