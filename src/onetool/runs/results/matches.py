"""Search in stored results: regular expressions, and fuzzy search.

RE2 searches short stretches, because some patterns cost 70 µs per byte, and because finding each of
many matches may scan all of the remaining text. As a consequence, matches above a certain length
may be missed. A fuzzy search ranks lines, or parts of text without useful lines.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby, islice, pairwise
from typing import Any, NamedTuple

from onetool.errors import ArgumentError
from onetool.runs.results.window import Deadline, Hit

_MAX_MEMORY_BYTES = (
    1 << 18
)  # of RE2; bounds the states of a pattern, and thereby the cost per byte of text
_MAX_QUOTED_CHARS = 500
_TOKEN = re.compile(r"\\.|\(\?[a-zA-Z]*-[a-zA-Z]*m", re.DOTALL)
_ANCHORS = {r"\A": "^", r"\Z": "$", r"\z": "$"}
_BEYOND_RE2 = re.compile(r"invalid perl operator|invalid escape sequence: \\[1-9]")
_SURE_LINE_BYTES = 32_768  # longer matches may be missed; in shorter lines, none is
_SURE_BYTES = 4_096  # the same for text without useful lines
# bytes shown around the start of a match in such text
_BEFORE = 100
_AFTER = 300
_PIECE_CHARS = 200  # compared at once; also the limit of the needle
_BATCH_SIZE = 500  # pieces between two checks of the deadline
_MIN_SCORE = 70.0  # of 100; below it, a line shares little more than some letters


def find_lines(pages: Iterable[bytes], pattern: Any, deadline: Deadline) -> Iterator[Hit]:
    find_next = _make_finder(pattern, _SURE_LINE_BYTES, deadline)
    number = 1
    for block in _join_lines(pages):
        at = 0
        while (place := find_next(block, at, len(block) + 1)) is not None:
            start = block.rfind(b"\n", at, place) + 1 or at
            end = block.find(b"\n", place) % (
                len(block) + 1
            )  # without a line break, the end of the block
            number += block.count(b"\n", at, start)
            yield Hit(0, -number, block[start:end].decode())
            at = end + 1
            number = number + 1
        number += block.count(b"\n", at) + (at <= len(block))


def find_parts(pages: Iterable[bytes], pattern: Any, deadline: Deadline) -> Iterator[Hit]:
    find_next = _make_finder(pattern, _SURE_BYTES, deadline)
    position = 1
    covered = 0
    before = b""
    for page, following in pairwise(chain(pages, [b""])):
        # More than is searched, so that the end of the text does not count as the end of a line.
        text = before + page + following[: 3 * _SURE_BYTES]
        at = len(before) + covered
        end = len(before) + len(page)
        while (place := find_next(text, at, end)) is not None:
            start = _align(text, max(at, place - _BEFORE))
            stop = _align(text, place + _AFTER)
            part = text[start:stop].decode()
            position += len(text[at:start].decode())
            yield Hit(0, -position, part)
            position = position + len(part)
            at = stop
        position += len(text[at:end].decode())
        covered = max(0, at - end)
        before = page[-1:]


def _make_finder(
    pattern: Any, sure: int, deadline: Deadline
) -> Callable[[bytes, int, int], int | None]:
    """Return a function that finds the start of the first match in a text between two positions.

    A match that is longer than `sure` bytes may be missed.
    """

    def find(text: bytes, at: int, end: int) -> int | None:
        while at < end:
            deadline.check()
            match = pattern.search(text, at, at + 2 * sure)
            if match is not None and match.start() < min(end, at + sure):
                return int(match.start())
            at += sure  # a match that begins in the second half may be cut off
        return None

    return find


def _join_lines(pages: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pages as blocks of complete lines, without the final line break."""
    parts: list[bytes] = []
    for page in pages:
        complete, line_break, rest = page.rpartition(b"\n")
        if line_break:
            block = b"".join((*parts, complete))
            parts = []
            yield _strip_returns(block)
        parts.append(rest)
    last = b"".join(parts)
    if last:
        yield _strip_returns(last)


def _strip_returns(block: bytes) -> bytes:
    return block.replace(b"\r\n", b"\n").removesuffix(b"\r")


def _align(text: bytes, at: int) -> int:
    """Return the first position from here on at which a character begins or the text ends."""
    while at < len(text) and text[at] & 0xC0 == 0x80:  # noqa: PLR2004 - continuation bytes of UTF-8
        at += 1
    return min(at, len(text))


# --- patterns -------------------------------------------------------------------------------------


def compile_pattern(pattern: str, ignore_case: bool) -> Any:
    """Compile a regular expression that matches in linear time and within lines; blocks of lines
    are searched.
    """
    import re2

    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.never_capture = options.never_nl = True
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    try:
        return re2.compile(f"(?m){_line_by_line(pattern)}", options)
    except re2.error as error:
        raise _pattern_error(
            pattern, error.args[0].decode(errors="replace").replace("(?m)", "", 1)
        ) from None
    except UnicodeEncodeError:
        raise _pattern_error(pattern, "it contains a lone surrogate") from None


def _line_by_line(pattern: str) -> str:
    """Return the pattern with all start and end anchors changed to those of a line."""

    def replace_token(token: re.Match[str]) -> str:
        if token[0] == r"\C" or token[0].startswith(
            "("
        ):  # a single byte, or ^ and $ for the whole text
            raise _pattern_error(
                pattern, f"{token[0]} is not supported, because each line is searched separately"
            )
        return _ANCHORS.get(token[0], token[0])

    return _TOKEN.sub(replace_token, pattern)


def _pattern_error(pattern: str, reason: str) -> ArgumentError:
    # RE2 repeats the pattern in its reason
    quoted = pattern[:_MAX_QUOTED_CHARS]
    reason = reason[:_MAX_QUOTED_CHARS]
    if not _BEYOND_RE2.match(reason):
        return ArgumentError(
            f"{quoted!r} is not a valid regular expression: {reason}", pattern=quoted
        )
    rule = (
        "searches take linear time (RE2), so lookaround, atomic groups and backreferences are not"
        " supported"
    )
    return ArgumentError(f"{quoted!r} cannot be searched for: {reason}; {rule}", pattern=quoted)


# --- similar --------------------------------------------------------------------------------------


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
    """Split a text into pieces that overlap, so that no match of the needle is split."""
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
