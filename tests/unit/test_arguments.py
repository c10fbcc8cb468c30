"""Conversion of JSON arguments to the annotated types of a function in a worker."""

# ruff: noqa: UP006, UP007, UP035, UP045 - people write old and new

import datetime as dt
import enum
import functools
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path, PurePosixPath
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Dict,
    List,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    Required,
    Set,
    Tuple,
    TypedDict,
    Union,
)

import attrs
import pytest
from pydantic import BaseModel, Field, PositiveInt

from onetool_child.arguments import bind
from onetool_child.errors import ArgumentError

if TYPE_CHECKING:
    from nowhere import Nothing  # type: ignore[import-not-found]


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Item:
    price: Decimal
    color: Color = Color.RED
    parts: "list[Item]" = field(default_factory=list)


@dataclass
class Cat:
    kind: Literal["cat"]
    born: dt.date


@dataclass
class Dog:
    kind: Literal["dog"]
    born: dt.date


@dataclass
class Weight:
    grams: float
    steps: list[float]


@attrs.define
class Parcel:
    size: float
    sent: dt.date


class Options(TypedDict, total=False):
    since: Required[dt.date]
    until: dt.date


class Point(NamedTuple):
    at: dt.date
    level: int = 0


class Model(BaseModel):
    count: Annotated[int, Field(ge=1)]
    day: dt.date


Place = NewType("Place", Path)


def convert(annotation: Any, value: Any) -> Any:
    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    return bind(function, {"x": value})[1]["x"]


DAY, NOON = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
KEY = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("annotation", "value", "made"),
    [
        (Path, "a/b", Path("a/b")),
        (PurePosixPath, "a", PurePosixPath("a")),
        (dt.date, "2024-02-29", DAY),
        (dt.datetime, "2024-02-29T12:00:00+00:00", NOON),
        (dt.datetime, "2024-02-29T12:00:00Z", NOON),
        (dt.time, "12:30", dt.time(12, 30)),
        (Decimal, "0.10", Decimal("0.10")),
        (Decimal, 0.1, Decimal("0.1")),
        (uuid.UUID, str(KEY), KEY),
        (bytes, "AAE=", b"\0\1"),
        (bytes, "AA\nE=", b"\0\1"),
        (bytearray, "AAE=", bytearray(b"\0\1")),
        (Color, "red", Color.RED),
        (Color, "RED", Color.RED),
        (Color, 2, Color.BLUE),
        (Level, 1, Level.LOW),
        (Optional[Path], None, None),
        (Optional[Path], "x", Path("x")),
        (Path | None, "x", Path("x")),
        (Union[None, dt.date], "2024-02-29", DAY),
        (Annotated[Path, "where"], "x", Path("x")),
        (Annotated[Path, ["not hashable"]], "x", Path("x")),
        (set, ["a"], {"a"}),
        (set[str], ["a"], {"a"}),
        (Set[Path], ["a"], {Path("a")}),
        (AbstractSet[int], [1], {1}),
        (frozenset[int], [1], frozenset({1})),
        (tuple, [1], (1,)),
        (Tuple, [1], (1,)),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[Path, ...], ["a"], (Path("a"),)),
        (tuple[int, dt.date], [1, "2024-02-29"], (1, DAY)),
        (list[Path], ["a"], [Path("a")]),
        (List[dt.date], ["2024-02-29"], [DAY]),
        (Sequence[Path], ["a"], [Path("a")]),
        (Iterable[Color], ["red"], [Color.RED]),
        (dict[str, Path], {"a": "b"}, {"a": Path("b")}),
        (Mapping[str, list[Path]], {"a": ["b"]}, {"a": [Path("b")]}),
        (list[Path] | None, ["a"], [Path("a")]),
        (dt.timedelta, "P1DT2H3M4.5S", dt.timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        (dt.timedelta, "-P2W", dt.timedelta(days=-14)),
        (dt.timedelta, 90.5, dt.timedelta(seconds=90.5)),
        (Literal[Color.RED, "any"], "red", Color.RED),
        (Literal[Color.RED, "any"], "any", "any"),
        (Place, "a", Path("a")),
        (Path | str, "a", "a"),
        (dt.date | int | None, "2024-02-29", DAY),
        (dt.date | int | None, 5, 5),
        (dt.date | Literal["today"], "today", "today"),
        (list[dt.date] | dt.date, ["2024-02-29"], [DAY]),
        (Cat | Dog, {"kind": "dog", "born": "2024-02-29"}, Dog("dog", DAY)),
        (Item, {"price": "1.5"}, Item(Decimal("1.5"))),
        (
            Item,
            {"price": 1, "color": 2, "parts": [{"price": 2}]},
            Item(Decimal(1), Color.BLUE, [Item(Decimal(2))]),
        ),
        (
            dict[str, Item | None],
            {"a": {"price": 1}, "b": None},
            {"a": Item(Decimal(1)), "b": None},
        ),
        (Options, {"since": "2024-02-29", "more": 1}, {"since": DAY, "more": 1}),
        (Point, ["2024-02-29"], Point(DAY)),
        (Point, {"at": "2024-02-29", "level": 2}, Point(DAY, 2)),
        (Model, {"count": 1, "day": "2024-02-29"}, Model(count=1, day=DAY)),
        (Annotated[bytes, Field(max_length=2)], "AAE=", b"\0\1"),
        (PositiveInt, 3, 3),
        ("Path", "x", Path("x")),
        ("dt.date | None", "2024-02-29", DAY),
        (float, 1, 1.0),
        ("float", 1, 1.0),
        (Optional[float], 1, 1.0),
        (int | float, 1, 1),
        (Path | float, "1", Path("1")),
        (Weight, {"grams": 1, "steps": [1, 2.5]}, Weight(1.0, [1.0, 2.5])),
        (Parcel, {"size": 2, "sent": "2024-02-29"}, Parcel(2.0, DAY)),
    ],
)
def test_arguments_are_converted_to_the_annotated_types(
    annotation: Any, value: Any, made: Any
) -> None:
    result = convert(annotation, value)
    assert repr(result) == repr(made)  # 1 and 1.0 are equal
    assert type(result) is type(made)


@pytest.mark.parametrize(
    "annotation",
    [
        *(
            str,
            int,
            list,
            dict,
            Any,
            None,
            object,
            list[int],
            dict[str, int],
            Dict,
            Literal["a"],
            int | str,
        ),
        *(
            Callable[[int], str],
            type[int],
            "Nothing",
            "no python (",
            5,
            ["list"],
            {"a": 1},
            lambda: 1,
        ),
    ],
    ids=lambda annotation: (
        "a function" if isinstance(annotation, FunctionType) else repr(annotation)
    ),
)
@pytest.mark.parametrize("value", ["text", 1.5, None, [1], {"a": "b"}])
def test_arguments_without_known_annotations_are_unchanged(annotation: Any, value: Any) -> None:
    assert convert(annotation, value) is value


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (dt.date, "soon", "Invalid isoformat string: 'soon'"),
        (dt.date, 5, "argument must be str"),
        (Color, "green", "expected one of 'red', 2"),
        (Color, [], "expected one of 'red', 2"),
        (bytes, "not base64!", "expected base64 for bytes"),
        (bytes, 5, ""),
        (Decimal, "many", "expected a decimal number"),
        (
            dt.timedelta,
            "1h",
            "expected an ISO 8601 duration such as PT1H30M, or a number of seconds",
        ),
        (dt.timedelta, "P", "expected an ISO 8601 duration"),
        (dt.timedelta, "PT", "expected an ISO 8601 duration"),
        (Item, 5, "expected an object with the fields of Item"),
        (Cat | Dog, {"kind": "cow"}, ".kind: expected 'cat'; .kind: expected 'dog'"),
        (uuid.UUID, "x", "badly formed"),
        (tuple[int, int], [1], ""),
        (set[Path], 5, ""),
        (set, [[]], "unhashable"),
        (dict[str, Path], [], ""),
    ],
)
def test_an_argument_that_cannot_be_converted_is_named(
    annotation: Any, value: Any, message: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        convert(annotation, value)
    assert caught.value.argument == "x"
    assert str(caught.value).startswith(f"invalid value x={value!r}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (list[Item], [{"price": 1}, {"price": "x"}], "x[1].price='x': expected a decimal number"),
        (
            Item,
            {"price": 1, "parts": [{"price": 1, "color": "green"}]},
            "x.parts[0].color='green': expected one of",
        ),
        (dict[str, dt.date], {"a b": "soon"}, "x['a b']='soon': Invalid isoformat string"),
        (tuple[int, dt.date], [1, "soon"], "x[1]='soon'"),
        (
            list[Model],
            [{"count": 1, "day": "2024-02-29"}, {"count": 0, "day": "2024-02-29"}],
            "x[1].count=0: Input",
        ),
        (Point, ["soon"], "x.at='soon'"),
    ],
)
def test_an_invalid_part_of_an_argument_is_named(annotation: Any, value: Any, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        convert(annotation, value)
    assert said in str(caught.value)


def test_a_long_argument_is_not_repeated_in_its_error() -> None:
    with pytest.raises(ArgumentError) as caught:
        convert(bytes, "!" * 10_000)
    assert len(str(caught.value)) < 300


def test_an_unknown_annotation_does_not_affect_others() -> None:
    def function(a: Path, b: "Nothing", c: "dt.date | None") -> "Nothing": ...

    assert bind(function, {"a": "x", "b": 1, "c": "2024-02-29"}) == (
        [],
        {"a": Path("x"), "b": 1, "c": DAY},
    )


# --- positional and keyword arguments -------------------------------------------------------------


def take_all_kinds(a: Any, b: Any = DAY, c: Any = 3, /, d: Any = 4, *, e: Any = 5) -> list[Any]:
    return [a, b, c, d, e]


@pytest.mark.parametrize(
    ("args", "got"),
    [
        ({"a": 1}, [1, DAY, 3, 4, 5]),
        ({"e": 6, "a": 1, "d": 7}, [1, DAY, 3, 7, 6]),
        ({"a": 1, "c": 9}, [1, DAY, 9, 4, 5]),
        ({"c": 9, "b": 8, "a": 1}, [1, 8, 9, 4, 5]),
        ({"a": None}, [None, DAY, 3, 4, 5]),
    ],
)
def test_every_parameter_gets_its_own_value(args: dict[str, Any], got: list[Any]) -> None:
    positional, named = bind(take_all_kinds, args)
    assert take_all_kinds(*positional, **named) == got


@functools.cache
def cached(a: Path, /, b: int = 2) -> tuple[Path, int]:
    return a, b


def around(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inside


@pytest.mark.parametrize("function", [cached, around(cached), around(around(cached))])
def test_decorated_functions_get_converted_arguments(function: Callable[..., Any]) -> None:
    positional, named = bind(function, {"a": "x", "b": 3})
    assert function(*positional, **named) == (Path("x"), 3)


def test_names_beyond_the_signature_are_passed_on() -> None:
    def function(a: Path, /, **more: Any) -> None: ...

    assert bind(function, {"a": "x", "b": 1}) == ([Path("x")], {"b": 1})


def test_variadic_parameters_collect_values() -> None:
    def function(a: int, b: int = 2, *days: dt.date, flag: bool = False, **more: Decimal) -> Any:
        return a, b, days, flag, more

    def call(**args: Any) -> Any:
        positional, named = bind(function, args)
        return function(*positional, **named)

    assert call(a=1) == (1, 2, (), False, {})
    assert call(a=1, days=["2024-02-29"], flag=True) == (1, 2, (DAY,), True, {})
    assert call(a=1, b=3, days=[], x="1.5") == (1, 3, (), False, {"x": Decimal("1.5")})
    with pytest.raises(ArgumentError, match=r"invalid value days\[1\]='soon'"):
        call(a=1, days=["2024-02-29", "soon"])


def test_a_default_of_pydantic_is_its_value() -> None:
    def function(a: int = Field(5), *, b: list[int] = Field(default_factory=list)) -> Any: ...  # noqa: B008

    assert bind(function, {}) == ([], {"a": 5, "b": []})


def test_pydantic_is_not_imported_for_the_extension() -> None:
    code = (
        "import sys, typing, datetime\nfrom onetool_child.arguments import bind\n"
        "def f(a: typing.Annotated[datetime.date, {'ge': 1}]): ...\n"
        "print(bind(f, {'a': '2024-02-29'})[1], 'pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'a': datetime.date(2024, 2, 29)} False\n"


def test_other_callables_get_all_arguments_by_name() -> None:
    assert bind(functools.partial(take_all_kinds, 1), {"d": 2}) == ([], {"d": 2})
    assert bind(dict, {"a": 1}) == ([], {"a": 1})
