"""Signatures of tools for readers: `pack.tool(query: str, count: int = 5) -> list`.

The fields of objects are written like those of a TypedDict: `tags: list[{'name': str, 'color':
NotRequired[str]}]`. An optional argument without a default is shown as `= None`, and `None` means
that it is omitted. Tools of upstream servers show `= '...'` instead. Arguments after `*` are passed
by name, and those whose names are not valid in Python as `**{'user-id': str}`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from keyword import iskeyword
from typing import Any

from onetool.core.schema_work import flatten_schema
from onetool.core.tool import Tool
from onetool.util.sanitize import clean
from onetool_child.json_types import JsonMapping, JsonObject
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
UNKNOWN_DEFAULT = "..."
MAX_CHARS = 10_000
MAX_CALL_CHARS = 60
MAX_REQUIRED = 8  # arguments in the hits of a search
MAX_TYPE_PARTS = 200  # of one argument
MAX_TYPE_DEPTH = 10  # of nested types
MAX_FIELD_LEVELS = 2  # of objects whose fields a signature shows
# of one object in a signature
MAX_FIELDS = 30
MAX_FIELDS_CHARS = 300
NOT_PYTHON = re.compile(r"[^\w.]")


def signature(tool: Tool) -> str:
    """Return the signature with the types of all arguments; objects are shown with their fields."""
    parts = _format_parameters(tool)
    returns = f" -> {tool.returns}" if tool.returns else ""
    return clean_if_foreign(f"{_python_expression(tool.name)}({', '.join(parts)}){returns}", tool)


def describe_signature(tool: Tool) -> JsonObject:
    """Return the signature as data: parameters and returns."""
    parameters = [
        {**parameter, "type": clean_if_foreign(parameter["type"], tool)}
        for parameter in _list_parameters(tool)
    ]
    return {"parameters": parameters, "returns": tool.returns}


def _list_parameters(tool: Tool) -> Iterator[JsonObject]:
    schema = tool.input
    root = tool.input.json
    for name, part in _sort_arguments(tool):
        if name == schema.variadic:
            yield {
                "name": name,
                "kind": "variadic",
                "type": type_name(part.get("items", {}), root, MAX_FIELD_LEVELS),
            }
            continue
        default = {} if name in schema.required else {"default": part.get("default")}
        kind = "keyword" if name in schema.keyword_only else "positional"
        yield {
            "name": name,
            "kind": kind,
            "type": type_name(part, root, MAX_FIELD_LEVELS),
            **default,
        }
    if schema.variadic_keywords:
        rest = type_name(root["additionalProperties"], root)
        yield {"name": schema.variadic_keywords, "kind": "keywords", "type": rest}


def _format_parameters(tool: Tool) -> list[str]:
    """Return the parameters in the order of a definition."""
    passed_by_position: list[str] = []
    passed_by_name: list[str] = []
    fields: list[str] = []
    collected: list[str] = []
    for parameter in _list_parameters(tool):
        text = _format_parameter(parameter, tool)
        if parameter["kind"] == "keywords":
            collected.append(text)
        elif not is_python_name(parameter["name"]):
            is_optional = "default" in parameter
            kind = f"NotRequired[{parameter['type']}]" if is_optional else parameter["type"]
            fields.append(f"{parameter['name']!r}: {kind}")
        elif parameter["kind"] == "variadic":
            passed_by_position.append(text)
        elif (
            parameter["kind"] == "keyword" or fields
        ):  # the position of an argument counts those before it
            passed_by_name.append(text)
        else:
            passed_by_position.append(text)
    if passed_by_name and tool.input.variadic is None:
        passed_by_name.insert(0, "*")
    if fields:
        collected.insert(0, f"**{{{', '.join(fields)}}}")
    return [*passed_by_position, *passed_by_name, *collected]


def is_python_name(name: str) -> bool:
    """Return whether an argument with this name can be passed as `name=value`."""
    return name.isidentifier() and not iskeyword(name)


def _format_parameter(about: JsonMapping, tool: Tool) -> str:
    stars = {"variadic": "*", "keywords": "**"}.get(about["kind"], "")
    default = f" = {about['default']!r}" if "default" in about else ""
    if (
        default
        and tool.source.startswith("proxy:")
        and "default" not in tool.input.properties[about["name"]]
    ):
        default = f" = {UNKNOWN_DEFAULT!r}"
    return f"{stars}{about['name']}: {about['type']}{default}"


def short_call(tool: Tool, name: str) -> str:
    """Return a short call without types, such as `pack.tool(query, count=5)`.

    All required arguments are shown.
    """
    required = tool.input.required
    parts = _list_call_arguments(tool)
    prefix = _call_prefix(name)
    count = len(parts)
    text = f"{prefix}{', '.join(parts)})"
    while len(text) > MAX_CALL_CHARS and count >= len(required):
        text = f"{prefix}{', '.join([*parts[:count], '...'])})"
        count -= 1
    return clean_if_foreign(text, tool)


def _list_call_arguments(tool: Tool) -> list[str]:
    parts: list[str] = []
    is_by_name = False
    for name, part in _sort_arguments(tool):
        value = repr(part.get("default"))
        is_by_name = is_by_name or name in tool.input.keyword_only
        if name in tool.input.required:
            value = name if is_python_name(name) else "..."
        if not is_python_name(name):
            is_by_name = True
            parts.append(f"**{{{name!r}: {value}}}")
        elif name in tool.input.required and not is_by_name:
            parts.append(name)
        else:
            parts.append(f"{name}={value}")
    return parts


def required_types(tool: Tool) -> dict[str, str]:
    """Return the types of the required arguments, at most MAX_REQUIRED."""
    required = [
        (name, part) for name, part in tool.input.properties.items() if name in tool.input.required
    ]
    root = tool.input.json
    return {
        clean_if_foreign(name, tool): clean_if_foreign(type_name(part, root, 1), tool)
        for name, part in required[:MAX_REQUIRED]
    }


def arguments(tool: Tool) -> list[str]:
    """Return `name: description` for each argument with a description."""
    descriptions = ((name, part.get("description")) for name, part in tool.input.properties.items())
    return [
        clean_if_foreign(f"{name}: {' '.join(text.split())}", tool)
        for name, text in descriptions
        if text
    ]


def _python_expression(name: str) -> str:
    """Return the expression for a tool; `ot.pack` reaches packs with reserved names."""
    pack, dot, short = NOT_PYTHON.sub("_", name).rpartition(".")
    return (
        f'ot.pack("{pack}").{short}'
        if is_reserved(pack) and pack != OWN_PACK
        else f"{pack}{dot}{short}"
    )


def _call_prefix(name: str) -> str:
    """Return the call up to the first argument; `ot.call` for names that are keywords or builtins."""
    short = NOT_PYTHON.sub("_", name).rpartition(".")[2]
    is_hidden = iskeyword(short) or ("." not in name and is_reserved(short))
    return f'ot.call("{name}", ' if is_hidden else f"{_python_expression(name)}("


def clean_if_foreign(text: str, tool: Tool) -> str:
    """Sanitize a text of an upstream tool, whose names and defaults may contain anything."""
    return clean(text, MAX_CHARS) if tool.is_foreign else text


def _sort_arguments(tool: Tool) -> list[tuple[str, JsonMapping]]:
    """Return the arguments in the order of the schema, required ones first."""
    required = tool.input.required
    return sorted(tool.input.properties.items(), key=lambda item: item[0] not in required)


def type_name(part: Any, root: JsonMapping | None = None, levels: int = 0) -> str:
    """Return the Python type for part of a schema with definitions in `root`, or `Any`.

    Objects are shown with their fields, like a TypedDict, up to this number of levels.
    """
    return _TypeWriter(root or {}).write(part, levels)


class _TypeWriter:
    """A writer of one type.

    References can make a small schema very large or deep, so both are limited.
    """

    def __init__(self, root: JsonMapping) -> None:
        self._root = root
        self._left = MAX_TYPE_PARTS
        self._depth = 0
        self._open: list[Any] = []  # the objects around the part, to end recursion

    def write(self, part: Any, levels: int) -> str:
        self._left -= 1
        if self._left < 0 or self._depth >= MAX_TYPE_DEPTH:
            return "Any"
        self._depth += 1
        try:
            return self._write_part(flatten_schema(part, self._root), levels)
        finally:
            self._depth -= 1

    def _write_part(self, part: JsonMapping, levels: int) -> str:
        if "const" in part:
            return f"Literal[{part['const']!r}]"
        if isinstance(choices := part.get("enum"), list) and len(choices) <= MAX_CHOICES:
            return f"Literal[{', '.join(map(repr, choices))}]"
        for key in ("anyOf", "oneOf"):
            if isinstance(part.get(key), list):
                return self._join(self.write(choice, levels) for choice in part[key])
        kinds = part.get("type")
        if not isinstance(kinds, list):
            kinds = [kinds or ("object" if "properties" in part else None)]
        return self._join(self._write_kind(str(kind), part, levels) for kind in kinds)

    def _join(self, names: Iterable[str]) -> str:
        return " | ".join(dict.fromkeys(names)) or "Any"

    def _write_kind(self, kind: str, part: JsonMapping, levels: int) -> str:
        if kind == "array" and isinstance(part.get("items"), Mapping) and part["items"]:
            return f"list[{self.write(part['items'], levels)}]"
        if kind == "object" and isinstance(part.get("properties"), Mapping) and part["properties"]:
            return self._write_fields(part, levels)
        if kind == "object" and isinstance(part.get("additionalProperties"), Mapping) and levels:
            return f"dict[str, {self.write(part['additionalProperties'], levels)}]"
        return TYPE_NAMES.get(kind, "Any")

    def _write_fields(self, part: JsonMapping, levels: int) -> str:
        """Return the fields of an object: all, or if these are too long, the required ones."""
        properties = part["properties"]
        if not levels or any(field_schema is properties for field_schema in self._open):
            return TYPE_NAMES["object"]
        required = set(part.get("required") or ())
        self._open.append(properties)
        fields = {
            name: self.write(field_schema, levels - 1)
            for name, field_schema in islice(properties.items(), MAX_FIELDS)
        }
        self._open.pop()
        needed = [f"{name!r}: {fields[name]}" for name in fields if name in required]
        others = [
            f"{name!r}: NotRequired[{fields[name]}]" for name in fields if name not in required
        ]
        is_complete = len(fields) == len(properties)
        for shown in (
            [*needed, *others] if is_complete else [],
            [*needed, "**others"] if needed else [],
        ):
            if shown and len(text := f"{{{', '.join(shown)}}}") <= MAX_FIELDS_CHARS:
                return text
        return TYPE_NAMES["object"]
