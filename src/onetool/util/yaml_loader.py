"""YAML as the core schema of YAML 1.2 reads it, into plain data that remembers its lines.

Hostile input stays cheap: size, depth and what aliases expand to are bounded, and no tag builds an object.
The grammar is that of PyYAML's parser (in C where there is one), so U+0085, U+2028 and U+2029 still end a
line. It writes no YAML.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import Any

from onetool.errors import ConfigError
from onetool.problem import STORAGE, Location

TOO_LARGE = "too_large"  # the code of errors about documents that are not read whole
MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 100
MAX_NODES = 100_000
# A long text counts as several nodes: a megabyte behind an anchor must not be repeated without end.
_TEXT_PER_NODE = 100
# Beyond some thousands of digits Python itself refuses to show an integer, and would do so far from here.
_MAX_DIGITS = 1_000
_MAX_REPAIRS = 50

Key = str | int

_CORE = "tag:yaml.org,2002:"
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), nan),
}
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_OCTAL_OR_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_COLON_WORDS = re.compile(r":\w+(?:\s*,\s*:\w+)*(?=\s*[,\]}])")


@dataclass(frozen=True, slots=True)
class _Node:
    value: Any
    weight: int
    height: int = 0
    entries: Mapping[Key, tuple[int, "_Node"]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    source: str
    root: _Node = field(repr=False)
    first_line: int = 1

    @property
    def data(self) -> Any:
        return self.root.value

    def line(self, path: tuple[Key, ...] = ()) -> int:
        """The line of a key or an item, counted from 1; of the nearest thing around it when there is none."""
        node, line = self.root, self.first_line
        for key in path:
            if key not in node.entries:
                break
            line, node = node.entries[key]
        return line


def read(text: str, source: str, *, typed: bool = True) -> Document:
    """The one document of a text. Not `typed`, every scalar is the text that is written: `012` is `"012"`."""
    import yaml

    return _read(text.removeprefix("\ufeff"), source, typed, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def read_file(path: Path, *, typed: bool = True) -> Document:
    """The document of a file. A missing one is a FileNotFoundError, all else that is wrong a ConfigError."""
    raw = _bytes_of(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _error(str(path), line, "is not UTF-8 text", "save the file as UTF-8") from None
    if not text.strip():
        raise _error(str(path), 1, "the file is empty", "write a setting into it, or delete it")
    return read(text, str(path), typed=typed)


def _bytes_of(path: Path) -> bytes:
    try:
        # Opened without waiting: a named pipe in the place of a file must not hold the server up.
        flag = getattr(os, "O_NONBLOCK", 0)
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | flag)) as file:
            _check_kind_and_size(path, os.fstat(file.fileno()))
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        if isinstance(error, NotADirectoryError) and not path.parent.exists():  # nothing can be there
            raise FileNotFoundError(error.errno, error.strerror, str(path)) from None
        reason = "is a folder, not a file" if path.is_dir() else f"cannot be read: {error.strerror}"
        raise _error(str(path), 0, reason, code=STORAGE) from None


def _check_kind_and_size(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _error(str(path), 0, "is not a regular file", code=STORAGE)
    if found.st_size > MAX_BYTES:
        raise _too_large(str(path), found.st_size)


def _read(text: str, source: str, typed: bool, loader: Any) -> Document:
    import yaml

    _check_size(text, source)
    for _ in range(_MAX_REPAIRS):
        try:
            return _Builder(yaml.parse(text, Loader=loader), text, source, typed).document()
        except yaml.YAMLError as error:
            repaired = _with_quoted_colon_words(text, error)
            if repaired is None:
                raise _explained(error, text, source) from None
            text = repaired
    raise _error(source, 1, "too many words that start with a colon", "put them in quotes")


def _check_size(text: str, source: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise _error(source, line, "holds half a character (a lone surrogate)") from None
    if size > MAX_BYTES:
        raise _too_large(source, size)


def _too_large(source: str, size: int) -> ConfigError:
    return _error(source, 1, f"{size:,} bytes are too many; at most {MAX_BYTES:,} are read", code=TOO_LARGE)


def _with_quoted_colon_words(text: str, error: Exception) -> str | None:
    """`[:read, :write]` is YAML 1.2, but this parser stops at it: the words at that very place get quotes."""
    mark = getattr(error, "problem_mark", None)
    found = _COLON_WORDS.match(text, mark.index) if mark is not None else None
    if found is None:
        return None
    return text[: found.start()] + re.sub(r":\w+", r'"\g<0>"', found[0]) + text[found.end() :]


def _explained(error: Exception, text: str, source: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else text.count("\n", 0, getattr(error, "position", 0)) + 1
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "the text cannot be read"
    lines = text.split("\n", line)
    shown = lines[line - 1] if line <= len(lines) else ""
    if "\t" in shown[: len(shown) - len(shown.lstrip())]:
        return _error(source, line, f"is not valid YAML: {what}", "indent with spaces, not with tabs")
    mark = getattr(error, "context_mark", None)
    opened = mark.line + 1 if mark is not None else line
    begun = f" {getattr(error, 'context', '')} that starts in line {opened}" if opened < line else ""
    return _error(source, line, f"is not valid YAML: {what}{begun}")


def _resolved(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _DECIMAL.fullmatch(text) or _OCTAL_OR_HEX.fullmatch(text):
        return _integer(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits is too long")
    return int(text, 0 if text[:2] in {"0o", "0x"} else 10)


def _tagged(tag: str, text: str) -> Any:
    kind, value = tag.removeprefix(_CORE), _resolved(text)
    if kind == "str" or tag == "!":
        return text
    if kind == "float" and type(value) is int:
        return float(value)
    if kind not in {"int", "float", "bool", "null"}:
        raise ValueError("this tag is not allowed", "put text that starts with ! in quotes")
    if type(value).__name__ != {"null": "NoneType"}.get(kind, kind):
        raise ValueError(f"what stands behind the tag !!{kind} is something else")
    return value


class _Builder:
    """Data out of parser events. PyYAML's own composer knows neither bounds nor, afterwards, lines."""

    def __init__(self, events: Iterator[Any], text: str, source: str, typed: bool) -> None:
        import yaml

        self._events = events
        self._text = text
        self._source = source
        self._typed = typed
        self._spent = 0
        self._anchors: dict[str, _Node | None] = {}
        self._build: dict[type, Callable[[Any, int], _Node]] = {
            yaml.AliasEvent: self._alias,
            yaml.ScalarEvent: self._scalar,
            yaml.SequenceStartEvent: self._sequence,
            yaml.MappingStartEvent: self._mapping,
        }
        self._stream_end = yaml.StreamEndEvent

    def document(self) -> Document:
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), self._stream_end):
            return Document(self._source, _Node(None, 0))
        first = next(self._events)
        root = self._node(first, 0)
        next(self._events)  # the end of the document
        if not isinstance(after := next(self._events), self._stream_end):
            raise self._error(after, "a second document starts here", "keep one")
        return Document(self._source, root, _line(first))

    def _node(self, event: Any, depth: int) -> _Node:
        node = self._build[type(event)](event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _spend(self, event: Any, weight: int) -> None:
        self._spent += weight
        if self._spent > MAX_NODES:
            what = f"more than {MAX_NODES:,} values, aliases counted in full, are too many"
            raise _error(self._source, _line(event), what, code=TOO_LARGE)

    def _alias(self, event: Any, depth: int) -> _Node:
        if event.anchor not in self._anchors:
            raise self._error(event, "this alias has no anchor", "put text that starts with * in quotes")
        node = self._anchors[event.anchor]
        if node is None:
            raise self._error(event, "this alias stands inside the very value that it names")
        self._check_depth(event, depth + node.height)
        self._spend(event, node.weight)
        return node

    def _scalar(self, event: Any, _depth: int) -> _Node:
        try:
            value = self._value(event)
        except ValueError as error:
            raise self._error(event, *error.args) from None
        weight = 1 + len(event.value) // _TEXT_PER_NODE
        self._spend(event, weight)
        return _Node(value, weight)

    def _value(self, event: Any) -> Any:
        value = _tagged(event.tag, event.value) if event.tag else event.value
        if not self._typed:
            return event.value
        return _resolved(event.value) if event.implicit[0] and not event.tag else value

    def _sequence(self, event: Any, depth: int) -> _Node:
        self._open(event, "seq", depth)
        entries: dict[Key, tuple[int, _Node]] = {}
        while type(item := next(self._events)) in self._build:
            entries[len(entries)] = (_line(item), self._node(item, depth + 1))
        return _collection([node.value for _, node in entries.values()], entries)

    def _mapping(self, event: Any, depth: int) -> _Node:
        self._open(event, "map", depth)
        entries: dict[Key, tuple[int, _Node]] = {}
        while type(key_event := next(self._events)) in self._build:
            key = self._key(key_event, depth)
            if key in entries:
                raise self._error(key_event, f"the key {key[:60]!r} stood in line {entries[key][0]} already")
            entries[key] = (_line(key_event), self._node(next(self._events), depth + 1))
        return _collection({key: node.value for key, (_, node) in entries.items()}, entries)

    def _key(self, event: Any, depth: int) -> str:
        # In [?x] and {?x: 1} this parser takes the question mark for one of its own, and would drop it.
        start = event.start_mark.index
        if self._text[start - 1 : start] == "?":
            raise self._error(event, "a text starts with ? and has no quotes", "put it in quotes")
        node = self._node(event, depth + 1)
        if isinstance(node.value, dict | list):
            raise self._error(event, "a key must be a plain word, not a list or a mapping")
        return str(getattr(event, "value", node.value))

    def _open(self, event: Any, kind: str, depth: int) -> None:
        if event.tag not in {None, "!", _CORE + kind}:
            raise self._error(event, "this tag is not allowed", "take it away")
        self._check_depth(event, depth + 1)
        self._spend(event, 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = None

    def _check_depth(self, event: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._error(event, f"nested more than {MAX_DEPTH} deep")

    def _error(self, event: Any, what: str, hint: str = "") -> ConfigError:
        return _error(self._source, _line(event), what, hint)


def _error(source: str, line: int, what: str, hint: str = "", code: str = "") -> ConfigError:
    place = Location(source, line)
    return ConfigError(f"{place}: {what}", hint=hint, location=place, code=code)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _collection(value: Any, entries: dict[Key, tuple[int, _Node]]) -> _Node:
    nodes = [node for _, node in entries.values()]
    weight = 1 + sum(node.weight for node in nodes)
    return _Node(value, weight, 1 + max((node.height for node in nodes), default=0), entries)
