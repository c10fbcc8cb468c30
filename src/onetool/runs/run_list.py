"""One list of all runs: those that execute, those that wait for people, and those that have ended.

Events tell which runs this process executes, the journal has runs with effects or approvals, and the statistics have
those that have ended. A run that waits is listed once, with its state in the journal. All have the same filters, order
and pages, and the cost of a page does not depend on the number of runs that have ended.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from onetool.errors import ToolError
from onetool.state.run_records import ENDED, OPEN, UNANSWERED, DurableRunRecord, RunState
from onetool.state.run_store import RunTables
from onetool.stats import history
from onetool.stats.database import StatisticsDatabase
from onetool.stats.history import MAX_RUNS, Position, RunFilter
from onetool.stats.record import RunRecord
from onetool.util.redact import Redactor

MAX_OPEN = 1_000
MAX_ENDED = 200  # of the journal, which may be missing in the statistics
MAX_CODE_CHARS = 5_000
T = TypeVar("T")


class ListedRun(NamedTuple):
    """A run with its entry in the journal, if that says more than its record."""

    record: RunRecord
    durable: DurableRunRecord | None = None

    @property
    def state(self) -> str:
        """The state: `running`, `waiting` for a person, `completed` or `failed`."""
        if self.durable is not None and self.durable.state in UNANSWERED:
            return "waiting"
        if self.record.error_type:
            return "failed"
        is_done = self.durable is not None and self.durable.state is RunState.DONE
        return "completed" if is_done or self.record.seconds is not None else "running"


class ListPage(NamedTuple):
    runs: list[ListedRun]
    next: Position | None  # the position to continue from; None at the end


class AllRuns:
    """Runs from statistics and a journal, and `active` ones, which this process executes."""

    def __init__(
        self,
        statistics: Sequence[StatisticsDatabase],
        journal: RunTables,
        redact: Redactor,
        active: Iterable[RunRecord] = (),
        *,
        skips_unreadable: bool = False,
    ) -> None:
        """Create the list without disk access. With `skips_unreadable`, leave out sources with errors."""
        self._statistics = statistics
        self._journal = journal
        self._redact = redact
        self._active = active
        self._skips_unreadable = skips_unreadable

    def list_page(self, criteria: RunFilter, after: Position | None = None, size: int = MAX_RUNS) -> ListPage:
        """Return the runs after a position. A page may have fewer runs than `size`, or none, and not be the last."""
        pages = [
            page
            for database in self._statistics
            if (page := self._read(history.list_page, database, criteria, after, size)) is not None
        ]
        others = {run.record.run_id: run for run in self._list_others()}
        descending = criteria.order != "oldest"
        # Beyond the first position at which a source has more, the order of the merged runs is not known.
        ends = [page.next for page in pages if page.next is not None]
        border = None
        if ends:
            border = max(ends) if descending else min(ends)

        def is_between(position: Position) -> bool:
            if descending:
                return (after is None or position < after) and (border is None or position >= border)
            return (after is None or position > after) and (border is None or position <= border)

        waiting = {run_id for run_id, run in others.items() if run.durable is not None}
        finished: set[str] = set()
        runs: list[ListedRun] = []
        for page in pages:
            for record in page.runs:
                finished.add(record.run_id)
                if record.run_id not in waiting:
                    runs.append(ListedRun(record))
        for run_id, run in others.items():
            if criteria.matches(run.record, run.state) and (run_id in waiting or run_id not in finished):
                runs.append(run)
        placed = [(criteria.get_position(run.record), run) for run in runs]
        placed = sorted((item for item in placed if is_between(item[0])), key=lambda item: item[0], reverse=descending)
        if len(placed) > size:
            border = placed[size - 1][0]
        return ListPage([self._count_calls(run) for _, run in placed[:size]], border)

    def _list_others(self) -> Iterable[ListedRun]:
        """Yield runs that have not ended, and journal entries that are not in the statistics."""
        journal = self._journal
        runs = self._read(journal.list_runs, OPEN, limit=MAX_OPEN) or []
        newest = self._read(journal.list_runs, limit=MAX_ENDED) or []
        ended = {_get_run_id(run): run for run in newest if run.state in ENDED}
        for database in self._statistics if ended else ():
            for run_id in self._read(history.find_ids, database, list(ended)) or ():
                ended.pop(run_id, None)
        active: dict[str, RunRecord | None] = {record.run_id: record for record in self._active}
        for run in (*runs, *ended.values()):
            record = active.pop(_get_run_id(run), None)
            yield ListedRun(_to_record(run, self._redact) if record is None else record, run)
        yield from (ListedRun(record) for record in active.values() if record is not None)

    def _count_calls(self, run: ListedRun) -> ListedRun:
        """Count the calls if the run is only in the journal."""
        if run.durable is None or run.record.calls:
            return run
        calls = self._read(self._journal.list_calls, run.durable.id) or []
        return run._replace(record=run.record._replace(calls=len(calls)))

    def _read(self, function: Callable[..., T], /, *arguments: object, **options: object) -> T | None:
        try:
            return function(*arguments, **options)
        except (ToolError, OSError):
            if not self._skips_unreadable:
                raise
            return None


def _get_run_id(run: DurableRunRecord) -> str:
    return run.id.removeprefix("r_")


def _to_record(run: DurableRunRecord, redact: Redactor) -> RunRecord:
    """Return a run from the journal as a record. How long it took is not known."""
    is_run = run.kind == "run"
    failed = run.state in ENDED and run.state is not RunState.DONE
    return RunRecord(
        _get_run_id(run),
        run.agent,
        error_type=str(run.state) if failed else None,
        at=run.started,
        kind=run.kind,
        name="run" if is_run else str(json.loads(run.code or "{}").get("tool", "call")),
        client=run.client,
        command=redact.redact_prefix(run.code, MAX_CODE_CHARS) if is_run else "",
        actor=run.actor,
        token_id=run.token_id,
        directory=run.directory,
    )
