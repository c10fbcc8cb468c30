"""What folders of bundles and files of tools are called, on file systems that fold case or normalise letters.

A name says what is in it wherever that is safe. Small ASCII letters mean the same everywhere; any other slug or
version is followed by a digest of its exact spelling, which nothing folds and which alone tells files apart.
"""

import re
import unicodedata
from hashlib import blake2b
from typing import Final

from onetool.bundles import rules

BUNDLE_FILE: Final = "bundle.json"
ENDING: Final = ".json"
MOST_BYTES: Final = 90  # of the part for people; some encrypted file systems take no more than 143 for all
_PLAIN = re.compile(r"[a-z0-9-]+")
_PLAIN_PAIR = re.compile(r"[a-z0-9-]+@[a-z0-9.-]+")
_UUID_LENGTH: Final = 36


def tool_files(slug: str, version: str) -> tuple[str, ...]:
    """The names that the file of this pair may have, the one for people first."""
    pair = f"{slug}@{version}"
    if _PLAIN_PAIR.fullmatch(pair):
        return (f"{pair}{ENDING}",)
    return f"{_cut(pair)}{_mark(pair)}", f"tool{_mark(pair)}"


def is_file_of(name: str, slug: str, version: str) -> bool:
    """Whether the file belongs to this pair. What stands before a digest may have been folded, so it does not count."""
    pair = f"{slug}@{version}"
    return name == f"{pair}{ENDING}" if _PLAIN_PAIR.fullmatch(pair) else name.endswith(_mark(pair))


def folders(slug: str, bundle_id: str) -> tuple[str, ...]:
    """The names that a new folder may have, the one for people first. It keeps its name when the slug changes."""
    if _PLAIN.fullmatch(slug):
        return (f"{slug}-{bundle_id}",)
    return f"{_cut(slug)}-{bundle_id}", f"bundle-{bundle_id}"


def id_in(folder: str) -> str | None:
    """The id of the bundle that a folder is for; what stands before it is for people."""
    found, dash = folder[-_UUID_LENGTH:], folder[-_UUID_LENGTH - 1 : -_UUID_LENGTH]
    return found if dash == "-" and rules.is_id(found) else None


def _mark(pair: str) -> str:
    return f"~{blake2b(pair.encode(), digest_size=16).hexdigest()}{ENDING}"


def _cut(text: str) -> str:
    """As much of the text as fits, in whole characters."""
    return unicodedata.normalize("NFC", text).encode()[:MOST_BYTES].decode(errors="ignore")
