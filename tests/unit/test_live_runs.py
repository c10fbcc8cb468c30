"""Active runs and their events: complete, in order, bounded and without secrets."""

import asyncio
from dataclasses import dataclass

import pytest

from onetool.admin.action import Person
from onetool.admin.runs import build_details
from onetool.core.bus.bus import ToolBus
from onetool.core.bus.events import MAX_COMMAND_CHARS, RUN, CallFinished, RunFinished
from onetool.runs.live_runs import JSON, MAX_WAITING_EVENTS, LiveRuns
from onetool.state.stats.history import MAX_CALLS
from onetool.util.context import ToolContext
from onetool.util.redact import REDACTED, Redactor

SECRET = "correct-horse-battery"


@dataclass
class FakeBus:
    """A bus whose events a test controls."""

    bus: ToolBus
    activity: LiveRuns

    def start(self, name: str, run_id: str, agent: str = "default", detail: str = "") -> int:
        context = _context(run_id, agent)
        if name == RUN:
            return self.bus.events.start_run(context, detail)
        return self.bus.events.start_call(name, context, is_known=False)[0]

    def finish(
        self, number: int, name: str, run_id: str, agent: str = "default", error: str | None = None
    ) -> None:
        context = _context(run_id, agent)
        is_run = name == RUN
        self.bus.events.emit(
            RunFinished(number, context, 0.25, error)
            if is_run
            else CallFinished(number, name, context, 0.25, error)
        )

    def runs(self, agent: str | None = None) -> list[JSON]:
        return [
            build_details(run, (), Person(), Redactor()).as_json()
            for run in self.activity.runs(agent)
        ]

    def timeline(self, run_id: str) -> JSON:
        found = self.activity.find(run_id)
        assert found is not None
        return build_details(*found, Person(), Redactor()).as_json()

    def complete_run(self, run_id: str, agent: str = "default") -> None:
        self.finish(self.start(RUN, run_id, agent), RUN, run_id, agent)


def _context(run_id: str, agent: str) -> ToolContext:
    return ToolContext(agent_id=agent, correlation_id=run_id)


@pytest.fixture
def bus() -> FakeBus:
    bus = ToolBus()
    bus.events.redact = Redactor([SECRET])
    activity = LiveRuns(bus.events)
    activity.start()
    return FakeBus(bus, activity)


def test_a_run_is_reported_with_its_calls(bus: FakeBus) -> None:
    run = bus.start(RUN, "r", detail=f"x = '{SECRET}'")
    first, second = bus.start("a.b", "r"), bus.start("a.c", "r")
    bus.finish(second, "a.c", "r", error="timeout")
    output = bus.timeline("r")
    assert (output["state"], output["command"]) == ("running", "x = '[REDACTED]'")
    assert [(call["name"], call["durationMs"], call["error"]) for call in output["calls"]] == [
        ("a.b", None, None),
        ("a.c", 250.0, "timeout"),
    ]
    assert (output["mostAtOnce"], output["failedCount"]) == (2, 1)
    bus.finish(first, "a.b", "r")
    bus.finish(run, RUN, "r")
    assert bus.runs() == []


def test_sequential_calls_share_a_lane(bus: FakeBus) -> None:
    bus.start(RUN, "r")
    for _ in range(3):
        call = bus.start("a", "r")
        bus.bus.events.emit(CallFinished(call, "a", _context("r", "default"), 0.0, None))
    output = bus.timeline("r")
    assert [call["lane"] for call in output["calls"]] == [0, 0, 0]


def test_a_call_without_a_run_is_a_run_of_one_call(bus: FakeBus) -> None:
    outer = bus.start("a.outer", "c")
    inner = bus.start("a.inner", "c")
    bus.finish(inner, "a.inner", "c")
    (output,) = bus.runs()
    assert (output["kind"], output["name"], output["state"], output["callCount"]) == (
        "call",
        "a.outer",
        "running",
        2,
    )
    bus.finish(outer, "a.outer", "c", error="network")
    assert bus.runs() == []


def test_the_end_of_an_earlier_run_is_ignored(bus: FakeBus) -> None:
    bus.finish(99, RUN, "old")
    bus.finish(98, "a.b", "")
    assert bus.runs() == []


def test_calls_beyond_the_limit_are_only_counted(bus: FakeBus) -> None:
    bus.start(RUN, "r")
    for _ in range(MAX_CALLS + 5):
        bus.finish(bus.start("a", "r"), "a", "r")
    output = bus.timeline("r")
    assert (len(output["calls"]), output["callsLeftOut"], output["callCount"]) == (
        MAX_CALLS,
        5,
        MAX_CALLS + 5,
    )


def test_an_agent_sees_its_own_runs(bus: FakeBus) -> None:
    bus.start(RUN, "mine", "me")
    bus.start(RUN, "theirs", "them")
    assert [run["id"] for run in bus.runs("me")] == ["mine"]
    assert bus.activity.find("theirs", "me") is None
    assert bus.activity.find("mine", "me") is not None


@pytest.mark.parametrize("cut", [1, 8, len(SECRET) - 1])
def test_a_secret_truncated_at_the_end_of_a_command_is_not_shown(bus: FakeBus, cut: int) -> None:
    bus.start(RUN, "r", detail="#" * (MAX_COMMAND_CHARS - cut) + SECRET)
    assert bus.runs()[0]["command"] == "#" * (MAX_COMMAND_CHARS - cut) + REDACTED


def test_names_of_calls_may_be_any_text(bus: FakeBus) -> None:
    bus.start(SECRET, "a")
    bus.start("x" * 10_000, "b")
    assert [len(run["name"]) for run in bus.runs()] == [200, len("[REDACTED]")]


def test_watchers_receive_the_events_of_their_agent(bus: FakeBus) -> None:
    async def watch() -> list[tuple[str, str]]:
        with bus.activity.watch("me") as events:
            bus.complete_run("theirs", "them")
            bus.complete_run("mine", "me")
            return [(event["event"], event["run_id"]) for event in await anext(events)]

    assert asyncio.run(watch()) == [("called", "mine"), ("completed", "mine")]


def test_slow_watchers_receive_the_number_of_missed_events(bus: FakeBus) -> None:
    async def watch() -> tuple[list[JSON], list[JSON]]:
        with bus.activity.watch() as events:
            for number in range(MAX_WAITING_EVENTS):
                bus.complete_run(f"r{number}")
            late = await anext(events)
            bus.complete_run("again")
            return late, await anext(events)

    late, then = asyncio.run(watch())
    assert len(late) == MAX_WAITING_EVENTS + 1
    assert late[-1] == {"event": "missed", "count": MAX_WAITING_EVENTS}
    assert [event["run_id"] for event in then] == ["again", "again"]


def test_removed_watchers_receive_nothing(bus: FakeBus) -> None:
    async def watch() -> None:
        with bus.activity.watch():
            pass

    asyncio.run(watch())
    bus.complete_run("r")
    assert bus.activity._watchers == []
