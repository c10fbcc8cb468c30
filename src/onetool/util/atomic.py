"""Files that are seen whole or not at all. Locks are the business of who needs them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(file: Path, *, keep: bool = False) -> Iterator[Path]:
    """Yield the path of a temporary file beside this one, which takes its place if the block ends without an error.

    Others who write at the same time do not mix with this; the last one wins. With `keep` the first one wins, and
    FileExistsError is raised for all others.
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
    """Write a small file for its owner only; `durable` survives a loss of power."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(file) as temporary, open(temporary, "x", encoding="utf-8", opener=owner_only) as new:
        new.write(content)
        if durable:
            new.flush()
            os.fsync(new.fileno())


def owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _link(temporary: Path, file: Path) -> bool:
    """Return False on a file system without links."""
    try:
        os.link(temporary, file)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True
