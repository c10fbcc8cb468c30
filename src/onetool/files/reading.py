"""Read files up to a size limit, and their status."""

import os
import stat
from dataclasses import dataclass

from onetool.errors import ToolError
from onetool.files.beneath import NEVER_WAIT
from onetool.files.files import Files, Place, closing

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file, and the status of the file that was read."""

    data: bytes
    path: str
    facts: os.stat_result


def read(files: Files, path: str, most: int) -> Content:
    """Read a regular file of at most `most` bytes."""

    def operate(place: Place) -> Content:
        with closing(open_regular(files, path, place)) as descriptor:
            facts = os.fstat(descriptor)
            return Content(_bytes(descriptor, facts.st_size, most, path), place.real, facts)

    return files.at(path, operate)


def facts_of(files: Files, path: str) -> tuple[str, os.stat_result]:
    """Return the resolved path and the status of the file or directory."""
    return files.at(path, lambda place: (place.real, place.followed()))


def open_regular(files: Files, path: str, place: Place) -> int:
    """Open a regular file for reading. Pipes and devices are not opened, because opening alone has side effects."""
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
        raise ToolError(f"{path} is a directory", path=path, hint=f"fs.list({path!r}) lists its entries")
    if not stat.S_ISREG(facts.st_mode):
        raise ToolError(f"cannot open {path}: it is a pipe, socket or device, not a regular file", path=path)


def kind_of(facts: os.stat_result) -> str:
    return "dir" if stat.S_ISDIR(facts.st_mode) else "file" if stat.S_ISREG(facts.st_mode) else "other"


def _bytes(descriptor: int, size: int, most: int, path: str) -> bytes:
    """Read everything. The limit applies to what is read: a file may grow, and files in /proc report a size of 0."""
    data = bytearray()
    while size <= most:
        try:
            piece = os.read(descriptor, min(_PIECE, most + 1 - len(data)))
        except BlockingIOError:
            raise ToolError(f"cannot read {path}: reading would block", path=path) from None
        if not piece:
            return bytes(data)
        data += piece
        size = max(size, len(data))
    raise ToolError(
        f"File too large: {size} bytes (max_size is {most})",
        path=path,
        size=size,
        max_size=most,
        hint="search it with grep, or pass a larger max_size",
    )
