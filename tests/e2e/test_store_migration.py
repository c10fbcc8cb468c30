"""`onetool store migrate`: state is copied from files to PostgreSQL, and nothing is lost."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.postgres_support import get_database
from tests.replicas_support import KEY, run_store_cli, start_replica
from tests.rest_support import Rest, http_draft, make_client, serve_process
from tests.state_support import ResultStore, open_media
from tests.support import configure

from onetool.runs.results.blobs import Media
from onetool.runs.results.store import StoredResults
from onetool.settings.model import Output
from onetool.state.credentials import CredentialFile, CredentialKey, CredentialStore
from onetool.state.document_kinds import MODEL_USAGE, DisabledTools, SavedSnippet, SavedSnippets
from onetool.state.documents import DocumentFile, Documents
from onetool.state.file_kinds import NoticeFiles
from onetool.state.opening import open_postgres
from onetool.state.replica_kinds import NoticeRows, StoredTokenSet
from onetool.state.run_records import CallState, Decision, DurableCall, Grant, RunRecord, RunState
from onetool.state.run_store import RunStore, RunTables
from onetool.state.session_store import SessionStore, SessionTables, SessionValue
from onetool.state.stats.database import StatisticsDatabase, StatisticsFile
from onetool.state.stats.record import CallRecord, Recorder, UseRecord
from onetool.state.stats.shapes import Shapes
from onetool.state.stats.summary import summarize
from onetool.state.storage import (
    State,
)

SETTINGS = """\
agents: {default: {permissions: [read, write, network]}}
notify: {topics: [{pattern: notes, file: notes.yaml}]}
auth: {tokens: [{name: laptop, hash: %s}]}
""" % ("ab" * 32)
HOUR = 3600.0
SENT_CALLS = "SELECT run, number, attempt, permit, at FROM sent_calls ORDER BY run, number, attempt"

pytestmark = pytest.mark.slow

CREDENTIAL = CredentialKey("https://example.com/mcp")
SNIPPET = SavedSnippet("default", "greet", "Greet a person.", "1 + 1", {"name": "Ada"})


def fill(data: Path) -> dict[str, Any]:
    """Write some of every kind of state, and return the names that are needed to find it."""
    with closing(RunStore(data)) as runs:
        call = DurableCall(1, "t", "{}", "key", 0, CallState.PENDING)
        runs.put_run(
            RunRecord("r_1", "default", "code", state=RunState.WAITING, expires=4e9), [call]
        )
        runs.put_run(RunRecord("r_2", "default", "code"))
        runs.set_state("r_2", RunState.DONE)
        granted = Grant("g_1", "t", left=3, run="r_1")
        runs.decide(
            "r_1", Decision(is_approved=True, by="Ada", grants=(granted, Grant("g_2", "u")))
        )
        runs.write_calls("r_1", [DurableCall(2, "t", "{}", "key", 1, CallState.SENT)], grant="g_1")
    with closing(SessionStore(data)) as sessions:
        session = sessions.create()
        sessions.update(session, {"a": SessionValue("1"), "b": SessionValue("2", ("private",))})
    large = "line\n" * 500_000
    result = ResultStore(data / "tmp", HOUR, 3).put(large, tool="t")["handle"]
    media = open_media(data / "tmp", HOUR).put(b"\x89PNG", "image/png", "default")
    DisabledTools(DocumentFile(data)).set("a.b", on=False)
    Documents(DocumentFile(data), "pins").update("server", lambda _: {"tool": {"description": "x"}})
    Documents(DocumentFile(data), MODEL_USAGE).update("2026-01-02", lambda _: 7)
    NoticeFiles(data).append("notes.yaml", b"---\nmessage: 1\n")
    statistics = StatisticsFile(data / "stats" / "stats.db")
    with closing(Shapes(statistics)) as shapes:
        shapes.learn("t", {"number": 1})
    with closing(Recorder(statistics)) as recorder:
        for number in range(5):
            recorder.add(CallRecord("p.t", "default", "s", f"r{number}", 0.1, None, 7))
            recorder.add(
                RunRecord(
                    f"r{number}",
                    "default",
                    seconds=0.1,
                    round_trips=1,
                    answer_tokens=2,
                    result_tokens=7,
                )
            )
        recorder.add(UseRecord("tool-id"))
    CredentialStore(CredentialFile(data)).update(CREDENTIAL, lambda _: "credential")
    SavedSnippets(DocumentFile(data)).put(SNIPPET)
    return {"session": session, "result": result, "media": media, "large": large}


@dataclass
class Stores:
    """The stores of the kinds that `fill` writes, in files or in a database."""

    runs: RunTables
    sessions: SessionTables
    results: StoredResults
    media: Media
    disabled_tools: DisabledTools
    pins: Documents
    credentials: CredentialStore
    snippets: SavedSnippets
    token_usage: Documents
    shapes: Shapes
    statistics: StatisticsDatabase
    notices: bytes


@contextmanager
def open_files(data: Path) -> Iterator[Stores]:
    with closing(RunStore(data)) as runs, closing(SessionStore(data)) as sessions:
        yield Stores(
            runs=runs,
            sessions=sessions,
            results=ResultStore(data / "tmp", HOUR, 3),
            media=open_media(data / "tmp", HOUR),
            disabled_tools=DisabledTools(DocumentFile(data)),
            pins=Documents(DocumentFile(data), "pins"),
            credentials=CredentialStore(CredentialFile(data)),
            snippets=SavedSnippets(DocumentFile(data)),
            token_usage=Documents(DocumentFile(data), MODEL_USAGE),
            shapes=Shapes(StatisticsFile(data / "stats" / "stats.db")),
            statistics=StatisticsFile(data / "stats" / "stats.db"),
            notices=(data / "notes.yaml").read_bytes(),
        )


def open_rows(state: State) -> Stores:
    return Stores(
        runs=state.runs,
        sessions=state.sessions,
        results=StoredResults.open(state, Output()),
        media=Media.open(state, Output()),
        disabled_tools=state.disabled_tools,
        pins=state.pins,
        credentials=state.credentials,
        snippets=state.snippets,
        token_usage=state.token_usage,
        shapes=state.shapes,
        statistics=state.recorder.database,
        notices=NoticeRows(get_database(state)).read("notes.yaml"),
    )


def check(stores: Stores, names: dict[str, Any]) -> None:
    assert [run.id for run in stores.runs.list_runs()] == ["r_2", "r_1"]
    approved, sent = stores.runs.list_calls("r_1")
    assert (approved.state, approved.by) == (CallState.APPROVED, "Ada")
    assert sent.state is CallState.SENT
    assert {grant.id: grant.left for grant in stores.runs.list_grants("default", "r_1")} == {
        "g_1": 2,
        "g_2": 1,
    }
    second = stores.runs.get_run("r_2")
    assert second is not None
    assert second.state is RunState.DONE
    values = stores.sessions.get(names["session"], ["a", "b"])
    assert values == {"a": SessionValue("1"), "b": SessionValue("2", ("private",))}
    assert stores.results.load(names["result"]) == names["large"]
    assert stores.media.get(names["media"], "default").data == b"\x89PNG"
    assert stores.disabled_tools.off() == {"a.b"}
    assert stores.pins.get("server") == {"tool": {"description": "x"}}
    assert stores.credentials.get(CREDENTIAL) == "credential"
    assert stores.snippets.list_all() == (SNIPPET,)
    assert stores.token_usage.get("2026-01-02") == 7
    assert stores.notices == b"---\nmessage: 1\n"
    assert stores.shapes.text("t") == "{number: int}"
    summary = summarize(stores.statistics, tool="p.t")
    assert (summary["total_calls"], summary["runs"]["total"]) == (5, 5)


def test_state_is_copied_to_postgresql(tmp_path: Path, postgres_url: str) -> None:
    homes = [tmp_path / name for name in ("first", "second")]
    work = tmp_path / "work"
    work.mkdir()
    configure(homes[0], SETTINGS)
    configure(homes[1], SETTINGS.split("auth:", maxsplit=1)[0])
    data = homes[0] / ".onetool"
    names = fill(data)
    migrate = ("store", "migrate", "--to", postgres_url, "--json")
    with serve_process(homes[0], cwd=work) as (server, started):
        with make_client(started["url"]) as client:
            bundle = Rest(client).bundle("shared")
            Rest(client).tool(bundle, **http_draft("https://example.com"))
        refused = run_store_cli(homes[0], work, {"ONETOOL_KEY": KEY}, *migrate)
        assert refused.returncode == 1
        assert f"while servers write it: process {server.pid}" in refused.stderr
    audited = (data / "logs" / "audit.jsonl").read_text().splitlines()
    for _ in range(2):  # repeating it changes nothing
        copied = run_store_cli(homes[0], work, {"ONETOOL_KEY": KEY}, *migrate)
        assert copied.returncode == 0, copied.stderr
        counts = json.loads(copied.stdout)["verified"]
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
    with open_files(data) as files:  # the source is left as it was
        check(files, names)
    with closing(RunStore(data)) as runs:
        sent_calls = runs.database.select(SENT_CALLS)
    with closing(open_postgres(postgres_url, KEY, tmp_path / "cache", scope=str(work))) as state:
        check(open_rows(state), names)
        assert [
            record
            for (record,) in get_database(state).select("SELECT record FROM audit ORDER BY id")
        ] == audited
        assert StoredTokenSet(get_database(state)).names() == ["laptop"]
        assert [row[:4] for row in sent_calls] == [("r_1", 2, 1, "g_1")]
        assert get_database(state).select(SENT_CALLS) == sent_calls
        state.runs.close()
    with start_replica(homes[1], work, postgres_url) as replica:
        assert replica.rest.get("/api/stats", tool="p.t")["totalCalls"] == 5
        assert [bundle["slug"] for bundle in replica.rest.get("/tools/bundles")["bundles"]] == [
            "shared"
        ]
        loaded = replica.run(f"len(ot.load({names['result']!r}))")
        assert loaded.json()["blocks"] == [str(len(names["large"]))], loaded.text
        assert "laptop" in replica.cli("token", "list").stdout


@pytest.mark.parametrize("target", ["files", "mysql://user@host/database"])
def test_state_is_copied_to_postgresql_only(tmp_path: Path, target: str) -> None:
    configure(tmp_path, SETTINGS)
    refused = run_store_cli(
        tmp_path, tmp_path, {"ONETOOL_KEY": KEY}, "store", "migrate", "--to", target
    )
    assert refused.returncode == 1
    assert f"invalid store {target!r}" in refused.stderr
    assert "use a URL such as postgresql://user@host/database" in refused.stderr
