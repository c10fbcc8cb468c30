"""Tokens: what a client shows to be let in, and which agent it is then. Kept as hashes, compared in constant time.

A token is 32 random bytes, so that a plain hash of it can be neither guessed nor reversed. `LiveTokens` rejects those
that were revoked since the settings were loaded.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from onetool.config.load import Examined
from onetool.config.model import Settings, Token
from onetool.faces.http.errors import ApiError

PREFIX = "ot_"


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Keys:
    """The tokens of the configuration. One whose variable is not set lets nobody in."""

    def __init__(self, tokens: Iterable[Token], env: Mapping[str, str]) -> None:
        self._agents = [
            (token.hash or (hash_of(value) if (value := env.get(token.token_env or "")) else None), token.agent)
            for token in tokens
        ]

    def __bool__(self) -> bool:
        return any(known for known, _ in self._agents)

    def agent_of_hash(self, shown: str) -> str | None:
        """Every hash is compared, whether one has fitted or not."""
        found = None
        for known, agent in self._agents:
            if known and hmac.compare_digest(known.lower().encode(), shown.encode()):
                found = agent
        return found


class LiveTokens:
    """The tokens in force that the settings files still have.

    Files that changed can only take tokens away: a new token needs a reload. If a file cannot be read, no token is
    accepted until it can.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        env: Mapping[str, str],
        files: Callable[[], tuple[Path, ...]] = tuple,
    ) -> None:
        self._settings, self._env, self._files = settings, env, files
        self._narrowed: Settings | None = None  # the settings in force that `_left` and `_unreadable` are about
        self._left: frozenset[Token] = frozenset()
        self._unreadable = ""

    def narrow(self, examined: Examined) -> None:
        """Take the settings files as they are now."""
        unreadable = [path for path in self._files() if path not in examined.loaded.files]
        now = examined.loaded.settings
        self._narrowed, self._unreadable = self._settings(), unreadable[0].name if unreadable else ""
        self._left = frozenset(token for token in now.auth.tokens if token.agent in now.agents)

    def keys(self) -> Keys:
        """Return the tokens that are accepted now. Raise a refusal if that cannot be told."""
        settings = self._settings()
        tokens = settings.auth.tokens
        if settings is not self._narrowed:  # they were loaded after the files were looked at
            return Keys(tokens, self._env)
        if self._unreadable:
            message = f"tokens cannot be checked: {self._unreadable} cannot be read"
            raise ApiError("busy", message, {"reason": "tokens_unreadable"})
        return Keys((token for token in tokens if token in self._left), self._env)
