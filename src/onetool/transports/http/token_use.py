"""The last use of each token, as the modification time of a file: processes share it without locks.

Replicas record it in their store instead.

A process records the use of a token at most once a minute, in a thread.
"""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from onetool.state.storage import LastUseStorage
from onetool.util.running_servers import DIRECTORY

PRECISION_SECONDS: Final = 60.0
MAX_KNOWN: Final = 10_000
ID_PATTERN: Final = re.compile(r"[0-9a-f]{32}")


class TokenUse:
    """The last uses of the tokens of a home directory, by `identify_token`."""

    def __init__(
        self,
        user: Callable[[], Path],
        clock: Callable[[], float] = time.monotonic,
        shared: Callable[[], LastUseStorage | None] = lambda: None,
    ) -> None:
        self._user, self._clock, self._shared = user, clock, shared
        self._recorded: dict[str, float] = {}

    def record(self, identifier: str) -> None:
        """Record that a token is used now. Returns at once."""
        now, recorded = self._clock(), self._recorded.get(identifier)
        if recorded is not None and now - recorded < PRECISION_SECONDS:
            return
        if len(self._recorded) >= MAX_KNOWN:
            self._recorded.clear()
        self._recorded[identifier] = now
        shared = self._shared()
        asyncio.get_running_loop().run_in_executor(None, shared.touch if shared else self._touch, identifier)

    def read(self, identifier: str) -> float | None:
        """Return when the token was last used, in seconds since 1970. Blocks on disk access."""
        if (shared := self._shared()) is not None:
            return shared.read(identifier)
        try:
            return self._path(identifier).stat().st_mtime
        except OSError:
            return None

    def forget(self, identifier: str) -> None:
        with contextlib.suppress(OSError):
            self._path(identifier).unlink()

    def _touch(self, identifier: str) -> None:
        path = self._path(identifier)
        with contextlib.suppress(OSError):  # a full or read-only disk must not stop a server
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            os.utime(path)

    def _path(self, identifier: str) -> Path:
        if not ID_PATTERN.fullmatch(identifier):
            raise ValueError("invalid identifier of a token")
        return self._user() / DIRECTORY / "tokens" / identifier
