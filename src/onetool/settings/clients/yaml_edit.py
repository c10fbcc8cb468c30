"""Changes values in a YAML text, and preserves all other comments, order and formatting.

The result is parsed again: it must equal the old data with the change, or nothing is written.
"""

import json
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from onetool.errors import ConfigError
from onetool.settings.clients.edits import (
    Edit,
    apply_edits,
    detect_line_break,
    insertion,
    replace_value,
)
from onetool.settings.clients.yaml_nodes import (
    KeyPath,
    Place,
    add_entries,
    compose,
    find_place,
    insert_items,
    remove_at,
    remove_member,
    replace_at,
)
from onetool.settings.clients.yaml_text import render_lines
from onetool.util import yaml_loader
from onetool_child.json_types import JsonMapping, JsonObject


def parse_mapping(text: str, source: str, *, typed: bool = True) -> JsonObject:
    data = yaml_loader.read(text, source, typed=typed).data if text.strip("\ufeff \t\r\n") else None
    if data is not None and not isinstance(data, dict):
        raise ConfigError(f"{source}:1: the file must contain `key: value` lines")
    return data or {}


def read_list(text: str, source: str, section: str, key: str) -> list[Any]:
    """Return the list under a key of a section; an empty list if there is none."""
    inside = parse_mapping(text, source).get(section) or {}
    if not isinstance(inside, dict):
        raise ConfigError(f"{source}: {section} must be a mapping (`key: value`)")
    found = inside.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(f"{source}: {section}.{key} must be a list such as [a, b]")
    return found


def set_value(text: str, source: str, path: Sequence[str], value: Any) -> str:
    """Return the text with this value at the path. Parents that are missing or empty are created."""
    return update(text, source, replace_value(parse_mapping(text, source), path, value))


def remove_value(text: str, source: str, path: Sequence[str]) -> str:
    """Return the text without the key at the path."""
    data = parse_mapping(text, source)
    around: Any = data
    for key in path[:-1]:
        around = around.get(key) if isinstance(around, dict) else None
    if not isinstance(around, dict) or path[-1] not in around:
        return text
    rest = {name: each for name, each in around.items() if name != path[-1]}
    return update(text, source, replace_value(data, path[:-1], rest))


def update(text: str, source: str, wanted: JsonMapping, *, typed: bool = True) -> str:
    """Return the text with this data. Only what differs is changed."""
    edited = _Editor(text, source).change(
        (), parse_mapping(text, source, typed=typed), dict(wanted)
    )
    try:
        if _is_equal(parse_mapping(edited, source, typed=typed), dict(wanted)):
            return edited
    except ConfigError:
        pass
    raise _not_editable(source)


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON, where `true` differs from `1`."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(
        other, sort_keys=True, default=str
    )


def _not_editable(source: str) -> ConfigError:
    return ConfigError(
        f"cannot make this change in {source}: its YAML is too unusual", hint="edit it manually"
    )


class _Editor:
    """Changes a text step by step. Each step parses the text that the step before left."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source

    def change(self, path: KeyPath, old: Any, new: Any) -> str:
        """Change the value at the path and return the text."""
        if _is_equal(old, new):
            return self._text
        if isinstance(old, dict) and isinstance(new, dict) and (not path or (old and new)):
            self._change_members(path, old, new)
        elif isinstance(old, list) and isinstance(new, list) and old and new:
            self._change_items(path, old, new)
        else:
            place = self._find(path)
            self._apply(replace_at(self._text, place, new))
        return self._text

    def _change_members(self, path: KeyPath, old: JsonObject, new: JsonObject) -> None:
        for name in [name for name in old if name in new]:
            self.change((*path, name), old[name], new[name])
        added = {name: value for name, value in new.items() if name not in old}
        if added:
            self._apply(
                self._add_at_end(added)
                if not path
                else add_entries(self._text, self._find(path), added)
            )
        for name in [
            name for name in old if name not in new
        ]:  # at last: a mapping in block style cannot be empty
            self._apply(remove_member(self._text, self._find(path).value, name))

    def _add_at_end(self, new: JsonMapping) -> Edit:
        text = self._text
        root = compose(self._text, self._source)
        line_break = detect_line_break(text)
        if root is not None and root.flow_style:
            return add_entries(text, Place(None, root), new)
        lines = render_lines(new, " " * root.start_mark.column if root else "")
        before = "" if not text.strip("\ufeff") or text.endswith(("\n", "\r")) else line_break
        return insertion(len(text), before + "".join(line + line_break for line in lines))

    def _change_items(self, path: KeyPath, old: list[Any], new: list[Any]) -> None:
        """Change the items that differ, from the last to the first, so that positions stay valid."""
        before, after = (
            [json.dumps(item, sort_keys=True, default=str) for item in items]
            for items in (old, new)
        )
        for _, start, end, first, last in reversed(
            SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        ):
            common = min(end - start, last - first)
            for index in reversed(range(start + common, end)):
                self._apply(*remove_at(self._text, self._find(path), index))
            if first + common < last:
                self._insert(path, start + common, new[first + common : last])
            for offset in reversed(range(common)):
                self.change((*path, start + offset), old[start + offset], new[first + offset])

    def _insert(self, path: KeyPath, index: int, items: list[Any]) -> None:
        place = self._find(path)
        is_end = index >= len(place.value.value)
        edit = (
            add_entries(self._text, place, items)
            if is_end
            else insert_items(self._text, place.value, index, items)
        )
        self._apply(edit)

    def _find(self, path: KeyPath) -> Place:
        place = find_place(compose(self._text, self._source), path)
        if place is None or place.value is None:
            raise _not_editable(self._source)
        return place

    def _apply(self, *edits: Edit) -> None:
        self._text = apply_edits(self._text, edits)
