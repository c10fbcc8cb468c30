"""Helpers for messages: plurals, quoted values, suggestions and pydantic's errors."""

import re
from collections.abc import Iterable, Sequence

from onetool_child.json_types import JsonMapping

MAX_QUOTED_CHARS = 200
MAX_SUGGESTIONS = 3
SUBJECT = re.compile(r"^\w+ should ")  # "Input should be ...", "String should match ..."
PHRASES = {
    "missing": "is required",
    "extra_forbidden": "unknown field",
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type"), "must be an object"
    ),
    **dict.fromkeys(("list_type", "tuple_type"), "must be an array"),
}


def pluralize(count: int, singular: str, plural: str | None = None) -> str:
    """Return the number with its noun, as in "1 tool" and "2 tools"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def quote(value: object, max_chars: int = MAX_QUOTED_CHARS) -> str:
    """Return a value in quotes for a message, truncated if it is long."""
    return repr(shorten(str(value), max_chars))


def describe_unknown_account(owner: str, account: str, accounts: Iterable[str]) -> str:
    """Return the message about an account that a server or API does not have."""
    listed = ", ".join(accounts)
    expected = f"its accounts are {listed}" if listed else "it has no accounts"
    return f"{owner} has no account {quote(account)}: {expected}"


def shorten(text: str, max_chars: int) -> str:
    """Return the text, truncated if it is long."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def did_you_mean(matches: Iterable[object]) -> str:
    """Return a question such as " Did you mean a or b?"; empty without names."""
    hint = suggestion_hint(matches)
    return f" {hint[0].upper()}{hint[1:]}" if hint else ""


def suggestion_hint(matches: Iterable[object]) -> str:
    """Return the same question as the hint of an error, which begins in lower case."""
    names = [str(match) for match in matches][:MAX_SUGGESTIONS]
    return f"did you mean {' or '.join(names)}?" if names else ""


def suggest(word: str, names: Iterable[str]) -> str:
    """Return a question that suggests the known names closest to a word; empty if none is close."""
    from difflib import get_close_matches  # slow to load

    return did_you_mean(get_close_matches(word, list(names), 1))


def count_common(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of common leading lines."""
    differing = (at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    return next(differing, min(len(old), len(new)))


# --- pydantic errors ------------------------------------------------------------------------------


def describe_problem(error: JsonMapping) -> str:
    """Return what is wrong with the value of an error, without the value."""
    message = str(error["msg"]).removeprefix("Value error, ")
    return PHRASES.get(error["type"]) or SUBJECT.sub("must ", message)
