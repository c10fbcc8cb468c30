"""Changes of a text by place, so that everything else in it stays as it is, byte for byte."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Edit:
    """`text` in the place of what stands from `start` to `end`; an insertion where they are the same."""

    start: int
    end: int
    text: str


def insertion(at: int, text: str) -> Edit:
    return Edit(at, at, text)


def applied(text: str, edits: Iterable[Edit]) -> str:
    parts, at = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


def line_break_of(text: str) -> str:
    """The line break that the text uses; where it has none, the one that every system understands."""
    first = text.find("\n")
    if first < 0:
        return "\r" if "\r" in text else "\n"
    return "\r\n" if text[first - 1 : first] == "\r" else "\n"


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def indent_of(text: str, position: int) -> str:
    """The white space at the beginning of the line of this position."""
    start = max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1
    line = text[start:position]
    return line[: len(line) - len(line.lstrip(" \t"))]


def is_first_in_line(text: str, position: int) -> bool:
    start = max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1
    return start > 0 and not text[start:position].strip(" \t")


def with_value(data: Any, path: Sequence[str], value: Any) -> Any:
    """Return the data with this value at the path; what is no mapping on the way becomes one."""
    if not path:
        return value
    around = data if isinstance(data, dict) else {}
    return {**around, path[0]: with_value(around.get(path[0]), path[1:], value)}
