"""Signatures of tools for readers: `pack.tool(query: str, count: int = 5) -> list`."""

import re
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from typing import Any

from onetool._tool import Tool
from onetool.sanitize import clean
from onetool.schema import resolve_reference
from onetool_child.names import OWN_PACK, is_reserved

TYPE_NAMES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}
MAX_CHOICES = 8
MAX_CHARS = 10_000
MAX_CALL_CHARS = 60
MAX_REQUIRED = 8  # arguments in the hits of a search
MAX_TYPE_PARTS = 200  # of one argument
NOT_PYTHON = re.compile(r"[^\w.]")


def signature(tool: Tool) -> str:
    required = tool.input.required
    defaults = {
        name: f" = {part.get('default', '...')!r}" for name, part in _sort_arguments(tool) if name not in required
    }
    schema, root = tool.input, tool.input.json
    parts = [
        f"*{name}: {type_name(part.get('items', {}), root)}"
        if name == schema.variadic
        else f"{name}: {type_name(part, root)}{defaults.get(name, '')}"
        for name, part in _sort_arguments(tool)
    ]
    if schema.variadic_keywords:
        parts.append(f"**{schema.variadic_keywords}: {type_name(root['additionalProperties'], root)}")
    returns = f" -> {tool.returns}" if tool.returns else ""
    return clean_if_foreign(f"{_python_expression(tool.name)}({', '.join(parts)}){returns}", tool)


def short_call(tool: Tool, name: str) -> str:
    """Return a call without types, such as `pack.tool(query, count=5)`; if long, only required arguments."""
    required = tool.input.required
    parts = [key if key in required else f"{key}={part.get('default', '...')!r}" for key, part in _sort_arguments(tool)]
    text = f"{_call_prefix(name)}{', '.join(parts)})"
    if len(text) > MAX_CALL_CHARS:
        names = [key for key, _ in _sort_arguments(tool) if key in required]
        text = f"{_call_prefix(name)}{', '.join([*names, '...'])})"
    return clean_if_foreign(text, tool)


def required_types(tool: Tool) -> dict[str, str]:
    """Return the types of the required arguments, at most MAX_REQUIRED."""
    required = [(name, part) for name, part in tool.input.properties.items() if name in tool.input.required]
    root = tool.input.json
    return {
        clean_if_foreign(name, tool): clean_if_foreign(type_name(part, root), tool)
        for name, part in required[:MAX_REQUIRED]
    }


def arguments(tool: Tool) -> list[str]:
    """Return `name: description` for each argument with a description."""
    descriptions = ((name, part.get("description")) for name, part in tool.input.properties.items())
    return [clean_if_foreign(f"{name}: {' '.join(text.split())}", tool) for name, text in descriptions if text]


def _python_expression(name: str) -> str:
    """Return the Python expression for a tool; `ot.pack` reaches packs whose names are reserved in Python."""
    pack, dot, short = NOT_PYTHON.sub("_", name).rpartition(".")
    return f'ot.pack("{pack}").{short}' if is_reserved(pack) and pack != OWN_PACK else f"{pack}{dot}{short}"


def _call_prefix(name: str) -> str:
    """Return the call up to the first argument; `ot.call` for names that are keywords or builtins."""
    short = NOT_PYTHON.sub("_", name).rpartition(".")[2]
    is_hidden = iskeyword(short) or ("." not in name and is_reserved(short))
    return f'ot.call("{name}", ' if is_hidden else f"{_python_expression(name)}("


def clean_if_foreign(text: str, tool: Tool) -> str:
    """Sanitize a text of an upstream tool, whose names and defaults may contain anything."""
    return clean(text, MAX_CHARS) if tool.is_foreign else text


def _sort_arguments(tool: Tool) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the arguments in the order of the schema, required ones first."""
    required = tool.input.required
    return sorted(tool.input.properties.items(), key=lambda item: item[0] not in required)


def type_name(part: Any, root: Mapping[str, Any] | None = None) -> str:
    """Return the Python type for a part of a schema, which may refer to definitions in `root`; `Any` if unknown."""
    return _type_name(part, root or {}, iter(range(MAX_TYPE_PARTS)))


def _type_name(part: Any, root: Mapping[str, Any], steps: Iterator[int]) -> str:
    if next(steps, None) is None:  # references can make a small schema very large
        return "Any"
    part = resolve_reference(part, root)
    if "enum" in part and len(part["enum"]) <= MAX_CHOICES:
        return f"Literal[{', '.join(map(repr, part['enum']))}]"
    for key in ("anyOf", "oneOf"):
        if key in part:
            return " | ".join(dict.fromkeys(_type_name(choice, root, steps) for choice in part[key]))
    kind = part.get("type")
    if isinstance(kind, list):
        return " | ".join(TYPE_NAMES.get(one, "Any") for one in kind)
    if kind == "array" and isinstance(part.get("items"), Mapping) and part["items"]:
        return f"list[{_type_name(part['items'], root, steps)}]"
    return TYPE_NAMES.get(str(kind), "Any")
