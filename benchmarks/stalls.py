"""How long a run of one agent waits while another makes the server work: `python benchmarks/stalls.py [CALLS] [TOOLS]`.

Beside each task, `run("1 + 1")` is repeated, and the longest and the 99th percentile of its times are shown. The tasks:
statistics of many recorded calls, and reading, listing and searching many stored tools for the first time in a process.
The longest step of the event loop is measured in CPU time, so that a busy machine does not spoil it.
"""

import asyncio
import asyncio.events
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import bundles
from benchmarks.lib import Row

from ot.app import OneTool
from ot.config.model import Settings
from ot.logging import Log
from ot.stats.record import SCHEMA

CALLS, TOOLS = 1_000_000, 100_000
MAX_DELAY_MS = 100.0
PAUSE_SECONDS = 0.002
TASKS = {
    "statistics": "ot.stats()['total_calls']",
    "first listing": "len(ot.tools(info='list'))",
    "listing": "len(ot.tools())",
    "first search": "len(ot.search(query='merge an invoice'))",
    "search": "len(ot.search(query='send a mesage'))",
    "unknown name": "ot.call('nothing.there')",
}


def measure(_rounds: int, calls: int = CALLS, tools: int = TOOLS) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="onetool-stalls-") as place:
        folder = Path(place)
        record(folder / "stats" / "stats.db", calls)
        bundles.fill(folder / "bundles", tools)
        return asyncio.run(rows(folder, calls, tools))


async def rows(folder: Path, calls: int, tools: int) -> list[Row]:
    found, steps = [], watch_steps()
    async with OneTool(Settings(), folder=folder, log=Log()) as app:
        await app.run("1 + 1")
        idle = await delays(app, asyncio.create_task(asyncio.sleep(3)))
        found.append(Row("run(1 + 1) of an idle server, longest", [max(idle)]))
        for name, code in TASKS.items():
            started = time.perf_counter()
            task = asyncio.create_task(app.run(code))
            steps.clear()
            waited = await delays(app, task)
            seconds = time.perf_counter() - started
            sys.stderr.write(f"{name}: {(await task).text[:80]!r}, {seconds:.2f} s\n")
            many = f"{calls:,} calls" if name == "statistics" else f"{tools:,} stored tools"
            found.append(Row(f"the same during {name} ({many}), longest", [max(waited)], target=MAX_DELAY_MS))
            found.append(Row(f"the same during {name}, 99th percentile", [sorted(waited)[len(waited) * 99 // 100]]))
            found.append(Row(f"the longest step of the event loop during {name}", [max(steps)], target=MAX_DELAY_MS))
    return found


def watch_steps() -> list[float]:
    """Milliseconds of CPU time that each step of the event loop takes from now on."""
    steps: list[float] = []
    run = asyncio.events.Handle._run  # noqa: SLF001 - the only place that every step passes

    def timed(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        run(handle)
        steps.append((time.thread_time() - started) * 1000)

    asyncio.events.Handle._run = timed  # type: ignore[method-assign, assignment]  # noqa: SLF001
    return steps


async def delays(app: OneTool, task: "asyncio.Task[object]") -> list[float]:
    """Milliseconds that runs took until the task was done."""
    spent: list[float] = []
    while not (spent and task.done()):
        started = time.perf_counter()
        await app.run("1 + 1")
        spent.append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(PAUSE_SECONDS)
    return spent


def record(file: Path, calls: int) -> None:
    """Statistics of so many calls in as many runs, one a second."""
    file.parent.mkdir(parents=True)
    start = time.time() - calls
    with closing(sqlite3.connect(file)) as database:
        database.executescript(SCHEMA)
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {calls})"
        call = f"'pack.tool' || (i % 300), 'default', 's', 'r' || i, (i % 997) / 1000.0, NULL, 10, {start} + i"
        database.execute(f"INSERT INTO calls {numbers} SELECT {call} FROM n")
        run = f"'r' || i, 'default', 's', 0.1, NULL, 1, 5, 10, {start} + i"
        database.execute(f"INSERT INTO runs {numbers} SELECT {run} FROM n")
        database.commit()


def main() -> None:
    for row in measure(1, *map(int, sys.argv[1:3])):
        print(" | ".join(row.cells()))


if __name__ == "__main__":
    main()
