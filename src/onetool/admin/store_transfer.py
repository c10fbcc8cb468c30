"""Copy all state from files to PostgreSQL.

What the database has already is kept, so it can be repeated.

Every kind is verified: each item of the files exists in the database afterwards.
"""

import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from onetool.errors import StorageError, ToolError
from onetool.settings.load import Loaded
from onetool.settings.paths import resolve_path
from onetool.sources.bundles.source import bundles_directory
from onetool.state import run_rows, session_store
from onetool.state.bundle_mirror import KEY, KIND, LOCK, STORED
from onetool.state.document_kinds import EVERYTHING, SavedSnippet
from onetool.state.documents import DELETED, PUT, Documents
from onetool.state.opening import open_files, open_state
from onetool.state.postgres_database import Database
from onetool.state.replica_kinds import AuditRows, NoticeRows, StoredTokenSet
from onetool.state.result_parts import CHUNK_BYTES, PartRows
from onetool.state.run_records import RunRecord
from onetool.state.run_store import RunStore
from onetool.state.session_store import SessionStore
from onetool.state.sqlite_database import SealedDatabase, Transaction
from onetool.state.stats import rollup
from onetool.state.stats.database import ADD_USES, StatisticsFile
from onetool.state.stats.record import (
    CALL_COLUMNS,
    LAST_ROWS,
    RUN_COLUMNS,
    CallRecord,
    Record,
    insert_records,
)
from onetool.state.storage import BUILT_IN_STATES, State
from onetool.util.clock_watch import ClockWatch
from onetool.util.logging import list_rotated
from onetool.util.redact import Redactor
from onetool.util.running_servers import list_servers
from onetool.util.store_url import SCHEMES

if TYPE_CHECKING:
    from onetool.state.result_parts import Part

# ruff: noqa: S608 - statements are built from constants
T = TypeVar("T")
UNLIMITED_BYTES = 1 << 40
RESULT_FILE = re.compile(r"(result|media)-([0-9a-f]{32})\.(txt|idx|json|meta\.json|bin)")
LAST_PART = "meta.json"  # written last: without it, the result does not exist


class Places(NamedTuple):
    """The state in files and the state in a database."""

    loaded: Loaded
    files: State
    rows: State
    database: Database

    @property
    def data(self) -> Path:
        return self.loaded.directories.data


def transfer(loaded: Loaded, url: str) -> dict[str, int]:
    """Copy all state to the database and return the number of verified items of each kind."""
    if not url.startswith(SCHEMES):
        raise ToolError(
            f"invalid store {url!r}", hint="use a URL such as postgresql://user@host/database"
        )
    settings = loaded.settings.model_copy(update={"store": url})
    opened = replace(loaded, settings=settings)
    state = open_state(opened)
    (database,) = state.databases
    assert isinstance(database, Database)
    with closing(state), open_files(loaded.directories) as files:
        _reject_writers(loaded)
        places = Places(opened, files, state, database)
        return {kind: copy(places) for kind, copy in KINDS.items()}


def _reject_writers(loaded: Loaded) -> None:
    """Raise if a server writes to the files: what it writes would be lost."""
    servers = [f"process {server.pid}" for server in list_servers(loaded.directories.user)]
    if servers:
        raise ToolError(
            f"cannot copy the state while servers write it: {', '.join(servers)}",
            hint=(
                "stop them first (`onetool daemon stop` for the shared server), then repeat the"
                " command"
            ),
        )


def _verify(kind: str, source: Iterable[Any], target: Iterable[Any]) -> int:
    """Return the number of source items. Raise if the target lacks one."""
    items = list(source)
    missing = Counter(items) - Counter(list(target))
    if missing:
        names = ", ".join(map(str, list(missing)[:5]))
        raise StorageError(f"the copy of {kind} is incomplete: {names}", hint="repeat it")
    return len(items)


# --- runs and sessions ----------------------------------------------------------------------------


class Table(NamedTuple):
    """A table, and the name that each `sealed` value is sealed with."""

    name: str
    columns: tuple[str, ...]
    order: str
    about: str = ""


RUN_TABLES = (
    Table(
        "runs", ("id", "agent", "state", "owner", "expires", "ended", "sealed"), "rowid", "run {id}"
    ),
    Table(
        "calls", ("run", "number", "state", "sealed"), "run, number", "call {number} of run {run}"
    ),
    Table("grants", ("id", "agent", "run", '"left"', "expires", "sealed"), "rowid", "grant {id}"),
    Table("sent_calls", ("run", "number", "attempt", "permit", "at"), "run, number"),
)
SESSION_TABLES = (
    Table("sessions", ("handle", "agent", "token", "used"), "used"),
    Table("session_values", ("handle", "key", "sealed", "size"), "id", "session {handle}: {key}"),
)


def _copy_tables(places: Places, source: SealedDatabase, kind: str, tables: Iterable[Table]) -> int:
    """Copy the rows that the database lacks, sealed with its key.

    Return the number of rows of the first table.
    """
    counts = []
    for table in tables:
        columns = ", ".join(table.columns)
        query = f"SELECT {columns} FROM {table.name} ORDER BY {table.order}"
        rows = [dict(zip(table.columns, row, strict=True)) for row in source.select(query)]
        for row in rows if table.about else ():
            about = table.about.format(**row).encode()
            content = source.load_sealer(kind).open(row["sealed"], about)
            row["sealed"] = places.database.load_sealer(kind).seal(content, about)
        marks = ", ".join("?" * len(table.columns))
        insert = f"INSERT INTO {table.name} ({columns}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        with places.database.transaction() as transaction:
            transaction.executemany(insert, [tuple(row.values()) for row in rows])
        keys = f"SELECT {table.columns[0]}, {table.columns[1]} FROM {table.name}"
        counts.append(_verify(table.name, source.select(keys), places.database.select(keys)))
    return counts[0]


def _copy_runs(places: Places) -> int:
    with closing(RunStore(places.loaded.directories.private)) as store:
        return _copy_tables(places, store.database, run_rows.KIND, RUN_TABLES)


def _copy_sessions(places: Places) -> int:
    with closing(SessionStore(places.loaded.directories.private)) as store:
        return _copy_tables(places, store.database, session_store.KIND, SESSION_TABLES)


# --- documents ------------------------------------------------------------------------------------


def _copy_documents(choose: Callable[[State], Documents], places: Places) -> int:
    """Copy the documents of one kind that the database lacks."""
    source = choose(places.files)
    target = choose(places.rows)
    documents = source.get_all()
    for name, document in documents.items():
        target.update(name, lambda current, document=document: current or document)  # type: ignore[misc]
    return _verify(source.kind, documents, target.get_all())


def _copy_disabled_tools(places: Places) -> int:
    source = places.files.disabled_tools
    target = places.rows.disabled_tools
    names = source.off()
    if EVERYTHING in names:
        raise StorageError(str(source.problem))
    target.set(*names, on=False)
    return _verify("disabled tools", names, target.off())


def _copy_snippets(places: Places) -> int:
    target = places.rows.snippets
    saved = places.files.snippets.list_all()

    def add_missing(current: list[SavedSnippet]) -> list[SavedSnippet]:
        names = set(map(_identify_snippet, current))
        return [
            *current,
            *(snippet for snippet in saved if _identify_snippet(snippet) not in names),
        ]

    target.change(add_missing)
    return _verify(
        "snippets", map(_identify_snippet, saved), map(_identify_snippet, target.list_all())
    )


def _identify_snippet(snippet: SavedSnippet) -> tuple[str, str]:
    return snippet.agent, snippet.name


def _copy_shapes(places: Places) -> int:
    target = places.rows.shapes
    shapes = places.files.shapes.read_all()
    if shapes:
        target.merge_all(shapes)
    return _verify("shapes", shapes, target.read_all())


def _copy_tokens(places: Places) -> int:
    tokens = [token for token in places.loaded.settings.auth.tokens if token.hash]
    target = StoredTokenSet(places.database)
    for token in tokens:
        target.create(token)
    return _verify("tokens", (token.name for token in tokens), target.names())


# --- logs -----------------------------------------------------------------------------------------


def _copy_audit(places: Places) -> int:
    settings = places.loaded.settings.audit
    file = resolve_path(settings.file, places.data, places.loaded.directories.home)
    files = [*reversed(list_rotated(file, settings.keep)), file]  # oldest first
    lines: list[str] = []
    for log in files:
        if log.exists():
            lines += filter(None, log.read_text("utf-8", "replace").splitlines())
    AuditRows(places.database).insert_lines(_select_missing(lines, _read_audit(places)))
    return _verify("audit", lines, _read_audit(places))


def _read_audit(places: Places) -> list[str]:
    return [record for (record,) in places.database.select("SELECT record FROM audit ORDER BY id")]


def _copy_notices(places: Places) -> int:
    target = NoticeRows(places.database, UNLIMITED_BYTES)
    count = 0
    for name in dict.fromkeys(topic.file for topic in places.loaded.settings.notify.topics):
        file = resolve_path(name, places.data, Path.home())
        documents = _split_documents(file.read_bytes()) if file.exists() else []
        for document in _select_missing(documents, _split_documents(target.read(name))):
            target.append(name, document)
        count += _verify("notices", documents, _split_documents(target.read(name)))
    return count


def _split_documents(content: bytes) -> list[bytes]:
    return [b"---\n" + part for part in content.split(b"---\n") if part.strip()]


def _select_missing(source: Iterable[T], target: Iterable[T]) -> list[T]:
    """Return the source items that the target lacks, in order. Equal items count separately."""
    present = Counter(target)
    missing = []
    for item in source:
        if present[item] > 0:
            present[item] -= 1
        else:
            missing.append(item)
    return missing


# --- bundles and results --------------------------------------------------------------------------


def _copy_bundles(places: Places) -> int:
    root = bundles_directory(places.loaded)
    values = Documents(places.database, KIND)
    paths = [file.relative_to(root).as_posix() for file in root.glob("[!.]*/*.json")]
    paths += [name for name in (BUILT_IN_STATES, KEY) if (root / name).exists()]
    with places.database.transaction() as transaction:
        transaction.lock(LOCK)
        present = _read_bundles(places)
        new = [path for path in paths if path not in present]
        if new:
            version = transaction.announce(KIND)
            rows = [
                (KIND, path, version, values.seal(path, version, (root / path).read_bytes()))
                for path in new
            ]
            transaction.executemany(PUT, rows)
    return _verify("bundles", paths, _read_bundles(places))


def _read_bundles(places: Places) -> dict[str, bytes]:
    values = Documents(places.database, KIND)
    values.load()
    contents = {path: values.open(path, *row) for path, *row in places.database.select(STORED)}
    return {path: content for path, content in contents.items() if content != DELETED}


def _copy_results(places: Places) -> int:
    """Copy stored results and media, part by part."""
    directory = places.data / "tmp"
    parts: dict[tuple[str, str], tuple[str, Path]] = {}
    for file in directory.iterdir() if directory.is_dir() else ():
        match = RESULT_FILE.fullmatch(file.name)
        if match is not None and file.is_file():
            kind, handle, part = match.groups()
            parts[handle, part] = (kind, file)
    present = _list_result_parts(places)
    for handle, part in sorted(parts.keys() - present, key=lambda key: key[1] == LAST_PART):
        kind, file = parts[handle, part]
        _copy_part(places, kind, handle, part, file)
    return _verify("results", parts, _list_result_parts(places))


def _list_result_parts(places: Places) -> set[tuple[str, str]]:
    return {
        (handle, part) for handle, part in places.database.select("SELECT handle, part FROM files")
    }


def _copy_part(places: Places, kind: str, handle: str, part: str, file: Path) -> None:
    modified = file.stat().st_mtime
    content = file.read_bytes()
    agent = ""
    if part in {LAST_PART, "json"}:
        with suppress(ValueError, TypeError, AttributeError):  # content that is not a JSON object
            agent = str(json.loads(content).get("agent", ""))
    chunks = (content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES))
    rows = PartRows(
        places.database,
        str(places.loaded.directories.working_dir),
        ClockWatch(lambda: modified),
        kind,
    )
    rows.publish(handle, cast("Part", part), chunks, agent)


# --- statistics -----------------------------------------------------------------------------------


# The tables, and what happens to rows that exist.
STATISTICS_TABLES = {
    "calls": "",
    "runs": "ON CONFLICT DO NOTHING",
    "sessions": "ON CONFLICT DO NOTHING",
    "definitions": "ON CONFLICT DO NOTHING",
    "rollups": rollup.ADD_ROLLUP,
    "times": rollup.ADD_TIMES,
    "details": "ON CONFLICT DO NOTHING",
    "failures": "ON CONFLICT DO NOTHING",
    "spending": rollup.MERGE_SPENDING,
    "usage": ADD_USES,
}
ALL_CALLS = (
    f"SELECT coalesce(sum(count), 0) FROM rollups WHERE width = {rollup.BLOCK} AND kind ="
    f" {rollup.ALL_CALLS}"
)
MARKER = "SELECT version, content FROM onetool.documents WHERE kind = 'migrated' AND name = ?"
PUT_MARKER = """
INSERT INTO onetool.documents VALUES ('migrated', ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET version = excluded.version, content = excluded.content
"""


def _copy_statistics(places: Places) -> int:
    """Copy the statistics, or what was added to them since they were last copied.

    Return the number of calls.
    """
    file = places.data / "stats" / "stats.db"
    if not file.exists():
        return 0
    name = f"{socket.gethostname()}:{file}"
    with StatisticsFile(file).reading() as source:
        last = source.execute(LAST_ROWS).fetchone()
        count = _count_calls(source)

        def copy(target: Transaction) -> None:
            marker = target.execute(MARKER, (name,)).fetchone()
            if marker is None:
                version = 1
                _copy_statistics_tables(source, target)
            else:
                version = marker[0] + 1
                later = _read_later(source, *json.loads(marker[1]))
                insert_records(target, later, time.time(), Redactor().redact_prefix)
            target.execute(PUT_MARKER, (name, version, json.dumps(last).encode()))
            copied = _count_calls(target)
            if copied < count:
                raise StorageError(
                    f"the copy of statistics has {copied} of {count} calls", hint="repeat it"
                )

        places.rows.recorder.database.write(copy)
    return count


def _count_calls(tables: Transaction) -> int:
    row: Any = tables.execute(ALL_CALLS).fetchone()
    return int(row[0])


def _copy_statistics_tables(source: Transaction, target: Transaction) -> None:
    for table, conflict in STATISTICS_TABLES.items():
        rows: Any = source.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in rows.description]
        marks = ", ".join("?" * len(names))
        insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) {conflict}"
        target.executemany(insert, rows.fetchall())


def _read_later(source: Transaction, call: int, run: int) -> list[Record]:
    """Return the calls and runs that were recorded after these rows."""
    records: list[Record] = []
    for table, columns, kind, last in (
        ("calls", CALL_COLUMNS, CallRecord, call),
        ("runs", RUN_COLUMNS, RunRecord, run),
    ):
        query = f"SELECT {', '.join(columns)} FROM {table} WHERE rowid > ? ORDER BY rowid"
        rows: list[Any] = source.execute(query, (last,)).fetchall()
        records += [kind(*row) for row in rows]
    return records


KINDS: Final[dict[str, Callable[[Places], int]]] = {
    "runs": _copy_runs,
    "sessions": _copy_sessions,
    "results": _copy_results,
    "bundles": _copy_bundles,
    "disabled": _copy_disabled_tools,
    "pins": partial(_copy_documents, attrgetter("pins")),
    "credentials": partial(_copy_documents, attrgetter("credentials.documents")),
    "snippets": _copy_snippets,
    "tokens": _copy_tokens,
    "llm tokens": partial(_copy_documents, attrgetter("token_usage")),
    "notices": _copy_notices,
    "audit": _copy_audit,
    "shapes": _copy_shapes,
    "statistics": _copy_statistics,
}
