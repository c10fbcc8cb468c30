"""Parts of results: files in a directory, or rows in PostgreSQL.

Files are written atomically, for their owner only. In rows, a result is readable on every replica
with the same working directory, which is its `scope`, by its agent.
"""

import io
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
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias, TypeGuard, cast, get_args

from onetool.util import atomic
from onetool.util.atomic import locked
from onetool.util.clock_watch import ClockWatch, Sweep
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.state.postgres_database import Database, Statements

Part: TypeAlias = Literal["txt", "idx", "json", "meta.json", "bin"]
LOCK = "results.lock"
USAGE = "results.usage"
REMEMBERED_SECONDS = 86_400.0  # how long the metadata of an expired result is kept
_ABANDONED_SECONDS = 600.0  # when an unfinished file is considered abandoned
DEFAULT_MAX_REMEMBERED = 1_000
_BLOCK_BYTES = 4_096  # disk space of a small file
HANDLE = re.compile("[0-9a-f]{32}")
_FILE_NAME = re.compile(
    rf"(?P<kind>result|media)-(?P<handle>{HANDLE.pattern})"
    r"\.(?P<part>txt|idx|json|meta\.json|bin)(?P<unfinished>(?:\.[0-9a-f]{8})?\.tmp)?"
)
CHUNK_BYTES = 1 << 20  # of a row
SWEEP_SECONDS = 60.0
SIZES = """
SELECT coalesce(sum((size + 4095) / 4096 * 4096), 0),
coalesce(sum((size + 4095) / 4096 * 4096) FILTER (WHERE agent = ?), 0) FROM files WHERE scope = ? AND kind = ?
"""
SWEEP = """
DELETE FROM files WHERE modified < CASE WHEN part = 'meta.json' THEN ?::double precision ELSE ? END AND kind = ?
AND scope = ? RETURNING handle, part
"""
INSERT_PART = """
INSERT INTO files (scope, handle, part, kind, agent, size, modified) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (handle, part) DO NOTHING
"""
INSERT_CHUNK = "INSERT INTO chunks (handle, part, number, data) VALUES (?, ?, ?, ?)"
CHUNK = "SELECT data FROM chunks WHERE handle = ? AND part = ? AND number = ?"
CONTENT = "SELECT data FROM chunks WHERE handle = ? AND part = ? ORDER BY number"


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
                    life = ttl + REMEMBERED_SECONDS if is_meta else ttl
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


class PartRows(ResultFiles):
    """The parts of results (`kind` is "result") or media in rows."""

    def __init__(
        self, database: "Database", scope: str, clock_watch: ClockWatch, kind: str = "result"
    ) -> None:
        self.place = database.place
        self._database = database
        self._scope = scope
        self._clock = clock_watch.clock
        self._kind = kind
        self._expiry = Sweep(clock_watch, SWEEP_SECONDS)

    def prepare(self) -> None:
        """Do nothing: migrations create the tables."""

    def clean(self, ttl: float) -> dict[str, StoredFiles]:
        """Remove expired results, on one replica at a time. Return the remaining ones by handle."""
        now = self._clock()
        if self._expiry.is_due():
            self._sweep(now, ttl)
        query = (
            "SELECT handle, part, modified, size, agent FROM files WHERE scope = ? AND kind = ? AND"
            " modified >= ?"
        )
        results: dict[str, StoredFiles] = {}
        for handle, part, modified, size, agent in self._database.select(
            query, self._scope, self._kind, now - ttl
        ):
            found = results.setdefault(handle, StoredFiles())
            found.add_part(part, modified, size)
            found.agent = found.agent or agent
        return {handle: found for handle, found in results.items() if found.has_content}

    def has_room(self, max_bytes: int, max_agent_bytes: int, agent: str, handle: str) -> bool:  # noqa: ARG002
        ((total, of_agent),) = self._database.select(SIZES, agent, self._scope, self._kind)
        return int(total) <= max_bytes and int(of_agent) <= max_agent_bytes

    def record_usage(self, sizes: Mapping[str, int]) -> None:
        """Do nothing: the database counts."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self._database.transaction() as transaction:
            transaction.lock(f"{self._kind} {self._scope}")
            yield

    def publish(self, handle: str, part: Part, chunks: Iterable[bytes], agent: str = "") -> None:
        """Write a part in one transaction. With `agent`, the result belongs to it."""
        with self._database.transaction() as transaction:
            size = 0
            for number, chunk in enumerate(join_chunks(chunks)):
                transaction.execute(INSERT_CHUNK, (handle, part, number, chunk))
                size += len(chunk)
            row = (self._scope, handle, part, self._kind, agent, size, self._clock())
            transaction.execute(INSERT_PART, row)
            if agent:
                transaction.execute("UPDATE files SET agent = ? WHERE handle = ?", (agent, handle))

    def remove(self, handle: str, parts: Iterable[Part] = get_args(Part)) -> None:
        with self._database.transaction() as transaction:
            _delete(transaction, [(handle, part) for part in parts])

    @contextmanager
    def reading(self, handle: str, part: Part) -> Iterator[BinaryIO]:
        """Yield a file of this part. Text is read in windows, the other parts at once."""
        found = self._database.select(
            "SELECT size FROM files WHERE scope = ? AND handle = ? AND part = ?",
            self._scope,
            handle,
            part,
        )
        if not found:
            raise FileNotFoundError(handle)
        if part == "txt" and found[0][0] > CHUNK_BYTES:
            yield cast("BinaryIO", ChunkReader(self._database, handle, part, found[0][0]))
            return
        chunks = [data for (data,) in self._database.select(CONTENT, handle, part)]
        yield io.BytesIO(b"".join(chunks))

    def _sweep(self, now: float, ttl: float) -> None:
        with self._database.transaction() as transaction:
            if transaction.try_lock(f"sweep {self._kind}"):
                limits = (now - ttl - REMEMBERED_SECONDS, now - ttl, self._kind, self._scope)
                expired = transaction.execute(SWEEP, limits).fetchall()
                _delete(transaction, expired)


class ChunkReader:
    """A file whose content is read from chunks as it is needed."""

    def __init__(self, database: "Database", handle: str, part: str, size: int) -> None:
        self._database = database
        self._key = (handle, part)
        self._size = size
        self._position = 0
        self._chunk: tuple[int, bytes] = (-1, b"")  # the last one, with its number

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, count: int = -1) -> bytes:
        left = self._size - self._position if count < 0 else min(count, self._size - self._position)
        pieces = []
        while left > 0:
            number, start = divmod(self._position, CHUNK_BYTES)
            piece = self._read_chunk(number)[start : start + left]
            if not piece:
                raise FileNotFoundError(self._key[0])  # the result was removed meanwhile
            pieces.append(piece)
            self._position += len(piece)
            left -= len(piece)
        return b"".join(pieces)

    def _read_chunk(self, number: int) -> bytes:
        if self._chunk[0] != number:
            rows = self._database.select(CHUNK, *self._key, number)
            self._chunk = number, rows[0][0] if rows else b""
        return self._chunk[1]


def join_chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes in chunks of equal size; the last one may be shorter."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        while len(waiting) >= CHUNK_BYTES:
            yield bytes(waiting[:CHUNK_BYTES])
            del waiting[:CHUNK_BYTES]
    if waiting:
        yield bytes(waiting)


def _delete(transaction: "Statements", parts: Iterable[tuple[str, str]]) -> None:
    for table in ("chunks", "files"):
        transaction.executemany(f"DELETE FROM {table} WHERE handle = ? AND part = ?", parts)  # noqa: S608 - constants
