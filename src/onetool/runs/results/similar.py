"""Fuzzy search: lines, or parts of text without useful lines, ranked by their best match."""

from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice, pairwise
from typing import NamedTuple

from onetool.errors import ArgumentError
from onetool.runs.results.hits import Deadline, Hit

_PIECE_CHARS = 200  # compared at once; also the limit of the needle
_BATCH_SIZE = 500  # pieces between two checks of the deadline
_MIN_SCORE = 70.0  # of 100; below it, a line shares little more than some letters


class Piece(NamedTuple):
    position: int
    text: str
    line: str


def check_needle(needle: str) -> None:
    if len(needle) > _PIECE_CHARS:
        raise ArgumentError(
            f"the search text is too long: a fuzzy search takes up to {_PIECE_CHARS} characters,"
            f" got {len(needle)}"
        )


def split_lines(lines: Iterable[str], needle: str) -> Iterator[Piece]:
    for number, line in enumerate(lines, 1):
        for _, text in _cut(line, line, needle):
            yield Piece(number, text, line)


def split_pages(pages: Iterable[str], needle: str) -> Iterator[Piece]:
    at = 1
    for page, following in pairwise(chain(pages, [""])):
        for start, text in _cut(page, page + following[: len(needle)], needle):
            yield Piece(at + start, text, text)
        at += len(page)


def _cut(text: str, with_more: str, needle: str) -> Iterable[tuple[int, str]]:
    """Split a text into overlapping pieces, so that every match of the needle's length is inside
    one of them.
    """
    length = _PIECE_CHARS + len(needle) - 1
    if len(with_more) <= length:
        return ((0, text),)
    return (
        (start, with_more[start : start + length]) for start in range(0, len(text), _PIECE_CHARS)
    )


def find_similar(
    pieces: Iterator[Piece], needle: str, ignore_case: bool, deadline: Deadline
) -> Iterator[Hit]:
    """Yield the best hit of each position."""
    for _, hits in groupby(_score(pieces, needle, ignore_case, deadline), key=lambda hit: hit.back):
        yield max(hits)


def _score(
    pieces: Iterator[Piece], needle: str, ignore_case: bool, deadline: Deadline
) -> Iterator[Hit]:
    from rapidfuzz import fuzz, process

    while batch := list(islice(pieces, _BATCH_SIZE)):
        deadline.check()
        # Padded, because the shorter text is searched in the longer one: "}" would match many
        # needles.
        padded = [piece.text.ljust(len(needle) + 1, "\0") for piece in batch]
        arguments = (
            (needle.lower(), [text.lower() for text in padded]) if ignore_case else (needle, padded)
        )
        matches = process.extract(
            *arguments, scorer=fuzz.partial_ratio, limit=None, score_cutoff=_MIN_SCORE
        )
        for index, score in sorted((index, score) for _, score, index in matches):
            yield Hit(score, -batch[index].position, batch[index].line)
