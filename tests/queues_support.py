"""Workers of queues: real processes with their own homes, settings and secrets, on the database of
replicas.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.extensions_support import write_pack, write_secrets
from tests.replicas_support import KEY
from tests.support import PROGRAM, TIMEOUT_SECONDS, configure, environment

QUEUES = {
    "heavy": 30,
    "spare": 30,
    "brief": 2,
}  # packs with a queue of the same name, and their timeouts
SECRET = "worker-secret-1"
# `note` and `put` write to a file of the worker, so that a test sees each execution.
HEAVY = """\
import os
import time
from pathlib import Path
from onetool import Context, ToolContext, ToolError

secrets = ["HEAVY_KEY"]
FILE = Path({file!r})
PNG = b"\\x89PNG\\r\\n\\x1a\\n" + bytes(64)

def add(a: int, b: int = 1) -> int:
    return a + b

def identify() -> list:
    return [os.getcwd(), sorted(os.environ)]

def describe(context: ToolContext) -> list:
    limit = context.agent_config["heavy.describe"]["limit"]
    return [context.agent_id, limit, sorted(context.permissions), str(context.working_dir), context.metadata]

def reveal(context: Context) -> str:
    return "the secret is " + context.secret("HEAVY_KEY")

def note(text: str, seconds: float = 0) -> str:
    with FILE.open("a") as file:
        file.write(text + "\\n")
    time.sleep(seconds)
    return text

def put(text: str, seconds: float = 0) -> str:
    return note(text, seconds)

def repeat(text: str, count: int) -> str:
    return text * count

def measure(text: str) -> int:
    return len(text)

def fail(kind: str) -> None:
    raise ToolError("it failed", reason=kind) if kind == "tool" else ValueError("wrong value")

def draw() -> dict:
    return {{"chart": PNG}}

def report(context: Context) -> str:
    for number in range(3):
        context.progress(number, 3, f"step {{number}}")
        time.sleep(0.4)
    context.log("almost done")
    return "reported"

def nest(context: Context) -> int:
    return context.call("heavy.add", a=1)
"""


@dataclass(frozen=True)
class QueueProcess:
    """A worker with its home."""

    home: Path
    process: subprocess.Popen[str]

    @property
    def errors(self) -> str:
        return (self.home / "errors").read_text()

    @property
    def log(self) -> str:
        file = self.home / ".onetool" / "logs" / "worker.log"
        return file.read_text() if file.exists() else ""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_SECONDS)

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(TIMEOUT_SECONDS)


def list_notes(directory: Path) -> list[str]:
    file = directory / "notes.txt"
    return file.read_text().splitlines() if file.exists() else []


def write_heavy(folder: Path, directory: Path, pack: str) -> None:
    """Write the pack, whose tools write to a file in `directory`."""
    write_pack(folder, pack, HEAVY.format(file=str(directory / "notes.txt")))


@contextmanager
def start_worker(home: Path, url: str, pack: str, *arguments: str) -> Iterator[QueueProcess]:
    """Start a worker for the queue of a pack, and wait until it takes jobs."""
    configure(home, f"tools: {{{pack}: {{queue: {pack}}}}}")
    write_secrets(home / ".onetool", f"HEAVY_KEY: {SECRET}\n")
    with (home / "errors").open("w") as errors:
        process = subprocess.Popen(
            [PROGRAM, "worker", "--queue", pack, "--json", *arguments],
            cwd=home,
            env={**environment(home), "ONETOOL_STORE": url, "ONETOOL_KEY": KEY},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (home / "errors").read_text()
        assert json.loads(line)["queues"] == {pack: [pack]}
        yield QueueProcess(home, process)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def run_worker(directory: Path, url: str) -> Iterator[QueueProcess]:
    """Start a worker of the pack `heavy` in a directory of its own."""
    home = directory / "worker"
    write_heavy(home / ".onetool" / "tools", directory, "heavy")
    with start_worker(home, url, "heavy") as started:
        yield started
