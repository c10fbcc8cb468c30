"""Translation of schema keywords without subschemas to JSON Schema 2020-12, including those of older versions.

Keywords with values of the wrong type are omitted. `schemas` translates the keywords with subschemas.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

from onetool.bundles.openapi.descriptions import MAX_DETAIL_LENGTH, shorten
from onetool.bundles.openapi.document import as_list
from onetool.core.context import is_data
from onetool.core.foreign_schema import is_linear
from onetool.util.sanitize import clean
from onetool_child.json_types import JsonObject

MAX_VALUE_CHARS = 300  # characters of an example or a default
MAX_CHOICES = 500

_TYPES = {"string", "number", "integer", "boolean", "array", "object", "null"}
_TYPE_ALIASES = {"file": "string", "int": "integer", "float": "number", "double": "number", "bool": "boolean"}
_TYPE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
_NUMBER_KEYWORDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_COUNT_KEYWORDS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_COUNT_KEYWORDS |= {"minContains", "maxContains"}
_TEXT_KEYWORDS = {"format", "contentEncoding", "contentMediaType"}
_TEXT_PATTERN = re.compile(r"[\w./+-]{1,60}")
SCHEMA_KEYWORDS = {"not", "contains", "propertyNames", "if", "then", "else", "additionalProperties"}
LIST_KEYWORDS = {"allOf", "anyOf", "oneOf", "prefixItems"}
MAP_KEYWORDS = {"properties", "patternProperties", "dependentSchemas"}
SUBSCHEMA_KEYWORDS = SCHEMA_KEYWORDS | LIST_KEYWORDS | MAP_KEYWORDS | {"items"}
_ANNOTATION_KEYWORDS = {"title", "description", "default", "examples", "deprecated"}


def translate_simple_keywords(schema: JsonObject) -> Iterator[tuple[str, Any]]:
    yield "type", _convert_type(schema.get("type"))
    yield "format", "binary" if schema.get("type") == "file" else None
    for key in ("title", "description"):
        yield key, shorten(schema.get(key), MAX_DETAIL_LENGTH) or None
    yield "enum", _collect_choices(schema.get("enum"))
    yield "examples", _collect_examples(schema)
    if "const" in schema:
        yield "enum", [schema["const"]]
    if "default" in schema and is_short(schema["default"]):
        yield "default", schema["default"]
    for key, value in schema.items():
        if _is_simple(key, value):
            yield key, value


def _is_simple(key: str, value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return (
        (key in _NUMBER_KEYWORDS and is_number)
        or (key == "multipleOf" and is_number and value > 0)
        or (key in _COUNT_KEYWORDS and is_number and value >= 0 and value == int(value))
        or (key in _TEXT_KEYWORDS and isinstance(value, str) and _TEXT_PATTERN.fullmatch(value) is not None)
        or (key == "pattern" and isinstance(value, str) and is_linear(value))
        or (key == "uniqueItems" and isinstance(value, bool))
        or (key == "deprecated" and value is True)
    )


def _convert_type(value: Any) -> Any:
    if isinstance(value, list):
        return [kind for kind in dict.fromkeys(map(str, value)) if kind in _TYPES] or None
    kind = _TYPE_ALIASES.get(value, value) if isinstance(value, str) else None
    return kind if kind in _TYPES else None


def _collect_choices(value: Any) -> list[Any] | None:
    choices: list[Any] = []
    for choice in as_list(value)[:MAX_CHOICES]:
        if not any(choice == other and type(choice) is type(other) for other in choices):
            choices.append(choice)
    return choices if choices and len(as_list(value)) <= MAX_CHOICES else None


def _collect_examples(schema: JsonObject) -> list[Any] | None:
    examples = schema["examples"] if isinstance(schema.get("examples"), list) else [schema.get("example")]
    return [example for example in examples if example is not None and is_short(example)][:2] or None


def is_short(value: Any) -> bool:
    """Return whether a value can be shown to a model: short, and unchanged by the sanitizer of descriptions."""
    return is_data(value) and len(text := str(value)) <= MAX_VALUE_CHARS and clean(text) == text


def list_strings(value: Any) -> list[str]:
    return list(dict.fromkeys(name for name in as_list(value) if isinstance(name, str)))


def normalize(parts: JsonObject, schema: JsonObject) -> JsonObject:
    """Normalize all keywords of a schema together."""
    return apply_nullable(
        _unwrap_single_all_of(_drop_conflicting_type(_convert_exclusive_bounds(parts, schema))), schema
    )


# --- older versions ------------------------------------------------------------------------------------------------


def _convert_exclusive_bounds(parts: JsonObject, schema: JsonObject) -> JsonObject:
    """Convert the old form `exclusiveMinimum: true` with a `minimum`."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and bound in parts:
            parts[exclusive] = parts.pop(bound)
    return parts


def apply_nullable(parts: JsonObject, schema: JsonObject) -> JsonObject:
    if schema.get("nullable") is not True and schema.get("x-nullable") is not True:
        return parts
    if "enum" in parts and None not in parts["enum"]:
        parts = {**parts, "enum": [*parts["enum"], None]}
    kind = parts.get("type")
    if kind is not None:
        return {**parts, "type": [*([kind] if isinstance(kind, str) else [k for k in kind if k != "null"]), "null"]}
    if not parts.keys() & (SUBSCHEMA_KEYWORDS | {"$ref"}):
        return parts
    annotations = {key: value for key, value in parts.items() if key in _ANNOTATION_KEYWORDS}
    return {"anyOf": [{key: parts[key] for key in parts if key not in annotations}, {"type": "null"}], **annotations}


def _drop_conflicting_type(parts: JsonObject) -> JsonObject:
    """Drop a type that forbids all values of `enum`."""
    types = [parts["type"]] if isinstance(parts.get("type"), str) else parts.get("type")
    if types and "enum" in parts and not any(_TYPE_CHECKS[kind](choice) for kind in types for choice in parts["enum"]):
        del parts["type"]
    return parts


def _unwrap_single_all_of(parts: JsonObject) -> JsonObject:
    """Unwrap `allOf` of one schema, which was used to add annotations to a reference."""
    if len(parts.get("allOf", ())) != 1 or parts.keys() - _ANNOTATION_KEYWORDS - {"allOf"}:
        return parts
    return {**parts["allOf"][0], **{key: value for key, value in parts.items() if key != "allOf"}}
