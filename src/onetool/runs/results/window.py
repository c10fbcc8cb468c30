"""The content of a stored result: its metadata, pages, windows by lines or characters, and hits."""

import json
import os
import struct
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from heapq import heappush, heappushpop
from itertools import islice
from typing import BinaryIO, Literal, NamedTuple, TypeAlias, get_args

from onetool.errors import ToolTimeout
from onetool.util.problem import check_version
from onetool_child.json_types import JsonMapping, JsonObject

# --- metadata -------------------------------------------------------------------------------------


VERSION = 1
_LONG_LINE_CHARS = 1_000  # if lines are longer on average, results are read by characters
_PAGE_CHARS = 65_536  # between two marks of the index; a page may be up to twice as long
_MARK = struct.Struct("<3Q")
Unit: TypeAlias = Literal["auto", "lines", "chars"]


@dataclass(frozen=True, slots=True)
class Meta:
    handle: str
    total_lines: int
    size_bytes: int
    created_at: str
    tool: str
    agent: str
    kind: Literal["json", "text"]
    total_chars: int
    value_beside: (
        bool  # whether the data has its own file, because the text renders it in another format
    )
    token_id: str = ""  # of the token that the agent used
    # whether it is always sanitized: it came from an untrusted server, or the code asked for it
    is_untrusted: bool = False
    labels: JsonMapping | None = (
        None  # of the session that stored it, for the policy `guarded`; None: unknown
    )
    version: int = VERSION

    @property
    def created(self) -> float:
        return datetime.fromisoformat(self.created_at).timestamp()

    @property
    def has_long_lines(self) -> bool:
        return self.total_chars > _LONG_LINE_CHARS * self.total_lines


def encode_meta(meta: Meta) -> bytes:
    return json.dumps(asdict(meta)).encode()


def read_meta(file: BinaryIO) -> Meta:
    fields = json.load(file)
    check_version(fields.get("version"), VERSION, f"the result {fields.get('handle')}")
    return Meta(**fields)


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


# --- pages ----------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """The start of a page: the number of bytes, characters and line breaks before it.

    The last mark is the end.
    """

    size: int
    chars: int
    breaks: int


START = Mark(0, 0, 0)


def encode_pages(pieces: Iterable[str], marks: list[Mark]) -> Iterator[bytes]:
    """Yield the pages as UTF-8, and append the mark after each to `marks`."""
    for text in _split_pages(pieces):
        # A lone surrogate becomes an escape that Python and JSON understand.
        page = text.encode("utf-8", "backslashreplace")
        size, chars, breaks = marks[-1]
        marks.append(Mark(size + len(page), chars + len(page.decode()), breaks + page.count(b"\n")))
        yield page


def _split_pages(pieces: Iterable[str]) -> Iterator[str]:
    parts = []
    length = 0
    for piece in pieces:
        for start in range(0, len(piece), _PAGE_CHARS):
            part = piece[start : start + _PAGE_CHARS]
            parts.append(part)
            length += len(part)
            if length >= _PAGE_CHARS:
                yield "".join(parts)
                parts = []
                length = 0
    if parts:
        yield "".join(parts)


def pack_marks(marks: Iterable[Mark]) -> Iterator[bytes]:
    return (_MARK.pack(*mark) for mark in marks)


class ResultContent:
    """A reader of the text of a result."""

    def __init__(self, file: BinaryIO, index: BinaryIO) -> None:
        self._file = file
        self._index = index
        self._last = index.seek(0, os.SEEK_END) // _MARK.size - 1

    def is_complete(self, size: int) -> bool:
        """Return whether the files have the expected size; a power failure may have truncated them."""
        return self._last >= 0 and self.end.size == size == self._file.seek(0, os.SEEK_END)

    @property
    def end(self) -> Mark:
        return self._mark(self._last)

    def count_lines(self) -> int:
        """Return the number of lines, including an unterminated last line."""
        self._file.seek(max(0, self.end.size - 1))
        return self.end.breaks + (self._file.read(1) not in {b"", b"\n"})

    def pages(self, first: int = 0) -> Iterator[bytes]:
        """Yield the pages, which consist of complete characters, from the first one given."""
        self._file.seek(self._mark(first).size)
        for page in range(first, self._last):
            yield self._file.read(self._mark(page + 1).size - self._mark(page).size)

    def texts(self, first: int = 0) -> Iterator[str]:
        return map(bytes.decode, self.pages(first))

    def lines(self, first: int = 1) -> Iterator[str]:
        # A page may begin inside a line, so start with a page that has a line break before the
        # requested line.
        page = self._last_page_below("breaks", first - 1)
        skipped = first - 1 - self._mark(page).breaks
        return islice(_split_lines(self.texts(page)), skipped, None)

    def chars(self, first: int, count: int) -> Iterator[str]:
        page = self._last_page_below("chars", first)
        start = first - 1 - self._mark(page).chars
        for text in self.texts(page):
            part = text[start : start + count]
            yield part
            start = 0
            count = count - len(part)
            if not count:
                return

    def read_all(self) -> str:
        # Joining a list of pages would need twice the memory; CPython extends a string with one
        # reference in place.
        text = ""
        for page in self.texts():
            text += page
        return text

    def _last_page_below(self, column: Literal["chars", "breaks"], count: int) -> int:
        """Return the last page that starts below `count`, or the first page."""
        return max(
            0,
            bisect_left(
                range(self._last), count, key=lambda page: getattr(self._mark(page), column)
            )
            - 1,
        )

    def _mark(self, page: int) -> Mark:
        self._index.seek(page * _MARK.size)
        return Mark._make(_MARK.unpack(self._index.read(_MARK.size)))


def _split_lines(texts: Iterable[str]) -> Iterator[str]:
    partial = ""
    for text in texts:
        *complete, rest = text.split("\n")
        for line in complete:
            partial += line
            yield partial.removesuffix("\r")
            partial = ""
        partial += rest  # in place, as in `read_all`: the text may be a single line
    if partial:
        yield partial.removesuffix("\r")


# --- hits -----------------------------------------------------------------------------------------


class Hit(NamedTuple):
    """A hit. Hits sort by rank; `back` is the negated position, so the first of equal hits ranks
    higher.
    """

    score: float
    back: int
    text: str


class Deadline:
    """The end of a search, checked before each short step; linear time may be minutes."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise ToolTimeout("the search took too long; use a simpler pattern")


def select_first(hits: Iterable[Hit], offset: int, limit: int) -> tuple[list[Hit], int]:
    selected = []
    total = 0
    for hit in hits:
        total += 1
        if offset <= total < offset + limit:
            selected.append(hit)
    return selected, total


def select_best(hits: Iterable[Hit], offset: int, limit: int) -> tuple[list[Hit], int]:
    best: list[Hit] = []
    total = 0
    for hit in hits:
        total += 1
        (heappush if total < offset + limit else heappushpop)(best, hit)
    return sorted(best, reverse=True)[offset - 1 :], total


# --- windows --------------------------------------------------------------------------------------


class Window(NamedTuple):
    lines: list[str]
    returned: int
    total: int
    positions: list[int] | None = None


def check(offset: int, limit: int, unit: str) -> None:
    if offset < 1:
        raise ValueError(f"offset must be >= 1 (1-indexed), got {offset}")
    if limit < 1:
        raise ValueError(f"limit must be >= 1, got {limit}")
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be auto, lines or chars, got {unit!r}")


def read_lines(content: ResultContent, total: int, offset: int, limit: int) -> Window:
    lines = list(islice(content.lines(offset), min(limit, total))) if offset <= total else []
    return Window(lines, len(lines), total)


def read_chars(content: ResultContent, total: int, offset: int, limit: int) -> Window:
    text = "".join(content.chars(offset, min(limit, total))) if offset <= total else ""
    return Window(text.split("\n") if text else [], len(text), total)


def from_hits(hits: list[Hit], total: int) -> Window:
    return Window([hit.text for hit in hits], len(hits), total, [-hit.back for hit in hits])


def build_answer(meta: Meta, window: Window, offset: int, *, in_chars: bool) -> JsonObject:
    answer: JsonObject = {
        "lines": window.lines,
        "total_lines": meta.total_lines,
        "returned": window.returned,
        "offset": offset,
        "has_more": offset - 1 + window.returned < window.total,
    }
    if in_chars:
        answer |= {"unit": "chars", "total_chars": meta.total_chars}
    if window.positions is not None:
        answer |= {"matched_lines": window.total, "positions": window.positions}
    return answer


def cut_answer(
    answer: JsonObject, size: int, fits: Callable[[JsonObject], bool]
) -> JsonObject | None:
    """Return the answer with as many lines as fit and a note on the rest; None if nothing fits.

    `size` is the size of the answer, which limits what a forged answer can claim.
    """
    answer = {**answer, "returned": min(answer["returned"], size)}
    limit = _count_fitting(
        answer["returned"], lambda limit: fits(_add_note(_shorten(answer, limit)))
    )
    if limit:
        return _add_note(_shorten(answer, limit))
    chars = _count_fitting(len(answer["lines"][0]), lambda chars: fits(_cut_line(answer, chars)))
    return _cut_line(answer, chars) if chars else None


def _add_note(answer: JsonObject) -> JsonObject:
    following = answer["offset"] + answer["returned"]
    return {
        **answer,
        "note": f"cut to fit: continue with offset={following}, or use ot.load(handle) in code",
    }


def _cut_line(answer: JsonObject, chars: int) -> JsonObject:
    """Return the answer with the first characters of its first line only."""
    cut = {"lines": [answer["lines"][0][:chars]], "returned": 1, "has_more": True}
    places = {"positions": answer["positions"][:1]} if "positions" in answer else {}
    note = (
        f"cut after {chars} characters of the line: read the rest with unit='chars', or use"
        " ot.load(handle) in code"
    )
    return {**answer, **cut, **places, "note": note}


def _count_fitting(total: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number below the total that fits; 0 if none does.

    All smaller numbers fit too.
    """
    return bisect_left(range(1, total), True, key=lambda number: not fits(number))


def _shorten(answer: JsonObject, limit: int) -> JsonObject:
    """Return the answer with this limit."""
    if "positions" in answer:
        parts: JsonObject = {
            "lines": answer["lines"][:limit],
            "positions": answer["positions"][:limit],
        }
    elif answer.get("unit") == "chars":
        parts = {"lines": "\n".join(answer["lines"])[:limit].split("\n")}
    else:
        parts = {"lines": answer["lines"][:limit]}
    return {**answer, **parts, "returned": limit, "has_more": True}
