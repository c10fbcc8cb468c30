"""Finds values in a YAML text by path, and computes the edits that change one.

Positions come from the parser. The nodes of PyYAML have no types, so they are `Any` here.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from onetool.errors import ConfigError
from onetool.settings.clients.edits import Edit, detect_line_break, insertion, line_start
from onetool.settings.clients.yaml_text import flow, needs_block, render_lines
from onetool_child.json_types import JsonMapping

KeyPath = tuple[str | int, ...]


class Place(NamedTuple):
    """A value, its key (None for an item of a list) and whether a collection around it is in flow
    style.
    """

    key: Any
    value: Any
    is_in_flow: bool = False


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
        entries = [(None, item) if not isinstance(item, tuple) else item for item in node.value]
        if isinstance(step, int):
            found = entries[step] if step < len(entries) else None
        else:
            found = next(
                (pair for pair in entries if pair[0] is not None and pair[0].value == step), None
            )
        if found is None:
            return None
        key, value = found
        place = Place(key, value, is_in_flow=place.is_in_flow or bool(node.flow_style))
    return place


# --- adding ---------------------------------------------------------------------------------------


def add_entries(text: str, place: Place, new: JsonMapping | list[Any]) -> Edit:
    """Return the edit that adds members to a mapping or items to the end of a list."""
    value = place.value
    line_break = detect_line_break(text)
    if value.value in ("", []) or value.tag.endswith(
        ":null"
    ):  # `servers:` and `servers: {}` are empty
        return replace_at(
            text,
            place,
            dict(new) if isinstance(new, Mapping) else new,
            as_block=isinstance(new, Mapping),
        )
    if value.flow_style:
        last = value.value[-1]
        return insertion(
            (last[1] if isinstance(last, tuple) else last).end_mark.index, f", {flow(new)[1:-1]}"
        )
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
            return Edit(
                colon, end if ending else find_line_end(text, end), f" {flow(new)}{behind}{ending}"
            )
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
    if (
        not value.flow_style
    ):  # from the line break before the dash to the one behind the item, which stays
        start = line_start(text, text.rindex("-", 0, item.start_mark.index)) - 1
        start -= text[start - 1 : start + 1] == "\r\n"
        lines = Edit(start, find_line_end(text, find_end(item)), "")
        return (
            [lines]
            if len(items) > 1
            else [insertion(text.index(":", key.end_mark.index) + 1, " []"), lines]
        )
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
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)


def find_line_end(text: str, position: int) -> int:
    return min((at for char in "\r\n" if (at := text.find(char, position)) >= 0), default=len(text))
