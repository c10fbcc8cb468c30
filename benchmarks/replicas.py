"""Calls per second and processor time per call through nginx: one replica with files, and 1, 2 and 4 with PostgreSQL.

Each round measures every number of replicas, in random order, with eight clients for each replica. `processor time` is
that of all processes: nginx, the replicas with their cells, and PostgreSQL. The other replicas run, but have nothing to
do. The last contestant has eight clients in all: four replicas that are mostly idle do less work at once. `idle` is the
processor time per second without clients, which is part of all the others.

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
from benchmarks.serving import RequestKind, make_post, run_client
from deploy.local.postgres_cluster import TopologyError, find_postgres
from deploy.local.topology import Topology, find_program

NUMBERS = (1, 2, 4)
CLIENTS = 8  # for each replica
REQUESTS = 400  # for each replica
WARM_UP = 40
SPARSE = "4, sparse"
IDLE_SECONDS = 3.0
MAX_ROUNDS = 5
TARGET = 1.2  # of the processor time per call, from one replica to four
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
    with start_files() as files, start_topologies() as places:
        waits = {
            name: partial(measure_idle, place) for name, place in {FILES: files, **places}.items() if name != SPARSE
        }
        for name, found in interleave(rounds, waits).items():
            rows.append(Row(f"idle, {describe(name)}: processor time per second", found))
        for what, kind in KINDS.items():
            turns = {name: partial(load, place, *kind) for name, place in {FILES: files, **places}.items()}
            rows += make_rows(what, interleave(rounds, turns))
    return rows


def make_rows(what: str, samples: dict[str, list[Sample]]) -> Iterator[Row]:
    for name, found in samples.items():
        yield Row(f"{what}, {describe(name)}: per second", [each.rate for each in found], unit="/s")
    base = [each.cpu for each in samples["1"]]
    for name, found in samples.items():
        target = TARGET if name == str(NUMBERS[-1]) else None
        yield Row(f"{what}, {describe(name)}: processor time", [each.cpu for each in found], base, target=target)


def describe(name: str) -> str:
    named = {FILES: "1 replica, files", SPARSE: "4 replicas, 8 clients in all", "1": "1 replica"}
    return named.get(name, f"{name} replicas")


def load(place: Place, path: str, body: bytes, right: bytes) -> Sample:
    """Make the calls of all clients, after some that do not count."""
    asked = RequestKind(place.port, make_post(path, body, f"Authorization: Bearer {place.token}"), right)

    async def call(count: int) -> None:
        await asyncio.gather(*(run_client(asked, count // CLIENTS) for _ in range(CLIENTS * place.replicas)))

    asyncio.run(call(WARM_UP))
    started, before, count = time.perf_counter(), place.read_cpu(), REQUESTS * place.replicas
    asyncio.run(call(REQUESTS))
    seconds = time.perf_counter() - started
    return Sample(count / seconds, (place.read_cpu() - before) / count * 1e3)


def measure_idle(place: Place) -> float:
    before = place.read_cpu()
    time.sleep(IDLE_SECONDS)
    return (place.read_cpu() - before) / IDLE_SECONDS * 1e3


@contextlib.contextmanager
def start_topologies() -> Iterator[dict[str, Place]]:
    """Start one topology for each number of replicas, so that all of them are warm."""
    with tempfile.TemporaryDirectory(prefix="onetool-bench-") as parent, contextlib.ExitStack() as stack:
        Path(parent).chmod(0o711)
        places = {}
        for number in NUMBERS:
            topology = Topology(Path(parent) / str(number), program=str(ONETOOL[0]), settings=SETTINGS)
            stack.callback(topology.down)
            topology.up(number, has_worker=False)
            places[str(number)] = find_place(topology, number)
        yield {**places, SPARSE: replace(places[str(NUMBERS[-1])], replicas=1)}


def find_place(topology: Topology, replicas: int) -> Place:
    database = int((topology.postgres.data / "postmaster.pid").read_text("utf-8").splitlines()[0])
    processes = (database, *(int(process) for process, _ in topology.state["processes"].values()))
    return Place(int(topology.url.rpartition(":")[2]), topology.token, processes, replicas)


@contextlib.contextmanager
def start_files() -> Iterator[Place]:
    """Start one server with its state in files, without nginx in front of it."""
    with tempfile.TemporaryDirectory(prefix="onetool-bench-") as home:
        variables = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "ONETOOL_STANDALONE": "1"}
        (Path(home) / ".onetool").mkdir()
        (Path(home) / ".onetool" / "onetool.yaml").write_text(SETTINGS, "utf-8")
        create = [*ONETOOL, "token", "create", "bench"]
        created = subprocess.run(create, env=variables, cwd=home, capture_output=True, text=True, check=True)
        command = [*ONETOOL, "serve", "--http", "--port", "0", "--json"]
        server = subprocess.Popen(command, env=variables, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            yield Place(json.loads(server.stdout.readline())["port"], created.stdout.strip(), (server.pid,))
        finally:
            server.terminate()
            server.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=MAX_ROUNDS, metavar="N", help="number of rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to this file")
    options = parser.parse_args()
    rows = measure(options.rounds)
    print(render_table(rows))
    if options.json:
        options.json.write_text(json.dumps([row.to_dict() for row in rows], indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
