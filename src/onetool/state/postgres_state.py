"""Open the state in a PostgreSQL database, which replicas share."""

from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from onetool.errors import ToolError
from onetool.state.bundle_mirror import BundleMirror
from onetool.state.changes import Changes
from onetool.state.counters import CounterTables, RateLimiter, SharedBudgetGuard
from onetool.state.credentials import CredentialStore
from onetool.state.document_kinds import MODEL_USAGE, DisabledTools, LastUses, SavedSnippets
from onetool.state.documents import Documents
from onetool.state.jobs import JobRows, list_queues
from onetool.state.keys import load_key
from onetool.state.listener import Leases
from onetool.state.postgres_database import Database
from onetool.state.replica_kinds import (
    AuditRows,
    EndedSessionRows,
    NoticeRows,
    SettingsRows,
    StatisticsSchema,
    StoredTokenSet,
)
from onetool.state.result_parts import PartRows
from onetool.state.run_store import RunTables
from onetool.state.session_store import SessionTables
from onetool.state.stats.record import Recorder
from onetool.state.stats.shapes import Shapes
from onetool.state.storage import QueueStatus, State, StateDescription
from onetool.util.clock_watch import ClockWatch

BACKUP_NOTE = "state in the database of `store` is not included: back it up with pg_dump"
SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('onetool', 'onetool_stats') AND c.relkind = 'r'
"""
REPLICAS = """
SELECT description, version, extract(epoch FROM clock_timestamp() - seen) FROM servers
WHERE seen > clock_timestamp() - make_interval(secs => ?) ORDER BY seen DESC
"""
LOADED_KEYS = ("request state", "browser sessions")  # those that an event loop needs


def open_rows(
    url: str,
    key: str,
    cache_directory: Path,
    *,
    scope: str = "",
    keep_job_seconds: float = 86_400,
    search_directory: Path | None = None,
    changes: Changes | None = None,
) -> State:
    """Return the state in a database, sealed with `key`. Nothing is opened before it is needed.

    `scope` is the working directory, which shares results with the same one on other replicas.
    """
    database = Database(url, key, changes)
    statistics = StatisticsSchema(database)
    recorder = Recorder(statistics)
    counters = CounterTables(database)
    tokens = StoredTokenSet(database)
    clock_watch = ClockWatch(database.now)

    return State(
        place=database.place,
        backup_note=BACKUP_NOTE,
        databases=(database,),
        describe=partial(_describe_status, database),
        clock_watch=clock_watch,
        load_key=cache(partial(load_key, database)),
        load_first=_load_first,
        search_directory=search_directory or cache_directory,
        recorder=recorder,
        shapes=Shapes(statistics),
        runs=RunTables(database, database.leases, clock_watch),
        sessions=SessionTables(database, clock_watch),
        counters=counters,
        snippets=SavedSnippets(database),
        disabled_tools=DisabledTools(database),
        pins=Documents(database, "pins"),
        token_usage=Documents(database, MODEL_USAGE, is_announced=False),
        token_use=LastUses(database),
        settings=SettingsRows(database),
        credentials=CredentialStore(database),
        ended_sessions=EndedSessionRows(database),
        jobs=JobRows(database, keep_job_seconds),
        cache=database,
        open_parts=partial(PartRows, database, scope, clock_watch),
        notices=partial(NoticeRows, database),
        audit=lambda _file, redact: AuditRows(database, redact),
        bundle_files=lambda _directory: BundleMirror(cache_directory / "bundles", database),
        call_rates=lambda _directory: RateLimiter(counters),
        guard_budget=partial(SharedBudgetGuard, counters=counters),
        open_tokens=lambda: tokens,
    )


def _load_first(state: State) -> None:
    """Load what an event loop reads without waiting."""
    state.shapes.text("")
    with suppress(ToolError):  # what needs the key reports that it is missing
        for name in LOADED_KEYS:
            state.load_key(name)


def _describe_status(database: Database) -> StateDescription:
    """Return the version and the size of the tables, the replicas that are alive, and the queues."""
    ((version,),) = database.select("SELECT max(version) FROM schema_versions")
    ((size,),) = database.select(SIZE)
    megabytes = round(int(size) / (1 << 20), 1)
    replicas = [
        {"description": description, "schema": schema, "seconds": round(float(seconds), 1)}
        for description, schema, seconds in database.select(REPLICAS, Leases.SECONDS)
    ]
    queues = list_queues(database)
    facts = {
        "store": database.place,
        "schema": int(version),
        "megabytes": megabytes,
        "replicas": replicas,
        "queues": [queue._asdict() for queue in queues],
    }
    lines = [
        f"{database.place}, schema version {version}, {megabytes} MB",
        f"replicas: {len(replicas)}",
    ]
    lines += (
        f"  {replica['description']}, seen {replica['seconds']} s ago" for replica in replicas
    )
    for queue in queues:
        lines += _describe_queue(queue)
    return StateDescription(facts, lines)


def _describe_queue(queue: QueueStatus) -> list[str]:
    workers = [f"  worker: {worker}" for worker in queue.workers]
    if not workers:
        workers = [f"  no worker: run `onetool worker --queue {queue.name}`"]
    return [f"queue {queue.name}: {queue.waiting} waiting, {queue.running} running", *workers]
