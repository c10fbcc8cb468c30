"""Listing and searching never wait long for an upstream server, and say which servers are missing
and why.
"""

import json
import math
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp_types import TextResourceContents
from tests.proxy_support import hostile_server
from tests.rest_support import serve_app
from tests.support import (
    PROGRAM,
    App,
    configure,
    connect,
    environment,
    eventually,
    is_within,
    open_app,
    run_cli,
)

from onetool.settings.model import Settings
from onetool.sources.upstream.definitions import (
    FIRST_RETRY_SECONDS,
    MAX_RETRY_SECONDS,
    Definition,
    ToolLists,
    cache_key,
)
from onetool.sources.upstream.servers import LIST_SECONDS
from onetool.state.documents import DocumentFile, Documents

ECHO = Definition(
    "echo", "What it was given.", {"type": "object", "properties": {"text": {"type": "string"}}}
)
CANARY = "canary-correct-horse"
SLEEPS = {"command": "sleep", "args": ["600"]}
EXITS = {"command": sys.executable, "args": ["-c", "raise SystemExit('no license')"]}


def cache(home: Path) -> Path:
    return home / ".onetool" / "cache"


def configure_cached(home: Path, servers: dict[str, Any]) -> None:
    """Configure servers whose lists are cached."""
    lists = ToolLists(DocumentFile(cache(home)))
    for server in Settings.model_validate({"servers": servers}).servers.values():
        lists.put(cache_key(server), [ECHO])


def get_note(app: App, command: str) -> str:
    """Return the note before the value."""
    return "\n".join(block for block in app.run(command).blocks[:-1] if block.startswith("Note: "))


@contextmanager
def silent_port() -> Iterator[str]:
    """Yield a URL that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"http://127.0.0.1:{closed.getsockname()[1]}/mcp"


# --- servers that fail in every way ---------------------------------------------------------------


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """Configure one working server among failing and slow ones."""
    notes = tmp_path_factory.mktemp("notes")
    with silent_port() as silent:
        servers = {
            "good": hostile_server("good", notes),
            "sleeps": {**SLEEPS, "timeout": 600},  # still being listed in the last test
            "exits": EXITS,
            "mute": hostile_server("mute", notes),
            "pages": hostile_server("pages", notes, timeout=60),
            "unreachable": {"url": closed_port()},
            "silent": {"url": silent},
            "off": {**SLEEPS, "enabled": False},
        }
        with open_app({"servers": servers}) as app:
            yield app


def test_a_listing_names_missing_servers_and_the_reasons(app: App) -> None:
    assert eventually(lambda: "exits (failed" in get_note(app, "ot.tools()"))
    note = get_note(app, "ot.tools()")
    assert "sleeps (starting)" in note
    assert "off" not in note, "a person disabled it"
    assert "`onetool doctor`" in note
    assert isinstance(app.data("ot.tools()"), list)


def test_no_listing_waits_twice_for_servers_that_hang() -> None:
    """The first listing waits a second. No retry falls due here, because this server does not fail."""
    with open_app({"servers": {"sleeps": {**SLEEPS, "timeout": 600}}}) as app:
        app.run("ot.tools()")
        app.onetool.servers.list_seconds = 600
        for command in (
            "ot.tools()",
            "ot.packs()",
            "ot.search(query='echo')",
            "ot.help(query='echo it')",
        ):
            assert "sleeps (starting)" in get_note(app, command)


def test_reading_help_on_a_known_tool_gives_no_note(app: App) -> None:
    assert not get_note(app, "ot.help(query='machine.disk')")


@pytest.mark.nightly
def test_a_long_list_in_slow_pages_arrives_in_the_background(app: App) -> None:
    """Hanging servers share the slots with it; a run that names it does not wait for them."""
    assert app.value("pages.echo99_99(text='a')") == "a"
    assert app.value("len(ot.tools(pattern='pages.'))") == "10000"


def test_a_failed_server_has_a_reason_and_a_time_of_the_next_attempt(app: App) -> None:
    assert eventually(
        lambda: "exits (failed: cannot connect to exits" in get_note(app, "ot.tools()")
    )
    note = get_note(app, "ot.tools()")
    assert "next attempt in" in note
    assert "no license" not in note  # the output of a server is not shown to a model
    assert "no license" in app.failure("exits.anything()")


def test_health_distinguishes_starting_failed_and_disabled_servers() -> None:
    servers = {
        "sleeps": {**SLEEPS, "timeout": 600},
        "exits": EXITS,
        "off": {**SLEEPS, "enabled": False},
    }
    with open_app({"servers": servers}) as app:
        app.run("ot.tools()")
        assert eventually(
            lambda: app.data("ot.health()")["proxy"]["servers"]["exits"] == "disconnected"
        )
        states = app.data("ot.health()")["proxy"]["servers"]
    assert states == {"sleeps": "discovering", "exits": "disconnected", "off": "disabled"}


def test_notes_name_only_servers_that_the_agent_may_use() -> None:
    agents = {"narrow": {"permissions": ["network"], "tools": ["mine.*"]}}
    with open_app({"servers": {"mine": SLEEPS, "secret": SLEEPS}, "agents": agents}) as app:
        app.onetool.servers.list_seconds = 0.0
        note = "\n".join(app.run("ot.tools()", agent="narrow").blocks[:-1])
        assert "mine (starting)" in note
        assert "secret" not in note


def test_a_listed_server_is_stopped_and_started_again_by_a_call(tmp_path: Path) -> None:
    with open_app({"servers": {"s": hostile_server("counts", tmp_path)}}) as app:
        app.value("ot.tools()")
        assert eventually(lambda: app.data("ot.health()")["proxy"]["servers"] == {"s": "idle"})
        assert app.value("s.echo(text='a')") == "a"
        assert len(list(tmp_path.glob("listed-*"))) == 2
        assert eventually(lambda: app.data("ot.health()")["proxy"]["servers"] == {"s": "connected"})


def test_the_number_of_cores_limits_concurrent_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with open_app({"servers": {"a": SLEEPS, "b": hostile_server("good")}}) as app:
        app.onetool.servers.list_seconds = 0.0
        app.value("ot.tools()")
        assert set(app.data("ot.health()")["proxy"]["servers"].values()) == {"discovering"}
        assert (
            app.value("b.echo(text='a')") == "a"
        )  # a run that names it does not wait for its turn


# --- successive processes -------------------------------------------------------------------------


@pytest.mark.slow
def test_the_cli_reports_missing_servers_and_does_not_retry_immediately(tmp_path: Path) -> None:
    known = {
        f"known{number}": hostile_server("good", tmp_path / str(number)) for number in range(3)
    }
    configure(tmp_path, json.dumps({"servers": {**known, "sleeps": SLEEPS, "exits": EXITS}}))
    configure_cached(tmp_path, known)
    first = run_cli(tmp_path, "tools", "--json")
    assert {"known0.echo", "known2.echo"} <= {each["name"] for each in json.loads(first.stdout)}
    assert "2 servers not listed yet: sleeps (" in first.stderr
    code = (
        "import sys; from onetool.cli.main import main; main(['tools']); sys.exit('mcp' in"
        " sys.modules)"
    )
    env = environment(tmp_path)
    again = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr  # nothing was started, not even the SDK was loaded
    assert "sleeps (no response within" in again.stderr
    assert "exits (failed: cannot connect to exits" in again.stderr


@pytest.mark.slow
def test_commands_do_not_wait_for_hanging_servers(tmp_path: Path) -> None:
    """A command does not wait at its end either: it kills the processes that it started for the
    list.
    """
    configure(tmp_path, json.dumps({"servers": {}}))
    run_cli(tmp_path, "tools")
    started = time.monotonic()
    run_cli(tmp_path, "tools")
    ordinary = time.monotonic() - started
    configure(tmp_path, json.dumps({"servers": {f"s{number}": SLEEPS for number in range(3)}}))

    def list_tools() -> None:
        assert "3 servers not listed yet" in run_cli(tmp_path, "tools").stderr

    assert is_within(5 * ordinary + 2 * LIST_SECONDS, list_tools)
    assert run_cli(tmp_path, "help", "something to do").stderr.count("not listed yet") == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_the_doctor_lists_all_servers_with_an_empty_cache(tmp_path: Path) -> None:
    servers = {f"s{number}": hostile_server("good", tmp_path / str(number)) for number in range(29)}
    configure(tmp_path, json.dumps({"servers": servers}))
    for _ in range(2):
        done = run_cli(tmp_path, "tools", "--info", "list")
        listed = len([line for line in done.stdout.splitlines() if line.endswith(".echo")])
        missing = int((re.search(r"(\d+) servers? not listed", done.stderr) or [0, 0])[1])
        assert 29 - listed <= missing <= 29, (
            listed,
            done.stderr,
        )  # one may answer between the note and the list
    checked = run_cli(tmp_path, "doctor")
    assert checked.stdout.count("responds: 1 tool") == 29, checked.stdout
    done = run_cli(tmp_path, "tools", "--info", "list")
    assert len([line for line in done.stdout.splitlines() if line.endswith(".echo")]) == 29
    assert "not listed" not in done.stderr


@pytest.mark.slow
def test_a_call_ignores_the_retry_delay_of_a_failed_server(tmp_path: Path) -> None:
    server = hostile_server("good", tmp_path)
    configure(tmp_path, json.dumps({"servers": {"s": server}}))
    key = cache_key(Settings.model_validate({"servers": {"s": server}}).servers["s"])
    for _ in range(20):
        ToolLists(DocumentFile(cache(tmp_path))).put_failure(key, "it failed")
    assert "s (failed: it failed; next attempt in" in run_cli(tmp_path, "tools").stderr
    assert run_cli(tmp_path, "run", "s.echo(text='a')").stdout == "a\n"
    done = run_cli(tmp_path, "tools")
    assert "s.echo" in done.stdout
    assert not done.stderr


def test_a_server_retries_a_listing_that_the_cli_interrupted(tmp_path: Path) -> None:
    server = hostile_server("good", tmp_path)
    configure(tmp_path, json.dumps({"servers": {"s": server}}))
    key = cache_key(Settings.model_validate({"servers": {"s": server}}).servers["s"])
    ToolLists(DocumentFile(cache(tmp_path))).put_failure(
        key, "no response within 1.0 s", is_interrupted=True
    )
    lists = ToolLists(DocumentFile(cache(tmp_path)))
    with connect(tmp_path) as client:
        client.tools()
        assert eventually(lambda: lists.get(key))
        uri = "ot://tools"
        assert eventually(lambda: "s.echo" in _read_resource(client, uri))
    assert lists.get_failure(key) is None


def _read_resource(client: Any, uri: str) -> str:
    (content,) = client.portal.call(
        partial(client.client.read_resource, uri, cache_mode="bypass")
    ).contents
    assert isinstance(content, TextResourceContents)
    return content.text


def test_the_tools_resource_has_a_note_and_is_valid_yaml(tmp_path: Path) -> None:
    configure(tmp_path, json.dumps({"servers": {"sleeps": SLEEPS}}))
    with connect(tmp_path) as client:
        text = _read_resource(client, "ot://tools")
    assert "# Note: 1 server not listed yet: sleeps (starting)" in text
    assert isinstance(yaml.safe_load(text), list)


def test_rest_names_servers_that_are_not_listed(tmp_path: Path) -> None:
    with serve_app(tmp_path, {"servers": {"sleeps": SLEEPS}}) as server:
        server.onetool.servers.list_seconds = 0.0
        listed = server.rest.get("/api/tools")
        assert listed["unlisted"] == [
            {"server": "sleeps", "state": "discovering", "reason": "starting"}
        ]
        assert [each["name"] for each in listed["tools"]]
    with serve_app(tmp_path / "other", {"servers": {}}) as server:
        assert "unlisted" not in server.rest.get("/api/tools")


# --- records of failures --------------------------------------------------------------------------


def test_failures_back_off_up_to_a_maximum(tmp_path: Path) -> None:
    now = [1000.0]
    lists = ToolLists(DocumentFile(tmp_path), clock=lambda: now[0])
    waits = [lists.put_failure("k", "it failed").wait_seconds(now[0]) for _ in range(50)]
    assert waits[:3] == [FIRST_RETRY_SECONDS, 2 * FIRST_RETRY_SECONDS, 4 * FIRST_RETRY_SECONDS]
    assert waits[-1] == MAX_RETRY_SECONDS
    failure = lists.get_failure("k")
    assert failure is not None
    assert failure.wait_seconds(now[0] + MAX_RETRY_SECONDS) == 0
    assert failure.wait_seconds(now[0] - 1) == 0  # the clock was set back
    lists.put("k", [ECHO])
    assert lists.get_failure("k") is None


def test_an_interruption_does_not_replace_the_recorded_reason(tmp_path: Path) -> None:
    lists = ToolLists(DocumentFile(tmp_path))
    lists.put_failure("k", "no license")
    failure = lists.put_failure("k", "no response within 1.0 s", is_interrupted=True)
    assert (failure.reason, failure.is_interrupted, failure.count) == ("no license", False, 2)


@pytest.mark.parametrize(
    "damaged",
    [
        [],
        {"version": 9},
        {"reason": "x", "count": 0, "at": 1, "is_interrupted": 0},
        {"reason": "x", "count": 1, "at": math.inf, "is_interrupted": 0},
    ],
)
def test_a_damaged_record_is_ignored(tmp_path: Path, damaged: object) -> None:
    Documents(DocumentFile(tmp_path), "tool list failure").update("k", lambda _: damaged)
    assert ToolLists(DocumentFile(tmp_path)).get_failure("k") is None


def test_an_unwritable_cache_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    lists = ToolLists(DocumentFile(tmp_path / "file"))
    lists.put("k", [ECHO])
    assert lists.put_failure("k", "it failed").count == 1


def test_secrets_that_a_server_prints_are_not_recorded(tmp_path: Path) -> None:
    code = f"import sys; sys.exit('{CANARY}')"
    with serve_app(
        tmp_path,
        {"servers": {"s": {"command": sys.executable, "args": ["-c", code]}}},
        (),
        {"KEY": CANARY},
    ) as server:
        assert eventually(lambda: "disconnected" in json.dumps(server.rest.get("/api/packs")))
        assert CANARY not in json.dumps(server.rest.get("/api/tools"))
    failures = Documents(
        DocumentFile(server.onetool.directories.data / "cache"), "tool list failure"
    ).get_all()
    assert failures
    assert CANARY not in json.dumps(failures)


@pytest.mark.slow
def test_two_processes_list_at_the_same_time(tmp_path: Path) -> None:
    servers = {f"s{number}": hostile_server("good", tmp_path / str(number)) for number in range(4)}
    configure(tmp_path, json.dumps({"servers": servers}))
    env = environment(tmp_path)
    running = [
        subprocess.Popen([PROGRAM, "doctor"], env=env, cwd=tmp_path, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in running:
        output, _ = process.communicate(timeout=60)
        assert output.count(b"responds: 1 tool") == 4, output.decode()
    lists = ToolLists(DocumentFile(cache(tmp_path)))
    keys = Documents(DocumentFile(cache(tmp_path)), "tool list").names()
    assert len(keys) == 4
    assert all(lists.get(key) for key in keys)
    assert Documents(DocumentFile(tmp_path / ".onetool"), "pins").get_all().keys() == servers.keys()


def test_server_names_are_known_without_starting_a_server() -> None:
    with open_app({"servers": {"a": SLEEPS, "b": {**SLEEPS, "enabled": False}}}) as app:
        assert app.onetool.servers.names == ("a", "b")


def test_a_server_is_always_either_a_pack_or_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs name a server whose list is loaded and whose tools are being created: both get them."""
    entered, go_on, get = threading.Event(), threading.Event(), Documents.get

    def slow_get(documents: Documents, name: str) -> Any:
        if documents.kind == "pins":
            entered.set()
            assert go_on.wait(60)
        return get(documents, name)

    monkeypatch.setattr(Documents, "get", slow_get)
    with open_app({"servers": {"s": SLEEPS}}) as app:
        registry, upstream = app.onetool.registry, app.onetool.servers.upstream("s")
        ToolLists(DocumentFile(app.onetool.directories.data / "cache")).put(upstream.key, [ECHO])
        runs = [app.start("s.__name__")]
        assert entered.wait(60)
        runs.append(app.start("s.__name__"))
        assert not registry.is_pack("s")
        assert "not responded yet" in registry.problems()["s"].message
        go_on.set()
        answers = [run.result(60) for run in runs]
        assert not any("NameError" in answer.text for answer in answers)
        assert registry.is_pack("s")
        assert "s" not in registry.problems()
        assert "s" in app.value("ot.packs()")
