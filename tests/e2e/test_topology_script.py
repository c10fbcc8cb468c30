"""`deploy/local/topology.py` as people run it: killed, repeated, and removed without a trace."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cells_support import NIGHTLY, ROOT
from tests.postgres_support import find_postgres
from tests.support import eventually

KILL_AFTER = (0.3, 1.0, 2.0, 3.0, 4.0, 5.0) if NIGHTLY else ()
# `initdb` and a server that is starting outlive `up`, and are there when it is repeated.
KILL_WHEN = ("postgres/data.new/base/1", "postgres/data/postmaster.pid")

pytestmark = pytest.mark.slow


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="onetool-topology-") as parent:
        Path(parent).chmod(0o711)  # the user of PostgreSQL passes through it
        found = Path(parent) / "it"
        yield found
        subprocess.run(build_command(found, "down"), check=True)


def build_command(directory: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        str(ROOT / "deploy/local/topology.py"),
        "--directory",
        str(directory),
        *arguments,
    ]


def list_processes(directory: Path) -> list[int]:
    """Return the processes with files in the directory, or with its name in their environment or
    command line.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            texts = [(entry / name).read_bytes() for name in ("environ", "cmdline")]
            if any(str(directory).encode() in text for text in texts):
                found.append(int(entry.name))
    return found


def read_home(process: int) -> str:
    variables = Path(f"/proc/{process}/environ").read_text("utf-8").split("\0")
    return next(variable for variable in variables if variable.startswith("HOME="))


@pytest.mark.nightly
def test_up_can_be_killed_and_repeated_and_down_leaves_nothing(directory: Path) -> None:
    find_postgres("initdb")
    up = build_command(directory, "up", "--replicas", "1", "--port", "0", "--json")
    for moment in (*KILL_WHEN, *KILL_AFTER):
        with subprocess.Popen(
            up, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as killed:
            if isinstance(moment, str):
                assert eventually((directory / moment).exists, 60)
            else:
                time.sleep(moment)
            assert killed.poll() in {None, 0}, killed.stderr and killed.stderr.read()
            killed.kill()
    found = [
        json.loads(subprocess.run(up, capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert found[0]["processes"] == {
        "postgres": True,
        "replica-1": True,
        "worker": True,
        "nginx": True,
    }
    headers = {"authorization": f"Bearer {found[0]['token']}"}
    request: dict[str, Any] = {
        "json": {"command": "1 + 1"},
        "headers": headers,
        "trust_env": False,
        "timeout": 30,
    }
    assert httpx2.post(f"{found[0]['url']}/api/run", **request).json()["blocks"] == ["2"]
    request["json"] = {"command": "render.preview('a city')"}
    answer = httpx2.post(f"{found[0]['url']}/api/run", **request).json()["blocks"]
    worker = re.search(r"process (\d+)", answer[0])
    assert worker is not None, answer
    assert "/worker" in read_home(int(worker[1])), "a replica has made the call"
    assert httpx2.get(f"{found[0]['url']}/api/tools", trust_env=False).status_code == 401
    assert (directory / "topology.json").stat().st_mode & 0o077 == 0
    assert list_processes(directory)
    for _ in range(2):
        subprocess.run(build_command(directory, "down"), check=True)
        assert not directory.exists()
        assert list_processes(directory) == []
    shown = subprocess.run(
        build_command(directory, "status"), capture_output=True, text=True, check=True
    )
    assert shown.stdout == "Nothing runs.\n"
