"""Processes that execute runs.

Each holds a lock on a file of its own, which the kernel releases when it ends.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from onetool.util.atomic import replacing, try_lock


class Owners:
    """The processes of a directory.

    `own_id` identifies this one, which is alive from `hold` until `close`.
    """

    may_be_lost: ClassVar[bool] = False  # whether a process may be taken for dead while it runs

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.own_id = os.urandom(16).hex()
        self._descriptor: int | None = None

    def hold(self) -> None:
        """Lock the file of this process.

        It is locked before it gets its name, so that it never looks stale.
        """
        file = self._file(self.own_id)
        if self._descriptor is not None and file.exists():
            return
        self._release()
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if sys.platform == "win32":  # an open file cannot be renamed
            self._lock(file)
            return
        with replacing(file) as temporary:
            self._lock(temporary)

    def is_alive(self, owner: str) -> bool:
        """Return whether the process holds its lock.

        The file of a process that has ended is deleted.
        """
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
        finally:
            os.close(descriptor)
        _delete(file)
        return False

    def delete_stale(self) -> None:
        for file in self._directory.glob("*.lock"):
            self.is_alive(file.stem)

    def close(self) -> None:
        if self._descriptor is not None:
            self._release()
            _delete(self._file(self.own_id))

    def _lock(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try_lock(self._descriptor)

    def _file(self, owner: str) -> Path:
        return self._directory / f"{owner}.lock"

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _delete(file: Path) -> None:
    """Delete the file of a process that has ended.

    It must be closed, because Windows deletes no open file.
    """
    with suppress(OSError):  # already deleted, or a disk that cannot be written
        file.unlink()
