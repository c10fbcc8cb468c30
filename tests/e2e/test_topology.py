"""Four replicas behind nginx, as `deploy/local/topology.py` starts them: what fails, and what holds
nevertheless.
"""

import json
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from threading import Event

import httpx2
import pytest
from tests.cells_support import NIGHTLY, skip_or_fail
from tests.e2e.test_mcp_http import HANDSHAKE, build_request
from tests.http_support import Site
from tests.rest_support import Rest, http_draft
from tests.support import eventually
from tests.topology_support import Cluster, run_topology

REPLICAS = 4
CALLS = 10_000 if NIGHTLY else 500
KILL_SECONDS = 10.0 if NIGHTLY else 1.0
MIN_KILLS = 3
EFFECTIVE_SECONDS, POLLS = 2.0, 8
READY_SECONDS = 8.0
FAKETIME = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
SETTINGS = """\
agents:
  default: {permissions: [read, write, network]}
  careful: {policy: ask-writes, permissions: [read, write]}
approvals: {wait: 0.2}
output: {max_inline_size: 2000}
http: {allowedHosts: ["127.0.0.1"], allowPrivateAddresses: true}
tools: {notes: {effects: {count: read, "*": write}}}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800 if NIGHTLY else 240)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_topology(REPLICAS, SETTINGS) as found:
        yield found


@pytest.fixture(autouse=True)
def forgotten_attempts(cluster: Cluster) -> None:
    """Forget failed attempts of other tests: all replicas and tests have the same address."""
    cluster.execute("DELETE FROM onetool.rates")


def wait(check: Callable[[], bool]) -> bool:
    """Return whether a change is effective in time. Too many failed attempts would be rate-limited."""
    for _ in range(POLLS):
        time.sleep(EFFECTIVE_SECONDS / POLLS)
        if check():
            return True
    return False


def read_error(answer: httpx2.Response) -> str:
    """Return the code of an error, of nginx or of a replica, and check that it may be repeated."""
    error = answer.json()["error"]
    code: str = error.get("code") or error["type"]
    assert answer.headers.get("retry-after") or error.get("is_retryable"), answer.text
    return code


# --- failures -------------------------------------------------------------------------------------


def test_killed_replicas_lose_no_acknowledged_write_and_double_no_effect(cluster: Cluster) -> None:
    done, acknowledged, errors = Event(), set[str](), Counter[str]()

    def write(number: int) -> None:
        answer = cluster.call("notes.add", text=f"kill-{number}")
        if answer.status_code == 200 and answer.json()["ok"]:
            acknowledged.add(f"kill-{number}")
        else:
            errors[read_error(answer)] += 1
        if number % 5 == 0:
            assert (
                cluster.front.client.get("/api/tools/notes.count").status_code == 200
            )  # nginx repeats a read

    def kill() -> int:
        kills = 0
        while not done.wait(KILL_SECONDS) or kills < MIN_KILLS:
            number = random.choice(cluster.numbers)
            cluster.kill(number)
            cluster.restart(number)
            kills += 1
        return kills

    with ThreadPoolExecutor(9) as pool:
        killing = pool.submit(kill)
        list(pool.map(write, range(CALLS)))
        done.set()
        assert killing.result() >= MIN_KILLS
    written = Counter(note for note in cluster.notes if note.startswith("kill-"))
    assert [note for note in acknowledged if written[note] != 1] == []
    assert [note for note, count in written.items() if count > 1] == []
    assert len(acknowledged) + errors.total() == CALLS
    assert set(errors) <= {"replica_lost", "interrupted"}, errors
    assert len(acknowledged) > CALLS * 0.9
    journaled = int(cluster.execute("SELECT count(*) FROM onetool.calls"))
    assert journaled >= min(len(written), 5000)  # before they were made; old ones are deleted


def test_a_restart_of_the_database_under_load_loses_nothing_that_was_acknowledged(
    cluster: Cluster,
) -> None:
    acknowledged, errors, done = set[str](), Counter[str](), Event()

    def write(writer: int) -> None:
        number = 0
        while not done.is_set():
            number += 1
            answer = cluster.call("notes.add", text=f"restart-{writer}-{number}")
            if answer.status_code == 200 and answer.json()["ok"]:
                acknowledged.add(f"restart-{writer}-{number}")
            else:
                errors[read_error(answer)] += 1
                time.sleep(0.05)

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, number) for number in range(4)]
        time.sleep(0.5)
        cluster.topology.postgres.stop("immediate")
        cluster.topology.postgres.start(cluster.topology.state["ports"]["postgres"])
        assert eventually(cluster.are_ready, READY_SECONDS)
        before = len(acknowledged)
        assert eventually(lambda: len(acknowledged) > before + 4, READY_SECONDS)
        done.set()
        for writer in writers:
            writer.result()
    written = Counter(note for note in cluster.notes if note.startswith("restart-"))
    assert [note for note in acknowledged if written[note] != 1] == []
    assert max(written.values()) == 1
    assert set(errors) <= {
        "store_unavailable",
        "audit_unavailable",
        "storage_unavailable",
        "busy",
    }, errors


def test_a_stopped_replica_whose_run_was_continued_doubles_no_effect(cluster: Cluster) -> None:
    token = create_token(cluster, "careful", "--agent", "careful")
    approver = create_token(cluster, "boss", "--scope", "approve")
    stopped, other = cluster.replicas[-1], cluster.replicas[0]
    headers, approving = ({"authorization": f"Bearer {each}"} for each in (token, approver))
    assert wait(lambda: stopped.client.get("/api/tools", headers=headers).status_code == 200)
    assert wait(lambda: other.client.get("/api/tools", headers=approving).status_code == 200)
    paused = stopped.send(
        "POST", "/api/run", {"command": "notes.add('partition')"}, headers=headers
    )
    run = re.search(r"r_[0-9a-f]+", paused.text)
    assert run, paused.text
    cluster.send_signal(REPLICAS, signal.SIGSTOP)
    try:
        # As if it had been stopped for longer than a lease lasts.
        process = cluster.topology.process_id(f"replica-{REPLICAS}")
        backdate = "UPDATE onetool.servers SET seen = now() - interval '1 minute'"
        cluster.execute(f"{backdate} WHERE description LIKE '%process {process}'")
        decided = other.send(
            "POST", f"/api/approvals/{run[0]}", {"decision": "approve"}, headers=approving
        )
        assert decided.status_code == 200, decided.text
        assert eventually(lambda: cluster.notes.count("partition") == 1, READY_SECONDS)
    finally:
        cluster.send_signal(REPLICAS, signal.SIGCONT)
    assert eventually(lambda: stopped.client.get("/readyz").status_code == 200, READY_SECONDS)
    result = {"command": f"ot.run_result({run[0]!r}, 5)"}
    for replica in (stopped, other):
        assert replica.send("POST", "/api/run", result, headers=headers).json()["blocks"] == ["9"]
    time.sleep(2)
    assert cluster.notes.count("partition") == 1
    assert (
        cluster.execute(f"SELECT state FROM onetool.runs WHERE id = '{run[0]}'").strip() == "done"
    )


def test_a_replica_whose_clock_is_wrong_expires_nothing_of_others(cluster: Cluster) -> None:
    if FAKETIME is None:
        skip_or_fail("libfaketime is not installed")
    text = (
        cluster.replicas[0]
        .send("POST", "/api/run", {"command": "[{'n': n} for n in range(9999)]"})
        .json()
    )
    handle = json.loads(text["blocks"][0])["handle"]
    cluster.kill(2)
    # The last variable makes it a new process: a fork of a running one does not load the library.
    shift = {"FAKETIME": "+30d", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "PYTHONNODEBUGRANGES": "1"}
    cluster.restart(2, LD_PRELOAD=str(FAKETIME), **shift)
    try:
        wrong = cluster.replicas[1]
        shown = parsedate_to_datetime(wrong.client.get("/healthz").headers["date"]).timestamp()
        assert shown - time.time() > 29 * 86_400
        stored = wrong.send(
            "POST", "/api/run", {"command": "['x' * 50 for _ in range(9999)]"}
        ).json()  # sweeps
        assert "handle" in stored["blocks"][0]
        for replica in cluster.replicas:
            loaded = replica.send(
                "POST", "/api/run", {"command": f"len(ot.load({handle!r}))"}
            ).json()
            assert loaded["blocks"] == ["9999"]
    finally:
        cluster.kill(2)
        cluster.restart(2)


def has_tools(replica: Rest, bundle_id: str, count: int) -> bool:
    return len(replica.all("/tools", "tools", bundleIDs=bundle_id)) == count


@contextmanager
def altered(cluster: Cluster, change: str, undo: str) -> Iterator[None]:
    """Alter the tables in this block.

    Afterwards, all replicas are ready again, for the next tests too.
    """
    cluster.execute(change)
    try:
        yield
    finally:
        cluster.execute(undo)
        assert eventually(cluster.are_ready, READY_SECONDS)


def test_replicas_follow_the_version_of_the_tables(cluster: Cluster) -> None:
    """An upgrade disturbs nobody.

    A replica that finds newer or no tables is not ready, and writes nothing.
    """
    current = int(cluster.execute("SELECT max(version) FROM onetool.schema_versions"))
    add = "INSERT INTO onetool.schema_versions (version, compatible) VALUES"
    remove = "DELETE FROM onetool.schema_versions WHERE version ="

    def notice(reason: str) -> bool:
        """Return whether no replica is ready any more, for this reason."""
        clients = [replica.client for replica in cluster.replicas]
        is_ready = any(client.get("/readyz").status_code == 200 for client in clients)
        return not is_ready and all(reason in client.get("/api/health").text for client in clients)

    column = "ALTER TABLE onetool.audit ADD COLUMN later text"
    undo = f"{remove} {current + 1}; ALTER TABLE onetool.audit DROP COLUMN later"
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(cluster.call, "notes.add", text=f"upgrade-{number}") for number in range(40)
        ]
        with altered(cluster, f"{column}; {add} ({current + 1}, 1)", undo):
            assert [call.result().json()["ok"] for call in calls] == [True] * 40
    with altered(cluster, f"{add} ({current + 2}, {current + 2})", f"{remove} {current + 2}"):
        assert eventually(lambda: notice("newer OneTool"), READY_SECONDS)
        rejected = cluster.replicas[0].send(
            "POST", "/api/tools/notes.add/call", {"args": {"text": "too-old"}}
        )
        assert rejected.status_code == 503
    with altered(
        cluster, "ALTER SCHEMA onetool RENAME TO kept", "ALTER SCHEMA kept RENAME TO onetool"
    ):
        assert eventually(lambda: notice("has no tables"), READY_SECONDS)
    cluster.topology.run_command("store", "upgrade", role="migration")
    cluster.topology.up(
        REPLICAS, has_worker=False
    )  # grants the new rights, and changes nothing else
    assert cluster.call("notes.add", text="upgraded").json()["ok"]
    assert "too-old" not in cluster.notes


# --- what holds on all replicas -------------------------------------------------------------------


def create_token(cluster: Cluster, name: str, *options: str) -> str:
    token: str = json.loads(
        cluster.topology.run_command("token", "create", name, "--json", *options)
    )["token"]
    return token


def test_revoked_tokens_and_disabled_tools_hold_everywhere_within_two_seconds(
    cluster: Cluster,
) -> None:
    headers = {"authorization": f"Bearer {create_token(cluster, 'laptop')}"}

    def list_statuses() -> set[int]:
        return {
            each.client.get("/api/tools", headers=headers).status_code for each in cluster.replicas
        }

    def list_outcomes() -> set[bool]:
        path = "/api/tools/notes.count/call"
        answers = (each.send("POST", path, {"args": {}}).json() for each in cluster.replicas)
        return {bool(answer.get("ok")) for answer in answers}

    assert wait(lambda: list_statuses() == {200})
    cluster.topology.run_command("token", "revoke", "laptop")
    assert wait(lambda: list_statuses() == {401})
    cluster.front.switch("/api/tools/notes.count", on=False)
    assert wait(lambda: list_outcomes() == {False})
    cluster.front.switch("/api/tools/notes.count", on=True)
    assert wait(lambda: list_outcomes() == {True})


def test_writers_and_rate_limits_of_stored_tools_are_exact_through_nginx(
    cluster: Cluster, site: Site
) -> None:
    bundle = cluster.front.bundle("limited")
    assert wait(
        lambda: all(each.client.get(bundle).status_code == 200 for each in cluster.replicas)
    )
    url = f"http://127.0.0.1:{site.port}/json"

    def create(number: int) -> list[int]:
        draft = http_draft(url, maxCallsPerMinute=5) if number == 0 else http_draft(url)
        paths = [f"{bundle}/tools/t-{number}-{index}/version/1" for index in range(3)]
        return [cluster.front.send("PUT", path, draft).status_code for path in paths]

    with ThreadPoolExecutor(8) as pool:
        assert [status for each in pool.map(create, range(8)) for status in each] == [201] * 24
        ids = bundle.rpartition("/")[2]
        for replica in cluster.replicas:
            assert eventually(partial(has_tools, replica, ids, 24))
        path = f"{bundle}/tools/t-0-0/version/1"
        answers = list(pool.map(lambda _: cluster.front.invoke(path), range(12)))
    assert [answer.status_code for answer in answers].count(200) == 5, [
        answer.text for answer in answers
    ]
    assert len(site.requests) == 5


def test_metrics_and_statistics_are_exact_in_sum(cluster: Cluster) -> None:
    def count() -> tuple[int, int]:
        pattern = r'^onetool_tool_calls_total\{.*tool="notes.count".*\} ([\d.]+)$'
        pages = [each.client.get("/metrics").text for each in cluster.replicas]
        metrics = sum(
            float(value) for page in pages for value in re.findall(pattern, page, re.MULTILINE)
        )
        for replica in cluster.replicas:
            replica.get("/api/stats")  # writes what it has buffered
        return int(metrics), int(cluster.front.get("/api/stats", tool="notes.count")["totalCalls"])

    before = count()
    for _ in range(20):
        assert cluster.call("notes.count").json()["ok"]
    assert [after - known for after, known in zip(count(), before, strict=True)] == [20, 20]


# --- MCP through nginx ----------------------------------------------------------------------------


def post_mcp(cluster: Cluster, body: object, **headers: str) -> httpx2.Response:
    sent = {
        "accept": "application/json, text/event-stream",
        **{name.replace("_", "-"): headers[name] for name in headers},
    }
    return cluster.front.client.post("/mcp", json=body, headers=sent)


def open_session(cluster: Cluster) -> str:
    opened = post_mcp(cluster, HANDSHAKE)
    assert opened.status_code == 200, opened.text
    session: str = opened.headers["mcp-session-id"]
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert post_mcp(cluster, notification, mcp_session_id=session).status_code == 202
    return session


def test_mcp_sessions_stay_on_their_replica_until_it_ends(cluster: Cluster) -> None:
    call = {"name": "run", "arguments": {"command": "6 * 7"}}
    request = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    sessions = [open_session(cluster) for _ in range(8)]
    for session in sessions * 2:
        answer = post_mcp(cluster, request, mcp_session_id=session)
        assert "42" in answer.text, answer.text
        assert answer.headers["mcp-session-id"] == session
    body, headers = build_request("tools/call", "run", name="run", arguments=call["arguments"])
    named = {name.replace("-", "_"): value for name, value in headers.items()}
    cluster.kill(1)
    try:
        answers = [post_mcp(cluster, request, mcp_session_id=session) for session in sessions]
        assert {answer.status_code for answer in answers} <= {200, 404}
        lost = [
            session
            for session, answer in zip(sessions, answers, strict=True)
            if answer.status_code == 404
        ]
        kept = [session for session in sessions if session not in lost]
        assert all(
            "42" in post_mcp(cluster, request, mcp_session_id=session).text for session in kept
        )
        assert (
            "42" in post_mcp(cluster, request, mcp_session_id=open_session(cluster)).text
        )  # the client initializes again
        for _ in range(8):  # a protocol without sessions needs nothing
            assert "42" in post_mcp(cluster, body, **named).text
    finally:
        cluster.restart(1)
