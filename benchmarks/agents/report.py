"""Sums, gates and the table of `benchmarks/agents/run.py`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.agents.measurements import Measurement

from onetool.util.text import pluralize

SMALL_CATALOG = 20  # tools: from here on, code may not need more tokens
MAX_EXTRA_TOKENS = 500  # of code, below
MAX_ROWS = 10
HEAD = (
    "tools",
    "arm",
    "rounds",
    "input tokens",
    "with caching",
    "bytes",
    "seconds",
    "state",
    "calls",
)


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise about code mode, and the tasks that break it."""

    name: str
    violations: list[str]

    @property
    def is_kept(self) -> bool:
        return not self.violations


def check_gates(found: Sequence[Measurement]) -> list[Promise]:
    pairs = list(pair_with_direct(found, "code"))
    small = [(ours, direct) for ours, direct in pairs if ours.tools < SMALL_CATALOG]
    large = [(ours, direct) for ours, direct in pairs if ours.tools >= SMALL_CATALOG]
    return [
        Promise(
            "the final state is the expected one in all arms",
            [_name(each) for each in found if not each.state],
        ),
        Promise(
            "the tools receive exactly the expected calls",
            [_name(each) for each in found if not each.calls],
        ),
        Promise(
            "code needs no more rounds than direct on any task",
            [
                f"{_name(o)}: {o.rounds} rounds, direct {d.rounds}"
                for o, d in pairs
                if o.rounds > d.rounds
            ],
        ),
        Promise(
            f"code needs no more tokens than direct on any task, from {SMALL_CATALOG} tools on",
            [
                f"{_name(o)}: {o.tokens} tokens, direct {d.tokens}"
                for o, d in large
                if o.tokens > d.tokens
            ],
        ),
        Promise(
            f"code needs at most {MAX_EXTRA_TOKENS} more tokens than direct on any task, below",
            [
                f"{_name(o)}: {o.tokens} tokens, direct {d.tokens}"
                for o, d in small
                if o.tokens > d.tokens + MAX_EXTRA_TOKENS
            ],
        ),
    ]


def pair_with_direct(
    found: Iterable[Measurement], arm: str
) -> Iterable[tuple[Measurement, Measurement]]:
    measured = {(each.world, each.tools, each.task, each.arm): each for each in found}
    for (world, tools, task, name), each in measured.items():
        if name == arm:
            yield each, measured[world, tools, task, "direct"]


def _name(each: Measurement) -> str:
    return f"{each.task} with {each.tools} tools, {each.arm}"


def summarize(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Return the sums over the tasks for each world, catalog and arm."""
    groups: dict[tuple[str, int, str], list[Measurement]] = {}
    for each in found:
        groups.setdefault((each.world, each.tools, each.arm), []).append(each)
    return [
        {
            "world": world,
            "tools": tools,
            "arm": arm,
            "tasks": len(group),
            "rounds": sum(each.rounds for each in group),
            "input_tokens": sum(each.tokens for each in group),
            "input_tokens_cached": round(sum(each.cached_tokens for each in group)),
            "bytes": sum(each.bytes for each in group),
            "seconds": round(sum(each.seconds for each in group), 3),
            "state_equal": sum(each.state for each in group),
            "calls_equal": sum(each.calls for each in group),
        }
        for (world, tools, arm), group in groups.items()
    ]


def list_direct_wins(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Return the tasks on which direct calls need fewer rounds or fewer tokens than code, worst
    first.
    """
    wins = [
        {
            "arm": ours.arm,
            "tools": ours.tools,
            "task": ours.task,
            "rounds": ours.rounds - direct.rounds,
            "input_tokens": ours.tokens - direct.tokens,
            "input_tokens_cached": round(ours.cached_tokens - direct.cached_tokens),
        }
        for arm in ("code", "code-cold")
        for ours, direct in pair_with_direct(found, arm)
        if ours.rounds > direct.rounds
        or ours.tokens > direct.tokens
        or ours.cached_tokens > direct.cached_tokens
    ]
    return sorted(
        wins, key=lambda win: (win["arm"], win["tools"], -win["input_tokens"], win["task"])
    )


def to_json(found: Sequence[Measurement]) -> dict[str, Any]:
    gates = check_gates(found)
    arms: dict[str, list[dict[str, Any]]] = {}
    for row in summarize(found):
        arms.setdefault(row["arm"], []).append(
            {name: value for name, value in row.items() if name != "arm"}
        )
    return {
        "arms": arms,
        "gates": [
            {"gate": gate.name, "kept": gate.is_kept, "violations": gate.violations}
            for gate in gates
        ],
        "direct_wins": list_direct_wins(found),
        "tasks": len({(each.world, each.task) for each in found}),
    }


def describe(found: Sequence[Measurement], format_table: Any) -> list[str]:
    """Return the lines of the report; `format_table` aligns rows."""
    lines: list[str] = []
    rows = summarize(found)
    for world in dict.fromkeys(each.world for each in found):
        ours = {each.task: each for each in found if each.world == world}
        one_by_one = sum(each.one_by_one for each in ours.values())
        lines += [
            (
                f"{world}: {pluralize(len(ours), 'task')}; direct, one call per round:"
                f" {one_by_one:,} rounds"
            ),
            "",
        ]
        cells = [_format_row(row) for row in rows if row["world"] == world]
        lines += [*format_table([HEAD, *cells], right=(0, 2, 3, 4, 5, 6, 7, 8)), ""]
    return [
        *lines,
        *_describe_wins(list_direct_wins(found)),
        "",
        *_describe_gates(check_gates(found)),
    ]


def _format_row(row: dict[str, Any]) -> tuple[str, ...]:
    counts = (
        f"{row[name]:,}" for name in ("rounds", "input_tokens", "input_tokens_cached", "bytes")
    )
    shares = (f"{row[name] / row['tasks']:.0%}" for name in ("state_equal", "calls_equal"))
    return (str(row["tools"]), row["arm"], *counts, f"{row['seconds']:.1f}", *shares)


def _describe_wins(wins: list[dict[str, Any]]) -> list[str]:
    if not wins:
        return ["direct wins: no task"]
    lines = ["direct wins (more rounds, tokens or tokens with caching than direct):"]
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for win in wins:
        groups.setdefault((win["arm"], win["tools"]), []).append(win)
    for (arm, tools), group in groups.items():
        lines.append(f"  {arm}, {tools} tools: {pluralize(len(group), 'task')}")
        lines += [
            f"    {win['task']}: {win['rounds']:+} rounds, {win['input_tokens']:+,} tokens, "
            f"{win['input_tokens_cached']:+,} with caching"
            for win in group[:MAX_ROWS]
        ]
        if len(group) > MAX_ROWS:
            lines.append(f"    and {len(group) - MAX_ROWS} more; --json lists all")
    return lines


def _describe_gates(gates: list[Promise]) -> list[str]:
    lines = []
    for gate in gates:
        lines.append(f"{'ok  ' if gate.is_kept else 'FAIL'}  {gate.name}")
        lines += [f"      {violation}" for violation in gate.violations[:MAX_ROWS]]
        if len(gate.violations) > MAX_ROWS:
            lines.append(f"      and {len(gate.violations) - MAX_ROWS} more")
    return lines
