"""The most recent completed runs of all processes that share the directory, with their calls."""

from pathlib import Path

from onetool.stats.record import CallRecord, RunRecord, StatisticsSource, reading, to_column

MAX_RUNS = 200
MAX_CALLS = 1000  # of one run; further calls are only counted
COLUMNS = ", ".join(RunRecord._fields)
# ruff: noqa: S608 - queries are built from constants
RUNS = f"SELECT {COLUMNS} FROM runs {{which}} ORDER BY at DESC LIMIT {MAX_RUNS}"
RUN = f"SELECT {COLUMNS} FROM runs WHERE run_id = :run_id AND coalesce(agent = :agent, true)"
CALLS = f"SELECT {', '.join(CallRecord._fields)} FROM calls WHERE run_id = :run_id ORDER BY rowid LIMIT {MAX_CALLS}"


def recent_runs(source: Path | StatisticsSource, agent: str | None = None) -> list[RunRecord]:
    """Return the most recent runs of one agent or of all, the newest first. Blocks on disk access."""
    with reading(source) as database:
        query = RUNS.format(which="" if agent is None else "WHERE agent = :agent")
        return [RunRecord(*row) for row in database.execute(query, {"agent": to_column(agent)})]


def find_run(
    source: Path | StatisticsSource, run_id: str, agent: str | None = None
) -> tuple[RunRecord, list[CallRecord]] | None:
    """Return a run and its calls, ordered by start time; None if it does not exist."""
    filters = {"run_id": to_column(run_id), "agent": to_column(agent)}
    with reading(source) as database:
        row = database.execute(RUN, filters).fetchone()
        calls = [CallRecord(*each) for each in database.execute(CALLS, filters)]
    return None if row is None else (RunRecord(*row), sorted(calls, key=lambda call: call.at))
