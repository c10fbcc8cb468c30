"""Renders data as YAML.

Only the types of OneTool's own files: strings, numbers, booleans, lists and mappings.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from onetool_child.json_types import JsonMapping

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*")
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def flow(value: Any) -> str:
    """Return the value in one line."""
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{render_scalar(key)}: {flow(inner)}" for key, inner in value.items())
            + "}"
        )
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
    """Return whether people write such a value over several lines: a mapping, or a list of
    mappings.
    """
    has_mappings = isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
    return has_mappings or (isinstance(value, Mapping) and bool(value))


def render_scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _UNPRINTABLE.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False)
    )
