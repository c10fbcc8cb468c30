"""Validation of slugs, versions, tags, display names and IDs, and their file names.

Values are neither normalized nor trimmed: an accepted value is stored as sent. Only IDs are
converted to lower case.

File names are safe on file systems that fold case or normalize Unicode, and readable if possible.
Lower-case ASCII names are used unchanged; any other slug or version is followed by a digest of its
exact spelling, which alone identifies the file.
"""

import re
import unicodedata
from functools import cache
from hashlib import blake2b
from pathlib import Path

from onetool.errors import BundleError
from onetool.util.invisible import escape_invisible, find_in_name
from onetool.util.problem import Location

MAX_NAME_LENGTH = 64
MAX_DISPLAY_NAME_LENGTH = 256
MAX_DESCRIPTION_LENGTH = 20_000
MAX_TAGS = 64
EXAMPLE_ID = "0192f0c1-7a10-7c3e-9d2b-3f5a6b7c8d9e"
TOOLS = Path(__file__).parents[1] / "builtin"
_UUID_7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_PLAIN = re.compile(r"[A-Za-z0-9-]{1,64}")
_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
BUNDLE_FILE = "bundle.json"
SUFFIX = ".json"
# Of the readable part; some encrypted file systems accept at most 143 bytes in all.
MAX_READABLE_BYTES = 90
_PLAIN_SLUG = re.compile(r"[a-z0-9-]+")
_PLAIN_PAIR = re.compile(r"[a-z0-9-]+@[a-z0-9.-]+")
_UUID_LENGTH = 36


def invalid(message: str, **details: object) -> BundleError:
    return BundleError(message, code="invalid", details=details)


def unavailable(reason: str, location: Location | None = None) -> BundleError:
    message = f"the bundle store is unavailable: {reason}"
    return BundleError(message, code="busy", location=location, details={})


def is_id(text: str) -> bool:
    return _UUID_7.fullmatch(text) is not None


def check_id(text: object, what: str = "bundle") -> str:
    bundle_id = text.lower() if isinstance(text, str) else ""
    if not is_id(bundle_id):
        quoted = _quote(text)
        raise invalid(
            f"invalid {what} ID {quoted}: expected a UUID of version 7, like {EXAMPLE_ID}",
            value=quoted,
        )
    return bundle_id


def check_slug(text: object) -> str:
    return _check("slug", text, slug_problem(text))


def check_version_label(text: object) -> str:
    return _check("version", text, version_problem(text))


def _check(kind: str, text: object, problem: str | None) -> str:
    if problem:
        raise invalid(f"invalid {kind} {_quote(text)}: {problem}", value=_quote(text))
    return str(text)


def slug_problem(text: object) -> str | None:
    if not isinstance(text, str):
        return "it must be a string"
    if _PLAIN.fullmatch(text):
        return None
    return _length_problem(text) or _character_problem(text, "letters, digits and dashes")


@cache
def list_reserved_names() -> frozenset[str]:
    """Return the names of the built-in packs, which bundles must not have."""
    return frozenset(file.stem.removesuffix("_tools") for file in TOOLS.glob("*_tools.py"))


def bundle_slug_problem(text: object) -> str | None:
    if isinstance(text, str) and text.casefold() in list_reserved_names():
        return f"{text} is the name of a built-in pack; choose another, such as {text}-api"
    return slug_problem(text)


def version_problem(text: object) -> str | None:
    if not isinstance(text, str):
        return "it must be a string"
    if text in {".", ".."}:
        return (
            "'.' and '..' are not allowed, because they are directory names; write 1.0, for example"
        )
    return _length_problem(text) or _character_problem(
        text.replace(".", "-"), "letters, digits, dashes and dots"
    )


def tags_problem(tags: list[str]) -> str | None:
    invalid_tags = [tag for tag in tags if not _TAG.fullmatch(tag)]
    if invalid_tags:
        return (
            f"invalid tag {_quote(invalid_tags[0])}: expected a letter or _, then up to 63 letters,"
            " digits, _ or -"
        )
    if len(tags) > MAX_TAGS:
        return f"too many tags: {len(tags)} (at most {MAX_TAGS})"
    return "duplicate tag" if len(set(tags)) < len(tags) else None


def display_name_problem(text: str) -> str | None:
    if not text.strip():
        return "it must not be blank"
    if len(text) > MAX_DISPLAY_NAME_LENGTH:
        return f"it has {len(text)} characters (at most {MAX_DISPLAY_NAME_LENGTH})"
    if "Cc" in map(unicodedata.category, text):
        return "it must be one line without control characters"
    if escape_invisible(text) != text:
        return f"it contains invisible characters: {escape_invisible(text)!r}"
    return unwritable_problem(text)


def description_problem(text: str) -> str | None:
    if len(text) > MAX_DESCRIPTION_LENGTH:
        return f"it has {len(text)} characters (at most {MAX_DESCRIPTION_LENGTH})"
    return unwritable_problem(text)


def unwritable_problem(text: str) -> str | None:
    """Return the problem of lone surrogates, which JSON can escape but UTF-8 cannot encode."""
    return "it contains a lone surrogate (half of a character)" if _SURROGATE.search(text) else None


def _length_problem(text: str) -> str | None:
    if 1 <= len(text) <= MAX_NAME_LENGTH:
        return None
    return f"it must have 1 to {MAX_NAME_LENGTH} characters, but has {len(text)}"


def _character_problem(text: str, allowed: str) -> str | None:
    for character in text:
        if find_in_name(character):
            return f"{character!r} is invisible; only {allowed} are allowed"
        category = unicodedata.category(character)
        if character != "-" and category != "Nd" and not category.startswith("L"):
            return f"{character!r} is not allowed; only {allowed} are"
    return None


def _quote(text: object) -> str:
    return repr(text) if len(str(text)) <= MAX_NAME_LENGTH else f"{str(text)[:MAX_NAME_LENGTH]!r}…"


# --- file names -----------------------------------------------------------------------------------


def tool_file_names(slug: str, version: str) -> tuple[str, ...]:
    """Return the names that the file of this tool may have, the readable one first."""
    pair = f"{slug}@{version}"
    if _PLAIN_PAIR.fullmatch(pair):
        return (f"{pair}{SUFFIX}",)
    return f"{_truncate(pair)}{_digest_suffix(pair)}", f"tool{_digest_suffix(pair)}"


def is_tool_file(name: str, slug: str, version: str) -> bool:
    """Return whether a file name belongs to this tool. The part before a digest is ignored."""
    pair = f"{slug}@{version}"
    if _PLAIN_PAIR.fullmatch(pair):
        return name == f"{pair}{SUFFIX}"
    return name.endswith(_digest_suffix(pair))


def directory_names(slug: str, bundle_id: str) -> tuple[str, ...]:
    """Return the names that a new directory may have, the readable one first.

    The name stays if the slug changes.
    """
    if _PLAIN_SLUG.fullmatch(slug):
        return (f"{slug}-{bundle_id}",)
    return f"{_truncate(slug)}-{bundle_id}", f"bundle-{bundle_id}"


def parse_id(directory: str) -> str | None:
    """Return the bundle ID at the end of a directory name; None if there is none."""
    bundle_id = directory[-_UUID_LENGTH:]
    dash = directory[-_UUID_LENGTH - 1 : -_UUID_LENGTH]
    return bundle_id if dash == "-" and is_id(bundle_id) else None


def _digest_suffix(pair: str) -> str:
    return f"~{blake2b(pair.encode(), digest_size=16).hexdigest()}{SUFFIX}"


def _truncate(text: str) -> str:
    """Cut the text to the maximum length, at a character boundary."""
    return unicodedata.normalize("NFC", text).encode()[:MAX_READABLE_BYTES].decode(errors="ignore")
