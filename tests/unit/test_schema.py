"""Schemas from functions, from JSON and from source that is never run: they are the same for the same function."""

from datetime import date
from pathlib import Path
from typing import Any, Literal

import pytest

from onetool._tool import Tool
from onetool.context import ToolContext
from onetool.errors import ArgumentError
from onetool.schema import Schema
from onetool.signature import arguments, signature, type_name

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


def test_variable_positional_arguments_are_rejected() -> None:
    def many(*names: str) -> None: ...

    with pytest.raises(TypeError, match="cannot take \\*names"):
        _ = Schema.from_callable(many).json
    with pytest.raises(TypeError, match="cannot take \\*names"):
        _ = Schema.from_source("def many(*names): ...", "many").json


def test_variable_keyword_arguments_are_allowed() -> None:
    def options(**rest: int) -> None: ...

    assert Schema.from_callable(options).open
    assert Schema.from_source("def options(**rest): ...", "options").open
    assert not Schema.from_callable(search).open


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"query": 1}, 'query: 1 is not of type "string"'),
        ({"query": "a", "count": "5"}, 'count: "5" is not of type "integer"'),
        ({"query": "a", "kind": "old"}, '"old" is not one of "web" or "news"'),
        ({"query": "a", "tags": ["x", 2]}, "tags"),
    ],
)
def test_invalid_arguments_are_an_error_with_the_reason(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Schema.from_callable(search).check(args)
    assert message in str(caught.value)


def test_a_schema_never_fetches_another_document() -> None:
    schema = Schema.from_json({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}})
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


def test_an_optional_argument_without_default_shows_dots() -> None:
    schema = {"properties": {"repo": {"type": "string"}, "query": {"type": "string"}}, "required": ["query"]}
    tool = Tool("github.search", NullBackend(), Schema.from_json(schema))
    assert signature(tool) == "github.search(query: str, repo: str = '...')"


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


INTEGERS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    ("part", "given", "expected"),
    [
        ({"type": "integer"}, 3.0, 3),
        ({"type": "number"}, 3.0, 3.0),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3.0, 3),
        ({"anyOf": [INTEGERS, {"type": "null"}]}, [1.0, 2], [1, 2]),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "number"}]}, [1.0, 2.0], [1, 2.0]),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "integer"}}, [1.0, 2.0], [1, 2]),
        ({"type": "object", "additionalProperties": INTEGERS}, {"a": [3.0]}, {"a": [3]}),
    ],
)
def test_a_float_without_a_fraction_becomes_a_declared_integer(part: Any, given: Any, expected: Any) -> None:
    checked = Schema.from_json({"type": "object", "properties": {"x": part}}).check({"x": given})
    assert repr(checked["x"]) == repr(expected)
