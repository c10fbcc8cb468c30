"""Recorded calls as people see them: those that wait for them, and those that a run has made.

Arguments, code and results are hostile text. Secrets are redacted, invisible characters are
escaped, and where a value is not shown in full, the size of the rest is stated.
"""

import json
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

from onetool.admin.model import ApiModel, Time
from onetool.errors import ToolError, ToolNotFound
from onetool.state.run_records import OPEN, CallState, DurableCall, RunRecord
from onetool.state.run_store import RunTables
from onetool.util.invisible import escape_invisible
from onetool.util.redact import Redactor
from onetool.util.text import pluralize
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

MAX_VALUE_CHARS = 4_000  # of one string
MAX_SHOWN_CHARS = 20_000  # of all arguments of a call, or of its result
MIN_SHOWN_CHARS = 500  # of each argument
MAX_ARGUMENTS = 100
MAX_RUNS = 1_000
MIN_PREFIX_CHARS = 4
ID_CHARS = 34
LINE_BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})
WAITING_STATES = (CallState.PENDING, CallState.UNKNOWN)


class ApprovalCall(ApiModel):
    number: int
    tool: str
    effects: list[str]
    arguments: JsonObject
    reason: str
    state: Literal["pending", "unknown"]


class Approval(ApiModel):
    """A run whose calls wait for a person.

    It is `halted` if a person must say whether a call happened.
    """

    run: str
    agent: str
    actor: str
    client: str
    asked: Time
    expires: Time | None
    state: Literal["waiting", "halted"]
    calls: list[ApprovalCall]


class RecordedCall(ApprovalCall):
    state: Annotated[str, WithJsonSchema({"type": "string", "enum": [*CallState]})]  # type: ignore[assignment]
    by: str
    result: Any
    at: Time
    ended: Time | None


def list_waiting(store: RunTables, redact: Redactor) -> list[Approval]:
    """Return the runs that wait for a person, oldest first."""
    approvals = (
        describe_waiting(store, run, redact) for run in store.list_runs(OPEN, limit=MAX_RUNS)
    )
    return sorted(
        (approval for approval in approvals if approval is not None),
        key=lambda approval: approval.asked,
    )


def describe_waiting(store: RunTables, run: RunRecord, redact: Redactor) -> Approval | None:
    """Return the calls of a run that wait for a person; None if none does."""
    calls = store.list_calls(run.id, WAITING_STATES)
    if not calls:
        return None
    return Approval(
        run=run.id,
        agent=run.agent,
        actor=show_line(run.actor, redact),
        client=show_line(run.client, redact),
        expires=_format_time(run.expires),
        asked=in_utc(min(call.at for call in calls), "seconds"),
        state="halted" if any(call.state is CallState.UNKNOWN for call in calls) else "waiting",
        calls=[ApprovalCall(**_show_call(call, redact)) for call in calls],
    )


def list_recorded(store: RunTables, run_id: str, redact: Redactor) -> list[RecordedCall]:
    """Return the calls of a run that the journal has."""
    return [_describe_call(call, redact) for call in store.list_calls(run_id)]


def find_run(store: RunTables, run_id: str) -> RunRecord:
    """Return the run with this id, or with an id that begins so."""
    if (run := store.get_run(run_id)) is not None:
        return run
    runs = store.list_runs(limit=MAX_RUNS) if MIN_PREFIX_CHARS <= len(run_id) < ID_CHARS else []
    matches = [run for run in runs if run.id.startswith(run_id)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        problem = f"{pluralize(len(matches), 'run')} begin with it, such as {matches[0].id}"
        raise ToolError(f"{run_id!r} is ambiguous: {problem}")
    raise make_not_found(run_id)


def make_not_found(run_id: str) -> ToolNotFound:
    return ToolNotFound(
        f"no run {run_id!r}, or it has expired", hint="list runs with `onetool runs`"
    )


def _show_call(call: DurableCall, redact: Redactor) -> JsonObject:
    return {
        "number": call.number,
        "tool": show_line(call.tool, redact),
        "effects": list(call.effects),
        "arguments": _show_arguments(call, redact),
        "reason": show_line(call.reason, redact),
        "state": str(call.state),
    }


def _describe_call(call: DurableCall, redact: Redactor) -> RecordedCall:
    result = None
    if call.result is not None:
        result = _Shortener(MAX_SHOWN_CHARS).shorten(redact.redact_data(json.loads(call.result)))
    return RecordedCall(
        **_show_call(call, redact),
        by=show_line(call.by, redact),
        result=result,
        at=in_utc(call.at, "seconds"),
        ended=_format_time(call.ended),
    )


def _show_arguments(call: DurableCall, redact: Redactor) -> JsonObject:
    """Return the arguments. Each has its share of the characters, so that none can hide the others."""
    arguments = json.loads(call.arguments)
    limit = max(MIN_SHOWN_CHARS, MAX_SHOWN_CHARS // max(1, len(arguments)))
    shown: JsonObject = {}
    for name, value in list(arguments.items())[:MAX_ARGUMENTS]:
        shown[_make_unique(show_line(name, redact), shown)] = _Shortener(limit).shorten(
            redact.redact_data(value)
        )
    hidden = len(arguments) - MAX_ARGUMENTS
    return (
        {**shown, "…": f"({pluralize(hidden, 'more argument')} not shown)"} if hidden > 0 else shown
    )


def _make_unique(name: str, others: Collection[str]) -> str:
    """Return the name, with a number if another one looks the same and would hide it."""
    number = 1
    unique = name
    while unique in others:
        number += 1
        unique = f"{name} ({number})"
    return unique


def show_line(text: str, redact: Redactor) -> str:
    """Return text on one line, so that it cannot look like other lines."""
    return _cut(escape_invisible(redact(text)).translate(LINE_BREAKS), MIN_SHOWN_CHARS)


def _format_time(seconds: float) -> str | None:
    """Return the time, or None for 0, which means never."""
    return in_utc(seconds, "seconds") if seconds else None


class _Shortener:
    """Shortens data until a number of characters is used up, and states what it leaves out."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def shorten(self, value: Any) -> Any:
        if isinstance(value, str):
            text = _cut(escape_invisible(value), max(0, min(MAX_VALUE_CHARS, self._left)))
            self._left -= len(text)
            return text
        if isinstance(value, dict):
            shown: JsonObject = {}
            for name, item in self._shorten_items(value):
                shown[_make_unique(name, shown)] = item
            return shown
        if isinstance(value, list):
            items = list(self._shorten_all(value))
            hidden = len(value) - len(items)
            return [*items, f"… ({pluralize(hidden, 'more item')} not shown)"] if hidden else items
        self._left -= len(repr(value))
        return value

    def _shorten_all(self, items: list[Any]) -> Iterator[Any]:
        for item in items:
            if self._left <= 0:
                return
            self._left -= 1
            yield self.shorten(item)

    def _shorten_items(self, items: JsonObject) -> Iterator[tuple[str, Any]]:
        for index, (key, item) in enumerate(items.items()):
            if self._left <= 0:
                yield (
                    "…",
                    f"({pluralize(len(items) - index, 'more entry', 'more entries')} not shown)",
                )
                return
            yield self.shorten(key), self.shorten(item)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters not shown)"
