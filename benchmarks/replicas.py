"""Calls per second and processor time per call through nginx: one replica with files, and 1, 2 and
4 with PostgreSQL.

Each round loads every contestant for some seconds, in random order, with eight clients for each
replica. The processor time is that of all processes: nginx, the replicas with their cells, and
PostgreSQL, until the statistics of all calls are written. The other contestants run, but have
nothing to do.

Several processes on few processors find their caches cold, whatever they do. So four replicas also
compete with four that share nginx and PostgreSQL but no state: each has a database of its own. That
ratio is what sharing state costs.

The last contestant has eight clients in all: four replicas that are mostly idle do less work at
once. `idle` is the processor time per second without clients, which is part of all the others.

    python benchmarks/replicas.py [--rounds N] [--json FILE]
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.lib import ONETOOL, Row, interleave, read_tree_cpu_seconds, render_table
from benchmarks.serving import RequestKind, make_post, time_request
from deploy.local.postgres_cluster import TopologyError, find_postgres
from deploy.local.topology import Topology, find_program

NUMBERS = (1, 2, 4)
CLIENTS = 8  # for each replica
LOAD_SECONDS = 2.5  # several times as long as statistics wait to be written
WARM_UP_SECONDS = 0.3
SETTLE_SECONDS = 1.2  # until the statistics of the last calls are written
SPARSE = "4, sparse"
APART = "4, apart"
IDLE_SECONDS = 3.0
MAX_ROUNDS = 5
TARGET = 1.2  # of the processor time per call
FILES = "files"
SETTINGS = "agents: {default: {permissions: [read, write, network]}}\n"
KINDS = {  # path, body, and what a correct response contains
    "a run of 1+1": ("/api/run", b'{"command": "1+1"}', b'"blocks":["2"]'),
    "a call of a tool": ("/api/tools/machine.now/call", b'{"args": {}}', b'"ok":true'),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Calls per second, and milliseconds of processor time per call."""

    rate: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Place:
    """A server and the processes that work for it."""

    port: int
    token: str
    processes: tuple[int, ...]
    replicas: int = 1  # for which there are clients

    def read_cpu(self) -> float:
        return sum(read_tree_cpu_seconds(process) for process in self.processes)


def measure(rounds: int) -> list[Row]:
    try:
        find_program("nginx")
        find_postgres("initdb")
    except TopologyError as error:
        print(f"replicas: skipped, because {error}", file=sys.stderr)
        return []
    rounds = min(rounds, MAX_ROUNDS)
    rows: list[Row] = []
    with start_files() as files, start_topologies() as topologies:
        places = {FILES: files, **topologies}
        waits = {
            name: partial(measure_idle, place) for name, place in places.items() if name != SPARSE
        }
        for name, measured in interleave(rounds, waits).items():
            rows.append(Row(f"idle, {describe(name)}: processor time per second", measured))
        for what, kind in KINDS.items():
            turns = {name: partial(load, place, *kind) for name, place in places.items()}
            rows += make_rows(what, interleave(rounds, turns))
    return rows


def make_rows(what: str, samples: dict[str, list[Sample]]) -> Iterator[Row]:
    most = str(NUMBERS[-1])
    costs = {name: [sample.cpu for sample in measured] for name, measured in samples.items()}
    for name, measured in samples.items():
        yield Row(
            f"{what}, {describe(name)}: per second", [sample.rate for sample in measured], unit="/s"
        )
    for name, cost in costs.items():
        target = TARGET if name == most else None
        yield Row(f"{what}, {describe(name)}: processor time", cost, costs["1"], target=target)
    shared = f"{what}, {describe(most)}: processor time against {describe(APART)}"
    yield Row(shared, costs[most], costs[APART], target=TARGET)


def describe(name: str) -> str:
    names = {
        FILES: "1 replica, files",
        SPARSE: "4 replicas, 8 clients in all",
        APART: "4 that share no state",
        "1": "1 replica",
    }
    return names.get(name, f"{name} replicas")


def load(place: Place, path: str, body: bytes, right: bytes) -> Sample:
    """Make the calls of all clients, after some that do not count."""
    request = RequestKind(
        place.port, make_post(path, body, f"Authorization: Bearer {place.token}"), right
    )
    asyncio.run(call_for(request, WARM_UP_SECONDS, CLIENTS * place.replicas))
    time.sleep(SETTLE_SECONDS)
    before = place.read_cpu()
    started = time.perf_counter()
    count = asyncio.run(call_for(request, LOAD_SECONDS, CLIENTS * place.replicas))
    seconds = time.perf_counter() - started
    time.sleep(SETTLE_SECONDS)
    return Sample(count / seconds, (place.read_cpu() - before) / count * 1e3)


async def call_for(request: RequestKind, seconds: float, clients: int) -> int:
    """Send the next request of each client when the last one was answered.

    Return the number of requests.
    """
    end = time.perf_counter() + seconds

    async def call() -> int:
        count = 0
        reader, writer = await asyncio.open_connection("127.0.0.1", request.port)
        with contextlib.closing(writer):
            while time.perf_counter() < end:
                await time_request(reader, writer, request)
                count += 1
        return count

    return sum(await asyncio.gather(*(call() for _ in range(clients))))


def measure_idle(place: Place) -> float:
    before = place.read_cpu()
    time.sleep(IDLE_SECONDS)
    return (place.read_cpu() - before) / IDLE_SECONDS * 1e3


@contextlib.contextmanager
def start_topologies() -> Iterator[dict[str, Place]]:
    """Start one topology for each number of replicas, so that all of them are warm."""
    with (
        tempfile.TemporaryDirectory(prefix="onetool-bench-") as parent,
        contextlib.ExitStack() as stack,
    ):
        Path(parent).chmod(0o711)
        places = {}
        for name in (*map(str, NUMBERS), APART):
            topology = Topology(
                Path(parent) / name.replace(", ", "-"), program=str(ONETOOL[0]), settings=SETTINGS
            )
            stack.callback(topology.down)
            if name == APART:
                start_apart(topology, NUMBERS[-1])
                places[name] = find_place(topology, NUMBERS[-1])
            else:
                topology.up(int(name), has_worker=False)
                places[name] = find_place(topology, int(name))
        yield {**places, SPARSE: replace(places[str(NUMBERS[-1])], replicas=1)}


def start_apart(topology: Topology, replicas: int) -> None:
    """Start replicas with a copy of the first one's database for each of the others."""
    topology.up(1, has_worker=False)
    topology.stop("replica-1")
    store = topology.store_url("replica")
    for number in range(2, replicas + 1):
        name = f"onetool_{number}"
        topology.postgres.execute(
            f"CREATE DATABASE {name} TEMPLATE onetool OWNER onetool_migration"
        )
        topology.start_replica(number, ONETOOL_STORE=f"{store.rpartition('/')[0]}/{name}")
    topology.up(replicas, has_worker=False)


def find_place(topology: Topology, replicas: int) -> Place:
    database = int((topology.postgres.data / "postmaster.pid").read_text("utf-8").splitlines()[0])
    processes = (database, *(int(process) for process, _ in topology.state["processes"].values()))
    return Place(int(topology.url.rpartition(":")[2]), topology.token, processes, replicas)


@contextlib.contextmanager
def start_files() -> Iterator[Place]:
    """Start one server with its state in files, without nginx in front of it."""
    with tempfile.TemporaryDirectory(prefix="onetool-bench-") as home:
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "TMPDIR": home,
            "ONETOOL_STANDALONE": "1",
        }
        (Path(home) / ".onetool").mkdir()
        (Path(home) / ".onetool" / "onetool.yaml").write_text(SETTINGS, "utf-8")
        create = [*ONETOOL, "token", "create", "bench"]
        created = subprocess.run(
            create, env=variables, cwd=home, capture_output=True, text=True, check=True
        )
        command = [*ONETOOL, "serve", "--http", "--port", "0", "--json"]
        server = subprocess.Popen(
            command, env=variables, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            yield Place(
                json.loads(server.stdout.readline())["port"], created.stdout.strip(), (server.pid,)
            )
        finally:
            server.terminate()
            server.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=MAX_ROUNDS, metavar="N", help="number of rounds"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to this file")
    options = parser.parse_args()
    rows = measure(options.rounds)
    print(render_table(rows))
    if options.json:
        options.json.write_text(
            json.dumps([row.to_dict() for row in rows], indent=1) + "\n", "utf-8"
        )


if __name__ == "__main__":
    main()
