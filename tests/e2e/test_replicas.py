"""Replicas on PostgreSQL: what one of them changes holds on all of them."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.postgres_support import PostgresServer
from tests.replicas_support import Replica, create_token, prepare_home, start_replica, start_replicas
from tests.rest_support import get_error_code, http_draft
from tests.support import eventually

EFFECTIVE_SECONDS = 2.0
WRITERS = 8
SETTINGS = """\
agents:
  default: {permissions: [read, write, network]}
  limited: {permissions: [read], budgets: {calls: 5}}
  careful: {policy: ask-writes, permissions: [read, write]}
approvals: {wait: 0.2}
output: {max_inline_size: 2000}
tools: {notes: {effects: {count: read, "*": write}}}
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def replicas(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replica]]:
    url = postgres_server.url(postgres_server.create_database())
    with start_replicas(tmp_path_factory.mktemp("replicas"), url, 3, SETTINGS) as started:
        yield started


def within(seconds: float, check: Callable[[], object]) -> float:
    """Return how long it took until the check succeeded."""
    started = time.monotonic()
    while not check():
        assert time.monotonic() - started < seconds + 1, f"not effective after {seconds + 1:g} s"
        time.sleep(0.2)  # because 20 failed attempts with a token are rate-limited
    took = time.monotonic() - started
    assert took <= seconds, f"effective after {took:.2f} s"
    return took


def run(replica: Replica, code: str) -> str:
    answer = replica.run(code).json()
    assert not answer["isError"], answer
    (text,) = answer["blocks"]
    return str(text)


def test_every_replica_is_ready(replicas: list[Replica]) -> None:
    assert [replica.status() for replica in replicas] == [200, 200, 200]
    assert [run(replica, "1 + 1") for replica in replicas] == ["2", "2", "2"]


def test_a_revoked_token_is_rejected_everywhere_within_two_seconds(replicas: list[Replica]) -> None:
    token = create_token(replicas[0], "laptop")
    within(EFFECTIVE_SECONDS, lambda: all(each.status("/api/tools", token) == 200 for each in replicas))
    assert replicas[1].cli("token", "revoke", "laptop").returncode == 0
    within(EFFECTIVE_SECONDS, lambda: all(each.status("/api/tools", token) == 401 for each in replicas))
    assert "laptop" not in replicas[2].cli("token", "list").stdout


def test_a_disabled_tool_is_rejected_everywhere_within_two_seconds(replicas: list[Replica]) -> None:
    first, second, third = replicas
    assert second.rest.switch("/api/tools/notes.count", on=False)["isEnabled"] is False
    within(EFFECTIVE_SECONDS, lambda: all(not _can_count(each) for each in (first, third)))
    first.rest.switch("/api/tools/notes.count", on=True)
    within(EFFECTIVE_SECONDS, lambda: all(_can_count(each) for each in replicas))


def _can_count(replica: Replica) -> bool:
    return bool(replica.call("notes.count").json().get("ok"))


def test_concurrent_writers_on_all_replicas_lose_no_tool(replicas: list[Replica]) -> None:
    bundle = replicas[0].rest.bundle("shared")

    def write(number: int) -> list[int]:
        rest = replicas[number % len(replicas)].rest
        path = f"{bundle}/tools/t-{number}-{{}}/version/1"
        return [
            rest.send("PUT", path.format(index), http_draft("https://example.com")).status_code for index in range(3)
        ]

    with ThreadPoolExecutor(WRITERS) as pool:
        statuses = [status for each in pool.map(write, range(WRITERS)) for status in each]
    assert statuses == [201] * (3 * WRITERS)
    for replica in replicas:
        bundle_id = bundle.rpartition("/")[2]
        within(EFFECTIVE_SECONDS, partial(_has_tools, replica, bundle_id, 3 * WRITERS))
    # The same tool cannot be created twice, on whichever replica.
    duplicate = replicas[1].rest.send("PUT", f"{bundle}/tools/t-0-0/version/1", http_draft("https://example.com"))
    assert get_error_code(duplicate) == (409, "duplicate")


def _has_tools(replica: Replica, bundle_id: str, count: int) -> bool:
    return len(replica.rest.all("/tools", "tools", bundleIDs=bundle_id)) == count


def test_a_result_is_readable_on_every_replica(replicas: list[Replica]) -> None:
    handle = json.loads(run(replicas[0], "[{'number': n, 'text': 'x' * 50} for n in range(50_000)]"))["handle"]
    assert [run(replica, f"len(ot.load({handle!r}))") for replica in replicas] == ["50000"] * 3
    window = replicas[1].rest.get(f"/api/results/{handle}", offset=40_000, limit=2)  # in the third megabyte
    assert [json.loads(line.rstrip(","))["number"] for line in window["lines"]] == [39_998, 39_999]


def test_statistics_are_exact_in_sum(replicas: list[Replica]) -> None:
    def count() -> int:
        for replica in replicas:
            replica.rest.get("/api/stats")  # writes what it has buffered
        return int(replicas[0].rest.get("/api/stats", tool="notes.count")["totalCalls"])

    before = count()
    for number, replica in enumerate(replicas):
        for _ in range(4 + number):
            assert replica.call("notes.count").status_code == 200
    assert count() - before == 4 + 5 + 6


def test_a_budget_holds_across_replicas(replicas: list[Replica]) -> None:
    token = create_token(replicas[0], "limited", "limited")
    within(EFFECTIVE_SECONDS, lambda: all(each.status("/api/tools", token) == 200 for each in replicas))
    headers = {"authorization": f"Bearer {token}"}

    def call(number: int) -> bool:
        rest = replicas[number % len(replicas)].rest
        answer = rest.send("POST", "/api/tools/notes.count/call", {"args": {}}, headers=headers)
        return bool(answer.json().get("ok"))

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(call, range(12))) == 5


def test_a_paused_run_continues_on_another_replica_after_its_own_was_killed(
    replicas: list[Replica], tmp_path: Path
) -> None:
    other, third, _ = replicas
    prepare_home(tmp_path, other.work, SETTINGS)
    token, approver = create_token(other, "careful", "careful"), create_token(other, "boss", scope="approve")
    with start_replica(tmp_path, other.work, other.variables["ONETOOL_STORE"]) as victim:
        within(EFFECTIVE_SECONDS, lambda: victim.status("/api/tools", token) == 200)
        paused = victim.run("notes.add('once')", authorization=f"Bearer {token}")
        victim.kill()
    run = next(word.strip(".:") for word in paused.text.replace('"', " ").split() if word.startswith("r_"))
    within(EFFECTIVE_SECONDS, lambda: other.status("/api/approvals", approver) == 200)
    decided = third.rest.send(
        "POST", f"/api/approvals/{run}", {"decision": "approve"}, headers={"authorization": f"Bearer {approver}"}
    )
    assert decided.status_code == 200, decided.text
    notes = other.work / "notes.txt"
    assert eventually(lambda: notes.exists() and notes.read_text() == "once\n", 40)
    time.sleep(1)
    assert notes.read_text() == "once\n"  # on one replica only
