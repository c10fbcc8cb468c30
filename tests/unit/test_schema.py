"""Schemas from functions, from JSON and from source that is never run: they are the same for the
same function.
"""

import ast
from datetime import date
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.support import measure_seconds

from onetool.core.bus.bind import bind
from onetool.core.schema import Schema
from onetool.core.signature import MAX_TYPE_DEPTH, arguments, short_call, signature, type_name
from onetool.core.tool import Tool
from onetool.errors import ArgumentError
from onetool.sources.builtin.help_text import list_arguments
from onetool.util.context import ToolContext

SOURCE = '''
from typing import Literal
raise SystemExit("this file is never run")

def search(query: str, count: int = 5, kind: Literal["web", "news"] = "web", tags: list[str] | None = None) -> list:
    """Search.

    Args:
        query: What to look for.
        count: How many.
    """
'''


def search(
    query: str, count: int = 5, kind: Literal["web", "news"] = "web", tags: list[str] | None = None
) -> list[Any]:
    """Search.

    Args:
        query: What to look for.
        count: How many.
    """
    return [query, count, kind, tags]


class NullBackend:
    async def invoke(self, _tool: Tool, _args: Any, _context: ToolContext) -> None:
        return None


def test_source_and_function_have_the_same_schema() -> None:
    assert Schema.from_source(SOURCE, "search").json == Schema.from_callable(search).json


def test_a_schema_has_types_defaults_and_descriptions() -> None:
    schema = Schema.from_callable(search)
    assert schema.required == {"query"}
    assert schema.defaults == {"count": 5, "kind": "web", "tags": None}
    assert schema.properties["query"] == {"type": "string", "description": "What to look for."}
    assert schema.properties["kind"]["enum"] == ["web", "news"]


def test_the_context_is_not_an_argument() -> None:
    def where(context: ToolContext, name: str) -> str:
        return f"{context.working_dir}/{name}"

    assert list(Schema.from_callable(where).properties) == ["name"]


def test_variadic_parameters_are_a_list_and_open_names() -> None:
    def many(first: int, *days: date, flag: bool = False, **rest: int) -> None: ...

    source = "def many(first: int, *days: date, flag: bool = False, **rest: int): ..."
    for schema in (Schema.from_callable(many), Schema.from_source(source, "many")):
        day = {"type": "string", "format": "date"}
        assert schema.properties["days"] == {"type": "array", "items": day}
        assert (set(schema.required), schema.variadic, set(schema.keyword_only)) == (
            {"first"},
            "days",
            {"flag"},
        )
        assert schema.open
        assert schema.check({"first": 1, "other": "2"}) == {"first": 1, "other": 2}
        with pytest.raises(ArgumentError, match='other: "x" is not of type "integer"'):
            schema.check({"first": 1, "other": "x"})
        tool = Tool("a.many", NullBackend(), schema)
        assert signature(tool) == "a.many(first: int, *days: str, flag: bool = False, **rest: int)"
        assert bind(tool, [1, "x", "y"], {}) == {"first": 1, "days": ["x", "y"], "flag": False}
        with pytest.raises(ArgumentError, match="multiple values for 'days'"):
            bind(tool, [1, "x"], {"days": []})


def test_other_named_arguments_may_be_anything() -> None:
    assert Schema.from_source("def options(**rest): ...", "options").open
    assert not Schema.from_callable(search).open


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"query": 1}, 'query: 1 is not of type "string"'),
        ({"query": "a", "count": "five"}, 'count: "five" is not of type "integer"'),
        ({"query": "a", "count": "5", "kind": "old"}, 'kind: "old" is not one of'),
        ({"query": "a", "kind": "old"}, '"old" is not one of "web" or "news"'),
        ({"query": "a", "tags": ["x", 2]}, "tags"),
    ],
)
def test_invalid_arguments_are_an_error_with_the_reason(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Schema.from_callable(search).check(args)
    assert message in str(caught.value)


def test_a_schema_never_fetches_another_document() -> None:
    schema = Schema.from_json(
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}
    )
    with pytest.raises(ArgumentError, match="invalid schema of the tool"):
        schema.check({"a": 1})


def test_an_invalid_schema_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="invalid schema of the tool"):
        Schema.from_json({"type": "nonsense"}).check({})


@pytest.mark.parametrize(
    "source",
    [
        "def f(a: os.system('x')): ...",
        "def f(a: (lambda: 1)()): ...",
        "def f(a: Unknown[int]): ...",
        "def f(a: 'list[Unknown]'): ...",
        "def f(a=open('x')): ...",
    ],
)
def test_unsupported_annotations_in_source_accept_anything(source: str) -> None:
    assert "type" not in Schema.from_source(source, "f").properties["a"]


def test_dates_and_paths_have_formats() -> None:
    def on(day: date, file: Path) -> None: ...

    properties = Schema.from_callable(on).properties
    assert (properties["day"]["format"], properties["file"]["format"]) == ("date", "path")


def test_a_signature_is_valid_python() -> None:
    tool = Tool("web.search", NullBackend(), Schema.from_callable(search), returns="list")
    kinds = "kind: Literal['web', 'news'] = 'web', tags: list[str] | None = None"
    assert signature(tool) == f"web.search(query: str, count: int = 5, {kinds}) -> list"
    assert arguments(tool) == ["query: What to look for.", "count: How many."]


def test_a_signature_shows_how_arguments_are_passed() -> None:
    def run(first: int, second: int = 2, *, third: int, fourth: int = 4) -> None: ...

    tool = Tool("a.run", NullBackend(), Schema.from_callable(run))
    assert signature(tool).startswith(
        "a.run(first: int, second: int = 2, *, third: int, fourth: int = 4)"
    )
    assert short_call(tool, "a.run") == "a.run(first, third=third, second=2, fourth=4)"
    names = {
        "ok": {"type": "string"},
        "user-id": {"type": "string"},
        "class": {},
        "x y": {"type": "integer"},
    }
    odd = Tool(
        "a.odd",
        NullBackend(),
        Schema.from_json({"properties": names, "required": ["user-id", "class", "ok"]}),
    )
    fields = "**{'user-id': str, 'class': Any, 'x y': NotRequired[int]}"
    assert signature(odd) == f"a.odd(ok: str, {fields})"
    assert short_call(odd, "a.odd") == "a.odd(ok, **{'user-id': ...}, **{'class': ...}, ...)"
    late = Tool(
        "a.late",
        NullBackend(),
        Schema.from_json({"properties": {"user-id": {}, "ok": {"default": 1}}}),
    )
    assert signature(late) == "a.late(*, ok: Any = 1, **{'user-id': NotRequired[Any]})"


def test_an_optional_argument_without_default_is_none_and_may_be_passed_as_none() -> None:
    schema = {
        "properties": {"repo": {"type": "string"}, "query": {"type": "string"}},
        "required": ["query"],
    }
    tool = Tool("github.search", NullBackend(), Schema.from_json(schema))
    assert signature(tool) == "github.search(query: str, repo: str = None)"
    assert bind(tool, ["what", "where"], {}) == {"query": "what", "repo": "where"}
    assert tool.input.check({"query": "what", "repo": None}) == {"query": "what"}
    with pytest.raises(ArgumentError, match="query: null is not of type"):
        tool.input.check({"query": None})


TAG = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "color": {"type": "string", "default": "red"}},
}
NODE = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "next": {"$ref": "#/$defs/node"}},
}
TAGGED: dict[str, Any] = {
    "type": "object",
    "$defs": {"tag": {**TAG, "required": ["name"]}, "node": NODE},
    "properties": {
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "description": "To add."},
        "tree": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        "both": {"allOf": [{"$ref": "#/$defs/tag"}, {"properties": {"size": {"const": 3}}}]},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "wide": {
            "type": "object",
            "properties": {f"field_{n}": {"type": "string"} for n in range(500)},
        },
        "month": {"enum": [f"month {n}" for n in range(1, 13)], "type": "string"},
    },
    "required": ["tags"],
}


def test_objects_are_shown_with_their_fields() -> None:
    tool = Tool("shop.tag", NullBackend(), Schema.from_json(TAGGED))
    tag = "{'name': str, 'color': NotRequired[str]}"
    tree = "{'label': NotRequired[str], 'next': NotRequired[dict]}"
    both = "{'name': str, 'color': NotRequired[str], 'size': NotRequired[Literal[3]]}"
    assert (
        signature(tool)
        == f"shop.tag(tags: list[{tag}], tree: {tree} | None = None, both: {both} = None, "
        "counts: dict[str, int] = None, wide: dict = None, month: str = None)"
    )
    ast.parse(f"def f({signature(tool).partition('(')[2]}: ...")  # valid Python
    lines = list_arguments(tool.input.json)
    assert lines[:7] == [
        "- tags (list[dict]) - To add.",
        "  - name (str, required)",
        "  - color (str, default 'red')",
        "- tree (dict | None)",
        "  - label (str)",
        "  - next (dict)",
        "- both (dict)",
    ]
    assert len(lines) == 101
    assert lines[-1] == "- ... more fields: see info='full'"


def test_recursive_schemas_are_bounded() -> None:
    loop = {"$ref": "#/$defs/loop"}
    wide = {
        "type": "object",
        "properties": {f"a{n}": loop for n in range(30)},
        "allOf": [loop, loop],
    }
    schema = {
        "type": "object",
        "properties": {"x": loop, "y": {"anyOf": [loop] * 50}},
        "$defs": {"loop": wide},
    }
    tool = Tool("shop.loop", NullBackend(), Schema.from_json(schema))
    assert len(signature(tool)) < 1_000
    assert len(list_arguments(schema)) <= 101
    assert measure_seconds(lambda: (signature(tool), list_arguments(schema)), enough=1.0) < 1.0


def test_long_lists_of_choices_are_in_the_help() -> None:
    part = TAGGED["properties"]["month"]
    (line,) = list_arguments({"properties": {"month": part}})
    assert line.startswith("- month (str) - One of: 'month 1', 'month 2'")
    assert line.endswith("'month 12'")


@pytest.mark.parametrize(
    ("part", "word"),
    [
        ({}, "Any"),
        ({"type": "array", "items": {"type": "integer"}}, "list[int]"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "str | float"),
        ({"enum": list(range(20)), "type": "integer"}, "int"),
    ],
)
def test_types_are_shown_as_python_types(part: dict[str, Any], word: str) -> None:
    assert type_name(part) == word


def test_a_type_that_contains_itself_ends() -> None:
    root = {"$defs": {"Row": {"type": "array", "items": {"$ref": "#/$defs/Row"}}}}
    assert (
        type_name({"$ref": "#/$defs/Row"}, root, 1)
        == f"{'list[' * MAX_TYPE_DEPTH}Any{']' * MAX_TYPE_DEPTH}"
    )


INTEGERS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    ("part", "given", "expected"),
    [
        ({"type": "integer"}, 3.0, 3),
        ({"type": "number"}, 3.0, 3.0),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3.0, 3),
        ({"anyOf": [INTEGERS, {"type": "null"}]}, [1.0, 2], [1, 2]),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "number"}]},
            [1.0, 2.0],
            [1, 2.0],
        ),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "integer"}},
            [1.0, 2.0],
            [1, 2],
        ),
        ({"type": "object", "additionalProperties": INTEGERS}, {"a": [3.0]}, {"a": [3]}),
    ],
)
def test_a_float_without_a_fraction_becomes_a_declared_integer(
    part: Any, given: Any, expected: Any
) -> None:
    checked = Schema.from_json({"type": "object", "properties": {"x": part}}).check({"x": given})
    assert repr(checked["x"]) == repr(expected)


NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "x": {"$ref": "#/$defs/Any"},
        "n": {"type": "integer"},
    },
    "$defs": {
        "Any": {
            "type": "object",
            "properties": {"price": {"type": "number"}, "inner": {"$ref": "#/$defs/Any"}},
        },
        "Count": {"type": "integer"},
        "Loop": {"$ref": "#/$defs/Loop"},
    },
}


@pytest.mark.parametrize(
    ("part", "given", "expected"),
    [
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, "-3.0", -3),
        ({"type": "integer"}, "1e3", 1000),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "3", 3),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": ["integer", "null"]}, "3", 3),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"anyOf": [{"$ref": "#/$defs/Count"}, {"type": "null"}]}, "3", 3),
        ({"anyOf": [INTEGERS, {"type": "null"}]}, ["1", 2.0], [1, 2]),
        (
            {"$ref": "#/$defs/Any"},
            {"price": "1.5", "inner": {"price": "2"}},
            {"price": 1.5, "inner": {"price": 2}},
        ),
        ({"type": "array", "items": {"$ref": "#/$defs/Count"}}, [3.0, "4"], [3, 4]),
        # A string, or another reading of it, is possible: it stays what it is.
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "3", "3"),
        ({"anyOf": [INTEGERS, {"type": "array", "items": {"type": "string"}}]}, ["3"], ["3"]),
        ({}, "3", "3"),
        ({"enum": ["3", 3]}, "3", "3"),
    ],
)
def test_a_string_becomes_the_number_or_boolean_that_is_declared(
    part: Any, given: Any, expected: Any
) -> None:
    schema = Schema.from_json({**NESTED, "properties": {"x": part, "n": {"type": "integer"}}})
    checked = schema.check(
        {"x": given, "n": "1"}
    )  # `n` needs a conversion, so all of them are tried
    assert repr(checked) == repr({"x": expected, "n": 1})


@pytest.mark.parametrize(
    "text", ["", "three", "3.5", "03", "0x3", " 3", "3 ", "1_000", "1e999", "٣", "9" * 50, "true"]
)
def test_a_string_that_is_not_exactly_an_integer_is_rejected(text: str) -> None:
    with pytest.raises(ArgumentError, match='is not of type "integer"'):
        Schema.from_json({"properties": {"x": {"type": "integer"}}}).check({"x": text})


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("number", "0.1000000000000000000001"),  # a float loses digits
        ("number", "nan"),
        ("boolean", "1"),
        ("boolean", "yes"),
        ("boolean", 1),
        ("integer", True),
        ("string", 3),
    ],
)
def test_conversions_lose_nothing(kind: str, given: Any) -> None:
    with pytest.raises(ArgumentError, match="is not of type"):
        Schema.from_json({"properties": {"x": {"type": kind}}}).check({"x": given})


def test_values_of_the_caller_are_not_changed() -> None:
    given = {"x": {"inner": {"price": "1"}}}
    assert Schema.from_json(NESTED).check(dict(given)) == {"x": {"inner": {"price": 1}}}
    assert given == {"x": {"inner": {"price": "1"}}}


@pytest.mark.parametrize(
    ("choices", "given", "message"),
    [
        (
            [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^a"}],
            "b",
            'x: "b" does not match "^a"',  # the only alternative for strings
        ),
        (
            [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^a"}],
            1.5,
            'x: 1.5 does not match: expected integer >= 1, or string matching "^a"',
        ),
        (
            [{"type": "integer"}, INTEGERS],
            "a",
            'x: "a" does not match: expected integer, or array of integer',
        ),
        (
            [{"enum": ["a", "b"]}, {"const": "c"}],
            "d",
            'x: "d" does not match: expected one of "a", "b", or one of "c"',
        ),
        (
            [{"$ref": "#/$defs/Any"}, {"type": "null"}],
            {"price": "x"},
            'x.price: "x" is not of type "number"',
        ),
        ([{"$ref": "#/$defs/Loop"}, {"type": "string"}, {"type": "null"}], {}, None),
    ],
)
def test_a_value_that_fits_no_alternative_says_what_each_expects(
    choices: Any, given: Any, message: str | None
) -> None:
    schema = Schema.from_json({**NESTED, "properties": {"x": {"anyOf": choices}}})
    if message is None:  # a reference to itself accepts everything
        assert schema.check({"x": given}) == {"x": given}
        return
    with pytest.raises(ArgumentError) as caught:
        schema.check({"x": given})
    assert str(caught.value) == message


def test_the_message_about_many_alternatives_is_short() -> None:
    choices = [{"type": "string", "pattern": f"^{number}{'x' * 200}"} for number in range(1000)]
    with pytest.raises(ArgumentError) as caught:
        Schema.from_json({"properties": {"x": {"anyOf": choices}}}).check({"x": "y" * 10_000})
    assert len(str(caught.value)) < 2_500


def test_references_cannot_make_a_signature_long() -> None:
    next_one = [{"$ref": f"#/$defs/D{number + 1}"} for number in range(40)]
    double = {
        f"D{n}": {"anyOf": [each, {"type": "array", "items": each}]}
        for n, each in enumerate(next_one)
    }
    definitions = {**double, "D40": {"type": "integer"}}
    schema = Schema.from_json({"properties": {"x": {"$ref": "#/$defs/D0"}}, "$defs": definitions})
    assert len(signature(Tool("a.b", NullBackend(), schema))) < 10_000


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("reference", ["#/$defs/D{}", "#D{}"])
def test_a_schema_that_expands_exponentially_is_rejected(keyword: str, reference: str) -> None:
    double = {
        f"D{n}": {"$anchor": f"D{n}", keyword: [{"$ref": reference.format(n + 1)}] * 2}
        for n in range(40)
    }
    definitions = {**double, "D40": {"$anchor": "D40", "type": "integer"}}
    schema = {"properties": {"x": {"$ref": reference.format(0)}}, "$defs": definitions}
    with pytest.raises(ArgumentError, match="expand to too many schemas"):
        Schema.from_json(schema).check({"x": 1})


@pytest.mark.parametrize("depth", [2, 40])
def test_errors_in_deep_ambiguous_values_are_found_in_time(depth: int) -> None:
    choice = {"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/$defs/node"}}}
    schema = Schema.from_json(
        {"$defs": {"node": {"anyOf": [choice, choice]}}, "$ref": "#/$defs/node"}
    )
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"x": value}
    with pytest.raises(ArgumentError, match="does not match"):
        schema.check(value)
