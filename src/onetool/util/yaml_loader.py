"""Load YAML by the core schema of YAML 1.2, as plain data with line numbers.

Untrusted input stays cheap: size, depth and the expansion of aliases are limited, and tags cannot
create objects. The grammar is that of PyYAML's parser (in C if available), so U+0085, U+2028 and
U+2029 end a line. This module does not write YAML.
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
from onetool.util.problem import STORAGE, Location

TOO_LARGE = "too_large"  # the code of errors about documents over the limits
MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 100
MAX_NODES = 100_000
# A long string counts as several nodes, so that aliases cannot repeat a megabyte without limit.
_CHARS_PER_NODE = 100
# Python itself refuses to print integers with thousands of digits, at a place far from here.
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
class YamlDocument:
    """A parsed document with the line of each value."""

    source: str
    root: _Node = field(repr=False)
    first_line: int = 1

    @property
    def data(self) -> Any:
        return self.root.value

    def line(self, path: tuple[Key, ...] = ()) -> int:
        """Return the line of a key or item, counted from 1, or that of the closest existing parent."""
        node = self.root
        line = self.first_line
        for key in path:
            if key not in node.entries:
                break
            line, node = node.entries[key]
        return line


def read(text: str, source: str, *, typed: bool = True) -> YamlDocument:
    """Parse a text with one document. Without `typed`, every scalar is a string: `012` is `"012"`."""
    import yaml

    return _read(
        text.removeprefix("\ufeff"), source, typed, getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )


def read_file(path: Path) -> YamlDocument:
    """Parse a file.

    Raise FileNotFoundError if it is missing, and ConfigError for any other problem.
    """
    return read_bytes(load_bytes(path), str(path))


def read_bytes(raw: bytes, source: str, *, typed: bool = True) -> YamlDocument:
    """Parse the content of a file."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _error(source, line, "is not UTF-8 text", "save the file as UTF-8") from None
    return read(text, source, typed=typed)


def load_bytes(path: Path) -> bytes:
    """Return the content of a regular file of limited size. It is not parsed."""
    try:
        # Opened without blocking, because a named pipe must not stop the server.
        flag = getattr(os, "O_NONBLOCK", 0)
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | flag)) as file:
            _check_kind_and_size(path, os.fstat(file.fileno()))
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        if (
            isinstance(error, NotADirectoryError) and not path.parent.exists()
        ):  # the file cannot exist
            raise FileNotFoundError(error.errno, error.strerror, str(path)) from None
        reason = (
            "is a directory, not a file" if path.is_dir() else f"cannot be read: {error.strerror}"
        )
        raise _error(str(path), 0, reason, code=STORAGE) from None


def _check_kind_and_size(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _error(str(path), 0, "is not a regular file", code=STORAGE)
    if status.st_size > MAX_BYTES:
        raise _too_large(str(path), status.st_size)


def _read(text: str, source: str, typed: bool, loader: Any) -> YamlDocument:
    import yaml

    _check_size(text, source)
    for _ in range(_MAX_REPAIRS):
        try:
            return _Builder(yaml.parse(text, Loader=loader), text, source, typed).document()
        except yaml.YAMLError as error:
            repaired = _quote_colon_words(text, error)
            if repaired is None:
                raise _syntax_error(error, text, source) from None
            text = repaired
    raise _error(source, 1, "too many unquoted words that start with a colon", "put them in quotes")


def _check_size(text: str, source: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise _error(source, line, "contains a lone surrogate") from None
    if size > MAX_BYTES:
        raise _too_large(source, size)


def _too_large(source: str, size: int) -> ConfigError:
    return _error(source, 1, f"too large: {size:,} bytes (limit {MAX_BYTES:,})", code=TOO_LARGE)


def _quote_colon_words(text: str, error: Exception) -> str | None:
    """Quote the words at the error. `[:read, :write]` is valid YAML 1.2, but the parser rejects it."""
    mark = getattr(error, "problem_mark", None)
    words = _COLON_WORDS.match(text, mark.index) if mark is not None else None
    if words is None:
        return None
    return text[: words.start()] + re.sub(r":\w+", r'"\g<0>"', words[0]) + text[words.end() :]


def _syntax_error(error: Exception, text: str, source: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    line = (
        mark.line + 1
        if mark is not None
        else text.count("\n", 0, getattr(error, "position", 0)) + 1
    )
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "syntax error"
    lines = text.split("\n", line)
    source_line = lines[line - 1] if line <= len(lines) else ""
    if "\t" in source_line[: len(source_line) - len(source_line.lstrip())]:
        return _error(
            source, line, f"is not valid YAML: {what}", "indent with spaces, not with tabs"
        )
    mark = getattr(error, "context_mark", None)
    start = mark.line + 1 if mark is not None else line
    context = (
        f" {getattr(error, 'context', '')} that starts in line {start}" if start < line else ""
    )
    return _error(source, line, f"is not valid YAML: {what}{context}")


def _resolve_scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _DECIMAL.fullmatch(text) or _OCTAL_OR_HEX.fullmatch(text):
        return _parse_integer(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _parse_integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits is too long")
    return int(text, 0 if text[:2] in {"0o", "0x"} else 10)


def _resolve_tagged(tag: str, text: str) -> Any:
    kind = tag.removeprefix(_CORE)
    value = _resolve_scalar(text)
    if kind == "str" or tag == "!":
        return text
    if kind == "float" and type(value) is int:
        return float(value)
    if kind not in {"int", "float", "bool", "null"}:
        raise ValueError("this tag is not allowed", "put strings that start with ! in quotes")
    if type(value).__name__ != {"null": "NoneType"}.get(kind, kind):
        raise ValueError(f"the value does not match its tag !!{kind}")
    return value


class _Builder:
    """A builder of data from parser events.

    PyYAML's composer has no limits and does not keep lines.
    """

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

    def document(self) -> YamlDocument:
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), self._stream_end):
            return YamlDocument(self._source, _Node(None, 0))
        first = next(self._events)
        root = self._node(first, 0)
        next(self._events)  # the end of the document
        if not isinstance(after := next(self._events), self._stream_end):
            raise self._error(after, "a second document starts here", "keep one document")
        return YamlDocument(self._source, root, _line(first))

    def _node(self, event: Any, depth: int) -> _Node:
        node = self._build[type(event)](event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _spend(self, event: Any, weight: int) -> None:
        self._spent += weight
        if self._spent > MAX_NODES:
            what = f"too many values: the limit is {MAX_NODES:,}, including expanded aliases"
            raise _error(self._source, _line(event), what, code=TOO_LARGE)

    def _alias(self, event: Any, depth: int) -> _Node:
        if event.anchor not in self._anchors:
            raise self._error(
                event, "this alias has no anchor", "put strings that start with * in quotes"
            )
        node = self._anchors[event.anchor]
        if node is None:
            raise self._error(event, "this alias refers to a value that contains it")
        self._check_depth(event, depth + node.height)
        self._spend(event, node.weight)
        return node

    def _scalar(self, event: Any, _depth: int) -> _Node:
        try:
            value = self._value(event)
        except ValueError as error:
            raise self._error(event, *error.args) from None
        weight = 1 + len(event.value) // _CHARS_PER_NODE
        self._spend(event, weight)
        return _Node(value, weight)

    def _value(self, event: Any) -> Any:
        value = _resolve_tagged(event.tag, event.value) if event.tag else event.value
        if not self._typed:
            return event.value
        return _resolve_scalar(event.value) if event.implicit[0] and not event.tag else value

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
                raise self._error(
                    key_event,
                    f"duplicate key {key[:60]!r}, first defined in line {entries[key][0]}",
                )
            entries[key] = (_line(key_event), self._node(next(self._events), depth + 1))
        return _collection({key: node.value for key, (_, node) in entries.items()}, entries)

    def _key(self, event: Any, depth: int) -> str:
        # In [?x] and {?x: 1}, the parser reads the question mark as an indicator and would drop it.
        start = event.start_mark.index
        if self._text[start - 1 : start] == "?":
            raise self._error(event, "an unquoted string starts with ?", "put it in quotes")
        node = self._node(event, depth + 1)
        if isinstance(node.value, dict | list):
            raise self._error(event, "a key must be a scalar, not a list or a mapping")
        return str(getattr(event, "value", node.value))

    def _open(self, event: Any, kind: str, depth: int) -> None:
        if event.tag not in {None, "!", _CORE + kind}:
            raise self._error(event, "this tag is not allowed", "remove it")
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
