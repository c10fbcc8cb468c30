"""The tables, as numbered migrations. A released migration is never changed; a new one is appended.

A column `rowid` numbers the rows in the order in which they were inserted, as SQLite does, so that
both databases share their statements. `token` is the ID of a token, never the token.
"""

from collections.abc import Callable
from typing import NamedTuple

from onetool.errors import ToolError
from onetool.state.stats.rollup import BOUNDS
from onetool.state.stats.tables import POSTGRES_SCHEMA

SCHEMA = "onetool"


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
MIGRATIONS = (
    Migration(
        f"{STATE}{NEWER}{TRIM_AUDIT}{TRIM_SENT_CALLS}{JOBS}{STATISTICS}",
        compatible=1,
        read_library=read_procrastinate,
    ),
)
VERSION = len(MIGRATIONS)
