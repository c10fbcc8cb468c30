"""Changes that reach running servers: revoked tokens, edited settings, SIGHUP, and `onetool
reload`.
"""

import contextlib
import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from tests.rest_support import get_error_code, make_client, serve_process
from tests.support import TIMEOUT_SECONDS, RawClient, configure, eventually, run_cli

from onetool.app import OneTool
from onetool.server.settings_watcher import watching
from onetool.settings.load import examine, load
from onetool.settings.paths import find_directories
from onetool.settings.trust import trust
from onetool.state.document_kinds import DisabledTools
from onetool.state.documents import DocumentFile
from onetool.util.token_ids import hash_token

TOKEN, OTHER = "ot_token-of-ada", "ot_token-of-bob"
MAX_DELAY_SECONDS = 2.0
SLACK_SECONDS = 3.0  # for a busy machine
SETTINGS = f"""\
agents: {{ada: {{permissions: [read]}}}}
auth:
  tokens:
    - {{name: ada, agent: ada, hash: {hash_token(TOKEN)}}}
    - {{name: bob, hash: {hash_token(OTHER)}}}
"""
WITHOUT_ADA = f"auth: {{tokens: [{{name: bob, hash: {hash_token(OTHER)}}}]}}\n"
WRONG = "servers: [what\n"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "wire", "version": "1"},
    },
}
ACCEPT = {"accept": "application/json, text/event-stream"}


def build_auth_header(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@contextlib.contextmanager
def start_server(home: Path, settings: str = SETTINGS) -> Iterator[tuple[int, httpx2.Client]]:
    """Start a server process with these settings and yield its process ID and a client."""
    configure(home, settings)
    with serve_process(home) as (server, info), make_client(info["url"]) as client:
        yield server.pid, client


def get_status(client: httpx2.Client, token: str | None = TOKEN) -> int:
    return client.get("/api/runs", headers=build_auth_header(token) if token else {}).status_code


def wait_for_status(client: httpx2.Client, expected: int, token: str | None = TOKEN) -> bool:
    return eventually(
        lambda: get_status(client, token) == expected, MAX_DELAY_SECONDS + SLACK_SECONDS
    )


def read_log(home: Path, event: str) -> list[dict[str, Any]]:
    file = home / ".onetool" / "logs" / "onetool.log"
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [line for line in map(json.loads, lines) if line["name"] == event]


def has_reloaded(home: Path, times: int) -> bool:
    return len(read_log(home, "settings.reload")) >= times


class Listener(threading.Thread):
    """Read a stream to its end."""

    def __init__(self, client: httpx2.Client, method: str, path: str, **options: Any) -> None:
        super().__init__(daemon=True)
        self._arguments = client, method, path, options
        self.is_open = threading.Event()
        self.status = 0
        self.error: Exception | None = None
        self.start()
        assert self.is_open.wait(TIMEOUT_SECONDS)

    def run(self) -> None:
        client, method, path, options = self._arguments
        try:
            with client.stream(method, path, **options) as stream:
                self.status = stream.status_code
                self.is_open.set()
                for _ in stream.iter_raw():
                    pass
        except httpx2.HTTPError as error:
            self.error = error


def open_session(client: httpx2.Client) -> dict[str, str]:
    """Return the headers of a new MCP session of the token."""
    opened = client.post("/mcp", json=HELLO, headers={**build_auth_header(), **ACCEPT})
    assert opened.status_code == 200, opened.text
    headers = {**build_auth_header(), **ACCEPT, "mcp-session-id": opened.headers["mcp-session-id"]}
    client.post(
        "/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers
    )
    return headers


# --- tokens ---------------------------------------------------------------------------------------


def test_a_deleted_token_is_rejected_and_its_streams_end(tmp_path: Path) -> None:
    with start_server(tmp_path) as (_, client):
        mcp = open_session(client)
        call = {"name": "run", "arguments": {"command": "print('x')\nimport time; time.sleep(60)"}}
        meta = {"_meta": {"progressToken": 1}}
        slow = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {**call, **meta}}
        code = {"command": call["arguments"]["command"]}  # type: ignore[index]
        streams = [
            Listener(client, "GET", "/api/activity", headers=build_auth_header()),
            Listener(
                client,
                "POST",
                "/api/run",
                json=code,
                headers={**build_auth_header(), "accept": "text/event-stream"},
            ),
            Listener(client, "POST", "/mcp", json=slow, headers=mcp),
            Listener(client, "GET", "/mcp", headers={**mcp, "accept": "text/event-stream"}),
        ]
        own_stream = Listener(client, "GET", "/api/activity")
        assert run_cli(tmp_path, "token", "revoke", "ada").returncode == 0
        deleted = time.monotonic()
        for stream in streams:
            stream.join(MAX_DELAY_SECONDS + SLACK_SECONDS)
            assert not stream.is_alive()
            assert (stream.status, stream.error) == (200, None)
        assert wait_for_status(client, 401)
        assert time.monotonic() - deleted < MAX_DELAY_SECONDS + SLACK_SECONDS
        again = client.post(
            "/mcp", json={"jsonrpc": "2.0", "id": 3, "method": "tools/list"}, headers=mcp
        )
        assert get_error_code(again) == (401, "unauthorized")
        assert (get_status(client, OTHER), get_status(client, None)) == (200, 200)
        assert own_stream.is_alive()


def test_new_tokens_are_accepted_and_tokens_of_removed_agents_are_not(tmp_path: Path) -> None:
    agent = tmp_path / ".onetool" / "agents" / "ada.yml"
    agent.parent.mkdir(parents=True)
    agent.write_text("permissions: [read]\n", encoding="utf-8")
    with start_server(tmp_path, SETTINGS.partition("\n")[2]) as (_, client):
        token = run_cli(tmp_path, "token", "create", "laptop").stdout.strip()
        assert eventually(lambda: read_log(tmp_path, "settings.reload"))
        assert (get_status(client, token), get_status(client)) == (200, 200)
        agent.unlink()
        assert wait_for_status(client, 401)
        assert (get_status(client, token), get_status(client, OTHER)) == (200, 200)
        configure(tmp_path, f"{WITHOUT_ADA}no_such_key: 1\n")  # invalid for another reason
        assert wait_for_status(client, 401, token)
        assert get_status(client, OTHER) == 200
        assert eventually(lambda: "no_such_key" in str(read_log(tmp_path, "settings.reload")))


def test_no_token_is_accepted_while_settings_are_unreadable(tmp_path: Path) -> None:
    file, backup = tmp_path / ".onetool" / "onetool.yaml", tmp_path / "kept"
    with start_server(tmp_path) as (_, client):
        for damage in (
            lambda: file.write_text("auth: {tokens: [", encoding="utf-8"),
            file.mkdir,
            lambda: None,
        ):
            assert wait_for_status(client, 200)
            file.rename(backup)
            damage()
            assert wait_for_status(client, 503)
            answer = client.get("/api/runs", headers=build_auth_header())
            assert answer.json()["error"]["details"] == {"reason": "tokens_unreadable"}
            assert str(tmp_path) not in answer.text
            assert (get_status(client, "ot_guess"), get_status(client, None)) == (503, 200)
            if file.is_dir():
                file.rmdir()
            backup.replace(file)
        assert wait_for_status(client, 200)


def test_a_valid_token_is_not_unknown_if_the_settings_are_invalid_at_the_start(
    tmp_path: Path,
) -> None:
    with start_server(tmp_path, f"{SETTINGS}no_such_key: 1\n") as (_, client):
        answer = client.get("/api/runs", headers=build_auth_header())
        assert (answer.status_code, answer.json()["error"]["details"]) == (
            503,
            {"reason": "tokens_unreadable"},
        )
        assert "the configuration is invalid" in answer.json()["error"]["message"]
        configure(tmp_path, SETTINGS)
        assert wait_for_status(client, 200)
        assert get_status(client, "ot_guess") == 401


@pytest.mark.parametrize("name", ["runs/runs.db", "stats/stats.db"])
def test_files_of_a_newer_version_have_the_same_error(tmp_path: Path, name: str) -> None:
    file = tmp_path / ".onetool" / name
    file.parent.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA user_version = 99")
    with start_server(tmp_path, SETTINGS.replace("name: ada,", "name: ada, scope: approve,")) as (
        _,
        client,
    ):
        path = "/api/approvals" if name == "runs/runs.db" else "/api/stats"
        answer = client.get(path, headers=build_auth_header())
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            507,
            "storage_unavailable",
        ), answer.text
        assert "was written by a newer OneTool (version 99" in answer.json()["error"]["message"]


# --- settings -------------------------------------------------------------------------------------


def test_restricted_agents_and_disabled_packs_apply_to_a_running_server(tmp_path: Path) -> None:
    def value(command: str) -> str:
        return str(
            client.post("/api/run", json={"command": command}, headers=build_auth_header()).json()[
                "blocks"
            ][-1]
        )

    with start_server(tmp_path) as (_, client):
        assert value("machine.now()")
        configure(tmp_path, SETTINGS.replace("[read]}", "[read], tools: [ot]}"))
        assert eventually(
            lambda: "PermissionDenied" in value("machine.now()"), MAX_DELAY_SECONDS + SLACK_SECONDS
        )
        configure(tmp_path, SETTINGS)
        assert eventually(lambda: "PermissionDenied" not in value("machine.now()"))
        DisabledTools(DocumentFile(tmp_path / ".onetool")).set("machine", on=False)
        assert eventually(
            lambda: "machine" in value("machine.now()"), MAX_DELAY_SECONDS + SLACK_SECONDS
        )


def test_settings_of_an_untrusted_project_are_not_reloaded(tmp_path: Path) -> None:
    project = tmp_path / "work"
    configure(tmp_path, SETTINGS)
    configure(project, "aliases: {mem: machine.memory}\n")
    trust(project / ".onetool", tmp_path / ".onetool")
    with serve_process(tmp_path, cwd=project) as (_, info), make_client(info["url"]) as client:
        assert get_status(client) == 200
        configure(tmp_path, WITHOUT_ADA)
        configure(project, "agents: {default: {permissions: [exec]}}\n")
        assert wait_for_status(client, 401)
        log = project / ".onetool" / "logs" / "onetool.log"
        assert eventually(lambda: "changed since it was trusted" in log.read_text("utf-8"))
        assert get_status(client, OTHER) == 200
        trust(project / ".onetool", tmp_path / ".onetool")
        assert eventually(lambda: "Configuration reloaded" in log.read_text("utf-8"))


# --- SIGHUP and `onetool reload` ------------------------------------------------------------------


def test_sighup_reloads_and_the_command_prints_each_servers_result(tmp_path: Path) -> None:
    with start_server(tmp_path) as (pid, client), RawClient(tmp_path) as wire:
        for count, number in enumerate((pid, wire.process.pid)):
            os.kill(number, signal.SIGHUP)
            assert eventually(partial(has_reloaded, tmp_path, count + 1))
        done = run_cli(tmp_path, "reload")
        assert (done.returncode, done.stderr) == (0, "")
        url = str(client.base_url).rstrip("/")
        assert sorted(done.stdout.splitlines()) == sorted(
            [
                f"{pid} ({url}): OK: Configuration reloaded",
                f"{wire.process.pid} (stdio in {tmp_path}): OK: Configuration reloaded",
            ]
        )
        configure(tmp_path, WRONG)
        for number in (pid, wire.process.pid):
            os.kill(number, signal.SIGHUP)
        failed = run_cli(tmp_path, "reload", "--json")
        assert failed.returncode == 1
        servers = json.loads(failed.stdout)["servers"]
        assert {server["pid"]: server["ok"] for server in servers} == {
            pid: False,
            wire.process.pid: False,
        }
        assert all("onetool.yaml:2" in server["answer"] for server in servers)
        assert "nothing changed" in str(read_log(tmp_path, "settings.reload"))
        assert get_status(client, None) == 200
        assert wire.run("1 + 1")["result"]["content"][-1]["text"] == "2"
        os.kill(wire.process.pid, signal.SIGSTOP)
        configure(tmp_path, SETTINGS)
        partly = run_cli(tmp_path, "reload", "--timeout", "2")
        os.kill(wire.process.pid, signal.SIGCONT)
        assert partly.returncode == 1
        assert f"{pid} ({url}): OK" in partly.stdout
        assert (
            f"{wire.process.pid} (stdio in {tmp_path}): failed: no response in time"
            in partly.stdout
        )
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: str(pid) not in run_cli(tmp_path, "reload").stdout)
        assert len(list((tmp_path / ".onetool" / "run").glob("*.server.json"))) == 1


def test_a_server_starts_without_a_usable_run_directory(tmp_path: Path) -> None:
    (tmp_path / ".onetool").mkdir()
    (tmp_path / ".onetool" / "run").touch()  # a file instead of a directory
    with start_server(tmp_path) as (_, client):
        assert get_status(client) == 200
        assert run_cli(tmp_path, "reload").stdout == "No server is running.\n"


def test_a_server_can_be_stopped_during_a_reload(tmp_path: Path) -> None:
    """An upstream server that never responds keeps the reload busy."""
    silent = f"{SETTINGS}servers: {{silent: {{command: sleep, args: ['60']}}}}\n"
    with start_server(tmp_path) as (pid, client), RawClient(tmp_path) as wire:
        configure(tmp_path, silent)
        assert eventually(lambda: len(read_log(tmp_path, "settings.reload")) == 2)
        for number, signal_number in ((pid, signal.SIGTERM), (wire.process.pid, signal.SIGINT)):
            for _ in range(5):
                os.kill(number, signal.SIGHUP)
            os.kill(number, signal_number)
        assert eventually(lambda: _is_gone(client))
        assert wire.process.wait(TIMEOUT_SECONDS) == 130


def _is_gone(client: httpx2.Client) -> bool:
    try:
        client.get("/healthz")
    except httpx2.TransportError:
        return True
    return False


@pytest.mark.anyio
async def test_a_change_between_the_start_and_the_first_check_is_applied(tmp_path: Path) -> None:
    configure(tmp_path, "aliases: {before: machine.now}\n")
    directories = find_directories({}, tmp_path, None, tmp_path)
    async with OneTool(
        read=partial(load, directories, {}), examine=partial(examine, directories, {})
    ) as app:
        configure(tmp_path, "aliases: {after: machine.now}\n")
        app.changes.seconds = 0.02
        async with watching(app):
            assert await anyio.to_thread.run_sync(
                eventually, lambda: "after" in app.registry.aliases
            )
