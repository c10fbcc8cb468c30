"""Add keys to a mapping of a YAML text, and items to a list; everything else in it stays as it is, byte for byte.

Places come from the parser, and the result is read again: it must be the old data with the change and nothing else, or
it is not written. Only what OneTool's own files hold is rendered: strings, numbers, booleans, lists, mappings.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ot.clients.edits import Edit, applied, insertion, line_break_of
from ot.errors import ConfigError
from ot.util import yaml12

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*")
_REST_OF_LINE = re.compile(r"[^\r\n]*")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def data_of(text: str, source: str) -> dict[str, Any]:
    data = yaml12.read(text, source).data if text.strip("\ufeff \t\r\n") else None
    if data is not None and not isinstance(data, dict):
        raise ConfigError(f"{source}:1: the file must hold `key: value` lines")
    return data or {}


def list_in(text: str, source: str, section: str, key: str) -> list[Any]:
    """Return what the list under a key of a section holds; nothing if there is none."""
    inside = data_of(text, source).get(section) or {}
    if not isinstance(inside, dict):
        raise ConfigError(f"{source}: {section} must be a mapping, `key: value`; correct it, then try again")
    found = inside.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(f"{source}: {section}.{key} must be a list like [a, b]; correct it, then try again")
    return found


def with_keys(text: str, source: str, section: str | None, new: Mapping[str, Any]) -> str:
    """Return the text with these keys under a section, or at the top without one."""
    if not new:
        return text
    old, root = data_of(text, source), _compose(text, source)
    pair = None if section is None else _member(root, section)
    if pair is None:
        edit = _at_the_end(text, root, new if section is None else {section: dict(new)})
    else:
        edit = _in_section(text, *pair, new)
    wanted = {**old, **new} if section is None else {**old, section: {**(old.get(section) or {}), **new}}
    where = f"{section}: " if section else "it "
    refusal = f"{source}: {where}cannot be added to as it is written; write it in block style, then retry"
    return _proven(text, source, [edit], wanted, refusal)


def with_items(text: str, source: str, section: str, key: str, items: Sequence[Any]) -> str:
    """Return the text with these items at the end of a list, which is made if it is missing."""
    old = list_in(text, source, section, key)
    place = _list_place(text, source, section, key)
    if not items:
        return text
    if place is None:
        return with_keys(text, source, section, {key: list(items)})
    return _with_list(text, source, (section, key), [_addition(text, place[1], items)], [*old, *items])


def without_item(text: str, source: str, section: str, key: str, index: int) -> str:
    """Return the text without one item of a list."""
    old = list_in(text, source, section, key)
    place = _list_place(text, source, section, key)
    assert place is not None
    return _with_list(text, source, (section, key), _removal(text, *place, index), [*old[:index], *old[index + 1 :]])


def flow(value: Any) -> str:
    """Return the value in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return _scalar(value)


# --- reading -----------------------------------------------------------------------------------------------------


def _compose(text: str, source: str) -> Any:
    """Return the nodes of a text. The byte order mark becomes white space, so that places are those of the text."""
    import yaml

    try:
        return yaml.compose(text.replace("\ufeff", "\n", 1) if text.startswith("\ufeff") else text, yaml.SafeLoader)
    except yaml.YAMLError:
        raise ConfigError(f"{source}: holds YAML that cannot be changed here; edit it by hand") from None


def _member(mapping: Any, name: str) -> tuple[Any, Any] | None:
    if mapping is None or not isinstance(mapping.value, list):
        return None
    return next(((key, value) for key, value in mapping.value if key.value == name), None)


def _list_place(text: str, source: str, section: str, key: str) -> tuple[Any, Any] | None:
    around = _member(_compose(text, source), section)
    return None if around is None else _member(around[1], key)


def _with_list(text: str, source: str, path: tuple[str, str], edits: Sequence[Edit], wanted: list[Any]) -> str:
    section, key = path
    old = data_of(text, source)
    refusal = f"{source}: {section}.{key} cannot be changed as it is written; change it by hand"
    return _proven(text, source, edits, {**old, section: {**(old.get(section) or {}), key: wanted}}, refusal)


def _proven(text: str, source: str, edits: Sequence[Edit], wanted: Mapping[str, Any], refusal: str) -> str:
    edited = applied(text, edits)
    try:
        works = yaml12.read(edited, source).data == wanted
    except ConfigError:
        works = False
    if not works:
        raise ConfigError(refusal)
    return edited


# --- changing ----------------------------------------------------------------------------------------------------


def _at_the_end(text: str, root: Any, new: Mapping[str, Any]) -> Edit:
    line_break = line_break_of(text)
    lines = _lines(new, "" if root is None else " " * root.start_mark.column)
    before = "" if not text.strip("\ufeff") or text.endswith(("\n", "\r")) else line_break
    return insertion(len(text), before + "".join(line + line_break for line in lines))


def _in_section(text: str, key: Any, value: Any, new: Mapping[str, Any]) -> Edit:
    if value.value in ("", []) or value.tag.endswith(":null"):
        return _in_the_place(text, value, _lines(new, " " * (key.start_mark.column + 2)))
    if value.flow_style:
        at = value.end_mark.index - 1
        comma = "" if text[:at].rstrip().endswith(",") else ", "
        return insertion(at, comma + flow(new)[1:-1])
    return _behind(text, value, _lines(new, " " * value.start_mark.column))


def _in_the_place(text: str, value: Any, lines: list[str]) -> Edit:
    """`servers:` and `servers: {}` hold nothing yet; the comment in the line stays."""
    start, end = value.start_mark.index, value.end_mark.index
    rest = _rest_of_line(text, end)
    comment = text[end:rest].strip()
    block = "".join(line_break_of(text) + line for line in lines)
    return Edit(len(text[:start].rstrip(" \t")), rest, (f"  {comment}" if comment else "") + block)


def _behind(text: str, value: Any, lines: list[str]) -> Edit:
    """Behind the last line of the last entry, before the comments and empty lines that follow it."""
    line_break = line_break_of(text)
    end = _last_leaf(value).end_mark.index
    if text[:end].endswith(("\n", "\r")):  # a block of text ends with its line
        return insertion(end, "".join(line + line_break for line in lines))
    return insertion(_rest_of_line(text, end), "".join(line_break + line for line in lines))


def _addition(text: str, value: Any, items: Sequence[Any]) -> Edit:
    start, end = value.start_mark.index, value.end_mark.index
    if not value.value or not isinstance(value.value, list):  # `tokens: []`, or `tokens:` and nothing more
        return Edit(start, end, f"{' ' * (start == end)}{flow(list(items))}")
    if value.flow_style:
        return insertion(value.value[-1].end_mark.index, "".join(f", {flow(item)}" for item in items))
    return _behind(text, value, [f"{' ' * value.start_mark.column}- {flow(item)}" for item in items])


def _removal(text: str, key: Any, value: Any, index: int) -> list[Edit]:
    items = value.value
    if not value.flow_style:
        rest = [] if len(items) > 1 else [insertion(text.index(":", key.end_mark.index) + 1, " []")]
        return [*rest, _without_lines(text, items[index])]
    if len(items) == 1:
        return [Edit(value.start_mark.index, value.end_mark.index, "[]")]
    if index + 1 < len(items):
        return [Edit(items[index].start_mark.index, items[index + 1].start_mark.index, "")]
    return [Edit(items[index - 1].end_mark.index, items[index].end_mark.index, "")]


def _without_lines(text: str, item: Any) -> Edit:
    """From the line break before the dash to the one behind the item, which stays."""
    dash = text.rindex("-", 0, item.start_mark.index)
    start = max(text.rfind("\n", 0, dash), text.rfind("\r", 0, dash))
    start -= text[start - 1 : start + 1] == "\r\n"
    return Edit(start, _rest_of_line(text, _last_leaf(item).end_mark.index), "")


def _last_leaf(node: Any) -> Any:
    while not isinstance(node.value, str) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return node


def _rest_of_line(text: str, position: int) -> int:
    found = _REST_OF_LINE.match(text, position)
    return found.end() if found else position


# --- rendering ---------------------------------------------------------------------------------------------------


def _lines(mapping: Mapping[str, Any], indent: str) -> list[str]:
    lines = []
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{_scalar(key)}:", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            lines += [f"{indent}{_scalar(key)}:", *(f"{indent}  - {flow(item)}" for item in value)]
        else:
            lines.append(f"{indent}{_scalar(key)}: {flow(value)}")
    return lines


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}:
        return value
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
