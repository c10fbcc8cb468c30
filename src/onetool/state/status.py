"""The status of the database, for `onetool store status`."""

from onetool.state.jobs import list_queues
from onetool.state.leases import Leases
from onetool.state.postgres_database import Database
from onetool.state.storage import QueueStatus, StateDescription

SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('onetool', 'onetool_stats') AND c.relkind = 'r'
"""
REPLICAS = """
SELECT description, version, extract(epoch FROM clock_timestamp() - seen) FROM servers
WHERE seen > clock_timestamp() - make_interval(secs => ?) ORDER BY seen DESC
"""


def describe_status(database: Database) -> StateDescription:
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
    lines = [f"{database.place}, schema version {version}, {megabytes} MB", f"replicas: {len(replicas)}"]
    lines += (f"  {replica['description']}, seen {replica['seconds']} s ago" for replica in replicas)
    for queue in queues:
        lines += _describe_queue(queue)
    return StateDescription(facts, lines)


def _describe_queue(queue: QueueStatus) -> list[str]:
    workers = [f"  worker: {worker}" for worker in queue.workers]
    if not workers:
        workers = [f"  no worker: run `onetool worker --queue {queue.name}`"]
    return [f"queue {queue.name}: {queue.waiting} waiting, {queue.running} running", *workers]
