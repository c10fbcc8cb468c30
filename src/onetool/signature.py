"""How a tool is written for a reader: `pack.tool(query: str, count: int = 5) -> list`, whatever its kind."""

import re
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any

from onetool._tool import Tool
from onetool.sanitise import clean
from onetool_child.names import OWN_PACK, is_reserved

WORDS = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}
MAX_CHOICES = 8
LONGEST = 10_000
LONGEST_CALL = 60
NOT_PYTHON = re.compile(r"[^\w.]")


def signature(tool: Tool) -> str:
    required = tool.input.required
    defaults = {name: f" = {part.get('default', '...')!r}" for name, part in _in_order(tool) if name not in required}
    parts = [f"{name}: {type_word(part)}{defaults.get(name, '')}" for name, part in _in_order(tool)]
    returns = f" -> {tool.returns}" if tool.returns else ""
    return _readable(f"{_written(tool.name)}({', '.join(parts)}){returns}", tool)


def short_call(tool: Tool, name: str) -> str:
    """`pack.tool(query, count=5)`: what to write, without types; of many arguments only those that must be given."""
    required = tool.input.required
    parts = [key if key in required else f"{key}={part.get('default', '...')!r}" for key, part in _in_order(tool)]
    text = f"{_beginning(name)}{', '.join(parts)})"
    if len(text) > LONGEST_CALL:
        needed = [key for key, _ in _in_order(tool) if key in required]
        text = f"{_beginning(name)}{', '.join([*needed, '...'])})"
    return _readable(text, tool)


def arguments(tool: Tool) -> list[str]:
    """`name: description` for each argument that has one."""
    described = ((name, part.get("description")) for name, part in tool.input.properties.items())
    return [_readable(f"{name}: {' '.join(text.split())}", tool) for name, text in described if text]


def _written(name: str) -> str:
    """Return the name as code has to write it; `ot.pack` reaches a pack whose name Python uses itself."""
    pack, dot, short = NOT_PYTHON.sub("_", name).rpartition(".")
    return f'ot.pack("{pack}").{short}' if is_reserved(pack) and pack != OWN_PACK else f"{pack}{dot}{short}"


def _beginning(name: str) -> str:
    """Return the call up to the first argument. A Python keyword cannot be an attribute, a builtin stays what it is."""
    short = NOT_PYTHON.sub("_", name).rpartition(".")[2]
    is_hidden = iskeyword(short) or ("." not in name and is_reserved(short))
    return f'ot.call("{name}", ' if is_hidden else f"{_written(name)}("


def _readable(text: str, tool: Tool) -> str:
    """Names and defaults that somebody else wrote can say anything, as descriptions can."""
    return clean(text, LONGEST) if tool.is_foreign else text


def _in_order(tool: Tool) -> list[tuple[str, Mapping[str, Any]]]:
    """As in the schema, with what must be given first, as Python wants it."""
    required = tool.input.required
    return sorted(tool.input.properties.items(), key=lambda item: item[0] not in required)


def type_word(part: Mapping[str, Any]) -> str:
    """The Python word for a piece of schema; `Any` where there is none."""
    if "enum" in part and len(part["enum"]) <= MAX_CHOICES:
        return f"Literal[{', '.join(map(repr, part['enum']))}]"
    for key in ("anyOf", "oneOf"):
        if key in part:
            return " | ".join(dict.fromkeys(type_word(choice) for choice in part[key]))
    kind = part.get("type")
    if isinstance(kind, list):
        return " | ".join(WORDS.get(one, "Any") for one in kind)
    if kind == "array" and isinstance(part.get("items"), Mapping) and part["items"]:
        return f"list[{type_word(part['items'])}]"
    return WORDS.get(str(kind), "Any")
