"""The text of a result: pages in one file, and in another an index of where each begins.

A reader seeks by the index, so that its cost follows what it reads and not the result.
"""

import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO, Literal, NamedTuple

_PAGE = 65_536  # characters between two marks of the index, or up to twice as many
_MARK = struct.Struct("<3Q")


class Mark(NamedTuple):
    """Where a page begins, as the number of bytes, characters and line breaks before it. The last one is the end."""

    size: int
    chars: int
    breaks: int


START = Mark(0, 0, 0)


def encoded(pieces: Iterable[str], marks: list[Mark]) -> Iterator[bytes]:
    """The pages; the mark after each is added to `marks`, which begin with `START`."""
    for text in _pages(pieces):
        # A lone surrogate becomes the escape that Python and JSON both know for it.
        page = text.encode("utf-8", "backslashreplace")
        size, chars, breaks = marks[-1]
        marks.append(Mark(size + len(page), chars + len(page.decode()), breaks + page.count(b"\n")))
        yield page


def _pages(pieces: Iterable[str]) -> Iterator[str]:
    begun, length = [], 0
    for piece in pieces:
        for start in range(0, len(piece), _PAGE):
            part = piece[start : start + _PAGE]
            begun.append(part)
            length += len(part)
            if length >= _PAGE:
                yield "".join(begun)
                begun, length = [], 0
    if begun:
        yield "".join(begun)


def packed(marks: Iterable[Mark]) -> Iterator[bytes]:
    return (_MARK.pack(*mark) for mark in marks)


class Content:
    def __init__(self, file: BinaryIO, index: BinaryIO) -> None:
        self._file = file
        self._index = index
        self._last = os.fstat(index.fileno()).st_size // _MARK.size - 1

    def holds(self, size: int) -> bool:
        """Files are not forced to the disk, so that a loss of power may leave less than the meta file promises."""
        return self._last >= 0 and self.end.size == size == os.fstat(self._file.fileno()).st_size

    @property
    def end(self) -> Mark:
        return self._mark(self._last)

    def count_lines(self) -> int:
        """As many as there are line breaks, and one more where something follows the last."""
        self._file.seek(max(0, self.end.size - 1))
        return self.end.breaks + (self._file.read(1) not in {b"", b"\n"})

    def pages(self, first: int = 0) -> Iterator[bytes]:
        """The content in parts that begin and end with whole characters."""
        self._file.seek(self._mark(first).size)
        for page in range(first, self._last):
            yield self._file.read(self._mark(page + 1).size - self._mark(page).size)

    def texts(self, first: int = 0) -> Iterator[str]:
        return map(bytes.decode, self.pages(first))

    def lines(self, first: int = 1) -> Iterator[str]:
        # The first line in a page may have begun before it; so a page is taken that has a line break before the line.
        page = self._last_page_below("breaks", first - 1)
        skipped = first - 1 - self._mark(page).breaks
        return islice(_lines(self.texts(page)), skipped, None)

    def chars(self, first: int, count: int) -> Iterator[str]:
        page = self._last_page_below("chars", first)
        start = first - 1 - self._mark(page).chars
        for text in self.texts(page):
            part = text[start : start + count]
            yield part
            start, count = 0, count - len(part)
            if not count:
                return

    def whole(self) -> str:
        # Joining a list of pages would hold everything twice; a string with one owner grows in its place.
        text = ""
        for page in self.texts():
            text += page
        return text

    def _last_page_below(self, column: Literal["chars", "breaks"], count: int) -> int:
        """The last page with less than so many characters or line breaks before it, or else the first."""
        return max(0, bisect_left(range(self._last), count, key=lambda page: getattr(self._mark(page), column)) - 1)

    def _mark(self, page: int) -> Mark:
        self._index.seek(page * _MARK.size)
        return Mark._make(_MARK.unpack(self._index.read(_MARK.size)))


def _lines(texts: Iterable[str]) -> Iterator[str]:
    begun = ""
    for text in texts:
        *ended, rest = text.split("\n")
        for line in ended:
            begun += line
            yield begun.removesuffix("\r")
            begun = ""
        begun += rest  # in its place, as in `whole`: a line may be all there is
    if begun:
        yield begun.removesuffix("\r")
