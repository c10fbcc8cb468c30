"""Replicas: real servers, each with its own home, on one PostgreSQL and in the same working
directory.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from tests.approvals_support import NOTES
from tests.rest_support import Rest, make_client
from tests.support import PROGRAM, TIMEOUT_SECONDS, configure, environment

KEY = "a1" * 32


@dataclass(frozen=True)
class Replica:
    """A server with its home."""

    home: Path
    work: Path
    variables: Mapping[str, str]
    process: subprocess.Popen[str]
    rest: Rest

    def run(self, code: str, **headers: str) -> httpx2.Response:
        return self.rest.send("POST", "/api/run", {"command": code}, headers=headers)

    def call(self, tool: str, **arguments: Any) -> httpx2.Response:
        return self.rest.send("POST", f"/api/tools/{tool}/call", {"args": arguments})

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_store_cli(self.home, self.work, self.variables, *arguments)

    def status(self, path: str = "/readyz", token: str = "") -> int:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return self.rest.client.get(path, headers=headers).status_code

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(TIMEOUT_SECONDS)


def run_store_cli(
    home: Path, work: Path, variables: Mapping[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        cwd=work,
        env={**environment(home), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def prepare_home(home: Path, work: Path, settings: str) -> None:
    """Create a home with settings, and the pack `notes` in a directory that all replicas have.

    An approval is for a tool in a file: a replica that has it in another one asks again.
    """
    configure(home, f"tools_dir: [{work / 'packs'}]\n{settings}")
    pack = work / "packs" / "notes"
    pack.mkdir(parents=True, exist_ok=True)
    (pack / "notes_tools.py").write_text(
        NOTES.replace("Path(__file__).parents[3]", f"Path({str(work)!r})")
    )


@contextmanager
def start_replica(home: Path, work: Path, url: str, **variables: str) -> Iterator[Replica]:
    own = {"ONETOOL_STORE": url, "ONETOOL_KEY": KEY, **variables}
    with (home / "errors").open("w") as errors:
        process = subprocess.Popen(
            [PROGRAM, "serve", "--http", "--port", "0", "--json"],
            cwd=work,
            env={**environment(home), **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (home / "errors").read_text()
        with make_client(json.loads(line)["url"]) as client:
            yield Replica(home, work, own, process, Rest(client))
    finally:
        process.kill()
        process.communicate()


@contextmanager
def start_replicas(
    directory: Path, url: str, count: int, settings: str = ""
) -> Iterator[list[Replica]]:
    work = directory / "work"
    work.mkdir(exist_ok=True)
    with ExitStack() as stack:
        replicas = []
        for number in range(count):
            home = directory / f"home-{number}"
            prepare_home(home, work, settings)
            replicas.append(stack.enter_context(start_replica(home, work, url)))
        yield replicas


def create_token(replica: Replica, name: str, agent: str = "default", scope: str = "use") -> str:
    created = replica.cli("token", "create", name, "--agent", agent, "--scope", scope, "--json")
    assert created.returncode == 0, created.stderr
    token: str = json.loads(created.stdout)["token"]
    return token


def list_environment(process: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    entries = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(entry).partition("=")[::2] for entry in entries if entry)
