"""The question to a person about calls that wait, and its answer. Everything in a call is hostile text."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onetool.runs.grants import describe_grant, show_value, suggest_grants
from onetool.runs.model import Decision, DurableCall
from onetool.util.invisible import escape_invisible
from onetool.util.text import pluralize

MAX_QUESTION_CHARS = 20_000
APPROVE, APPROVE_SIMILAR, REJECT, STOP = "approve", "approve_similar", "reject", "stop"
APPROVAL_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "title": "Decision", "enum": [APPROVE, APPROVE_SIMILAR, REJECT, STOP]},
        "reason": {"type": "string", "title": "Reason", "description": "Reason, if you reject the calls"},
    },
    "required": ["decision"],
}


class Question:
    """One question about all calls of a run that wait now."""

    def __init__(
        self, run_id: str, agent: str, calls: Sequence[DurableCall], earlier: Iterable[DurableCall] = ()
    ) -> None:
        self.run_id, self._agent, self.calls, self._earlier = run_id, agent, tuple(calls), tuple(earlier)
        self.grants = suggest_grants(self.calls, self._earlier)

    @property
    def text(self) -> str:
        """The question as plain text."""
        head = f"Approve {pluralize(len(self.calls), 'call')} of agent {self._agent} ({summarize(self.calls)})?"
        lines, size = [escape_invisible(head)], 0
        for index, call in enumerate(self.calls, 1):
            text = describe_call(index, call)
            size += len(text)
            if size > MAX_QUESTION_CHARS and index > 1:
                hidden = self.calls[index - 1 :]
                lines.append(f"Not shown: {pluralize(len(hidden), 'more call')} ({summarize(hidden)}).")
                break
            lines.append(text)
        return "\n".join(lines)

    @property
    def state(self) -> str:
        """The identity of the question, from which it can be read again after a restart."""
        calls, earlier = ({call.number: identify(call) for call in each} for each in (self.calls, self._earlier))
        return json.dumps({"run": self.run_id, "calls": calls, "earlier": earlier})

    @property
    def form(self) -> dict[str, Any]:
        """The JSON Schema of the answer. The decision is required: some clients accept empty forms by themselves."""
        similar = "; ".join(map(describe_grant, self.grants))
        meaning = (
            f"{APPROVE}: make these calls. {APPROVE_SIMILAR}: also allow, in this run, {similar}. "
            f"{REJECT}: the code gets an error. {STOP}: end the run."
        )
        properties = APPROVAL_FORM["properties"]
        decision = {**properties["decision"], "description": escape_invisible(meaning)}
        return {**APPROVAL_FORM, "properties": {**properties, "decision": decision}}

    def read(self, answer: Mapping[str, Any] | None, by: str) -> Decision:
        """Return the decision in an answer; None means that the person declined."""
        numbers = tuple(call.number for call in self.calls)
        choice = REJECT if answer is None else answer.get("decision")
        reason = str((answer or {}).get("reason") or "")
        if choice in {APPROVE, APPROVE_SIMILAR}:
            return Decision(True, by, numbers, reason, self.grants if choice == APPROVE_SIMILAR else ())
        return Decision(False, by, numbers, reason, stops_run=choice == STOP)


def identify(call: DurableCall) -> str:
    """Return what a person was asked about: the call with its arguments, and the definition of its tool."""
    return f"{call.key} {call.definition}"


def summarize(calls: Iterable[DurableCall]) -> str:
    """Return the tools with their counts, such as `gh.create_issue ×3, gh.close_issue`."""  # noqa: RUF002
    counts = Counter(call.tool for call in calls)
    return ", ".join(tool if count == 1 else f"{tool} ×{count}" for tool, count in counts.items())  # noqa: RUF001


def describe_call(index: int, call: DurableCall) -> str:
    """Return the call with its arguments, one per line."""
    lines = [f"{index}. {call.tool} ({', '.join(call.effects)})", *([f"   {call.reason}"] if call.reason else [])]
    arguments = json.loads(call.arguments)
    lines += [f"   {show_name(name)}: {show_value(value)}" for name, value in arguments.items()]
    return "\n".join(map(escape_invisible, lines))


def describe_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return which arguments of a call have changed, with their earlier values."""
    changed = [
        name for name in (*before, *(name for name in now if name not in before)) if before.get(name) != now.get(name)
    ]
    return ", ".join(
        f"{name} was {show_value(before[name])}" if name in before else f"{name} is new" for name in changed
    )


def show_name(name: str) -> str:
    """Return the name of an argument, in quotes if it could look like other lines of the question."""
    return name if name.isidentifier() else show_value(name)
