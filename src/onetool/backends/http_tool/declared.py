"""Check that every placeholder of an HTTP tool names an argument of its schema.

A placeholder that no argument fills would be dropped from the request, and credentials with it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from onetool.registry import nearest

if TYPE_CHECKING:
    from onetool.backends.http_tool.impl import HttpImpl

MAX_SCHEMAS: Final = 1_000  # to search
MAX_NAMES_SHOWN: Final = 20
_SEVERAL: Final = ("allOf", "anyOf", "oneOf")
_SINGLE: Final = ("if", "then", "else")


def placeholder_problem(impl: "HttpImpl", schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the first placeholder that names no argument, or None."""
    arguments, patterns = _declared_in(schema)
    unknown = sorted(name for name in impl.placeholders - arguments if not _matches(name, patterns))
    return _message(unknown[0], sorted(arguments)) if unknown else None


def _message(name: str, arguments: list[str]) -> str:
    near = nearest(name, arguments)
    meant = f", did you mean ${{{near[0]}}}?" if near else ""
    listed = ", ".join(arguments[:MAX_NAMES_SHOWN]) or "none"
    return (
        f"unknown placeholder ${{{name}}}{meant} Arguments in argSchema: {listed}. "
        f"Hint: write ${{secret:{name}}} for a secret, or add {name} to the properties of argSchema"
    )


def _declared_in(schema: Mapping[str, Any]) -> tuple[set[str], list[str]]:
    names: set[str] = set()
    patterns: list[str] = []
    for part in _parts_of(schema):
        properties, required = part.get("properties"), part.get("required")
        names |= set(properties) if isinstance(properties, Mapping) else set()
        names |= {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        patterns += part["patternProperties"] if isinstance(part.get("patternProperties"), Mapping) else []
    return names, patterns


def _parts_of(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schema and all subschemas that apply to the same object."""
    waiting: list[Any] = [schema]
    seen: set[int] = set()
    while waiting and len(seen) < MAX_SCHEMAS:
        part = waiting.pop()
        if isinstance(part, Mapping) and id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting += [one for key in _SEVERAL if isinstance(part.get(key), list) for one in part[key]]
            waiting += [part[key] for key in _SINGLE if key in part]
            waiting += part["dependentSchemas"].values() if isinstance(part.get("dependentSchemas"), Mapping) else []
            waiting.append(_target(schema, part.get("$ref")))


def _target(schema: Mapping[str, Any], reference: object) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = schema
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _matches(name: str, patterns: Iterable[str]) -> bool:
    for pattern in patterns:
        try:
            if re.search(pattern, name):
                return True
        except re.error:
            continue
    return False
