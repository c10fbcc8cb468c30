"""The three roles: one creates the tables, replicas read and write them, workers reach jobs and
their results only.
"""

import re

from onetool.errors import ArgumentError
from onetool.state.schema import SCHEMA

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
JOBS = """\
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
    jobs = JOBS.format(**names)
    return (
        GRANTS.format(**names)
        + jobs
        + "".join(OWN_ROWS.format(table=table, **names) for table in WORKER_TABLES)
    )
