"""A small file, written whole or not at all, for its owner only. Locks are the business of who needs them."""

import os
from pathlib import Path


def write(file: Path, content: str, *, durable: bool = False) -> None:
    """Others who write at the same time do not mix with this; the last one wins. `durable` survives a loss of power."""
    temporary = file.with_name(f"{file.name}.{os.urandom(4).hex()}.tmp")
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with open(temporary, "x", encoding="utf-8", opener=owner_only) as new:
            new.write(content)
            if durable:
                new.flush()
                os.fsync(new.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
