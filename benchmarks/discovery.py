"""`onetool tools` with failing servers among ten, against ten healthy servers.

The lists of the healthy servers are cached. The first command records the failures of the others;
it waits one second for them and is measured too.
"""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lib import ONETOOL, Row, WrongAnswer, interleave
from tests.proxy_support import HOSTILE

SERVERS = 10
FAILING = {
    "hangs": {"command": "sleep", "args": ["600"]},
    "crashes": {"command": sys.executable, "args": ["-c", "raise SystemExit(1)"]},
}


def measure(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        well, ill = (
            prepare(Path(folder) / name, failing)
            for name, failing in (("well", {}), ("ill", FAILING))
        )
        samples = interleave(
            rounds,
            {
                "well": partial(list_tools, well, SERVERS),
                "ill": partial(list_tools, ill, SERVERS - len(FAILING)),
                "first": partial(first_list, ill),
            },
        )
    return [
        Row(
            f"onetool tools, 2 of {SERVERS} servers fail, against none",
            samples["ill"],
            samples["well"],
            target=1.2,
        ),
        Row(
            "the same, the first command after they were configured",
            samples["first"],
            samples["well"],
        ),
    ]


def prepare(home: Path, failing: dict[str, Any]) -> Path:
    """Configure ten servers and cache the lists of the healthy ones."""
    works = {"command": sys.executable, "args": [str(HOSTILE), "good"]}
    servers = {f"server{number}": works for number in range(SERVERS - len(failing))}
    configure(home, servers)
    subprocess.run(
        [*ONETOOL, "doctor"], env={"HOME": str(home)}, cwd=home, capture_output=True, check=False
    )
    configure(home, {**servers, **failing})
    return home


def configure(home: Path, servers: dict[str, Any]) -> None:
    (home / ".onetool").mkdir(parents=True, exist_ok=True)
    (home / ".onetool" / "onetool.yaml").write_text(json.dumps({"servers": servers}))


def first_list(home: Path) -> float:
    for file in (home / ".onetool" / "cache").glob("failure-*.json"):
        file.unlink()
    return list_tools(home, SERVERS - len(FAILING))


def list_tools(home: Path, listed: int) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        [*ONETOOL, "tools"], env={"HOME": str(home)}, cwd=home, capture_output=True, check=True
    )
    taken = (time.perf_counter() - started) * 1e3
    if done.stdout.count(b".echo ") != listed or (b"not listed yet" in done.stderr) != (
        listed < SERVERS
    ):
        raise WrongAnswer(done.stdout.decode() + done.stderr.decode())
    return taken
