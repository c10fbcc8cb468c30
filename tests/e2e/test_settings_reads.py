"""How often an edit of settings reads the settings files and reloads, counted by an audit hook of
Python.
"""

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.settings_support import EditedHome, make_settings, serve_home
from tests.support import TIMEOUT_SECONDS, configure, environment, eventually, run_cli

from onetool.settings.trust import trust
from onetool.state.changes import Changes
from onetool.state.opening import open_postgres

MAX_READS = 2  # once to plan the edit, once to see that nobody else has changed the file
POLLS = 6  # of the files by the server, in which it would notice an edit
COMMAND = """\
import sys
from tests.e2e.test_settings_reads import counting_reads
from pathlib import Path
from onetool.cli.main import main
with counting_reads(Path(sys.argv[1])) as reads:
    status = main(sys.argv[2:])
print(*(f"{count} {name}" for name, count in sorted(reads.items())), sep="\\n")
sys.exit(status)
"""
_listeners: list[Callable[[str], None]] = []
_opening = threading.local()


def _notice_open(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open" or not _listeners or not isinstance(arguments[0], str | Path):
        return
    path, mode, flags = arguments
    is_repeated = (
        mode is None and getattr(_opening, "path", None) == path
    )  # `open` with an opener calls os.open
    _opening.path = None if is_repeated else path
    if not is_repeated and isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR):
        for listener in _listeners:
            listener(os.path.realpath(str(path)))


sys.addaudithook(_notice_open)


@contextmanager
def counting_reads(directory: Path) -> Iterator[Counter[str]]:
    """Yield how often this process opens each file below the directory to read it.

    Names are relative to it.
    """
    reads: Counter[str] = Counter()
    prefix = f"{os.path.realpath(directory)}{os.sep}"

    def count(path: str) -> None:
        if path.startswith(prefix):
            reads[path.removeprefix(prefix)] += 1

    _listeners.append(count)
    try:
        yield reads
    finally:
        _listeners.remove(count)


def select_settings(reads: Counter[str]) -> dict[str, int]:
    names = {"onetool.yaml", "secrets.yaml", "prompts.yaml", "agents/ops.yaml"}
    return {name: count for name, count in reads.items() if name.removeprefix(".onetool/") in names}


def wait_for_polls(reads: Counter[str], polls: int = POLLS) -> None:
    """Wait until the server has looked for changed settings several times."""
    last = reads["run/reload.json"] + polls
    assert eventually(lambda: reads["run/reload.json"] >= last)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[EditedHome]:
    directory = tmp_path / ".onetool"
    (directory / "agents").mkdir(parents=True, mode=0o700)
    (directory / "agents" / "ops.yaml").write_text("permissions: [read]\n", encoding="utf-8")
    (directory / "prompts.yaml").write_text("{}\n", encoding="utf-8")
    (directory / "secrets.yaml").write_text("OLD: old-secret-value\n", encoding="utf-8")
    (directory / "secrets.yaml").chmod(0o600)
    with serve_home(tmp_path) as served:
        yield served


EDITS = {
    "an agent": (
        "PATCH",
        "/api/agents/reviewer",
        {"settings": {"permissions": ["read", "network"]}},
    ),
    "the file of an agent": ("PATCH", "/api/agents/ops", {"settings": {"permissions": []}}),
    "a secret": ("PUT", "/api/secrets/NEW", {"value": "new-secret-value"}),
    "a server": (
        "POST",
        "/api/servers",
        {"name": "x", "settings": {"url": "https://x.example.com", "enabled": False}},
    ),
    "hosts": ("PUT", "/api/settings/hosts", {"hosts": ["api.example.com"]}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_reads_each_settings_file_at_most_twice_and_reloads_once(
    home: EditedHome, edit: str
) -> None:
    with counting_reads(home.home / ".onetool") as reads:
        wait_for_polls(reads)
        reads.clear()
        configured = home.onetool.live_settings.times_applied
        method, path, body = EDITS[edit]
        answer = home.send(method, path, body)
        assert answer.status_code in {200, 201}, answer.text
        wait_for_polls(reads)
        assert home.onetool.live_settings.times_applied - configured == 1
        assert max(select_settings(reads).values()) <= MAX_READS, reads


def test_an_edit_of_settings_in_a_store_reads_them_once_and_reloads_once(
    tmp_path: Path, postgres_url: str
) -> None:
    changes = Changes()
    with serve_home(tmp_path, ONETOOL_STORE=postgres_url, ONETOOL_KEY="5e" * 32) as served:
        assert eventually(lambda: served.onetool.state.problem is None)
        with open_postgres(postgres_url, "5e" * 32, tmp_path / "other", changes=changes) as other:
            other.start()
            assert other.wait(TIMEOUT_SECONDS)
            known = changes.number("settings")
            configured = served.onetool.live_settings.times_applied
            loaded = served.onetool.changes.number("settings")
            answer = served.send(
                "PATCH", "/api/agents/reviewer", {"settings": {"permissions": ["read", "network"]}}
            )
            assert answer.status_code == 200, answer.text
            assert eventually(lambda: changes.number("settings") == known + 1)
            other.disabled_tools.set("a.b", on=False)  # the server polls the settings with it
            assert eventually(lambda: "a.b" in served.onetool.state.disabled_tools.off())
            assert served.onetool.live_settings.times_applied - configured == 1
            # Once when it is stored, and once when it is in effect.
            assert served.onetool.changes.number("settings") == loaded + 2
            assert changes.number("settings") == known + 1


def test_an_edit_of_a_project_reads_each_settings_file_at_most_twice(tmp_path: Path) -> None:
    home, project = tmp_path, tmp_path / "work"
    directory = project / ".onetool"
    (directory / "agents").mkdir(parents=True)
    (directory / "onetool.yaml").write_text(
        "agents: {local: {permissions: [read]}}\n", encoding="utf-8"
    )
    (directory / "agents" / "ops.yaml").write_text("permissions: [read]\n", encoding="utf-8")
    (home / ".onetool").mkdir(mode=0o700)
    trust(directory, home / ".onetool")
    with serve_home(home, OT_CWD=str(project)) as served, counting_reads(home) as reads:
        assert eventually(lambda: reads[".onetool/run/reload.json"] >= POLLS)
        reads.clear()
        configured = served.onetool.live_settings.times_applied
        for number, name in enumerate(("local", "ops", "reviewer"), 1):
            answer = served.send("PATCH", f"/api/agents/{name}", {"settings": {"permissions": []}})
            assert answer.status_code == 200, answer.text
            assert eventually(lambda: reads[".onetool/run/reload.json"] >= POLLS)
            assert served.onetool.live_settings.times_applied - configured == number
            settings = {path: count for path, count in reads.items() if path.endswith(".yaml")}
            assert max(settings.values()) <= MAX_READS, settings
            reads.clear()
        assert served.onetool.settings.agents["local"].permissions == set()
        (directory / "agents" / "new.yaml").write_text("permissions: [exec]\n", encoding="utf-8")
        answer = served.send("PATCH", "/api/agents/local", {"settings": {"permissions": ["read"]}})
        assert answer.status_code != 200
        assert "new" not in served.onetool.settings.agents  # nobody has trusted it


def test_an_edit_by_a_command_reloads_a_running_server_once(home: EditedHome) -> None:
    with counting_reads(home.home / ".onetool") as reads:
        wait_for_polls(reads)
        reads.clear()
        configured = home.onetool.live_settings.times_applied
        done = run_cli(home.home, "agents", "set", "night", "permissions=[read]")
        assert done.returncode == 0, done.stderr
        assert eventually(lambda: "night" in home.onetool.settings.agents)
        wait_for_polls(reads)
        assert home.onetool.live_settings.times_applied - configured == 1
        assert max(select_settings(reads).values()) <= MAX_READS, reads


def test_a_command_reads_each_settings_file_at_most_twice(tmp_path: Path) -> None:
    configure(tmp_path, make_settings(tmp_path))
    command = [
        sys.executable,
        "-c",
        COMMAND,
        str(tmp_path),
        "agents",
        "set",
        "night",
        "permissions=[read]",
    ]
    env = {
        **environment(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    counts = dict(
        line.split(" ", 1)[::-1] for line in done.stdout.splitlines() if line[:1].isdigit()
    )
    assert 1 <= int(counts[".onetool/onetool.yaml"]) <= MAX_READS, counts
