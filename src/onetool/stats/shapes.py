"""What tools that promise nothing really give: the types and keys of their results, never a value.

`shape_of` looks at one result, `merge` makes one shape of two, `text_of` writes it for a reader, and `Shapes` remembers
them per tool. Keys that are data themselves become `{str: …}`: those that look like it (`is_data`), and, however
they look, those of entries that are all alike, those of dicts that have none in common, and simply too many. Everything
is bounded: a shape is a hint for who writes code, not a schema. That it was only observed, the caller says.
"""

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onetool.util import atomic
from onetool.util.background import Background, alone, put_aside
from onetool.util.newer import Newer, refuse_newer

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VERSION = 1
MAX_DEPTH = 6
MAX_KEYS = 100
FEWEST_ENTRIES = 3  # that are all alike, and so a table by its keys
MOST_STRANGERS = 8  # different keys in dicts that have none in common
MAX_ITEMS = 10  # of a list: so many at its beginning, and as many from all over it
MAX_VALUES = 1000  # looked at in one result
MAX_PARTS = 400  # of a shape that is remembered
MAX_TEXT = 800
SURE_AFTER = 32  # results of a tool; from then on only one in so many is looked at

WORDS: Mapping[type, str] = {str: "str", bool: "bool", int: "int", float: "float", bytes: "str", type(None): "None"}
ORDER = ("str", "int", "float", "bool", "list", "dict", "Any")
NAME = re.compile(r"[^\W\d]\w*")
LONGEST_KEY = 40
# Words with a space or a dash between them, three at most, and perhaps a unit: `@type`, `Content-Type`, `Price (EUR)`.
# Dots, colons and slashes stand in hosts, files, tags and paths more often than in names.
KEY_NAME = re.compile(r"[@#$]?[^\W\d]\w*(?:[ -]\w+){0,2}(?: ?(?:%|\([^\W\d_]{1,5}\)))?")
NUMBERED = re.compile(r"\d{4}|[ _-]\d{3}")
HEXADECIMAL = re.compile(r"(?=.*\d)[0-9a-fA-F-]{8,}")
# How services begin the secrets they hand out.
SECRET = re.compile(
    r"(?:[prs]k|gh[oprsu]|github_pat|glpat|hf|npm|pypi|shpat|whsec|xox[a-z])[_-](?:\w+[_-])*[A-Za-z\d]{12}"
    r"|(?:AKIA|ASIA)[A-Z\d]{8}|AIza|eyJ"
)
RUN = re.compile(r"[^\W_]+")
DIGITS = re.compile(r"\d+")
WORD = re.compile(r"[A-Z]?[a-z]{3,}")
SHORTEST_CODE, SHORTEST_TOKEN, LONGEST_WORD = 8, 12, 24


@dataclass(frozen=True, slots=True)
class Shape:
    """The words for what it can be; and what its items, fields or values are, where it can be a list or a dict.

    `optional` are the fields that some dicts did not have. A dict with keys that are data has `values` and no `fields`;
    an empty one tells nothing but the word.
    """

    words: frozenset[str] = frozenset()
    items: "Shape | None" = None
    fields: "Mapping[str, Shape] | None" = None
    optional: frozenset[str] = frozenset()
    values: "Shape | None" = None


NOTHING: Final = Shape()
SOME_DICT: Final = Shape(frozenset(("dict",)))  # empty, or too deep to be looked at
TELLING_NOTHING: Final = (NOTHING, SOME_DICT, Shape(items=NOTHING))


# --- one result ---------------------------------------------------------------------------------------------------


def shape_of(value: Any) -> Shape:
    """The shape of data as JSON has it; tuples and sets are lists."""
    return _Look().at(value, 0)


class _Look:
    """One look at a result. It ends when enough has been seen."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def at(self, value: Any, depth: int) -> Shape:
        self._left -= 1
        if self._left < 0:
            return NOTHING
        if isinstance(value, Mapping):
            return self._dict(value, depth) if depth < MAX_DEPTH else SOME_DICT
        if isinstance(value, list | tuple | AbstractSet):
            return self._list(value, depth) if depth < MAX_DEPTH else _word("list")
        return _word(next((word for kind, word in WORDS.items() if isinstance(value, kind)), "Any"))

    def _list(self, value: Iterable[Any], depth: int) -> Shape:
        items = value if isinstance(value, list | tuple) else list(value)
        return Shape(items=_merged(self.at(item, depth + 1) for item in _some(items)))

    def _dict(self, value: Mapping[Any, Any], depth: int) -> Shape:
        if not value:
            return SOME_DICT
        if len(value) > MAX_KEYS or any(map(is_data, value)):
            return Shape(values=_merged(self.at(item, depth + 1) for item in islice(value.values(), MAX_ITEMS)))
        fields = {key: self.at(item, depth + 1) for key, item in value.items()}
        return Shape(values=_merged(fields.values())) if _are_entries(fields.values()) else Shape(fields=fields)


def _some(items: Sequence[Any]) -> Sequence[Any]:
    """The first, and others from all over: what only every second item has is seen, and what comes late."""
    step = max(1, -(-len(items) // MAX_ITEMS))
    return [*items[:MAX_ITEMS], *items[MAX_ITEMS::step]]


def _word(word: str) -> Shape:
    return Shape(frozenset((word,)))


def _are_entries(shapes: Collection[Shape]) -> bool:
    """Whether these are dicts, or lists of dicts, that all have the same keys: then they are filed under data."""
    if len(shapes) < FEWEST_ENTRIES:
        return False
    insides = [shape.items or shape for shape in shapes if shape not in TELLING_NOTHING]
    are_dicts = all(inside.fields is not None or inside.values is not None for inside in insides)
    is_one_kind = len({frozenset(inside.fields or ()) for inside in insides}) == 1
    return (are_dicts and is_one_kind) or all(shape == SOME_DICT for shape in shapes)


# --- keys that are data: ids, addresses, dates, paths, secrets ---------------------------------------------------
# When in doubt a key is data: a hint that says less does no harm, one that tells a customer's address does.


@lru_cache(maxsize=1024)  # the rows of a table have the same keys over and over
def is_data(key: object) -> bool:
    if not isinstance(key, str) or len(key) > LONGEST_KEY or not KEY_NAME.fullmatch(key):
        return True
    if NUMBERED.search(key) or HEXADECIMAL.fullmatch(key) or SECRET.match(key):
        return True
    return any(map(_is_made_up, RUN.findall(key)))


def _is_made_up(run: str) -> bool:
    """Whether letters and digits stand together as no person would write them: `dQw4w9WgXcQ`."""
    if HEXADECIMAL.fullmatch(run) or (len(run) >= SHORTEST_CODE and len(DIGITS.findall(run)) > 1):
        return True
    if len(run) < SHORTEST_TOKEN:
        return False
    if run.islower() or run.isupper():
        return len(run) > LONGEST_WORD or not run.isalpha()
    return 2 * sum(map(len, WORD.findall(run))) < len(run)


# --- two shapes ---------------------------------------------------------------------------------------------------


def merge(one: Shape, other: Shape) -> Shape:
    """What is one or the other. The order in which shapes are merged makes no difference, nor does how often."""
    if one == other:
        return one
    words, optional = one.words | other.words, one.optional | other.optional
    items = merge(one.items, other.items) if one.items and other.items else one.items or other.items
    fields = other.fields if one.fields is None else one.fields
    if one.fields is not None and other.fields is not None:
        optional |= one.fields.keys() ^ other.fields.keys()
        names = {**one.fields, **other.fields}
        fields = {name: merge(one.fields.get(name, NOTHING), other.fields.get(name, NOTHING)) for name in names}
    count = len(fields or ())
    strangers = count > MOST_STRANGERS and len(optional) == count
    if one.values is None and other.values is None and count <= MAX_KEYS and not strangers:
        return Shape(words, items, fields, optional)
    return Shape(words, items, values=_merged([*_inside_dicts(one), *_inside_dicts(other)]))


def _merged(shapes: Iterable[Shape]) -> Shape:
    return reduce(merge, shapes, NOTHING)


def _inside_dicts(shape: Shape) -> list[Shape]:
    return [*(shape.fields or {}).values(), *([] if shape.values is None else [shape.values])]


def _parts(shape: Shape) -> int:
    inside = [*_inside_dicts(shape), *([] if shape.items is None else [shape.items])]
    return 1 + sum(map(_parts, inside))


def fitting(shape: Shape) -> Shape:
    """The shape, as deep as there is room to remember."""
    cuts = (_cut(shape, depth) for depth in range(MAX_DEPTH, 0, -1))
    return shape if _parts(shape) <= MAX_PARTS else next(cut for cut in cuts if _parts(cut) <= MAX_PARTS)


def _cut(shape: Shape, depth: int) -> Shape:
    inside = ("list", shape.items), ("dict", shape.fields), ("dict", shape.values)
    if depth == 0:
        return Shape(shape.words | {word for word, part in inside if part is not None})
    return Shape(
        shape.words,
        None if shape.items is None else _cut(shape.items, depth - 1),
        None if shape.fields is None else {key: _cut(part, depth - 1) for key, part in shape.fields.items()},
        shape.optional,
        None if shape.values is None else _cut(shape.values, depth - 1),
    )


# --- for a reader -------------------------------------------------------------------------------------------------


def text_of(shape: Shape) -> str:
    """The shape in one line, as deep as there is room for: `list[{title: str, url: str, score?: float | None}]`."""
    for depth in range(MAX_DEPTH, 0, -1):
        text = _text(shape, depth)
        if len(text) <= MAX_TEXT:
            return text
    return text[: MAX_TEXT - 1] + "…"


def _text(shape: Shape, depth: int) -> str:
    words = [word for word in ORDER if word in shape.words]
    if shape.items is not None:
        words.append("list" if depth == 0 or shape.items == NOTHING else f"list[{_text(shape.items, depth - 1)}]")
    if shape.fields is not None or shape.values is not None:
        words.append(_dict_text(shape, depth))
    if "None" in shape.words:
        words.append("None")
    return " | ".join(dict.fromkeys(words)) or "Any"


def _dict_text(shape: Shape, depth: int) -> str:
    if depth == 0:
        return "dict"
    if shape.values is not None:
        return f"{{str: {_text(shape.values, depth - 1)}}}"
    fields = (shape.fields or {}).items()
    names = (key if NAME.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key, _ in fields)
    parts = (
        f"{name}{'?' if key in shape.optional else ''}: {_text(inside, depth - 1)}"
        for name, (key, inside) in zip(names, fields, strict=True)
    )
    return f"{{{', '.join(parts)}}}"


# --- in a file ----------------------------------------------------------------------------------------------------


@cache
def _as_json() -> "TypeAdapter[Shape]":
    from pydantic import TypeAdapter

    return TypeAdapter(Shape)


def to_json(shape: Shape) -> Any:
    return _as_json().dump_python(shape, mode="json", exclude_defaults=True)


def from_json(data: Any) -> Shape:
    return _as_json().validate_python(data)


class Shapes:
    """The shapes of all tools, in a file that several processes may add to. Only what is new is written."""

    def __init__(self, file: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._file, self._clock = file, clock
        self._known: dict[str, Shape] | None = None
        self._learned: deque[tuple[str, Shape]] = deque()  # seen, and not taken up yet
        self._changed: set[str] = set()
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()
        self._background = Background("onetool-shapes", self._write_changed)
        self._notice: str | None = None
        self.problem: str | None = None

    def learn(self, name: str, value: Any) -> None:
        """Look at a result that the tool gave; it is not kept, and nobody waits for the file."""
        seen = self._seen[name] = self._seen.get(name, 0) + 1
        if seen > SURE_AFTER and seen % SURE_AFTER:
            return
        self._learned.append((name, shape_of(value)))
        self._background.wake()

    def text(self, name: str) -> str | None:
        """What the tool's results have looked like so far; None where there were none."""
        with self._lock:
            shape = self._up_to_date().get(name)
        return None if shape is None else text_of(shape)

    def flush(self) -> None:
        self._background.flush()

    def close(self) -> None:
        self._background.close()

    def _up_to_date(self) -> dict[str, Shape]:
        """All that is known, with what has been learnt since. It reads the file at first: not for who is in a hurry."""
        if self._known is None:
            try:
                self._known = self._read()
            except (OSError, Newer, _Damaged):  # it is reported, and dealt with, when there is something to write
                self._known = {}
        while self._learned:
            name, shape = self._learned.popleft()
            merged = fitting(merge(self._known.get(name, NOTHING), shape))
            if merged != self._known.get(name):
                self._known[name] = merged
                self._changed.add(name)
        return self._known

    # --- in the thread ----------------------------------------------------------------------------------------

    def _write_changed(self) -> bool:
        with self._lock:
            known = self._up_to_date()
            changed = {name: known[name] for name in self._changed}
            self._changed.clear()
        if not changed:
            return True
        try:
            with alone(self._file):
                self._write(changed)
        except (OSError, Newer, _Damaged) as error:
            self.problem = f"the shapes of results cannot be written to {self._file}: {error}"
            with self._lock:
                self._changed |= changed.keys()
            return False
        self.problem = self._notice
        return True

    def _write(self, changed: Mapping[str, Shape]) -> None:
        """Add to what other processes have written since; the file is replaced whole."""
        try:
            written = self._read()
        except _Damaged as error:
            kept, written = put_aside(self._file, self._clock()), {}
            self._notice = (
                f"the shapes of results in {self._file} were damaged ({error}) and begun anew; kept as {kept}"
            )
        for name, shape in changed.items():
            written[name] = fitting(merge(written.get(name, NOTHING), shape))
        data = {"version": VERSION, "shapes": {name: to_json(shape) for name, shape in written.items()}}
        atomic.write(self._file, json.dumps(data))

    def _read(self) -> dict[str, Shape]:
        try:
            data = json.loads(self._file.read_bytes())
            refuse_newer(data.get("version"), VERSION, "it")
            return {str(name): from_json(shape) for name, shape in data["shapes"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _Damaged(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from None


class _Damaged(Exception):
    """The file is not whole, or no file of ours."""
