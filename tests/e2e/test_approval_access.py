"""People answer waiting calls: in a terminal, with a token, and over REST; and they are told that
calls wait.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.http_support import serve_site
from tests.rest_support import ServedApp, serve_app
from tests.runs_support import answer_in_terminal, make_call, read_states, store_run
from tests.support import PROGRAM, configure, environment, eventually, run_cli

from onetool import tool
from onetool.runs import notifier
from onetool.runs.notifier import ENVIRONMENT
from onetool.runs.wasm_launcher import PYTHON
from onetool.settings.access import ApprovalNotice
from onetool.state.run_records import CallState, RunState
from onetool.state.run_store import RunStore
from onetool.util.logging import Log
from onetool.util.redact import Redactor
from onetool.util.token_ids import hash_token
from onetool_child.json_types import JsonObject

SECRET = "k-93fa77c1d2"
TOKENS = {scope: f"ot_{scope}" for scope in ("use", "approve")}
SETTINGS = "auth: {tokens: [" + ", ".join(
    f"{{name: {scope}, hash: {hash_token(token)}, scope: {scope}}}" for scope, token in TOKENS.items()
) + "]}\nagents: {default: {}, web: {approvals: {via: [ui]}}}\n"  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    configure(tmp_path, SETTINGS)
    (tmp_path / ".onetool" / "secrets.yaml").write_text(f"API_KEY: {SECRET}\n")
    (tmp_path / ".onetool" / "secrets.yaml").chmod(0o600)
    return tmp_path


def data(home: Path) -> Path:
    return home / ".onetool"


def test_a_person_approves_in_the_terminal(home: Path) -> None:
    calls = [
        make_call(n, "gh.create_issue", repo="me/app", title=f"n{n}\u202e\x1b[2J {SECRET}")
        for n in (1, 2)
    ]
    run = store_run(data(home), *calls)
    listed = run_cli(home, "approvals")
    assert run in listed.stdout
    assert "gh.create_issue (write, external)" in listed.stdout
    assert SECRET not in listed.stdout
    assert "\x1b" not in listed.stdout
    status, shown = answer_in_terminal(home, "n", "approve", run)
    assert status == 1
    assert "not confirmed" in shown
    assert read_states(data(home), run) == [
        "pending",
        "pending",
    ], "standard input is not the person"
    status, shown = answer_in_terminal(home, "y", "approve", run[:10], "--call", "2")
    assert status == 0, shown
    assert 'repo: "me/app"' in shown
    assert "\\u202e" in shown
    assert SECRET not in shown
    assert "Approved 1 call of run" in shown
    assert read_states(data(home), run) == ["pending", "approved"]
    (line,) = [each for each in read_audit(home) if each["name"] == "decision"]
    assert (line["run"], line["decision"], line["calls"]) == (run, "approve", [2])
    assert str(line["actor"]).startswith("user")


def read_audit(home: Path) -> list[dict[str, object]]:
    lines = (data(home) / "logs" / "audit.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_without_a_terminal_a_token_of_scope_approve_is_required(home: Path) -> None:
    run = store_run(data(home), make_call(1, "gh.create_issue", repo="me/app"))
    for arguments, message in (
        ((), "no terminal to confirm in"),
        (("--token", TOKENS["use"]), "token use has the scope use"),
        (("--token", "ot_wrong"), "unknown token"),
    ):
        done = in_background(home, "approve", run, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert message in done.stderr
    configure(home, SETTINGS + "approvals: {by: token}\n")
    status, shown = answer_in_terminal(home, "y", "reject", run)
    assert status == 1
    assert "approvals.by is token" in shown
    assert read_states(data(home), run) == ["pending"]
    done = in_background(home, "reject", run, "--reason", "too many", "--token", TOKENS["approve"])
    assert done.returncode == 0, done.stderr
    assert read_states(data(home), run) == ["rejected"]
    shown_run = json.loads(run_cli(home, "runs", "show", run, "--json").stdout)
    assert [(call["by"], call["reason"]) for call in shown_run["recorded"]] == [
        ("token approve", "too many")
    ]
    again = in_background(home, "reject", run, "--token", TOKENS["approve"])
    assert again.returncode == 1
    assert "were answered" in again.stderr


def in_background(
    home: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command without a controlling terminal, as an assistant does."""
    return subprocess.run(
        [PROGRAM, *arguments], cwd=home, env={**environment(home), **variables}, input="y\ny\n", capture_output=True,
        encoding="utf-8", timeout=60, check=False, start_new_session=True,
    )  # fmt: skip


def test_a_grant_shows_what_it_covers_and_is_stored(home: Path) -> None:
    calls = [
        make_call(n, "gh.create_issue", repo=repo)
        for n, repo in enumerate(("me/a", "me/b", "you/c"), 1)
    ]
    run = store_run(data(home), *calls)
    pattern = 'gh.create_issue(repo="me/*")'
    status, shown = answer_in_terminal(
        home, "y", "approve", run, "--call", "1", "--grant", pattern, "--count", "5", "--for", "2h"
    )
    assert status == 0, shown
    assert "It covers calls like 1, 2; it does not cover 1 other call." in shown
    assert "in all runs of agent default, until 20" in shown
    store = RunStore(data(home))
    (grant,) = store.list_grants("default", "r_other")
    store.close()
    assert (grant.tool, grant.arguments, grant.left, grant.run) == (
        "gh.create_issue",
        {"repo": "me/*"},
        5,
        None,
    )
    assert grant.varying == ()
    assert 7100 < grant.expires - time.time() < 7300
    bad = in_background(
        home, "approve", run, "--grant", "gh.create_issue(open('x'))", "--token", TOKENS["approve"]
    )
    assert "invalid pattern" in bad.stderr
    assert in_background(home, "approve", run, "--count", "5").returncode == 2


def test_the_environment_of_the_command_proves_nothing(home: Path) -> None:
    run = store_run(data(home), make_call(1, "gh.create_issue"))
    configure(
        home, SETTINGS.replace("]}\n", ", {name: env, token_env: MINE, scope: approve}]}\n", 1)
    )
    mine = f'[{{"name": "mine", "hash": "{hash_token("ot_mine")}", "scope": "approve"}}]'
    own = {"MINE": "ot_env", "ONETOOL_AUTH__TOKENS": mine, "ONETOOL_TOKEN": "ot_mine"}
    for token in ("ot_env", "ot_mine"):
        done = in_background(home, "approve", run, "--token", token, **own)
        assert (done.returncode, done.stdout) == (1, "")
        assert "unknown token" in done.stderr
    assert read_states(data(home), run) == ["pending"]


def test_the_outcome_of_an_interrupted_call_is_recorded(home: Path) -> None:
    run = store_run(
        data(home),
        make_call(4, "gh.create_issue", CallState.UNKNOWN, repo="a"),
        state=RunState.HALTED,
    )
    token = ("--token", TOKENS["approve"])
    done = in_background(home, "approve", run, *token)
    assert "nobody knows whether it happened" in done.stderr
    assert in_background(home, "approve", run, "--happened", *token).returncode == 2
    done = in_background(home, "approve", run, "--call", "4", "--happened", *token)
    assert done.returncode == 0, done.stderr
    assert read_states(data(home), run) == ["done"]


def test_commands_that_wait_exit_with_status_3(home: Path) -> None:
    settings = (
        "agents: {default: {permissions: [read, write], policy: ask-writes}}\napprovals: {wait:"
        " 0}\n"
    )
    configure(home, settings)
    call = ("call", "fs.write", "path=a.txt", "content=x")
    for options in ((), ("--json",)):
        called = in_background(home, *call, *options)
        assert called.returncode == 3, called.stderr
        answer = json.loads(called.stdout)
        assert (answer["ok"], answer["error"]["type"]) == (False, "approval_required")
        assert answer["error"]["run"].startswith("r_")
    ran = in_background(home, "run", "fs.write(path='a.txt', content='x')")
    assert ran.returncode == 3, ran.stderr
    assert ran.stdout.startswith("paused: run r_")
    assert not (home / "a.txt").exists()
    assert len(json.loads(run_cli(home, "approvals", "--json").stdout)["approvals"]) == 3


def test_a_run_in_a_terminal_asks_there(home: Path) -> None:
    settings = (
        "agents: {{default: {{permissions: [read, write], policy: ask-writes, approvals: {{via:"
        " [{}]}}}}}}\n"
    )
    configure(home, settings.format("cli") + "approvals: {wait: 60}\n")
    code = "fs.write(path='a.txt', content='x')\nfs.write(path='b.txt', content='x')\n'done'"
    status, shown = answer_in_terminal(home, "y", "run", code)
    assert (status, shown.count("Continue? [y/N]")) == (0, 2), shown
    assert "(agent default):\n  1. fs.write (write)\n" in shown
    assert '     path: "a.txt"' in shown
    assert shown.endswith("done\n")
    decisions = [each for each in read_audit(home) if each["name"] == "decision"]
    assert [(each["via"], each["transport"]) for each in decisions] == [("cli", "cli")] * 2
    status, shown = answer_in_terminal(home, "n", "run", "fs.write(path='c.txt', content='x')")
    assert status == 1
    assert "rejected fs.write" in shown
    assert not (home / "c.txt").exists()
    for more in ("approvals: {by: token, wait: 0}\n", "approvals: {wait: 0}\n"):
        configure(home, settings.format("cli" if "token" in more else "ui") + more)
        status, shown = answer_in_terminal(home, "y", "run", "fs.write(path='c.txt', content='x')")
        assert (status, "Continue?" in shown) == (3, False), shown


def test_a_call_in_a_terminal_asks_there(home: Path) -> None:
    settings = (
        "agents: {{default: {{permissions: [read, write], policy: ask-writes, approvals: {{via:"
        " [{}]}}}}}}\n"
    )
    configure(home, settings.format("cli"))
    call = ("call", "fs.write", "content=x")
    status, shown = answer_in_terminal(home, "y", *call, "path=a.txt")
    assert (status, shown.count("Continue? [y/N]")) == (0, 1), shown
    assert "(agent default):\n  1. fs.write (write)\n" in shown
    assert '     path: "a.txt"' in shown
    assert (home / "a.txt").read_text() == "x"
    (decision,) = [each for each in read_audit(home) if each["name"] == "decision"]
    assert (decision["via"], decision["transport"], decision["decision"]) == (
        "cli",
        "cli",
        "approve",
    )
    status, shown = answer_in_terminal(home, "n", *call, "path=b.txt")
    assert status == 1
    assert "rejected fs.write" in shown
    for more, via in (("approvals: {by: token}\n", "cli"), ("", "ui")):
        configure(home, settings.format(via) + more)
        status, shown = answer_in_terminal(home, "y", *call, "path=b.txt")
        assert (status, "Continue?" in shown) == (3, False), shown
        assert json.loads(shown)["error"]["type"] == "approval_required"
    assert not (home / "b.txt").exists()


def test_only_the_places_of_the_agent_approve(home: Path) -> None:
    run = store_run(data(home), make_call(1, "gh.create_issue"), agent="web")
    done = in_background(home, "approve", run, "--token", TOKENS["approve"])
    assert done.returncode == 1
    assert "agents.web.approvals.via is [ui]" in done.stderr
    unknown = in_background(home, "approve", "r_123456", "--token", TOKENS["approve"])
    assert "no run 'r_123456'" in unknown.stderr
    assert run_cli(home, "runs").stdout.startswith(run)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_decision_that_cannot_be_recorded_is_not_made(home: Path) -> None:
    configure(home, SETTINGS + "audit: {file: /dev/full}\n")
    run = store_run(data(home), make_call(1, "gh.create_issue"))
    halted = store_run(
        data(home), make_call(1, "gh.create_issue", CallState.UNKNOWN), state=RunState.HALTED
    )
    token = ("--token", TOKENS["approve"])
    for command in (
        ("approve", run),
        ("reject", run),
        ("approve", halted, "--call", "1", "--happened"),
    ):
        done = in_background(home, *command, *token)
        assert (done.returncode, done.stdout) == (1, "")
        assert "cannot write" in done.stderr
    assert read_states(data(home), run) == ["pending"]
    assert read_states(data(home), halted) == ["unknown"]


# --- REST -----------------------------------------------------------------------------------------


@tool("gh.create_issue", permissions=["write"])
def create_issue(repo: str, title: str) -> str:
    """Create an issue."""
    return f"{repo}: {title}"


def bearer(scope: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[scope]}"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    folder = tmp_path_factory.mktemp("served") / ".onetool"  # of a home directory
    notice = [sys.executable, "-c", NOTICE, str(folder / "notices.json")]
    settings = {
        "auth": {
            "tokens": [
                {"name": s, "hash": hash_token(token), "scope": s} for s, token in TOKENS.items()
            ]
        },
        "agents": {
            "default": {"permissions": ["read", "write"], "policy": "ask-writes"},
            "elsewhere": {"approvals": {"via": ["client", "cli"]}},
        },
        "approvals": {"wait": 0.1, "notify": {"command": notice}},
    }
    with serve_app(folder, settings, [create_issue], secrets={"KEY": SECRET}) as found:
        yield found


NOTICE = (
    "import json, os, sys; open(sys.argv[1], 'a').write(json.dumps([sys.argv[2:],"
    " dict(os.environ)]) + '\\n')"
)


def ask(served: ServedApp, code: str) -> str:
    """Run code whose calls wait, and return the id of the run."""
    answer = served.rest.send("POST", "/api/run", {"command": code}).json()
    (block,) = answer["blocks"]
    assert block.startswith("paused: run r_")
    assert "approve " not in block.partition("wait")[0]
    return str(block.split()[2])


def find_approval(served: ServedApp, run: str) -> JsonObject:
    """Return what waits in this run; other tests leave runs that wait, too."""
    approvals = served.rest.send("GET", "/api/approvals", headers=bearer("approve")).json()[
        "approvals"
    ]
    (approval,) = (each for each in approvals if each["run"] == run)
    return dict(approval)


def test_calls_are_approved_over_rest_by_people_only(served: ServedApp) -> None:
    rest = served.rest
    run = ask(served, f"[gh.create_issue(repo='me/a', title=f'{{n}} {SECRET}') for n in range(3)]")
    path = f"/api/approvals/{run}"
    for headers in ({}, bearer("use"), {"x-onetool-csrf": "guess", "cookie": "onetool_1=x"}):
        for response in (
            rest.send("GET", "/api/approvals", headers=headers),
            rest.send("POST", path, {"decision": "approve"}, headers=headers),
        ):
            assert response.status_code == 403, response.text
            assert "scope 'approve'" in response.json()["error"]["message"]
    person = bearer("approve")
    assert rest.send("POST", "/api/run", {"command": "1"}, headers=person).status_code == 403
    waiting = find_approval(served, run)
    assert (waiting["agent"], waiting["state"]) == ("default", "waiting")
    assert waiting["calls"][0]["tool"] == "gh.create_issue"
    assert waiting["calls"][0]["arguments"] == {"repo": "me/a", "title": "0 [REDACTED]"}
    assert (
        rest.send(
            "POST", "/api/approvals/r_none", {"decision": "approve"}, headers=person
        ).status_code
        == 404
    )
    assert rest.send("POST", path, {"decision": "maybe"}, headers=person).status_code == 400
    other = [{"tool": "gh.close_issue"}]
    refused = rest.send("POST", path, {"decision": "approve", "grants": other}, headers=person)
    assert refused.status_code == 400
    assert "none of the calls matches" in refused.json()["error"]["message"]
    grants = [
        {
            "tool": "gh.create_issue",
            "arguments": {"repo": "me/*"},
            "varying": ["title"],
            "count": 10,
        }
    ]
    decided = rest.send("POST", path, {"decision": "approve", "grants": grants}, headers=person)
    assert decided.status_code == 200, decided.text
    assert eventually(lambda: rest.get(f"/api/runs/{run}")["state"] == "done"), rest.get(
        f"/api/runs/{run}"
    )
    calls = rest.get(f"/api/runs/{run}")["recorded"]
    assert [call["by"].split()[0] for call in calls] == ["token", "grant", "grant"]
    assert run in [each["id"] for each in rest.get("/api/runs")["runs"]]
    assert rest.send("POST", path, {"decision": "approve"}, headers=person).status_code == 409


def test_a_rejection_reaches_the_code_and_a_call_waits_too(served: ServedApp) -> None:
    rest, person = served.rest, bearer("approve")
    run = ask(
        served,
        "try:\n    gh.create_issue(repo='a', title='b')\nexcept CallRejected as error:\n   "
        " print(error)",
    )
    body = {"decision": "reject", "reason": "not today"}
    assert rest.send("POST", f"/api/approvals/{run}", body, headers=person).status_code == 200
    assert eventually(lambda: rest.get(f"/api/runs/{run}")["state"] == "done")
    (call,) = rest.get(f"/api/runs/{run}")["recorded"]
    assert (call["state"], call["reason"]) == ("rejected", "not today")
    answer = rest.send(
        "POST", "/api/tools/gh.create_issue/call", {"args": {"repo": "a", "title": "b"}}
    )
    assert answer.status_code == 200
    error = answer.json()["error"]
    assert (answer.json()["ok"], error["type"], error["run"][:2]) == (
        False,
        "approval_required",
        "r_",
    )
    stopped = rest.send(
        "POST",
        f"/api/approvals/{error['run']}",
        {"decision": "reject", "stop": True},
        headers=person,
    )
    assert stopped.status_code == 200, stopped.text


def test_interrupted_calls_and_places_over_rest(served: ServedApp) -> None:
    folder, rest, person = served.onetool.directories.data, served.rest, bearer("approve")
    call = make_call(1, "gh.create_issue", CallState.UNKNOWN, repo="a", title="b")
    run = store_run(folder, call, state=RunState.HALTED, directory="/elsewhere")
    body = {"decision": "not-happened", "calls": [1]}
    halted = find_approval(served, run)
    assert (halted["state"], halted["calls"][0]["state"]) == ("halted", "unknown")
    assert (
        rest.send(
            "POST", f"/api/approvals/{run}", {"decision": "repeat"}, headers=person
        ).status_code
        == 400
    )
    assert rest.send("POST", f"/api/approvals/{run}", body, headers=person).status_code == 200
    assert read_states(folder, run) == ["failed"]
    assert rest.send("POST", f"/api/approvals/{run}", body, headers=person).status_code == 409
    other = store_run(
        folder, make_call(1, "gh.create_issue"), agent="elsewhere", directory="/elsewhere"
    )
    rejected = rest.send("POST", f"/api/approvals/{other}", {"decision": "approve"}, headers=person)
    assert rejected.status_code == 403
    assert "agents.elsewhere.approvals.via" in rejected.json()["error"]["message"]
    assert read_states(folder, other) == ["pending"]


def test_calls_of_a_revoked_token_can_only_be_rejected(tmp_path: Path) -> None:
    tokens = [{"name": s, "hash": hash_token(token), "scope": s} for s, token in TOKENS.items()]
    agents = {"default": {"permissions": ["read", "write"], "policy": "ask-writes"}}
    settings = {"auth": {"tokens": tokens}, "agents": agents, "approvals": {"wait": 0.1}}
    with serve_app(tmp_path, settings, [create_issue]) as app:
        command = {"command": "gh.create_issue(repo='a', title='b')"}
        (block,) = app.rest.send("POST", "/api/run", command, headers=bearer("use")).json()[
            "blocks"
        ]
        run = block.split()[2]
        app.change({**settings, "auth": {"tokens": tokens[1:]}})
        path, person = f"/api/approvals/{run}", bearer("approve")
        (waiting,) = app.rest.send("GET", "/api/approvals", headers=person).json()["approvals"]
        assert (waiting["run"], waiting["actor"]) == (run, "token use")
        answer = app.rest.send("POST", path, {"decision": "approve"}, headers=person)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_waiting")
        assert "token use was revoked" in answer.json()["error"]["message"]
        assert read_states(tmp_path, run) == ["pending"]
        assert (
            app.rest.send("POST", path, {"decision": "reject"}, headers=person).status_code == 200
        )
        # A server that starts later does not continue an approved run, either.
        orphan = store_run(
            tmp_path,
            make_call(1, "gh.create_issue", CallState.APPROVED, repo="a", title="b"),
            token_id=hash_token(TOKENS["use"])[:32],
            actor="token use",
            is_replayable=True,
            python=PYTHON,
            directory=str(tmp_path),
            state=RunState.RUNNING,
        )
        assert eventually(lambda: app.rest.get(f"/api/runs/{orphan}")["state"] == "interrupted")
        assert app.rest.get(f"/api/runs/{orphan}")["reason"].startswith("token use was revoked")


def test_the_command_line_rejects_calls_of_a_revoked_token(home: Path) -> None:
    run = store_run(
        data(home), make_call(1, "gh.create_issue"), token_id="0" * 32, actor="token gone"
    )
    done = in_background(home, "approve", run, "--token", TOKENS["approve"])
    assert done.returncode == 1
    assert "token gone was revoked" in done.stderr
    assert f"onetool reject {run[:10]}" in done.stderr
    assert in_background(home, "reject", run, "--token", TOKENS["approve"]).returncode == 0


def test_a_browser_signs_in_once_with_a_code(served: ServedApp) -> None:
    home = served.onetool.directories.home
    opened = json.loads(run_cli(home, "ui", "--json").stdout)
    url, _, code = opened["url"].rpartition("/#/code/")
    rest = served.rest
    assert url == f"http://127.0.0.1:{rest.port}"
    answer = rest.send("POST", "/api/session", {"code": code})
    header = answer.headers["set-cookie"]
    assert "HttpOnly" in header
    csrf = {"x-onetool-csrf": answer.json()["csrf"]}
    cookie = {"cookie": header.partition(";")[0]}
    rest.client.cookies.clear()
    statuses = [
        rest.send("GET", "/api/approvals", headers=headers).status_code
        for headers in (cookie, csrf, cookie | csrf)
    ]
    assert statuses == [403, 403, 200]
    assert rest.send("POST", "/api/session", {"code": code}).status_code == 403


def test_people_are_told_that_calls_wait_without_the_arguments(served: ServedApp) -> None:
    run = ask(served, "gh.create_issue(repo='me/a', title='b')")
    file = (
        served.onetool.directories.user / "notices.json"
    )  # one line per notice; the first may be of an earlier test
    assert eventually(lambda: file.exists() and file.read_text().endswith("\n"))
    stop = {"decision": "reject", "stop": True}
    assert (
        served.rest.send(
            "POST", f"/api/approvals/{run}", stop, headers=bearer("approve")
        ).status_code
        == 200
    )
    (text,), environment = json.loads(file.read_text().splitlines()[0])
    assert text.startswith("OneTool: calls of agent default wait for approval: gh.create_issue")
    assert "me/a" not in text
    assert set(environment) <= {*ENVIRONMENT, "LC_CTYPE"}


def test_a_webhook_gets_one_notice_for_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "MIN_INTERVAL_SECONDS", 0.2)
    with serve_site() as site:
        logged = anyio.run(_notify, ApprovalNotice(webhook=site.url(), command=("false",)))
    bodies = [json.loads(request.body) for request in site.requests]
    assert [body["text"].partition(" (run")[0] for body in bodies] == [
        "OneTool: calls of agent web wait for approval: [REDACTED]\\u202e"
    ] * 2
    assert bodies[1]["text"].endswith("(run r_1), and 1 more run")
    assert logged == ["cannot send the notice: false exited with status 1"] * 2


async def _notify(settings: ApprovalNotice) -> list[str]:
    log, notices = Log(), notifier.ApprovalNotifier(set)
    logged: list[str] = []
    log.event = lambda _name, *, text, **_: logged.append(text)  # type: ignore[method-assign]
    notices.configure(settings, Redactor([SECRET]), log, os.environ, allow_private_addresses=False)
    for number in range(3):
        notices.notify(f"r_{number}", "web", f"{SECRET}\u202e")
        await anyio.sleep(0.05)
    await anyio.sleep(1)
    await notices.close()
    return logged
