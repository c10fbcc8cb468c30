"""The status of the database, for `onetool store status`."""

from typing import Any

from onetool.postgres.jobs import list_queues
from onetool.state.postgres_database import Database
from onetool.state.sealed_rows import Leases

SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('onetool', 'onetool_stats') AND c.relkind = 'r'
"""
REPLICAS = """
SELECT description, version, extract(epoch FROM clock_timestamp() - seen) FROM servers
WHERE seen > clock_timestamp() - make_interval(secs => ?) ORDER BY seen DESC
"""


def describe_status(database: Database) -> dict[str, Any]:
    """Return the version and the size of the tables, the replicas that are alive, and the queues."""
    ((version,),) = database.select("SELECT max(version) FROM schema_versions")
    ((size,),) = database.select(SIZE)
    replicas = [
        {"description": description, "schema": known, "seconds": round(float(seconds), 1)}
        for description, known, seconds in database.select(REPLICAS, Leases.SECONDS)
    ]
    return {
        "store": database.place,
        "schema": int(version),
        "megabytes": round(int(size) / (1 << 20), 1),
        "replicas": replicas,
        "queues": [queue._asdict() for queue in list_queues(database)],
    }
