"""Shapes of results: types and keys, never values, for any results in any order."""

import gc
import json
import sqlite3
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import closing
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.support import measure_seconds

from onetool.state.stats.database import StatisticsFile
from onetool.state.stats.shapes import (
    MAX_KEYS,
    MAX_PENDING,
    MAX_TEXT_CHARS,
    NOTHING,
    SAMPLE_AFTER,
    Shape,
    Shapes,
    from_json,
    infer_shape,
    merge,
    outline,
    render_shape,
    to_json,
)

no_deadline = settings(deadline=None)
VALUE = "s3cret"

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.just(VALUE))
keys = st.one_of(
    st.sampled_from(["title", "url", "score", "first name", "@type", "42"]), st.text(max_size=3)
)
results = st.recursive(
    scalars,
    lambda inside: st.lists(inside, max_size=5) | st.dictionaries(keys, inside, max_size=5),
    max_leaves=30,
)
MANY_NAMES = [f"k{first}{second}" for first in "abcdefghijklm" for second in "abcdefghijklm"]
wide = st.sets(st.sampled_from(MANY_NAMES), max_size=MAX_KEYS).map(
    lambda names: dict.fromkeys(names, 1)
)
shapes = st.builds(infer_shape, results | wide)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "bool"),
        (3, "int"),
        (2.5, "float"),
        ("x", "str"),
        (b"x", "str"),
        (object(), "Any"),
        ([], "list"),
        ((1, 2), "list[int]"),
        ({1}, "list[int]"),
        ({}, "dict"),
        ([1, "a", None], "list[str | int | None]"),
        ({"a": {"b": [True]}}, "{a: {b: list[bool]}}"),
        (
            [{"title": "x", "score": 1.0}, {"title": "y", "score": None}],
            "list[{title: str, score: float | None}]",
        ),
        ([{"a": 1}, {"a": 1, "b": 2}], "list[{a: int, b?: int}]"),
        ([[], {}, 1, None], "list[int | dict | list | None]"),
        ([{}, {"a": 1}], "list[dict | {a: int}]"),
        (
            {"first name": 1, "日本": 2, "@type": "x"},
            '{"first name": int, 日本: int, "@type": str}',
        ),
    ],
)
def test_a_shape_is_written_like_a_type(value: object, text: str) -> None:
    assert render_shape(infer_shape(value)) == text


@pytest.mark.parametrize(
    "key",
    [
        "550e8400-e29b-41d4-a716-446655440000",
        "d41d8cd98f00b204",
        "2026-11-15",
        "42",
        "user_90210",
        "ada@example.org",
        "/etc/passwd",
        "https://example.org",
        "line\nbreak",
        "\ud800",
        "x" * 41,
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "sk-proj-abcdefghijklmnop",
        "sk_live_AbCdEfGhIjKlMnOp",
        "cus_NffrFeUfNV2Hib",
        "wJalrXUtnFEMIKMDENGbPxRfiCYKEY",
        "eyJhbGciOiJIUzI1NiJ9",
        "dQw4w9WgXcQ",
        "U024BE7LH",
        "qzxkvjwpfhtrbnmdqzxkvjwpfh",
        "user_d41d8cd98f",
        "customer-204",
        "Room 204",
        "user1234",
        "INC1234",
        "+49 30 901820",
        "DE89 3704 0044",
        "example.org",
        "main.py",
        "user:alice",
        "fe80::1",
        "how to bake bread",
        "Really?",
        "a=b",
        "",
        7,
        None,
        ("a", "b"),
    ],
)
def test_keys_that_are_data_are_not_kept(key: object) -> None:
    assert render_shape(infer_shape({key: {"n": 1}, "total": {"n": 2}})) == "{str: {n: int}}"


@pytest.mark.parametrize(
    "key",
    [
        "id", "sha256", "utf8", "x509CertificateChain", "decade", "Content-Type", "X-Forwarded-For", "$ref", "@type",
        "_id", "first name", "Price (EUR)", "CPU %", "line_2", "address2", "HTMLElementID", "XMLHttpRequestURL",
        "accessControlAllowOriginHeader", "total_number_of_open_pull_requests", "MemAvailable", "größe", "日本",
        "#text",
    ],
)  # fmt: skip
def test_keys_that_are_names_are_kept(key: str) -> None:
    assert list(infer_shape({key: 1}).fields or ()) == [key]


PEOPLE = ("ada", "bob", "cid", "dan", "eve", "fay", "gus", "hal", "ida")


def test_keys_of_entries_with_equal_shapes_are_data() -> None:
    entries: dict[str, Any] = {name: {"age": 36, "town": "Rome"} for name in PEOPLE[:3]}
    assert render_shape(infer_shape(entries)) == "{str: {age: int, town: str}}"
    assert (
        render_shape(infer_shape({**entries, "eve": {}})) == "{str: dict | {age: int, town: str}}"
    )
    assert (
        render_shape(infer_shape({name: [{"day": 1}, {"day": 2}] for name in PEOPLE}))
        == "{str: list[{day: int}]}"
    )
    assert (
        render_shape(infer_shape({name: {"2026-11-15": name} for name in PEOPLE}))
        == "{str: {str: str}}"
    )
    deep = infer_shape([[[[[entries]]]]])
    assert "ada" not in render_shape(deep)


def test_keys_of_entries_with_different_shapes_are_fields() -> None:
    parts = {
        "user": {"id": 1, "login": "x"},
        "repo": {"id": 2, "url": "x"},
        "owner": {"id": 3, "login": "x"},
    }
    assert (
        render_shape(infer_shape(parts))
        == "{user: {id: int, login: str}, repo: {id: int, url: str}, owner: {id: int, login: str}}"
    )
    empty: dict[str, Any] = {"errors": [], "warnings": [], "items": []}
    assert render_shape(infer_shape(empty)) == "{errors: list, warnings: list, items: list}"


def test_keys_that_results_do_not_share_are_data() -> None:
    assert render_shape(reduce(merge, (infer_shape({name: 1}) for name in PEOPLE))) == "{str: int}"
    common = reduce(merge, (infer_shape({name: 1, "at": 2}) for name in PEOPLE))
    assert render_shape(common).startswith("{ada?: int, at: int, bob?: int")


def test_an_empty_result_does_not_change_a_shape() -> None:
    found = {f"field_{letter}": 1 for letter in "abcdefghij"}
    assert len(merge(infer_shape(found), infer_shape({})).fields or ()) == 10


def test_too_many_keys_are_data() -> None:
    few, many = (
        {f"name{chr(97 + i % 26)}{'x' * (i // 26)}": 1 for i in range(n)}
        for n in (MAX_KEYS, MAX_KEYS + 1)
    )
    assert len(infer_shape(few).fields or ()) == MAX_KEYS
    assert render_shape(infer_shape(many)) == "{str: int}"


def test_too_many_keys_over_many_results_are_data() -> None:
    observed = (
        infer_shape({f"key_{letter}{other}": 1})
        for letter in "abcdefghijkl"
        for other in "abcdefghijkl"
    )
    assert render_shape(reduce(merge, observed)) == "{str: int}"


def test_late_and_rare_items_of_a_list_are_seen() -> None:
    rows: list[dict[str, Any]] = [{"a": None if row % 2 else 1} for row in range(1000)]
    assert render_shape(infer_shape(rows)) == "list[{a: int | None}]"
    assert render_shape(infer_shape([1] * 500 + ["x"] * 500)) == "list[str | int]"


def test_the_shape_of_a_huge_result_is_short() -> None:
    wide = {f"k{i}": [{f"j{j}": list(range(100)) for j in range(100)}] * 100 for i in range(100)}
    assert len(render_shape(infer_shape([wide] * 10_000))) <= MAX_TEXT_CHARS
    assert len(render_shape(infer_shape([[[[[[[[[[1]]]]]]]]]]))) <= MAX_TEXT_CHARS


def test_a_limited_number_of_values_is_read_of_a_huge_result() -> None:
    huge = {
        f"k{i}": {f"j{j}": {f"i{k}": 1 for k in range(90)} for j in range(90)} for i in range(90)
    }
    assert 500 < str(outline(huge)).count("'int'") <= 1_000


@pytest.mark.slow
@given(results)
@no_deadline
def test_a_shape_never_contains_a_value(value: object) -> None:
    shape = infer_shape(value)
    assert VALUE not in json.dumps(to_json(shape))
    assert VALUE not in render_shape(shape)


@pytest.mark.slow
@given(shapes, shapes, shapes)
@no_deadline
def test_merging_is_associative_commutative_and_idempotent(
    one: Shape, two: Shape, three: Shape
) -> None:
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, two) == merge(two, one)
    assert merge(one, one) == one
    assert merge(one, NOTHING) == one
    both = merge(one, two)
    assert merge(both, one) == both


@pytest.mark.slow
@given(results, results)
@no_deadline
def test_the_shape_of_a_list_is_the_merged_shape_of_its_items(one: object, two: object) -> None:
    assert infer_shape([one, two]).items == merge(
        infer_shape([one]).items or NOTHING, infer_shape([two]).items or NOTHING
    )


@given(shapes)
@no_deadline
def test_a_shape_survives_serialization(shape: Shape) -> None:
    assert from_json(json.loads(json.dumps(to_json(shape)))) == shape


# --- storage --------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "stats" / "stats.db"


def test_learned_shapes_are_loaded_at_the_next_start(file: Path) -> None:
    first = Shapes(StatisticsFile(file))
    first.learn("web.search", [{"title": "x", "score": 1.0}])
    assert first.text("web.search") == "list[{title: str, score: float}]"
    first.close()
    second = Shapes(StatisticsFile(file))
    second.learn("web.search", [{"title": "x", "score": None}])
    assert second.text("web.search") == "list[{title: str, score: float | None}]"
    second.close()
    assert (
        Shapes(StatisticsFile(file)).text("web.search") == "list[{title: str, score: float | None}]"
    )
    assert Shapes(StatisticsFile(file)).text("web.fetch") is None
    assert file.stat().st_mode & 0o077 == 0


def make_names(count: int) -> Iterator[str]:
    """Yield different keys that may be names, each of which takes several regular expressions to
    check.
    """
    for number in range(count):
        word = f"{number:012d}".translate(str.maketrans("0123456789", "abcdefghij"))
        yield f"{word} {word} {word[1:]}"


def test_learning_takes_little_of_the_time_that_a_shape_takes(tmp_path: Path) -> None:
    names = make_names(1_000_000)
    wide = [
        {next(names): {next(names): 1 for _ in range(31)} for _ in range(31)} for _ in range(15)
    ]
    deep = [
        [[{next(names): [1] for _ in range(10)} for _ in range(9)] for _ in range(10)]
        for _ in range(15)
    ]
    seconds = [measure_learning(tmp_path / f"{attempt}.db", [*wide, *deep]) for attempt in range(3)]
    learning, inferring = map(min, zip(*seconds, strict=True))
    assert learning < inferring / 2


def measure_learning(file: Path, values: list[Any]) -> tuple[float, float]:
    """Return the time that the values take the caller, and the time of the rest, which a thread
    does otherwise.
    """
    shapes = Shapes(StatisticsFile(file))
    shapes.close()

    def learn() -> None:
        for value in values:
            shapes.learn("a.b", value)

    return measure_seconds(learn, times=1), measure_seconds(shapes.flush, times=1)


def test_a_result_may_change_after_it_was_learned_and_is_not_kept(file: Path) -> None:
    class Row(dict[str, Any]):
        """A dict that may have weak references."""

    known, row = Shapes(StatisticsFile(file)), Row(title="x", tags=["y"])
    known.learn("a.b", [row])
    row["tags"].append(1)
    row["secret"] = 1
    held = weakref.ref(row)
    del row
    gc.collect()
    assert held() is None
    assert known.text("a.b") == "list[{title: str, tags: list[str]}]"
    known.close()


def test_results_wait_in_a_bounded_queue(file: Path) -> None:
    known = Shapes(StatisticsFile(file))
    known.close()  # nothing takes from the queue
    for number in range(10 * MAX_PENDING):
        known.learn(f"a.t{number}", 1)
    known.flush()
    assert (
        sum(known.text(f"a.t{number}") is not None for number in range(10 * MAX_PENDING))
        == MAX_PENDING
    )


def test_of_a_table_in_a_result_a_few_entries_are_read() -> None:
    table = {
        f"{number}@example.org": {f"field_{letter}": 1 for letter in "abcdefghijklmnop"}
        for number in range(99)
    }
    assert "total: int" in render_shape(infer_shape({"table": table, "total": 1}))


def test_only_a_changed_shape_is_written(file: Path) -> None:
    known = Shapes(StatisticsFile(file))
    known.learn("a.b", {"n": 1})
    known.flush()
    written = file.stat()
    known.learn("a.b", {"n": 2})
    known.close()
    assert file.stat() == written


def test_results_of_a_known_tool_are_sampled(file: Path) -> None:
    known = Shapes(StatisticsFile(file))
    for _ in range(SAMPLE_AFTER):
        known.learn("a.b", 1)
    known.learn("a.b", "x")
    assert known.text("a.b") == "int"
    for _ in range(SAMPLE_AFTER):
        known.learn("a.b", "x")
    assert known.text("a.b") == "str | int"
    known.close()


def measure_shape(file: Path, tool: str) -> int:
    with closing(sqlite3.connect(file)) as database:
        (size,) = database.execute(
            "SELECT length(shape) FROM shapes WHERE tool = ?", (tool,)
        ).fetchone()
    return int(size)


def test_the_size_of_a_shape_is_bounded(file: Path) -> None:
    known = Shapes(StatisticsFile(file))
    for outer in range(SAMPLE_AFTER):
        known.learn(
            "a.b", {f"o{chr(97 + outer)}": {f"i{chr(97 + inner)}": 1 for inner in range(26)}}
        )
    known.close()
    assert measure_shape(file, "a.b") < 20_000


def test_a_shape_that_is_too_large_keeps_its_upper_levels(file: Path) -> None:
    known = Shapes(StatisticsFile(file))
    names = [f"{first}{second}" for first in "abcdefghi" for second in "abcdefghi"]
    large = {name: {**{f"i{inner}": 1 for inner in "abcdef"}, name: "x"} for name in names}
    known.learn("a.b", {"total": 1, "inside": large})
    known.learn("a.b", {"total": None, "inside": large})
    known.close()
    again = Shapes(StatisticsFile(file))
    again.learn("a.b", {"total": 1, "inside": large})
    assert again.text("a.b") == "{total: int | None, inside: dict}"
    again.close()
    assert measure_shape(file, "a.b") < 10_000


@pytest.mark.slow
def test_shapes_of_two_processes_are_merged(file: Path) -> None:
    program = """if True:
        import sys; from pathlib import Path; from onetool.state.stats.database import StatisticsFile
        from onetool.state.stats.shapes import Shapes
        known = Shapes(StatisticsFile(Path(sys.argv[1])))
        for number in range(40):
            known.learn(f"{sys.argv[2]}.t{number}", {sys.argv[2]: 1})
            known.learn("both.t", {sys.argv[2]: 1})
            known.flush()
        known.close()"""
    both = [
        subprocess.Popen([sys.executable, "-c", program, str(file), name])
        for name in ("one", "two")
    ]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    known = Shapes(StatisticsFile(file))
    assert all(
        known.text(f"{name}.t{number}") == f"{{{name}: int}}"
        for name in ("one", "two")
        for number in range(40)
    )
    assert known.text("both.t") in {"{one?: int, two?: int}", "{two?: int, one?: int}"}


def test_a_damaged_file_is_renamed_and_kept(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"no database")
    known = Shapes(StatisticsFile(file))
    assert known.text("a.b") is None
    known.learn("a.b", 1)
    known.close()
    (kept,) = file.parent.glob("stats.db.damaged-*")
    assert kept.read_bytes() == b"no database"
    assert str(kept) in str(known.problem)
    assert Shapes(StatisticsFile(file)).text("a.b") == "int"


def test_an_unwritable_directory_is_a_problem_and_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    known = Shapes(StatisticsFile(tmp_path / "file" / "stats.db"))
    known.learn("a.b", 1)
    known.close()
    assert "cannot write" in str(known.problem)
