"""Results and media in PostgreSQL: one row for each part, and its content in chunks of at most 1
MB.

A result is readable on every replica with the same working directory, which is its `scope`, by its
agent.
"""

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO, cast, get_args

from onetool.state.postgres_database import Database, Statements
from onetool.state.result_files import Part, ResultFiles, StoredFiles
from onetool.util.clock_watch import ClockWatch, Sweep

CHUNK_BYTES = 1 << 20
SWEEP_SECONDS = 60.0
REMEMBERED_SECONDS = 86_400.0  # how long the metadata of an expired result is kept
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


class PartRows(ResultFiles):
    """The parts of results (`kind` is "result") or media in rows."""

    def __init__(
        self, database: Database, scope: str, clock_watch: ClockWatch, kind: str = "result"
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

    def __init__(self, database: Database, handle: str, part: str, size: int) -> None:
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


def _delete(transaction: Statements, parts: Iterable[tuple[str, str]]) -> None:
    for table in ("chunks", "files"):
        transaction.executemany(f"DELETE FROM {table} WHERE handle = ? AND part = ?", parts)  # noqa: S608 - constants
