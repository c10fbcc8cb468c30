"""Benchmarks of the bundle store: pages, searches and tools among few and many, PUTs against the
bare disk, memory.

As a program, this is one of the writers: it reports that it is ready, waits for a line, writes, and
reports the end.
"""

import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import uuid_utils
from benchmarks.lib import Row, WrongAnswer, interleave, memory

from onetool.server.mcp.mcp_server import record_session
from onetool.sources.bundles import BundleStore
from onetool.sources.bundles.model import BundleDraft, ToolDraft
from onetool.sources.bundles.records import BundleFile, ToolFile
from onetool.sources.bundles.rules import directory_names, tool_file_names

FEW, MANY = 100, 100_000
BUNDLES = 50
PUTS, WRITERS = 60, 8
VERBS = ("get", "list", "create", "delete", "update", "search", "read", "send", "merge", "convert")
NOUNS = (
    "user",
    "issue",
    "repository",
    "file",
    "invoice",
    "message",
    "branch",
    "report",
    "image",
    "weather",
)
SYLLABLES = ("ba", "de", "ki", "lo", "mu", "na", "re", "si", "to", "vu")
QUERIES = (
    "get",
    "user",
    "usre",
    "merge invoice",
    "repositry",
    "forecast",
    "send message",
    "return",
    "voic",
    "g",
)
START = datetime(2026, 1, 1, tzinfo=UTC)


def measure(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="onetool-bundles-") as place:
        few, many = Path(place, "few", "bundles"), Path(place, "many", "bundles")
        fill(few, FEW)
        fill(many, MANY)
        started = time.perf_counter()
        build_index(many)
        seconds = time.perf_counter() - started
        rows = [
            *measure_queries(rounds, few, many),
            *measure_memory(few, many),
            *measure_catalog(Path(place, "none"), many.parent),
        ]
        rows.append(
            Row(f"rebuilding the index of {MANY:,} tools, per tool", [seconds / MANY * 1000])
        )
        return [*rows, *measure_puts(min(rounds, 5), Path(place, "puts"))]


# --- reading --------------------------------------------------------------------------------------


def measure_queries(rounds: int, few: Path, many: Path) -> list[Row]:
    with open_store(few) as small, open_store(many) as large:
        contestants = {
            f"{name} {size}": lambda ask=ask, store=store: ask(store)
            for size, store in (("few", small), ("many", large))
            for name, ask in (("list", list_page), ("search", run_searches), ("get", read_tool))
        }
        samples = interleave(rounds, contestants)
    rows = []
    for name in ("list", "search", "get"):
        rows.append(Row(f"{name} among {MANY:,} stored tools", samples[f"{name} many"], target=10))
        rows.append(
            Row(
                f"{name} among {MANY:,}, against {FEW}",
                samples[f"{name} many"],
                samples[f"{name} few"],
            )
        )
    return rows


def timed(action: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        spent.append((time.perf_counter() - started) * 1000)
    return statistics.median(spent)


def list_page(store: BundleStore) -> float:
    token = store.list_tools().next_token
    return timed(partial(store.list_tools, token=token), 5)


def run_searches(store: BundleStore) -> float:
    return statistics.median(timed(partial(store.search, query), 3) for query in QUERIES)


def read_tool(store: BundleStore) -> float:
    tools = store.list_tools().items
    if not tools:
        raise WrongAnswer("there are no tools")
    return statistics.median(
        timed(partial(store.get_tool, one.bundle_id, one.slug, one.version), 3) for one in tools
    )


def measure_memory(few: Path, many: Path) -> list[Row]:
    """Measure the memory of a process that has listed, searched and compared all files."""
    least, most = (measure_resident(folder) for folder in (few, many))
    return [
        Row(
            "memory of a process for each 10,000 stored tools",
            [(most - least) / (MANY / 10_000)],
            unit="MB",
            target=10,
        )
    ]


def measure_resident(folder: Path) -> float:
    with start_process("ask", folder, 0) as process:
        read_answer(process, "go")
        return memory(process.pid).resident


# --- a server -------------------------------------------------------------------------------------


def measure_catalog(none: Path, many: Path) -> list[Row]:
    """Measure a server with many stored tools and a built index against one without stored tools."""
    small, large = (serve(folder) for folder in (none, many))
    return [
        Row(
            f"the first search of a process, {MANY:,} stored tools",
            [large["first search"]],
            target=150,
        ),
        Row(
            "a server that has listed and searched, against one without",
            [large["memory"]],
            [small["memory"]],
            "MB",
            1.5,
        ),
        Row(f"a list of all {MANY:,} stored tools in code", [large["list"]]),
        Row("a call of an unknown tool", [large["unknown tool"]], target=10),
        Row("a call of an unknown tool of a stored pack", [large["unknown in pack"]], target=10),
        Row("the first call of a stored tool after an edit", [large["edited"]], target=10),
        Row(
            "a search after an edit, against one before",
            [large["search after"]],
            [large["search before"]],
            target=2,
        ),
    ]


def serve(folder: Path) -> dict[str, float]:
    """Return the milliseconds (at most the processor time) and the memory of a separate process."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, __file__, "serve", str(folder), "0"]
    found: dict[str, float] = json.loads(
        subprocess.check_output(command, env=environment, text=True)
    )
    return found


async def run_server(folder: Path) -> dict[str, float]:
    from onetool.app import OneTool
    from onetool.settings.model import Settings
    from onetool.util.logging import Log

    found: dict[str, float] = {}

    async def timed(name: str, work: Callable[[], Awaitable[object]], times: int = 1) -> None:
        spent = []
        for _ in range(times):
            started, used = time.perf_counter(), time.process_time()
            await work()
            spent.append(min(time.perf_counter() - started, time.process_time() - used) * 1000)
        found[name] = statistics.median(spent)

    settings = Settings.model_validate({"bundles": {"maxTools": 2 * MANY}})
    async with OneTool(settings, folder=folder, log=Log()) as app:
        await app.run("1 + 1")
        await record_session(app, own_tokens=300)  # as when a client connects
        await timed("first search", lambda: app.catalog.search("merge an invoice"))
        await app.run("len(ot.packs())")
        # A server does this once in the background; it is not measured here.
        await asyncio.to_thread(app.bundles.store.rescan)
        for query in QUERIES:
            await app.catalog.search(query)
        await timed("unknown tool", lambda: app.bus.call_tool("nothing.there"), 5)
        await timed("unknown in pack", lambda: app.bus.call_tool("bundle-1.nothing-there"), 5)
        await timed("search before", lambda: app.catalog.search("forecast of an invoice"), 5)
        found["memory"] = memory(os.getpid()).resident
        await timed("list", lambda: app.run("len(ot.tools())"), 3)
        store = app.bundles.store
        for bundle in store.list_bundles(size=1).items:
            store.put_tool(bundle.id, "edited", "1", make_body(random.Random(1)))
            await timed("edited", partial(app.bus.call_tool, f"{bundle.slug}.edited"))
            await timed("search after", lambda: app.catalog.search("forecast of an invoice"))
            store.delete_tool(bundle.id, "edited", "1")
    return found


# --- writing --------------------------------------------------------------------------------------


def measure_puts(rounds: int, place: Path) -> list[Row]:
    contestants = {
        f"{kind} {writers}": lambda kind=kind, writers=writers: measure_writers(
            kind, place, writers
        )
        for kind in ("put", "bare")
        for writers in (1, WRITERS)
    }
    samples = interleave(rounds, contestants)
    return [
        Row("PUT of a tool, against writing a file", samples["put 1"], samples["bare 1"]),
        Row(
            f"the same from {WRITERS} processes",
            samples[f"put {WRITERS}"],
            samples[f"bare {WRITERS}"],
        ),
        Row(
            "PUTs per second from one process",
            [1000 / spent for spent in samples["put 1"]],
            unit="",
        ),
        Row(
            f"PUTs per second from {WRITERS}",
            [1000 / spent for spent in samples[f"put {WRITERS}"]],
            unit="",
        ),
    ]


def measure_writers(kind: str, place: Path, writers: int) -> float:
    """Return the milliseconds per file over all writers."""
    shutil.rmtree(place, ignore_errors=True)
    fill(place, 0, bundles=1)
    build_index(place)
    with wait_for_all(
        [start_process(kind, place, number) for number in range(writers)]
    ) as processes:
        started = time.perf_counter()
        for process in processes:
            send(process, "go")
        for process in processes:
            read_line(process)
        return (time.perf_counter() - started) * 1000 / (PUTS * writers)


@contextmanager
def wait_for_all(managers: list[Any]) -> Iterator[list[subprocess.Popen[str]]]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield [stack.enter_context(manager) for manager in managers]


@contextmanager
def start_process(kind: str, folder: Path, number: int) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, __file__, kind, str(folder), str(number)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        if read_line(process) != "ready":
            raise WrongAnswer(f"{kind} did not start")
        yield process


def read_answer(process: subprocess.Popen[str], word: str) -> str:
    send(process, word)
    return read_line(process)


def send(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main(kind: str, folder: Path, number: int) -> None:
    if kind == "serve":
        print(json.dumps(asyncio.run(run_server(folder))))
        return
    with open_store(folder) as store:
        bundle = store.list_bundles().items[0]
        work = {"put": put_some, "bare": write_some, "ask": send_queries}[kind]
        print("ready", flush=True)
        sys.stdin.readline()
        work(store, folder, bundle.id, number)
        print("done", flush=True)
        sys.stdin.readline()


def put_some(store: BundleStore, _folder: Path, bundle: str, number: int) -> None:
    for turn in range(PUTS):
        store.put_tool(bundle, f"tool-{number}-{turn}", "1", make_body(random.Random(turn)))


def write_some(_store: BundleStore, folder: Path, bundle: str, number: int) -> None:
    (place,) = folder.glob(f"*{bundle}")
    for turn in range(PUTS):
        content = render_tool(f"tool-{number}-{turn}", random.Random(turn), START).text()
        write_bare(place, f".{number}-{turn}", content)


def write_bare(place: Path, name: str, content: bytes) -> None:
    """Write atomically and durably without a store: write, sync, rename, sync the directory."""
    new = place / f"{name}.new"
    with new.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(place / name)
    descriptor = os.open(place, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def send_queries(store: BundleStore, _folder: Path, _bundle: str, _number: int) -> None:
    store.rescan()
    for query in QUERIES:
        store.search(query)
    store.list_tools(size=256)


# --- a filled store -------------------------------------------------------------------------------


@contextmanager
def open_store(folder: Path) -> Iterator[BundleStore]:
    store = BundleStore(folder)
    try:
        yield store
    finally:
        store.close()


def build_index(folder: Path) -> None:
    with open_store(folder) as store:
        store.list_bundles()


def fill(folder: Path, number: int, *, bundles: int = BUNDLES) -> None:
    """Write files like the store, without waiting for the disk."""
    chance = random.Random(4)
    places = [make_directory(folder, f"bundle-{count}") for count in range(bundles)]
    for count in range(number):
        slug = f"{chance.choice(VERBS)}-{chance.choice(NOUNS)}-{count}"
        file = render_tool(slug, chance, START + timedelta(seconds=count))
        (chance.choice(places) / tool_file_names(slug, "1")[0]).write_bytes(file.text())


def make_directory(folder: Path, slug: str) -> Path:
    bundle = str(uuid_utils.uuid7())
    draft = BundleDraft.of({"slug": slug, "displayName": slug, "isEnabled": True})
    place = folder / directory_names(slug, bundle)[0]
    place.mkdir(parents=True)
    (place / "bundle.json").write_bytes(BundleFile.new(bundle, draft, START).text())
    return place


def render_tool(slug: str, chance: random.Random, moment: datetime) -> ToolFile:
    draft = ToolDraft.model_construct(
        display_name=make_body(chance)["displayName"],
        is_enabled=True,
        type="http",
        http_impl={"method": "GET", "urlTemplate": "https://api.example.com/things"},
        python_impl=None,
        description=make_body(chance)["description"],
        tags=["api", chance.choice(NOUNS)],
        arg_schema={
            "type": "object",
            "properties": {"id": {"type": "string", "description": "which one"}},
        },
        output_schema=None,
    )
    return ToolFile.new(str(uuid_utils.uuid7()), slug, "1", draft, moment)


def make_body(chance: random.Random) -> dict[str, Any]:
    verb, noun = chance.choice(VERBS), chance.choice(NOUNS)
    rare = [word(chance) for _ in range(5)]
    return {
        "displayName": f"{verb.title()} a {noun} {rare[0]}",
        "isEnabled": True,
        "type": "python",
        "pythonImpl": {"function": "some.function"},
        "description": f"{verb} the {noun} of {' '.join(rare)} and return it with its forecast.",
        "tags": ["api", noun],
        "argSchema": {
            "type": "object",
            "properties": {"id": {"type": "string", "description": "which one"}},
        },
    }


def word(chance: random.Random) -> str:
    return "".join(chance.choices(SYLLABLES, k=chance.randint(2, 5)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
