"""The directory of results: names, atomic writing with owner-only permissions, and cleanup.

The content of the files, and the meaning of a missing one, are defined elsewhere.
"""

import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias, TypeGuard, get_args

from onetool.util import atomic
from onetool.util.atomic import locked
from onetool.util.clock_watch import ClockWatch
from onetool_child.json_types import JsonMapping, JsonObject

Part: TypeAlias = Literal["txt", "idx", "json", "meta.json", "bin"]

LOCK = "results.lock"
USAGE = "results.usage"
_REMEMBERED_SECONDS = 86_400.0  # how long expired handles are remembered
_ABANDONED_SECONDS = 600.0  # when an unfinished file is considered abandoned
DEFAULT_MAX_REMEMBERED = 1_000
_BLOCK_BYTES = 4_096  # disk space of a small file
HANDLE = re.compile("[0-9a-f]{32}")
_FILE_NAME = re.compile(
    rf"(?P<kind>result|media)-(?P<handle>{HANDLE.pattern})"
    r"\.(?P<part>txt|idx|json|meta\.json|bin)(?P<unfinished>(?:\.[0-9a-f]{8})?\.tmp)?"
)


def new_handle() -> str:
    return secrets.token_hex(16)


def is_handle(handle: object) -> TypeGuard[str]:
    """Return whether this is a valid handle, which is safe in a file name."""
    return isinstance(handle, str) and HANDLE.fullmatch(handle) is not None


@dataclass(slots=True)
class StoredFiles:
    """The files of one result, with their last modification time and disk usage."""

    modified_at: float = 0.0
    size: int = 0
    parts: set[str] = field(default_factory=set)
    agent: str = ""  # empty if only the meta file says it

    def add(self, part: str, status: os.stat_result) -> None:
        self.add_part(part, status.st_mtime, status.st_size)

    def add_part(self, part: str, modified_at: float, size: int) -> None:
        self.modified_at = max(self.modified_at, modified_at)
        self.size += -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
        self.parts.add(part)

    @property
    def has_content(self) -> bool:
        return not self.parts <= {"meta.json"}

    def is_being_written(self, now: float) -> bool:
        """Return whether it may still be being written: the meta file is written last."""
        return "meta.json" not in self.parts and now - self.modified_at <= _ABANDONED_SECONDS


class ResultFiles:
    """The files of all results, or of media (`kind`).

    `max_remembered` limits the number of remembered handles of removed results.
    """

    def __init__(
        self,
        directory: Path,
        clock_watch: ClockWatch,
        max_remembered: int = DEFAULT_MAX_REMEMBERED,
        *,
        kind: str = "result",
    ) -> None:
        self.place = str(directory)
        self._directory = directory
        self._kind = kind
        self._clock = clock_watch.clock
        self._clock_watch = clock_watch
        self._max_remembered = max_remembered

    def prepare(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._directory.is_symlink():
            raise OSError(0, "the directory is a symbolic link")
        if self._directory.stat().st_mode & 0o077:
            self._directory.chmod(0o700)

    def clean(self, ttl: float) -> dict[str, StoredFiles]:
        """Remove expired results and abandoned files. Return the remaining results by handle.

        After a jump of the clock, nothing is removed for a while.
        """
        now = self._clock()
        may_remove = self._clock_watch.is_reliable()
        results: dict[str, StoredFiles] = {}
        with os.scandir(self._directory) as entries:
            for entry in entries:
                name = _FILE_NAME.fullmatch(entry.name)
                if name is None or name["kind"] != self._kind:
                    continue
                with suppress(OSError):  # another process may have removed it
                    status = entry.stat(follow_symlinks=False)
                    is_meta = entry.name.endswith(".meta.json")
                    life = ttl + _REMEMBERED_SECONDS if is_meta else ttl
                    if name["unfinished"]:
                        life = _ABANDONED_SECONDS
                    if may_remove and now - status.st_mtime > life:
                        Path(entry.path).unlink()
                    else:
                        part = f"{name['part']}{name['unfinished'] or ''}"
                        results.setdefault(name["handle"], StoredFiles()).add(part, status)
        removed = (handle for handle in results if not results[handle].has_content)
        for handle in islice(removed, self._max_remembered, None):  # forget the oldest
            self.remove(handle)
        return {handle: files for handle, files in results.items() if files.has_content}

    def has_room(self, max_bytes: int, max_agent_bytes: int, agent: str, handle: str) -> bool:
        """Count a new result, and return whether all are known to fit the quotas.

        Otherwise `clean` lists them.
        """
        with self.locked():
            usage = self._read_usage()
            if usage is None:
                return False
            sizes: dict[str, int] = usage["sizes"]
            sizes[agent] = sizes.get(agent, 0) + self._measure(handle)
            self._write_usage(usage)
        return sum(sizes.values()) <= max_bytes and sizes[agent] <= max_agent_bytes

    def record_usage(self, sizes: Mapping[str, int]) -> None:
        """Record the size of the listed results of each agent. The caller holds the lock."""
        self._write_usage({"listed_at": self._clock(), "sizes": sizes})

    def _write_usage(self, usage: JsonMapping) -> None:
        atomic.write(self._directory / USAGE, json.dumps(usage))

    def _read_usage(self) -> JsonObject | None:
        """Return the recorded sizes; None if they are missing or old: unfinished files are not in
        them.
        """
        try:
            usage = json.loads((self._directory / USAGE).read_bytes())
            is_current = 0 <= self._clock() - usage["listed_at"] <= _ABANDONED_SECONDS
            is_valid = all(type(size) is int for size in usage["sizes"].values())
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None
        return usage if is_current and is_valid else None

    def _measure(self, handle: str) -> int:
        files = StoredFiles()
        for part in get_args(Part):
            with suppress(FileNotFoundError):
                files.add(part, self._path(handle, part).stat())
        return files.size

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock of the directory, which all processes share."""
        return locked(self._directory / LOCK)

    def publish(self, handle: str, part: Part, chunks: Iterable[bytes], agent: str = "") -> None:  # noqa: ARG002
        """Write a file atomically. It may be lost in a power failure."""
        with atomic.replacing(self._path(handle, part)) as temporary:
            with open(temporary, "xb", opener=atomic.owner_only) as file:
                file.writelines(chunks)
            now = self._clock()
            os.utime(temporary, (now, now))

    def remove(self, handle: str, parts: Iterable[Part] = get_args(Part)) -> None:
        with suppress(OSError):  # the directory is not writable, which is reported elsewhere
            for part in parts:
                self._path(handle, part).unlink(missing_ok=True)

    def evict(self, handle: str) -> None:
        """Remove the content of a result but keep its meta file, so that later errors can explain
        it.
        """
        self.remove(handle, ("txt", "idx", "json"))

    @contextmanager
    def reading(self, handle: str, part: Part) -> Iterator[BinaryIO]:
        # Do not follow links, and do not block on a pipe.
        path = self._path(handle, part)
        special = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | special)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileNotFoundError(path)
            yield file

    def _path(self, handle: str, part: Part) -> Path:
        return self._directory / f"{self._kind}-{handle}.{part}"
