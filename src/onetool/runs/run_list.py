"""One list of all runs: those that execute, those that wait for people, and those that have ended.

Events tell which runs this process executes, the journal has runs with effects or approvals, and
the statistics have those that have ended. All have the same filters, order and pages, and the cost
of a page does not depend on the number of runs that have ended.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from onetool.errors import ToolError
from onetool.state.run_records import ENDED, OPEN, UNANSWERED, RunRecord, RunState
from onetool.state.run_store import RunTables
from onetool.state.stats import history
from onetool.state.stats.database import StatisticsDatabase
from onetool.state.stats.history import MAX_RUNS, Position, RunFilter, RunPage
from onetool.util.redact import Redactor

MAX_OPEN = 1_000
MAX_ENDED = 200  # of the journal, which may be missing in the statistics
MAX_CODE_CHARS = 5_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AllRuns:
    """Runs from statistics and a journal, and active ones, which this process executes."""

    statistics: Sequence[StatisticsDatabase]
    journal: RunTables
    redact: Redactor
    active: Iterable[RunRecord] = ()
    skips_unreadable: bool = False  # whether sources with errors are left out

    def list_page(
        self, criteria: RunFilter, after: Position | None = None, size: int = MAX_RUNS
    ) -> RunPage:
        """Return the runs after a position.

        A page may have fewer runs than `size`, or none, and not be the last.
        """
        runs: dict[str, RunRecord] = {}
        border: Position | None = None  # beyond it, the order of the merged runs is not known
        for database in self.statistics:
            page = self._read(history.list_page, database, criteria, after, size)
            if page is not None:
                runs.update((run.id, run) for run in page.runs)
                if page.next is not None and (
                    border is None or criteria.is_before(page.next, border)
                ):
                    border = page.next
        in_journal = self._add_others(runs, criteria)
        listed: list[RunRecord] = []
        for run in runs.values():
            position = criteria.get_position(run)
            is_next = after is None or criteria.is_before(after, position)
            if is_next and (border is None or not criteria.is_before(border, position)):
                listed.append(run)
        listed.sort(key=criteria.get_position, reverse=criteria.is_descending)
        if len(listed) > size:
            border = criteria.get_position(listed[size - 1])
        for run in listed[:size]:
            if not run.calls and run.id in in_journal:
                run.calls = len(self._read(self.journal.list_calls, run.id) or [])
        return RunPage(listed[:size], border)

    def _add_others(self, runs: dict[str, RunRecord], criteria: RunFilter) -> set[str]:
        """Add active runs and those of the journal to runs of the statistics.

        Return the IDs in the journal.
        """
        active = {run.id: run for run in self.active}
        in_journal: set[str] = set()
        for run in self._list_journal(list(runs)):
            in_journal.add(run.id)
            recorded = runs.pop(run.id, None)
            merged = merge(run, active.pop(run.id, None) or recorded, self.redact)
            if (
                criteria.matches(merged)
                if merged.seconds is None
                else criteria.matches_state(merged)
            ):
                runs[run.id] = merged
        for run in active.values():
            if criteria.matches(run):
                runs.setdefault(run.id, run)
        return in_journal

    def _list_journal(self, recorded: Collection[str]) -> Iterator[RunRecord]:
        """Yield runs of the journal that have not ended, that are recorded, or that are not in the
        statistics.
        """
        journal = self.journal
        yield from self._read(journal.list_runs, OPEN, limit=MAX_OPEN) or []
        if recorded:
            yield from self._read(journal.list_runs, ENDED, ids=recorded) or []
        newest = self._read(journal.list_runs, ENDED, limit=MAX_ENDED) or []
        ended = {run.id: run for run in newest if run.id not in recorded}
        for database in self.statistics if ended else ():
            for run_id in self._read(history.find_ids, database, list(ended)) or ():
                ended.pop(run_id, None)
        yield from ended.values()

    def _read(
        self, function: Callable[..., T], /, *arguments: object, **options: object
    ) -> T | None:
        try:
            return function(*arguments, **options)
        except (ToolError, OSError):
            if not self.skips_unreadable:
                raise
            return None


def merge(run: RunRecord, other: RunRecord | None, redact: Redactor) -> RunRecord:
    """Return a run of the journal, which knows its state, with what its events or the statistics
    tell about it.
    """
    has_ended = other is not None and other.seconds is not None
    if other is not None and has_ended and run.state is RunState.RUNNING:
        return other  # the journal learns of the end a moment later
    if other is not None and not (has_ended and run.state in UNANSWERED):
        return replace(other, state=run.state, reason=run.reason, expires=run.expires)
    code = redact.redact_prefix(run.code, MAX_CODE_CHARS) if run.kind == "run" else ""
    has_failed = run.state in ENDED and run.state is not RunState.DONE
    return replace(run, code=code, error_type=str(run.state) if has_failed else None)
