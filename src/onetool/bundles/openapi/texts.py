"""What a document says about its parts, short enough to read and safe to show to a model."""

import functools
from typing import Any, Final

from onetool.sanitise import clean

OF_A_TOOL: Final = 1_200
OF_AN_ARGUMENT: Final = 400
OF_A_DETAIL: Final = 200
_LONGEST_READ = 5_000


def shortened(text: Any, limit: int) -> str:
    """Whole paragraphs if one fits, else whole sentences, else words."""
    return _shortened(text[:_LONGEST_READ], limit) if isinstance(text, str) else ""


@functools.lru_cache(maxsize=512)  # the same few parameters are described again and again
def _shortened(text: str, limit: int) -> str:
    cleaned = clean(text.strip(), _LONGEST_READ).strip()
    if len(cleaned) <= limit:
        return cleaned
    head = cleaned[: limit - 2]
    for end in ("\n\n", ". ", ".\n", " "):
        cut = head.rfind(end)
        if cut > limit // 4:
            return f"{head[:cut].rstrip()}{'.' if end[0] == '.' else ''} …"
    return f"{head}…"


def of_operation(summary: Any, description: Any) -> str:
    """The summary in the first line, then what more there is to say."""
    first, rest = shortened(summary, OF_A_DETAIL), shortened(description, OF_A_TOOL)
    if not rest or rest == first:
        return first
    return f"{first.rstrip('.')}.\n\n{rest}" if first and not rest.startswith(first) else rest
