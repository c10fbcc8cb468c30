"""Check that every placeholder of an HTTP tool names an argument of its schema.

A placeholder that no argument fills would be dropped from the request, and credentials with it. A definition cannot
choose a file: only a caller names the files that are sent or written.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from onetool.backends.http_tool.placeholders import STEPS
from onetool.core.foreign_schema import ForeignSchema
from onetool.core.registry import nearest
from onetool.core.schema import Schema
from onetool.errors import ArgumentError
from onetool.util.text import did_you_mean
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.backends.http_tool.impl import HttpImpl

MAX_SCHEMAS = 1_000  # subschemas to search
MAX_NAMES_SHOWN = 20
_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf")
_SCHEMA_KEYWORDS = ("if", "then", "else")


def find_placeholder_problem(impl: "HttpImpl", schema: JsonMapping) -> str | None:
    """Return the problem with the first placeholder that names no argument, or None."""
    arguments, patterns = find_arguments(schema)
    try:
        unknown = _find_unmatched(sorted(impl.arguments - arguments), patterns)
    except ArgumentError as error:
        return f"{error.message}. Hint: declare the arguments in properties"
    if unknown is not None:
        return _format_problem(unknown, sorted(arguments))
    if impl.steps and STEPS in arguments:
        return f"the argument {STEPS} of argSchema conflicts with httpImpl.steps; rename the argument"
    with_default = sorted(impl.file_arguments & Schema.from_json(schema).defaults.keys())
    return f"argSchema.properties.{with_default[0]} names a file and must not have a default" if with_default else None


def _format_problem(name: str, arguments: list[str]) -> str:
    suggestion = did_you_mean(f"${{{match}}}" for match in nearest(name, arguments)[:1])
    names = ", ".join(arguments[:MAX_NAMES_SHOWN]) or "none"
    return (
        f"unknown placeholder ${{{name}}}.{suggestion} Arguments in argSchema: {names}. "
        f"Hint: write ${{secret:{name}}} for a secret, or add {name} to the properties of argSchema"
    )


def find_arguments(schema: JsonMapping) -> tuple[set[str], list[str]]:
    """Return the names of the arguments that a schema declares, and patterns of further ones."""
    names: set[str] = set()
    patterns: list[str] = []
    for part in _iterate_subschemas(schema):
        properties = part.get("properties")
        required = part.get("required")
        names |= set(properties) if isinstance(properties, Mapping) else set()
        names |= {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        patterns += part["patternProperties"] if isinstance(part.get("patternProperties"), Mapping) else []
    return names, patterns


def _iterate_subschemas(schema: JsonMapping) -> Iterator[JsonMapping]:
    """Yield the schema and all subschemas that apply to the same object."""
    pending: list[Any] = [schema]
    seen: set[int] = set()
    while pending and len(seen) < MAX_SCHEMAS:
        part = pending.pop()
        if isinstance(part, Mapping) and id(part) not in seen:
            seen.add(id(part))
            yield part
            pending += [
                subschema for key in _LIST_KEYWORDS if isinstance(part.get(key), list) for subschema in part[key]
            ]
            pending += [part[key] for key in _SCHEMA_KEYWORDS if key in part]
            pending += part["dependentSchemas"].values() if isinstance(part.get("dependentSchemas"), Mapping) else []
            pending.append(_resolve_reference(schema, part.get("$ref")))


def _resolve_reference(schema: JsonMapping, reference: object) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    target: Any = schema
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, Mapping) else None
    return target


def _find_unmatched(names: Collection[str], patterns: Iterable[str]) -> str | None:
    """Return a name that matches none of the patterns, which are those of a foreign schema; None if all do."""
    names_only = {"patternProperties": {pattern: {} for pattern in patterns}, "additionalProperties": False}
    schema = ForeignSchema.from_json(names_only)
    if schema.is_costly(dict.fromkeys(names)):
        raise ArgumentError("checking the placeholders against patternProperties takes too long")
    return next((name for name in names if schema.problem({name: None}) is not None), None)
