"""Where a regular expression matches: the lines, or in text without useful lines the parts around each match.

RE2 is given short stretches, because some patterns cost it 70 µs a byte, and because to find each of many matches it
may look at all that follows. The price: what is found for certain are matches up to a length.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from typing import Any

from onetool.errors import ArgumentError
from onetool.results.hits import Deadline, Hit

_MEMORY = 1 << 18  # bytes for RE2; it bounds the states of a pattern, and so what each byte of text can cost
_SHOWN = 500
_TOKEN = re.compile(r"\\.|\(\?[a-zA-Z]*-[a-zA-Z]*m", re.DOTALL)
_ANCHORS = {r"\A": "^", r"\Z": "$", r"\z": "$"}
_BEYOND_RE2 = re.compile(r"invalid perl operator|invalid escape sequence: \\[1-9]")
_SURE_IN_LINES = 32_768  # bytes, the longest match that is found for certain; in shorter lines, every match is
_SURE = 4_096  # the same in text without useful lines
_BEFORE, _AFTER = 100, 300  # bytes shown around the start of a match in such text


def matching_lines(pages: Iterable[bytes], pattern: Any, deadline: Deadline) -> Iterator[Hit]:
    first_match = _first_match(pattern, _SURE_IN_LINES, deadline)
    number = 1
    for block in _blocks(pages):
        at = 0
        while (place := first_match(block, at, len(block) + 1)) is not None:
            start = block.rfind(b"\n", at, place) + 1 or at
            end = block.find(b"\n", place) % (len(block) + 1)  # where there is no line break, the end of the block
            number += block.count(b"\n", at, start)
            yield Hit(0, -number, block[start:end].decode())
            at, number = end + 1, number + 1
        number += block.count(b"\n", at) + (at <= len(block))


def matching_parts(pages: Iterable[bytes], pattern: Any, deadline: Deadline) -> Iterator[Hit]:
    first_match = _first_match(pattern, _SURE, deadline)
    position, shown, before = 1, 0, b""
    for page, following in pairwise(chain(pages, [b""])):
        # More than is looked at, so that the end of the text is not taken for the end of a line.
        text = before + page + following[: 3 * _SURE]
        at, end = len(before) + shown, len(before) + len(page)
        while (place := first_match(text, at, end)) is not None:
            start, stop = _whole(text, max(at, place - _BEFORE)), _whole(text, place + _AFTER)
            part = text[start:stop].decode()
            position += len(text[at:start].decode())
            yield Hit(0, -position, part)
            position, at = position + len(part), stop
        position += len(text[at:end].decode())
        shown, before = max(0, at - end), page[-1:]


def _first_match(pattern: Any, sure: int, deadline: Deadline) -> Callable[[bytes, int, int], int | None]:
    """How to get the place in a text, from one on and before another, where the first match begins.

    A match that is longer than `sure` bytes may be missed.
    """

    def place(text: bytes, at: int, end: int) -> int | None:
        while at < end:
            deadline.check()
            match = pattern.search(text, at, at + 2 * sure)
            if match is not None and match.start() < min(end, at + sure):
                return int(match.start())
            at += sure  # from the second half on, a match that begins earlier may have been cut off
        return None

    return place


def _blocks(pages: Iterable[bytes]) -> Iterator[bytes]:
    """The pages cut anew, into parts of whole lines without the break after the last."""
    begun: list[bytes] = []
    for page in pages:
        ended, line_break, rest = page.rpartition(b"\n")
        if line_break:
            block = b"".join((*begun, ended))
            begun = []
            yield _without_returns(block)
        begun.append(rest)
    last = b"".join(begun)
    if last:
        yield _without_returns(last)


def _without_returns(block: bytes) -> bytes:
    return block.replace(b"\r\n", b"\n").removesuffix(b"\r")


def _whole(text: bytes, at: int) -> int:
    """The first place from here on where a character begins or the text ends."""
    while at < len(text) and text[at] & 0xC0 == 0x80:  # noqa: PLR2004 - how UTF-8 marks the inside of a character
        at += 1
    return min(at, len(text))


# --- patterns --------------------------------------------------------------------------------------------------------


def compiled(pattern: str, ignore_case: bool) -> Any:
    """Compile a regular expression to match in linear time and inside of lines only: many are searched at once."""
    import re2

    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.never_capture = options.never_nl = True
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        return re2.compile(f"(?m){_line_by_line(pattern)}", options)
    except re2.error as error:
        raise _refused(pattern, error.args[0].decode(errors="replace").replace("(?m)", "", 1)) from None
    except UnicodeEncodeError:
        raise _refused(pattern, "it holds half a character") from None


def _line_by_line(pattern: str) -> str:
    """The pattern in which the start and the end are those of a line, however it is written."""

    def changed(token: re.Match[str]) -> str:
        if token[0] == r"\C" or token[0].startswith("("):  # half a character, or ^ and $ for the whole text
            raise _refused(pattern, f"{token[0]} has no meaning, because each line is searched by itself")
        return _ANCHORS.get(token[0], token[0])

    return _TOKEN.sub(changed, pattern)


def _refused(pattern: str, reason: str) -> ArgumentError:
    shown, reason = pattern[:_SHOWN], reason[:_SHOWN]  # RE2 repeats the pattern in its reason
    if not _BEYOND_RE2.match(reason):
        return ArgumentError(f"{shown!r} is not a valid regular expression: {reason}", pattern=shown)
    rule = "searches take linear time (RE2), so lookaround, atomic groups and backreferences are not supported"
    return ArgumentError(f"{shown!r} cannot be searched for: {reason}; {rule}", pattern=shown)
