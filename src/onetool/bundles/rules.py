"""What may be a slug, a version, a tag, a display name and an id, and what is said where something is none.

Nothing is normalised and nothing is trimmed: what is taken is kept as it was sent. Only an id is spelt in lower case.
"""

import re
import unicodedata
from typing import Final

from onetool.errors import BundleError
from onetool.problem import Location
from onetool.util.invisible import escape_invisible, find_in_name

MOST_CODE_POINTS: Final = 64
MOST_IN_DISPLAY_NAME: Final = 256
MOST_IN_DESCRIPTION: Final = 20_000
MOST_TAGS: Final = 64
EXAMPLE_ID: Final = "0192f0c1-7a10-7c3e-9d2b-3f5a6b7c8d9e"
_UUID_7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_PLAIN = re.compile(r"[A-Za-z0-9-]{1,64}")
_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def invalid(message: str, **details: object) -> BundleError:
    return BundleError(message, code="invalid", details=details)


def unusable(reason: str, place: Location | None = None) -> BundleError:
    message = f"the store of bundles cannot be used now: {reason}"
    return BundleError(message, code="busy", location=place, details={})


def is_id(text: str) -> bool:
    return _UUID_7.fullmatch(text) is not None


def an_id(text: object, what: str = "bundle") -> str:
    found = text.lower() if isinstance(text, str) else ""
    if not is_id(found):
        shown = _shown(text)
        raise invalid(f"{shown} is no id of a {what}; an id is a UUID of version 7, like {EXAMPLE_ID}", value=shown)
    return found


def a_slug(text: object) -> str:
    problem = slug_problem(text)
    if problem:
        raise invalid(f"{_shown(text)} is no slug: {problem}", value=_shown(text))
    return str(text)


def a_version(text: object) -> str:
    problem = version_problem(text)
    if problem:
        raise invalid(f"{_shown(text)} is no version: {problem}", value=_shown(text))
    return str(text)


def slug_problem(text: object) -> str | None:
    if not isinstance(text, str):
        return "it must be a text"
    if _PLAIN.fullmatch(text):
        return None
    return _length_problem(text) or _letter_problem(text, "letters, digits and dashes")


def version_problem(text: object) -> str | None:
    if not isinstance(text, str):
        return "it must be a text"
    if text in {".", ".."}:
        return "a dot alone, or two, mean folders; write 1.0"
    return _length_problem(text) or _letter_problem(text.replace(".", "-"), "letters, digits, dashes and dots")


def tags_problem(tags: list[str]) -> str | None:
    wrong = [tag for tag in tags if not _TAG.fullmatch(tag)]
    if wrong:
        return f"{_shown(wrong[0])} is no tag; a tag is a letter or _, then up to 63 letters, digits, _ or -"
    if len(tags) > MOST_TAGS:
        return f"there are {len(tags)} tags, and {MOST_TAGS} are the most"
    return "a tag is given twice" if len(set(tags)) < len(tags) else None


def display_name_problem(text: str) -> str | None:
    if not text.strip():
        return "it must not be blank"
    if len(text) > MOST_IN_DISPLAY_NAME:
        return f"it has {len(text)} characters, and {MOST_IN_DISPLAY_NAME} are the most"
    if not text.isprintable() and any(unicodedata.category(letter) == "Cc" for letter in text):
        return "it must be one line without control characters"
    if escape_invisible(text) != text:
        return f"it contains characters that cannot be seen: {escape_invisible(text)!r}"
    return unwritable_problem(text)


def description_problem(text: str) -> str | None:
    if len(text) > MOST_IN_DESCRIPTION:
        return f"it has {len(text)} characters, and {MOST_IN_DESCRIPTION} are the most"
    return unwritable_problem(text)


def unwritable_problem(text: str) -> str | None:
    """JSON can spell half a character, UTF-8 cannot write it."""
    return "it has half of a character in it (a lone surrogate)" if _SURROGATE.search(text) else None


def _length_problem(text: str) -> str | None:
    if 1 <= len(text) <= MOST_CODE_POINTS:
        return None
    return f"it must have 1 to {MOST_CODE_POINTS} characters, and has {len(text)}"


def _letter_problem(text: str, allowed: str) -> str | None:
    for letter in text:
        if find_in_name(letter):
            return f"{letter!a} cannot be seen; {allowed} can stand in it"
        category = unicodedata.category(letter)
        if letter != "-" and category != "Nd" and not category.startswith("L"):
            return f"{letter!a} cannot stand in it; {allowed} can"
    return None


def _shown(text: object) -> str:
    return ascii(text) if len(str(text)) <= MOST_CODE_POINTS else f"{str(text)[:MOST_CODE_POINTS]!a}…"
