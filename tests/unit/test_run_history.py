"""Active runs and their events: complete, in order, bounded and without secrets."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from onetool.bus.bus import ToolBus
from onetool.bus.events import MAX_COMMAND_CHARS, RUN, CallFinished, RunFinished
from onetool.context import ToolContext
from onetool.redact import REDACTED, Redactor
from onetool.stats.history import MAX_CALLS
from onetool.transports.http.api.runs import build_run, build_timeline
from onetool.transports.run_history import JSON, MAX_WAITING_EVENTS, LiveRuns

SECRET = "correct-horse-battery"


@dataclass
class Told:
    """A bus whose events a test controls."""

    bus: ToolBus
    activity: LiveRuns

    def began(self, name: str, run_id: str, agent: str = "default", detail: str = "") -> int:
        context = _context(run_id, agent)
        if name == RUN:
            return self.bus.events.start_run(context, detail)
        return self.bus.events.start_call(name, context, is_known=False)[0]

    def ended(self, number: int, name: str, run_id: str, agent: str = "default", error: str | None = None) -> None:
        context = _context(run_id, agent)
        is_run = name == RUN
        self.bus.events.emit(
            RunFinished(number, context, 0.25, error) if is_run else CallFinished(number, name, context, 0.25, error)
        )

    def runs(self, agent: str | None = None) -> list[JSON]:
        return [build_run(run).as_json() for run in self.activity.runs(agent)]

    def timeline(self, run_id: str) -> JSON:
        found = self.activity.find(run_id)
        assert found is not None
        return build_timeline(*found).as_json()

    def whole_run(self, run_id: str, agent: str = "default") -> None:
        self.ended(self.began(RUN, run_id, agent), RUN, run_id, agent)


def _context(run_id: str, agent: str) -> ToolContext:
    return ToolContext(agent_id=agent, correlation_id=run_id)


@pytest.fixture
def told() -> Iterator[Told]:
    bus = ToolBus()
    bus.events.redact = Redactor([SECRET])
    activity = LiveRuns(bus.events)
    yield Told(bus, activity)
    activity.close()


def test_a_run_is_reported_with_its_calls(told: Told) -> None:
    run = told.began(RUN, "r", detail=f"x = '{SECRET}'")
    first, second = told.began("a.b", "r"), told.began("a.c", "r")
    told.ended(second, "a.c", "r", error="timeout")
    shown = told.timeline("r")
    assert (shown["state"], shown["command"]) == ("running", "x = '[REDACTED]'")
    assert [(call["name"], call["durationMs"], call["error"]) for call in shown["calls"]] == [
        ("a.b", None, None),
        ("a.c", 250.0, "timeout"),
    ]
    assert (shown["mostAtOnce"], shown["failedCount"]) == (2, 1)
    told.ended(first, "a.b", "r")
    told.ended(run, RUN, "r")
    assert told.runs() == []


def test_sequential_calls_share_a_lane(told: Told) -> None:
    told.began(RUN, "r")
    for _ in range(3):
        call = told.began("a", "r")
        told.bus.events.emit(CallFinished(call, "a", _context("r", "default"), 0.0, None))
    shown = told.timeline("r")
    assert [call["lane"] for call in shown["calls"]] == [0, 0, 0]


def test_a_call_without_a_run_is_a_run_of_one_call(told: Told) -> None:
    outer = told.began("a.outer", "c")
    inner = told.began("a.inner", "c")
    told.ended(inner, "a.inner", "c")
    (shown,) = told.runs()
    assert (shown["kind"], shown["name"], shown["state"], shown["callCount"]) == ("call", "a.outer", "running", 2)
    told.ended(outer, "a.outer", "c", error="network")
    assert told.runs() == []


def test_the_end_of_an_earlier_run_is_ignored(told: Told) -> None:
    told.ended(99, RUN, "old")
    told.ended(98, "a.b", "")
    assert told.runs() == []


def test_calls_beyond_the_limit_are_only_counted(told: Told) -> None:
    told.began(RUN, "r")
    for _ in range(MAX_CALLS + 5):
        told.ended(told.began("a", "r"), "a", "r")
    shown = told.timeline("r")
    assert (len(shown["calls"]), shown["callsLeftOut"], shown["callCount"]) == (MAX_CALLS, 5, MAX_CALLS + 5)


def test_an_agent_sees_its_own_runs(told: Told) -> None:
    told.began(RUN, "mine", "me")
    told.began(RUN, "theirs", "them")
    assert [run["id"] for run in told.runs("me")] == ["mine"]
    assert told.activity.find("theirs", "me") is None
    assert told.activity.find("mine", "me") is not None


@pytest.mark.parametrize("cut", [1, 8, len(SECRET) - 1])
def test_a_secret_truncated_at_the_end_of_a_command_is_not_shown(told: Told, cut: int) -> None:
    told.began(RUN, "r", detail="#" * (MAX_COMMAND_CHARS - cut) + SECRET)
    assert told.runs()[0]["command"] == "#" * (MAX_COMMAND_CHARS - cut) + REDACTED


def test_names_of_calls_may_be_any_text(told: Told) -> None:
    told.began(SECRET, "a")
    told.began("x" * 10_000, "b")
    assert [len(run["name"]) for run in told.runs()] == [200, len("[REDACTED]")]


def test_watchers_receive_the_events_of_their_agent(told: Told) -> None:
    async def watch() -> list[tuple[str, str]]:
        with told.activity.watch("me") as events:
            told.whole_run("theirs", "them")
            told.whole_run("mine", "me")
            return [(event["event"], event["runID"]) for event in await anext(events)]

    assert asyncio.run(watch()) == [("called", "mine"), ("completed", "mine")]


def test_slow_watchers_receive_the_number_of_missed_events(told: Told) -> None:
    async def watch() -> tuple[list[JSON], list[JSON]]:
        with told.activity.watch() as events:
            for number in range(MAX_WAITING_EVENTS):
                told.whole_run(f"r{number}")
            late = await anext(events)
            told.whole_run("again")
            return late, await anext(events)

    late, then = asyncio.run(watch())
    assert len(late) == MAX_WAITING_EVENTS + 1
    assert late[-1] == {"event": "missed", "count": MAX_WAITING_EVENTS}
    assert [event["runID"] for event in then] == ["again", "again"]


def test_removed_watchers_receive_nothing(told: Told) -> None:
    async def watch() -> None:
        with told.activity.watch():
            pass

    asyncio.run(watch())
    told.whole_run("r")
    assert told.activity._watchers == []
