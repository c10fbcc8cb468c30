"""Parsers of untrusted text: JSON, YAML, test reports and the output of ripgrep."""

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings, strategies as st

from onetool import ToolBus, ToolContext
from onetool.errors import ArgumentError, ToolTimeout
from onetool.sources.builtin import json_tools, yaml_tools
from onetool.sources.builtin.grep_tools import _OutputParser
from onetool.sources.builtin.test_tools import ReportError, SuiteReport, parse_junit, parse_mix
from onetool.util.context import permissions
from onetool_child.data import MAX_DEPTH

ANY_TEXT = st.text(st.characters())  # with lone surrogates
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT
)
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner), max_leaves=20
)
NASTY = st.text(
    st.sampled_from("[]{}\"',:&*!|>-?#%@`\\ \n\t~0123456789eE+.uxdabc\u0085\u2028\ufeff\0\x7f"),
    max_size=60,
)
SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {},
            {"type": "object"},
            {"$ref": "#"},
            {"pattern": "(a+)+$"},
            {"enum": [1, "a"]},
            {"type": 1},
        ]
    ),
    lambda inner: (
        st.builds(lambda part: {"not": part}, inner)
        | st.builds(lambda part: {"items": part}, inner)
    ),
    max_leaves=3,
)


def find_error(parse: Callable[..., Any], *args: Any) -> ArgumentError | None:
    try:
        parse(*args)
    except ArgumentError as error:
        return error
    return None


# --- json -----------------------------------------------------------------------------------------


@pytest.mark.slow
@given(DATA)
def test_json_parse_is_the_inverse_of_encoding(value: Any) -> None:
    assert json_tools.parse(json.dumps(value)) == value
    assert json_tools.parse(json.dumps(value, ensure_ascii=False, indent=1)) == value


@given(st.integers(1, 4000), st.integers(0, 9))
def test_long_integers_are_exact(digits: int, digit: int) -> None:
    text = "1" + str(digit) * digits
    assert json_tools.parse(text) == int(text)


@given(ANY_TEXT | NASTY)
def test_any_text_is_json_or_an_error_with_the_reason(text: str) -> None:
    error = find_error(json_tools.parse, text)
    if error is None:
        assert json_tools.parse(text) == json.loads(text.removeprefix("\ufeff"))
    else:
        assert error.field == "json"
        assert 0 < len(error.message) < 1000


def test_the_last_of_two_equal_keys_wins() -> None:
    assert json_tools.parse('{"a": 1, "a": 2}') == {"a": 2}


@given(st.integers(0, 300), st.booleans())
def test_the_depth_limit_is_exact(depth: int, objects: bool) -> None:
    opening, closing = ('{"a":', "}") if objects else ("[", "]")
    text = opening * depth + "1" + closing * depth
    if depth <= MAX_DEPTH:
        json_tools.parse(text)
    else:
        with pytest.raises(ArgumentError, match="deep"):
            json_tools.parse(text)


# --- yaml -----------------------------------------------------------------------------------------


@given(ANY_TEXT | NASTY)
@settings(max_examples=300)
def test_any_text_is_yaml_or_an_error_with_the_reason(text: str) -> None:
    error = find_error(yaml_tools.parse, text)
    assert error is None or (error.field == "yaml" and re.match(r"yaml:\d+: ", error.message))


# --- schemas --------------------------------------------------------------------------------------


@pytest.mark.slow
@given(DATA, SCHEMAS)
@settings(max_examples=30, deadline=None)  # some schemas are checked in their own process
def test_any_data_and_any_schema_match_or_are_an_error(value: Any, schema: dict[str, Any]) -> None:
    error = find_error(json_tools.parse, json.dumps(value), schema)
    assert error is None or error.field in {"json", "schema"}


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "string", "pattern": "."}])
def test_rejected_data_is_truncated_in_the_error(schema: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="does not match the schema") as caught:
        json_tools.parse(json.dumps(list(range(100_000))), schema)
    assert len(caught.value.message) < 1500


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "fits", "fits_not"),
    [
        (
            {"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}},
            "[1, 2]",
            "[1, null]",
        ),
        ({"pattern": "^a+$"}, '"aaa"', '"aab"'),
        ({"uniqueItems": True}, "[1, 2]", "[1, 1]"),
        ({"pattern": "^é$"}, '\ufeff"é"', '"e"'),
    ],
)
def test_an_expensive_schema_is_checked(schema: dict[str, Any], fits: str, fits_not: str) -> None:
    json_tools.parse(fits, schema)
    with pytest.raises(ArgumentError, match="does not match the schema"):
        json_tools.parse(fits_not, schema)


def make_schema_bomb(levels: int = 60) -> dict[str, Any]:
    """Return a schema in which each level refers to the one below twice."""
    below = ({"$ref": f"#/$defs/l{level - 1}"} for level in range(1, levels))
    parts = {f"l{level}": {"allOf": [part, part]} for level, part in enumerate(below, 1)}
    return {"$defs": {"l0": {"type": "integer"}, **parts}, "$ref": f"#/$defs/l{levels - 1}"}


@pytest.mark.slow
def test_an_exponential_schema_does_not_block_the_server() -> None:
    bus = ToolBus()
    bus.register_tool(json_tools)
    context = ToolContext(permissions=permissions(["read"]))
    with start_blocking_portal("asyncio") as portal:
        endless = portal.start_task_soon(
            bus.call_tool, "json.parse", {"json": "1", "schema": make_schema_bomb()}, context
        )
        for _ in range(50):
            assert portal.call(bus.call_tool, "json.parse", {"json": "1"}, context).unwrap() == 1
        assert not endless.done()
        assert isinstance(endless.result().error, ToolTimeout)


def test_a_schema_that_is_too_deep_or_too_large_is_rejected() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"not": deep}
    for schema in (deep, {"enum": ["x" * (2 << 20)]}):
        with pytest.raises(ArgumentError) as caught:
            json_tools.parse("1", schema)
        assert caught.value.field == "schema"


# --- test reports ---------------------------------------------------------------------------------


def parse_report(text: str | bytes) -> SuiteReport:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "report.xml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        return parse_junit(file)


def suite(*cases: str, tests: int | str | None = None) -> str:
    count = len(cases) if tests is None else tests
    return f'<testsuites><testsuite tests="{count}">{"".join(cases)}</testsuite></testsuites>'


def test_a_test_that_is_listed_twice_is_counted_once() -> None:
    failed = (
        '<testcase file="a.py" classname="a" name="t"><failure message="no">a.py:3:'
        " Error</failure></testcase>"
    )
    again = (
        '<testcase file="a.py" classname="a" name="t"><error message="failed on'
        ' teardown">x</error></testcase>'
    )
    report = parse_report(suite(failed, again))
    assert (report.passed, report.failed, report.skipped) == (0, 1, 0)
    assert report.failures[0].message == "no\nfailed on teardown"
    assert report.failures[0].line == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<",
        "<testsuites/>",
        suite(tests=1),
        suite("<testcase/>", tests="many"),
        suite("<testcase/>")[:-5],
        "<!DOCTYPE x>" + suite("<testcase/>"),
        ("<!DOCTYPE x [<!ENTITY a 'b'>]>" + suite("<testcase name='&a;'/>")).encode("utf-16"),
        "<a>" * 100_000,
    ],
)
def test_an_inconsistent_report_is_rejected(text: str | bytes) -> None:
    with pytest.raises(ReportError):
        parse_report(text)


def test_a_link_is_rejected_as_a_report(tmp_path: Path) -> None:
    (tmp_path / "real.xml").write_text(suite("<testcase/>"))
    (tmp_path / "link.xml").symlink_to("real.xml")
    assert parse_junit(tmp_path / "real.xml").passed == 1
    with pytest.raises(ReportError):
        parse_junit(tmp_path / "link.xml")


XML = st.lists(
    st.sampled_from(["<", ">", "/", "testcase", "failure", " name='", "' ", "&", ";", "x", "\0"])
).map("".join)
MIX = st.lists(
    st.sampled_from(["1", " ", "test", "s", ", ", "0 failures", "\n", "  1) x", "     ", "a:1"])
).map("".join)


@pytest.mark.slow
@given(
    ANY_TEXT
    | XML
    | st.lists(XML).map(lambda cases: suite(*(f"<testcase>{case}</testcase>" for case in cases)))
)
@settings(deadline=None)
def test_any_text_is_a_report_or_rejected(text: str) -> None:
    with suppress(ReportError):
        assert min(*get_counts(parse_report(text))) >= 0


def get_counts(report: SuiteReport) -> tuple[int, int, int]:
    return report.passed, report.failed, report.skipped


@given(ANY_TEXT | MIX)
def test_any_output_of_mix_is_a_report_or_rejected(text: str) -> None:
    with suppress(ReportError):
        assert min(*get_counts(parse_mix(text))) >= 0


def test_results_of_an_umbrella_project_are_added_up() -> None:
    output = (
        "==> one\n3 tests, 0 failures\n==> two\n1 property, 4 tests, 2 failures, 1 excluded, 1"
        " invalid\n"
    )
    assert get_counts(parse_mix(output)) == (4, 3, 1)


def test_colors_are_ignored() -> None:
    assert get_counts(parse_mix("\x1b[32m3 tests, 0 failures\x1b[0m\n")) == (3, 0, 0)


# --- ripgrep --------------------------------------------------------------------------------------

NAMES = st.text(st.sampled_from("ab/:\n1é"), max_size=8).map(lambda name: f"/folder/{name}.txt")
CONTENTS = st.binary(max_size=30).map(
    lambda content: content.replace(b"\n", b"").replace(b"\0", b"")
)


def split_at(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [data[start:end] for start, end in pairwise(places)]


@given(
    st.lists(st.tuples(NAMES, st.integers(1), st.integers(1), CONTENTS)),
    st.lists(st.integers(0, 500)),
)
def test_output_is_parsed_the_same_in_any_chunks(
    matches: list[tuple[str, int, int, bytes]], cuts: list[int]
) -> None:
    found = _OutputParser(1000, b"/folder")
    lines = [
        f"{name}\0{line}:{column}:".encode() + content for name, line, column, content in matches
    ]
    remark = b"/folder/x.bin: WARNING: stopped searching binary file after match"
    for piece in split_at(b"".join(line + b"\n" for line in [*lines, remark]), cuts):
        found(piece)
    assert [(name.decode(), *rest) for name, *rest in found.matches] == matches


def test_an_endless_line_takes_bounded_memory() -> None:
    found = _OutputParser(10, b"/folder")
    found(b"/folder/a\0001:1:")
    for _ in range(1000):
        found(b"x" * 65_536)
        assert len(found._rest) < 100_000
    found(b"\n/folder/b\0002:3:y\n")
    first, second = found.matches
    assert (first.file, first.content[:3]) == (b"/folder/a", b"xxx")
    assert second == (b"/folder/b", 2, 3, b"y")


@given(st.lists(st.integers(0, 500)))
def test_matches_beyond_the_limit_are_counted(cuts: list[int]) -> None:
    found = _OutputParser(2, b"/folder")
    for piece in split_at(b"".join(b"/folder/a\0%d:1:x\n" % line for line in range(1, 31)), cuts):
        found(piece)
    assert ([match.line for match in found.matches], found.omitted) == ([1, 2], 28)
