"""Pages: how many items, where one goes on, and the token in between, which nobody but us can make.

A token holds the place after which the next page begins, and a digest of the filters, so that it continues only the
list that it came from. It is signed with a key that lies in the store, so that it is good after a restart, and for
every process.
"""

import base64
import hashlib
import hmac
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from onetool.bundles import rules
from onetool.bundles.model import Page
from onetool.util import atomic
from onetool.util.locks import locked

T = TypeVar("T")
MOST_ITEMS: Final = 256
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 16
LONGEST_TOKEN: Final = 1_000

Place = Sequence[Any]


def page_size(size: object) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise rules.invalid(f"{size!r} is no size of a page; give a number from 1 to {MOST_ITEMS}")
    return min(size, MOST_ITEMS)


def page_of(found: Sequence[tuple[Place, T]], size: int, token_for: Callable[[Place], str]) -> Page[T]:
    """`found` has one more than the page where there are more."""
    shown = found[:size]
    return Page([item for _, item in shown], token_for(shown[-1][0]) if len(found) > size else None)


class Tokens:
    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file
        self._unkept_key = b""  # of a disk that cannot be written: its tokens are good in this process only

    def make(self, filters: object, place: Place) -> str:
        content = json.dumps([_digest(filters), list(place)], separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._signature(content) + content).decode().rstrip("=")

    def read(self, token: str | None, filters: object) -> list[Any] | None:
        """The place that a token holds; None for the first page."""
        if token is None:
            return None
        content = self._checked(token)
        digest, place = json.loads(content)
        if digest != _digest(filters):
            raise rules.invalid("the page token belongs to a list with other filters; send the same ones along with it")
        return list(place)

    def _checked(self, token: object) -> bytes:
        wrong = rules.invalid("this is no page token; send nextPageToken as it was given, or none for the first page")
        if not isinstance(token, str) or not 0 < len(token) <= LONGEST_TOKEN or not token.isascii():
            raise wrong
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise wrong from None
        signature, content = data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(content)):
            raise wrong
        return content

    def _signature(self, content: bytes) -> bytes:
        return hmac.digest(self._key(), content, hashlib.sha256)[:SIGNATURE_BYTES]

    def _key(self) -> bytes:
        """Read each time: another process may have made it, and a folder may be replaced by another."""
        key = self._kept_key()
        if key is not None:
            return key
        try:
            self._key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked(self._key_file.with_name(f"{self._key_file.name}.lock")):
                if (key := self._kept_key()) is None:
                    key = os.urandom(KEY_BYTES)
                    atomic.write(self._key_file, key.hex(), durable=True)
                return key
        except OSError:
            self._unkept_key = self._unkept_key or os.urandom(KEY_BYTES)
            return self._unkept_key

    def _kept_key(self) -> bytes | None:
        try:
            key = bytes.fromhex(self._key_file.read_text("ascii"))
        except (OSError, ValueError):
            return None
        return key if len(key) == KEY_BYTES else None


def _digest(filters: object) -> str:
    return hashlib.blake2b(json.dumps(filters).encode(), digest_size=8).hexdigest()
