"""Output formats: every format can be read back, and is formatted for people."""

import json
import math
from collections import namedtuple
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st
from ruamel.yaml import YAML

from onetool.errors import ToolError
from onetool.util.render import render
from onetool_child.data import FORMATS

# The first example includes the import of a YAML library, which is slow on a busy machine.
no_deadline = settings(deadline=None)

SURROGATE = "\ud800"


def load_yaml_1_2(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(StringIO(text))


def load_yaml_1_1(text: str) -> Any:
    return yaml.load(text, yaml.SafeLoader)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("chosen", [None, "nonsense", *FORMATS])
@pytest.mark.parametrize("text", ["", "plain", "true", "line 1\nline 2\n", "ünï 😀", '{"a": 1}'])
def test_strings_are_returned_unchanged(text: str, chosen: str | None) -> None:
    assert render(text, chosen) == text
    assert render(text, chosen, flow=True) == text


@pytest.mark.parametrize(
    ("value", "python", "as_json", "as_yaml"),
    [
        (None, "None", "null", "null"),
        (True, "True", "true", "true"),
        (False, "False", "false", "false"),
        (3, "3", "3", "3"),
        (-(2**100), str(-(2**100)), str(-(2**100)), str(-(2**100))),
        (3.5, "3.5", "3.5", "3.5"),
        (math.nan, "nan", "null", ".nan"),
        (math.inf, "inf", "null", ".inf"),
        (-math.inf, "-inf", "null", "-.inf"),
        (1e300, "1e+300", "1e+300", "1.0e+300"),
    ],
)
def test_scalars_are_formatted_like_in_python_by_default(
    value: Any, python: str, as_json: str, as_yaml: str
) -> None:
    assert render(value) == render(value, flow=True) == render(value, "raw") == python
    assert render(value, "json") == render(value, "json_h") == as_json
    assert render(value, "yml") == render(value, "yml_h") == as_yaml


DATA = {
    "name": "Zoë 😀",
    "list": [1, 2.5, None, True],
    "empty": {},
    "nan": math.nan,
    "nested": [{"a": [1]}],
}


@pytest.mark.parametrize("chosen", [None, "json", "nonsense"])
def test_data_is_compact_json_by_default(chosen: str | None) -> None:
    assert (
        render(DATA, chosen)
        == '{"name":"Zoë 😀","list":[1,2.5,null,true],"empty":{},"nan":null,"nested":[{"a":[1]}]}'
    )


@pytest.mark.parametrize("number", [1, 2**64])
def test_json_h_is_indented_by_two(number: int) -> None:
    assert (
        render({"a": [number, {}]}, "json_h") == f'{{\n  "a": [\n    {number},\n    {{}}\n  ]\n}}'
    )


def test_yaml_is_on_one_line() -> None:
    assert (
        render(DATA, "yml")
        == "{name: Zoë 😀, list: [1, 2.5, null, true], empty: {}, nan: .nan, nested: [{a: [1]}]}"
    )
    assert render({"text": "a\nb\n"}, "yml") == r'{text: "a\nb\n"}'


def test_yml_h_indents_every_level() -> None:
    value = {"a": [1, {"b": [2], "c": {}}], "text": "line 1\n  line 2\n", "d": {"e": "on"}}

    assert (
        render(value, "yml_h")
        == 'a:\n  - 1\n  - b:\n      - 2\n    c: {}\ntext: |\n  line 1\n    line 2\nd:\n  e: "on"'
    )


def test_raw_is_the_str_of_the_value() -> None:
    assert render(DATA, "raw") == str(DATA)


HEALTH = {
    "version": "1.0.0",
    "cwd": "/current/working/directory",
    "registry": {"status": "ok", "tool_count": 15},
    "proxy": {"status": "ok", "server_count": 1, "servers": {"proxy_package_version": "connected"}},
}
HEALTH_TEXT = """\
version: "1.0.0"
cwd: /current/working/directory
registry: {status: ok, tool_count: 15}
proxy: {status: ok, server_count: 1, servers: {proxy_package_version: connected}}"""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"aliases": {}, "snippets": {}, "servers": []},
            "{aliases: {}, snippets: {}, servers: []}",
        ),
        (HEALTH, HEALTH_TEXT),
        ({}, "{}"),
        ([], "[]"),
        (["a.b", "c.d"], "[a.b, c.d]"),
        ([[1], [2]], "[[1], [2]]"),
        ([{"name": "a"}, {"name": "b"}], "- {name: a}\n- {name: b}"),
        ([{}], "- {}"),
        ({"tools": [{"name": "a"}]}, "tools:\n  - {name: a}"),
        ([{"a": {"b": {"c": 1}}}], "- a: {b: {c: 1}}"),
        ([{"text": "a\nb"}], '- {text: "a\\nb"}'),
    ],
)
def test_flow_style_is_used_for_two_levels(value: Any, text: str) -> None:
    assert render(value, flow=True) == text
    assert render(value, "nonsense", flow=True) == text


def test_an_explicit_format_overrides_flow() -> None:
    assert render(HEALTH, "json", flow=True) == render(HEALTH, "json")


@pytest.mark.parametrize("chosen", ["yml", "yml_h", None])
def test_long_lines_are_never_folded(chosen: str | None) -> None:
    text = "word " * 500 + "end"

    assert render([text, text], chosen, flow=True).count("\n") == (chosen != "yml")


@pytest.mark.spec("ot-pack.flow-style.readability")
def test_lines_of_text_are_shown_one_below_the_other() -> None:
    lines = [
        '{"file":"a.py","text":"it\'s"},',
        '{"file":"b.py"},',
        "[",
        "a plain line that is long " * 4,
    ]
    window = {"lines": lines, "total_lines": 9, "has_more": True}
    text = render(window, None, flow=True)
    assert '\n  - \'{"file":"b.py"},\'\n' in text
    assert yaml.safe_load(text) == window
    assert render(window, "yml") == render(window, "yml", flow=True)
    assert "\n" not in render(
        {"names": [f"pack.tool_{number}" for number in range(50)]}, None, flow=True
    )


AMBIGUOUS_STRINGS = """
    on On OFF yes no y N true True FALSE null Null NULL ~ = << .inf -.INF +.inf .nan .NaN
    0 7 -1 +1 012 0o7 0x1F 0b11 1_000 12:30 190:20:30 1e3 1E+3 1.5 .5 -.5 1. 1.0.0 ._ -_ +_1 -._
    2026-01-01 2026-01-01T10:00:00Z - -- --- ... ? : , # & * ! % @ ` | > ' " [ ] { } [] {}
    \\ -a :a ?a a: a:b a#b
""".split()  # noqa: SIM905 - a list of these would be all quotation marks
AWKWARD_STRINGS = [
    *AMBIGUOUS_STRINGS,
    "", " ", "\n", "\t", "\r", "\r\n", "\0", "\x7f", "\x85", "\xa0", "\u2028", "\ufeff", "\uffff",
    " a", "a ", "a: b", "a #b", "- a", "a\nb", "a\nb\n", "a\n\n", "\na", " a\nb", "a \nb", "a\n b", "a\n#b\n",
    "a\r\nb", "a\x85b\n", "a\u2028b\n", "a\n\x85", "a\tb\nc", "1\n2", "---\n", "...\n", "😀\n😀", SURROGATE,
    "\U0010ffff", "é" * 2000, "k" * 2000,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["yml", "yml_h", None])
@pytest.mark.parametrize("text", AWKWARD_STRINGS)
def test_ambiguous_strings_stay_strings_in_yaml(text: str, chosen: str | None) -> None:
    value = {"value": text, text: [text, {"deep": {"deeper": text}}], "last": [[text]]}
    rendered = render(value, chosen, flow=True)

    assert load_yaml_1_2(rendered) == load_yaml_1_1(rendered) == value


@pytest.mark.parametrize("chosen", ["json", "json_h", "yml", "yml_h", None])
def test_integers_of_any_size_are_exact(chosen: str | None) -> None:
    value = [2**63, -(2**64), 10**400]

    assert load_yaml_1_2(render(value, chosen)) == value


@pytest.mark.parametrize("chosen", [None, *FORMATS])
def test_lone_surrogates_can_be_encoded(chosen: str | None) -> None:
    for value in (SURROGATE, [SURROGATE], {SURROGATE: SURROGATE}):
        assert r"\ud800" in render(value, chosen).encode().decode()


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [None, *FORMATS])
def test_extreme_depth_is_a_clear_error(chosen: str | None) -> None:
    with pytest.raises(ToolError, match=r"nested too deeply.*return the part"):
        render(nested(100_000), chosen)


@pytest.mark.parametrize("chosen", [None, "json", "json_h", "yml", "yml_h"])
def test_five_thousand_levels_are_rejected(chosen: str | None) -> None:
    with pytest.raises(ToolError, match="nested too deeply"):
        render(nested(5_000), chosen)


@pytest.mark.parametrize("chosen", [None, *FORMATS])
def test_three_hundred_levels_are_accepted(chosen: str | None) -> None:
    assert render(nested(300), chosen).count("[" if chosen != "yml_h" else "-") >= 300


@pytest.mark.parametrize("chosen", [None, *FORMATS])
def test_integers_too_long_for_python_are_rejected(chosen: str | None) -> None:
    with pytest.raises(ToolError, match=r"more than 4300 digits; return its hex\(\)"):
        render([10**5_000], chosen)


@pytest.mark.parametrize("chosen", ["yml", "yml_h", None])
def test_repeated_objects_are_written_without_anchors(chosen: str | None) -> None:
    shared = {"a": ["b"]}

    text = render({"x": shared, "y": [shared, shared]}, chosen, flow=True)

    assert "&" not in text
    assert "*" not in text
    assert text.count("b") == 3


Point = namedtuple("Point", "x y")  # noqa: PYI024 - user code may define these


@pytest.mark.parametrize(
    ("value", "as_json"),
    [
        ((1, (2,)), "[1,[2]]"),
        ([Point(1, 2)], "[[1,2]]"),
        ({1: "a", None: "b", (2, 3): "c"}, '{"1":"a","None":"b","(2, 3)":"c"}'),
        ([Decimal("1.5")], '["1.5"]'),
        ([Decimal("1.5"), math.nan, 2**64], '["1.5",null,18446744073709551616]'),
    ],
)
def test_other_objects_become_lists_or_strings(value: Any, as_json: str) -> None:
    assert render(value) == as_json
    if "null" not in as_json:
        assert load_yaml_1_2(render(value, "yml")) == json.loads(as_json)


def test_every_format_preserves_key_order() -> None:
    value = {"b": 1, "a": 2, "c": 3}

    assert render(value) == '{"b":1,"a":2,"c":3}'
    assert render(value, "yml") == "{b: 1, a: 2, c: 3}"
    assert render(value, "yml_h") == "b: 1\na: 2\nc: 3"


PIECES = st.sampled_from(
    [
        *AWKWARD_STRINGS,
        "a",
        " ",
        "\n",
        ":",
        ": ",
        " #",
        "-",
        "'",
        '"',
        "\\",
        ",",
        "1",
        "_",
        ".",
        "e",
    ]
)
TEXTS = st.lists(PIECES, max_size=6).map("".join) | st.text(
    st.characters(exclude_categories=()), max_size=20
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=15,
)
COLLECTIONS = st.lists(VALUES, max_size=4) | st.dictionaries(TEXTS, VALUES, max_size=4)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["yml", "yml_h", None])
@no_deadline
@given(value=COLLECTIONS)
def test_yaml_loads_back_to_the_same_value(value: Any, chosen: str | None) -> None:
    text = render(value, chosen, flow=True)

    # repr distinguishes 1, True and 1.0, and treats all NaNs as equal
    assert repr(load_yaml_1_2(text)) == repr(load_yaml_1_1(text)) == repr(value)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["json", "json_h", None])
@no_deadline
@given(value=COLLECTIONS)
def test_json_loads_back_to_the_same_value(value: Any, chosen: str | None) -> None:
    assert json.loads(render(value, chosen)) == json.loads(without_nan(json.dumps(value)))


def without_nan(text: str) -> str:
    return json.dumps(json.loads(text, parse_constant=lambda _name: None))


@pytest.mark.slow
@pytest.mark.parametrize("flow", [False, True])
@pytest.mark.parametrize("chosen", [None, *FORMATS])
@no_deadline
@given(value=VALUES)
def test_the_output_can_always_be_encoded_as_utf8(
    value: Any, chosen: str | None, flow: bool
) -> None:
    text = render(value, chosen, flow=flow)

    assert text.encode().decode() == text


@pytest.mark.slow
@no_deadline
@given(value=COLLECTIONS)
def test_one_line_formats_have_one_line(value: Any) -> None:
    assert "\n" not in render(value)
    assert "\n" not in render(value, "yml")
