"""The last use of each token, as the modification time of a file: processes share it without locks."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from onetool.util.running_servers import DIRECTORY

ID_PATTERN: Final = re.compile(r"[0-9a-f]{32}")


class LastUseFiles:
    """The last uses of the tokens of a user, by `identify_token`."""

    def __init__(self, user_directory: Path) -> None:
        self._directory = user_directory / DIRECTORY / "tokens"

    def touch(self, identifier: str) -> None:
        path = self._locate(identifier)
        with suppress(OSError):  # a full or read-only disk must not stop a server
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            os.utime(path)

    def read(self, identifier: str) -> float | None:
        try:
            return self._locate(identifier).stat().st_mtime
        except OSError:
            return None

    def forget(self, identifier: str) -> None:
        with suppress(OSError):
            self._locate(identifier).unlink()

    def _locate(self, identifier: str) -> Path:
        if not ID_PATTERN.fullmatch(identifier):
            raise ValueError("invalid identifier of a token")
        return self._directory / identifier
