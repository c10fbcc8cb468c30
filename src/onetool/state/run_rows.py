"""Sealed rows of runs, calls and grants, and the quotas for them.

Each row contains a sealed record; its other columns are copies for queries, which are compared when
it is read.
"""

import json
from dataclasses import fields, replace
from typing import NamedTuple

from onetool.errors import StorageError
from onetool.state.run_records import (
    CallState,
    DurableCall,
    Grant,
    RunRecord,
    RunState,
)
from onetool.state.sqlite_database import Row, StateDatabase, Transaction
from onetool_child.json_types import JsonObject

KIND = "runs"
CHECK_SHARE = 200  # by how much each process may exceed a maximum, as a share of it
PRUNE_RUNS = 100  # the oldest ended runs, deleted when there are too many
SELECT_RUNS = "SELECT id, agent, state, owner, expires, sealed FROM runs"
SELECT_CALLS = "SELECT run, number, state, sealed FROM calls"
SELECT_GRANTS = """
SELECT id, agent, run, "left", expires, sealed, (SELECT count(*) FROM sent_calls WHERE permit = grants.id) FROM grants
"""
OLDEST = "ended > 0 AND id IN (SELECT id FROM runs WHERE ended > 0 ORDER BY ended, id LIMIT ?)"


class RunQuota(NamedTuple):
    """Maximum numbers of stored runs, and of their bytes."""

    waiting: int = 1_000
    waiting_per_agent: int = 200
    total: int = 10_000
    total_bytes: int = 1 << 30


DEFAULT_QUOTA = RunQuota()


class RunRows:
    """The rows of runs in a database. Records are sealed when they are written."""

    def __init__(self, database: StateDatabase, quota: RunQuota) -> None:
        self._database = database
        self._quota = quota
        self._unchecked = 0  # new runs before their number is checked again
        self._unchecked_bytes = 0  # to be written before the size is checked again

    def _run_columns(self, run: RunRecord) -> Row:
        return run.agent, run.state, run.owner, run.expires, self._seal(run, f"run {run.id}")

    def _call_columns(self, run_id: str, call: DurableCall) -> Row:
        sealed = self._seal(call, f"call {call.number} of run {run_id}")
        return run_id, call.number, call.state, sealed

    def _grant_columns(self, grant: Grant) -> Row:
        sealed = self._seal(grant, f"grant {grant.id}")
        return grant.id, grant.agent, grant.run, grant.left, grant.expires, sealed

    def _read_run(self, row: Row) -> RunRecord:
        run_id, *columns, sealed = row
        record = self._open(sealed, f"run {run_id}")
        record["state"] = RunState(record["state"])
        run = RunRecord(**record)
        self._compare(columns, [run.agent, run.state, run.owner, run.expires], f"run {run_id}")
        return run

    def _read_call(self, row: Row) -> DurableCall:
        run_id, number, state, sealed = row
        about = f"call {number} of run {run_id}"
        record = self._open(sealed, about)
        record["state"] = CallState(record["state"])
        record["effects"] = tuple(record["effects"])
        call = DurableCall(**record)
        self._compare(state, call.state, about)
        return call

    def _read_grant(self, row: Row) -> Grant:
        """Return the grant with the calls that are left."""
        grant_id, *columns, sealed, uses = row
        record = self._open(sealed, f"grant {grant_id}")
        record["varying"] = tuple(record["varying"])
        grant = Grant(**record)
        sealed_columns = [grant.agent, grant.run, grant.left, grant.expires]
        self._compare(columns, sealed_columns, f"grant {grant_id}")
        return replace(grant, left=grant.left - uses)

    def _seal(self, record: RunRecord | DurableCall | Grant, about: str) -> bytes:
        sealer = self._database.load_sealer(KIND)
        sealed = sealer.seal(_encode(record), about.encode())
        self._unchecked_bytes -= len(sealed)
        return sealed

    def _open(self, sealed: bytes, about: str) -> JsonObject:
        sealer = self._database.load_sealer(KIND)
        record: JsonObject = json.loads(sealer.open(sealed, about.encode()))
        return record

    def _compare(self, columns: object, sealed: object, about: str) -> None:
        if columns != sealed:
            sealer = self._database.load_sealer(KIND)
            raise sealer.make_error(f"{about} was changed in {self._database.place}")

    def _select_runs(self, where: str, *values: object) -> list[RunRecord]:
        rows = self._database.select(f"{SELECT_RUNS} {where}", *values)
        return [self._read_run(row) for row in rows]

    def _fetch_runs(self, database: Transaction, where: str, *values: object) -> list[RunRecord]:
        rows = database.execute(f"{SELECT_RUNS} {where}", values)
        return [self._read_run(row) for row in rows]

    def _fetch_calls(self, database: Transaction, where: str, *values: object) -> list[DurableCall]:
        rows = database.execute(f"{SELECT_CALLS} {where}", values)
        return [self._read_call(row) for row in rows]

    # --- quotas -----------------------------------------------------------------------------------

    def _check_total(self, database: Transaction) -> None:
        """Make room for a new run: the oldest runs that have ended are deleted first."""
        self._unchecked -= 1
        if self._unchecked > 0:  # counting takes longer the more runs there are
            return
        self._unchecked = max(1, self._quota.total // CHECK_SHARE)
        count = "SELECT count(*) FROM runs"
        if database.execute(count).fetchone()[0] >= self._quota.total:
            delete_runs(database, OLDEST, PRUNE_RUNS)
            if database.execute(count).fetchone()[0] >= self._quota.total:
                raise self._full_error(
                    f"{self._quota.total:,} runs are stored, and none of them has ended"
                )

    def _check_bytes(self, database: Transaction) -> None:
        """Make room before a call is sent: the oldest runs that have ended are deleted first."""
        if self._unchecked_bytes > 0:
            return
        limit = self._quota.total_bytes
        while database.execute(self._database.size_query).fetchone()[0] >= limit:
            if not delete_runs(database, OLDEST, PRUNE_RUNS):
                message = (
                    f"the journal of runs is full ({limit:,} bytes), and none of them has ended"
                )
                hint = "wait until runs have ended, or answer those that wait: `onetool approvals`"
                raise StorageError(message, hint=hint)
        self._unchecked_bytes = limit // CHECK_SHARE

    def _check_waiting(self, database: Transaction, agent: str) -> None:
        waiting = "SELECT count(*), count(*) FILTER (WHERE agent = ?) FROM runs WHERE state = ?"
        total, of_agent = database.execute(waiting, (agent, RunState.WAITING)).fetchone()
        if of_agent >= self._quota.waiting_per_agent:
            raise self._full_error(f"{of_agent:,} runs of agent {agent} wait for approval")
        if total >= self._quota.waiting:
            raise self._full_error(f"{total:,} runs wait for approval")

    def _full_error(self, message: str) -> StorageError:
        hint = "approve or reject them: `onetool approvals`"
        return StorageError(f"cannot store another run: {message}", hint=hint)


def _encode(record: RunRecord | DurableCall | Grant) -> bytes:
    import orjson

    try:
        return orjson.dumps(record, default=dict)
    except TypeError:  # an unpaired surrogate, or an integer of more than 64 bits
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        return json.dumps(values, default=dict).encode()


def delete_runs(database: Transaction, where: str, value: float) -> int:
    """Delete runs with their calls and grants; return the number of runs."""
    ids = database.execute(f"SELECT id FROM runs WHERE {where}", (value,)).fetchall()  # noqa: S608 - a constant
    for statement in ("calls WHERE run = ?", "grants WHERE run = ?", "runs WHERE id = ?"):
        database.executemany(f"DELETE FROM {statement}", ids)  # noqa: S608
    return len(ids)
