"""The environment variables of a client that its application keeps; the others are forgotten."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping

from onetool.config.model import Settings
from onetool.extensions.environments import PASSED_VARIABLES

PREFIXES = ("ONETOOL_", "OT_", "UV_")
NOT_KEPT = frozenset({"ONETOOL_TOKEN", "ONETOOL_STANDALONE"})  # for the command line only
_DIGEST_KEY = os.urandom(16)  # so that a digest says nothing about a secret


class ClientEnvironment(Mapping[str, str]):
    """Client environment variables: worker defaults, `ONETOOL_*`, and names used in settings.

    It records which other names are read until `close`, and forgets the rest then. Iterating never shows other names.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        self._names = {name for name in variables if is_always_kept(name)}
        self._is_open = True

    def __getitem__(self, name: str) -> str:
        if self._is_open:
            self._names.add(name)
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self._names if name in self._variables])

    def __len__(self) -> int:
        return sum(name in self._variables for name in self._names)

    def close(self, settings: Settings) -> None:
        """Forget all variables that nothing has read and no token needs."""
        self._names.update(token.token_env for token in settings.auth.tokens if token.token_env)
        self._is_open = False
        self._variables = {name: value for name, value in self._variables.items() if name in self._names}

    def matches(self, variables: Mapping[str, str]) -> bool:
        """Return whether a client with these variables can use the same application."""
        kept = {name for name in variables if is_always_kept(name)} | self._names
        return {name: variables[name] for name in kept if name in variables} == self._variables

    @property
    def digest(self) -> str:
        """A short text that is equal for equal environments of one daemon."""
        data = json.dumps(sorted(self._variables.items())).encode()
        return hashlib.blake2b(data, key=_DIGEST_KEY, digest_size=6).hexdigest()


def is_always_kept(name: str) -> bool:
    return name not in NOT_KEPT and (name in PASSED_VARIABLES or name.startswith(PREFIXES))
