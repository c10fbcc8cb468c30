"""Tokens: what a client shows to be let in, and which agent it is then. Kept as hashes, compared in constant time.

A token is 32 random bytes, so that a plain hash of it can be neither guessed nor reversed.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping

from ot.config.model import Token

PREFIX = "ot_"


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Keys:
    """The tokens of the configuration. One whose variable is not set lets nobody in."""

    def __init__(self, tokens: Iterable[Token], env: Mapping[str, str]) -> None:
        self._agents = [(token.hash or _from(env, token.token_env), token.agent) for token in tokens]

    def __bool__(self) -> bool:
        return any(known for known, _ in self._agents)

    def agent_of(self, token: str) -> str | None:
        """Every hash is compared, whether one has fitted or not."""
        shown, found = hash_of(token), None
        for known, agent in self._agents:
            if known and hmac.compare_digest(known.lower().encode(), shown.encode()):
                found = agent
        return found


def _from(env: Mapping[str, str], name: str | None) -> str | None:
    value = env.get(name or "")
    return hash_of(value) if value else None
