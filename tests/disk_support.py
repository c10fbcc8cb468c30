"""A small file system that can be full or read-only, also for root."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cells_support import IS_ROOT, skip_or_fail

BLOCK_BYTES = 4096


@dataclass(frozen=True)
class Disk:
    """A small file system that holds the `.onetool` of a home."""

    home: Path

    @property
    def place(self) -> Path:
        return self.home / ".onetool"

    @property
    def bundles(self) -> Path:
        return self.place / "bundles"

    def fill(self) -> None:
        number = 0
        for size in (BLOCK_BYTES * 16, BLOCK_BYTES, 1, 0):
            while self._take(f"filler-{number}", size):
                number += 1

    def _take(self, name: str, size: int) -> bool:
        try:
            (self.place / name).write_bytes(bytes(size))
        except OSError:
            return False
        return True

    def free(self) -> None:
        for file in self.place.glob("filler-*"):
            file.unlink()

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.place)], check=True)

    def make_writable(self) -> None:
        subprocess.run(["mount", "-o", "remount,rw", str(self.place)], check=True)


@contextmanager
def mount_disk(home: Path) -> Iterator[Disk]:
    if not IS_ROOT:
        pytest.skip("only root can mount a file system")
    place = home / ".onetool"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.mount(b"none", str(place).encode(), b"tmpfs", 0, b"size=4m,nr_inodes=600,mode=755")
        != 0
    ):
        skip_or_fail(f"cannot mount a small file system: {os.strerror(ctypes.get_errno())}")
    try:
        yield Disk(home)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
