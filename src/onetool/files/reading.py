"""Looking at files: their bytes, bounded while they are read, and what is known about them."""

import os
import stat
from dataclasses import dataclass

from onetool.errors import ToolError
from onetool.files.beneath import NEVER_WAIT
from onetool.files.files import Files, Place, closing

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """`facts` are those of the very file that was read."""

    data: bytes
    path: str
    facts: os.stat_result


def read(files: Files, path: str, most: int) -> Content:
    """The bytes of a regular file that has `most` bytes at most."""

    def operate(place: Place) -> Content:
        with closing(open_regular(files, path, place)) as descriptor:
            facts = os.fstat(descriptor)
            return Content(_bytes(descriptor, facts.st_size, most, path), place.real, facts)

    return files.at(path, operate)


def facts_of(files: Files, path: str) -> tuple[str, os.stat_result]:
    """The real path, and what is known about the file or folder there."""
    return files.at(path, lambda place: (place.real, place.followed()))


def open_regular(files: Files, path: str, place: Place) -> int:
    """A descriptor for reading. Opening alone can wake whoever waits at a pipe or a device, so they are not opened."""
    _require_regular(place.followed(), path)
    descriptor = place.open(os.O_RDONLY | NEVER_WAIT)
    try:
        _require_regular(os.fstat(descriptor), path)
        files.check_opened(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(facts: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(facts.st_mode):
        raise ToolError(f"{path} is a folder, not a file; fs.list({path!r}) shows what is in it.", path=path)
    if not stat.S_ISREG(facts.st_mode):
        raise ToolError(
            f"{path} is not a regular file but a pipe, socket or device, which are never opened.", path=path
        )


def kind_of(facts: os.stat_result) -> str:
    return "dir" if stat.S_ISDIR(facts.st_mode) else "file" if stat.S_ISREG(facts.st_mode) else "other"


def _bytes(descriptor: int, size: int, most: int, path: str) -> bytes:
    """All of it. The size counts as it is read, for a file may grow, and those of the kernel claim to be empty."""
    data = bytearray()
    while size <= most:
        try:
            piece = os.read(descriptor, min(_PIECE, most + 1 - len(data)))
        except BlockingIOError:
            raise ToolError(f"{path} has nothing to read now and would have to be waited for.", path=path) from None
        if not piece:
            return bytes(data)
        data += piece
        size = max(size, len(data))
    raise ToolError(
        f"File too large: {size} bytes, and max_size is {most}. Read it with grep, or pass a larger max_size.",
        path=path,
        size=size,
        max_size=most,
    )
