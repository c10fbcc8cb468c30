"""Limits and schema validation for `json.parse` and `yaml.parse`.

Validating against a hostile schema can take forever and would block the server. Schemas that may be expensive are
therefore validated in a separate process (`main`) with a timeout.
"""

import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from typing import Any

from onetool.errors import ArgumentError, ToolError, ToolTimeout
from onetool.schema import Schema

MAX_DEPTH = 200
MAX_SCHEMA_BYTES = 1 << 20
MAX_WORK = 20_000_000  # values in the schema times characters of data
COSTLY_KEYWORDS = frozenset({
    *("$ref", "$dynamicRef", "$recursiveRef", "pattern", "patternProperties"),
    *("uniqueItems", "unevaluatedItems", "unevaluatedProperties"),
})  # fmt: skip
CHECK_SECONDS = 5
MAX_MEMORY_BYTES = 2 << 30
MAX_MESSAGE_CHARS = 1000
CHILD = "from onetool.tools.parsing import main; main()"


def inner_containers(values: Collection[Any]) -> list[Any]:
    """Return the lists and objects directly inside these containers."""
    return [
        inner
        for outer in values
        for inner in (outer.values() if isinstance(outer, dict) else outer)
        if isinstance(inner, dict | list)
    ]


def is_deeper_than(data: Any, max_depth: int) -> bool:
    """Return whether data is nested deeper than `max_depth`, level by level instead of by recursion."""
    level = inner_containers([[data]])
    for _ in range(max_depth):
        if not level:
            return False
        level = inner_containers(level)
    return bool(level)


def validate(data: Any, text: str, schema: Mapping[str, Any], field: str) -> None:
    """Validate the data against a schema and raise the first problem. `text` is the data as JSON."""
    if is_deeper_than(schema, MAX_DEPTH):
        raise ArgumentError(f"the schema is nested more than {MAX_DEPTH} levels deep", field="schema")
    schema_text = json.dumps(schema)
    if len(schema_text) > MAX_SCHEMA_BYTES:
        raise ArgumentError(f"the schema is larger than {MAX_SCHEMA_BYTES:,} bytes", field="schema")
    # `schema_text` has more characters than the schema has values.
    is_cheap = len(schema_text) * len(text) <= MAX_WORK and not _collect_names(schema) & COSTLY_KEYWORDS
    problem = _find_problem(data, schema) if is_cheap else _validate_in_process(schema_text, text)
    if problem:
        raise ArgumentError(f"the data does not match the schema: {problem[:MAX_MESSAGE_CHARS]}", field=field)


def _collect_names(schema: Mapping[str, Any]) -> set[str]:
    names: set[str] = set()
    level: list[Any] = [schema]
    while level:
        names.update(*(part for part in level if isinstance(part, dict)))
        level = inner_containers(level)
    return names


def _find_problem(data: Any, schema: Mapping[str, Any]) -> str | None:
    try:
        return _TimedSchema.from_json(schema).problem(data)
    except ArgumentError as error:
        reason = str(error.fields["reason"]).partition("\n")[0]
        raise ArgumentError(f"invalid schema: {reason[:MAX_MESSAGE_CHARS]}", field="schema") from None
    except UnicodeEncodeError:
        return "a string contains an unpaired surrogate"
    except ValueError as error:  # for example, too many levels for the validator
        return str(error)


class _TimedSchema(Schema):
    """A schema of the caller: a timeout limits the validation, and not the schema."""

    _has_references = False


# --- the separate process ----------------------------------------------------------------------------------------


def _validate_in_process(schema: str, text: str) -> str | None:
    try:
        child = subprocess.run(  # noqa: S603 - this interpreter and this module
            [sys.executable, "-I", "-c", CHILD],
            input=f"{schema}\n{text}".encode("utf-8", "surrogatepass"),
            capture_output=True,
            timeout=CHECK_SECONDS,
            env={},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolTimeout(
            f"validating the data took longer than {CHECK_SECONDS} s; simplify the schema",
            timeout_ms=CHECK_SECONDS * 1000,
        ) from None
    if child.returncode:
        raise ToolError("validating the data took too much time or memory; simplify the schema")
    answer = json.loads(child.stdout)
    if "invalid" in answer:
        raise ArgumentError(answer["invalid"], field="schema")
    return answer["problem"] and str(answer["problem"])


def main() -> None:
    """Validate data from standard input. Resource limits end the process even if the server is gone."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (CHECK_SECONDS, CHECK_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if sys.platform == "linux":  # macOS rejects limits below the gigabytes that it maps itself
            resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    schema, _, text = sys.stdin.buffer.read().decode("utf-8", "surrogatepass").partition("\n")
    try:
        answer = {"problem": _find_problem(json.loads(text), json.loads(schema))}
    except ArgumentError as error:
        answer = {"invalid": error.message}
    sys.stdout.write(json.dumps(answer))
