"""Estimate how long a validator takes for a value.

Schemas of upstream servers and stored tools may be hostile.

A few lines of references to the same definitions can require billions of checks, with the
interpreter lock held. A pattern in linear time takes up to 0.04 µs for each of its states and each
character, as long as four checks.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import inf
from typing import Any
from urllib.parse import unquote

from onetool_child.json_types import JsonMapping, JsonObject

MAX_STEPS = 5_000
WORK_PER_STATE = 4  # and character, in checks
IN_PLACE = ("not", "if", "then", "else")  # schemas for the same value
IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
IN_PLACE_MAPPINGS = ("dependentSchemas", "dependencies")
ITEMS = ("items", "additionalItems", "contains", "unevaluatedItems")
MEMBERS = ("additionalProperties", "unevaluatedProperties")
UNRESOLVED = ("$dynamicRef", "$recursiveRef")
REFERENCES = ("$ref", *UNRESOLVED)
PATTERN_TOKEN = re.compile(
    r"\\[pP](?:\{[^{}]*\})?|\\.|\[\^?\]?(?:[^\]\\]|\\.)*+\]?|\{(?P<least>[0-9]{1,9})(?:,(?P<most>[0-9]{0,9}))?\}|.",
    re.DOTALL,
)
UNICODE_PROPERTY = re.compile(r"\\[pP]")
STATES_PER_PROPERTY = 40
OLD_DRAFTS = ("draft-03", "draft-04")  # in which `id` is what `$id` is today


class _Unbounded(Exception):
    """The number of checks is not known, or the estimate takes too long."""


def expands_too_far(schema: JsonMapping, max_checks: int) -> bool:
    """Return whether any part of the schema may need more checks than `max_checks` for a single
    value.
    """
    estimate = _Estimate(schema)
    try:
        return any(estimate.count(part, None) > max_checks for part in list_objects(schema))
    except (_Unbounded, RecursionError):
        return True


def is_expensive(schema: JsonMapping, value: Any, max_checks: int) -> bool:
    """Return whether a validator may make more checks than `max_checks`, if it remembers none of
    them.
    """
    try:
        return _Estimate(schema, min(MAX_STEPS, max_checks)).count(schema, value) > max_checks
    except (_Unbounded, RecursionError):
        return True


def list_objects(schema: Any) -> Iterator[JsonObject]:
    """Yield all objects in a schema, at any depth."""
    parts = [schema]
    for part in parts:  # which grows
        if isinstance(part, dict):
            yield part
            parts += part.values()
        elif isinstance(part, list):
            parts += part


def follow_pointer(schema: Any, steps: Iterable[str]) -> Any:
    """Return the part of a schema at the steps of a JSON pointer; None if it is missing."""
    for step in steps:
        key = step.replace("~1", "/").replace("~0", "~")
        try:
            schema = schema[int(key)] if isinstance(schema, list) else schema[key]
        except (LookupError, TypeError, ValueError):
            return None
    return schema


@lru_cache(maxsize=4_096)
def weigh_pattern(pattern: str) -> int:
    """Return the number of states of a pattern, roughly: a counted repetition repeats what is
    before it.
    """
    groups: list[int] = []
    total = 0  # of the current group
    last = 0  # of the last character, class or group
    for token in PATTERN_TOKEN.finditer(pattern):
        if token[0] == "(":
            groups.append(total)
            total = 0
        elif token[0] == ")" and groups:
            last = total
            total += groups.pop()
        elif token["least"]:
            repeats = int(token["most"] or token["least"])
            total += last * max(0, repeats - 1)
            last *= max(1, repeats)
        else:
            last = 1 + STATES_PER_PROPERTY * len(UNICODE_PROPERTY.findall(token[0]))
            total += last
    return total + sum(groups)


class _Estimate:
    def __init__(self, root: JsonMapping, max_steps: float = inf) -> None:
        self._root = root
        self._steps_left = max_steps
        is_old = any(name in str(root.get("$schema")) for name in OLD_DRAFTS)
        self._bases = ("$id", "id") if is_old else ("$id",)
        self._counts: dict[tuple[int, int], int] = {}
        self._weights: dict[int, tuple[int, int]] = {}

    def count(self, schema: Any, value: Any) -> int:
        """Return the number of checks.

        A schema that refers to itself for the same value counts once.
        """
        self._take_steps(1)
        if not isinstance(schema, Mapping):
            return 1
        key = id(schema), id(value)
        if key not in self._counts:
            if schema is not self._root and self._has_base(schema):
                raise _Unbounded
            self._counts[key] = 1
            checks = sum(self.count(*each) for each in self._list_checks(schema, value))
            self._counts[key] = 1 + checks + self._weigh_keywords(schema, value)
        return self._counts[key]

    def _take_steps(self, count: int) -> None:
        self._steps_left -= count
        if self._steps_left < 0:
            raise _Unbounded

    def _weigh_keywords(self, schema: JsonMapping, value: Any) -> int:
        """Return the work for keywords without schemas: lists of names and values, and patterns."""
        if value is None:
            return 0
        if id(schema) not in self._weights:
            self._take_steps(len(schema))
            lists = sum(len(part) for part in schema.values() if isinstance(part, list))
            patterns = [str(schema.get("pattern", "")), *_mapping(schema.get("patternProperties"))]
            self._take_steps(len(patterns))
            self._weights[id(schema)] = lists, WORK_PER_STATE * sum(map(weigh_pattern, patterns))
        lists, states = self._weights[id(schema)]
        if states and isinstance(value, str):
            return lists + states * len(value)
        if states and isinstance(value, dict):
            self._take_steps(len(value))
            return lists + states * (sum(map(len, value)) + len(value))
        return lists

    def _has_base(self, schema: JsonMapping) -> bool:
        """Return whether the schema has a base URI of its own, to which references inside of it are
        relative.
        """
        return any(isinstance(schema.get(name), str) for name in self._bases)

    def _list_checks(self, schema: JsonMapping, value: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the schemas that are checked next, with their values."""
        if any(name in schema for name in UNRESOLVED):
            raise _Unbounded
        if "$ref" in schema:
            yield self._resolve(schema["$ref"]), value
        yield from ((schema[name], value) for name in IN_PLACE if name in schema)
        yield from ((each, value) for name in IN_PLACE_LISTS for each in _list(schema.get(name)))
        yield from (
            (each, value)
            for name in IN_PLACE_MAPPINGS
            for each in _mapping(schema.get(name)).values()
        )
        if isinstance(value, dict):
            known = _mapping(schema.get("properties"))
            patterns = _mapping(schema.get("patternProperties")).values()
            others = [*patterns, *(schema[name] for name in MEMBERS if name in schema)]
            names = schema.get("propertyNames")
            for name, member in value.items():
                yield names, name
                yield from (
                    (each, member)
                    for each in ([known[name], *patterns] if name in known else others)
                )
        elif isinstance(value, list):
            everywhere = [each for name in ITEMS for each in _list(schema.get(name))]
            for item in value:
                yield from (
                    (each, item) for each in (*everywhere, *_list(schema.get("prefixItems")))
                )

    def _resolve(self, reference: Any) -> Any:
        """Return the schema in this document; None if it is missing, which the validator reports."""
        head, *steps = unquote(reference).split("/") if isinstance(reference, str) else [""]
        if head != "#":
            raise _Unbounded
        return follow_pointer(self._root, steps)


def _list(part: Any) -> list[Any]:
    return part if isinstance(part, list) else [] if part is None else [part]


def _mapping(part: Any) -> JsonMapping:
    return part if isinstance(part, Mapping) else {}
