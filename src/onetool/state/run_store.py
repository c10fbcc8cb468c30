"""Durable runs in SQLite or PostgreSQL: their calls, decisions and grants.

Each row contains a sealed record; its other columns are copies for queries, which are compared when
it is read.
"""

import json
import time
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

from onetool.errors import ApprovalRequired, CallRejected, StorageError, ToolError
from onetool.state.owners import Owners
from onetool.state.run_records import (
    ENDED,
    OPEN,
    UNANSWERED,
    CallState,
    Decision,
    DurableCall,
    Grant,
    RunRecord,
    RunState,
)
from onetool.state.sqlite_database import Row, SealedDatabase, StateDatabase, Transaction
from onetool.util.clock_watch import Clock, ClockWatch
from onetool.util.text import pluralize, quote
from onetool_child.json_types import JsonObject

KIND = "runs"
VERSION = 1
RETENTION_SECONDS = 7 * 86_400.0  # of runs that have ended
# For which it is known that a call was sent: longer than a run or grant is valid. See
# `trim_sent_calls` in schema.py.
SENT_SECONDS = 32 * 86_400.0
CHECK_SHARE = 200  # by how much each process may exceed a maximum, as a share of it
MAX_ORPHANS = 1_000
PRUNE_RUNS = 100  # the oldest ended runs, deleted when there are too many
SCHEMA = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY, agent TEXT, state TEXT, owner TEXT, expires REAL, ended REAL DEFAULT 0, sealed BLOB
);
CREATE INDEX runs_state ON runs (state, agent);
CREATE TABLE calls (run TEXT, number INTEGER, state TEXT, sealed BLOB, PRIMARY KEY (run, number)) WITHOUT ROWID;
CREATE TABLE grants (id TEXT PRIMARY KEY, agent TEXT, run TEXT, "left" INTEGER, expires REAL, sealed BLOB);
CREATE TABLE sent_calls (
    run TEXT, number INTEGER, attempt INTEGER, permit TEXT, at REAL, PRIMARY KEY (run, number, attempt)
) WITHOUT ROWID;
CREATE INDEX sent_calls_permit ON sent_calls (permit);
CREATE INDEX sent_calls_at ON sent_calls (at)
"""
INSERT_RUN = "INSERT INTO runs (id, agent, state, owner, expires, sealed) VALUES (?, ?, ?, ?, ?, ?)"
UPDATE_RUN = "UPDATE runs SET agent = ?, state = ?, owner = ?, expires = ?, sealed = ? WHERE id = ?"
ANY_ROW = "SELECT 1 WHERE EXISTS (SELECT 1 FROM runs) OR EXISTS (SELECT 1 FROM sent_calls)"
SELECT_RUNS = "SELECT id, agent, state, owner, expires, sealed FROM runs"
SELECT_CALLS = "SELECT run, number, state, sealed FROM calls"
SELECT_GRANTS = """
SELECT id, agent, run, "left", expires, sealed, (SELECT count(*) FROM sent_calls WHERE permit = grants.id) FROM grants
"""
# A call is sent once, and a call that a person approved only if that is stored: the last two
# parameters are whether it may be repeated, and whether it needs no person.
WRITE_CALL = """
INSERT INTO calls VALUES (?, ?, ?, ?)
ON CONFLICT (run, number) DO UPDATE SET state = excluded.state, sealed = excluded.sealed
WHERE excluded.state <> 'sent' OR calls.state = 'approved' OR (calls.state IN ('sent', 'unknown') AND ?)
OR (calls.state = 'pending' AND ?)
"""
REPLACE_CALL = """
INSERT INTO calls VALUES (?, ?, ?, ?)
ON CONFLICT (run, number) DO UPDATE SET state = excluded.state, sealed = excluded.sealed
"""
INSERT_GRANT = "INSERT INTO grants VALUES (?, ?, ?, ?, ?, ?)"
# Calls that people approved. Replicas can only add rows, and those of the last month cannot be
# deleted, so an older row of a call or a grant allows no further call.
INSERT_SENT = "INSERT INTO sent_calls VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
LAST_ATTEMPT = "SELECT coalesce(max(attempt), 0) FROM sent_calls WHERE run = ? AND number = ?"
OLDEST = "ended > 0 AND id IN (SELECT id FROM runs WHERE ended > 0 ORDER BY ended, id LIMIT ?)"
UNSENT = frozenset({CallState.PENDING, CallState.APPROVED, CallState.SENT})


class RunQuota(NamedTuple):
    """Maximum numbers of stored runs, and of their bytes."""

    waiting: int = 1_000
    waiting_per_agent: int = 200
    total: int = 10_000
    total_bytes: int = 1 << 30


DEFAULT_QUOTA = RunQuota()


class RunTables:
    """The runs in a database, with their calls and grants. Nothing is opened before it is needed.

    `owner` identifies this process. It is alive from its first `put_run` or `claim` until it ends
    or calls `close`. The time 0 as an expiry means never.

    A process that may be taken for dead while it runs must not send calls of runs that it lost.
    """

    def __init__(
        self,
        database: StateDatabase,
        owners: Owners,
        clock_watch: ClockWatch,
        quota: RunQuota = DEFAULT_QUOTA,
    ) -> None:
        self._database = database
        self._owners = owners
        self.owner = owners.own_id
        self._quota = quota
        self._clock = clock_watch.clock
        self._clock_watch = clock_watch
        self._unchecked = 0  # new runs before their number is checked again
        self._unchecked_bytes = 0  # to be written before the size is checked again

    # --- runs -------------------------------------------------------------------------------------

    def put_run(self, run: RunRecord, calls: Iterable[DurableCall] = ()) -> None:
        """Store a run with its calls so far. It survives a power failure if a call is pending.

        A run that is stored keeps its state, reason, owner and outcome.
        """
        calls = list(calls)
        with self._change(
            is_durable=any(call.state is CallState.PENDING for call in calls)
        ) as database:
            self._owners.hold()
            for known in self._fetch_runs(
                database, f"WHERE id = ? {self._database.row_lock}", run.id
            ):
                stored = {
                    name: getattr(known, name) for name in ("state", "reason", "owner", "outcome")
                }
                self._update_run(database, replace(run, **stored))
                break
            else:
                self._check_total(database)
                self._check_bytes(database)
                if run.state is RunState.WAITING:
                    self._check_waiting(database, run.agent)
                database.execute(INSERT_RUN, (run.id, *self._run_columns(run)))
            for call in calls:
                self._write_call(database, run.id, call)

    def set_state(
        self, run_id: str, state: RunState, *, reason: str = "", outcome: str | None = None
    ) -> None:
        """Set the state. A run that has ended keeps its state; its outcome may be added."""
        with self._change() as database:
            self._set_state(database, run_id, state, reason, outcome)

    def end_runs(self, ended: Iterable[tuple[str, Iterable[DurableCall], RunState]]) -> None:
        """Write the last calls and the final states of runs, in one transaction."""
        with self._change() as database:
            for run_id, calls, state in ended:
                for call in calls:
                    self._write_call(database, run_id, call)
                self._set_state(database, run_id, state)

    def _set_state(
        self,
        database: Transaction,
        run_id: str,
        state: RunState,
        reason: str = "",
        outcome: str | None = None,
    ) -> None:
        run = self._get_run(database, run_id)
        if (run.state in ENDED and state is not run.state) or self._is_lost(run, state):
            return
        if state is RunState.WAITING and run.state is not state:
            self._check_waiting(database, run.agent)
        changed = replace(
            run, state=state, reason=reason or run.reason, outcome=outcome or run.outcome
        )
        self._update_run(database, changed)

    def get_run(self, run_id: str) -> RunRecord | None:
        return next(iter(self._select_runs("WHERE id = ?", run_id)), None)

    def list_runs(
        self,
        states: Collection[RunState] | None = None,
        *,
        agent: str | None = None,
        ids: Collection[str] | None = None,
        limit: int = 100,
    ) -> list[RunRecord]:
        """Return runs, newest first: all, or those in these states or with these IDs."""
        conditions = ["coalesce(agent = ?, true)"]
        values: list[object] = [agent]
        for column, chosen in (("state", states), ("id", ids)):
            if chosen is not None:
                conditions.append(f"{column} IN ({_marks(chosen)})")
                values += chosen
        where = f"WHERE {' AND '.join(conditions)} ORDER BY rowid DESC LIMIT ?"
        return self._select_runs(where, *values, limit if ids is None else len(ids))

    def list_orphans(self) -> list[str]:
        """Return the IDs of open runs that wait for nobody, of this process or of one that has
        ended; newest first.
        """
        waiting = "SELECT 1 FROM calls WHERE run = runs.id AND state IN ('pending', 'unknown')"
        where = (
            f"WHERE state IN ({_marks(OPEN)}) AND NOT EXISTS ({waiting}) ORDER BY rowid DESC"
            " LIMIT ?"
        )
        found = self._database.select(f"SELECT id, owner FROM runs {where}", *OPEN, MAX_ORPHANS)  # noqa: S608 - constants
        ended = {owner for _, owner in found if owner == self.owner or not self.is_alive(owner)}
        return [run_id for run_id, owner in found if owner in ended]

    def claim(self, run_id: str, owner: str) -> bool:
        """Make `owner` the process that executes the run, unless its current owner is another one
        that is alive.

        Return False if the run does not exist or has ended.
        """
        with self._change() as database:
            if owner == self.owner:
                self._owners.hold()
            where = f"WHERE id = ? {self._database.claim_lock}"
            (run,) = self._fetch_runs(database, where, run_id) or (None,)
            if (
                run is None
                or run.state in ENDED
                or (run.owner != owner and self.is_alive(run.owner))
            ):
                return False
            self._update_run(database, replace(run, owner=owner))
        return True

    def _is_lost(self, run: RunRecord, state: RunState) -> bool:
        """Return whether another replica has continued a run, so that only that one changes its
        state.

        A run of a replica that has ended is halted by one that cannot continue it.
        """
        if not self._owners.may_be_lost or run.owner in {"", self.owner}:
            return False
        return state is not RunState.HALTED or self.is_alive(run.owner)

    def now(self) -> float:
        """Return the time with which expiries are compared."""
        return self._clock()

    def is_alive(self, owner: str) -> bool:
        """Return whether the process with this ID still runs."""
        with self._database.storage_errors():
            return self._owners.is_alive(owner)

    def version(self) -> int:
        """Return a number that changes when any process has written. Takes microseconds."""
        return self._database.number(KIND)

    # --- calls ------------------------------------------------------------------------------------

    def write_calls(
        self,
        run_id: str,
        calls: Iterable[DurableCall],
        *,
        grant: str | None = None,
        survives_power_loss: bool = False,
    ) -> None:
        """Insert or replace calls by number.

        With `grant`, use one of its calls for each that is sent.

        Nothing is written if the grant does not cover them (ApprovalRequired), if the run has
        ended, or if a call is to be sent that was rejected, whose approval is not stored, or that
        was sent and is not idempotent (CallRejected).
        """
        calls = list(calls)
        with self._change(is_durable=survives_power_loss) as database:
            query = f"SELECT agent, state, owner FROM runs WHERE id = ? {self._database.row_lock}"  # noqa: S608
            found = database.execute(query, (run_id,)).fetchone()
            if found is None:
                raise _missing_run(run_id)
            agent, state, owner = found
            if (
                self._owners.may_be_lost
                and owner != self.owner
                and any(call.state is CallState.SENT for call in calls)
            ):
                raise CallRejected(f"another replica has continued run {run_id}", run=run_id)
            if state in ENDED and any(call.state in UNSENT for call in calls):
                raise CallRejected(f"run {run_id} is {state}", run=run_id)
            if any(call.state is CallState.SENT for call in calls):
                self._check_bytes(database)
            if grant is not None:
                sent = sum(call.state is CallState.SENT for call in calls)
                self._use_grant(database, grant, sent, run_id, agent)
            for call in calls:
                self._write_call(database, run_id, call, is_granted=grant is not None)
                if call.state is CallState.SENT and (call.by or grant is not None):
                    self._record_sending(database, run_id, call, grant)

    def list_calls(
        self, run_id: str, states: Collection[CallState] | None = None
    ) -> list[DurableCall]:
        chosen = tuple(CallState) if states is None else tuple(states)
        where = f"WHERE run = ? AND state IN ({_marks(chosen)}) ORDER BY number"
        return [
            self._read_call(row)
            for row in self._database.select(f"{SELECT_CALLS} {where}", run_id, *chosen)
        ]

    def decide(self, run_id: str, decision: Decision) -> list[int]:
        """Approve or reject pending calls and store grants, in one transaction.

        Return the numbers of the calls.

        The first answer wins: calls that are no longer pending are left unchanged, and without
        pending calls no grant is stored. An answer after the run has ended or expired changes
        nothing.
        """
        with self._change(is_durable=True) as database:
            run = self._get_run(database, run_id)
            if run.state in ENDED or self._is_past(run.expires):
                return []
            if decision.stops_run:
                decision = replace(decision, is_approved=False, calls=None)
            numbers = self._answer_pending(database, run_id, decision)
            if decision.stops_run:
                self._update_run(
                    database, replace(run, state=RunState.CANCELLED, reason=decision.reason)
                )
            elif decision.is_approved and numbers:
                for grant in decision.grants:
                    database.execute(INSERT_GRANT, self._grant_columns(grant))
        return numbers

    def resolve(
        self, run_id: str, number: int, state: CallState, *, by: str, result: str | None = None
    ) -> bool:
        """Set the state of a call that is `unknown`, as a person says.

        Return whether it was unknown.
        """
        with self._change(is_durable=True) as database:
            self._get_run(database, run_id)
            found = self._fetch_calls(
                database, "WHERE run = ? AND number = ? AND state = 'unknown'", run_id, number
            )
            for call in found:
                attempt = self._get_last_attempt(database, run_id, number) + 1
                answered = replace(call, state=state, by=by, result=result, attempt=attempt)
                self._replace_call(database, run_id, answered)
        return bool(found)

    def list_grants(self, agent: str, run_id: str) -> list[Grant]:
        """Return the grants for this run that have calls left and have not expired."""
        where = "WHERE agent = ? AND coalesce(run = ?, true) ORDER BY rowid"
        grants = [
            self._read_grant(row)
            for row in self._database.select(f"{SELECT_GRANTS} {where}", agent, run_id)
        ]
        return [grant for grant in grants if grant.left > 0 and not self._is_past(grant.expires)]

    # --- cleanup ----------------------------------------------------------------------------------

    def delete_expired(self, now: float) -> int:
        """Expire runs that nobody answered in time and delete old ended runs.

        Return the number of both.

        After a jump of the clock, nothing is expired or deleted for a while: the clock may be
        wrong.
        """
        if not self._clock_watch.is_reliable() or not self._database.select(ANY_ROW):
            return 0
        with self._change() as database:
            where = f"WHERE state IN ({_marks(UNANSWERED)}) AND expires > 0 AND expires <= ?"
            where += f" {self._database.claim_lock}"
            expired = self._fetch_runs(database, where, *UNANSWERED, now)
            for run in expired:
                self._answer_pending(
                    database, run.id, Decision(is_approved=False, by="", reason="expired")
                )
                self._update_run(database, replace(run, state=RunState.EXPIRED))
            deleted = _delete_runs(database, "ended > 0 AND ended <= ?", now - RETENTION_SECONDS)
            database.execute("DELETE FROM grants WHERE expires > 0 AND expires <= ?", (now,))
            database.execute(self._database.trim_sent_query, (now - SENT_SECONDS,))
        if deleted:
            self._database.vacuum()
        with self._database.storage_errors():
            self._owners.delete_stale()
        return len(expired) + deleted

    def close(self) -> None:
        """Give up the runs of this process."""
        self._owners.close()

    # --- rows -------------------------------------------------------------------------------------

    def _change(self, *, is_durable: bool = False) -> AbstractContextManager[Transaction]:
        """Begin a transaction.

        Decisions of people, which are durable, are announced to all replicas.
        """
        return self._database.transaction(kind=KIND, is_durable=is_durable, is_announced=is_durable)

    def _run_columns(self, run: RunRecord) -> Row:
        return run.agent, run.state, run.owner, run.expires, self._seal(run, f"run {run.id}")

    def _call_columns(self, run_id: str, call: DurableCall) -> Row:
        return (
            run_id,
            call.number,
            call.state,
            self._seal(call, f"call {call.number} of run {run_id}"),
        )

    def _grant_columns(self, grant: Grant) -> Row:
        return (
            grant.id,
            grant.agent,
            grant.run,
            grant.left,
            grant.expires,
            self._seal(grant, f"grant {grant.id}"),
        )

    def _read_run(self, row: Row) -> RunRecord:
        run_id, *columns, sealed = row
        record = self._open(sealed, f"run {run_id}")
        run = RunRecord(**{**record, "state": RunState(record["state"])})
        self._compare(columns, [run.agent, run.state, run.owner, run.expires], f"run {run_id}")
        return run

    def _read_call(self, row: Row) -> DurableCall:
        run_id, number, state, sealed = row
        about = f"call {number} of run {run_id}"
        record = self._open(sealed, about)
        call = DurableCall(
            **{**record, "state": CallState(record["state"]), "effects": tuple(record["effects"])}
        )
        self._compare(state, call.state, about)
        return call

    def _read_grant(self, row: Row) -> Grant:
        """Return the grant with the calls that are left."""
        grant_id, *columns, sealed, uses = row
        record = self._open(sealed, f"grant {grant_id}")
        grant = Grant(**{**record, "varying": tuple(record["varying"])})
        self._compare(
            columns, [grant.agent, grant.run, grant.left, grant.expires], f"grant {grant_id}"
        )
        return replace(grant, left=grant.left - uses)

    def _seal(self, record: RunRecord | DurableCall | Grant, about: str) -> bytes:
        sealed = self._database.load_sealer(KIND).seal(_encode(record), about.encode())
        self._unchecked_bytes -= len(sealed)
        return sealed

    def _open(self, sealed: bytes, about: str) -> JsonObject:
        record: JsonObject = json.loads(
            self._database.load_sealer(KIND).open(sealed, about.encode())
        )
        return record

    def _compare(self, columns: object, sealed: object, about: str) -> None:
        if columns != sealed:
            raise self._database.load_sealer(KIND).make_error(
                f"{about} was changed in {self._database.place}"
            )

    def _select_runs(self, where: str, *values: object) -> list[RunRecord]:
        return [
            self._read_run(row) for row in self._database.select(f"{SELECT_RUNS} {where}", *values)
        ]

    def _fetch_runs(self, database: Transaction, where: str, *values: object) -> list[RunRecord]:
        return [self._read_run(row) for row in database.execute(f"{SELECT_RUNS} {where}", values)]

    def _fetch_calls(self, database: Transaction, where: str, *values: object) -> list[DurableCall]:
        return [self._read_call(row) for row in database.execute(f"{SELECT_CALLS} {where}", values)]

    def _get_run(self, database: Transaction, run_id: str) -> RunRecord:
        for run in self._fetch_runs(database, f"WHERE id = ? {self._database.row_lock}", run_id):
            return run
        raise _missing_run(run_id)

    def _update_run(self, database: Transaction, run: RunRecord) -> None:
        database.execute(UPDATE_RUN, (*self._run_columns(run), run.id))
        if run.state in ENDED:
            database.execute(
                "UPDATE runs SET ended = ? WHERE id = ? AND ended = 0", (self._clock(), run.id)
            )

    def _write_call(
        self, database: Transaction, run_id: str, call: DurableCall, *, is_granted: bool = False
    ) -> None:
        columns = self._call_columns(run_id, call)
        needs_no_person = is_granted or not call.by
        if not database.execute(
            WRITE_CALL, (*columns, call.is_idempotent, needs_no_person)
        ).rowcount:
            (known,) = self._fetch_calls(
                database, "WHERE run = ? AND number = ?", run_id, call.number
            )
            message = (
                f"call {call.number} of run {run_id} ({call.tool}) is {known.state}: it cannot be"
                " sent"
            )
            raise CallRejected(message, run=run_id, reason=known.reason)

    def _record_sending(
        self, database: Transaction, run_id: str, call: DurableCall, grant: str | None
    ) -> None:
        """Record that a call is sent, which a person approved.

        A call that is not idempotent is sent once.
        """
        attempt = call.attempt
        if call.is_idempotent:
            attempt = self._get_last_attempt(database, run_id, call.number) + 1
        row = (run_id, call.number, attempt, grant or "", self._clock())
        if not database.execute(INSERT_SENT, row).rowcount:
            message = (
                f"call {call.number} of run {run_id} ({call.tool}) was sent before: it cannot be"
                " sent again"
            )
            raise CallRejected(message, run=run_id)

    def _get_last_attempt(self, database: Transaction, run_id: str, number: int) -> int:
        return int(database.execute(LAST_ATTEMPT, (run_id, number)).fetchone()[0])

    def _replace_call(self, database: Transaction, run_id: str, call: DurableCall) -> None:
        database.execute(REPLACE_CALL, self._call_columns(run_id, call))

    def _answer_pending(self, database: Transaction, run_id: str, answer: Decision) -> list[int]:
        """Approve or reject pending calls.

        The reason why a call waited is kept if the answer has none.
        """
        found = self._fetch_calls(
            database, "WHERE run = ? AND state = 'pending' ORDER BY number", run_id
        )
        chosen = [call for call in found if answer.calls is None or call.number in answer.calls]
        state = CallState.APPROVED if answer.is_approved else CallState.REJECTED
        for call in chosen:
            answered = replace(call, state=state, by=answer.by, reason=answer.reason or call.reason)
            self._replace_call(database, run_id, answered)
        return [call.number for call in chosen]

    def _use_grant(
        self, database: Transaction, grant_id: str, count: int, run_id: str, agent: str
    ) -> None:
        lock = f"SELECT 1 FROM grants WHERE id = ? {self._database.row_lock}"  # noqa: S608 - a constant
        database.execute(lock, (grant_id,)).fetchone()  # before its uses are counted
        for row in database.execute(f"{SELECT_GRANTS} WHERE id = ?", (grant_id,)).fetchall():
            grant = self._read_grant(row)
            is_valid = (
                grant.agent == agent
                and grant.run in (None, run_id)
                and not self._is_past(grant.expires)
            )
            if is_valid and grant.left >= count:
                return
        message = (
            f"grant {grant_id} does not cover {pluralize(count, 'more call')}: it expired or is"
            " used up"
        )
        raise ApprovalRequired(message, run=run_id)

    def _is_past(self, moment: float) -> bool:
        return 0 < moment <= self._clock()

    # --- quotas -----------------------------------------------------------------------------------

    def _check_total(self, database: Transaction) -> None:
        """Make room for a new run: the oldest runs that have ended are deleted first."""
        self._unchecked -= 1
        if self._unchecked > 0:  # counting takes longer the more runs there are
            return
        self._unchecked = max(1, self._quota.total // CHECK_SHARE)
        count = "SELECT count(*) FROM runs"
        if database.execute(count).fetchone()[0] >= self._quota.total:
            _delete_runs(database, OLDEST, PRUNE_RUNS)
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
            if not _delete_runs(database, OLDEST, PRUNE_RUNS):
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
        return StorageError(
            f"cannot store another run: {message}",
            hint="approve or reject them: `onetool approvals`",
        )


class RunStore(RunTables):
    """The runs of a data directory, in SQLite."""

    def __init__(
        self, directory: Path, quota: RunQuota = DEFAULT_QUOTA, clock: Clock = time.time
    ) -> None:
        self.database = SealedDatabase(directory / "runs" / "runs.db", SCHEMA, VERSION)
        owners = Owners(directory / "runs" / "owners")
        super().__init__(self.database, owners, ClockWatch(clock), quota)

    def close(self) -> None:
        self.database.close()
        super().close()


def _encode(record: RunRecord | DurableCall | Grant) -> bytes:
    import orjson

    try:
        return orjson.dumps(record, default=dict)
    except TypeError:  # an unpaired surrogate, or an integer of more than 64 bits
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        return json.dumps(values, default=dict).encode()


def _delete_runs(database: Transaction, where: str, value: float) -> int:
    """Delete runs with their calls and grants; return the number of runs."""
    found = database.execute(f"SELECT id FROM runs WHERE {where}", (value,)).fetchall()  # noqa: S608 - a constant
    for statement in ("calls WHERE run = ?", "grants WHERE run = ?", "runs WHERE id = ?"):
        database.executemany(f"DELETE FROM {statement}", found)  # noqa: S608
    return len(found)


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def _missing_run(run_id: str) -> ToolError:
    return ToolError(f"no run {quote(run_id)}", type="not_found", run=run_id)
