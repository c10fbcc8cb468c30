"""The index of the store: the content of all files in one SQLite database, for lists and searches.

It is a cache and is rebuilt if it is deleted. This module manages rows and connections; `sync`
fills it from the files, `queries` reads it. A `key` grows with the modification time, so that
descending keys give the newest first.
"""

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from sqlite3 import Connection
from threading import Lock, RLock

from onetool.core.names import python_name
from onetool.sources.bundles.filesystem import Stamp
from onetool.sources.bundles.records import (
    BundleFile,
    ToolFile,
    fold_name,
    has_valid_structure,
    list_words,
    to_document,
)
from onetool.sources.search import index as search
from onetool.util import atomic
from onetool.util.sanitize import clean

# Increase it with every change of what is written: here, in `records`, `onetool.util.sanitize` or
# `onetool.sources.search`.
FORMAT = 1
BUSY_SECONDS = 15.0
KEYS_PER_MICROSECOND = 1024
MAX_MICROSECONDS = (1 << 63) // KEYS_PER_MICROSECOND - 2
MAX_WAL_BYTES = 16 << 20  # bytes
BUILD_BUFFER_BYTES = 16 << 20
BUFFER_BYTES = 1 << 20
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = f"""
begin;
create table meta (name text primary key, value integer not null) without rowid;
create table bundles (
    id text primary key, folder text not null unique, slug text not null, python_name text not null,
    enabled integer not null, deleted_at integer, body text not null, mtime integer not null, size integer not null
) without rowid;
create index bundles_by_slug on bundles (slug);
create index bundles_by_python_name on bundles (python_name);
create table tools (
    key integer primary key, id text not null, bundle text not null, slug text not null, version text not null,
    file text not null, enabled integer not null, sound integer not null, slug_start text not null,
    name_start text not null, summary text not null, body text not null, mtime integer not null, size integer not null,
    definition integer not null
);
create unique index tools_by_id on tools (id, bundle, enabled);
create unique index tools_of_bundles on tools (bundle, id, enabled);
create unique index tools_by_pair on tools (bundle, slug, version);
create unique index tools_by_file on tools (bundle, file, mtime, size);
create index tools_in_order on tools (bundle, slug, enabled, key, sound, definition);
create index tools_by_slug on tools (slug_start, key);
create index tools_by_name on tools (name_start, key);
create table tags (tag text, bundle text, id text, key integer not null, primary key (tag, bundle, id)) without rowid;
create index tags_by_id on tags (tag, id, key);
create index tags_of_tools on tags (key);
create table words (word text, field integer, key integer, primary key (word, field, key)) without rowid;
create index words_of_tools on words (key, word, field);
{search.SCHEMA}
create table problems (path text primary key, reason text not null, hint text not null) without rowid;
create trigger one_more after insert on tools begin update meta set value = value + 1 where name = 'tools'; end;
create trigger one_less after delete on tools begin update meta set value = value - 1 where name = 'tools'; end;
insert into meta values ('tools', 0), ('built_in', 0);
pragma user_version = {FORMAT};
commit;
"""  # noqa: S608 - texts of ours


UNFINISHED = "unfinished.db"
_OUR_NAMES = re.compile(r"([0-9a-f]{16}|unfinished)\.db(-wal|-shm|-journal)?")


class IndexMissing(Exception):
    """The index is missing, or was replaced by another."""


def create_tables(database: Connection) -> None:
    database.executescript(SCHEMA)
    # The first version is the current time, so that a rebuilt index never repeats a version.
    database.execute("insert into meta values ('version', ?)", (time.time_ns() // 1000,))


class BundleIndex:
    """The database of an index: the current one of a directory, or a private one in memory.

    A connection is used by one thread at a time. In a directory, every database has a unique name,
    and the file `current` names the current one: SQLite keeps files next to a database, which must
    never be mistaken for those of another.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._pointer = directory / "current" if directory else Path()
        self._idle: list[tuple[Connection, Path]] = []
        self._lock = Lock()
        self._memory: Connection | None = None
        self._memory_lock = RLock()

    @property
    def name(self) -> str | None:
        """The file name of the current database; None if there is none."""
        try:
            return self._current().name
        except IndexMissing:
            return None

    @property
    def is_ready(self) -> bool:
        """Whether there is a database that this version can read."""
        if self._directory is None:
            return self._memory is not None
        try:
            with self.connection():
                return True
        except (IndexMissing, sqlite3.Error):
            return False

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        if self._directory is None:
            with self._memory_lock:
                yield self._open_memory()
            return
        file = self._current()
        database = self._acquire(file)
        try:
            yield database
        except sqlite3.Error:
            database.close()
            raise
        except BaseException:
            self._release(database, file)
            raise
        self._release(database, file)

    def _open_memory(self) -> Connection:
        if self._memory is None:
            self._memory = open_database(":memory:")
            create_tables(self._memory)
        return self._memory

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read transaction: a consistent snapshot, regardless of concurrent writes."""
        with self.connection() as database:
            database.execute("begin")
            yield database
            database.execute("commit")

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with self.connection() as database, changing(database):
            yield database

    @contextmanager
    def rebuilding(self) -> Iterator[Connection]:
        """Replace all databases with a new one as soon as it is complete.

        The caller holds the lock of the store.

        What is committed is kept for the next rebuild if this one is interrupted.
        """
        assert self._directory is not None
        self._directory.mkdir(exist_ok=True, mode=0o700)
        unfinished = self._directory / UNFINISHED
        file = self._directory / f"{os.urandom(8).hex()}.db"
        try:
            with closing(_open_unfinished(unfinished)) as database:
                yield database
                _finish(database)
            unfinished.rename(file)
            atomic.write(self._pointer, file.name)
        except (OSError, sqlite3.Error):
            unfinished.unlink(missing_ok=True)
            file.unlink(missing_ok=True)
            raise
        for old in list(self._directory.iterdir()):
            if _OUR_NAMES.fullmatch(old.name) and not old.name.startswith(file.name):
                # On systems that cannot delete open files, the next rebuild tries again.
                with suppress(OSError):
                    old.unlink()

    def checkpoint(self) -> None:
        """Write a large log (WAL) back to the database.

        The caller does not hold the lock of the store.
        """
        with suppress(IndexMissing, sqlite3.Error, OSError):
            log = Path(f"{self._current()}-wal")
            if log.stat().st_size > MAX_WAL_BYTES:
                with self.connection() as database:
                    database.execute("pragma wal_checkpoint(passive)").fetchall()

    def close(self) -> None:
        with self._lock:
            for database, _ in self._idle:
                database.close()
            self._idle.clear()
        with self._memory_lock:  # SQLite crashes if a connection is closed that another thread uses
            if self._memory is not None:
                self._memory.close()
            self._memory = None

    def _current(self) -> Path:
        """Return the path of the current database."""
        try:
            file = self._pointer.with_name(self._pointer.read_text("utf-8"))
            file.stat()
        except (OSError, ValueError):
            raise IndexMissing from None
        return file

    def _acquire(self, file: Path) -> Connection:
        with self._lock:
            while self._idle:
                database, its_file = self._idle.pop()
                if its_file == file:
                    return database
                database.close()
        return _connect(file)

    def _release(self, database: Connection, file: Path) -> None:
        if database.in_transaction:  # an error of the caller, not of the database
            database.rollback()
        with self._lock:
            self._idle.append((database, file))


def _connect(file: Path) -> Connection:
    database = open_database(f"{file.absolute().as_uri()}?mode=rw")
    try:
        database.execute("pragma synchronous = normal")
        # A checkpoint would block while the lock of the store is held.
        database.execute("pragma wal_autocheckpoint = 0")
        (version,) = database.execute("pragma user_version").fetchone()
    except BaseException:
        database.close()
        raise
    if version != FORMAT:
        database.close()
        raise IndexMissing
    return database


def open_database(address: str) -> Connection:
    return sqlite3.connect(
        address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def _open_unfinished(file: Path) -> Connection:
    """Open the database that an interrupted process left, or a new one."""
    database = open_database(f"{file.absolute().as_uri()}?mode=rwc")
    try:
        if not _is_usable(database):
            database.close()
            file.unlink()
            database = open_database(f"{file.absolute().as_uri()}?mode=rwc")
            create_tables(database)
        database.execute("pragma cache_size = -64000")
        database.execute("pragma journal_mode = truncate")
        database.execute("pragma synchronous = normal")
        _set_buffer_size(database, BUILD_BUFFER_BYTES)
    except BaseException:
        database.close()
        raise
    return database


def _is_usable(database: Connection) -> bool:
    """Return whether a database is readable and has the tables of this version."""
    try:
        (version,) = database.execute("pragma user_version").fetchone()
    except sqlite3.DatabaseError:
        return False
    return bool(version == FORMAT)


def _finish(database: Connection) -> None:
    _set_buffer_size(database, BUFFER_BYTES)
    # The mode is persistent. It is set here, because two connections that change it at once would
    # block each other.
    database.execute("pragma journal_mode = wal")


def _set_buffer_size(database: Connection, number: int) -> None:
    """Set how many bytes FTS5 buffers before it writes: large buffers avoid merges."""
    database.execute("insert into forms (forms, rank) values ('hashsize', ?)", (number,))


@contextmanager
def changing(database: Connection) -> Iterator[None]:
    """Open a write transaction. It is rolled back if an error is raised."""
    with database:
        database.execute("begin immediate")
        before = database.total_changes
        yield
        if database.total_changes > before:
            increment_version(database)


# --- rows -----------------------------------------------------------------------------------------


def increment_version(database: Connection) -> None:
    database.execute("update meta set value = value + 1 where name = 'version'")


def read_meta(database: Connection, name: str) -> int:
    (value,) = database.execute("select value from meta where name = ?", (name,)).fetchone()
    return int(value)


def microseconds(moment: datetime) -> int:
    return min(max((moment - EPOCH) // timedelta(microseconds=1), 0), MAX_MICROSECONDS)


def write_bundle(database: Connection, directory: str, file: BundleFile, stamp: Stamp) -> None:
    deleted = None if file.soft_deleted_at is None else microseconds(file.soft_deleted_at)
    row = (
        file.id,
        directory,
        file.slug,
        python_name(file.slug),
        file.is_enabled,
        deleted,
        _to_body(file),
        stamp.mtime,
        stamp.size,
    )
    database.execute("insert or replace into bundles values (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def drop_bundle(database: Connection, bundle_id: str) -> None:
    for (key,) in database.execute(
        "select key from tools where bundle = ?", (bundle_id,)
    ).fetchall():
        drop_tool(database, key)
    database.execute("delete from bundles where id = ?", (bundle_id,))


def write_tool(
    database: Connection,
    bundle_id: str,
    name: str,
    file: ToolFile,
    stamp: Stamp,
    *,
    known_words: set[str],
) -> None:
    """Insert a tool. It is found after `index_rows`. The old row must have been dropped.

    `known_words` are words that were written before.
    """
    key = _next_free_key(database, microseconds(file.modified_at))
    summary = clean(file.description or file.display_name).strip().partition("\n")[0]
    definition = len(file.description.encode()) + len(json.dumps(file.arg_schema))  # bytes, about
    values = (
        key,
        file.id,
        bundle_id,
        file.slug,
        file.version,
        name,
        file.is_enabled,
        has_valid_structure(file.arg_schema),
        fold_name(file.slug),
        fold_name(file.display_name),
        summary,
        _to_body(file),
        stamp.mtime,
        stamp.size,
        definition,
    )
    database.execute(f"insert into tools values ({', '.join('?' * len(values))})", values)  # noqa: S608
    tags = ((tag, bundle_id, file.id, key) for tag in file.tags)
    database.executemany("insert into tags values (?, ?, ?, ?)", tags)
    names = bundle_names(database, bundle_id)
    fields = list_words(file, names)
    for place, field in enumerate(fields):
        words = ((word, place, key) for word in set(field))
        database.executemany("insert into words values (?, ?, ?)", words)
    name_words = search.put(database, key, to_document(file, names[0]))
    search.learn(database, [*name_words, *chain.from_iterable(fields)], known_words)


def bundle_names(database: Connection, bundle_id: str) -> tuple[str, str]:
    """Return the slug and the display name of a bundle, by which its tools are found too."""
    query = "select slug, json_extract(body, '$.displayName') from bundles where id = ?"
    slug, name = database.execute(query, (bundle_id,)).fetchone()
    return slug, name


def drop_tool(database: Connection, key: int) -> None:
    search.index_rows(database)  # FTS5 must not delete what it does not have
    search.drop(database, key)
    for table in ("words", "tags", "tools"):
        database.execute(f"delete from {table} where key = ?", (key,))  # noqa: S608 - names of ours


def _next_free_key(database: Connection, moment: int) -> int:
    while True:
        first = moment * KEYS_PER_MICROSECOND
        span = (first, first + KEYS_PER_MICROSECOND)
        (last,) = database.execute(
            "select max(key) from tools where key >= ? and key < ?", span
        ).fetchone()
        if last is None:
            return first
        if last + 1 < span[1]:
            return int(last) + 1
        moment += 1


def _to_body(file: BundleFile | ToolFile) -> str:
    return file.model_dump_json(by_alias=True, exclude_none=True)
