"""Changes values in a YAML text, and preserves all other comments, order and formatting.

The result is parsed again: it must equal the old data with the change, or nothing is written.
Positions come from the parser. The nodes of PyYAML have no types, so they are `Any` here. Only the
types of OneTool's own files are rendered: strings, numbers, booleans, lists and mappings.
"""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from onetool.errors import ConfigError
from onetool.settings.clients.text_files import (
    Edit,
    apply_edits,
    detect_line_break,
    insertion,
    line_start,
    replace_value,
)
from onetool.util import yaml_loader
from onetool_child.json_types import JsonMapping, JsonObject

KeyPath = tuple[str | int, ...]
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*")
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class Place(NamedTuple):
    """A value, its key (None in a list) and whether a collection around it is in flow style."""

    key: Any
    value: Any
    is_in_flow: bool = False


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
    items = inside.get(key) or []
    if not isinstance(items, list):
        raise ConfigError(f"{source}: {section}.{key} must be a list such as [a, b]")
    return items


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
    others = {name: value for name, value in around.items() if name != path[-1]}
    return update(text, source, replace_value(data, path[:-1], others))


def update(text: str, source: str, data: JsonMapping, *, typed: bool = True) -> str:
    """Return the text with this data. Only what differs is changed."""
    old = parse_mapping(text, source, typed=typed)
    edited = _Editor(text, source).change((), old, dict(data))
    try:
        if _is_equal(parse_mapping(edited, source, typed=typed), dict(data)):
            return edited
    except ConfigError:
        pass
    raise _not_editable(source)


def _is_equal(left: Any, right: Any) -> bool:
    """Return whether two values are equal as JSON, where `true` differs from `1`."""
    return _to_json(left) == _to_json(right)


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _not_editable(source: str) -> ConfigError:
    message = f"cannot make this change in {source}: its YAML is too unusual"
    return ConfigError(message, hint="edit it manually")


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
        for name in old:
            if name in new:
                self.change((*path, name), old[name], new[name])
        added = {name: value for name, value in new.items() if name not in old}
        if added and path:
            self._apply(add_entries(self._text, self._find(path), added))
        elif added:
            self._apply(self._add_at_end(added))
        for name in old:
            if name not in new:  # at last: a mapping in block style cannot be empty
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
        before = [_to_json(item) for item in old]
        after = [_to_json(item) for item in new]
        matcher = SequenceMatcher(None, before, after, autojunk=False)
        for _, start, end, first, last in reversed(matcher.get_opcodes()):
            common = min(end - start, last - first)
            for index in reversed(range(start + common, end)):
                self._apply(*remove_at(self._text, self._find(path), index))
            if first + common < last:
                self._insert(path, start + common, new[first + common : last])
            for offset in reversed(range(common)):
                self.change((*path, start + offset), old[start + offset], new[first + offset])

    def _insert(self, path: KeyPath, index: int, items: list[Any]) -> None:
        place = self._find(path)
        if index >= len(place.value.value):
            self._apply(add_entries(self._text, place, items))
        else:
            self._apply(insert_items(self._text, place.value, index, items))

    def _find(self, path: KeyPath) -> Place:
        place = find_place(compose(self._text, self._source), path)
        if place is None or place.value is None:
            raise _not_editable(self._source)
        return place

    def _apply(self, *edits: Edit) -> None:
        self._text = apply_edits(self._text, edits)


def compose(text: str, source: str) -> Any:
    """Return the nodes of a text. The byte order mark is replaced by white space to keep positions."""
    import yaml

    try:
        return yaml.compose("\n" + text[1:] if text.startswith("\ufeff") else text, yaml.SafeLoader)
    except yaml.YAMLError:
        raise ConfigError(f"cannot edit the YAML in {source}; edit it manually") from None


def find_place(root: Any, path: KeyPath) -> Place | None:
    """Return the value at the path, or None."""
    place = Place(None, root)
    for step in path:
        node = place.value
        if node is None or isinstance(node.value, str):
            return None
        entry = None
        for index, item in enumerate(node.value):
            key, value = item if isinstance(item, tuple) else (None, item)
            name = index if key is None else key.value
            if name == step:
                entry = (key, value)
                break
        if entry is None:
            return None
        place = Place(*entry, is_in_flow=place.is_in_flow or bool(node.flow_style))
    return place


# --- adding ---------------------------------------------------------------------------------------
def add_entries(text: str, place: Place, new: JsonMapping | list[Any]) -> Edit:
    """Return the edit that adds members to a mapping or items to the end of a list."""
    value = place.value
    line_break = detect_line_break(text)
    is_empty = value.value in ("", []) or value.tag.endswith(":null")
    if is_empty:  # `servers:` or `servers: {}`
        return replace_at(text, place, new, as_block=isinstance(new, Mapping))
    if value.flow_style:
        return insertion(_get_last(value).end_mark.index, f", {flow(new)[1:-1]}")
    # After the last line of the last entry, before the comments and empty lines that follow it.
    lines = render_lines(new, " " * value.start_mark.column)
    end = find_end(value)
    if text[:end].endswith(("\n", "\r")):  # a block of text ends with its line
        return insertion(end, "".join(line + line_break for line in lines))
    return insertion(find_line_end(text, end), "".join(line_break + line for line in lines))


def insert_items(text: str, value: Any, index: int, items: list[Any]) -> Edit:
    """Return the edit that inserts items before an item of a list that is not empty."""
    line_break = detect_line_break(text)
    item = value.value[index]
    if value.flow_style:
        return insertion(item.start_mark.index, f"{flow(items)[1:-1]}, ")
    lines = render_lines(items, " " * value.start_mark.column)
    if index:  # a comment above the next item stays with it
        end = find_end(value.value[index - 1])
        return insertion(find_line_end(text, end), "".join(line_break + line for line in lines))
    start = line_start(text, text.rindex("-", 0, item.start_mark.index))
    return insertion(start, "".join(line + line_break for line in lines))


# --- replacing ------------------------------------------------------------------------------------
def replace_at(text: str, place: Place, new: Any, *, as_block: bool = False) -> Edit:
    """Return the edit that replaces a value."""
    key = place.key
    value = place.value
    start = value.start_mark.index
    end = find_end(value)
    is_collection = not isinstance(value.value, str) and not value.flow_style and bool(value.value)
    line_break = detect_line_break(text)
    ending = ""
    if text[start:end].endswith(("\n", "\r")):
        ending = line_break
    if key is None or place.is_in_flow or not (as_block or needs_block(new)):
        if is_collection and key is not None:  # the comment behind the key stays
            colon = text.index(":", key.end_mark.index) + 1
            behind = text[colon : find_line_end(text, colon)]
            value_end = end if ending else find_line_end(text, end)
            return Edit(colon, value_end, f" {flow(new)}{behind}{ending}")
        is_next_to_colon = text[start - 1 : start] == ":"
        return Edit(start, end, f"{' ' * is_next_to_colon}{flow(new)}{ending}")
    colon = text.index(":", key.end_mark.index) + 1
    comment_end = find_line_end(text, colon if is_collection else end)
    comment = text[colon if is_collection else end : comment_end].strip() if not ending else ""
    lines = render_lines(new, " " * (key.start_mark.column + 2))
    block = f"  {comment}".rstrip() + "".join(line_break + line for line in lines) + ending
    return Edit(colon, end if is_collection or ending else comment_end, block)


# --- removing -------------------------------------------------------------------------------------
def remove_member(text: str, mapping: Any, name: str) -> Edit:
    """Return the edit that removes a key of a mapping that has others. Comments above the key stay."""
    pairs = mapping.value
    at = next(index for index, (key, _) in enumerate(pairs) if key.value == name)
    key, value = pairs[at]
    start = key.start_mark.index
    first = line_start(text, start)
    is_after_dash = bool(text[first:start].strip("\ufeff \t"))
    if mapping.flow_style or is_after_dash:
        if at + 1 < len(pairs):
            return Edit(start, pairs[at + 1][0].start_mark.index, "")
        return Edit(pairs[at - 1][1].end_mark.index, value.end_mark.index, "")
    end = find_end(value)
    if not text[:end].endswith(("\n", "\r")) or end <= start:
        end = find_line_end(text, end)
        end += len(text[end : end + 2]) if text[end : end + 2] == "\r\n" else 1
    return Edit(first + text[first:].startswith("\ufeff"), min(end, len(text)), "")


def remove_at(text: str, place: Place, index: int) -> list[Edit]:
    """Return the edits that remove an item of a list."""
    key = place.key
    value = place.value
    items = value.value
    item = value.value[index]
    if not value.flow_style:  # from the line break before the dash to the end of the item
        start = line_start(text, text.rindex("-", 0, item.start_mark.index)) - 1
        start -= text[start - 1 : start + 1] == "\r\n"
        lines = Edit(start, find_line_end(text, find_end(item)), "")
        if len(items) > 1:
            return [lines]
        return [insertion(text.index(":", key.end_mark.index) + 1, " []"), lines]
    if len(items) == 1:
        return [Edit(value.start_mark.index, value.end_mark.index, "[]")]
    if index + 1 < len(items):
        return [Edit(item.start_mark.index, items[index + 1].start_mark.index, "")]
    return [Edit(items[index - 1].end_mark.index, item.end_mark.index, "")]


# --- positions ------------------------------------------------------------------------------------
def find_end(node: Any) -> int:
    """Return the end of the last value inside a node.

    The end of a block collection is that of the next token.
    """
    while not isinstance(node.value, str) and node.value and not node.flow_style:
        node = _get_last(node)
    return int(node.end_mark.index)


def _get_last(collection: Any) -> Any:
    """Return the last item of a list, or the last value of a mapping."""
    last = collection.value[-1]
    return last[1] if isinstance(last, tuple) else last


def find_line_end(text: str, position: int) -> int:
    return min((at for char in "\r\n" if (at := text.find(char, position)) >= 0), default=len(text))


def flow(value: Any) -> str:
    """Return the value in one line."""
    if isinstance(value, Mapping):
        members = [f"{render_scalar(key)}: {flow(inner)}" for key, inner in value.items()]
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return render_scalar(value)


def render_lines(new: JsonMapping | list[Any], indent: str) -> list[str]:
    """Return mapping members or list items in block style."""
    if not isinstance(new, Mapping):
        return [f"{indent}- {flow(item)}" for item in new]
    lines = []
    for key, value in new.items():
        if needs_block(value):
            lines += [f"{indent}{render_scalar(key)}:", *render_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{render_scalar(key)}: {flow(value)}")
    return lines


def needs_block(value: Any) -> bool:
    """Return whether people write such a value over several lines, as mappings."""
    has_mappings = isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
    return has_mappings or (isinstance(value, Mapping) and bool(value))


def render_scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
