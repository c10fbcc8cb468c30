"""The question to a person about calls that wait, and its answer.

Everything in a call is hostile text.
"""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from glob import escape
from typing import NamedTuple

from onetool.runs.grants import MAX_COUNT, MAX_VALUE_CHARS, make_grants, show_value
from onetool.state.run_records import CallState, Decision, DurableCall, Grant
from onetool.util.invisible import escape_invisible
from onetool.util.text import pluralize
from onetool_child.json_types import JsonMapping, JsonObject

MAX_QUESTION_CHARS = 20_000
MAX_ARGUMENTS = 50  # that a person is shown; a call with more is rejected
MAX_EXAMPLES = 3  # values of an argument
MAX_EXAMPLE_CHARS = 60
APPROVE = "approve"
APPROVE_SIMILAR = "approve_similar"
REJECT = "reject"
STOP = "stop"
COUNT = "count"
VARYING = "varying"
MEANING = (
    f"{APPROVE}: make these calls. {APPROVE_SIMILAR}: also allow further calls with the same"
    f" arguments, in this run. {REJECT}: the code gets an error. {STOP}: end the run."
)
# the decision is required: some clients accept empty forms by themselves
APPROVAL_FORM: JsonObject = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Decision",
            "description": MEANING,
            "enum": [APPROVE, APPROVE_SIMILAR, REJECT, STOP],
        },
        "reason": {
            "type": "string",
            "title": "Reason",
            "description": "Reason, if you reject the calls",
        },
        COUNT: {
            "type": "integer",
            "title": "Further calls",
            "description": f"With {APPROVE_SIMILAR}: how many of each further call are allowed",
            "minimum": 1,
            "maximum": MAX_COUNT,
            "default": 1,
        },
        VARYING: {
            "type": "string",
            "title": "Arguments that may differ",
            "description": (
                f"With {APPROVE_SIMILAR}: names of arguments that may have any value, separated by"
                " commas; all others stay the same."
            ),
        },
    },
    "required": ["decision"],
}


class Approver(NamedTuple):
    """A person whose answers count. `ask` shows a question; None means that the person declined."""

    ask: Callable[["Question"], Awaitable[JsonMapping | None]]
    name: str  # for the records
    transport: str  # `stdio`, `http` or `cli`
    via: str = "client"  # one of the places of `approvals.via`


class Question:
    """One question about the calls of a run that wait now: as many as can be shown.

    The others are asked about next.

    Create it in a thread: arguments may have megabytes.
    """

    def __init__(self, run_id: str, agent: str, calls: Sequence[DurableCall]) -> None:
        self.run_id = run_id
        self._agent = agent
        self._texts: list[str] = []
        for index, call in enumerate(calls, 1):
            text = describe_call(index, call)
            if self._texts and sum(map(len, self._texts)) + len(text) > MAX_QUESTION_CHARS:
                break
            self._texts.append(text)
        self.calls = tuple(calls[: len(self._texts)])
        self._hidden = len(calls) - len(self.calls)
        self.form = self._make_form()

    @property
    def text(self) -> str:
        """The question as plain text."""
        head = (
            f"Approve {pluralize(len(self.calls), 'call')} of agent {self._agent}"
            f" ({summarize(self.calls)})?"
        )
        lines = [escape_invisible(head), *self._texts]
        if self._hidden:
            lines.append(f"You will be asked about {pluralize(self._hidden, 'more call')} next.")
        return "\n".join(lines)

    @property
    def state(self) -> str:
        """The identity of the question, from which it can be read again after a restart."""
        calls = {call.number: identify(call) for call in self.calls}
        return json.dumps({"run": self.run_id, "calls": calls})

    def _make_form(self) -> JsonObject:
        """Return the JSON Schema of the answer, with examples of what a person may allow to differ."""
        properties = APPROVAL_FORM["properties"]
        description = (
            f"{properties[VARYING]['description']} In these calls: {self._list_examples()}"
        )
        varying = {**properties[VARYING], "description": escape_invisible(description)}
        return {**APPROVAL_FORM, "properties": {**properties, VARYING: varying}}

    def _list_examples(self) -> str:
        """Return the values of each argument in these calls, for a person who chooses which may
        differ.
        """
        values: dict[str, dict[str, None]] = {}
        for call in self.calls:
            for name, value in json.loads(call.arguments).items():
                values.setdefault(show_name(name), {})[show_value(value, MAX_EXAMPLE_CHARS)] = None
        return "; ".join(
            f"{name}: {', '.join(list(shown)[:MAX_EXAMPLES])}" for name, shown in values.items()
        )

    def read(self, answer: JsonMapping | None, by: str) -> Decision:
        """Return the decision in an answer; None means that the person declined."""
        numbers = tuple(call.number for call in self.calls)
        choice = REJECT if answer is None else answer.get("decision")
        reason = str((answer or {}).get("reason") or "")
        if choice == APPROVE_SIMILAR:
            return Decision(True, by, numbers, reason, self._make_grants(answer or {}))
        if choice == APPROVE:
            return Decision(True, by, numbers, reason)
        return Decision(False, by, numbers, reason, stops_run=choice == STOP)

    def _make_grants(self, answer: JsonMapping) -> tuple[Grant, ...]:
        names = [name.strip() for name in str(answer.get(VARYING) or "").split(",")]
        varying = [name for name in names if name]
        grants: list[Grant] = []
        for tool in dict.fromkeys(call.tool for call in self.calls):
            grants += make_grants(
                self.calls, escape(tool), varying=varying, count=answer.get(COUNT) or 1
            )
        return tuple(grants)


def identify(call: DurableCall) -> str:
    """Return what a person was asked about: the call with its arguments, and the definition of its
    tool.
    """
    return f"{call.key} {call.definition}"


def summarize(calls: Iterable[DurableCall]) -> str:
    """Return the tools with their counts, such as `gh.create_issue ×3, gh.close_issue`."""  # noqa: RUF002
    counts = Counter(call.tool for call in calls)
    return ", ".join(tool if count == 1 else f"{tool} ×{count}" for tool, count in counts.items())  # noqa: RUF001


def describe_pause(run_id: str, calls: Iterable[DurableCall]) -> str:
    """Return the answer to the model for a run that waits. It never says what a person has to type."""
    waiting = list(calls)
    verb = "to approve"
    end = ""
    if any(call.state is CallState.UNKNOWN for call in waiting):
        verb = "to say whether"
        end = " happened"
    calls_text = f"{pluralize(len(waiting), 'call')} ({summarize(waiting)}){end}"
    return f"paused: run {run_id} waits for a person {verb} {calls_text}. {continue_later(run_id)}"


def continue_later(run_id: str) -> str:
    return f'Continue with other work, then call ot.run_result("{run_id}").'


def describe_call(index: int, call: DurableCall) -> str:
    """Return the call with its arguments, one per line."""
    lines = [
        f"{index}. {call.tool} ({', '.join(call.effects)})",
        *([f"   {call.reason}"] if call.reason else []),
    ]
    arguments = json.loads(call.arguments)
    limit = min(MAX_VALUE_CHARS, MAX_QUESTION_CHARS // max(1, len(arguments)))
    lines += [
        f"   {show_name(name)}: {show_value(value, limit)}" for name, value in arguments.items()
    ]
    return "\n".join(map(escape_invisible, lines))


def describe_difference(before: JsonMapping, now: JsonMapping) -> str:
    """Return which arguments of a call have changed, with their earlier values."""
    changed = [
        name
        for name in (*before, *(name for name in now if name not in before))
        if before.get(name) != now.get(name)
    ]
    return ", ".join(
        f"{name} was {show_value(before[name])}" if name in before else f"{name} is new"
        for name in changed
    )


def show_name(name: str) -> str:
    """Return the name of an argument, in quotes if it could look like other lines of the question."""
    return name if name.isidentifier() else show_value(name)
