"""Test schemas from outside: their patterns take linear time, and costly values are validated in
another process.
"""

import json
import time
from typing import Any

import anyio
import pytest
from tests.support import measure_loop, measure_seconds, without_collections

from onetool.core.foreign_schema import (
    MAX_PATTERN_STATES,
    ForeignSchema,
    check_arguments,
    find_problem,
)
from onetool.core.schema import ANY_OBJECT, Schema
from onetool.core.schema_work import weigh_pattern
from onetool.errors import ArgumentError

# Schemas and values that took seconds: each validates or explains far more than its size suggests.
COSTLY: dict[str, tuple[dict[str, Any], Any]] = {
    "patterns with many states": ({"items": {"pattern": "(a?[ab]?[abc]?){1000}[c-z]"}}, ["ab" * 5_000]),
    "many patterns": ({"allOf": [{"pattern": f"a[ab]*b[ab]*[c-{chr(100 + n % 20)}]{n}"} for n in range(500)]},
                      "ab" * 500_000),
    "many pattern properties": ({"patternProperties": {f"a.*b.*{n}x": {} for n in range(1000)}},
                                {f"ab{n}ab": 1 for n in range(20_000)}),
    "names": ({"propertyNames": {"allOf": [{"pattern": f"[ab]*a[ab]{{50}}{n}"} for n in range(50)]}},
              {"ab" * 100 + str(n): 1 for n in range(5_000)}),
    "repeated checks": ({"allOf": [{"items": {"type": "integer"}}] * 1000}, [*range(100_000)]),
    "errors of alternatives": ({"anyOf": [{"items": {"type": "integer"}}] * 30}, ["x"] * 3_000),
    "the format of a pattern": ({"$schema": "http://json-schema.org/draft-07/schema", "items": {"format": "regex"}},
                                ["(((a{100}){100}){100})"] * 2_000),
}  # fmt: skip


def spend(action: Any) -> float:
    """Return the processor time of this process, without its children."""
    with without_collections():
        started = time.process_time()
        action()
        return time.process_time() - started


@pytest.mark.parametrize("case", COSTLY)
def test_a_costly_value_takes_no_time_in_this_process(case: str) -> None:
    schema, value = COSTLY[case]
    text = json.dumps(value)
    least = spend(lambda: json.loads(text)) + measure_loop()
    foreign = ForeignSchema.from_json({"properties": {"x": schema}})

    async def check() -> None:
        for work in (check_arguments(foreign, {"x": value}), find_problem(foreign, {"x": value})):
            try:
                await work
            except Exception as error:  # noqa: BLE001 - a value that does not match, or a timeout
                assert len(str(error)) < 3_000  # noqa: PT017 - not the subject

    assert any(spend(lambda: anyio.run(check)) < least for _ in range(3)), (
        "other processes only add to the time"
    )


@pytest.mark.parametrize("args", [{"x": "ab" * 5_000, "n": "3"}, {"x": 1}])
def test_the_other_process_answers_like_this_one(args: dict[str, Any]) -> None:
    pattern = "(a?[ab]?[abc]?){1000}"
    schema = {
        "properties": {
            "x": {"type": "string", "pattern": pattern},
            "n": {"type": "integer", "default": 5},
        }
    }
    foreign = ForeignSchema.from_json(schema)

    def answer(work: Any) -> Any:
        try:
            return anyio.run(lambda: work)
        except ArgumentError as error:
            return error.message, error.fields

    async def check_here() -> Any:
        return Schema.from_json(schema).check(dict(args))

    assert foreign.is_costly(args) == isinstance(args["x"], str)
    assert answer(check_arguments(foreign, dict(args))) == answer(check_here())


@pytest.mark.parametrize("pattern", ["^(?!a).*$", r"(a)\1", "(?<=a)b"])
def test_a_pattern_without_linear_time_is_listed_and_not_checked(pattern: str) -> None:
    schema = {
        "properties": {
            "x": {"pattern": pattern, "maxLength": 5},
            "y": {"patternProperties": {pattern: False}},
        }
    }
    foreign = ForeignSchema.from_json(schema)
    assert foreign.unsupported_patterns == [pattern]
    assert json.dumps(pattern) in foreign.pattern_problem
    assert foreign.check({"x": "a", "y": {"ab": 1}}) == {"x": "a", "y": {"ab": 1}}
    with pytest.raises(ArgumentError, match="longer than 5"):
        foreign.check({"x": "a" * 6})
    assert foreign.json == schema


def test_patterns_beyond_the_limit_are_not_compiled() -> None:
    patterns = {f"x{n}": {"pattern": f"^{n}[^/]{{1,1000}}$"} for n in range(1_000)}
    foreign = ForeignSchema.from_json({"properties": patterns})
    assert (
        measure_seconds(lambda: ForeignSchema.from_json({"properties": patterns}).problem({}))
        < measure_loop()
    )
    assert foreign.problem({}) is None
    assert "patterns that are not checked" in foreign.pattern_problem
    assert foreign.problem({"x0": "/"}) is not None
    assert foreign.problem({"x999": "/"}) is None


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("abc", 3),
        ("[a-z]{3,20}x", 21),
        (r"(ab\d){10}", 30),
        ("((a{10})b{2,3}){5}", 65),
        ("a{", 2),
        ("", 0),
        (")(", 1),
    ],
)
def test_the_states_of_a_pattern_are_estimated(pattern: str, states: int) -> None:
    assert weigh_pattern(pattern) == states


def test_ordinary_values_are_validated_in_this_process() -> None:
    email = r"^[A-Za-z0-9_.+-]+@([A-Za-z0-9-]+\.)+[A-Za-z]{2,}$"
    rows = {
        "type": "array",
        "items": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    }
    for schema, value in (
        (ANY_OBJECT, {"x": "y" * 1_000_000}),
        ({"properties": {"mail": {"pattern": email}, "text": {}}}, {"mail": "a@b.ch", "text": "x" * 99_999}),
        ({"properties": {"rows": rows}}, {"rows": [{"id": str(n)} for n in range(10_000)]}),
    ):  # fmt: skip
        foreign = ForeignSchema.from_json(schema)
        assert not foreign.is_costly(value)
        assert foreign.problem(value) is None
    assert weigh_pattern(email) < MAX_PATTERN_STATES / 100
