"""The tables as numbered migrations, and the rights of the database roles.

A released migration is never changed; a new one is appended. One process at a time applies them.
One role creates the tables, replicas read and write them, workers reach jobs and their results only.

A column `rowid` numbers the rows in the order in which they were inserted, as SQLite does, so that
both databases share their statements. `token` is the ID of a token, never the token.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from onetool.errors import ArgumentError, ToolError
from onetool.state.stats.database import POSTGRES_SCHEMA
from onetool.state.stats.rollup import BOUNDS
from onetool.util.problem import reject_newer

if TYPE_CHECKING:
    from psycopg import Connection


SCHEMA = "onetool"
STATE = """
CREATE TABLE generations (kind text PRIMARY KEY, number bigint NOT NULL);
CREATE TABLE keys (name text PRIMARY KEY, sealed bytea NOT NULL);
CREATE TABLE servers (
    id text PRIMARY KEY, seen timestamptz NOT NULL, description text NOT NULL, version integer NOT NULL
);
CREATE TABLE documents (
    kind text, name text, version bigint NOT NULL, content bytea NOT NULL, PRIMARY KEY (kind, name)
);
CREATE INDEX documents_bundles ON documents (version) WHERE kind = 'bundles';
CREATE TABLE notices (id bigserial PRIMARY KEY, name text NOT NULL, document bytea NOT NULL, at double precision);
CREATE INDEX notices_name ON notices (name);
CREATE TABLE audit (id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), record text NOT NULL);
CREATE INDEX audit_at ON audit (at);
CREATE TABLE counters (name text PRIMARY KEY, used double precision NOT NULL);
CREATE TABLE rates (name text NOT NULL, at double precision NOT NULL);
CREATE INDEX rates_name ON rates (name, at);

CREATE TABLE files (
    scope text, handle text, part text, kind text NOT NULL, agent text NOT NULL DEFAULT '', size bigint NOT NULL,
    modified double precision NOT NULL, writer name NOT NULL DEFAULT current_user, PRIMARY KEY (handle, part)
);
CREATE INDEX files_scope ON files (scope, kind, modified);
CREATE TABLE chunks (
    handle text, part text, number integer, data bytea NOT NULL, writer name NOT NULL DEFAULT current_user,
    PRIMARY KEY (handle, part, number)
);
ALTER TABLE chunks ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE runs (
    id text PRIMARY KEY, agent text, state text, owner text, expires double precision, ended double precision DEFAULT 0,
    sealed bytea, rowid bigserial
);
CREATE INDEX runs_state ON runs (state, agent);
CREATE TABLE calls (run text, number integer, state text, sealed bytea, PRIMARY KEY (run, number));
CREATE TABLE grants (
    id text PRIMARY KEY, agent text, run text, "left" bigint, expires double precision, sealed bytea, rowid bigserial
);
CREATE TABLE sent_calls (
    run text, number integer, attempt integer, permit text NOT NULL, at double precision NOT NULL,
    PRIMARY KEY (run, number, attempt)
);
CREATE INDEX sent_calls_permit ON sent_calls (permit) WHERE permit <> '';
CREATE INDEX sent_calls_at ON sent_calls (at);
CREATE TABLE sessions (handle text PRIMARY KEY, agent text, token text, used double precision);
CREATE INDEX sessions_used ON sessions (used);
CREATE TABLE session_values (
    id bigserial PRIMARY KEY, handle text, key text, sealed bytea, size bigint, UNIQUE (handle, key)
);
"""
# A document is sealed with its version, and replicas cannot delete it. So somebody without
# `ONETOOL_KEY` cannot put an older one in its place.
NEWER = """
CREATE FUNCTION reject_older() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.kind <> OLD.kind OR NEW.name <> OLD.name OR NEW.version <= OLD.version THEN
        RAISE EXCEPTION 'version % of % % is stored', OLD.version, OLD.kind, OLD.name;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER newer BEFORE UPDATE ON documents FOR EACH ROW EXECUTE FUNCTION reject_older();
"""
# Replicas may append to the audit log, but not delete from it. What they delete with this function
# is the oldest, and never the last 100 MiB, whatever they ask for.
TRIM_AUDIT = """
CREATE FUNCTION trim_audit(max_bytes bigint) RETURNS bigint LANGUAGE sql SECURITY DEFINER
SET search_path = onetool, pg_temp AS $$
    WITH deleted AS (
        DELETE FROM audit WHERE id <= (
            SELECT max(id) FROM (SELECT id, sum(octet_length(record)) OVER (ORDER BY id DESC) AS total FROM audit) sizes
            WHERE total > greatest(max_bytes, 104857600)
        ) RETURNING 1
    ) SELECT count(*) FROM deleted
$$;
REVOKE ALL ON FUNCTION trim_audit FROM PUBLIC;
"""
# The same for calls that were sent. Runs and grants are valid for 30 days at most, which is sealed
# with them: an older row that comes back after this time sends nothing.
TRIM_SENT_CALLS = """
CREATE FUNCTION trim_sent_calls(before double precision) RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path = onetool, pg_temp AS $$
    DELETE FROM sent_calls WHERE at <= least(before, extract(epoch FROM now()) - 31 * 86400)
$$;
REVOKE ALL ON FUNCTION trim_sent_calls FROM PUBLIC;
"""
# procrastinate has the state of a job, under this number. Input and result are sealed with a key
# that is not here.
JOBS = """
CREATE TABLE jobs (
    id text PRIMARY KEY, number bigint NOT NULL UNIQUE REFERENCES procrastinate_jobs ON DELETE CASCADE,
    expires timestamptz NOT NULL, sealed bytea NOT NULL, progress bytea, result bytea
);
ALTER TABLE jobs ALTER COLUMN sealed SET STORAGE EXTERNAL, ALTER COLUMN result SET STORAGE EXTERNAL;
CREATE TABLE queue_workers (
    worker bigint REFERENCES procrastinate_workers ON DELETE CASCADE, queue text, description text NOT NULL,
    PRIMARY KEY (worker, queue)
);
-- Its query sees jobs that were added after the calling statement began, as the function that fetches jobs does.
CREATE FUNCTION read_input(bigint) RETURNS TABLE (name text, sealed bytea, is_open boolean) VOLATILE LANGUAGE sql
BEGIN ATOMIC
    SELECT id, sealed, expires > clock_timestamp() FROM jobs WHERE number = $1;
END;
"""
# `width_bucket` counts the bounds that are not greater. The function counts those that are lesser,
# as in files.
STATISTICS = f"""
CREATE SCHEMA onetool_stats;
SET LOCAL search_path = onetool_stats;
{POSTGRES_SCHEMA}CREATE FUNCTION bucket(double precision) RETURNS integer LANGUAGE sql IMMUTABLE
    RETURN {len(BOUNDS)} - width_bucket(-$1, ARRAY{[-bound for bound in reversed(BOUNDS)]}::double precision[]);
SET LOCAL search_path = {SCHEMA};
"""
LOCK = 0x6F6E65746F6F6C  # "onetool"
VERSIONS = f"{SCHEMA}.schema_versions"
CREATE = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {VERSIONS} (
    version integer PRIMARY KEY, compatible integer NOT NULL, applied timestamptz NOT NULL DEFAULT now()
)
"""
COMMAND = "onetool store upgrade"
OUTDATED = "schema_outdated"
NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
WORKER_TABLES = ("files", "chunks")
GRANTS = """\
GRANT USAGE ON SCHEMA {schema}, {schema}_stats TO {replica};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema}, {schema}_stats TO {replica};
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema}, {schema}_stats TO {replica};
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema}, {schema}_stats GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {replica};
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema}, {schema}_stats GRANT USAGE, SELECT ON SEQUENCES TO {replica};
REVOKE INSERT, UPDATE, DELETE ON {schema}.schema_versions FROM {replica};
REVOKE UPDATE, DELETE ON {schema}.audit, {schema}.sent_calls FROM {replica};
REVOKE DELETE ON {schema}.documents, {schema}.keys FROM {replica};
GRANT EXECUTE ON FUNCTION {schema}.trim_audit, {schema}.trim_sent_calls TO {replica};
GRANT USAGE ON SCHEMA {schema} TO {worker};
GRANT SELECT ON {schema}.schema_versions TO {worker};
"""
# A worker takes jobs, but cannot create, replace or delete them.
JOB_GRANTS = """\
GRANT SELECT, UPDATE (status, worker_id, attempts, abort_requested, scheduled_at, priority, queue_name, lock)
    ON {schema}.procrastinate_jobs TO {worker};
GRANT SELECT, INSERT ON {schema}.procrastinate_events TO {worker};
GRANT USAGE ON SEQUENCE {schema}.procrastinate_events_id_seq TO {worker};
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.procrastinate_workers TO {worker};
GRANT SELECT, INSERT ON {schema}.queue_workers TO {worker};
GRANT SELECT (id, number, expires, sealed, progress), UPDATE (progress, result) ON {schema}.jobs TO {worker};
"""
OWN_ROWS = """\
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.{table} TO {worker};
ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS replicas ON {schema}.{table};
CREATE POLICY replicas ON {schema}.{table} TO {replica} USING (true) WITH CHECK (true);
DROP POLICY IF EXISTS workers ON {schema}.{table};
CREATE POLICY workers ON {schema}.{table} TO {worker} USING (writer = current_user) WITH CHECK (writer = current_user);
"""


class Migration(NamedTuple):
    """`compatible` is the oldest version of the schema that a program may know to use the new one."""

    statements: str
    compatible: int
    read_library: Callable[[], str] | None = (
        None  # returns statements of a library, to execute before
    )


def read_procrastinate() -> str:
    """Return the tables of procrastinate.

    A new version of it needs a migration with the statements of its own.
    """
    try:
        from procrastinate.schema import SchemaManager
    except ImportError:
        message = "queues need the library procrastinate, which is not installed"
        raise ToolError(message, hint="run `pip install 'onetool-run[postgres]'`") from None
    return str(SchemaManager.get_schema())


MIGRATIONS = (
    Migration(
        f"{STATE}{NEWER}{TRIM_AUDIT}{TRIM_SENT_CALLS}{JOBS}{STATISTICS}",
        compatible=1,
        read_library=read_procrastinate,
    ),
)
VERSION = len(MIGRATIONS)


def read_version(connection: "Connection[Any]") -> tuple[int, int]:
    """Return the version of the tables, 0 if there are none, and the oldest version that a program
    must know.
    """
    if connection.execute("SELECT to_regclass(%s)", (VERSIONS,)).fetchone() == (None,):
        return 0, 0
    query = f"SELECT version, compatible FROM {VERSIONS} ORDER BY version DESC LIMIT 1"  # noqa: S608 - a constant
    found = connection.execute(query).fetchone()
    return (0, 0) if found is None else (int(found[0]), int(found[1]))


def check_version(connection: "Connection[Any]", place: str, supported: int = VERSION) -> None:
    """Raise an error if this program cannot use the tables: it is too old or too new for them."""
    compare_version(*read_version(connection), place, supported)


def compare_version(version: int, compatible: int, place: str, supported: int = VERSION) -> None:
    """Raise an error if this program cannot use tables of this version."""
    reject_newer(compatible, supported, f"the schema of {place}")
    if version < supported:
        what = (
            "has no tables"
            if version == 0
            else f"has tables of version {version}, this OneTool needs {supported}"
        )
        raise ToolError(
            f"{place} {what}", hint=f"run `{COMMAND}` with the migration role", code=OUTDATED
        )


def migrate(
    connection: "Connection[Any]", place: str, migrations: tuple[Migration, ...] = MIGRATIONS
) -> tuple[int, int]:
    """Apply the missing migrations in one transaction, and return the old and the new version.

    Processes that migrate at the same time wait for each other. Tables of a newer OneTool are left
    unchanged.
    """
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        before, compatible = read_version(connection)
        reject_newer(compatible, len(migrations), f"the schema of {place}")
        if before >= len(migrations):
            return before, before
        if before == 0:
            connection.execute(CREATE)
        connection.execute(f"SET LOCAL search_path = {SCHEMA}")
        for number, migration in enumerate(migrations[before:], before + 1):
            if migration.read_library is not None:
                connection.execute(migration.read_library().encode())
            connection.execute(migration.statements)
            insert = f"INSERT INTO {VERSIONS} (version, compatible) VALUES (%s, %s)"  # noqa: S608
            connection.execute(insert, (number, migration.compatible))
    return before, len(migrations)


def render_grants(replica: str, worker: str) -> str:
    """Return the SQL that the owner of the tables executes, after each upgrade, to grant both roles
    their rights.

    Replicas can only append to the audit log and to `sent_calls`. Functions of the owner delete old
    rows.
    """
    for name in (replica, worker):
        if not NAME.fullmatch(name):
            raise ArgumentError(f"invalid role {name!r}: expected lower-case letters, digits and _")
    names = {"schema": SCHEMA, "replica": replica, "worker": worker}
    jobs = JOB_GRANTS.format(**names)
    return (
        GRANTS.format(**names)
        + jobs
        + "".join(OWN_ROWS.format(table=table, **names) for table in WORKER_TABLES)
    )
