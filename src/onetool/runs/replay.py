"""Replay of a recorded run: its code runs again in a cell, and its calls are answered from the journal.

No tool is called. The code sees the same random numbers and times as before. A call is matched by the tool and the
arguments that the code passes; the recorded arguments also have defaults and values from settings.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from onetool.core.registry import python_name
from onetool.core.tool import Result
from onetool.errors import ToolError
from onetool.runs.model import DurableCall, DurableRunRecord
from onetool.runs.recorded_calls import SETTLED, read_result
from onetool_child.data import as_data
from onetool_child.errors import TIMEOUT_HINT
from onetool_child.json_types import JsonMapping, JsonObject


@dataclass(slots=True)
class ReplayGate:
    """The recorded calls that the code has not repeated yet."""

    is_replayable: ClassVar[bool] = True
    labels: ClassVar[None] = None
    seed: str
    started: float
    calls: list[DurableCall] = field(default_factory=list)

    @property
    def cell_params(self) -> JsonObject:
        return {"replay": {"seed": self.seed, "clock": self.started, "until": len(self.calls)}}

    def answer(self, name: str, positional: Sequence[Any], keywords: JsonMapping) -> Result:
        """Return the recorded result of this call."""
        for call in self.calls:
            if python_name(call.tool) == python_name(name) and _matches(
                json.loads(call.arguments), positional, keywords
            ):
                self.calls.remove(call)
                return read_result(call)
        return Result(ok=False, error=ToolError(f"the replayed code called {name}, and no recorded call matches it"))

    async def decide(self, *_: Any) -> None:
        """Reject calls of tools: in a replay, no tool runs."""
        raise ToolError("a replay calls no tools")


def list_answered(calls: Iterable[DurableCall]) -> list[DurableCall]:
    """Return the calls whose result or error the code has received."""
    return [call for call in calls if call.state in SETTLED or call.result is not None]


def check_replayable(run: DurableRunRecord, calls: Iterable[DurableCall]) -> None:
    """Raise if a run cannot be replayed from its journal."""
    reason = ""
    if run.kind != "run":
        reason = "it is a single call"
    elif run.state not in {"done", "failed"} or run.outcome is None:
        reason = f"it is {run.state}" if run.state not in {"done", "failed"} else "its results were not recorded"
    elif not run.is_replayable or any(call.result is None for call in calls if call.state in SETTLED):
        reason = "its results were not recorded"
    else:
        outcome = json.loads(run.outcome)
        if outcome["is_cut"]:
            reason = "its value is too large"
        elif outcome["error"] and outcome["error"].get("hint") == TIMEOUT_HINT:
            reason = "it timed out"
    if reason:
        hint = "set `approvals: {record: true}` in ~/.onetool/onetool.yaml, then run the code again"
        raise ToolError(f"cannot replay {run.id}: {reason}", hint=hint if "recorded" in reason else "")


def _matches(recorded: JsonMapping, positional: Sequence[Any], keywords: JsonMapping) -> bool:
    """Return whether the arguments of a call are among the recorded ones. Names may be abbreviated."""
    left = dict(recorded)
    for name, value in keywords.items():
        spelled = name if name in left else next((each for each in left if each.startswith(name)), None)
        if spelled is None or not _is_same(left.pop(spelled), value):
            return False
    for value in positional:
        found = next((name for name, each in left.items() if _is_same(each, value)), None)
        if found is None:
            return False
        del left[found]
    return True


def _is_same(recorded: Any, value: Any) -> bool:
    """Return whether a value is the recorded one, which validation may have converted to a number."""
    return bool(recorded == as_data(value)) or str(recorded) == str(value)
