"""Summaries that replace stored results: type, size, first lines, and how to read more.

Data is described by `onetool_child.summary`, because large data is parsed only in the process that
created it.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from onetool.runs.results.meta import Meta
from onetool_child.json_types import JsonObject
from onetool_child.summary import pluralize

_PREVIEW_CHARS = 500


def description(meta: Meta, summary: str, preview: list[str], removed: int = 0) -> JsonObject:
    """Return the object that replaces a stored result.

    `removed` is the number of older results that it evicted.
    """
    window = "offset=1, limit=5000, unit='chars'" if meta.has_long_lines else "offset=1, limit=50"
    return {
        "handle": meta.handle,
        "total_lines": meta.total_lines,
        "size_bytes": meta.size_bytes,
        "summary": summary,
        "preview": preview,
        "query": f"ot.result(handle='{meta.handle}', {window})",
        **(
            {"note": f"{pluralize(removed, 'older result')} removed to make room"}
            if removed
            else {}
        ),
    }


def summary(meta: Meta, about: str) -> str:
    """Return a one-line summary. `about` is the caller's description of the result; empty for text."""
    extent = f"{pluralize(meta.total_lines, 'line')}, {pluralize(meta.size_bytes, 'byte')}"
    return f"{about or ('JSON' if meta.kind == 'json' else 'text')}, {extent}"


def preview(pages: Iterable[str], count: int) -> list[str]:
    return list(islice(_clip_lines(pages), count))


def _clip_lines(pages: Iterable[str]) -> Iterator[str]:
    partial = ""
    length = 0
    for page in pages:
        *complete, rest = page.split("\n")
        for line in complete:
            text = line.removesuffix("\r")
            yield _clip(partial + text[:_PREVIEW_CHARS], length + len(text))
            partial = ""
            length = 0
        partial = (partial + rest[:_PREVIEW_CHARS])[:_PREVIEW_CHARS]
        length = length + len(rest)
    if length:
        yield _clip(partial, length)


def _clip(start: str, length: int) -> str:
    rest = length - _PREVIEW_CHARS
    # A carriage return remains if the page ended between it and its line feed.
    return (
        f"{start[:_PREVIEW_CHARS]}… [{pluralize(rest, 'more character')}]"
        if rest > 0
        else start.removesuffix("\r")
    )
