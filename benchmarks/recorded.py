"""Time of a report over many recorded calls: `python benchmarks/recorded.py [CALLS] [DAYS]`.

The calls are spread over a year, over 300 tools and over as many runs. SQLite runs in this process,
so its processor time is measured, which excludes the load of the machine.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.lib import Row, WrongAnswer

from onetool.state.sqlite_database import Transaction
from onetool.state.stats import rollup
from onetool.state.stats.database import StatisticsFile
from onetool.state.stats.record import CALL_COLUMNS, CallRecord, Recorder
from onetool.state.stats.report import render_html
from onetool.state.stats.summary import PERIODS, get_usage, summarize

CALLS, DAYS = 1_000_000, 365.0
MAX_MS = 300.0
RUN_COLUMNS = (
    "id", "agent", "session", "seconds", "error_type", "round_trips", "answer_tokens", "result_tokens", "at",
)  # fmt: skip


def measure(rounds: int, calls: int = CALLS, days: float = DAYS) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="onetool-statistics-") as place:
        file = Path(place, "stats.db")
        fill(file, calls, days)
        database = StatisticsFile(file)
        if summarize(database)["total_calls"] != calls:
            raise WrongAnswer("a summary that does not have all calls")
        many = f"of {calls:,} calls in {days:g} days"
        asked: dict[str, Callable[[], object]] = {
            **{
                f"statistics {many}, {period}": partial(summarize, database, period)
                for period in (*PERIODS, "all")
            },
            f"statistics {many}, all of a tool": partial(summarize, database, tool="pack.tool7"),
            f"statistics {many}, month of an agent": partial(
                summarize, database, "month", agent="default"
            ),
            f"the report {many}": lambda: render_html(summarize(database)),
            f"the usage of a tool {many}": partial(get_usage, database, "pack.tool7"),
        }
        rows = [
            Row(what, [measure_cpu(ask) for _ in range(rounds)], target=MAX_MS)
            for what, ask in asked.items()
        ]
        recorder = Recorder(database)
        record(recorder)
        return [
            *rows,
            Row(
                f"writing down 20 calls {many}",
                [measure_cpu(partial(record, recorder)) for _ in range(rounds)],
            ),
        ]


def measure_cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1000


def record(recorder: Recorder) -> None:
    for number in range(20):
        recorder.add(CallRecord(f"pack.tool{number}", "default", "s", "", 0.1, None, 10))
    recorder.flush()


def fill(file: Path, calls: int, days: float = DAYS) -> None:
    """Record this many calls in as many runs, spread evenly until now.

    One call in ten is a failure.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    step = days * rollup.DAY / calls
    at = f"{time.time()} - ({calls} - i) * {step}"

    def insert(database: Transaction) -> None:
        numbers = (
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {calls})"
        )
        failed = "CASE WHEN i % 10 = 0 THEN 'timeout' END"
        tool = "'pack.tool' || ((i * 7919) % 300)"
        call = f"{tool}, 'default', 's', 'r' || i, (i % 997) / 1000.0, {failed}, 10, {at}"
        database.execute(
            f"INSERT INTO calls ({', '.join(CALL_COLUMNS[:8])}) {numbers} SELECT {call} FROM n"
        )
        run = f"'r' || i, 'default', 's', 0.1, NULL, 1, 5, 10, {at}"
        database.execute(
            f"INSERT INTO runs ({', '.join(RUN_COLUMNS)}) {numbers} SELECT {run} FROM n"
        )
        rollup.add(database, 0, 0, time.time())

    StatisticsFile(file).write(insert)


def main() -> None:
    given = sys.argv[1:]
    for row in measure(
        3, int(given[0]) if given else CALLS, float(given[1]) if given[1:] else DAYS
    ):
        print(" | ".join(row.cells()))


if __name__ == "__main__":
    main()
