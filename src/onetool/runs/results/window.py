"""Windows on stored results, by lines or characters."""

from bisect import bisect_left
from collections.abc import Callable
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias, get_args

from onetool.runs.results.content import ResultContent
from onetool.runs.results.hits import Hit
from onetool.runs.results.meta import Meta
from onetool_child.json_types import JsonObject

Unit: TypeAlias = Literal["auto", "lines", "chars"]


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
