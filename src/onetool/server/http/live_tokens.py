"""The tokens that are accepted now: `LiveTokens` rejects those that were revoked since the settings
were loaded.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from onetool.errors import StorageError
from onetool.server.http.errors import ApiError
from onetool.settings.access import Token, TokenSet
from onetool.settings.load import Examined, Loaded
from onetool.settings.settings_reader import config_files

if TYPE_CHECKING:
    from onetool.settings.model import Settings
    from onetool.state.token_file import TokenFile

STORE_AWAY = "store_unavailable"  # the reason in an error: nobody knows which tokens are revoked


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
