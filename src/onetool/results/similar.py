"""What is similar to some words, ranked by the best matching part: of a line, or of text without useful lines."""

from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice, pairwise
from typing import NamedTuple

from onetool.errors import ArgumentError
from onetool.results.hits import Deadline, Hit

_PIECE = 200  # characters that are compared at once, and the longest needle
_BATCH = 500  # pieces between two looks at the clock
_WORST_SCORE = 70.0  # of 100; below it a line has little more than some letters in common


class Piece(NamedTuple):
    position: int
    text: str
    shown: str


def check_needle(needle: str) -> None:
    if len(needle) > _PIECE:
        raise ArgumentError(f"A fuzzy search takes up to {_PIECE} characters, got {len(needle)}")


def of_lines(lines: Iterable[str], needle: str) -> Iterator[Piece]:
    for number, line in enumerate(lines, 1):
        for _, text in _cut(line, line, needle):
            yield Piece(number, text, line)


def of_pages(pages: Iterable[str], needle: str) -> Iterator[Piece]:
    at = 1
    for page, following in pairwise(chain(pages, [""])):
        for start, text in _cut(page, page + following[: len(needle)], needle):
            yield Piece(at + start, text, text)
        at += len(page)


def _cut(text: str, with_more: str, needle: str) -> Iterable[tuple[int, str]]:
    """Pieces that overlap, so that whatever is as long as the needle is whole in one."""
    length = _PIECE + len(needle) - 1
    if len(with_more) <= length:
        return ((0, text),)
    return ((start, with_more[start : start + length]) for start in range(0, len(text), _PIECE))


def similar(pieces: Iterator[Piece], needle: str, ignore_case: bool, deadline: Deadline) -> Iterator[Hit]:
    """For each position the best hit, where there is one."""
    for _, hits in groupby(_hits(pieces, needle, ignore_case, deadline), key=lambda hit: hit.back):
        yield max(hits)


def _hits(pieces: Iterator[Piece], needle: str, ignore_case: bool, deadline: Deadline) -> Iterator[Hit]:
    from rapidfuzz import fuzz, process

    while batch := list(islice(pieces, _BATCH)):
        deadline.check()
        # Filled up, because of two texts the shorter is looked for in the longer: "}" would be found in any needle.
        filled = [piece.text.ljust(len(needle) + 1, "\0") for piece in batch]
        cased = (needle.lower(), [text.lower() for text in filled]) if ignore_case else (needle, filled)
        found = process.extract(*cased, scorer=fuzz.partial_ratio, limit=None, score_cutoff=_WORST_SCORE)
        for index, score in sorted((index, score) for _, score, index in found):
            yield Hit(score, -batch[index].position, batch[index].shown)
