"""Estimate how long a validator takes for a value. Schemas of upstream servers and stored tools may be hostile.

A few lines of references to the same definitions can require billions of checks, with the interpreter lock held.
"""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, Final
from urllib.parse import unquote

MAX_STEPS: Final = 20_000
IN_PLACE: Final = ("not", "if", "then", "else")  # schemas for the same value
IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
IN_PLACE_MAPPINGS: Final = ("dependentSchemas", "dependencies")
ITEMS: Final = ("items", "additionalItems", "contains", "unevaluatedItems")
MEMBERS: Final = ("additionalProperties", "unevaluatedProperties")
UNRESOLVED: Final = ("$dynamicRef", "$recursiveRef")
REFERENCES: Final = ("$ref", *UNRESOLVED)
OLD_DRAFTS: Final = ("draft-03", "draft-04")  # in which `id` is what `$id` is today


class _Unbounded(Exception):
    """The number of checks is not known, or the estimate takes too long."""


def expands_too_far(schema: Mapping[str, Any], max_checks: int) -> bool:
    """Return whether any part of the schema may need more checks than `max_checks` for a single value."""
    estimate, parts = _Estimate(schema), [schema]
    try:
        while parts:
            part: Any = parts.pop()
            if isinstance(part, Mapping) and estimate.count(part, None) > max_checks:
                return True
            parts += part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ()
    except (_Unbounded, RecursionError):
        return True
    return False


def is_expensive(schema: Mapping[str, Any], value: Any, max_checks: int) -> bool:
    """Return whether a validator may make more checks than `max_checks`, if it remembers none of them."""
    try:
        return _Estimate(schema, MAX_STEPS).count(schema, value) > max_checks
    except (_Unbounded, RecursionError):
        return True


class _Estimate:
    def __init__(self, root: Mapping[str, Any], max_steps: float = inf) -> None:
        self._root, self._max_steps = root, max_steps
        is_old = any(name in str(root.get("$schema")) for name in OLD_DRAFTS)
        self._bases = ("$id", "id") if is_old else ("$id",)
        self._counts: dict[tuple[int, int], int] = {}

    def count(self, schema: Any, value: Any) -> int:
        """Return the number of checks. A schema that refers to itself for the same value counts once."""
        if not isinstance(schema, Mapping):
            return 1
        key = id(schema), id(value)
        if key not in self._counts:
            if len(self._counts) >= self._max_steps or (schema is not self._root and self._has_base(schema)):
                raise _Unbounded
            self._counts[key] = 1
            self._counts[key] = 1 + sum(self.count(*each) for each in self._list_checks(schema, value))
        return self._counts[key]

    def _has_base(self, schema: Mapping[str, Any]) -> bool:
        """Return whether the schema has a base URI of its own, to which references inside of it are relative."""
        return any(isinstance(schema.get(name), str) for name in self._bases)

    def _list_checks(self, schema: Mapping[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the schemas that are checked next, with their values."""
        if any(name in schema for name in UNRESOLVED):
            raise _Unbounded
        if "$ref" in schema:
            yield self._resolve(schema["$ref"]), value
        yield from ((schema[name], value) for name in IN_PLACE if name in schema)
        yield from ((each, value) for name in IN_PLACE_LISTS for each in _list(schema.get(name)))
        yield from ((each, value) for name in IN_PLACE_MAPPINGS for each in _mapping(schema.get(name)).values())
        if isinstance(value, dict):
            known, patterns = _mapping(schema.get("properties")), _mapping(schema.get("patternProperties")).values()
            others = [*patterns, *(schema[name] for name in MEMBERS if name in schema)]
            for name, member in value.items():
                yield from ((each, member) for each in ([known[name], *patterns] if name in known else others))
        elif isinstance(value, list):
            everywhere = [each for name in ITEMS for each in _list(schema.get(name))]
            for item in value:
                yield from ((each, item) for each in (*everywhere, *_list(schema.get("prefixItems"))))

    def _resolve(self, reference: Any) -> Any:
        """Return the schema in this document; None if it is missing, which the validator reports."""
        found: Any = self._root
        head, *steps = unquote(reference).split("/") if isinstance(reference, str) else [""]
        if head != "#":
            raise _Unbounded
        for step in steps:
            key = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key)] if isinstance(found, list) else found[key]
            except (LookupError, TypeError, ValueError):
                return None
        return found


def _list(part: Any) -> list[Any]:
    return part if isinstance(part, list) else [] if part is None else [part]


def _mapping(part: Any) -> Mapping[str, Any]:
    return part if isinstance(part, Mapping) else {}
