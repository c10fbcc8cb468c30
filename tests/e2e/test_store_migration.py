"""`onetool store migrate`: state moves from files to PostgreSQL and back, and nothing is lost."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.replicas_support import KEY, run_store_cli, start_replica
from tests.rest_support import Rest, http_draft, make_client, serve_process
from tests.support import configure

from onetool.disabled_tools import Switches
from onetool.errors import ToolError
from onetool.llm.token_budget import TokenUsageFile
from onetool.notify import NoticeFiles
from onetool.oauth.credential_store import CredentialStore
from onetool.postgres.state import PostgresState
from onetool.postgres.transfer_jobs import reject_jobs
from onetool.proxy.pins import Pins
from onetool.results import ResultStore
from onetool.results.blobs import Media
from onetool.runs.model import CallState, Decision, DurableCall, DurableRunRecord, Grant, RunState
from onetool.runs.run_store import RunStore
from onetool.runs.session_store import SessionStore, SessionValue
from onetool.snippets.saved_snippets import SavedSnippet, SavedSnippetFile
from onetool.stats.record import CallRecord, Recorder, RunRecord, UseRecord
from onetool.stats.shapes import ShapeFile
from onetool.stats.summary import summarize
from onetool.storage import CredentialKey, JobRequest

SETTINGS = """\
agents: {default: {permissions: [read, write, network]}}
notify: {topics: [{pattern: notes, file: notes.yaml}]}
auth: {tokens: [{name: laptop, hash: %s}]}
""" % ("ab" * 32)
HOUR = 3600.0

pytestmark = pytest.mark.slow

CALLER = {"agent_id": "default", "correlation_id": "r_1"}
CREDENTIAL = CredentialKey("https://issuer", "https://example.com/mcp")
SNIPPET = SavedSnippet("default", "greet", "Greet a person.", "1 + 1", {"name": "Ada"})


def fill(data: Path) -> dict[str, Any]:
    """Write some of every kind of state, and return the names that are needed to find it."""
    with closing(RunStore(data)) as runs:
        call = DurableCall(1, "t", "{}", "key", 0, CallState.PENDING)
        runs.put_run(DurableRunRecord("r_1", "default", "code", state=RunState.WAITING, expires=4e9), [call])
        runs.put_run(DurableRunRecord("r_2", "default", "code"))
        runs.set_state("r_2", RunState.DONE)
        granted = Grant("g_1", "t", left=3, run="r_1")
        runs.decide("r_1", Decision(is_approved=True, by="Ada", grants=(granted, Grant("g_2", "u"))))
    with closing(SessionStore(data)) as sessions:
        session = sessions.create()
        sessions.update(session, {"a": SessionValue("1"), "b": SessionValue("2", ("private",))})
    large = "line\n" * 500_000
    result = ResultStore(data / "tmp", HOUR, 3).put(large, tool="t")["handle"]
    media = Media(data / "tmp", HOUR).put(b"\x89PNG", "image/png", "default")
    Switches(data).set("a.b", on=False)
    Pins(data / "pins.json").update("server", lambda _: {"tool": {"description": "x"}})
    TokenUsageFile(data / "stats" / "llm.json").update("2026-01-02", lambda _: 7)
    NoticeFiles(data).append("notes.yaml", b"---\nmessage: 1\n")
    with closing(ShapeFile(data / "stats" / "shapes.json")) as shapes:
        shapes.learn("t", {"number": 1})
    with closing(Recorder(data / "stats" / "stats.db", enabled=True)) as recorder:
        for number in range(5):
            recorder.add(CallRecord("p.t", "default", "s", f"r{number}", 0.1, None, 7))
            recorder.add(RunRecord(f"r{number}", "default", "s", 0.1, None, 1, 2, 7))
        recorder.add(UseRecord("tool-id"))
    CredentialStore(data / "credentials").update(CREDENTIAL, lambda _: "credential")
    SavedSnippetFile(data).put(SNIPPET)
    return {"session": session, "result": result, "media": media, "large": large}


def check(data: Path, names: dict[str, Any], calls: int = 5) -> None:
    with closing(RunStore(data)) as runs:
        assert runs.list_ids() == ["r_1", "r_2"]
        (call,) = runs.list_calls("r_1")
        assert (call.state, call.by) == (CallState.APPROVED, "Ada")
        assert {grant.id for grant in runs.list_grants("default", "r_1")} == {"g_1", "g_2"}
        second = runs.get_run("r_2")
        assert second is not None
        assert second.state is RunState.DONE
    with closing(SessionStore(data)) as sessions:
        found = sessions.get(names["session"], ["a", "b"])
        assert found == {"a": SessionValue("1"), "b": SessionValue("2", ("private",))}
    assert ResultStore(data / "tmp", HOUR, 3).load(names["result"]) == names["large"]
    assert Media(data / "tmp", HOUR).get(names["media"], "default").data == b"\x89PNG"
    assert Switches(data).off() == {"a.b"}
    assert Pins(data / "pins.json").get("server") == {"tool": {"description": "x"}}
    assert CredentialStore(data / "credentials").get(CREDENTIAL) == "credential"
    assert SavedSnippetFile(data).list_all() == (SNIPPET,)
    assert TokenUsageFile(data / "stats" / "llm.json").get("2026-01-02") == 7
    assert (data / "notes.yaml").read_bytes() == b"---\nmessage: 1\n"
    with closing(ShapeFile(data / "stats" / "shapes.json")) as shapes:
        assert shapes.text("t") == "{number: int}"
    summary = summarize(data / "stats" / "stats.db", tool="p.t")
    assert (summary["total_calls"], summary["runs"]["total"]) == (calls, calls)


def test_open_and_unread_jobs_prevent_the_move_to_files(tmp_path: Path, postgres_url: str) -> None:
    configure(tmp_path, SETTINGS)
    call: tuple[Any, ...] = ("render", "preview", {}, CALLER, "", str(tmp_path), 60.0, 3600.0, True)
    job = JobRequest("j_1", "gpu", *call)
    with closing(PostgresState(postgres_url, KEY, tmp_path / "cache")) as state:
        state.jobs.defer(job)
        store = {"ONETOOL_STORE": postgres_url, "ONETOOL_KEY": KEY}
        refused = run_store_cli(tmp_path, tmp_path, store, "store", "migrate", "--to", "files")
        assert refused.returncode == 1
        assert "open jobs: gpu (1 waiting, 0 running)" in refused.stderr
        state.jobs.cancel(job.id)
        reject_jobs(state)  # its run does not wait for it
        sent = DurableCall(1, "render.preview", "{}", "key", 0, CallState.SENT)
        state.runs.put_run(DurableRunRecord("r_1", "default", "code"), [sent])
        with pytest.raises(ToolError, match="have not read the results of their jobs: r_1"):
            reject_jobs(state)
        state.runs.set_state("r_1", RunState.DONE)
        reject_jobs(state)
        state.runs.close()


def test_state_moves_to_postgresql_and_back(tmp_path: Path, postgres_url: str) -> None:
    homes, work = [tmp_path / name for name in ("first", "second")], tmp_path / "work"
    work.mkdir()
    for home in homes:
        configure(home, SETTINGS if home is homes[0] else SETTINGS.split("auth:", maxsplit=1)[0])
    data = homes[0] / ".onetool"
    names = fill(data)
    with serve_process(homes[0], cwd=work) as (server, started):
        with make_client(started["url"]) as client:
            bundle = Rest(client).bundle("shared")
            Rest(client).tool(bundle, **http_draft("https://example.com"))
        refused = run_store_cli(homes[0], work, {"ONETOOL_KEY": KEY}, "store", "migrate", "--to", postgres_url)
        assert refused.returncode == 1
        assert f"while servers write it: process {server.pid}" in refused.stderr
    audited = (data / "logs" / "audit.jsonl").read_text().splitlines()
    for _ in range(2):  # repeating it changes nothing
        arguments = ("store", "migrate", "--to", postgres_url, "--json")
        moved = run_store_cli(homes[0], work, {"ONETOOL_KEY": KEY}, *arguments)
        assert moved.returncode == 0, moved.stderr
        counts = json.loads(moved.stdout)["verified"]
        assert counts == {
            "runs": 2,
            "sessions": 1,
            "results": 5,
            "bundles": 2,
            "disabled": 1,
            "pins": 1,
            "credentials": 1,
            "snippets": 1,
            "tokens": 1,
            "llm tokens": 1,
            "notices": 1,
            "audit": len(audited),
            "shapes": 1,
            "statistics": counts["statistics"],
        }
    store = {"ONETOOL_STORE": postgres_url, "ONETOOL_KEY": KEY}
    with start_replica(homes[1], work, postgres_url) as replica:
        assert replica.rest.get("/api/stats", tool="p.t")["totalCalls"] == 5
        assert [each["slug"] for each in replica.rest.get("/tools/bundles")["bundles"]] == ["shared"]
        loaded = replica.run(f"len(ot.load({names['result']!r}))")
        assert loaded.json()["blocks"] == [str(len(names["large"]))], loaded.text
        refused = replica.cli("store", "migrate", "--to", "files")
        assert refused.returncode == 1
        assert "cannot copy the state while servers write it" in refused.stderr
        assert replica.cli("agents", "set", "default", "permissions=[read]").returncode == 0
        assert replica.cli("agents", "set", "moved", "permissions=[network]").returncode == 0
        replica.process.terminate()
        replica.process.wait(20)
    for _ in range(2):
        moved = run_store_cli(homes[1], work, store, "store", "migrate", "--to", "files", "--json")
        assert moved.returncode == 0, moved.stderr
        assert json.loads(moved.stdout)["verified"]["settings"] == 2
    agents = json.loads(run_store_cli(homes[1], work, {}, "agents", "list", "--json").stdout)["agents"]
    assert {each["name"]: each["permissions"] for each in agents} == {"default": ["read"], "moved": ["network"]}
    check(homes[1] / ".onetool", names)
    lines = (homes[1] / ".onetool" / "logs" / "audit.jsonl").read_text().splitlines()
    assert [line for line in audited if line not in lines] == []
    assert "laptop" in run_store_cli(homes[1], work, {}, "token", "list").stdout
    listed = run_store_cli(homes[1], work, {}, "bundles", "list", "--json")
    assert "shared" in listed.stdout, listed.stderr
    check(data, names)  # the source is left as it was
