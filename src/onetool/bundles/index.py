"""The index: everything the files hold, in one SQLite database, so that nothing has to be read to list or find.

It is only a cache: whoever deletes it makes it be built anew. It knows rows and connections. What the files say is
`onetool.bundles.mirror`, what is asked is `listing` and `searching`. A `key` grows with the time of modification, so
that the newest comes first by walking down the keys.
"""

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Final

from onetool.bundles.disk import Stamp
from onetool.bundles.records import BundleFile, ToolFile
from onetool.bundles.texts import FIELDS, MOST_FOR_PARTS, Texts, document_of, folded, is_sound
from onetool.registry import python_name
from onetool.search import index as search
from onetool.search.words import HIDDEN
from onetool.util import atomic

FORMAT: Final = 5  # to be changed with every change of what is written, here, in `texts` or in `ot.search`
BUSY_SECONDS: Final = 15.0
KEYS_A_MICROSECOND: Final = 1024
MOST_MICROSECONDS: Final = (1 << 63) // KEYS_A_MICROSECOND - 2
LAST_KEY: Final = (1 << 63) - 1
MOST_IN_LOG: Final = 16 << 20  # bytes
BYTES_WHEN_BUILT, BYTES_OTHERWISE = 16 << 20, 1 << 20
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS: Final = ", ".join(FIELDS)
# Of REST, with what they are filled from; `ot.search` has its own.
_TABLES: Final = {"words": ("terms", "marked"), **{f"parts_of_{field}": (field, "parts") for field in FIELDS}}
# One term for each field in which a word stands, so that none has to be looked for among those of the others.
_MARKED: Final = " || ".join(f"replace(' ' || {field}, ' ', ' {number}')" for number, field in enumerate(FIELDS))
_PARTS: Final = f"""
    ' ' || slug || ' {HIDDEN}' || replace(slug, ' ', '') as slug,
    ' ' || name || ' {HIDDEN}' || replace(name, ' ', '') as name,
    ' ' || tags || ' ' as tags, ' ' || substr(description, 1, {MOST_FOR_PARTS}) || ' ' as description,
    ' ' || bundle || ' ' as bundle
"""
_PART_TABLES: Final = "\n".join(
    f"create virtual table parts_of_{field} using fts5 ({field}, content = 'parts', content_rowid = 'key',"
    " tokenize = 'trigram case_sensitive 1');"
    for field in FIELDS
)
SCHEMA: Final = f"""
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
    name_start text not null, body text not null, mtime integer not null, size integer not null,
    definition integer not null
);
create unique index tools_by_id on tools (id, bundle, enabled);
create unique index tools_of_bundles on tools (bundle, id, enabled);
create unique index tools_by_pair on tools (bundle, slug, version);
create unique index tools_by_file on tools (bundle, file, mtime, size);
create index tools_in_order on tools (bundle, slug, enabled, key, sound, definition);
create index tools_by_slug on tools (slug_start, key);
create index tools_by_name on tools (name_start, key);
create index newest_slugs on tools (key, slug_start);
create index newest_names on tools (key, name_start, slug_start);
create table tags (tag text, bundle text, id text, key integer not null, primary key (tag, bundle, id)) without rowid;
create index tags_by_id on tags (tag, id, key);
create index tags_of_tools on tags (key);
create table texts (key integer primary key, {_COLUMNS});
create view marked as select key, {_MARKED} as terms from texts;
create view parts as select key, {_PARTS} from texts;
create virtual table words using fts5 (terms, content = 'marked', content_rowid = 'key', tokenize = 'ascii',
    detail = none);
{_PART_TABLES}
{search.SCHEMA}
create table problems (path text primary key, reason text not null, hint text not null) without rowid;
create trigger one_more after insert on tools begin update meta set value = value + 1 where name = 'tools'; end;
create trigger one_less after delete on tools begin update meta set value = value - 1 where name = 'tools'; end;
insert into meta values ('tools', 0);
pragma user_version = {FORMAT};
"""  # noqa: S608 - names of ours


Identity = tuple[int, int]
_OURS = re.compile(r"[0-9a-f]{16}\.db(-wal|-shm|-journal)?")


class Gone(Exception):
    """There is no index, or not the one that was there before."""


def create(database: sqlite3.Connection) -> None:
    database.executescript(SCHEMA)
    # Counted from the time, so that an index that is built anew never gives a number a second time.
    database.execute("insert into meta values ('version', ?)", (time.time_ns() // 1000,))


class Index:
    """Connections to the newest database in a folder. Each is used by one thread at a time, and used again.

    Every database has a name of its own, and `current` says which one counts: SQLite keeps files beside a database,
    which must never be taken for those of another.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._pointer = folder, folder / "current"
        self._idle: list[tuple[sqlite3.Connection, Path]] = []
        self._known: tuple[Identity, Path] | None = None
        self._lock = Lock()

    @property
    def name(self) -> str | None:
        """Of the database that counts now."""
        try:
            return self._current().name
        except Gone:
            return None

    @property
    def is_ready(self) -> bool:
        """Whether there is a database that this program can read."""
        try:
            with self.connection():
                return True
        except (Gone, sqlite3.Error):
            return False

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        file = self._current()
        database = self._borrowed(file)
        try:
            yield database
        except sqlite3.Error:
            database.close()
            raise
        except BaseException:
            self._returned(database, file)
            raise
        self._returned(database, file)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One moment of the index, whatever others write meanwhile."""
        with self.connection() as database:
            database.execute("begin")
            yield database
            database.execute("commit")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with self.connection() as database:
            database.execute("begin immediate")
            before = database.total_changes
            yield database
            if database.total_changes > before:
                touch(database)
            database.execute("commit")

    @contextmanager
    def rebuilding(self) -> Iterator[sqlite3.Connection]:
        """A new database in place of all others, as soon as it is whole. Only for who holds the lock of the store."""
        self._folder.mkdir(exist_ok=True, mode=0o700)
        file = self._folder / f"{os.urandom(8).hex()}.db"
        try:
            with _built(file) as database:
                yield database
            atomic.write(self._pointer, file.name)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        self._sweep(file)

    def tidy(self) -> None:
        """Move what has gathered in the log into the database, when that has become much. Without the store's lock."""
        with suppress(Gone, sqlite3.Error, OSError):
            log = Path(f"{self._current()}-wal")
            if log.stat().st_size > MOST_IN_LOG:
                with self.connection() as database:
                    database.execute("pragma wal_checkpoint(passive)").fetchall()

    def close(self) -> None:
        with self._lock:
            for database, _ in self._idle:
                database.close()
            self._idle.clear()

    def _current(self) -> Path:
        """The database that counts now."""
        try:
            status = self._pointer.stat()
            identity = status.st_ino, status.st_mtime_ns
            known = self._known
            if known is None or known[0] != identity:
                known = identity, self._folder / self._pointer.read_text("utf-8")
                self._known = known
            known[1].stat()
        except (OSError, ValueError):
            raise Gone from None
        return known[1]

    def _borrowed(self, file: Path) -> sqlite3.Connection:
        with self._lock:
            while self._idle:
                database, its_file = self._idle.pop()
                if its_file == file:
                    return database
                database.close()
        return _connected(file)

    def _returned(self, database: sqlite3.Connection, file: Path) -> None:
        if database.in_transaction:  # a refusal, and no fault of the database
            database.rollback()
        with self._lock:
            self._idle.append((database, file))

    def _sweep(self, kept: Path) -> None:
        for file in list(self._folder.iterdir()):
            if _OURS.fullmatch(file.name) and not file.name.startswith(kept.name):
                with suppress(OSError):  # where open files cannot be deleted, the next one tries again
                    file.unlink()


def _connected(file: Path) -> sqlite3.Connection:
    database = opened(f"{file.absolute().as_uri()}?mode=rw")
    try:
        database.execute("pragma synchronous = normal")
        database.execute("pragma wal_autocheckpoint = 0")  # it would wait for the disk under the lock of the store
        (version,) = database.execute("pragma user_version").fetchone()
    except BaseException:
        database.close()
        raise
    if version != FORMAT:
        database.close()
        raise Gone
    return database


def opened(address: str) -> sqlite3.Connection:
    return sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


@contextmanager
def _built(file: Path) -> Iterator[sqlite3.Connection]:
    """A new database, which nobody sees before it is whole: no journal is needed, and nothing is synced on the way."""
    with closing(opened(f"{file.absolute().as_uri()}?mode=rwc")) as database:
        database.execute("pragma journal_mode = off")
        database.execute("pragma synchronous = off")
        database.execute("pragma cache_size = -64000")
        create(database)
        _gather(database, BYTES_WHEN_BUILT)
        database.execute("begin")
        yield database
        database.execute("commit")
        _gather(database, BYTES_OTHERWISE)
        database.execute("pragma journal_mode = wal")  # it stays so; two who change it at once get in each other's way


def _gather(database: sqlite3.Connection, number: int) -> None:
    """How many bytes FTS5 gathers before it writes: many at once save it from merging what it has written."""
    for table in (*_TABLES, *search.TABLES):
        database.execute(f"insert into {table} ({table}, rank) values ('hashsize', ?)", (number,))  # noqa: S608


# --- rows ----------------------------------------------------------------------------------------------------------


def touch(database: sqlite3.Connection) -> None:
    database.execute("update meta set value = value + 1 where name = 'version'")


def meta(database: sqlite3.Connection, name: str) -> int:
    (value,) = database.execute("select value from meta where name = ?", (name,)).fetchone()
    return int(value)


def microseconds(moment: datetime) -> int:
    return min(max((moment - EPOCH) // timedelta(microseconds=1), 0), MOST_MICROSECONDS)


def write_bundle(database: sqlite3.Connection, folder: str, file: BundleFile, stamp: Stamp) -> None:
    deleted = None if file.soft_deleted_at is None else microseconds(file.soft_deleted_at)
    row = (file.id, folder, file.slug, python_name(file.slug), file.is_enabled, deleted, _text(file))
    database.execute(
        "insert or replace into bundles values (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, stamp.mtime, stamp.size)
    )


def drop_bundle(database: sqlite3.Connection, bundle_id: str) -> None:
    for (key,) in database.execute("select key from tools where bundle = ?", (bundle_id,)).fetchall():
        drop_tool(database, key)
    database.execute("delete from bundles where id = ?", (bundle_id,))


def write_tool(
    database: sqlite3.Connection, bundle_id: str, name: str, file: ToolFile, stamp: Stamp, *, familiar: set[str]
) -> int:
    """A new row, to be found when `index_rows` was called. Who changes a tool drops the old one first.

    `familiar` are words that were written before.
    """
    key = _free_key(database, microseconds(file.modified_at))
    starts = folded(file.slug), folded(file.display_name)
    switches = file.is_enabled, is_sound(file.arg_schema)
    row = (key, file.id, bundle_id, file.slug, file.version, name, *switches, *starts, _text(file))
    definition = len(file.description.encode()) + len(json.dumps(file.arg_schema))  # bytes, about
    values = (*row, stamp.mtime, stamp.size, definition)
    database.execute(f"insert into tools values ({', '.join('?' * len(values))})", values)  # noqa: S608
    database.executemany("insert into tags values (?, ?, ?, ?)", ((tag, bundle_id, file.id, key) for tag in file.tags))
    _write_texts(database, key, file, bundle_names(database, bundle_id), familiar)
    return key


def rewrite_texts(database: sqlite3.Connection, bundle_id: str) -> None:
    """Write what is searched of the tools of a bundle again: the bundle has another name."""
    names = bundle_names(database, bundle_id)
    query = "select key, body from tools where bundle = ?"
    for key, body in database.execute(query, (bundle_id,)).fetchall():
        _drop_texts(database, key)
        _write_texts(database, key, ToolFile.read(body.encode()), names, set())
        index_rows(database, key, key)


def index_rows(database: sqlite3.Connection, first: int = 0, last: int = LAST_KEY) -> None:
    """Make the tools with these keys found."""
    for table, (column, view) in _TABLES.items():
        insert = f"insert into {table} (rowid, {column}) select key, {column} from {view}"  # noqa: S608 - names of ours
        database.execute(f"{insert} where key between ? and ? order by key", (first, last))
    search.index_rows(database, first, last)


def bundle_names(database: sqlite3.Connection, bundle_id: str) -> tuple[str, str]:
    """Slug and display name of a bundle, by which its tools are found too."""
    query = "select slug, json_extract(body, '$.displayName') from bundles where id = ?"
    slug, name = database.execute(query, (bundle_id,)).fetchone()
    return slug, name


def drop_tool(database: sqlite3.Connection, key: int) -> None:
    _drop_texts(database, key)
    for table in ("tags", "tools"):
        database.execute(f"delete from {table} where key = ?", (key,))  # noqa: S608 - names of ours


def _drop_texts(database: sqlite3.Connection, key: int) -> None:
    for table in _TABLES:  # before the texts, which they look up to forget them
        database.execute(f"delete from {table} where rowid = ?", (key,))  # noqa: S608 - names of ours
    database.execute("delete from texts where key = ?", (key,))
    search.drop(database, key)


def _write_texts(
    database: sqlite3.Connection, key: int, file: ToolFile, bundle: tuple[str, str], familiar: set[str]
) -> None:
    named = search.put(database, key, document_of(file, bundle[0]))
    texts = Texts.of(file, " ".join(bundle))
    database.execute("insert into texts values (?, ?, ?, ?, ?, ?)", (key, *texts.fields()))
    search.learn(database, {*named, *(word for text in texts.fields() for word in text.split(" "))}, familiar)


def _free_key(database: sqlite3.Connection, moment: int) -> int:
    while True:
        first = moment * KEYS_A_MICROSECOND
        span = (first, first + KEYS_A_MICROSECOND)
        (last,) = database.execute("select max(key) from tools where key >= ? and key < ?", span).fetchone()
        if last is None:
            return first
        if last + 1 < span[1]:
            return int(last) + 1
        moment += 1


def _text(file: BundleFile | ToolFile) -> str:
    return file.model_dump_json(by_alias=True, exclude_none=True)
