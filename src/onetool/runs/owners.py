"""Processes that execute runs. Each holds a lock on a file of its own, which the kernel releases when it ends."""

import os
from contextlib import suppress
from pathlib import Path

from onetool.util.atomic import replacing
from onetool.util.locks import try_lock


class Owners:
    """The processes of a directory. `own_id` identifies this one, which is alive from `hold` until `close`."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.own_id = directory, os.urandom(16).hex()
        self._descriptor: int | None = None

    def hold(self) -> None:
        """Lock the file of this process. It is locked before it gets its name, so that it never looks stale."""
        file = self._file(self.own_id)
        if self._descriptor is not None and file.exists():
            return
        self._release()
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(file) as temporary:
            self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try_lock(self._descriptor)

    def is_alive(self, owner: str) -> bool:
        """Return whether the process holds its lock. The file of a process that has ended is deleted."""
        if owner == self.own_id:
            return self._descriptor is not None
        file = self._file(owner)
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            if not try_lock(descriptor, shared=True):
                return True
            with suppress(OSError):  # a disk that cannot be written
                file.unlink()
        finally:
            os.close(descriptor)
        return False

    def delete_stale(self) -> None:
        for file in self._directory.glob("*.lock"):
            self.is_alive(file.stem)

    def close(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                self._file(self.own_id).unlink(missing_ok=True)
            self._release()

    def _file(self, owner: str) -> Path:
        return self._directory / f"{owner}.lock"

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
