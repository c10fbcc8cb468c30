"""Jobs of queues when state is copied to files, which have no queues.

A job that is open would be lost, or executed after its run was continued elsewhere. A job that has ended is needed only
until its run has read the result; from then on the run has it. So nothing is copied, and nothing may be open.
"""

from typing import Final

from onetool.errors import ToolError
from onetool.postgres.job_sealing import JobSealer
from onetool.postgres.jobs import list_queues, name_job
from onetool.postgres.state import PostgresState
from onetool.runs.model import CallState, RunState

ENDED: Final = "SELECT id, sealed FROM jobs WHERE ended IS NOT NULL"
HINT: Final = "start a replica, and a worker for each queue with jobs; repeat the command when the jobs have ended"
MAX_RUNS: Final = 100_000


def reject_jobs(state: PostgresState) -> None:
    """Raise if a job is open, or has ended and its run has not read the result."""
    waiting = [
        f"{queue.name} ({queue.waiting} waiting, {queue.running} running)"
        for queue in list_queues(state.database)
        if queue.waiting or queue.running
    ]
    if waiting:
        message = "cannot copy the state to files while queues have open jobs"
        raise ToolError(f"{message}: {', '.join(waiting)}", hint=f"{HINT} (`onetool store status` shows them)")
    unread = _find_unread(state)
    if unread:
        message = "cannot copy the state to files while runs have not read the results of their jobs"
        raise ToolError(f"{message}: {', '.join(unread)}", hint=HINT)


def _find_unread(state: PostgresState) -> list[str]:
    """Return the runs with a call that was sent, has no result yet, and may have been a job that has ended."""
    rows = state.database.select(ENDED)
    if not rows:
        return []
    sealer = JobSealer(state.database.key)
    runs = {sealer.open(name_job(job), sealed).facts["run"] for job, sealed in rows}
    running = [run.id for run in state.runs.list_runs({RunState.RUNNING}, limit=MAX_RUNS) if run.id in runs]
    return [run for run in running if state.runs.list_calls(run, {CallState.SENT})]
