"""Edits of a text by position, which preserve everything else byte for byte."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from onetool.errors import ConfigError
from onetool_child.json_types import JsonMapping, JsonObject


class Edit(NamedTuple):
    """A replacement of the range from `start` to `end` by `text`; an insertion if they are equal."""

    start: int
    end: int
    text: str


def insertion(at: int, text: str) -> Edit:
    return Edit(at, at, text)


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    parts = []
    at = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


def verify(edited: str, read: Callable[[str], Any], wanted: Any, message: str) -> str:
    """Return the edited text if it parses to the expected data; otherwise raise an error with this
    message.
    """
    try:
        if read(edited) == wanted:
            return edited
    except ConfigError:
        pass
    raise ConfigError(message)


def detect_line_break(text: str) -> str:
    """Return the line break that the text uses, or LF if it has none."""
    first = text.find("\n")
    if first < 0:
        return "\r" if "\r" in text else "\n"
    return "\r\n" if text[first - 1 : first] == "\r" else "\n"


def line_number(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def line_start(text: str, position: int) -> int:
    return max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1


def value_at(data: Any, path: Sequence[str]) -> Any:
    """Return the value at the path, or None."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def replace_value(data: Any, path: Sequence[str], value: Any) -> Any:
    """Return the data with this value at the path; parents that are not mappings are replaced."""
    if not path:
        return value
    around = data if isinstance(data, dict) else {}
    return {**around, path[0]: replace_value(around.get(path[0]), path[1:], value)}


def merge_entry(old: Any, new: JsonMapping, updated_keys: Sequence[str]) -> JsonObject:
    """Return the updated entry: `new`, or only the keys in `updated_keys` if the entry exists."""
    if not isinstance(old, dict):
        return dict(new)
    update = {key: new[key] for key in updated_keys if key in new}
    mappings = {
        key
        for key, value in update.items()
        if isinstance(value, dict) and isinstance(old.get(key), dict)
    }
    return {**update, **{key: {**old[key], **update[key]} for key in mappings}}
