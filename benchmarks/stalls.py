"""Delay of one agent's runs while another keeps the server busy: `python benchmarks/stalls.py
[CALLS] [TOOLS]`.

Short runs are repeated on an idle server and during each task: statistics of many recorded calls,
and building the index of many stored tools, listing and searching them for the first time in a
process. One of the short runs has a variable with an attribute, which could be the name of a new
pack. Each row compares with the idle times measured just before. A delay counts only as far as this
process used a processor in the meantime; the load of the machine is shown as wall time.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import bundles, recorded
from benchmarks.lib import Row

from onetool.app import OneTool
from onetool.server.http.asgi_app import build
from onetool.server.http.request_checks import Bind
from onetool.settings.model import Settings
from onetool.util.logging import Log

CALLS, TOOLS = 1_000_000, 100_000
FEWER_CALLS, FEWER_TOOLS = 200_000, 5_000
MAX_DELAY_MS = 100.0
TIMEOUT_SECONDS = 900  # of a run: building the index on a busy machine takes a while
IDLE_SECONDS, PAUSE_SECONDS = 1.0, 0.002
SHORT_RUNS = ("1 + 1", "name = 'a'; name.upper()")
RUNS = {
    "statistics": "ot.stats()['total_calls']",
    # naming a pack waits for the index
    "the index and the first listing": "bundle_0; len(ot.tools(info='list'))",
    "a listing": "len(ot.tools())",
    "a full listing": "len(ot.tools(info='full'))",
    "the first search": "len(ot.search(query='merge an invoice'))",
    "a search": "len(ot.search(query='send a mesage'))",
    "a list of packs": "len(ot.packs())",
    "help for an unknown name": "ot.help(query='qwxz')",
    "an unknown tool": "ot.call('nothing.there')",
    "an unknown name": "nothing_there.x()",
}
REQUESTS = ("/api/tools", "/api/packs", "/api/tools?q=invoice", "/api/tools/nothing.there")


class Delays(NamedTuple):
    """Durations of short runs in milliseconds."""

    wall: list[float]
    ours: list[float]  # the same, at most the processor time of this process


def measure(_rounds: int, calls: int = FEWER_CALLS, tools: int = FEWER_TOOLS) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="onetool-stalls-") as place:
        folder = Path(place)
        recorded.fill(folder / "stats" / "stats.db", calls)
        bundles.fill(folder / "bundles", tools)
        return asyncio.run(make_rows(folder, calls, tools))


async def make_rows(folder: Path, calls: int, tools: int) -> list[Row]:
    import httpx2

    found = []
    settings = Settings.model_validate({"execution": {"timeout": TIMEOUT_SECONDS}})
    async with OneTool(settings, folder=folder, log=Log()) as app:
        transport = httpx2.ASGITransport(build(app, Bind("127.0.0.1", 80)))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            tasks: dict[str, Callable[[], Awaitable[object]]] = {
                **{name: partial(app.run, code) for name, code in RUNS.items()},
                **{f"GET {path}": partial(client.get, path) for path in REQUESTS},
            }
            await app.run("1 + 1")
            for name, task in tasks.items():
                many = f"{calls:,} calls" if name == "statistics" else f"{tools:,} tools"
                found += await compare_delays(app, f"{name}, {many}", task)
    return found


async def compare_delays(
    app: OneTool, name: str, task: Callable[[], Awaitable[object]]
) -> list[Row]:
    idle = await measure_delays(app, asyncio.ensure_future(asyncio.sleep(IDLE_SECONDS)))
    started, spent = time.perf_counter(), time.process_time()
    busy = await measure_delays(app, asyncio.ensure_future(task()))
    seconds, spent = time.perf_counter() - started, time.process_time() - spent
    sys.stderr.write(
        f"{name}: {seconds:.1f} s, {spent:.1f} s of CPU, {len(busy.wall)} runs beside it\n"
    )
    sys.stderr.write(
        f"  idle: {format_spread(idle.wall)} | busy: {format_spread(busy.wall)} | ours:"
        f" {format_spread(busy.ours)}\n"
    )
    extra = max(busy.ours) - compute_quantile(idle.ours, 0.5)
    return [Row(f"delay of another run by {name}, longest", [extra], target=MAX_DELAY_MS)]


def format_spread(values: list[float]) -> str:
    return (
        f"p50 {compute_quantile(values, 0.5):.1f}, p99 {compute_quantile(values, 0.99):.1f}, max"
        f" {max(values):.1f} ms"
    )


def compute_quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


async def measure_delays(app: OneTool, task: "asyncio.Future[object]") -> Delays:
    """Repeat short runs until the task is done."""
    found = Delays([], [])
    while not (len(found.wall) >= len(SHORT_RUNS) and task.done()):
        started, spent = time.perf_counter(), time.process_time()
        await app.run(SHORT_RUNS[len(found.wall) % len(SHORT_RUNS)])
        wall, cpu = time.perf_counter() - started, time.process_time() - spent
        found.wall.append(wall * 1000)
        found.ours.append(min(wall, cpu) * 1000)
        await asyncio.sleep(PAUSE_SECONDS)
    await task
    return found


def main() -> None:
    given = [int(number) for number in sys.argv[1:3]]
    calls, tools = [*given, *(CALLS, TOOLS)[len(given) :]]
    for row in measure(1, calls, tools):
        print(" | ".join(row.cells()))


if __name__ == "__main__":
    main()
