"""Helpers for messages: plurals, quoted values and suggestions for misspelled names."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

MAX_QUOTED_CHARS = 200
MAX_SUGGESTIONS = 3


def pluralize(count: int, singular: str, plural: str | None = None) -> str:
    """Return the number with its noun, as in "1 tool" and "2 tools"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def quote(value: object, max_chars: int = MAX_QUOTED_CHARS) -> str:
    """Return a value in quotes for a message, truncated if it is long."""
    return repr(shorten(str(value), max_chars))


def describe_unknown_account(owner: str, account: str, known: Iterable[str]) -> str:
    """Return the message about an account that a server or API does not have."""
    listed = ", ".join(known)
    expected = f"its accounts are {listed}" if listed else "it has no accounts"
    return f"{owner} has no account {quote(account)}: {expected}"


def shorten(text: str, max_chars: int) -> str:
    """Return the text, truncated if it is long."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def did_you_mean(matches: Iterable[object]) -> str:
    """Return a question that suggests these names, as in " Did you mean a or b?"; empty without
    names.
    """
    hint = suggestion_hint(matches)
    return f" {hint[0].upper()}{hint[1:]}" if hint else ""


def suggestion_hint(matches: Iterable[object]) -> str:
    """Return the same question as the hint of an error, which begins in lower case."""
    names = [str(match) for match in matches][:MAX_SUGGESTIONS]
    return f"did you mean {' or '.join(names)}?" if names else ""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a question that suggests the known names closest to a word; empty if none is close."""
    return did_you_mean(get_close_matches(word, list(known), 1))


def count_common(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of common leading lines."""
    differing = (at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    return next(differing, min(len(old), len(new)))
