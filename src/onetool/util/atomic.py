"""Atomic file writes. Callers that need a lock take it themselves."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(file: Path, *, keep: bool = False) -> Iterator[Path]:
    """Yield the path of a temporary file beside this one, which takes its place if the block ends
    without an error.

    Concurrent writers do not mix; the last one wins. With `keep` the first one wins, and the others
    get FileExistsError.
    """
    temporary = file.with_name(f"{file.name}.{os.urandom(4).hex()}.tmp")
    try:
        yield temporary
        if keep and _link(temporary, file):
            return
        temporary.replace(file)
    finally:
        with suppress(OSError):
            temporary.unlink()


def write(file: Path, content: str, *, durable: bool = False) -> None:
    """Write a small file for its owner only; `durable` survives a power failure."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        replacing(file) as temporary,
        open(temporary, "x", encoding="utf-8", opener=owner_only) as new,
    ):
        new.write(content)
        if durable:
            new.flush()
            os.fsync(new.fileno())


def owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _link(temporary: Path, file: Path) -> bool:
    """Create a hard link; return False if the file system does not support it."""
    try:
        os.link(temporary, file)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True
