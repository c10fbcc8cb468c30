"""Adding keys to a mapping of a YAML text, so that comments, order and everything else in it stay as they are.

Places come from the parser, and the result is read again: it must be the old data with the new keys and nothing
else, or it is not written. Only what OneTool's own files hold is rendered: texts, numbers, switches, lists, mappings.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from ot import yaml12
from ot.clients.edits import Edit, applied, insertion, line_break_of
from ot.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*")
_REST_OF_LINE = re.compile(r"[^\r\n]*")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def with_keys(text: str, source: str, section: str | None, new: Mapping[str, Any]) -> str:
    """The text with these keys under a section, or at the top where there is none."""
    if not new:
        return text
    old = data_of(text, source)
    edited = applied(text, [_edit(text, source, section, new)])
    try:
        works = yaml12.read(edited, source).data == _wanted(old, section, new)
    except ConfigError:
        works = False
    if not works:
        where = f"{section}: " if section else "it "
        raise ConfigError(f"{source}: {where}cannot be added to as it is written; write it in block style, then retry")
    return edited


def data_of(text: str, source: str) -> dict[str, Any]:
    data = yaml12.read(text, source).data if text.strip("\ufeff \t\r\n") else None
    if data is not None and not isinstance(data, dict):
        raise ConfigError(f"{source}:1: the file must hold `key: value` lines")
    return data or {}


def _wanted(old: Mapping[str, Any], section: str | None, new: Mapping[str, Any]) -> dict[str, Any]:
    return {**old, **new} if section is None else {**old, section: {**(old.get(section) or {}), **new}}


def _edit(text: str, source: str, section: str | None, new: Mapping[str, Any]) -> Edit:
    shift = 1 if text.startswith("\ufeff") else 0
    root = composed(text[shift:], source)
    pairs = dict[str, Any]() if root is None else {key.value: (key, value) for key, value in root.value}
    if section is None or section not in pairs:
        return _at_the_end(text, root, new if section is None else {section: dict(new)})
    key, value = pairs[section]
    indent = " " * (key.start_mark.column + 2)
    if value.value in ("", []) or value.tag.endswith(":null"):
        return _in_the_place(text, value, shift, _lines(new, indent))
    if value.flow_style:
        at = shift + value.end_mark.index - 1
        comma = "" if text[:at].rstrip().endswith(",") else ", "
        return insertion(at, comma + ", ".join(f"{_scalar(name)}: {flow(inner)}" for name, inner in new.items()))
    return behind(text, value, shift, _lines(new, " " * value.start_mark.column))


def composed(text: str, source: str) -> Any:
    import yaml

    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        raise ConfigError(f"{source}: holds YAML that cannot be changed here; edit it by hand") from None


def _at_the_end(text: str, root: Any, new: Mapping[str, Any]) -> Edit:
    line_break = line_break_of(text)
    lines = _lines(new, "" if root is None else " " * root.start_mark.column)
    before = "" if not text.strip("\ufeff") or text.endswith(("\n", "\r")) else line_break
    return insertion(len(text), before + "".join(line + line_break for line in lines))


def _in_the_place(text: str, value: Any, shift: int, lines: list[str]) -> Edit:
    """`servers:` and `servers: {}` hold nothing yet; the comment in the line stays."""
    line_break = line_break_of(text)
    start, end = shift + value.start_mark.index, shift + value.end_mark.index
    rest = _REST_OF_LINE.match(text, end)
    comment = rest[0] if rest else ""
    before = text[:start]
    spaces = len(before) - len(before.rstrip(" \t"))
    kept = f"  {comment.strip()}" if comment.strip() else ""
    block = kept + "".join(line_break + line for line in lines)
    return Edit(start - spaces, end + len(comment), block)


def behind(text: str, value: Any, shift: int, lines: list[str]) -> Edit:
    """Behind the last line of the last entry, before the comments and empty lines that follow it."""
    line_break = line_break_of(text)
    end = shift + last_leaf(value).end_mark.index
    if text[:end].endswith(("\n", "\r")):  # a block of text ends with its line
        return insertion(end, "".join(line + line_break for line in lines))
    rest = _REST_OF_LINE.match(text, end)
    return insertion(rest.end() if rest else end, "".join(line_break + line for line in lines))


def last_leaf(node: Any) -> Any:
    while not isinstance(node.value, str) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return node


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


def flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}:
        return value
    return _UNPRINTABLE.sub(_escaped, json.dumps(value, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
