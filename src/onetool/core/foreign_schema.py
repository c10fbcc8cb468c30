"""Schemas of upstream servers, stored tools and callers, which may be hostile.

Patterns are executed in linear time. Those that cannot be (look-around, backreferences, too many
states) are listed and not checked. Before a value is validated, the work is estimated; a lot of
work is done in another process (`main`), which a timeout ends.
"""

import copy
import json
import os
import sys
from collections.abc import Iterator, Mapping, Set as AbstractSet
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from typing import Any

from onetool.core.schema import Schema
from onetool.core.schema_work import (
    WORK_PER_STATE,
    follow_pointer,
    is_expensive,
    list_objects,
    weigh_pattern,
)
from onetool.errors import ArgumentError, ToolError, ToolTimeout
from onetool_child.json_types import JsonMapping, JsonObject

MAX_SCHEMA_BYTES = 1 << 19  # which take up to 0.15 s to compile
MAX_REFERENCES = 2_000  # which take up to 0.1 s to compile
MAX_WORK = 1_000_000  # checks in the server, of up to 0.02 µs each
MAX_CONVERSION_WORK = 20_000  # of up to 2 µs each
MAX_PATTERN_STATES = 10_000  # of all patterns of a schema, which take up to 0.1 s to compile
MAX_PATTERN_BYTES = 1 << 20  # of one compiled pattern
MAX_LISTED_PATTERNS = 20
MAX_PATTERN_CHARS = 100  # of an unsupported pattern in messages
MAX_SCHEMAS = 1_000  # subschemas to search for arguments
CHECK_SECONDS = 5
MAX_MEMORY_BYTES = 2 << 30
NICENESS = 10
CHILD = "from onetool.core.foreign_schema import main; main()"


class ForeignSchema(Schema):
    """A JSON Schema from outside.

    Validate with `check_arguments` and `find_problem`, which choose the process.
    """

    are_references_limited = True  # without, only the time is limited

    @cached_property
    def unsupported_patterns(self) -> list[str]:
        return [pattern for pattern in self._affordable_patterns if not is_linear(pattern)]

    @property
    def pattern_problem(self) -> str:
        """The patterns that are not checked, and why; empty if all are."""
        texts = [
            json.dumps(pattern)[:MAX_PATTERN_CHARS] for pattern in sorted(self._unchecked_patterns)
        ]
        reason = "patterns that are not checked (look-around, backreferences or too many states)"
        return f"{reason}: {', '.join(texts[:MAX_LISTED_PATTERNS])}" if texts else ""

    @cached_property
    def _patterns(self) -> Mapping[str, int]:
        """All patterns and the numbers of their states."""
        names = (name for holder in list_objects(self.json) for name in _list_patterns(holder))
        return {name: weigh_pattern(name) for name in names}

    @cached_property
    def _affordable_patterns(self) -> list[str]:
        """The first patterns, which are compiled in time."""
        states = accumulate(self._patterns.values())
        return [
            name
            for name, total in zip(self._patterns, states, strict=True)
            if total <= MAX_PATTERN_STATES
        ]

    @cached_property
    def _unchecked_patterns(self) -> AbstractSet[str]:
        return self._patterns.keys() - self._affordable_patterns | set(self.unsupported_patterns)

    def is_costly(self, value: Any, *, is_converted: bool = False) -> bool:
        """Return whether validating the value could delay others. Converting numbers takes longer."""
        max_work = MAX_CONVERSION_WORK if is_converted and self._integer_properties else MAX_WORK
        try:
            text = _dump(value)
            states, nodes = self._size
        except (RecursionError, ValueError):  # the validator reports it
            return True
        characters = len(text) if states else 0
        if WORK_PER_STATE * states * characters + nodes * _count_values(text) <= max_work:
            return False
        return is_expensive(self._linear_json, value, max_work)

    def _expands_too_far(self) -> bool:
        self._check_size()
        return self.are_references_limited and super()._expands_too_far()

    @cached_property
    def _size(self) -> tuple[int, int]:
        """The states of all patterns, and the number of values."""
        patterns = (
            name for holder in list_objects(self._linear_json) for name in _list_patterns(holder)
        )
        return sum(map(weigh_pattern, patterns)), _count_values(_dump(self._linear_json))

    @cached_property
    def _linear_json(self) -> JsonObject:
        """The schema without the unchecked patterns."""
        self._check_size()
        if not self._unchecked_patterns:
            return self.json
        schema = copy.deepcopy(self.json)
        for holder in list_objects(schema):
            for pattern in self._unchecked_patterns & set(_list_patterns(holder)):
                if holder.get("pattern") == pattern:
                    del holder["pattern"]
                else:
                    del holder["patternProperties"][pattern]
        return schema

    def _check_size(self) -> None:
        reason = ""
        if len(text := _dump(self.json)) > MAX_SCHEMA_BYTES:
            reason = f"it has {len(text):,} bytes, the limit is {MAX_SCHEMA_BYTES:,}"
        elif self.are_references_limited and text.count(b'"$ref"') > MAX_REFERENCES:
            reason = f"it has more than {MAX_REFERENCES:,} references"
        if reason:
            raise ArgumentError(f"invalid schema of the tool: {reason}", reason=reason)

    @property
    def _checked_json(self) -> JsonObject:
        return self._linear_json

    def _make_pattern_options(self) -> Any:
        return _make_linear_options()


async def check_arguments(
    schema: ForeignSchema, args: JsonObject, *, is_exact: bool = False
) -> JsonObject:
    """Return the valid arguments, as `Schema.check` does."""
    if not schema.is_costly(args, is_converted=True):
        return schema.check(args, is_exact=is_exact)
    from anyio.to_thread import (
        run_sync as run_in_thread,
    )  # commands that validate nothing start faster without it

    return await run_in_thread(partial(check_in_process, schema, args, is_exact=is_exact))


async def find_problem(schema: ForeignSchema, value: Any) -> str | None:
    """Return the first problem of a value, as `Schema.problem` does."""
    if not schema.is_costly(value):
        return schema.problem(value)
    from anyio.to_thread import run_sync as run_in_thread

    return await run_in_thread(find_problem_in_process, schema, value)


def find_arguments(schema: JsonMapping) -> tuple[set[str], list[str]]:
    """Return the names of the arguments that a schema declares, and patterns of further ones."""
    names: set[str] = set()
    patterns: list[str] = []
    for part in _iterate_subschemas(schema):
        names.update(_get_if(Mapping, part, "properties"))
        names.update(name for name in _get_if(list, part, "required") if isinstance(name, str))
        patterns += _get_if(Mapping, part, "patternProperties")
    return names, patterns


def _iterate_subschemas(schema: JsonMapping) -> Iterator[JsonMapping]:
    """Yield the schema and all subschemas that apply to the same object."""
    pending: list[Any] = [schema]
    seen: set[int] = set()
    while pending and len(seen) < MAX_SCHEMAS:
        part = pending.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for key in ("allOf", "anyOf", "oneOf"):
            pending += _get_if(list, part, key)
        pending += [part.get(key) for key in ("if", "then", "else")]
        pending += dict(_get_if(Mapping, part, "dependentSchemas")).values()
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            pending.append(follow_pointer(schema, reference.split("/")[1:]))


def _get_if(kind: type, schema: JsonMapping, key: str) -> Any:
    """Return the value of a keyword, or nothing if it has another type."""
    value = schema.get(key)
    return value if isinstance(value, kind) else ()


def check_in_process(
    schema: ForeignSchema, args: JsonObject, *, is_exact: bool = False
) -> JsonObject:
    answer = _call_process(schema, args, is_check=True, is_exact=is_exact)
    if "args" not in answer:
        raise ArgumentError(answer["problem"], path=answer["path"], reason=answer["reason"])
    checked: JsonObject = answer["args"]
    return checked


def find_problem_in_process(schema: ForeignSchema, value: Any) -> str | None:
    problem: str | None = _call_process(schema, value, is_check=False)["problem"]
    return problem


@lru_cache(maxsize=4_096)
def is_linear(pattern: str) -> bool:
    """Return whether a pattern is valid and can be executed in linear time."""
    import jsonschema_rs

    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=_make_linear_options())
    except (ValueError, jsonschema_rs.ValidationError):
        return False
    return True


def _make_linear_options() -> Any:
    import jsonschema_rs

    return jsonschema_rs.RegexOptions(
        size_limit=MAX_PATTERN_BYTES, dfa_size_limit=MAX_PATTERN_BYTES
    )


def _list_patterns(holder: JsonObject) -> list[str]:
    """Return the patterns directly in an object."""
    pattern = holder.get("pattern")
    names = holder.get("patternProperties")
    return [
        *([pattern] if isinstance(pattern, str) else []),
        *(names if isinstance(names, dict) else ()),
    ]


def _dump(value: Any) -> bytes:
    """Return a value as JSON, fast; objects as their text."""
    import orjson

    try:
        return orjson.dumps(value, default=str)
    except TypeError:  # a large integer, an unpaired surrogate, many levels
        return json.dumps(value, default=str).encode()


def _count_values(text: bytes) -> int:
    """Return at least the number of values in JSON."""
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")


# --- the other process ----------------------------------------------------------------------------


def _call_process(
    schema: ForeignSchema, value: Any, *, is_check: bool, is_exact: bool = False
) -> JsonObject:
    import subprocess  # commands that validate nothing start faster without it

    request = {
        "schema": schema.json,
        "value": value,
        "defaults": dict(schema.defaults) if is_check else None,
        "is_exact": is_exact,
        "are_references_limited": schema.are_references_limited,
    }
    try:
        text = json.dumps(request).encode()
    except (RecursionError, TypeError, ValueError) as error:
        raise ArgumentError(f"cannot validate the value: {error}", reason=str(error)) from None
    try:
        child = subprocess.run(  # noqa: S603 - this interpreter and this module
            [sys.executable, "-I", "-c", CHILD],
            input=text,
            capture_output=True,
            timeout=CHECK_SECONDS,
            env={},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolTimeout(
            f"validating the data took longer than {CHECK_SECONDS} s; simplify the schema, or use"
            " less data",
            timeout_ms=CHECK_SECONDS * 1000,
        ) from None
    if child.returncode:
        raise ToolError(
            "validating the data took too much time or memory; simplify the schema, or use less"
            " data"
        )
    answer: JsonObject = json.loads(child.stdout)
    if "invalid" in answer:
        raise ArgumentError(answer["invalid"], reason=answer["reason"])
    return answer


def main() -> None:
    """Validate a value from standard input.

    Resource limits end the process even if the server is gone.
    """
    if sys.platform != "win32":
        import resource

        os.nice(NICENESS)
        resource.setrlimit(resource.RLIMIT_CPU, (CHECK_SECONDS, CHECK_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if sys.platform == "linux":  # macOS rejects limits below the gigabytes that it maps itself
            resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    sys.stdout.write(json.dumps(_validate(json.load(sys.stdin))))


def _validate(request: JsonObject) -> JsonObject:
    schema = ForeignSchema.from_json(request["schema"])
    schema.are_references_limited = request["are_references_limited"]
    try:
        if request["defaults"] is None:
            return {"problem": schema.problem(request["value"])}
        schema.defaults = request["defaults"]
        try:
            return {"args": schema.check(request["value"], is_exact=request["is_exact"])}
        except ArgumentError as error:
            if "path" not in error.fields:
                raise
            return {
                "problem": error.message,
                "path": error.fields["path"],
                "reason": error.fields["reason"],
            }
    except ArgumentError as error:
        return {"invalid": error.message, "reason": error.fields.get("reason", error.message)}
    except UnicodeEncodeError:
        return {"problem": "a string contains an unpaired surrogate"}
    except ValueError as error:  # for example, too many levels for the validator
        return {"problem": str(error)}
