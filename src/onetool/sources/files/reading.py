"""Read files up to a size limit, and their status."""

import os
import stat
from dataclasses import dataclass

from onetool.errors import ToolError
from onetool.sources.files.beneath import NON_BLOCKING
from onetool.sources.files.files import AnchoredPath, Files, closing

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileContent:
    """The content of a file, and the status of the file that was read."""

    data: bytes
    path: str
    status: os.stat_result


def read(files: Files, path: str, limit: int) -> FileContent:
    """Read a regular file of at most `limit` bytes."""

    def operate(anchored: AnchoredPath) -> FileContent:
        with closing(open_regular(files, path, anchored)) as descriptor:
            status = os.fstat(descriptor)
            return FileContent(
                _bytes(descriptor, status.st_size, limit, path), anchored.real, status
            )

    return files.run_at(path, operate)


def stat_path(files: Files, path: str) -> tuple[str, os.stat_result]:
    """Return the resolved path and the status of the file or directory."""
    return files.run_at(path, lambda anchored: (anchored.real, anchored.stat_no_link()))


def open_regular(files: Files, path: str, anchored: AnchoredPath) -> int:
    """Open a regular file for reading.

    Pipes and devices are not opened, because opening alone has side effects.
    """
    _require_regular(anchored.stat_no_link(), path)
    descriptor = anchored.open(os.O_RDONLY | NON_BLOCKING)
    try:
        _require_regular(os.fstat(descriptor), path)
        files.check_opened(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(
            f"{path} is a directory", path=path, hint=f"fs.list({path!r}) lists its entries"
        )
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(
            f"cannot open {path}: it is a pipe, socket or device, not a regular file", path=path
        )


def get_file_type(status: os.stat_result) -> str:
    return (
        "dir"
        if stat.S_ISDIR(status.st_mode)
        else "file"
        if stat.S_ISREG(status.st_mode)
        else "other"
    )


def _bytes(descriptor: int, size: int, limit: int, path: str) -> bytes:
    """Read everything.

    The limit applies to what is read: a file may grow, and files in /proc report a size of 0.
    """
    data = bytearray()
    while size <= limit:
        try:
            chunk = os.read(descriptor, min(_CHUNK_BYTES, limit + 1 - len(data)))
        except BlockingIOError:
            raise ToolError(f"cannot read {path}: reading would block", path=path) from None
        if not chunk:
            return bytes(data)
        data += chunk
        size = max(size, len(data))
    raise ToolError(
        f"File too large: {size} bytes (max_size is {limit})",
        path=path,
        size=size,
        max_size=limit,
        hint="search it with grep, or pass a larger max_size",
    )
