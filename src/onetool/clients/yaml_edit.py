"""Adds keys to a mapping and items to a list of a YAML text, and preserves everything else byte for byte.

Positions come from the parser, and the result is parsed again: it must equal the old data with the change, or nothing
is written. Only the types of OneTool's own files are rendered: strings, numbers, booleans, lists and mappings.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from onetool.clients.edits import Edit, apply_edits, detect_line_break, insertion, line_start, replace_value, verify
from onetool.errors import ConfigError
from onetool.util import yaml_loader

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def parse_mapping(text: str, source: str, *, typed: bool = True) -> dict[str, Any]:
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


def add_keys(text: str, source: str, section: str | None, new: Mapping[str, Any]) -> str:
    """Return the text with these keys under a section, or at the top without one."""
    if not new:
        return text
    old, root = parse_mapping(text, source), _compose(text, source)
    pair = None if section is None else _find_member(root, section)
    if pair is None:
        line_break = detect_line_break(text)
        lines = _lines(new if section is None else {section: dict(new)}, " " * root.start_mark.column if root else "")
        before = "" if not text.strip("\ufeff") or text.endswith(("\n", "\r")) else line_break
        edit = insertion(len(text), before + "".join(line + line_break for line in lines))
    else:
        edit = _addition(text, *pair, new)
    wanted = {**old, **new} if section is None else {**old, section: {**(old.get(section) or {}), **new}}
    message = f"cannot add keys to {section or 'the top level'} of {source}: write it in block style"
    return _verify(text, source, [edit], wanted, message)


def add_items(text: str, source: str, section: str, key: str, items: Sequence[Any]) -> str:
    """Return the text with these items at the end of a list, which is created if missing."""
    old, pair = read_list(text, source, section, key), _find_list(text, source, section, key)
    if pair is None:
        return add_keys(text, source, section, {key: list(items)})
    return _replace_list(text, source, (section, key), [_addition(text, *pair, list(items))], [*old, *items])


def remove_item(text: str, source: str, section: str, key: str, index: int) -> str:
    """Return the text without one item of a list."""
    old, pair = read_list(text, source, section, key), _find_list(text, source, section, key)
    assert pair is not None
    return _replace_list(text, source, (section, key), _removal(text, *pair, index), [*old[:index], *old[index + 1 :]])


def flow(value: Any) -> str:
    """Return the value in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return _scalar(value)


# --- positions ---------------------------------------------------------------------------------------------------


def _compose(text: str, source: str) -> Any:
    """Return the nodes of a text. The byte order mark is replaced by white space to keep positions."""
    import yaml

    try:
        return yaml.compose("\n" + text[1:] if text.startswith("\ufeff") else text, yaml.SafeLoader)
    except yaml.YAMLError:
        raise ConfigError(f"cannot edit the YAML in {source}; edit it manually") from None


def _find_member(mapping: Any, name: str) -> tuple[Any, Any] | None:
    if mapping is None or not isinstance(mapping.value, list):
        return None
    return next(((key, value) for key, value in mapping.value if key.value == name), None)


def _find_list(text: str, source: str, section: str, key: str) -> tuple[Any, Any] | None:
    around = _find_member(_compose(text, source), section)
    return None if around is None else _find_member(around[1], key)


def _replace_list(text: str, source: str, path: tuple[str, str], edits: Sequence[Edit], items: list[Any]) -> str:
    message = f"cannot edit {'.'.join(path)} in {source}; edit it manually"
    return _verify(text, source, edits, replace_value(parse_mapping(text, source), path, items), message)


def _verify(text: str, source: str, edits: Sequence[Edit], wanted: Mapping[str, Any], message: str) -> str:
    return verify(apply_edits(text, edits), lambda edited: yaml_loader.read(edited, source).data, wanted, message)


def _line_end(text: str, position: int) -> int:
    return min((at for char in "\r\n" if (at := text.find(char, position)) >= 0), default=len(text))


# --- edits -------------------------------------------------------------------------------------------------------


def _addition(text: str, key: Any, value: Any, new: Mapping[str, Any] | list[Any]) -> Edit:
    """Return the edit that adds members to the mapping or items to the list under a key."""
    start, end, line_break = value.start_mark.index, value.end_mark.index, detect_line_break(text)
    if value.value in ("", []) or value.tag.endswith(":null"):  # `servers:` and `servers: {}` are empty
        if not isinstance(new, Mapping):
            return Edit(start, end, f"{' ' * (start == end)}{flow(new)}")
        rest = _line_end(text, end)
        comment = f"  {text[end:rest].strip()}".rstrip()
        block = "".join(line_break + line for line in _lines(new, " " * (key.start_mark.column + 2)))
        return Edit(len(text[:start].rstrip(" \t")), rest, comment + block)
    if value.flow_style:
        last = value.value[-1]
        return insertion((last[1] if isinstance(last, tuple) else last).end_mark.index, f", {flow(new)[1:-1]}")
    # After the last line of the last entry, before the comments and empty lines that follow it.
    lines, end = _lines(new, " " * value.start_mark.column), _last_leaf(value).end_mark.index
    if text[:end].endswith(("\n", "\r")):  # a block of text ends with its line
        return insertion(end, "".join(line + line_break for line in lines))
    return insertion(_line_end(text, end), "".join(line_break + line for line in lines))


def _removal(text: str, key: Any, value: Any, index: int) -> list[Edit]:
    items, item = value.value, value.value[index]
    if not value.flow_style:  # from the line break before the dash to the one behind the item, which stays
        start = line_start(text, text.rindex("-", 0, item.start_mark.index)) - 1
        start -= text[start - 1 : start + 1] == "\r\n"
        lines = Edit(start, _line_end(text, _last_leaf(item).end_mark.index), "")
        return [lines] if len(items) > 1 else [insertion(text.index(":", key.end_mark.index) + 1, " []"), lines]
    if len(items) == 1:
        return [Edit(value.start_mark.index, value.end_mark.index, "[]")]
    if index + 1 < len(items):
        return [Edit(item.start_mark.index, items[index + 1].start_mark.index, "")]
    return [Edit(items[index - 1].end_mark.index, item.end_mark.index, "")]


def _last_leaf(node: Any) -> Any:
    while not isinstance(node.value, str) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return node


# --- rendering ---------------------------------------------------------------------------------------------------


def _lines(new: Mapping[str, Any] | list[Any], indent: str) -> list[str]:
    if not isinstance(new, Mapping):
        return [f"{indent}- {flow(item)}" for item in new]
    lines = []
    for key, value in new.items():
        has_mappings = isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
        if has_mappings or (isinstance(value, Mapping) and value):
            lines += [f"{indent}{_scalar(key)}:", *_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{_scalar(key)}: {flow(value)}")
    return lines


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}:
        return value
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
