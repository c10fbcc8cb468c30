"""Work on schemas: how long a validator takes, errors of alternatives, conversions and references.

Schemas of upstream servers and stored tools may be hostile. A few lines of references to the same
definitions can require billions of checks, with the interpreter lock held. A pattern in linear time
takes up to 0.04 µs for each of its states and each character, as long as four checks.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice, repeat
from math import inf, isfinite
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


MAX_PROBLEM_CHARS = 1_000  # characters of a validation message
MAX_CHOICES = 10  # alternatives or values that a validation message lists
MAX_REFERENCES = 20  # from one schema to the next
MAX_ALL_OF_DEPTH = 3
MAX_INTEGER = 10**40
CONVERTIBLE = (float, list, dict)  # an integer may be a float, or in a list or an object
NUMBER = re.compile(r"-?(0|[1-9]\d{0,39})(\.\d{1,40})?([eE][+-]?\d{1,3})?", re.ASCII)  # as in JSON


class _Unbounded(Exception):
    """The number of checks is not known, or the estimate takes too long."""


def expands_too_far(schema: JsonMapping, max_checks: int) -> bool:
    """Return whether a part of the schema may need too many checks for one value."""
    estimate = _Estimate(schema)
    try:
        return any(estimate.count(part, None) > max_checks for part in list_objects(schema))
    except (_Unbounded, RecursionError):
        return True


def is_expensive(schema: JsonMapping, value: Any, max_checks: int) -> bool:
    """Return whether a validator without memory may make more than `max_checks`."""
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
    """Return the rough number of pattern states; counted repetitions repeat their states."""
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
            checks = sum(self.count(*check) for check in self._list_checks(schema, value))
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
        """Return whether the schema has its own base URI for the references in it."""
        return any(isinstance(schema.get(name), str) for name in self._bases)

    def _list_checks(self, schema: JsonMapping, value: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the schemas that are checked next, with their values."""
        if any(name in schema for name in UNRESOLVED):
            raise _Unbounded
        if "$ref" in schema:
            yield self._resolve(schema["$ref"]), value
        yield from ((schema[name], value) for name in IN_PLACE if name in schema)
        yield from (
            (subschema, value) for name in IN_PLACE_LISTS for subschema in _list(schema.get(name))
        )
        yield from (
            (subschema, value)
            for name in IN_PLACE_MAPPINGS
            for subschema in _mapping(schema.get(name)).values()
        )
        if isinstance(value, dict):
            properties = _mapping(schema.get("properties"))
            patterns = _mapping(schema.get("patternProperties")).values()
            others = [*patterns, *(schema[name] for name in MEMBERS if name in schema)]
            names = schema.get("propertyNames")
            for name, member in value.items():
                yield names, name
                yield from (
                    (subschema, member)
                    for subschema in (
                        [properties[name], *patterns] if name in properties else others
                    )
                )
        elif isinstance(value, list):
            everywhere = [subschema for name in ITEMS for subschema in _list(schema.get(name))]
            for item in value:
                yield from (
                    (subschema, item)
                    for subschema in (*everywhere, *_list(schema.get("prefixItems")))
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


# --- errors and conversions -----------------------------------------------------------------------


def shorten(message: str) -> str:
    """Shorten a message that quotes a long value in the middle; the end says what is wrong."""
    if len(message) <= MAX_PROBLEM_CHARS:
        return message
    return f"{message[: MAX_PROBLEM_CHARS // 2]}...{message[-MAX_PROBLEM_CHARS // 2 :]}"


def choose_alternative(error: Any) -> Any:
    """Return the error of the only alternative that accepts this type, if there is one."""
    alternatives = [
        alternative
        for alternative in get_alternatives(error)
        if not _is_other_type(alternative, error)
    ]
    return alternatives[0][0] if len(alternatives) == 1 and alternatives[0] else None


def get_alternatives(error: Any) -> list[list[Any]]:
    """Return the errors of each alternative of a union that does not accept a value."""
    return error.kind.context if type(error.kind).__name__ in {"AnyOf", "OneOfNotValid"} else []


def _is_other_type(alternative: list[Any], error: Any) -> bool:
    """Return whether an alternative rejects the value itself because of its type."""
    return any(
        hasattr(cause.kind, "types") and cause.instance_path == error.instance_path
        for cause in alternative
    )


def find_conversions(error: Any) -> Iterator[tuple[list[str | int], Any]]:
    """Yield where a string is a number or boolean that the schema requires, and its value."""
    if (chosen := choose_alternative(error)) is not None:
        yield from find_conversions(chosen)
        return
    alternatives = get_alternatives(error) or [[error]]
    rejected = [
        cause
        for alternative in alternatives
        for cause in alternative
        if cause.instance_path == error.instance_path
    ]
    if len(rejected) < len(alternatives) or not all(
        hasattr(cause.kind, "types") for cause in rejected
    ):
        return
    kinds = {kind for cause in rejected for kind in cause.kind.types} - {"null"}
    if error.instance_path and isinstance(error.instance, str) and len(kinds) == 1:
        value = parse_scalar(error.instance, *kinds)
        if value is not None:
            yield error.instance_path, value


def parse_scalar(text: str, kind: str) -> int | float | bool | None:
    """Return the number or boolean that a string denotes without loss; None otherwise."""
    if kind == "boolean":
        return {"true": True, "false": False}.get(text.lower())
    if kind not in {"integer", "number"} or not NUMBER.fullmatch(text):
        return None
    from decimal import Decimal

    exact = Decimal(text)
    if kind == "integer" or text.lstrip("-").isdigit():
        return (
            int(exact) if exact == exact.to_integral_value() and abs(exact) < MAX_INTEGER else None
        )
    value = float(text)
    return value if isfinite(value) and Decimal(repr(value)) == exact else None


def convert_integers(value: Any, schema: Any, root: JsonObject) -> Any:
    """Return the value with 3.0 as 3 where the schema declares only integers."""
    if not isinstance(value, CONVERTIBLE):
        return value
    if isinstance(value, list) and not any(isinstance(item, CONVERTIBLE) for item in value):
        return value
    choices = [*_list_alternatives(schema, root)]
    kinds = {kind for choice in choices for kind in _list_types(choice)}
    if isinstance(value, float):
        return (
            int(value)
            if value.is_integer() and "integer" in kinds and "number" not in kinds
            else value
        )
    fitting = [
        choice
        for choice in choices
        if "array" in _list_types(choice) or "items" in choice or "prefixItems" in choice
    ]
    if isinstance(value, list):
        for choice in fitting:
            first = choice.get("prefixItems") or ()
            parts = chain(first, repeat(choice.get("items"), max(0, len(value) - len(first))))
            value = [
                convert_integers(item, part, root) for item, part in zip(value, parts, strict=False)
            ]
        return value
    for choice in choices:
        properties = choice.get("properties") or {}
        others = choice.get("additionalProperties")
        value = {
            key: convert_integers(item, properties.get(key, others), root)
            for key, item in value.items()
        }
    return value


# --- parts of schemas -----------------------------------------------------------------------------


def _list_alternatives(schema: Any, root: JsonObject) -> Iterator[JsonObject]:
    """Yield a schema and the alternatives in it, each once: references may form cycles."""
    seen: set[int] = set()
    pending = [schema]
    while pending:
        alternative = pending.pop()
        if isinstance(alternative, Mapping) and id(alternative) not in seen:
            seen.add(id(alternative))
            yield dict(alternative)
            pending += [
                *alternative.get("anyOf", ()),
                *alternative.get("oneOf", ()),
                *alternative.get("allOf", ()),
            ]
            if "$ref" in alternative:
                pending.append(resolve_reference(alternative, root))


def _list_types(schema: JsonMapping) -> set[str]:
    declared = schema.get("type", [])
    return {declared} if isinstance(declared, str) else set(declared)


def resolve_reference(schema: Any, root: JsonMapping) -> JsonMapping:
    """Return the schema that `$ref` names in the same document; booleans become empty."""
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = follow_pointer(root, reference[2:].split("/"))
    return schema if isinstance(schema, Mapping) else {}


def flatten_schema(schema: Any, root: JsonMapping, depth: int = 0) -> JsonMapping:
    """Return the schema with its reference resolved and the fields of all parts of `allOf`."""
    resolved = resolve_reference(schema, root)
    if not isinstance(parts := resolved.get("allOf"), list) or depth > MAX_ALL_OF_DEPTH:
        return resolved
    merged: JsonObject = {key: value for key, value in resolved.items() if key != "allOf"}
    properties = dict(resolved.get("properties") or {})
    required = list(resolved.get("required") or ())
    for part in islice(
        (flatten_schema(subschema, root, depth + 1) for subschema in parts), MAX_CHOICES
    ):
        properties.update(part.get("properties") or {})
        required += part.get("required") or ()
        merged = {**part, **merged}
    return {**merged, **({"properties": properties, "required": required} if properties else {})}


def reject_reference(uri: str) -> Any:
    raise ValueError(f"references to other documents are not supported: {uri}")
