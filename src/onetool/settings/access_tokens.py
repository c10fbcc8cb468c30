"""Access tokens with their agents and scopes, stored as hashes and compared in constant time.

A token is 32 random bytes, so that a plain hash of it can be neither guessed nor reversed.
"""

import hmac
import secrets
import time
from collections.abc import Iterable, Mapping

from onetool.settings.model import Token
from onetool.util.clock_watch import Clock
from onetool.util.token_ids import TOKEN_ID_CHARS, hash_token

PREFIX = "ot_"


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def identify_token(token: Token) -> str:
    """Return an identifier of a token in the settings, the same in every process."""
    return hash_token(f"{(token.hash or '').lower()} {token.token_env or ''}")[:TOKEN_ID_CHARS]


class TokenSet:
    """The tokens in the settings.

    Expired tokens, and those whose environment variable is not set, match nothing.
    """

    def __init__(
        self, tokens: Iterable[Token], env: Mapping[str, str], clock: Clock = time.time
    ) -> None:
        self._clock = clock
        self._tokens = [
            (
                token.hash
                or (hash_token(value) if (value := env.get(token.token_env or "")) else None),
                token,
            )
            for token in tokens
        ]

    def __bool__(self) -> bool:
        return any(known for known, _ in self._tokens)

    def find(self, token_hash: str) -> Token | None:
        """Return the token with this hash, unless it has expired."""
        token = self.match(token_hash)
        return None if token is None or token.expires_at <= self._clock() else token

    def is_expired(self, token_hash: str) -> bool:
        """Return whether there is a token with this hash that has expired."""
        token = self.match(token_hash)
        return token is not None and token.expires_at <= self._clock()

    def match(self, token_hash: str) -> Token | None:
        """Return the token with this hash, expired or not. Compares all hashes, in constant time."""
        found = None
        for known, token in self._tokens:
            if known and hmac.compare_digest(known.lower().encode(), token_hash.encode()):
                found = token
        return found
