"""The text of a result: pages in one file, and an index of their positions in another.

Readers seek by the index, so the cost of a read does not depend on the size of the result.
"""

import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO, Literal, NamedTuple

_PAGE_CHARS = 65_536  # between two marks of the index; a page may be up to twice as long
_MARK = struct.Struct("<3Q")


class Mark(NamedTuple):
    """The start of a page: the number of bytes, characters and line breaks before it.

    The last mark is the end.
    """

    size: int
    chars: int
    breaks: int


START = Mark(0, 0, 0)


def encode_pages(pieces: Iterable[str], marks: list[Mark]) -> Iterator[bytes]:
    """Yield the pages as UTF-8, and append the mark after each to `marks`, which begin with
    `START`.
    """
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
        """Return the last page with fewer characters or line breaks before it than `count`, or the
        first page.
        """
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
