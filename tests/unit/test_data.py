"""Values as data: every type of value has one JSON representation, and no value harms its sender."""

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import itertools
import json
import pathlib
import string
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as some

from onetool_child.data import NotData, as_data, encode, text


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    HI = "hi"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Box:
    content: Any
    when: dt.date = dt.date(2026, 1, 2)


@dataclasses.dataclass(slots=True, frozen=True)
class Slotted:
    a: int


class Model:
    def model_dump(self) -> dict[str, Any]:
        return {"dumped": {1, 2}}


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Own:
    def __str__(self) -> str:
        return "own text"


class OneByOne:
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


UTC = dt.UTC
VALUES = {
    "None": (None, None),
    "booleans": ([True, False], [True, False]),
    "numbers": ([1, -2, 3.5, 10**30], [1, -2, 3.5, 10**30]),
    "text": ("tä\n\0\u2028", "tä\n\0\u2028"),
    "a lone surrogate": ("\ud800", "\ud800"),
    "a text of its own class": (Text("x"), "x"),
    "a number of its own class": (Whole(5), 5),
    "lists and tuples": ([1, (2, [3])], [1, [2, [3]]]),
    "a named tuple": (Point(1, 2), [1, 2]),
    "mappings": ({"a": {"b": 1}}, {"a": {"b": 1}}),
    "an ordered mapping": (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    "a default mapping": (collections.defaultdict(int, a=1), {"a": 1}),
    "a counter": (collections.Counter("aab"), {"a": 2, "b": 1}),
    "a chain of mappings": (collections.ChainMap({"a": 1}, {"b": 2}), {"b": 2, "a": 1}),
    "a read-only mapping": (types.MappingProxyType({"a": 1}), {"a": 1}),
    "a set": ({3, 1, 2}, [1, 2, 3]),
    "a frozen set": (frozenset("ba"), ["a", "b"]),
    "an empty set": (set(), []),
    "bytes": (b"\xff\x00", "/wA="),
    "a byte array": (bytearray(b"hi"), "aGk="),
    "a memory view": (memoryview(b"hi"), "aGk="),
    "a date": (dt.date(2026, 1, 2), "2026-01-02"),
    "a time": (dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
    "a time of day": (dt.time(3, 4), "03:04:00"),
    "a span of time": (dt.timedelta(days=1, seconds=2), "1 day, 0:00:02"),
    "a decimal": (decimal.Decimal("1.10"), "1.10"),
    "a fraction": (fractions.Fraction(1, 3), "1/3"),
    "a complex number": (complex(1, 2), "(1+2j)"),
    "a path": (pathlib.PurePosixPath("/a/b"), "/a/b"),
    "an identifier": (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "an address": (ipaddress.ip_address("::1"), "::1"),
    "an enum": ([Color.RED, Color.PAIR], ["red", [1, 2]]),
    "enums that are numbers and words": ([Number.ONE, Word.HI], [1, "hi"]),
    "flags": (Access.READ | Access.WRITE, 3),
    "a data class": (Box({1}), {"content": [1], "when": "2026-01-02"}),
    "a data class in another": (
        Box(Box(1)),
        {"content": {"content": 1, "when": "2026-01-02"}, "when": "2026-01-02"},
    ),
    "a data class with slots": (Slotted(1), {"a": 1}),
    "a model": (Model(), {"dumped": [1, 2]}),
    "a range": (range(3), [0, 1, 2]),
    "a view of keys": ({"a": 1}.keys(), ["a"]),
    "a queue": (collections.deque([1, 2]), [1, 2]),
    "an array": (array.array("i", [1, 2]), [1, 2]),
    "an object that can be gone through": (OneByOne(), [1, 2]),
    "an object with its own text": (Own(), "own text"),
    "an error": (ValueError("bad"), "ValueError: bad"),
    "a class": (Own, str(Own)),
    "a function": (len, "<built-in function len>"),
    "a module": (string, str(string)),
    "a type with methods of data": (
        [memoryview, dt.date],
        ["<class 'memoryview'>", "<class 'datetime.date'>"],
    ),
    "a namespace": (types.SimpleNamespace(a=types.SimpleNamespace(b=1)), {"a": {"b": 1}}),
    "an ellipsis": (..., "Ellipsis"),
}


MIXED: list[Any] = ["a", 5]
# Values that can be used only once.
ITERATORS: dict[str, tuple[Callable[[], Iterator[Any]], list[Any]]] = {
    "a generator": (lambda: (n * n for n in range(3)), [0, 1, 4]),
    "an iterator": (lambda: iter([1, 2]), [1, 2]),
    "a map": (lambda: map(str, [1, 2]), ["1", "2"]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_every_type_of_value_has_a_representation(kind: str) -> None:
    value, data = VALUES[kind]
    assert as_data(value) == data
    assert as_data({"key": [value]}) == {"key": [data]}


@pytest.mark.parametrize("kind", ITERATORS)
def test_an_iterator_becomes_a_list(kind: str) -> None:
    make, data = ITERATORS[kind]
    assert as_data(make()) == data
    assert as_data({"key": [make()]}) == {"key": [data]}
    assert json.loads(encode({"value": make()})) == {"value": data}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_is_one_line_of_ascii(kind: str) -> None:
    line = encode({"value": VALUES[kind][0]})
    assert line.isascii()
    assert "\n" not in line


def test_nan_and_infinity_are_kept() -> None:
    assert encode([float("nan"), float("inf"), -float("inf")]) == "[NaN,Infinity,-Infinity]"


@pytest.mark.parametrize(
    "make",
    [
        lambda: map(len, MIXED),
        lambda: {"key": [map(len, MIXED)], (1, 2): 3},
        lambda: [3, Box(len(item) for item in MIXED)],
    ],
)
def test_the_error_of_a_lazy_value_is_raised(make: Callable[[], Any]) -> None:
    for convert in (encode, text):
        with pytest.raises(TypeError, match=r"'int' has no len"):
            convert(make())
    with pytest.raises(ValueError, match="invalid literal") as caught:
        encode(map(int, ["1", "x"]))
    assert type(caught.value) is ValueError


def test_an_object_without_data_is_rejected_with_its_type() -> None:
    class Response:
        def __repr__(self) -> str:
            return "<Response 200>"

    for value in (object(), Response(), [{"inner": Response()}], {Response(): 1}):
        with pytest.raises(NotData, match=r"cannot return an object of type .*(object|Response)"):
            encode(value)


# --- keys -----------------------------------------------------------------------------------------

KEYS = {
    "text": ({"a": 1}, {"a": 1}),
    "numbers, None and booleans": (
        {1: "a", 2.5: "b", None: "c", False: "d"},
        {"1": "a", "2.5": "b", "null": "c", "false": "d"},
    ),
    "tuples": ({(1, 2): "a"}, {"(1, 2)": "a"}),
    "bytes": ({b"hi": 1}, {"aGk=": 1}),
    "dates": ({dt.date(2026, 1, 2): 1}, {"2026-01-02": 1}),
    "enums": ({Color.RED: 1, Number.ONE: 2}, {"red": 1, "1": 2}),
    "frozen sets": ({frozenset({1}): 1}, {"frozenset({1})": 1}),
    "objects": ({Own(): 1}, {"own text": 1}),
    "decimals": ({decimal.Decimal("1.5"): 1}, {"1.5": 1}),
    "identifiers": ({uuid.UUID(int=1): 1}, {"00000000-0000-0000-0000-000000000001": 1}),
}


@pytest.mark.parametrize("kind", KEYS)
def test_every_type_of_key_becomes_a_string(kind: str) -> None:
    value, data = KEYS[kind]
    assert as_data(value) == data
    assert as_data([{"deep": value}]) == [{"deep": data}]


def test_values_under_an_unusual_key_keep_their_representation() -> None:
    value = {(1, 2): {"set": {1}, "when": dt.date(2026, 1, 2), "box": Box(None), "more": [b"hi"]}}
    inner = {
        "set": [1],
        "when": "2026-01-02",
        "box": {"content": None, "when": "2026-01-02"},
        "more": ["aGk="],
    }
    assert as_data(value) == {"(1, 2)": inner}


def test_iterators_next_to_an_unusual_key_are_converted() -> None:
    assert as_data({"numbers": (n for n in range(3)), (1, 2): "pair"}) == {
        "numbers": [0, 1, 2],
        "(1, 2)": "pair",
    }
    assert as_data([map(str, [1, 2]), {(1, 2): 3}]) == [["1", "2"], {"(1, 2)": 3}]


# --- values without a representation --------------------------------------------------------------


def _make_circular_list() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _make_circular_mapping() -> dict[Any, Any]:
    circle: dict[Any, Any] = {}
    circle["itself"] = circle
    return circle


def _make_circular_mapping_with_odd_keys() -> dict[Any, Any]:
    circle: dict[Any, Any] = {}
    circle[1, 2] = circle
    return circle


def _make_circular_box() -> Box:
    box = Box(None)
    box.content = box
    return box


@pytest.mark.parametrize(
    "make",
    [
        _make_circular_list,
        _make_circular_mapping,
        _make_circular_box,
        _make_circular_mapping_with_odd_keys,
    ],
)
def test_a_circular_value_is_rejected(make: Any) -> None:
    with pytest.raises(NotData, match=r"refers to itself|nested too deeply"):
        encode(make())


def _make_deep(levels: int, key: Any = None) -> Any:
    deep: Any = "bottom"
    for _ in range(levels):
        deep = [deep] if key is None else {key: deep}
    return deep


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, "a", (1, 2)])
def test_a_value_that_is_too_deep_is_rejected(key: Any) -> None:
    with pytest.raises(NotData, match="nested too deeply"):
        encode(_make_deep(100_000, key))


@pytest.mark.parametrize("key", [None, "a", (1, 2)])
def test_a_value_of_ordinary_depth_is_accepted(key: Any) -> None:
    assert as_data(_make_deep(150, key))


def test_a_number_with_too_many_digits_is_rejected() -> None:
    with pytest.raises(NotData, match="digits"):
        encode(10**5000)


# --- hostile values -------------------------------------------------------------------------------


class Hostile:
    """An object that raises the given error from every method."""

    def __init__(self, error: BaseException) -> None:
        self.__dict__["error"] = error

    def __str__(self) -> str:
        raise self.error

    __repr__ = __str__

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else self.error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("mine"),
        TypeError("mine"),
        KeyError("mine"),
        SystemExit("mine"),
        RecursionError("mine"),
    ],
)
def test_an_error_of_a_hostile_object_is_raised(error: BaseException) -> None:
    with pytest.raises((type(error), NotData)):
        encode(Hostile(error))


def test_a_str_method_that_returns_no_string_is_an_error() -> None:
    wrong = type("Wrong", (), {"__str__": lambda _self: 5})
    with pytest.raises(TypeError):
        encode(wrong())


def test_an_object_that_dumps_itself_is_rejected() -> None:
    class Stubborn:
        def model_dump(self) -> Any:
            return self

    with pytest.raises((NotData, ValueError)):
        encode(Stubborn())


def test_an_object_that_dumps_new_objects_forever_is_rejected() -> None:
    class Hydra:
        def model_dump(self) -> Any:
            return [Hydra()]

    with pytest.raises(NotData):
        encode(Hydra())


def test_a_mapping_with_inconsistent_items_is_converted() -> None:
    class Liar(dict[str, int]):
        def items(self) -> Any:
            return [("lie", 1)]

    assert as_data(Liar(truth=2)) in ({"lie": 1}, {"truth": 2})


def test_sets_that_cannot_be_sorted_become_lists() -> None:
    assert sorted(as_data({1, "a"}), key=str) == [1, "a"]


JSON_VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
)


@pytest.mark.slow
@given(JSON_VALUES)
def test_json_values_are_unchanged(value: Any) -> None:
    assert as_data(value) == value
    assert json.loads(encode({"in": [value]})) == {"in": [value]}


ANYTHING = some.recursive(
    some.one_of(
        some.none(),
        some.integers(),
        some.text(),
        some.binary(),
        some.dates(),
        some.datetimes(),
        some.timedeltas(),
        some.decimals(),
        some.fractions(),
        some.uuids(),
        some.complex_numbers(),
    ),
    lambda inner: some.one_of(
        some.lists(inner),
        some.tuples(inner, inner),
        some.dictionaries(
            some.one_of(some.text(), some.tuples(some.integers()), some.dates()), inner
        ),
        some.builds(Box, inner),
        some.builds(Point, inner, inner),
    ),
)


@pytest.mark.slow
@given(ANYTHING)
def test_any_value_becomes_one_line(value: Any) -> None:
    line = encode(value)
    assert line.isascii()
    assert "\n" not in line
    json.loads(line)


def test_an_iterator_is_consumed_completely() -> None:
    first = itertools.islice(itertools.count(), 1000)
    assert len(as_data(first)) == 1000
