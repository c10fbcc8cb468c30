"""Observed result shapes of tools without an output schema: types and keys, never values.

`infer_shape` reads one result, `merge` combines two shapes, `render_shape` formats one, and
`Shapes` stores them per tool. Keys that are data become `{str: …}`: keys that look like data
(`is_data`), keys of entries that are all alike, keys of dicts that have no key in common, and too
many keys. All sizes are bounded: a shape is a hint for writing code, not a schema. The caller
states that it was only observed.
"""

import json
import re
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from itertools import islice
from typing import TYPE_CHECKING, Any

from onetool.errors import ToolError
from onetool.state.sqlite_database import Transaction
from onetool.state.stats.database import StatisticsDatabase
from onetool.util.background import Background

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_DEPTH = 6
MAX_KEYS = 100
MIN_ENTRIES = 3  # with equal keys, which make a dict a table
MAX_UNRELATED_KEYS = 8  # different keys in dicts without a common key
MAX_ITEMS = 10  # of a list: this many from its start, and as many from all of it
MAX_VALUES = 1000  # read in one result
MAX_PARTS = 400  # of a stored shape
MAX_TEXT_CHARS = 800
MAX_PENDING = 100  # results that are not merged yet; the oldest are dropped
SAMPLE_AFTER = 32  # results of a tool; from then on only one of this many is read
SELECT_SHAPE = "SELECT shape FROM shapes WHERE tool = ?"
PUT_SHAPE = (
    "INSERT INTO shapes VALUES (?, ?) ON CONFLICT (tool) DO UPDATE SET shape = excluded.shape"
)

TYPE_NAMES: Mapping[type, str] = {
    str: "str",
    bool: "bool",
    int: "int",
    float: "float",
    bytes: "str",
    type(None): "None",
}
ORDER = ("str", "int", "float", "bool", "list", "dict", "Any")
NAME = re.compile(r"[^\W\d]\w*")
MAX_KEY_LENGTH = 40
# Up to three words with a space or hyphen between them, and optionally a unit: `@type`,
# `Content-Type`, `Price (EUR)`. Dots, colons and slashes occur in hosts, files, tags and paths more
# often than in names.
KEY_NAME = re.compile(r"[@#$]?[^\W\d]\w*(?:[ -]\w+){0,2}(?: ?(?:%|\([^\W\d_]{1,5}\)))?")
NUMBERED = re.compile(r"\d{4}|[ _-]\d{3}")
HEXADECIMAL = re.compile(r"(?=.*\d)[0-9a-fA-F-]{8,}")
# Prefixes of secrets that services issue.
SECRET = re.compile(
    r"(?:[prs]k|gh[oprsu]|github_pat|glpat|hf|npm|pypi|shpat|whsec|xox[a-z])[_-](?:[\w-]*[_-])?[A-Za-z\d]{12}"
    r"|(?:AKIA|ASIA)[A-Z\d]{8}|AIza|eyJ"
)
RUN = re.compile(r"[^\W_]+")
DIGITS = re.compile(r"\d+")
WORD = re.compile(r"[A-Z]?[a-z]{3,}")
MIN_CODE_LENGTH = 8
MIN_TOKEN_LENGTH = 12
MAX_WORD_LENGTH = 24


@dataclass(frozen=True, slots=True)
class Shape:
    """The types of a value, and the shapes of its items, fields or values if it can be a list or a
    dict.

    `optional` are the fields that some dicts did not have. A dict with keys that are data has
    `values` and no `fields`; an empty dict has neither.
    """

    words: frozenset[str] = frozenset()
    items: "Shape | None" = None
    fields: "Mapping[str, Shape] | None" = None
    optional: frozenset[str] = frozenset()
    values: "Shape | None" = None


NOTHING = Shape()
SOME_DICT = Shape(frozenset(("dict",)))  # empty, or nested too deeply
UNINFORMATIVE = (NOTHING, SOME_DICT, Shape(items=NOTHING))


# --- one result -----------------------------------------------------------------------------------


def infer_shape(value: Any) -> Shape:
    """Return the shape of a JSON value; tuples and sets are lists."""
    return _infer(outline(value))


def outline(value: Any) -> Any:
    """Return what the shape of a value depends on: its keys, and the names of types instead of
    other values.

    This takes about a millisecond at most. Others may change the value afterwards, but not its
    outline. The type of values that are not read, because there are too many, is "".
    """
    return _OutlineReader().read(value, 0)


class _OutlineReader:
    """Reads one result, up to a maximum number of values."""

    def __init__(self) -> None:
        self._values_left = MAX_VALUES

    def read(self, value: Any, depth: int) -> Any:
        self._values_left -= 1
        if self._values_left < 0:
            return ""
        kind = type(value)
        if kind in TYPE_NAMES:
            return TYPE_NAMES[kind]
        if kind is dict or isinstance(value, Mapping):
            return self._read_dict(value, depth + 1) if depth < MAX_DEPTH else {}
        if isinstance(value, list | tuple | AbstractSet):
            return (
                [self.read(item, depth + 1) for item in _sample(value)]
                if depth < MAX_DEPTH
                else "list"
            )
        return next((word for kind, word in TYPE_NAMES.items() if isinstance(value, kind)), "Any")

    def _read_dict(self, value: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        """Return the members of a dict, and numbers for keys that are not names.

        Of a table, read a few entries.
        """
        count = len(value)
        if count > MAX_KEYS or (count > MAX_ITEMS and is_data(next(iter(value)))):
            return {
                number: self.read(item, depth)
                for number, item in enumerate(islice(value.values(), MAX_ITEMS))
            }
        return {
            key[: MAX_KEY_LENGTH + 1] if isinstance(key, str) else number: self.read(item, depth)
            for number, (key, item) in enumerate(value.items())
        }


def _sample(value: Iterable[Any]) -> Sequence[Any]:
    """Return the first items and a sample of the others, to see alternating and late items."""
    items = value if isinstance(value, list | tuple) else list(islice(value, MAX_VALUES))
    if len(items) <= MAX_ITEMS:
        return items
    step = -(-len(items) // MAX_ITEMS)
    return [*items[:MAX_ITEMS], *items[MAX_ITEMS::step]]


def _infer(outlined: Any) -> Shape:
    if isinstance(outlined, str):
        return _make_shape(outlined) if outlined else NOTHING
    if isinstance(outlined, list):
        return Shape(items=_merge_all(map(_infer, outlined)))
    if not outlined:
        return SOME_DICT
    if any(map(is_data, outlined)):
        return Shape(values=_merge_all(map(_infer, islice(outlined.values(), MAX_ITEMS))))
    fields = {key: _infer(item) for key, item in outlined.items()}
    return (
        Shape(values=_merge_all(fields.values()))
        if _are_entries(fields.values())
        else Shape(fields=fields)
    )


def _make_shape(word: str) -> Shape:
    return Shape(frozenset((word,)))


def _are_entries(shapes: Collection[Shape]) -> bool:
    """Return whether these are dicts, or lists of dicts, with the same keys: then the keys above
    them are data.
    """
    if len(shapes) < MIN_ENTRIES:
        return False
    insides = [shape.items or shape for shape in shapes if shape not in UNINFORMATIVE]
    are_dicts = all(inside.fields is not None or inside.values is not None for inside in insides)
    is_one_kind = len({frozenset(inside.fields or ()) for inside in insides}) == 1
    return (are_dicts and is_one_kind) or all(shape == SOME_DICT for shape in shapes)


# --- keys that are data: ids, addresses, dates, paths, secrets ------------------------------------
# When in doubt, a key is data: a vague hint does no harm, but one that reveals a customer's address
# does.


@lru_cache(maxsize=1024)  # the rows of a table have the same keys
def is_data(key: object) -> bool:
    if not isinstance(key, str) or len(key) > MAX_KEY_LENGTH or not KEY_NAME.fullmatch(key):
        return True
    if NUMBERED.search(key) or HEXADECIMAL.fullmatch(key) or SECRET.match(key):
        return True
    return any(map(_looks_generated, RUN.findall(key)))


def _looks_generated(run: str) -> bool:
    """Return whether a word looks generated: `dQw4w9WgXcQ`."""
    if HEXADECIMAL.fullmatch(run) or (len(run) >= MIN_CODE_LENGTH and len(DIGITS.findall(run)) > 1):
        return True
    if len(run) < MIN_TOKEN_LENGTH:
        return False
    if run.islower() or run.isupper():
        return len(run) > MAX_WORD_LENGTH or not run.isalpha()
    return 2 * sum(map(len, WORD.findall(run))) < len(run)


# --- two shapes -----------------------------------------------------------------------------------


def merge(one: Shape, other: Shape) -> Shape:
    """Return the union of two shapes. Merging is commutative, associative and idempotent."""
    if one == other:
        return one
    words = one.words | other.words
    optional = one.optional | other.optional
    items = merge(one.items, other.items) if one.items and other.items else one.items or other.items
    fields = other.fields if one.fields is None else one.fields
    if one.fields is not None and other.fields is not None:
        optional |= one.fields.keys() ^ other.fields.keys()
        names = {**one.fields, **other.fields}
        fields = {
            name: merge(one.fields.get(name, NOTHING), other.fields.get(name, NOTHING))
            for name in names
        }
    count = len(fields or ())
    are_unrelated = count > MAX_UNRELATED_KEYS and len(optional) == count
    if one.values is None and other.values is None and count <= MAX_KEYS and not are_unrelated:
        return Shape(words, items, fields, optional)
    return Shape(words, items, values=_merge_all([*_inside_dicts(one), *_inside_dicts(other)]))


def _merge_all(shapes: Iterable[Shape]) -> Shape:
    return reduce(merge, shapes, NOTHING)


def _inside_dicts(shape: Shape) -> list[Shape]:
    return [*(shape.fields or {}).values(), *([] if shape.values is None else [shape.values])]


def _count_parts(shape: Shape) -> int:
    inside = [*_inside_dicts(shape), *([] if shape.items is None else [shape.items])]
    return 1 + sum(map(_count_parts, inside))


def limit_size(shape: Shape) -> Shape:
    """Cut a shape to the depth at which it fits the maximum size."""
    cuts = (_cut(shape, depth) for depth in range(MAX_DEPTH, 0, -1))
    return (
        shape
        if _count_parts(shape) <= MAX_PARTS
        else next(cut for cut in cuts if _count_parts(cut) <= MAX_PARTS)
    )


def _cut(shape: Shape, depth: int) -> Shape:
    inside = ("list", shape.items), ("dict", shape.fields), ("dict", shape.values)
    if depth == 0:
        return Shape(shape.words | {word for word, part in inside if part is not None})
    return Shape(
        shape.words,
        None if shape.items is None else _cut(shape.items, depth - 1),
        (
            None
            if shape.fields is None
            else {key: _cut(part, depth - 1) for key, part in shape.fields.items()}
        ),
        shape.optional,
        None if shape.values is None else _cut(shape.values, depth - 1),
    )


# --- rendering ------------------------------------------------------------------------------------


def render_shape(shape: Shape) -> str:
    """Render a shape in one line, as deep as fits: `list[{title: str, url: str, score?: float |
    None}]`.
    """
    for depth in range(MAX_DEPTH, 0, -1):
        text = _render(_cut(shape, depth))
        if len(text) <= MAX_TEXT_CHARS:
            return text
    return text[: MAX_TEXT_CHARS - 1] + "…"


def _render(shape: Shape) -> str:
    words = [word for word in ORDER if word in shape.words]
    if shape.items is not None:
        words.append("list" if shape.items == NOTHING else f"list[{_render(shape.items)}]")
    if shape.fields is not None or shape.values is not None:
        words.append(_render_dict(shape))
    if "None" in shape.words:
        words.append("None")
    return " | ".join(dict.fromkeys(words)) or "Any"


def _render_dict(shape: Shape) -> str:
    if shape.values is not None:
        return f"{{str: {_render(shape.values)}}}"
    fields = (shape.fields or {}).items()
    names = (
        key if NAME.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key, _ in fields
    )
    parts = (
        f"{name}{'?' if key in shape.optional else ''}: {_render(inside)}"
        for name, (key, inside) in zip(names, fields, strict=True)
    )
    return f"{{{', '.join(parts)}}}"


# --- storage --------------------------------------------------------------------------------------


@cache
def _make_adapter() -> "TypeAdapter[Shape]":
    from pydantic import TypeAdapter

    return TypeAdapter(Shape)


def to_json(shape: Shape) -> str:
    return _make_adapter().dump_json(shape, exclude_defaults=True).decode()


def from_json(text: str) -> Shape:
    return _make_adapter().validate_json(text)


class Shapes:
    """The shapes of all tools, in the database of the statistics.

    Only changes are written; processes merge theirs.
    """

    def __init__(self, statistics: StatisticsDatabase) -> None:
        self._statistics = statistics
        self._known: dict[str, Shape] | None = None
        self._learned: deque[tuple[str, Any]] = deque(maxlen=MAX_PENDING)
        self._changed: set[str] = set()
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()
        self._background = Background("onetool-shapes", self._write_changed)
        self.problem: str | None = None

    def learn(self, name: str, value: Any) -> None:
        """Learn from a result of a tool.

        Only its outline is kept, for the thread that makes and writes shapes.
        """
        seen = self._seen[name] = self._seen.get(name, 0) + 1
        if seen > SAMPLE_AFTER and seen % SAMPLE_AFTER:
            return
        self._learned.append((name, outline(value)))
        self._background.wake()

    def text(self, name: str) -> str | None:
        """Return the rendered shape of a tool's results so far; None if there were none."""
        with self._lock:
            shape = self._merge_pending().get(name)
        return None if shape is None else render_shape(shape)

    def read_all(self) -> dict[str, Shape]:
        """Return all stored shapes."""
        with self._statistics.reading() as tables:
            rows = tables.execute("SELECT tool, shape FROM shapes").fetchall()
        return {tool: from_json(text) for tool, text in rows}

    def merge_all(self, shapes: Mapping[str, Shape]) -> None:
        """Merge shapes into the stored ones, which other processes may have updated."""

        def change(tables: Transaction) -> None:
            for name, shape in shapes.items():
                row = tables.execute(SELECT_SHAPE, (name,)).fetchone()
                merged = shape if row is None else limit_size(merge(from_json(row[0]), shape))
                tables.execute(PUT_SHAPE, (name, to_json(merged)))

        self._statistics.write(change)

    def flush(self) -> None:
        self._background.flush()

    def close(self) -> None:
        self._background.close()

    def _merge_pending(self) -> dict[str, Shape]:
        """Return all shapes, with pending ones merged. The first call reads the database."""
        if self._known is None:
            try:
                self._known = self.read_all()
            except ToolError:  # reported and handled at the next write
                self._known = {}
        while self._learned:
            name, outlined = self._learned.popleft()
            merged = limit_size(merge(self._known.get(name, NOTHING), _infer(outlined)))
            if merged != self._known.get(name):
                self._known[name] = merged
                self._changed.add(name)
        return self._known

    # --- in the thread ----------------------------------------------------------------------------

    def _write_changed(self) -> bool:
        with self._lock:
            known = self._merge_pending()
            changed = {name: known[name] for name in self._changed}
            self._changed.clear()
        if not changed:
            return True
        try:
            self.merge_all(changed)
        except ToolError as error:
            self.problem = (
                f"cannot write result shapes to {self._statistics.place}: {error.message}"
            )
            with self._lock:
                self._changed |= changed.keys()
            return False
        self.problem = self._statistics.notice
        return True
