"""What is said of a result in place of it: what it is, how much, its first lines, and how to see more.

The words for data are those of `onetool_child.summary`, because large data is known as data only where it was made.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from onetool.results.meta import Meta
from onetool_child.summary import number

_PREVIEW_WIDTH = 500


def description(meta: Meta, summary: str, preview: list[str], removed: int = 0) -> dict[str, Any]:
    """What stands for a stored result. `removed` is how many older results it pushed out."""
    window = "offset=1, limit=5000, unit='chars'" if meta.has_long_lines else "offset=1, limit=50"
    return {
        "handle": meta.handle,
        "total_lines": meta.total_lines,
        "size_bytes": meta.size_bytes,
        "summary": summary,
        "preview": preview,
        "query": f"ot.result(handle='{meta.handle}', {window})",
        **({"note": f"{number(removed, 'older result')} removed to make room"} if removed else {}),
    }


def summary(meta: Meta, about: str) -> str:
    """`about` is what the caller says the result is; nothing for a text."""
    extent = f"{number(meta.total_lines, 'line')}, {number(meta.size_bytes, 'byte')}"
    return f"{about or ('JSON' if meta.kind == 'json' else 'text')}, {extent}"


def preview(pages: Iterable[str], count: int) -> list[str]:
    return list(islice(_clipped_lines(pages), count))


def _clipped_lines(pages: Iterable[str]) -> Iterator[str]:
    begun, length = "", 0
    for page in pages:
        *ended, rest = page.split("\n")
        for line in ended:
            whole = line.removesuffix("\r")
            yield _clipped(begun + whole[:_PREVIEW_WIDTH], length + len(whole))
            begun, length = "", 0
        begun, length = (begun + rest[:_PREVIEW_WIDTH])[:_PREVIEW_WIDTH], length + len(rest)
    if length:
        yield _clipped(begun, length)


def _clipped(start: str, length: int) -> str:
    rest = length - _PREVIEW_WIDTH
    # A return may still be there, where the page ended between it and its line break.
    return f"{start[:_PREVIEW_WIDTH]}… [{number(rest, 'more character')}]" if rest > 0 else start.removesuffix("\r")
