"""Test the HTTP transport of the daemon (`daemon.http`): its owner sees what all clients do."""

import json
import subprocess
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from tests.daemon_support import CLIENT, DaemonHome, open_daemon_home, text_of
from tests.support import TIMEOUT_SECONDS, eventually

SLOW_CODE = "import time\ntime.sleep(1)\n'from two'"


def list_runs(home: DaemonHome) -> dict[str, tuple[str, str, str]]:
    """Return the client, the state and, while it is active, the directory of each run, by its code."""
    with urlopen(f"{home.status()['http']}/api/runs", timeout=TIMEOUT_SECONDS) as response:
        runs = json.load(response)["runs"]
    return {run["command"]: (run["client"], run["state"], run.get("directory", "")) for run in runs}


def show_ui(home: DaemonHome) -> str:
    """Return the URL that `onetool ui` prints in another directory."""
    command = (*CLIENT, "ui", "--no-browser")
    run = partial(
        subprocess.run,
        cwd=Path("/"),
        env=home.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return str(run(command).stdout)


def test_the_owner_sees_the_runs_of_all_clients() -> None:
    with open_daemon_home("daemon: {http: true, idle: 1}") as home:
        directories = [home.home / name for name in ("one", "two")]
        for directory in directories:
            directory.mkdir()
        one, two = (
            home.client(each, hello={"clientInfo": {"name": each.name, "version": "1"}})
            for each in directories
        )
        with one, two:
            assert eventually(lambda: home.status()["http"])
            assert text_of(one.run("'from one'")) == "from one"
            two.ask("tools/call", {"name": "run", "arguments": {"command": SLOW_CODE}})
            assert eventually(
                lambda: list_runs(home).get(SLOW_CODE) == ("two", "running", str(directories[1]))
            )
            assert text_of(two.receive()) == "from two"
            completed = {code: run[:2] for code, run in list_runs(home).items()}
            assert completed == {"'from one'": ("one", "done"), SLOW_CODE: ("two", "done")}
            assert show_ui(home).startswith(f"{home.status()['http']}/#/code/")
        assert eventually(
            lambda: not home.daemons
        )  # no client is left, and the listener does not keep it alive
