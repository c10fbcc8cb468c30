"""Pagination with signed page tokens.

A token holds the position after which the next page begins, and a digest of the filters, so that it
continues only the list that it came from. It is signed with a key that is kept in the store, so
that it is valid after a restart and in every process.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from onetool.sources.bundles import rules
from onetool.sources.bundles.model import Page

T = TypeVar("T")
MAX_PAGE_SIZE = 256
KEY_BYTES = 32
SIGNATURE_BYTES = 16
MAX_TOKEN_LENGTH = 8_000  # the position may be the name of a tool

Position = Sequence[Any]


def check_page_size(size: object) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise rules.invalid(f"invalid page size {size!r} (expected 1-{MAX_PAGE_SIZE})")
    return min(size, MAX_PAGE_SIZE)


class PageTokens:
    """Page tokens, signed with the key that `load_key` returns."""

    def __init__(self, load_key: Callable[[], bytes]) -> None:
        self._load_key = load_key

    def make(self, filters: object, position: Position) -> str:
        content = json.dumps([_digest(filters), list(position)], separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._signature(content) + content).decode().rstrip("=")

    def make_page(self, filters: object, size: int, items: Sequence[tuple[Position, T]]) -> Page[T]:
        """Return the first page of these items; if there are more than fit, with the token of the
        next page.
        """
        page = items[:size]
        token = self.make(filters, page[-1][0]) if len(items) > size else None
        return Page([item for _, item in page], token)

    def read(self, token: str | None, filters: object) -> list[Any] | None:
        """Return the position that a token holds; None for the first page."""
        if token is None:
            return None
        content = self._verify(token)
        digest, position = json.loads(content)
        if digest != _digest(filters):
            raise rules.invalid(
                "invalid page token: it was issued for other filters; send the same filters with it"
            )
        return list(position)

    def _verify(self, token: object) -> bytes:
        error = rules.invalid(
            "invalid page token: send nextPageToken unchanged, or none for the first page"
        )
        if (
            not isinstance(token, str)
            or not 0 < len(token) <= MAX_TOKEN_LENGTH
            or not token.isascii()
        ):
            raise error
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise error from None
        signature = data[:SIGNATURE_BYTES]
        content = data[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(content)):
            raise error
        return content

    def _signature(self, content: bytes) -> bytes:
        return hmac.digest(self._load_key(), content, hashlib.sha256)[:SIGNATURE_BYTES]


def _digest(filters: object) -> str:
    return hashlib.blake2b(json.dumps(filters).encode(), digest_size=8).hexdigest()
