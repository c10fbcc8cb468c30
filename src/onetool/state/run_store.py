"""Durable runs in SQLite or PostgreSQL: their calls, decisions and grants."""

import time
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from onetool.errors import ApprovalRequired, CallRejected, ToolError
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
from onetool.state.run_rows import (
    DEFAULT_QUOTA,
    KIND,
    SELECT_CALLS,
    SELECT_GRANTS,
    RunQuota,
    RunRows,
    delete_runs,
)
from onetool.state.sqlite_database import SealedDatabase, StateDatabase, Transaction
from onetool.util.clock_watch import Clock, ClockWatch
from onetool.util.text import pluralize, quote

VERSION = 1
RETENTION_SECONDS = 7 * 86_400.0  # of runs that have ended
# For which it is known that a call was sent: longer than a run or grant is valid. See
# `trim_sent_calls` in schema.py.
SENT_SECONDS = 32 * 86_400.0
MAX_ORPHANS = 1_000
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
KEPT_FIELDS = ("state", "reason", "owner", "outcome")  # of a stored run
UNSENT = frozenset({CallState.PENDING, CallState.APPROVED, CallState.SENT})


class RunTables(RunRows):
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
        super().__init__(database, quota)
        self._owners = owners
        self.owner = owners.own_id
        self._clock = clock_watch.clock
        self._clock_watch = clock_watch

    # --- runs -------------------------------------------------------------------------------------

    def put_run(self, run: RunRecord, calls: Iterable[DurableCall] = ()) -> None:
        """Store a run with its calls so far. It survives a power failure if a call is pending.

        A run that is stored keeps its state, reason, owner and outcome.
        """
        calls = list(calls)
        is_durable = any(call.state is CallState.PENDING for call in calls)
        with self._change(is_durable=is_durable) as database:
            self._owners.hold()
            where = f"WHERE id = ? {self._database.row_lock}"
            stored_runs = self._fetch_runs(database, where, run.id)
            if stored_runs:
                (stored,) = stored_runs
                kept = {name: getattr(stored, name) for name in KEPT_FIELDS}
                self._update_run(database, replace(run, **kept))
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
        reason = reason or run.reason
        outcome = outcome or run.outcome
        self._update_run(database, replace(run, state=state, reason=reason, outcome=outcome))

    def get_run(self, run_id: str) -> RunRecord | None:
        runs = self._select_runs("WHERE id = ?", run_id)
        return runs[0] if runs else None

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
        """Open runs without pending calls whose owner is this process or dead, newest first."""
        waiting = "SELECT 1 FROM calls WHERE run = runs.id AND state IN ('pending', 'unknown')"
        where = f"WHERE state IN ({_marks(OPEN)}) AND NOT EXISTS ({waiting})"
        query = f"SELECT id, owner FROM runs {where} ORDER BY rowid DESC LIMIT ?"  # noqa: S608 - constants
        rows = self._database.select(query, *OPEN, MAX_ORPHANS)
        owners = {owner for _, owner in rows}
        ended = {owner for owner in owners if owner == self.owner or not self.is_alive(owner)}
        return [run_id for run_id, owner in rows if owner in ended]

    def claim(self, run_id: str, owner: str) -> bool:
        """Make `owner` execute the run, unless another live process does.

        Return False if the run does not exist or has ended.
        """
        with self._change() as database:
            if owner == self.owner:
                self._owners.hold()
            where = f"WHERE id = ? {self._database.claim_lock}"
            runs = self._fetch_runs(database, where, run_id)
            if not runs or runs[0].state in ENDED:
                return False
            (run,) = runs
            if run.owner != owner and self.is_alive(run.owner):
                return False
            self._update_run(database, replace(run, owner=owner))
        return True

    def _is_lost(self, run: RunRecord, state: RunState) -> bool:
        """Return whether another replica has continued the run; only that one changes its state.

        A replica that cannot continue a dead replica's run halts it.
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
            row = database.execute(query, (run_id,)).fetchone()
            if row is None:
                raise _missing_run(run_id)
            agent, state, owner = row
            sent_count = sum(call.state is CallState.SENT for call in calls)
            if sent_count and self._owners.may_be_lost and owner != self.owner:
                raise CallRejected(f"another replica has continued run {run_id}", run=run_id)
            if state in ENDED and any(call.state in UNSENT for call in calls):
                raise CallRejected(f"run {run_id} is {state}", run=run_id)
            if sent_count:
                self._check_bytes(database)
            if grant is not None:
                self._use_grant(database, grant, sent_count, run_id, agent)
            for call in calls:
                self._write_call(database, run_id, call, is_granted=grant is not None)
                if call.state is CallState.SENT and (call.by or grant is not None):
                    self._record_sending(database, run_id, call, grant)

    def list_calls(
        self, run_id: str, states: Collection[CallState] | None = None
    ) -> list[DurableCall]:
        chosen = tuple(CallState) if states is None else tuple(states)
        where = f"WHERE run = ? AND state IN ({_marks(chosen)}) ORDER BY number"
        rows = self._database.select(f"{SELECT_CALLS} {where}", run_id, *chosen)
        return [self._read_call(row) for row in rows]

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
                cancelled = replace(run, state=RunState.CANCELLED, reason=decision.reason)
                self._update_run(database, cancelled)
            elif decision.is_approved and numbers:
                for grant in decision.grants:
                    database.execute(INSERT_GRANT, self._grant_columns(grant))
        return numbers

    def resolve(
        self, run_id: str, number: int, state: CallState, *, by: str, result: str | None = None
    ) -> bool:
        """Set the state of an `unknown` call, as a person says. Return whether it was unknown."""
        with self._change(is_durable=True) as database:
            self._get_run(database, run_id)
            where = "WHERE run = ? AND number = ? AND state = 'unknown'"
            calls = self._fetch_calls(database, where, run_id, number)
            for call in calls:
                attempt = self._get_last_attempt(database, run_id, number) + 1
                answered = replace(call, state=state, by=by, result=result, attempt=attempt)
                self._replace_call(database, run_id, answered)
        return bool(calls)

    def list_grants(self, agent: str, run_id: str) -> list[Grant]:
        """Return the grants for this run that have calls left and have not expired."""
        where = "WHERE agent = ? AND coalesce(run = ?, true) ORDER BY rowid"
        rows = self._database.select(f"{SELECT_GRANTS} {where}", agent, run_id)
        grants = [self._read_grant(row) for row in rows]
        return [grant for grant in grants if grant.left > 0 and not self._is_past(grant.expires)]

    # --- cleanup ----------------------------------------------------------------------------------

    def delete_expired(self, now: float) -> int:
        """Expire unanswered runs and delete old ended runs. Return how many there were.

        After a jump of the clock, nothing is expired or deleted for a while: the clock may be
        wrong.
        """
        if not self._clock_watch.is_reliable() or not self._database.select(ANY_ROW):
            return 0
        with self._change() as database:
            where = f"WHERE state IN ({_marks(UNANSWERED)}) AND expires > 0 AND expires <= ?"
            where += f" {self._database.claim_lock}"
            expired = self._fetch_runs(database, where, *UNANSWERED, now)
            rejection = Decision(is_approved=False, by="", reason="expired")
            for run in expired:
                self._answer_pending(database, run.id, rejection)
                self._update_run(database, replace(run, state=RunState.EXPIRED))
            deleted = delete_runs(database, "ended > 0 AND ended <= ?", now - RETENTION_SECONDS)
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
        """Begin a transaction. Durable ones, which have people's decisions, are announced."""
        return self._database.transaction(kind=KIND, is_durable=is_durable, is_announced=is_durable)

    def _get_run(self, database: Transaction, run_id: str) -> RunRecord:
        runs = self._fetch_runs(database, f"WHERE id = ? {self._database.row_lock}", run_id)
        if not runs:
            raise _missing_run(run_id)
        return runs[0]

    def _update_run(self, database: Transaction, run: RunRecord) -> None:
        database.execute(UPDATE_RUN, (*self._run_columns(run), run.id))
        if run.state in ENDED:
            set_end = "UPDATE runs SET ended = ? WHERE id = ? AND ended = 0"
            database.execute(set_end, (self._clock(), run.id))

    def _write_call(
        self, database: Transaction, run_id: str, call: DurableCall, *, is_granted: bool = False
    ) -> None:
        columns = self._call_columns(run_id, call)
        needs_no_person = is_granted or not call.by
        row = (*columns, call.is_idempotent, needs_no_person)
        if not database.execute(WRITE_CALL, row).rowcount:
            where = "WHERE run = ? AND number = ?"
            (stored,) = self._fetch_calls(database, where, run_id, call.number)
            name = f"call {call.number} of run {run_id} ({call.tool})"
            message = f"{name} is {stored.state}: it cannot be sent"
            raise CallRejected(message, run=run_id, reason=stored.reason)

    def _record_sending(
        self, database: Transaction, run_id: str, call: DurableCall, grant: str | None
    ) -> None:
        """Record the sending of an approved call. One that is not idempotent is sent once."""
        attempt = call.attempt
        if call.is_idempotent:
            attempt = self._get_last_attempt(database, run_id, call.number) + 1
        row = (run_id, call.number, attempt, grant or "", self._clock())
        if not database.execute(INSERT_SENT, row).rowcount:
            name = f"call {call.number} of run {run_id} ({call.tool})"
            raise CallRejected(f"{name} was sent before: it cannot be sent again", run=run_id)

    def _get_last_attempt(self, database: Transaction, run_id: str, number: int) -> int:
        (attempt,) = database.execute(LAST_ATTEMPT, (run_id, number)).fetchone()
        return int(attempt)

    def _replace_call(self, database: Transaction, run_id: str, call: DurableCall) -> None:
        database.execute(REPLACE_CALL, self._call_columns(run_id, call))

    def _answer_pending(self, database: Transaction, run_id: str, answer: Decision) -> list[int]:
        """Approve or reject pending calls. An answer without a reason keeps that of the call."""
        where = "WHERE run = ? AND state = 'pending' ORDER BY number"
        pending = self._fetch_calls(database, where, run_id)
        chosen = [call for call in pending if answer.calls is None or call.number in answer.calls]
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
            is_for_run = grant.agent == agent and grant.run in (None, run_id)
            if is_for_run and grant.left >= count and not self._is_past(grant.expires):
                return
        calls = pluralize(count, "more call")
        message = f"grant {grant_id} does not cover {calls}: it expired or is used up"
        raise ApprovalRequired(message, run=run_id)

    def _is_past(self, moment: float) -> bool:
        return 0 < moment <= self._clock()


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


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def _missing_run(run_id: str) -> ToolError:
    return ToolError(f"no run {quote(run_id)}", type="not_found", run=run_id)
