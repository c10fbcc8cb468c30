"""The topology of `deploy/local`: PostgreSQL, nginx and replicas as processes, with a pack that
writes notes.
"""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from deploy.local.postgres_cluster import TopologyError
from deploy.local.topology import Topology
from tests.approvals_support import NOTES
from tests.cells_support import skip_or_fail
from tests.rest_support import Rest, make_client
from tests.support import PROGRAM, environment

FAST = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}


class Cluster:
    """A topology that runs, with clients for nginx and for each replica."""

    def __init__(self, topology: Topology, count: int) -> None:
        self.topology, self.numbers = topology, range(1, count + 1)
        self.front = Rest(make_client(topology.url))
        self.front.client.headers["authorization"] = f"Bearer {topology.token}"
        self.replicas = [Rest(make_client(topology.replica_url(number))) for number in self.numbers]

    @property
    def notes(self) -> list[str]:
        file = self.topology.work / "notes.txt"
        return file.read_text("utf-8").splitlines() if file.exists() else []

    def kill(self, number: int) -> None:
        self.topology.stop(f"replica-{number}", signal.SIGKILL)

    def restart(self, number: int, **variables: str) -> None:
        self.topology.start_replica(number, **variables)
        self.topology.wait_until_ready(number)

    def send_signal(self, number: int, kind: signal.Signals) -> None:
        os.kill(self.topology.process_id(f"replica-{number}"), kind)

    def execute(self, sql: str) -> str:
        return self.topology.postgres.execute(sql, "onetool")

    def call(self, tool: str, **arguments: Any) -> httpx2.Response:
        """Call a tool through nginx."""
        return self.front.send("POST", f"/api/tools/{tool}/call", {"args": arguments})

    def are_ready(self) -> bool:
        return all(each.client.get("/readyz").status_code == 200 for each in self.replicas)

    def close(self) -> None:
        for rest in (self.front, *self.replicas):
            rest.client.close()


@contextmanager
def run_topology(count: int, settings: str) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="onetool-topology-") as parent:
        Path(parent).chmod(0o711)  # the user of PostgreSQL passes through it
        directory = Path(parent) / "it"
        work = directory / "work"
        pack = work / "packs" / "notes"
        pack.mkdir(parents=True)
        (pack / "notes_tools.py").write_text(
            NOTES.replace("Path(__file__).parents[3]", f"Path({str(work)!r})")
        )
        variables = {
            name: value
            for name, value in environment(directory).items()
            if name not in {"HOME", "TMPDIR"}
        }
        text = f"tools_dir: [{work / 'packs'}]\n{settings}"
        topology = Topology(
            directory, program=PROGRAM, settings=text, variables=variables, postgres=FAST
        )
        try:
            topology.up(count, has_worker=False)
            cluster = Cluster(topology, count)
            yield cluster
            cluster.close()
        except TopologyError as error:
            if error.hint:  # a program is missing
                skip_or_fail(f"{error}: {error.hint}")
            raise
        finally:
            topology.down()
