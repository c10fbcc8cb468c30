"""A replica whose database is away: readiness, what continues, typed errors, and nothing
acknowledged is lost.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.postgres_support import PostgresServer, run_postgres
from tests.replicas_support import Replica, create_token, list_environment, start_replicas
from tests.rest_support import get_error_code, new_id
from tests.support import eventually, list_descendants

READY_SECONDS = 8.0
SETTINGS = """\
agents: {default: {permissions: [read, write, network]}}
tools: {notes: {effects: {count: read, "*": write}}}
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with run_postgres(is_durable=True) as started:
        yield started


@pytest.fixture(scope="module")
def replica(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    url = server.url(server.create_database(), password="pass-word-1")
    with start_replicas(tmp_path_factory.mktemp("away"), url, 1, SETTINGS) as (started,):
        yield started


@contextmanager
def stopped(server: PostgresServer) -> Iterator[None]:
    server.stop("immediate")
    try:
        yield
    finally:
        server.start()


@contextmanager
def frozen(server: PostgresServer) -> Iterator[None]:
    """Stop all processes of the server without closing their connections, as a lost network does."""
    postmaster = int((server.directory / "data" / "postmaster.pid").read_text().splitlines()[0])
    processes = {postmaster, *list_descendants(postmaster)}
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def count_calls(replica: Replica) -> int:
    return int(replica.rest.get("/api/stats", tool="notes.count")["totalCalls"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", [stopped, frozen])
def test_readiness_follows_the_database_and_runs_without_state_continue(
    replica: Replica, server: PostgresServer, how: Callable[[PostgresServer], "object"]
) -> None:
    assert eventually(lambda: replica.status() == 200, READY_SECONDS)
    before, token = count_calls(replica), create_token(replica, how.__name__)
    assert eventually(lambda: replica.status("/api/tools", token) == 200)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(
            replica.run, "import time; time.sleep(9); 'done'", authorization=f"Bearer {token}"
        )
        lose_database(replica, server, how, before)
        assert slow.result().json()["blocks"] == ["done"]  # it was admitted before


def lose_database(
    replica: Replica, server: PostgresServer, how: Callable[[PostgresServer], "object"], before: int
) -> None:
    with how(server):  # type: ignore[attr-defined]
        assert eventually(lambda: replica.status() == 503, READY_SECONDS)
        started = time.monotonic()
        assert replica.run("sum(range(10))").json()["blocks"] == ["45"]
        counted = replica.call("notes.count").json()
        assert counted["ok"], counted
        rejected = replica.call("notes.add", text="lost")
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (
            503,
            "audit_unavailable",
        )
        assert rejected.headers["retry-after"] == "2"
        body = {"slug": "away", "displayName": "Away", "isEnabled": True}
        bundle = replica.rest.send("PUT", f"/tools/bundles/{new_id()}", body)
        assert get_error_code(bundle) == (503, "store_unavailable")
        assert bundle.headers["retry-after"] == "2"
        token = replica.rest.client.get(
            "/api/tools", headers={"authorization": "Bearer ot_unknown"}
        )
        assert (token.status_code, token.headers["retry-after"]) == (503, "1")
        assert time.monotonic() - started < 5, "nothing waits for the database"
    assert eventually(lambda: replica.status() == 200, READY_SECONDS)
    assert replica.call("notes.add", text="kept").json()["ok"]
    assert (replica.work / "notes.txt").read_text().splitlines()[-1] == "kept"
    assert "lost" not in (replica.work / "notes.txt").read_text()
    assert eventually(
        lambda: count_calls(replica) == before + 1
    )  # the call without the database too


def test_the_password_and_the_key_reach_no_log_and_no_child(replica: Replica) -> None:
    assert replica.call("notes.count").json()["ok"]  # starts a worker
    secrets = ("pass-word-1", replica.variables["ONETOOL_KEY"])
    for child in list_descendants(replica.process.pid):
        assert not {"ONETOOL_STORE", "ONETOOL_KEY"} & list_environment(child).keys()
    texts = [file.read_text("utf-8", "replace") for file in Path(replica.home).rglob("*.log")]
    texts += [replica.cli("store", "status").stdout, replica.rest.client.get("/api/health").text]
    shown = replica.run("import os; sorted(os.environ.items())").text
    assert not [text for text in (*texts, shown) for secret in secrets if secret in text]
