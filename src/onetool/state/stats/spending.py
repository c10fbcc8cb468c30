"""Sums per token and month: runs, calls, tokens and cost, added up when runs are recorded.

Tokens are estimates: those of answers, which the model of the client read, and those of results,
which tools returned. The cost is the sum of `cost_per_call` of the called tools.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from onetool.state.stats.details import to_column

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onetool.state.run_records import RunRecord
    from onetool.state.sqlite_database import Transaction
    from onetool.state.stats.database import StatisticsDatabase

SCHEMA = """
CREATE TABLE spending (
    month TEXT, actor TEXT, agent TEXT, token_id TEXT, runs BIGINT, calls BIGINT, failed BIGINT, answer_tokens BIGINT,
    result_tokens BIGINT, cost DOUBLE PRECISION, last DOUBLE PRECISION, PRIMARY KEY (month, actor, agent, token_id)
);
"""
COLUMNS = (
    "month, actor, agent, token_id, runs, calls, failed, answer_tokens, result_tokens, cost, last"
)
MERGE = """ON CONFLICT (month, actor, agent, token_id) DO UPDATE SET
runs = spending.runs + excluded.runs, calls = spending.calls + excluded.calls,
failed = spending.failed + excluded.failed, answer_tokens = spending.answer_tokens + excluded.answer_tokens,
result_tokens = spending.result_tokens + excluded.result_tokens, cost = spending.cost + excluded.cost,
last = CASE WHEN spending.last > excluded.last THEN spending.last ELSE excluded.last END
"""
ADD = f"INSERT INTO spending ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) {MERGE}"  # noqa: S608 - constants
# Tokens that had the same name one after the other are shown as one.
READ = """
SELECT month, actor, agent, cast(sum(runs) AS BIGINT), cast(sum(calls) AS BIGINT), cast(sum(failed) AS BIGINT),
    cast(sum(answer_tokens) AS BIGINT), cast(sum(result_tokens) AS BIGINT), sum(cost), max(last)
FROM spending WHERE coalesce(month = :month, true) AND coalesce(agent = :agent, true)
AND coalesce(token_id = :token_id, true)
GROUP BY month, actor, agent ORDER BY month DESC, sum(calls) DESC, actor, agent LIMIT :limit
"""
DELETE_OLD = "DELETE FROM spending WHERE last < :before"
MAX_ROWS = 1_000
MONTH_FORMAT = "%Y-%m"


class Spending(NamedTuple):
    """The use of one token or subject in one month (UTC).

    `actor` is empty for clients of this machine.
    """

    month: str
    actor: str
    agent: str
    runs: int
    calls: int
    failed: int
    answer_tokens: int
    result_tokens: int
    cost: float
    last_used: float


def get_month(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(MONTH_FORMAT)


def add(database: "Transaction", runs: "Iterable[RunRecord]") -> None:
    """Add the runs to the sums, in the current transaction."""
    sums: dict[tuple[str, ...], list[Any]] = {}
    for run in runs:
        names = map(to_column, (run.actor, run.agent, run.token_id))
        total = sums.setdefault((get_month(run.at), *names), [0, 0, 0, 0, 0, 0.0, 0.0])
        counts = (
            run.kind == "run",
            run.calls,
            run.error_type is not None,
            run.answer_tokens,
            run.result_tokens,
        )
        for index, value in enumerate((*map(int, counts), run.cost)):
            total[index] += value
        total[-1] = max(total[-1], run.at)
    database.executemany(ADD, [(*key, *total) for key, total in sorted(sums.items())])


def list_spending(
    statistics: "StatisticsDatabase",
    month: str | None = None,
    agent: str | None = None,
    token_id: str | None = None,
) -> list[Spending]:
    """Return the use per token, the latest month first."""
    filters = {
        "month": month,
        "agent": to_column(agent),
        "token_id": to_column(token_id),
        "limit": MAX_ROWS,
    }
    with statistics.reading() as database:
        return [Spending(*row) for row in database.execute(READ, filters)]
