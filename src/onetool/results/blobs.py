"""Images, audio and other binary results of tools, stored on disk for a while and identified by a handle.

Code passes the handle on; a run that returns it sends the content to its client.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from onetool.errors import StorageError, ToolError
from onetool.results.files import HANDLE, is_handle, new_handle
from onetool.util.clock_watch import ClockWatch, read_steady_clock
from onetool.util.versioning import check_version

T = TypeVar("T")
VERSION = 1
DEFAULT_MAX_BYTES = 1 << 30
MEDIA_FILE = re.compile(rf"media-{HANDLE.pattern}\.(?:bin|json)")


class Blob(NamedTuple):
    data: bytes
    mime_type: str


def missing_media(handle: object) -> ToolError:
    return ToolError(f"media {str(handle)[:50]!r} not found or expired; run the call again")


def select_surplus(kept: Iterable[tuple[float, int, T]], size: int, max_bytes: int) -> list[T]:
    """Return the oldest blobs, which make room for a new one. `kept` has the time and the size of each."""
    oldest_first = sorted(kept, key=lambda each: each[:2])
    surplus = size + sum(bytes_used for _, bytes_used, _ in oldest_first) - max_bytes
    selected: list[T] = []
    for _, bytes_used, blob in oldest_first:
        if surplus > 0:
            selected.append(blob)
            surplus -= bytes_used
    if surplus > 0:
        raise StorageError(f"cannot store {size} bytes: the limit is {max_bytes} (output.max_stored_bytes)")
    return selected


class Media:
    """A store of blobs. If they exceed `max_bytes` in total, the oldest are removed."""

    def __init__(
        self,
        directory: Path,
        ttl: float,
        clock: Callable[[], float] = time.time,
        max_bytes: int = DEFAULT_MAX_BYTES,
        *,
        steady: Callable[[], float] = read_steady_clock,
    ) -> None:
        self._directory = directory
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._clock = clock
        self._clock_watch = ClockWatch(clock, steady)
        self._clock_watch.is_reliable()  # a jump from now on is seen

    def put(self, data: bytes, mime_type: str, agent: str, token_id: str = "") -> str:
        """Store a blob and return its handle, which is valid for this agent and token."""
        handle = new_handle()
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room(len(data))
            self._write(handle, "bin", data)
            metadata = {"version": VERSION, "mime_type": mime_type, "agent": agent, "token_id": token_id}
            self._write(handle, "json", json.dumps(metadata).encode())
        except OSError as error:
            for part in ("bin", "json"):
                with suppress(OSError):
                    self._file(handle, part).unlink()
            reason = error.strerror or error
            raise StorageError(f"cannot store {mime_type} in {self._directory}: {reason}") from None
        return handle

    def get(self, handle: object, agent: str, token_id: str = "") -> Blob:
        """Return the blob with this handle. Without a token, an agent reads the blobs of all its tokens."""
        missing = missing_media(handle)
        if not is_handle(handle):
            raise missing
        try:
            metadata = json.loads(self._file(handle, "json").read_bytes())
            check_version(metadata.get("version"), VERSION, f"the media {handle}")
            is_allowed = metadata["agent"] == agent and token_id in {"", metadata["token_id"]}
            if not is_allowed or self._is_expired(self._file(handle, "bin").stat()):
                raise missing
            return Blob(self._file(handle, "bin").read_bytes(), str(metadata["mime_type"]))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise missing from None

    def _write(self, handle: str, part: str, data: bytes) -> None:
        descriptor = os.open(self._file(handle, part), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)

    def _make_room(self, size: int) -> None:
        """Remove expired blobs, and the oldest ones if the store is full. None expires after a jump of the clock."""
        may_expire = self._clock_watch.is_reliable()
        kept: list[tuple[float, int, Path]] = []
        for entry in os.scandir(self._directory):
            with suppress(FileNotFoundError):  # another process may have removed it
                status = entry.stat(follow_symlinks=False)
                path = Path(entry.path)
                if not MEDIA_FILE.fullmatch(entry.name):
                    continue
                if may_expire and self._is_expired(status):
                    path.unlink()
                else:
                    kept.append((status.st_mtime, status.st_size, path))
        for path in select_surplus(kept, size, self._max_bytes):
            path.unlink(missing_ok=True)

    def _is_expired(self, status: os.stat_result) -> bool:
        return self._clock() - status.st_mtime > self._ttl

    def _file(self, handle: str, part: str) -> Path:
        return self._directory / f"media-{handle}.{part}"
