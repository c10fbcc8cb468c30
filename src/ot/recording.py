"""What happened, told to those who keep it: log, audit, statistics, shapes of results. It decides nothing.

Calls are told by the bus, runs and sessions by the app. Only `admit` waits for a disk.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ot.audit import Audit
from ot.bus.bus import Call
from ot.bus.events import RUN, Events
from ot.context import ToolContext
from ot.gc_pauses import no_gc_pauses
from ot.logging import Log
from ot.raw_json import RawJson
from ot.registry import Registry
from ot.runner.answer import Answer, Journal
from ot.stats.record import CallRecord, RunRecord, SessionRecord
from ot.stats.tokens import tokens_of, tokens_of_text
from ot.stores import Stores

SEEN_AGAIN = {"ot.load", "ot.result"}


class Outcome:
    """What became of a run; without an answer it was cancelled."""

    answer: Answer | None = None

    @property
    def error(self) -> str | None:
        return "cancelled" if self.answer is None else self.answer.error

    @property
    def tokens(self) -> int:
        return 0 if self.answer is None else sum(map(tokens_of_text, self.answer.blocks))


class Recording:
    def __init__(self) -> None:
        self.session = os.urandom(8).hex()
        self._result_tokens: dict[str, int] = {}  # of the runs that are under way

    def keep_in(self, log: Log, audit: Audit, stores: Stores) -> None:
        """From now on."""
        self._log, self._audit, self._stores = log, audit, stores

    async def admit(self, call: Call) -> None:
        """Record that the call is about to be made. Raises if that is required and impossible."""
        await self._audit.admit(call)

    def call(self, call: Call, value: Any) -> None:
        name = call.tool.name if call.tool else call.name
        self._log_call(call, name)
        self._audit.call(call)
        if call.continues:
            return
        tokens = _tokens(call, value)
        run_id = call.context.correlation_id
        if run_id in self._result_tokens:
            self._result_tokens[run_id] += tokens
        else:
            run_id = ""
        agent, now = call.context.agent_id, time.time()
        self._stores.recorder.call(CallRecord(name, agent, self.session, run_id, call.seconds, call.error, tokens, now))
        if _is_worth_learning(call) and not isinstance(value, RawJson):
            self._stores.shapes.learn(name, value)

    @contextmanager
    def run(self, context: ToolContext, journal: Journal, events: Events, command: object) -> Iterator[Outcome]:
        outcome, started = Outcome(), time.perf_counter()
        self._result_tokens[context.correlation_id] = 0
        told = events.called(RUN, context, command if isinstance(command, str) else "")
        try:
            yield outcome
        finally:
            self._ended(context, journal, outcome, started)
            events.ended(told, RUN, context, time.perf_counter() - started, outcome.error)

    def begin_session(self, registry: Registry, own_tokens: int, *, agent: str, client: str) -> None:
        """A client has come that would otherwise have loaded the definition of every tool; `client` tells it apart."""
        session = f"{self.session}/{client}" if client else self.session
        self._stores.recorder.session(SessionRecord(session, agent, _definitions(registry), own_tokens))

    def _ended(self, context: ToolContext, journal: Journal, outcome: Outcome, started: float) -> None:
        run_id, agent = context.correlation_id, context.agent_id
        asked = {"request_id": journal.request_id} if journal.request_id else {}
        self._log.ended("run", started, outcome.error, {"correlation_id": run_id, "agent": agent, **asked})
        tokens, seconds = self._result_tokens.pop(run_id), time.perf_counter() - started
        calls, answered = len(journal.calls), outcome.tokens
        self._stores.recorder.run(
            RunRecord(run_id, agent, self.session, seconds, outcome.error, calls, answered, tokens)
        )

    def _log_call(self, call: Call, name: str) -> None:
        outcome = {"status": "ok"} if call.error is None else {"status": "error", "error_type": call.error}
        self._log.event(
            name if name.startswith("ot.") else "tool.call",
            duration_ms=round(call.seconds * 1000, 3),
            **outcome,
            correlation_id=call.context.correlation_id,
            agent=call.context.agent_id,
            tool=name,
            **call.logged,
        )


def _tokens(call: Call, value: Any) -> int:
    """Of the result; what is only seen again was counted when it was made."""
    return 0 if call.error is not None or call.tool is None or call.tool.name in SEEN_AGAIN else tokens_of(value)


def _is_worth_learning(call: Call) -> bool:
    """What a tool gives that does not say so itself; our own help says what there is to know of `ot`."""
    return call.tool is not None and call.error is None and call.tool.output is None and call.tool.pack != "ot"


@no_gc_pauses()
def _definitions(registry: Registry) -> dict[str, int]:
    """The tokens that each tool would cost a client that was connected to it directly."""
    return {
        tool.name: tokens_of({"name": tool.name, "description": tool.description, "inputSchema": tool.input.json})
        for tool in registry
        if tool.enabled and tool.pack != "ot"
    }
