"""Names of bundle directories and tool files, safe on file systems that fold case or normalize
Unicode.

Names are readable where possible. Lower-case ASCII names are used unchanged; any other slug or
version is followed by a digest of its exact spelling, which alone identifies the file.
"""

import re
import unicodedata
from hashlib import blake2b

from onetool.sources.bundles import rules

BUNDLE_FILE = "bundle.json"
SUFFIX = ".json"
MAX_READABLE_BYTES = (
    90  # of the readable part; some encrypted file systems accept at most 143 bytes in all
)
_PLAIN = re.compile(r"[a-z0-9-]+")
_PLAIN_PAIR = re.compile(r"[a-z0-9-]+@[a-z0-9.-]+")
_UUID_LENGTH = 36


def tool_file_names(slug: str, version: str) -> tuple[str, ...]:
    """Return the names that the file of this tool may have, the readable one first."""
    pair = f"{slug}@{version}"
    if _PLAIN_PAIR.fullmatch(pair):
        return (f"{pair}{SUFFIX}",)
    return f"{_truncate(pair)}{_digest_suffix(pair)}", f"tool{_digest_suffix(pair)}"


def is_tool_file(name: str, slug: str, version: str) -> bool:
    """Return whether a file name belongs to this tool. The part before a digest is ignored."""
    pair = f"{slug}@{version}"
    return (
        name == f"{pair}{SUFFIX}"
        if _PLAIN_PAIR.fullmatch(pair)
        else name.endswith(_digest_suffix(pair))
    )


def directory_names(slug: str, bundle_id: str) -> tuple[str, ...]:
    """Return the names that a new directory may have, the readable one first.

    The name stays if the slug changes.
    """
    if _PLAIN.fullmatch(slug):
        return (f"{slug}-{bundle_id}",)
    return f"{_truncate(slug)}-{bundle_id}", f"bundle-{bundle_id}"


def parse_id(directory: str) -> str | None:
    """Return the bundle ID at the end of a directory name; None if there is none."""
    bundle_id = directory[-_UUID_LENGTH:]
    dash = directory[-_UUID_LENGTH - 1 : -_UUID_LENGTH]
    return bundle_id if dash == "-" and rules.is_id(bundle_id) else None


def _digest_suffix(pair: str) -> str:
    return f"~{blake2b(pair.encode(), digest_size=16).hexdigest()}{SUFFIX}"


def _truncate(text: str) -> str:
    """Cut the text to the maximum length, at a character boundary."""
    return unicodedata.normalize("NFC", text).encode()[:MAX_READABLE_BYTES].decode(errors="ignore")
