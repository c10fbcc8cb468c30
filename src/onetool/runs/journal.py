"""The journal: an application's stored runs, and what is stored for each one.

All writes use one thread, in order. Nothing is stored before a run has an effect or asks a person.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from onetool.state.run_records import DurableCall, Grant, RunRecord, RunState
from onetool.state.run_store import RunTables
from onetool.util.background_tasks import BackgroundTasks

SAVE_SECONDS = (
    0.005  # after a call with an effect, for the next one, which is written in the same transaction
)
END_SECONDS = 0.005  # for other runs to end, which are written in the same transaction
P = ParamSpec("P")
T = TypeVar("T")


class Journal:
    """The stored runs. `active` has the IDs that this process executes."""

    def __init__(self) -> None:
        self.active: set[str] = set()
        self.saving = BackgroundTasks()  # finished before the application is closed
        self._ending: list[tuple[str, list[DurableCall], RunState]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onetool-journal")

    def configure(self, store: RunTables, seconds: float) -> None:
        """Use this store; runs that wait expire after these seconds."""
        self.store = store
        self._seconds = seconds

    async def close(self) -> None:
        await self.saving.wait()
        self._thread.shutdown(wait=True)

    async def call(
        self, method: Callable[Concatenate[RunTables, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a method of the store in the thread."""
        bound_method = getattr(self.store, method.__name__)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(bound_method, *args, **kwargs))

    @property
    def next_expiry(self) -> float:
        return self.store.now() + self._seconds

    def end_later(self, run_id: str, calls: list[DurableCall], state: RunState) -> None:
        """Record the last calls and the final state, in one transaction with other runs."""
        self._ending.append((run_id, calls, state))
        if len(self._ending) == 1:
            self.saving.start(self._end_all())

    async def _end_all(self) -> None:
        await asyncio.sleep(END_SECONDS)
        ended = self._ending
        self._ending = []
        try:
            await self.call(RunTables.end_runs, ended)
        finally:
            self.active.difference_update(run_id for run_id, _, _ in ended)


class JournalEntry:
    """One run in the journal: its record, and the calls that are not written yet."""

    def __init__(self, journal: Journal, record: RunRecord) -> None:
        self.record = record
        self.is_stored = bool(record.owner)
        self._journal = journal
        self._unsaved: dict[int, DurableCall] = {}
        self._saving = asyncio.Lock()
        self._is_saving_soon = False

    # --- calls ------------------------------------------------------------------------------------

    def add(self, call: DurableCall) -> None:
        """Write the call with the next one that is saved, or when the run ends."""
        self._unsaved[call.number] = call

    def save_soon(self) -> None:
        """Write what was added, unless the next call with an effect does so first."""
        if not self._is_saving_soon:
            self._is_saving_soon = True
            self._journal.saving.start(self._save_soon())

    async def _save_soon(self) -> None:
        await asyncio.sleep(SAVE_SECONDS)
        self._is_saving_soon = False
        await self.save()

    async def save(
        self, *calls: DurableCall, grant: str | None = None, survives_power_loss: bool = False
    ) -> None:
        """Write these calls and those that were added, in one transaction.

        They use the grant with this ID.
        """
        async with self._saving:
            written = {**self._unsaved, **{call.number: call for call in calls}}
            if not written:
                return
            self._unsaved = {}
            try:
                await self._write(list(written.values()), grant, survives_power_loss)
            except BaseException:
                self._unsaved = {**written, **self._unsaved}
                for call in calls:
                    self._unsaved.pop(call.number, None)
                raise

    async def _write(
        self, calls: list[DurableCall], grant: str | None, survives_power_loss: bool
    ) -> None:
        if not (self.is_stored or grant or survives_power_loss):
            await self.store(calls)  # one transaction, for the first write under `allow`
            return
        await self.store()
        await self._journal.call(
            RunTables.write_calls,
            self.record.id,
            calls,
            grant=grant,
            survives_power_loss=survives_power_loss,
        )

    def take_unsaved(self) -> list[DurableCall]:
        """Return the calls that are not written yet. The caller writes them."""
        calls = list(self._unsaved.values())
        self._unsaved = {}
        return calls

    async def list_grants(self) -> list[Grant]:
        return await self._journal.call(RunTables.list_grants, self.record.agent, self.record.id)

    # --- the run ----------------------------------------------------------------------------------

    async def store(self, calls: Iterable[DurableCall] = (), *, again: bool = False) -> None:
        """Store the run before its first call or with it. `again` lets it expire later."""
        if self.is_stored and not again:
            return
        journal = self._journal
        self.record = replace(self.record, owner=journal.store.owner, expires=journal.next_expiry)
        journal.active.add(self.record.id)
        await journal.call(RunTables.put_run, self.record, calls)
        self.is_stored = True

    async def update(self, **changes: Any) -> None:
        """Change the record, also where it is stored."""
        self.record = replace(self.record, **changes)
        if self.is_stored:
            await self._journal.call(RunTables.put_run, self.record)

    async def set_state(
        self, state: RunState, *, reason: str = "", outcome: str | None = None
    ) -> None:
        if self.record.state is not state:
            self.record = replace(self.record, state=state)
            await self._journal.call(
                RunTables.set_state, self.record.id, state, reason=reason, outcome=outcome
            )

    def end_later(self, error: str | None) -> None:
        """Record how a call, or a run that cannot be replayed, has ended."""
        if self.is_stored:
            state = RunState.FAILED
            if error is None:
                state = RunState.DONE
            elif error == "cancelled":
                state = RunState.CANCELLED
            self._journal.end_later(self.record.id, self.take_unsaved(), state)
