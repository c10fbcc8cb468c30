"""Test records over REST and with commands: runs, tokens, spending, the audit log, clients, backups
and fixes.
"""

import json
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from tests.daemon_support import ask, open_daemon_home
from tests.rest_support import get_error_code, make_client, serve_process
from tests.support import configure, eventually, run_cli

from onetool.settings.trust import trust
from onetool.state.document_kinds import SavedSnippet, SavedSnippets
from onetool.state.documents import DocumentFile
from onetool.util.running_servers import create_code
from onetool.util.token_ids import hash_token

pytestmark = pytest.mark.slow
SECRET = "k-7d1f0c55aa-of-the-api"
SCOPES = {
    "one": "use",
    "two": "use",
    "asker": "use",
    "phone": "approve",
    "boss": "admin",
    "root": "owner",
}
AGENTS = {"asker": "careful"}
TOKENS = "\n".join(
    f"    - {{name: {name}, hash: {hash_token(f'ot_{name}')}, agent: {AGENTS.get(name, 'default')},"
    f" scope: {scope}}}"
    for name, scope in SCOPES.items()
)
SETTINGS = f"""
agents:
  default: {{permissions: [read, write]}}
  other: {{permissions: [read]}}
  builder: {{permissions: [read, exec]}}
  sender: {{permissions: [read, network]}}
  careful: {{permissions: [read, write], policy: ask-writes}}
tools: {{machine: {{cost_per_call: 0.5}}}}
auth:
  tokens:
{TOKENS}
"""
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "editor", "version": "1"},
}


class Team:
    """A server and a client for each token; `local` sends none."""

    def __init__(self, home: Path, url: str) -> None:
        self.home, self.url = home, url
        self.clients = {name: make_client(url) for name in (*SCOPES, "local")}
        for name in SCOPES:
            self.clients[name].headers["authorization"] = f"Bearer ot_{name}"

    def __getitem__(self, name: str) -> httpx2.Client:
        return self.clients[name]

    def run(self, name: str, code: str) -> dict[str, Any]:
        answer: dict[str, Any] = self[name].post("/api/run", json={"command": code}).json()
        return answer


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    home = tmp_path_factory.mktemp("home")
    configure(home, SETTINGS)
    secrets = home / ".onetool" / "secrets.yaml"
    secrets.write_text(f"API_KEY: {SECRET}\n", encoding="utf-8")
    secrets.chmod(0o600)
    with serve_process(home) as (_, info):
        team = Team(home, info["url"])
        yield team
        for client in team.clients.values():
            client.close()


def test_each_scope_sees_and_changes_what_it_may(team: Team) -> None:
    readable = ("/api/tokens", "/api/audit", "/api/audit/export", "/api/clients")
    statuses = {
        name: [team[name].get(path).status_code for path in readable] for name in team.clients
    }
    assert statuses == {
        **dict.fromkeys(("one", "two", "asker", "phone", "local"), [403] * 4),
        **dict.fromkeys(("boss", "root"), [200] * 4),
    }
    draft = {"name": "new", "scope": "use"}
    for name in ("one", "phone", "local"):
        assert get_error_code(team[name].post("/api/tokens", json=draft))[0] == 403
        assert get_error_code(team[name].delete("/api/tokens/two"))[0] == 403
        assert get_error_code(team[name].post("/api/health/fixes", json={"fix": "x"}))[0] == 403
    for name in ("boss", "root"):
        refused = team[name].post("/api/tokens", json={"name": "new", "scope": "owner"})
        assert get_error_code(refused) == (403, "forbidden")
        assert "onetool token create new --scope owner" in refused.json()["error"]["message"]
    assert get_error_code(team["boss"].delete("/api/tokens/root")) == (403, "forbidden")
    # Such a token could change the agent of the token that created it.
    twin = team["boss"].post(
        "/api/tokens", json={"name": "new", "scope": "admin", "agent": "other"}
    )
    assert get_error_code(twin) == (403, "forbidden")
    for agent, reason in (
        ("builder", "permissions grants exec"),
        ("sender", "permissions grants more than your own"),
    ):
        refused = team["boss"].post("/api/tokens", json={"name": "new", "agent": agent})
        assert get_error_code(refused) == (403, "forbidden")
        assert f"agents.{agent}.{reason}" in refused.json()["error"]["message"]
        assert (
            f"onetool token create new --agent {agent} --scope use"
            in refused.json()["error"]["message"]
        )
    listed = {each["name"]: each for each in team["boss"].get("/api/tokens").json()["tokens"]}
    assert {name: each["canRevoke"] for name, each in listed.items()} == {
        name: name != "root" for name in SCOPES
    }
    assert "hash" not in json.dumps(listed)


def test_a_token_takes_effect_at_once_and_so_does_its_end(team: Team) -> None:
    boss = team["boss"]
    draft = {"name": "tablet", "agent": "other", "scope": "use", "expires": "30d"}
    created = boss.post("/api/tokens", json=draft)
    assert created.status_code == 201
    token = created.json()["token"]
    assert get_error_code(boss.post("/api/tokens", json=draft)) == (409, "duplicate")
    for wrong in (
        {"name": "a b"},
        {"name": "x", "agent": "nix"},
        {"name": "x", "expires": "soon"},
        {"name": "x", "scope": "god"},
    ):
        assert get_error_code(boss.post("/api/tokens", json=wrong))[0] == 400
    with make_client(team.url) as tablet:
        tablet.headers["authorization"] = f"Bearer {token}"
        assert tablet.get("/api/session").json()["agent"] == "other"
        assert boss.delete("/api/tokens/tablet").json() == {"revoked": "tablet"}
        assert tablet.get("/api/runs").status_code == 401
    assert get_error_code(boss.delete("/api/tokens/tablet")) == (404, "not_found")
    settings = (team.home / ".onetool" / "onetool.yaml").read_text(encoding="utf-8")
    assert settings == SETTINGS  # as it was, byte for byte
    names = [
        (each["name"], each["actor"])
        for each in boss.get("/api/audit", params={"kind": "change"}).json()["records"]
    ]
    assert names[0] == ("token.revoke", "token boss")
    assert token not in (team.home / ".onetool" / "logs" / "audit.jsonl").read_text(
        encoding="utf-8"
    )


def list_waiting(client: Any) -> list[Any]:
    runs: list[Any] = client.get("/api/runs", params={"state": "waiting"}).json()["runs"]
    return runs


def test_a_new_token_of_the_same_name_sees_nothing_of_the_ended_one(team: Team) -> None:
    boss = team["boss"]
    draft = {"name": "reused", "agent": "careful"}
    with make_client(team.url) as holder, ThreadPoolExecutor(1) as threads:
        holder.headers["authorization"] = (
            f"Bearer {boss.post('/api/tokens', json=draft).json()['token']}"
        )
        run = holder.post("/api/run", json={"command": "machine.disk()\n1 / 0"}).json()["runID"]
        waiting = threads.submit(
            holder.post, "/api/run", json={"command": "fs.write(path='x.txt', content='x')"}
        )
        assert eventually(lambda: list_waiting(holder))
        (durable,) = list_waiting(holder)
        paths = ["/api/runs", f"/api/runs/{run}", f"/api/runs/{durable['id']}", "/api/runs/export"]
        paths += [f"/api/runs/{durable['id'][:20]}", "/api/errors", "/api/spending"]
        answers = {path: holder.get(path) for path in paths}
        assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(
            paths, 200
        )
        assert all("machine.disk" in answers[path].text for path in (paths[0], paths[1], paths[3]))
        assert "ZeroDivisionError" in answers["/api/errors"].text
        boss.delete("/api/tokens/reused")
        assert waiting.result().status_code == 401
        holder.headers["authorization"] = (
            f"Bearer {boss.post('/api/tokens', json=draft).json()['token']}"
        )
        answers = {path: holder.get(path) for path in paths}
        assert [answers[path].status_code for path in paths] == [200, 404, 404, 200, 404, 200, 200]
        for path in ("/api/runs", "/api/errors", "/api/spending"):
            assert not any(answers[path].json().values()), answers[path].text
        assert answers["/api/runs/export"].text == ""
        team.run("boss", "1")
        spent = [row["actor"] for row in boss.get("/api/spending").json()["spending"]]
        assert spent.count("token reused") == 1
        boss.delete("/api/tokens/reused")


def test_runs_are_found_by_their_facts_and_shown_with_values(team: Team) -> None:
    code = f"print('begin')\nmachine.disk()\njson.parse(json='{{\"key\": \"{SECRET}\"}}')\n1 / 0"
    run_id = team.run("one", code)["runID"]
    team.run("two", "machine.cpu()")
    shown = team["one"].get(f"/api/runs/{run_id}").json()
    assert (shown["error"], shown["errorLine"], shown["printed"]) == (
        "execution_error",
        4,
        "begin\n",
    )
    assert "ZeroDivisionError" in shown["message"]
    assert [call["name"] for call in shown["calls"]] == ["machine.disk", "json.parse"]
    assert json.loads(shown["calls"][1]["result"]) == {"key": "[REDACTED]"}
    assert SECRET not in json.dumps(shown)
    assert shown["cost"] == 0.5
    assert "directory" not in shown
    assert team["boss"].get(f"/api/runs/{run_id}").json()["directory"] == str(team.home)
    # A token of the same agent sees neither the run nor its events.
    assert team["two"].get(f"/api/runs/{run_id}").status_code == 404
    assert {
        run["actor"]
        for run in team["two"].get("/api/runs", params={"actor": "token one"}).json()["runs"]
    } == {"token two"}

    def find(**filters: Any) -> list[str]:
        return [run["id"] for run in team["boss"].get("/api/runs", params=filters).json()["runs"]]

    assert run_id in find(
        actor="token one", state="failed", tool="json.parse", text="1 / 0", error="execution_error"
    )
    assert run_id not in find(tool="machine.cpu")
    assert find(minMs=3_600_000) == []
    for wrong in (
        {"minMs": "x"},
        {"order": "best"},
        {"since": "now"},
        {"pageToken": "zzz"},
        {"state": "odd"},
    ):
        assert get_error_code(team["boss"].get("/api/runs", params=wrong)) == (400, "invalid")
    lines = team["one"].get("/api/runs/export").text.splitlines()
    assert [json.loads(line)["actor"] for line in lines] == ["token one"]
    assert SECRET not in "".join(lines)
    assert SECRET.encode() not in (team.home / ".onetool" / "stats" / "stats.db").read_bytes()
    groups = team["boss"].get("/api/errors").json()["errors"]
    assert {"name": "run", "type": "execution_error", "runID": run_id}.items() <= groups[0].items()
    counted = json.loads(run_cli(team.home, "stats", "--by", "error", "--json").stdout)["errors"]
    assert [(group["count"], group["run_id"]) for group in counted] == [
        (each["count"], each["runID"]) for each in groups
    ]
    assert team["two"].get("/api/errors").json()["errors"] == []


def test_a_run_shows_who_approved_its_calls(team: Team) -> None:
    code = "fs.write(path='note.txt', content='approved')"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(team.run, "asker", code)
        assert eventually(lambda: team["phone"].get("/api/approvals").json()["approvals"])
        (waiting,) = team["phone"].get("/api/approvals").json()["approvals"]
        team["phone"].post(f"/api/approvals/{waiting['run']}", json={"decision": "approve"})
        run_id = running.result(30)["runID"]
    shown = team["asker"].get(f"/api/runs/{run_id}").json()
    assert (shown["state"], [call["name"] for call in shown["calls"]]) == ("done", ["fs.write"])
    (approved,) = shown["recorded"]
    assert (approved["tool"], approved["by"], approved["state"]) == (
        "fs.write",
        "token phone",
        "done",
    )
    assert team["one"].get(f"/api/runs/{waiting['run']}").status_code == 404
    assert f"{waiting['run']}  " in run_cli(team.home, "runs", "--agent", "careful").stdout


def test_spending_is_per_token_and_month(team: Team) -> None:
    before = len(team["two"].get("/api/spending").json()["spending"])
    team.run("two", "[machine.cpu() for _ in range(3)]")
    (row,) = team["two"].get("/api/spending").json()["spending"]
    assert before <= 1
    assert (row["actor"], row["calls"] >= 3, row["cost"] == row["calls"] * 0.5) == (
        "token two",
        True,
        True,
    )
    assert {row["actor"] for row in team["boss"].get("/api/spending").json()["spending"]} >= {
        "token two"
    }
    assert team["boss"].get("/api/spending", params={"month": "2001-01"}).json() == {"spending": []}
    assert get_error_code(team["boss"].get("/api/spending", params={"month": "May"}))[0] == 400
    text = run_cli(team.home, "stats", "--by", "token", "--month", row["month"]).stdout
    assert "token two" in text
    assert run_cli(team.home, "stats", "--month", row["month"]).returncode == 2


def test_a_session_over_http_is_listed_and_disconnected(team: Team) -> None:
    client, boss = team["one"], team["boss"]
    headers = {"accept": "application/json, text/event-stream"}

    def send(session: str | None, method: str, **params: Any) -> httpx2.Response:
        given = {**headers, **({"mcp-session-id": session} if session else {})}
        return client.post(
            "/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
            headers=given,
        )

    def connect() -> str:
        session = send(None, "initialize", **HELLO).headers["mcp-session-id"]
        assert send(session, "tools/list").status_code == 200
        return str(session)

    session = connect()
    (found,) = [
        each for each in boss.get("/api/clients").json()["clients"] if each["name"] == "editor"
    ]
    assert (found["kind"], found["agent"], found["actor"]) == ("http", "default", "token one")
    assert session not in json.dumps(found)
    assert get_error_code(boss.delete("/api/clients/0000000000000000")) == (404, "not_found")
    assert boss.delete(f"/api/clients/{found['id']}").status_code == 200
    assert send(session, "tools/list").status_code == 404
    session = connect()
    assert found["agent"] in run_cli(team.home, "disconnect").stdout
    done = run_cli(team.home, "disconnect", "editor")
    assert done.returncode == 0, done.stderr
    assert send(session, "tools/list").status_code == 404
    assert "no connected client 'editor'" in run_cli(team.home, "disconnect", "editor").stderr
    actions = [
        each["name"]
        for each in boss.get("/api/audit", params={"name": "client.disconnect"}).json()["records"]
    ]
    assert len(actions) == 2
    listed = json.loads(
        run_cli(team.home, "audit", "--name", "client.disconnect", "--json").stdout
    )["records"]
    assert [record["name"] for record in listed] == actions
    exported = run_cli(
        team.home, "audit", "--name", "client.disconnect", "--json-lines"
    ).stdout.splitlines()
    assert [json.loads(line)["action"] for line in exported] == actions
    assert (
        "client.disconnect"
        in run_cli(team.home, "audit", "--kind", "change", "--limit", "1").stdout
    )


def test_a_browser_session_has_all_rights(team: Team) -> None:
    with make_client(team.url) as browser:
        opened = browser.post(
            "/api/session", json={"code": create_code(team.home / ".onetool")}
        ).json()
        browser.headers["x-onetool-csrf"] = opened["csrf"]
        assert browser.get("/api/tokens").json()["scopes"] == ["use", "approve", "admin"]


def test_a_client_of_the_daemon_is_disconnected() -> None:
    with open_daemon_home() as home, home.client(hello={**HELLO}) as client:
        client.ask(
            "tools/call", {"name": "run", "arguments": {"command": "import time\ntime.sleep(60)"}}
        )
        assert eventually(lambda: [each["name"] for each in home.status()["clients"]] == ["editor"])
        (connected,) = home.status()["clients"]
        assert (connected["agent"], connected["kind"]) == ("default", "stdio")
        assert connected["last_call"] >= connected["since"]
        assert ask(home.sockets[0], {"kind": "disconnect", "argv": [connected["id"]]})[
            "disconnected"
        ] == [connected["id"]]
        error = client.receive()["error"]
        assert (error["data"]["type"], error["data"]["retryable"]) == ("disconnected", False)
        assert client.process.wait(20) == 0
        assert home.status()["clients"] == []


def list_members(file: Path) -> set[str]:
    with tarfile.open(file) as archive:
        return set(archive.getnames())


def test_a_backup_is_taken_of_a_running_server_and_restored_once(
    team: Team, tmp_path: Path
) -> None:
    team.run("one", "'before the backup'")
    assert team["boss"].get("/api/runs").status_code == 200  # it is recorded before it is listed
    team["boss"].post("/api/tokens", json={"name": "short", "expires": "1d"})
    team["boss"].delete("/api/tokens/short")
    archive, complete = tmp_path / "all.tar.gz", tmp_path / "secrets.tar.gz"
    (team.home / ".onetool" / "secrets.yaml.bak").touch()
    saved = run_cli(team.home, "backup", str(archive), "--json")
    assert saved.returncode == 0, saved.stderr
    assert "secrets.yaml" in json.loads(saved.stdout)["notes"][0]
    assert archive.stat().st_mode & 0o077 == 0
    assert "exists already" in run_cli(team.home, "backup", str(archive)).stderr
    assert run_cli(team.home, "backup", str(complete), "--secrets").returncode == 0
    names = [list_members(file) for file in (archive, complete)]
    assert {"onetool.yaml", "stats/stats.db", "logs/audit.jsonl"} <= names[0]
    assert {name for name in names[0] if "secret" in name or name.endswith(".key")} == set()
    assert "secrets.yaml" in names[1]
    assert "servers are running" in run_cli(team.home, "backup", "restore", str(archive)).stderr
    home = tmp_path / "home"
    home.mkdir()
    restored = run_cli(home, "backup", "restore", str(archive))
    assert restored.returncode == 0, restored.stderr
    assert "before the backup" in run_cli(home, "runs").stdout
    assert {
        line.split()[0] for line in run_cli(home, "token", "list").stdout.splitlines()[1:]
    } == set(SCOPES)
    assert "exist in" in run_cli(home, "backup", "restore", str(archive)).stderr
    damaged = tmp_path / "damaged.tar.gz"
    with tarfile.open(archive) as old, tarfile.open(damaged, "w:gz") as new:
        for member in old:
            member.name = "../escape" if member.name == "onetool.yaml" else member.name
            new.addfile(member, old.extractfile(member))
    other = tmp_path / "other"
    other.mkdir()
    assert "is not a backup of OneTool" in run_cli(other, "backup", "restore", str(damaged)).stderr
    assert not (other / ".onetool").exists()


LITERALS = ("Bearer-abc-0123456789", "postgres-pass-42", "plain-api-key-99", "of-the-tool-7777")


def test_a_backup_has_no_literal_credentials(tmp_path: Path) -> None:
    settings = {
        "servers": {
            "api": {
                "url": "https://x.example",
                "headers": {"Authorization": f"Bearer {LITERALS[0]}"},
            }
        },
        "tools": {"db": {"password": LITERALS[1], "api_key": LITERALS[2]}},
        "auth": {"tokens": [{"name": "laptop", "hash": "0f" * 32}]},
    }
    project = tmp_path / "project"
    for directory in (tmp_path, project):
        shared = settings if directory == tmp_path else {"servers": settings["servers"]}
        configure(directory, yaml.safe_dump(shared))
    trust(project / ".onetool", tmp_path / ".onetool")
    own = tmp_path / ".onetool"
    (own / "onetool.yaml.bak").write_text(json.dumps(settings), encoding="utf-8")
    (own / "bundles" / "x").mkdir(parents=True)
    impl = {
        "method": "GET",
        "urlTemplate": "https://x.example",
        "auth": {"type": "bearer", "value": LITERALS[3]},
    }
    tool_file = own / "bundles" / "x" / "get@1.0.json"
    tool_file.write_text(json.dumps({"slug": "get", "httpImpl": impl}), encoding="utf-8")
    (own / "agents").mkdir()
    escaped = "tool_config: {db.ask: {password: 'it''s-of-an-agent'}}\n"
    (own / "agents" / "ci.yml").write_text(escaped, encoding="utf-8")
    snippet = SavedSnippet("default", "ask", "", "db.ask()", {"password": LITERALS[1]})
    SavedSnippets(DocumentFile(own)).put(snippet)
    archive = tmp_path / "all.tar.gz"
    saved = run_cli(tmp_path, "backup", str(archive))
    assert saved.returncode == 0, saved.stderr
    assert "because they are secret: agents/ci.yml" in saved.stdout
    assert "literal credentials were replaced by REDACTED in onetool.yaml" in saved.stdout
    texts = read_members(archive)
    assert not [name for name, text in texts.items() for literal in LITERALS if literal in text]
    assert {
        "onetool.yaml",
        "trust.json",
        "bundles/x/get@1.0.json",
        "state/documents.db",
    } <= texts.keys()
    assert yaml.safe_load(texts["onetool.yaml"])["auth"] == settings["auth"]
    complete = tmp_path / "secrets.tar.gz"
    assert run_cli(tmp_path, "backup", str(complete), "--secrets").returncode == 0
    assert LITERALS[0] in read_members(complete)["onetool.yaml"]


def test_a_backup_with_a_named_file_has_no_other_files_of_its_directory(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    (directory / "team.yaml").write_text(
        f"tools: {{db: {{password: {LITERALS[1]}}}}}\n", encoding="utf-8"
    )
    (directory / "prompts.yaml").write_text("instructions: hello\n", encoding="utf-8")
    (directory / "private.txt").write_text("of somebody", encoding="utf-8")
    (directory / "keys").mkdir()
    (directory / "keys" / "id_rsa").write_text("of somebody", encoding="utf-8")
    archive = tmp_path / "all.tar.gz"
    saved = run_cli(tmp_path, "backup", str(archive), "--config", str(directory / "team.yaml"))
    assert saved.returncode == 0, saved.stderr
    texts = read_members(archive)
    assert texts.keys() - {"logs/onetool.log"} == {"manifest.json", "team.yaml", "prompts.yaml"}
    assert LITERALS[1] not in texts["team.yaml"]


def read_members(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        contents = ((member.name, archive.extractfile(member)) for member in archive)
        return {
            name: content.read().decode("utf-8", "replace")
            for name, content in contents
            if content is not None
        }


def test_the_doctor_makes_safe_fixes(tmp_path: Path) -> None:
    configure(tmp_path, "projects: {reports: missing}\n")
    statistics = tmp_path / ".onetool" / "stats" / "stats.db"
    statistics.parent.mkdir()
    statistics.write_text("broken", encoding="utf-8")
    assert "onetool doctor --fix" in run_cli(tmp_path, "doctor").stdout
    fixed = run_cli(tmp_path, "doctor", "--fix")
    assert f"fixed: created {tmp_path / 'missing'}" in fixed.stdout
    assert (tmp_path / "missing").is_dir()
    assert len(list(statistics.parent.glob("stats.db.damaged-*"))) == 1
    assert "missing" not in run_cli(tmp_path, "doctor").stdout
