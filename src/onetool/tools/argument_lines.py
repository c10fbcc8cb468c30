"""The arguments of a tool as lines of `ot.help`, with the fields of objects in them."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from onetool.core.schema import flatten_schema
from onetool.core.signature import MAX_CHOICES, type_name
from onetool_child.json_types import JsonMapping

MAX_LEVELS = 3  # of nested objects
MAX_LINES = 100
MAX_LISTED_CHOICES = 40
MAX_TEXT_CHARS = 500  # of the description of a field
MAX_DEFAULT_CHARS = 100


def list_arguments(schema: JsonMapping) -> list[str]:
    """Return a line for each argument, and for the fields of objects and lists of objects in it."""
    properties = schema.get("properties") or {}
    lines = [*islice(_list_fields(properties, schema, 0, None, ()), MAX_LINES + 1)]
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], "- ... more fields: see info='full'"]


def _list_fields(
    properties: JsonMapping, root: JsonMapping, level: int, required: Any, around: tuple[Any, ...]
) -> Iterator[str]:
    for name, declared in properties.items():
        part = declared if isinstance(declared, Mapping) else {}
        yield f"{'  ' * level}- {name} ({_describe_field(name, part, root, required)}){_describe_text(part, root)}"
        if level + 1 >= MAX_LEVELS:
            continue
        forms = [form for form in _find_objects(part, root) if all(form["properties"] is not each for each in around)]
        for number, form in enumerate(forms, 1):
            if len(forms) > 1:
                yield f"{'  ' * (level + 1)}form {number} of {len(forms)}:"
            fields = form["properties"]
            yield from _list_fields(fields, root, level + 1, form.get("required") or (), (*around, fields))


def _describe_field(name: str, part: JsonMapping, root: JsonMapping, required: Any) -> str:
    """Return the type of a field and, inside an object, whether it is required."""
    kind = type_name(part, root)
    if required is None:  # an argument: the signature has its default
        return kind
    if name in required:
        return f"{kind}, required"
    default = part.get("default")
    return kind if default is None else f"{kind}, default {repr(default)[:MAX_DEFAULT_CHARS]}"


def _describe_text(part: JsonMapping, root: JsonMapping) -> str:
    target = flatten_schema(part, root)
    text = " ".join(str(part.get("description") or target.get("description") or "").split())[:MAX_TEXT_CHARS]
    choices = target.get("enum")
    if isinstance(choices, list) and len(choices) > MAX_CHOICES:
        more = ", ..." if len(choices) > MAX_LISTED_CHOICES else ""
        text = f"{text} One of: {', '.join(map(repr, choices[:MAX_LISTED_CHOICES]))}{more}".strip()
    return f" - {text}" if text else ""


def _find_objects(part: Any, root: JsonMapping, depth: int = 0) -> Iterator[JsonMapping]:
    """Yield the objects with fields that a value may be, or that its items or the values of its keys may be."""
    target = flatten_schema(part, root)
    if isinstance(target.get("properties"), Mapping) and target["properties"]:
        yield target
        return
    inner = [target.get("items"), target.get("additionalProperties")]
    for key in ("anyOf", "oneOf"):
        inner += target[key][:MAX_CHOICES] if isinstance(target.get(key), list) else ()
    for each in inner:
        if isinstance(each, Mapping) and depth < MAX_LEVELS:
            yield from _find_objects(each, root, depth + 1)
