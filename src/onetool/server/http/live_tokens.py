"""The accepted tokens, credentials of requests, and the time at which each was last used.

`LiveTokens` rejects tokens that were revoked since the settings were loaded.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING

from onetool.errors import StorageError
from onetool.server.http.errors import ApiError
from onetool.settings.access import Issuer, Token, TokenSet
from onetool.settings.load import Examined, Loaded
from onetool.settings.model import Settings
from onetool.settings.settings_reader import config_files
from onetool.state.document_kinds import LastUses
from onetool.util.bounded_dict import BoundedDict

if TYPE_CHECKING:
    from onetool.settings.model import Settings
    from onetool.state.token_file import TokenFile

STORE_AWAY = "store_unavailable"  # the reason in an error: nobody knows which tokens are revoked
PRECISION_SECONDS = 60.0
MAX_RECORDED = 10_000
# Finds a token by its hash, whether it has expired or not.
FindToken = Callable[[str], Token | None]
BEARER_HINT = "send the header Authorization: Bearer ot_..."


class LiveTokens:
    """The loaded tokens that the settings files still contain.

    A changed file can only revoke tokens; a new token needs a reload. While a file is unreadable,
    no token is accepted.
    """

    def __init__(
        self,
        get_loaded: Callable[[], Loaded],
        env: Mapping[str, str],
        stored: "Callable[[], TokenFile]",
        is_invalid: Callable[[], bool] = lambda: False,
    ) -> None:
        self._get_loaded = get_loaded
        self._env = env
        self._stored = stored
        self._is_invalid = (
            is_invalid  # whether the settings are invalid, so that nobody knows all tokens
        )
        self._narrowed: Settings | None = (
            None  # the loaded settings that `_remaining` and `_unreadable` refer to
        )
        self._remaining: frozenset[Token] = frozenset()
        self._unreadable = ""

    def narrow(self, examined: Examined) -> None:
        """Revoke the tokens that the settings files no longer contain.

        Agents of a project that is no longer trusted count until the reload that drops it.
        """
        loaded = self._get_loaded()
        current = examined.loaded
        agents = {*current.settings.agents}
        if current.directories.project != loaded.directories.project:
            agents |= {*loaded.settings.agents}
        expected = {current.directories.config_path(layer) for layer in current.directories.layers}
        unreadable = expected.intersection(config_files(loaded)).difference(current.files)
        self._narrowed = loaded.settings
        self._unreadable = next((path.name for path in unreadable), "")
        self._remaining = frozenset(
            token for token in current.settings.auth.tokens if token.agent in agents
        )

    def keys(self) -> TokenSet:
        """Return the tokens that are accepted now.

        Raise an ApiError if a settings file cannot be read.
        """
        settings = self._get_loaded().settings
        tokens = settings.auth.tokens
        if not tokens and self._is_invalid():
            message = "cannot check tokens: the configuration is invalid"
            raise ApiError(
                "busy", message, {"reason": "tokens_unreadable"}, hint="see `onetool doctor`"
            )
        if settings is not self._narrowed:  # loaded after the last check of the files
            return self._make_set(tokens)
        if self._unreadable:
            message = f"cannot check tokens: cannot read {self._unreadable}"
            raise ApiError("busy", message, {"reason": "tokens_unreadable"})
        return self._make_set(token for token in tokens if token in self._remaining)

    def _make_set(self, tokens: Iterable[Token]) -> TokenSet:
        """Return the tokens of the settings with those of the store, which may revoke them."""
        try:
            return TokenSet(self._stored().apply(tokens), self._env)
        except StorageError as error:
            message = f"cannot check tokens: {error.message}"
            raise ApiError("busy", message, {"reason": STORE_AWAY}) from None


# --- credentials ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestCredential:
    """An accepted credential. `agent` is None for the owner."""

    actor: str  # for runs, logs and the audit log
    agent: str | None
    scope: str
    is_live: Callable[[FindToken], bool]  # whether it is still accepted, apart from its expiry
    token_id: str = ""
    expires: float = inf  # seconds since 1970
    origin: str = ""  # the entry of the settings that accepted it, if it is of an issuer


def identify_issuer(entry: Issuer) -> str:
    """Return an identifier of an entry in the settings, the same in every process.

    It changes with the entry.
    """
    return sha256(entry.model_dump_json().encode()).hexdigest()


def unauthorized_error(message: str, *, reason: str = "", hint: str = "") -> ApiError:
    return ApiError("unauthorized", message, {"reason": reason} if reason else {}, hint=hint)


# --- the use of tokens ----------------------------------------------------------------------------


class TokenUse:
    """The last uses of tokens, by `identify_token`."""

    def __init__(
        self, storage: Callable[[], LastUses], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._get_storage = storage
        self._clock = clock
        self._recorded: BoundedDict[str, float] = BoundedDict(MAX_RECORDED)

    def record(self, identifier: str) -> None:
        """Record that a token is used now. Returns at once."""
        now = self._clock()
        recorded = self._recorded.get(identifier)
        if recorded is not None and now - recorded < PRECISION_SECONDS:
            return
        self._recorded[identifier] = now
        asyncio.get_running_loop().run_in_executor(None, self._get_storage().touch, identifier)
