"""Changes of a text by place, so that everything else in it stays as it is, byte for byte."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onetool.errors import ConfigError


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


def proven(edited: str, read: Callable[[str], Any], wanted: Any, refusal: str) -> str:
    """Return the edited text if it reads as it is to read, or raise an error with this message."""
    try:
        if read(edited) == wanted:
            return edited
    except ConfigError:
        pass
    raise ConfigError(refusal)


def line_break_of(text: str) -> str:
    """The line break that the text uses; where it has none, the one that every system understands."""
    first = text.find("\n")
    if first < 0:
        return "\r" if "\r" in text else "\n"
    return "\r\n" if text[first - 1 : first] == "\r" else "\n"


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def line_start(text: str, position: int) -> int:
    return max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1


def value_at(data: Any, path: Sequence[str]) -> Any:
    """Return what stands at the path; None if there is nothing."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def with_value(data: Any, path: Sequence[str], value: Any) -> Any:
    """Return the data with this value at the path; what is no mapping on the way becomes one."""
    if not path:
        return value
    around = data if isinstance(data, dict) else {}
    return {**around, path[0]: with_value(around.get(path[0]), path[1:], value)}


def update_of(old: Any, new: Mapping[str, Any], kept_current: Sequence[str]) -> dict[str, Any]:
    """Return what an entry gets: all of `new`, or only the keys in `kept_current` if there is one already."""
    if not isinstance(old, dict):
        return dict(new)
    update = {key: new[key] for key in kept_current if key in new}
    mappings = {key for key, value in update.items() if isinstance(value, dict) and isinstance(old.get(key), dict)}
    return {**update, **{key: {**old[key], **update[key]} for key in mappings}}
