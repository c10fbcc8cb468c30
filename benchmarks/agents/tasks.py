"""Tasks with known calls, and how a player without a model groups these calls.

A call depends on an answer if one of its values is in the answer and in nothing that came before.
Everything else is assumed to be known to the model, which favors direct calls: calls that do not
depend on each other are one parallel group, even if they change the same state. Code can pass a
value on by itself if the value is a whole field of the answer (`a1["id"]`). A value that is a part
of a text has to be read first, so the run ends before that call.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MIN_VALUE_CHARS = 3  # shorter values are in many answers by chance


@dataclass(frozen=True, slots=True)
class GoldCall:
    """An expected call, and the answer that its tool gives to it."""

    tool: str
    arguments: Mapping[str, Any]
    answer: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the user, and the calls that it leads to."""

    text: str
    calls: tuple[GoldCall, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A conversation with known calls. `siblings` are the tools of the servers that it uses."""

    name: str
    turns: tuple[Turn, ...]
    siblings: tuple[str, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Task":
        turns = tuple(
            Turn(each["text"], tuple(GoldCall(**call) for call in each["calls"]))
            for each in data["turns"]
        )
        return cls(data["id"], turns, tuple(data["siblings"]))

    @property
    def calls(self) -> list[GoldCall]:
        return [call for turn in self.turns for call in turn.calls]

    @property
    def tools(self) -> list[str]:
        """Return the tools that it calls, in the order of their first call."""
        return list(dict.fromkeys(call.tool for call in self.calls))


@dataclass(slots=True)
class PlannedRun:
    """Calls that one script makes.

    `references` has an expression for each value that comes from an earlier call.

    `read` are the values that the model has to see in earlier answers before it can write the
    script.
    """

    calls: list[GoldCall] = field(default_factory=list)
    references: list[dict[Any, str]] = field(default_factory=list)
    read: list[str] = field(default_factory=list)

    def write(self, pack: str) -> str:
        """Return the script: one line per call, then the answers of all."""
        if len(self.calls) == 1:
            return write_call(pack, self.calls[0])
        pairs = zip(self.calls, self.references, strict=True)
        lines = [
            f"a{number} = {write_call(pack, call, known)}"
            for number, (call, known) in enumerate(pairs, 1)
        ]
        return "\n".join(
            [*lines, f"[{', '.join(f'a{number}' for number in range(1, len(lines) + 1))}]"]
        )


def write_call(pack: str, call: GoldCall, references: Mapping[Any, str] | None = None) -> str:
    arguments = ", ".join(
        f"{name}={_write(value, references or {})}" for name, value in call.arguments.items()
    )
    return f"{pack}.{call.tool}({arguments})"


def _write(value: Any, references: Mapping[Any, str]) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{key!r}: {_write(each, references)}" for key, each in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(_write(each, references) for each in value) + "]"
    return references.get((type(value), value)) or repr(value)


def group_calls(task: Task) -> list[list[list[GoldCall]]]:
    """Return the parallel groups of each turn."""
    grouped, known = [], ""
    for turn in task.turns:
        known += f"\n{turn.text.lower()}"
        groups: list[list[GoldCall]] = []
        pending = ""
        for call in turn.calls:
            if not groups or any(
                value in pending and value not in known for value in _list_texts(call)
            ):
                groups.append([])
                known, pending = known + pending, ""
            groups[-1].append(call)
            pending += f"\n{call.answer.lower()}"
            known += f"\n{json.dumps(call.arguments).lower()}"
        known += pending
        grouped.append(groups)
    return grouped


def plan_runs(task: Task) -> list[list[PlannedRun]]:
    """Return the runs of each turn: one, and one more wherever the model has to read an answer
    first.
    """
    planned, known = [], ""
    for turn in task.turns:
        visible = known  # answers of earlier turns
        known += f"\n{turn.text.lower()}"
        runs: list[PlannedRun] = []
        for call in turn.calls:
            references = _find_references(call, runs[-1].calls, known) if runs else {}
            if references is None or not runs:
                known += "".join(
                    f"\n{each.answer.lower()}" for each in (runs[-1].calls if runs else [])
                )
                visible = known
                runs.append(PlannedRun())
                references = {}
            runs[-1].calls.append(call)
            runs[-1].references.append(references)
            runs[-1].read += [text for text in _list_texts(call) if text in visible]
            known += f"\n{json.dumps(call.arguments).lower()}"
        known += "".join(f"\n{each.answer.lower()}" for each in (runs[-1].calls if runs else []))
        planned.append(runs)
    return planned


def _find_references(
    call: GoldCall, earlier: Sequence[GoldCall], known: str
) -> dict[Any, str] | None:
    """Return expressions for the values that earlier calls of the run return, or None if one has to
    be read.
    """
    found: dict[Any, str] = {}
    for value in _list_values(call.arguments):
        text = str(value).lower()
        if text in known or not any(text in each.answer.lower() for each in earlier):
            continue
        fields = (
            (f"a{number}", parse_answer(each.answer)) for number, each in enumerate(earlier, 1)
        )
        paths = [
            path
            for name, answer in fields
            for path, leaf in _list_fields(answer, name)
            if _is_same(leaf, value)
        ]
        if not paths:
            return None
        found[type(value), value] = paths[-1]
    return found


def _is_same(leaf: Any, value: Any) -> bool:
    return type(leaf) is type(value) and bool(leaf == value)


def parse_answer(text: str) -> Any:
    """Return the value that a run gets for this text: objects and lists of JSON are parsed."""
    if text.lstrip()[:1] not in {"{", "["}:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _list_texts(call: GoldCall) -> list[str]:
    return [str(value).lower() for value in _list_values(call.arguments)]


def _list_values(value: Any) -> list[Any]:
    """Return the strings and numbers in a value that are long enough to be distinctive."""
    if isinstance(value, Mapping):
        return [leaf for each in value.values() for leaf in _list_values(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in _list_values(each)]
    is_value = isinstance(value, str | int | float) and not isinstance(value, bool)
    return [value] if is_value and len(str(value)) >= MIN_VALUE_CHARS else []


def _list_fields(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _list_fields(each, f"{path}[{key!r}]")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _list_fields(each, f"{path}[{number}]")
    else:
        yield path, value
