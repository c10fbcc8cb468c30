"""YAML 1.2: types of scalars, line numbers, and the cost of hostile text."""

import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st
from ruamel.yaml import YAML
from tests.support import measure_seconds

from onetool.errors import ConfigError
from onetool.util import yaml_loader


def parse_value(text: str) -> Any:
    return yaml_loader.read(f"a: {text}\n", "test.yaml").data["a"]


def parse_error(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        yaml_loader.read(text, "test.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    "word", ["on", "off", "yes", "no", "y", "n", "tRUE", "2001-01-01", "1_000", "0b1", "12:30", "="]
)
def test_yaml_1_1_booleans_and_dates_are_strings(word: str) -> None:
    assert parse_value(word) == word


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True), ("True", True), ("TRUE", True), ("false", False), ("FALSE", False),
        ("null", None), ("~", None), ("", None), ("NULL", None),
        ("012", 12), ("-7", -7), ("+7", 7), ("0o17", 15), ("0x1F", 31),
        ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("-.inf", -math.inf), (".INF", math.inf), ("5.", 5.0),
        ("'12'", "12"), ('"true"', "true"), ("!!str 12", "12"), ("! 12", "12"), ("!!float 1", 1.0),
        ("!!int '3'", 3), ("!!null ''", None), ("!!seq [1]", [1]), ("!!map {b: 1}", {"b": 1}),
    ],
)  # fmt: skip
def test_scalars_follow_the_core_schema(text: str, expected: Any) -> None:
    value = parse_value(text)
    assert (value, type(value)) == (expected, type(expected))


def test_nan_is_a_float() -> None:
    assert math.isnan(parse_value(".nan"))


def test_untyped_reading_keeps_every_scalar_as_a_string() -> None:
    document = yaml_loader.read(
        "pin: 012\nflag: true\nnone:\ntagged: !!int 3", "test.yaml", typed=False
    )
    assert document.data == {"pin": "012", "flag": "true", "none": "", "tagged": "3"}


def test_keys_are_strings_as_written() -> None:
    assert yaml_loader.read("1: a\ntrue: b\n0x10: c\n~: d", "test.yaml").data == {
        "1": "a",
        "true": "b",
        "0x10": "c",
        "~": "d",
    }


def test_an_alias_may_be_a_key() -> None:
    assert yaml_loader.read("{a: &k name, *k : 1}", "test.yaml").data == {"a": "name", "name": 1}


@pytest.mark.parametrize(
    "text", ["[:read, :write]", "[\n  read,\n  :exec,\n]", "{a: :b}", '[":read", :x]']
)
@pytest.mark.parametrize("loader", [yaml.CSafeLoader, yaml.SafeLoader])
def test_strings_that_start_with_colons_are_read(text: str, loader: Any) -> None:
    reference = YAML(typ="safe", pure=True).load(text)
    assert yaml_loader._read(text, "test.yaml", True, loader).data == reference


def test_quoting_colon_strings_does_not_change_other_text() -> None:
    document = yaml_loader.read(
        'text: "[:read, :write]"\nblock: |\n  [:read]\nlist: [:read]', "test.yaml"
    )
    assert document.data == {"text": "[:read, :write]", "block": "[:read]\n", "list": [":read"]}


def test_too_many_colon_strings_are_rejected_quickly() -> None:
    assert "put them in quotes" in parse_error("[" + "[:a], " * 200 + "]")


def test_line_numbers_of_keys_and_items_are_available() -> None:
    text = "# comment\na:\n  b: 1\n  c:\n    - x\n    - y: 2\n"
    document = yaml_loader.read(text, "test.yaml")
    paths: list[tuple[str | int, ...]] = [
        (),
        ("a",),
        ("a", "b"),
        ("a", "c"),
        ("a", "c", 1),
        ("a", "c", 1, "y"),
    ]
    assert [document.line(path) for path in paths] == [2, 2, 3, 4, 6, 6]


def test_unknown_paths_have_the_line_of_their_parent() -> None:
    document = yaml_loader.read("\na:\n  b: 1\n", "test.yaml")
    assert [
        document.line(("a", "zz", 3)),
        document.line(("zz",)),
        document.line(("a", "b", "c")),
    ] == [
        2,
        2,
        3,
    ]


def test_an_alias_has_the_line_of_its_key() -> None:
    document = yaml_loader.read("base: &b\n  x: 1\n\ncopy: *b\n", "test.yaml")
    assert document.data["copy"] == {"x": 1}
    assert [document.line(("copy",)), document.line(("copy", "x"))] == [4, 2]


def test_text_without_values_is_none() -> None:
    assert [
        yaml_loader.read(text, "test.yaml").data
        for text in ("", "# only a comment\n", "---\n...\n")
    ] == [None] * 3


def test_a_byte_order_mark_is_ignored() -> None:
    assert yaml_loader.read("\ufeffa: [:read]", "test.yaml").data == {"a": [":read"]}


def test_error_messages_have_line_and_hint() -> None:
    texts = [
        "a: 1\nb: 2\na: 3",
        "a: 1\n'a': 2",
        "a: !!python/object:os.system x",
        "a: !secret x",
        "a: !!set {b}",
        "a: !!int x",
        "a: !!bool 1",
        "a: *missing",
        "a: &a [1, *a]",
        "a: &a {b: {c: *a}}",
        "[1, 2]: 3",
        "a: [?b]",
        "a: {?b: 1}",
        "a:\n\t- b",
        "a: 1\n---\nb: 2",
        "a: [1, 2",
        "a: b: c",
        "a: \x01",
        "a: \ud800",
        "n: " + "9" * 5000,
        "n: 0x" + "f" * 5000,
    ]
    assert (
        "\n".join(parse_error(text) for text in texts)
        == "test.yaml:3: duplicate key 'a', first defined in line 1\n"
        "test.yaml:2: duplicate key 'a', first defined in line 1\n"
        "test.yaml:1: this tag is not allowed\nHint: put strings that start with ! in quotes\n"
        "test.yaml:1: this tag is not allowed\nHint: put strings that start with ! in quotes\n"
        "test.yaml:1: this tag is not allowed\nHint: remove it\n"
        "test.yaml:1: the value does not match its tag !!int\n"
        "test.yaml:1: the value does not match its tag !!bool\n"
        "test.yaml:1: this alias has no anchor\nHint: put strings that start with * in quotes\n"
        "test.yaml:1: this alias refers to a value that contains it\n"
        "test.yaml:1: this alias refers to a value that contains it\n"
        "test.yaml:1: a key must be a scalar, not a list or a mapping\n"
        "test.yaml:1: an unquoted string starts with ?\nHint: put it in quotes\n"
        "test.yaml:1: an unquoted string starts with ?\nHint: put it in quotes\n"
        "test.yaml:2: is not valid YAML: found character that cannot start any token\n"
        "Hint: indent with spaces, not with tabs\n"
        "test.yaml:2: a second document starts here\nHint: keep one document\n"
        "test.yaml:2: is not valid YAML: did not find expected ',' or ']' "
        "while parsing a flow sequence that starts in line 1\n"
        "test.yaml:1: is not valid YAML: mapping values are not allowed in this context\n"
        "test.yaml:1: is not valid YAML: control characters are not allowed\n"
        "test.yaml:1: contains a lone surrogate\n"
        "test.yaml:1: a number of 5,000 digits is too long\n"
        "test.yaml:1: a number of 5,002 digits is too long"
    )


def make_nested_lists(levels: int) -> str:
    return "[" * levels + "]" * levels


def make_lists_of_aliases(levels: int, width: int) -> str:
    lines = ["l0: &l0 [x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (make_lists_of_aliases(9, 9), "too many"),
        (make_lists_of_aliases(150, 1), "nested more than 100 deep"),
        (f"a: &a {'x' * 1_000_000}\nb: [{', '.join(['*a'] * 200)}]", "too many"),
        (f"[{'x,' * 200_000}]", "too many"),
        (make_nested_lists(101), "nested more than 100 deep"),
        (make_nested_lists(500_000), "nested more than 100 deep"),
        ("- " * 500_000, "nested more than 100 deep"),
        ("{a: " * 500_000, "nested more than 100 deep"),
        ("x" * (yaml_loader.MAX_BYTES + 1), "limit 4,194,304"),
    ],
    ids=[
        "aliases",
        "deep aliases",
        "long text",
        "many items",
        "deep",
        "deeper",
        "block",
        "mappings",
        "large",
    ],
)
def test_bombs_are_rejected_at_the_cost_of_an_ordinary_document(
    text: str, reason: str, ordinary_seconds: float
) -> None:
    def expect_rejection() -> None:
        assert reason in parse_error(text)

    assert measure_seconds(expect_rejection) < 4 * ordinary_seconds


@pytest.fixture(scope="module")
def ordinary_seconds() -> float:
    """Return the time to read a document of about the allowed size."""
    many = f"[{'x,' * (yaml_loader.MAX_NODES - 10)}]"
    return measure_seconds(lambda: yaml_loader.read(many, "test.yaml"))


def test_the_limits_accept_ordinary_documents() -> None:
    shared = "base: &b {x: 1}\n" + "\n".join(f"k{n}: *b" for n in range(1000))
    assert len(yaml_loader.read(shared, "test.yaml").data) == 1001
    assert yaml_loader.read(make_nested_lists(100), "test.yaml").data
    assert len(yaml_loader.read("a: " + "x" * 4_000_000, "test.yaml").data["a"]) == 4_000_000


def test_an_anchor_may_be_redefined() -> None:
    assert yaml_loader.read("a: &x 1\nb: *x\nc: &x 2\nd: *x", "test.yaml").data == {
        "a": 1,
        "b": 1,
        "c": 2,
        "d": 2,
    }


# Characters that this parser treats as line breaks or rejects are excluded: the grammar is not
# tested here.
texts = st.text(
    st.characters(
        exclude_categories=("Cc", "Cs", "Cn"),
        exclude_characters="\x85\u2028\u2029\ufeff",
        include_characters="\n\t",
    ),
    max_size=30,
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
plain_data = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(plain_data)
@settings(deadline=None)
def test_output_of_ruamel_is_read_back_unchanged(data: Any) -> None:
    dumper, written = YAML(typ="safe", pure=True), io.StringIO()
    dumper.default_flow_style = False
    dumper.dump(data, written)
    read = yaml_loader.read(written.getvalue(), "test.yaml").data
    assert read == data == YAML(typ="safe", pure=True).load(written.getvalue())


@given(plain_data.filter(lambda data: "inf" not in json.dumps(data).lower()))
@settings(deadline=None)
def test_output_of_json_is_read_back_unchanged(data: Any) -> None:
    assert yaml_loader.read(json.dumps(data, ensure_ascii=False), "test.yaml").data == data


@pytest.mark.slow
@given(plain_data)
@settings(deadline=None)
def test_the_pure_parser_agrees_with_the_fast_one(data: Any) -> None:
    text = json.dumps(data, ensure_ascii=False).replace("Infinity", ".inf")
    pure = yaml_loader._read(text, "test.yaml", True, yaml.SafeLoader)
    assert pure == yaml_loader._read(text, "test.yaml", True, yaml.CSafeLoader)


@given(st.text(max_size=200))
@settings(deadline=None)
def test_any_text_is_read_or_rejected_cleanly(text: str) -> None:
    try:
        yaml_loader.read(text, "test.yaml")
    except ConfigError as error:
        assert str(error).startswith("test.yaml:")  # noqa: PT017 - some texts are valid


def read_file_error(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        yaml_loader.read_file(path)
    return str(caught.value).replace(str(path.parent), "~")


@pytest.mark.parametrize("text", ["", " \n", "# only a comment\n", "\ufeff"])
def test_an_empty_file_has_no_data(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.yaml").write_text(text)
    assert yaml_loader.read_file(tmp_path / "empty.yaml").data is None


def test_an_unreadable_file_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    (tmp_path / "large.yaml").write_bytes(b"x" * 10_000_000)
    (tmp_path / "binary.yaml").write_bytes(bytes(range(1, 128)) * 10)
    os.mkfifo(tmp_path / "pipe.yaml")
    assert (
        "\n".join(read_file_error(path) for path in sorted(tmp_path.iterdir()))
        == "~/binary.yaml:1: is not valid YAML: control characters are not allowed\n"
        "~/folder.yaml: is a directory, not a file\n"
        "~/large.yaml:1: too large: 10,000,000 bytes (limit 4,194,304)\n"
        "~/latin.yaml:2: is not UTF-8 text\nHint: save the file as UTF-8\n"
        "~/loop.yaml: cannot be read: Too many levels of symbolic links\n"
        "~/pipe.yaml: is not a regular file"
    )


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        yaml_loader.read_file(tmp_path / "none.yaml")


def test_a_document_has_the_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: \xc3\xa9\n")
    document = yaml_loader.read_file(tmp_path / "a.yaml")
    assert (document.data, document.source) == ({"a": "é"}, str(tmp_path / "a.yaml"))
