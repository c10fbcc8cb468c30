"""Random programs on a bus with a gate, processes that die at a step of the journal, and a person
who answers.

A process is an event loop with its own `Runs` on a `MortalStore`, which ends it before or after one
of its writes. The files survive it, as after a real kill (`test_run_store.py` kills real
processes). The world counts what happened.
"""

import asyncio
import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.runs_support import open_runs

from onetool.core.bus.bus import ToolBus
from onetool.runs.answer import Answer
from onetool.runs.gate import Gate
from onetool.runs.runs import Runs
from onetool.settings.access import Agent
from onetool.state.run_records import CallState, Decision, DurableCall, Grant, RunState
from onetool.state.run_store import RunStore
from onetool.util.context import Caller, Effect, RunScope, ToolContext
from onetool.util.logging import Log

WRITES = frozenset({"put_run", "write_calls", "set_state", "decide", "resolve", "claim"})
OPEN = Agent(policy="open")
ASK_WRITES = Agent(policy="ask-writes")
REJECTED = 0  # the person rejects writes of this value
PLACE = {"via": "cli", "transport": "cli"}  # where the person answers
SECONDS = 10.0  # for one process


class ProcessEnd(BaseException):
    """The process was killed."""


class MortalStore:
    """A run store of a process that ends at a write: before it is made, or directly after it."""

    def __init__(
        self, store: RunStore, dies_at: int | None = None, *, is_written: bool = False
    ) -> None:
        self.owner, self.is_dead = os.urandom(16).hex(), False
        self.on_death: Callable[[], object] = lambda: None
        self._store, self._dies_at, self._is_written = store, dies_at, is_written
        self._steps = itertools.count()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return partial(self._write, method) if name in WRITES else partial(self._call, method)

    def _call(self, method: Any, /, *args: Any, **options: Any) -> Any:
        self.check()
        return method(*args, **options)

    def _write(self, method: Any, /, *args: Any, **options: Any) -> Any:
        self.check()
        if next(self._steps) != self._dies_at:
            return method(*args, **options)
        if self._is_written:
            method(*args, **options)
        self.is_dead = True  # not before: the next process starts when its last write is made
        self.on_death()
        raise ProcessEnd

    def check(self) -> None:
        if self.is_dead:
            raise ProcessEnd


@dataclass(frozen=True)
class FakeCall:
    """A call of `fake.read`, `fake.write` or the idempotent `fake.put`.

    Values of writes are unique in a program.
    """

    tool: str
    value: int


Program = list[list[FakeCall]]  # groups in sequence; the calls of a group are made in parallel


def make_program(chance: random.Random) -> Program:
    values = iter(chance.sample(range(20), 20))
    tools = ("read", "write", "write", "put")
    return [
        [
            FakeCall(kind, next(values) if kind == "write" else chance.randrange(3))
            for kind in (chance.choice(tools) for _ in range(chance.choice((1, 1, 2, 3))))
        ]
        for _ in range(chance.randint(1, 4))
    ]


@dataclass
class World:
    """What happened outside, and what the person approved. Both outlive every process."""

    happened: Counter[tuple[str, str]] = field(default_factory=Counter)  # by tool and arguments
    approved: set[tuple[str, str]] = field(default_factory=set)
    granted: int = 0
    reads: int = 0


@dataclass
class FakeTool:
    name: str
    effects: frozenset[Effect]
    idempotent: bool
    world: World
    store: MortalStore
    permissions: tuple[str, ...] = ()

    async def call(self, params: Mapping[str, Any], _context: ToolContext) -> str:
        await asyncio.sleep(0)
        self.store.check()
        if Effect.WRITE not in self.effects:
            self.world.reads += 1
            # another value each time: a replay must use the recorded one
            return f"read {self.world.reads}"
        self.world.happened[self.name, encode(params)] += 1
        await asyncio.sleep(0)
        self.store.check()
        return f"{self.name} {params['value']}"


def encode(params: Mapping[str, Any]) -> str:
    return json.dumps(params, sort_keys=True, separators=(",", ":"))


class ProgramRuns(Runs):
    """Runs whose code is a `Program` as JSON, which is executed without a cell."""

    async def execute(self, gate: Gate) -> Answer:
        """Execute a program.

        Arguments contain earlier results, so that other results would be other calls.
        """
        context, after = ToolContext(run=RunScope(gate=gate)), ""
        for group in json.loads(gate.record.code):
            calls = (
                self._bus.call_tool(f"fake.{name}", {"value": value, "after": after}, context)
                for name, value in group
            )
            results = await asyncio.gather(*calls)
            after = "; ".join(
                str(result.value if result.ok else type(result.error).__name__)
                for result in results
            )
        return Answer((after,), load_value=lambda: after)


class Ear(Log):
    """A log that passes on which runs wait."""

    def __init__(self, on_waiting: Callable[[str], object]) -> None:
        super().__init__()
        self._on_waiting = on_waiting

    def event(self, name: str, *, level: str = "INFO", **fields: Any) -> None:
        super().event(name, level=level, **fields)
        if name == "run.waiting":
            self._on_waiting(fields["run"])


class Process:
    """One process. `start` begins a run and `resume` continues it; both return its state, or None
    if it was killed.
    """

    def __init__(
        self, world: World, store: MortalStore, chance: random.Random, agent: Agent = ASK_WRITES
    ) -> None:
        self._agent, self._world, self._store, self._chance = agent, world, store, chance
        self._answering = asyncio.Lock()
        self._bus = ToolBus()
        for name, effect in (("read", Effect.READ), ("write", Effect.WRITE), ("put", Effect.WRITE)):
            self._bus.register_tool(
                FakeTool(f"fake.{name}", frozenset({effect}), name == "put", world, store)
            )

    def start(self, run_id: str, program: Program) -> RunState | None:
        return asyncio.run(self._live(run_id, program))

    def resume(self, run_id: str) -> RunState | None:
        return asyncio.run(self._live(run_id, None))

    async def _live(self, run_id: str, program: Program | None) -> RunState | None:
        loop, dead = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda *_: None)  # of tasks that the end of the process stops
        self._store.on_death = lambda: loop.call_soon_threadsafe(dead.set)
        log = Ear(lambda run_id: asyncio.ensure_future(self._answer(run_id)))
        self._runs = open_runs(self._store, self._bus, self._agent, kind=ProgramRuns, log=log)
        work = asyncio.ensure_future(
            self._resume(run_id) if program is None else self._start(run_id, program)
        )
        ending = asyncio.ensure_future(dead.wait())
        done, _ = await asyncio.wait(
            {work, ending}, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        assert done, "the run does not end"
        if self._store.is_dead:
            return None
        await work
        found = self._store.get_run(run_id)
        self._store.is_dead = True
        return (
            RunState.DONE if found is None else found.state
        )  # a run without effects is not stored

    async def _start(self, run_id: str, program: Program) -> None:
        code = json.dumps([[[call.tool, call.value] for call in group] for group in program])
        gate = self._runs.open_gate(Caller(), "run", run_id=run_id, code=code, hold=SECONDS)
        await self._runs.run_in_task(gate, self._runs.execute(gate))

    async def _resume(self, run_id: str) -> None:
        await self._answer(run_id)
        await self._runs.wait_for_end(run_id, "default", "", SECONDS)

    # --- the person -------------------------------------------------------------------------------

    async def _answer(self, run_id: str) -> None:
        async with self._answering:
            await self._answer_all(run_id)

    async def _answer_all(self, run_id: str) -> None:
        """Answer what waits: reject some values, approve the others, sometimes with a grant, and
        say what happened.
        """
        pending: list[DurableCall] = self._store.list_calls(run_id, {CallState.PENDING})
        accepted = [call for call in pending if json.loads(call.arguments)["value"] != REJECTED]
        rejected = [call for call in pending if call not in accepted]
        if rejected:
            await self._decide(run_id, rejected, is_approved=False)
        if accepted:
            left = self._chance.choice((0, 0, 1, 3))
            grant = Grant(f"g_{os.urandom(8).hex()}", "fake.put", varying=("*",), left=left)
            self._world.approved |= {(call.tool, call.arguments) for call in accepted}
            self._world.granted += left
            await self._decide(run_id, accepted, is_approved=True, grants=(grant,) if left else ())
        for call in self._store.list_calls(run_id, {CallState.UNKNOWN}):
            did_happen = self._world.happened[call.tool, call.arguments]
            await self._runs.resolve(
                run_id, [call.number], "happened" if did_happen else "repeat", "ann", **PLACE
            )

    async def _decide(self, run_id: str, calls: list[DurableCall], **answer: Any) -> None:
        numbers = tuple(call.number for call in calls)
        await self._runs.decide(run_id, Decision(by="ann", calls=numbers, **answer), **PLACE)
