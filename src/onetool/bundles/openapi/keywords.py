"""Translation of schema keywords without subschemas to JSON Schema 2020-12, including keywords of older versions.

Keywords with values of the wrong type are omitted. `schemas` translates the keywords with subschemas.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any, Final

from onetool.bundles.openapi.document import as_list
from onetool.bundles.openapi.texts import MAX_DETAIL_LENGTH, shorten
from onetool.sanitize import clean
from onetool.schema import is_data

JSON = dict[str, Any]
MAX_DATA: Final = 300  # characters of an example or a default
MAX_CHOICES: Final = 500

_TYPES = {"string", "number", "integer", "boolean", "array", "object", "null"}
_SLOPPY_TYPES = {"file": "string", "int": "integer", "float": "number", "double": "number", "bool": "boolean"}
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_COUNTS |= {"minContains", "maxContains"}
_TEXTS = {"format", "contentEncoding", "contentMediaType"}
_TEXT = re.compile(r"[\w./+-]{1,60}")
SCHEMAS = {"not", "contains", "propertyNames", "if", "then", "else", "additionalProperties"}
LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
MAPS = {"properties", "patternProperties", "dependentSchemas"}
SUBSCHEMAS = SCHEMAS | LISTS | MAPS | {"items"}
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated"}


def simple_parts(schema: JSON) -> Iterator[tuple[str, Any]]:
    yield "type", _type(schema.get("type"))
    for key in ("title", "description"):
        yield key, shorten(schema.get(key), MAX_DETAIL_LENGTH) or None
    yield "enum", _choices(schema.get("enum"))
    yield "examples", _examples(schema)
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
        (key in _NUMBERS and is_number)
        or (key == "multipleOf" and is_number and value > 0)
        or (key in _COUNTS and is_number and value >= 0 and value == int(value))
        or (key in _TEXTS and isinstance(value, str) and _TEXT.fullmatch(value) is not None)
        or (key == "pattern" and isinstance(value, str) and compiles(value))
        or (key == "uniqueItems" and isinstance(value, bool))
        or (key == "deprecated" and value is True)
    )


def _type(value: Any) -> Any:
    if isinstance(value, list):
        return [kind for kind in dict.fromkeys(map(str, value)) if kind in _TYPES] or None
    kind = _SLOPPY_TYPES.get(value, value) if isinstance(value, str) else None
    return kind if kind in _TYPES else None


def _choices(value: Any) -> list[Any] | None:
    choices: list[Any] = []
    for choice in as_list(value)[:MAX_CHOICES]:
        if not any(choice == other and type(choice) is type(other) for other in choices):
            choices.append(choice)
    return choices if choices and len(as_list(value)) <= MAX_CHOICES else None


def _examples(schema: JSON) -> list[Any] | None:
    given = schema["examples"] if isinstance(schema.get("examples"), list) else [schema.get("example")]
    return [example for example in given if example is not None and is_short(example)][:2] or None


def is_short(value: Any) -> bool:
    """Return whether a value can be shown to a model: it must be as harmless as a description."""
    return is_data(value) and len(text := str(value)) <= MAX_DATA and clean(text) == text


def names_in(value: Any) -> list[str]:
    return list(dict.fromkeys(name for name in as_list(value) if isinstance(name, str)))


@functools.lru_cache(maxsize=4_096)
def compiles(pattern: str) -> bool:
    import jsonschema_rs

    try:
        jsonschema_rs.validator_for({"pattern": pattern})
    except (ValueError, jsonschema_rs.ValidationError):
        return False
    return True


def finished(parts: JSON, schema: JSON) -> JSON:
    """Normalize all keywords of a schema together."""
    return nullable(_unwrap_all_of(_drop_wrong_type(_limits(parts, schema))), schema)


# --- older versions ------------------------------------------------------------------------------------------------


def _limits(parts: JSON, schema: JSON) -> JSON:
    """Convert the old form `exclusiveMinimum: true` with a `minimum`."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and bound in parts:
            parts[exclusive] = parts.pop(bound)
    return parts


def nullable(parts: JSON, schema: JSON) -> JSON:
    if schema.get("nullable") is not True and schema.get("x-nullable") is not True:
        return parts
    if "enum" in parts and None not in parts["enum"]:
        parts = {**parts, "enum": [*parts["enum"], None]}
    kind = parts.get("type")
    if kind is not None:
        return {**parts, "type": [*([kind] if isinstance(kind, str) else [k for k in kind if k != "null"]), "null"]}
    if not parts.keys() & (SUBSCHEMAS | {"$ref"}):
        return parts
    kept = {key: value for key, value in parts.items() if key in _ANNOTATIONS}
    return {"anyOf": [{key: parts[key] for key in parts if key not in kept}, {"type": "null"}], **kept}


def _drop_wrong_type(parts: JSON) -> JSON:
    """Drop a type that forbids all values of `enum`."""
    kinds = [parts["type"]] if isinstance(parts.get("type"), str) else parts.get("type")
    if kinds and "enum" in parts and not any(_CHECKS[kind](choice) for kind in kinds for choice in parts["enum"]):
        del parts["type"]
    return parts


def _unwrap_all_of(parts: JSON) -> JSON:
    """Unwrap `allOf` of one schema, which was used to add annotations to a reference."""
    if len(parts.get("allOf", ())) != 1 or parts.keys() - _ANNOTATIONS - {"allOf"}:
        return parts
    return {**parts["allOf"][0], **{key: value for key, value in parts.items() if key != "allOf"}}
