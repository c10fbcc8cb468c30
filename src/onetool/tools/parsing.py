"""What `json.parse` and `yaml.parse` share: limits for data from anywhere, and checking it against a caller's schema.

A schema can ask for more work than anybody has time for, and the validator holds up the whole server meanwhile. What
is not plainly little is therefore checked in a process of its own (`main`), which can be ended.
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
MOST_WORK = 20_000_000  # values in the schema times characters of data
COSTLY = frozenset({
    *("$ref", "$dynamicRef", "$recursiveRef", "pattern", "patternProperties"),
    *("uniqueItems", "unevaluatedItems", "unevaluatedProperties"),
})  # fmt: skip
CHECK_SECONDS = 5
MEMORY_BYTES = 2 << 30
LONGEST_MESSAGE = 1000
CHILD = "from onetool.tools.parsing import main; main()"


def containers_in(values: Collection[Any]) -> list[Any]:
    """The lists and objects that stand directly in these."""
    return [
        inner
        for outer in values
        for inner in (outer.values() if isinstance(outer, dict) else outer)
        if isinstance(inner, dict | list)
    ]


def is_deeper_than(data: Any, most: int) -> bool:
    """By levels and not by calling itself, so that depth costs nothing."""
    level = containers_in([[data]])
    for _ in range(most):
        if not level:
            return False
        level = containers_in(level)
    return bool(level)


def check(data: Any, text: str, schema: Mapping[str, Any], field: str) -> None:
    """Raise what is wrong with the data. `text` is the data as JSON."""
    if is_deeper_than(schema, MAX_DEPTH):
        raise ArgumentError(f"the schema is nested more than {MAX_DEPTH} deep", field="schema")
    written = json.dumps(schema)
    if len(written) > MAX_SCHEMA_BYTES:
        raise ArgumentError(f"the schema has more than {MAX_SCHEMA_BYTES:,} bytes", field="schema")
    # `written` has more characters than the schema has values.
    is_little = len(written) * len(text) <= MOST_WORK and not _names_in(schema) & COSTLY
    problem = _problem(data, schema) if is_little else _problem_found_elsewhere(written, text)
    if problem:
        raise ArgumentError(f"the data does not fit the schema: {problem[:LONGEST_MESSAGE]}", field=field)


def _names_in(schema: Mapping[str, Any]) -> set[str]:
    names: set[str] = set()
    level: list[Any] = [schema]
    while level:
        names.update(*(part for part in level if isinstance(part, dict)))
        level = containers_in(level)
    return names


def _problem(data: Any, schema: Mapping[str, Any]) -> str | None:
    try:
        return Schema.from_json(schema).problem(data)
    except ArgumentError as error:
        words = str(error.fields["reason"]).partition("\n")[0]
        raise ArgumentError(f"the schema is not valid: {words[:LONGEST_MESSAGE]}", field="schema") from None
    except UnicodeEncodeError:
        return "a text in it has half of a surrogate pair"
    except ValueError as error:  # more levels than the validator goes down, for one
        return str(error)


# --- in a process of its own ----------------------------------------------------------------------------------------


def _problem_found_elsewhere(schema: str, text: str) -> str | None:
    try:
        child = subprocess.run(  # noqa: S603 - our own Python and our own code
            [sys.executable, "-I", "-c", CHILD],
            input=f"{schema}\n{text}".encode("utf-8", "surrogatepass"),
            capture_output=True,
            timeout=CHECK_SECONDS,
            env={},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolTimeout(
            f"checking the data against the schema took longer than {CHECK_SECONDS} s; make the schema simpler",
            timeout_ms=CHECK_SECONDS * 1000,
        ) from None
    if child.returncode:
        raise ToolError("checking the data against the schema took too much time or memory; make the schema simpler")
    answer = json.loads(child.stdout)
    if "invalid" in answer:
        raise ArgumentError(answer["invalid"], field="schema")
    return answer["problem"] and str(answer["problem"])


def main() -> None:
    """The other process. It ends by itself also where nobody is left to end it."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (CHECK_SECONDS, CHECK_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    schema, _, text = sys.stdin.buffer.read().decode("utf-8", "surrogatepass").partition("\n")
    try:
        answer = {"problem": _problem(json.loads(text), json.loads(schema))}
    except ArgumentError as error:
        answer = {"invalid": error.message}
    sys.stdout.write(json.dumps(answer))
