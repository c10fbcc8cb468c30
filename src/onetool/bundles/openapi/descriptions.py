"""Descriptions of a document, shortened and sanitized for a model."""

import functools
from typing import Any

from onetool.util.sanitize import clean

MAX_TOOL_LENGTH = 1_200
MAX_ARGUMENT_LENGTH = 400
MAX_DETAIL_LENGTH = 200
_MAX_READ_LENGTH = 5_000


def shorten(text: Any, limit: int) -> str:
    """Shorten text to whole paragraphs if one fits, else to whole sentences, else to words."""
    return _shorten(text[:_MAX_READ_LENGTH], limit) if isinstance(text, str) else ""


@functools.lru_cache(maxsize=512)  # the same few parameters are described again and again
def _shorten(text: str, limit: int) -> str:
    cleaned = clean(text.strip(), _MAX_READ_LENGTH).strip()
    if len(cleaned) <= limit:
        return cleaned
    head = cleaned[: limit - 2]
    for end in ("\n\n", ". ", ".\n", " "):
        cut = head.rfind(end)
        if cut > limit // 4:
            return f"{head[:cut].rstrip()}{'.' if end[0] == '.' else ''} …"
    return f"{head}…"


def describe_operation(summary: Any, description: Any) -> str:
    """Return the summary as the first line, followed by the description."""
    first = shorten(summary, MAX_DETAIL_LENGTH)
    rest = shorten(description, MAX_TOOL_LENGTH)
    if not rest or rest == first:
        return first
    return f"{first.rstrip('.')}.\n\n{rest}" if first and not rest.startswith(first) else rest
