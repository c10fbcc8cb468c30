"""Replicas on PostgreSQL: what one of them changes holds on all of them."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from tests.postgres_support import PostgresServer, get_settings
from tests.proxy_support import hostile_server
from tests.replicas_support import (
    KEY,
    Replica,
    create_token,
    prepare_home,
    run_store_cli,
    start_replica,
    start_replicas,
)
from tests.rest_support import get_error_code, http_draft
from tests.support import eventually

from onetool.settings.contents import StoredSettings
from onetool.state.opening import open_postgres

EFFECTIVE_SECONDS = 2.0
WRITERS = 8
ECHO = "changing.echo(text='a')"
SETTINGS = """\
agents:
  default: {permissions: [read, write, network]}
  limited: {permissions: [read], budgets: {calls: 5}}
  careful: {policy: ask-writes, permissions: [read, write]}
  edited: {permissions: [read], tools: [notes]}
approvals: {wait: 0.2}
output: {max_inline_size: 2000}
tools: {notes: {effects: {count: read, "*": write}}}
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def replicas(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Replica]]:
    url = postgres_server.url(postgres_server.create_database())
    changing = hostile_server("changes", tmp_path_factory.mktemp("notes"), pin="strict")
    settings = f"{SETTINGS}servers: {json.dumps({'changing': changing})}\n"
    with start_replicas(tmp_path_factory.mktemp("replicas"), url, 3, settings) as started:
        yield started


@pytest.fixture(autouse=True)
def forgotten_attempts(replicas: list[Replica]) -> None:
    """Forget failed attempts of other tests: all replicas and tests have the same address."""
    forget_attempts(replicas)


def forget_attempts(replicas: list[Replica]) -> None:
    with psycopg.connect(replicas[0].variables["ONETOOL_STORE"], autocommit=True) as connection:
        connection.execute("DELETE FROM onetool.rates WHERE starts_with(name, 'failed ')")


def within(seconds: float, check: Callable[[], object]) -> None:
    """Repeat the check until it succeeds. Fail if one that began after this time does not."""
    started = time.monotonic()
    while True:
        began = time.monotonic() - started
        if check():
            return
        assert began <= seconds, f"not effective after {began:.2f} s"
        time.sleep(0.2)  # because 20 failed attempts with a token are rate-limited


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
    within(
        EFFECTIVE_SECONDS, lambda: all(each.status("/api/tools", token) == 200 for each in replicas)
    )
    assert replicas[1].cli("token", "revoke", "laptop").returncode == 0
    within(
        EFFECTIVE_SECONDS, lambda: all(each.status("/api/tools", token) == 401 for each in replicas)
    )
    assert "laptop" not in replicas[2].cli("token", "list").stdout


def test_a_disabled_tool_is_rejected_everywhere_within_two_seconds(replicas: list[Replica]) -> None:
    first, second, third = replicas
    with first.rest.client.stream("GET", "/api/changes") as answer:
        events = (line for line in answer.iter_lines() if line.startswith("event:"))
        assert next(events) == "event: start"
        assert second.rest.switch("/api/tools/notes.count", on=False)["isEnabled"] is False
        assert next(events) == "event: changed"
    within(EFFECTIVE_SECONDS, lambda: all(not _can_count(each) for each in (first, third)))
    first.rest.switch("/api/tools/notes.count", on=True)
    within(EFFECTIVE_SECONDS, lambda: all(_can_count(each) for each in replicas))


def _can_count(replica: Replica) -> bool:
    return bool(replica.call("notes.count").json().get("ok"))


def test_a_pin_is_in_force_on_every_replica(replicas: list[Replica]) -> None:
    first, second, _ = replicas
    assert run(first, ECHO) == "a"  # pins the definitions; then the server changes one
    assert eventually(lambda: "pin is strict" in first.run(ECHO).text)
    assert "pin is strict" in second.run(ECHO).text, (
        "it has never seen the definition that was pinned"
    )
    accepted = second.cli("servers", "accept", "changing")
    assert "accepted echo" in accepted.stdout, accepted.stderr
    within(
        EFFECTIVE_SECONDS,
        lambda: all(not each.run(ECHO).json()["isError"] for each in (first, second)),
    )


def test_concurrent_writers_on_all_replicas_lose_no_tool(replicas: list[Replica]) -> None:
    bundle = replicas[0].rest.bundle("shared")

    def write(number: int) -> list[int]:
        rest = replicas[number % len(replicas)].rest
        path = f"{bundle}/tools/t-{number}-{{}}/version/1"
        return [
            rest.send("PUT", path.format(index), http_draft("https://example.com")).status_code
            for index in range(3)
        ]

    with ThreadPoolExecutor(WRITERS) as pool:
        statuses = [status for each in pool.map(write, range(WRITERS)) for status in each]
    assert statuses == [201] * (3 * WRITERS)
    for replica in replicas:
        bundle_id = bundle.rpartition("/")[2]
        within(EFFECTIVE_SECONDS, partial(_has_tools, replica, bundle_id, 3 * WRITERS))
    # The same tool cannot be created twice, on whichever replica.
    duplicate = replicas[1].rest.send(
        "PUT", f"{bundle}/tools/t-0-0/version/1", http_draft("https://example.com")
    )
    assert get_error_code(duplicate) == (409, "duplicate")


def _has_tools(replica: Replica, bundle_id: str, count: int) -> bool:
    return len(replica.rest.all("/tools", "tools", bundleIDs=bundle_id)) == count


def test_a_result_is_readable_on_every_replica(replicas: list[Replica]) -> None:
    handle = json.loads(
        run(replicas[0], "[{'number': n, 'text': 'x' * 50} for n in range(50_000)]")
    )["handle"]
    assert [run(replica, f"len(ot.load({handle!r}))") for replica in replicas] == ["50000"] * 3
    window = replicas[1].rest.get(
        f"/api/results/{handle}", offset=40_000, limit=2
    )  # in the third megabyte
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
    within(
        EFFECTIVE_SECONDS, lambda: all(each.status("/api/tools", token) == 200 for each in replicas)
    )
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
    token, approver = (
        create_token(other, "careful", "careful"),
        create_token(other, "boss", scope="approve"),
    )
    with start_replica(tmp_path, other.work, other.variables["ONETOOL_STORE"]) as victim:
        within(EFFECTIVE_SECONDS, lambda: victim.status("/api/tools", token) == 200)
        paused = victim.run("notes.add('once')", authorization=f"Bearer {token}")
        victim.kill()
    run = next(
        word.strip(".:") for word in paused.text.replace('"', " ").split() if word.startswith("r_")
    )
    within(EFFECTIVE_SECONDS, lambda: other.status("/api/approvals", approver) == 200)
    decided = third.rest.send(
        "POST",
        f"/api/approvals/{run}",
        {"decision": "approve"},
        headers={"authorization": f"Bearer {approver}"},
    )
    assert decided.status_code == 200, decided.text
    notes = other.work / "notes.txt"
    assert eventually(lambda: notes.exists() and notes.read_text() == "once\n", 40)
    time.sleep(1)
    assert notes.read_text() == "once\n"  # on one replica only


# --- settings that replicas share -----------------------------------------------------------------


@pytest.fixture(scope="module")
def owner(replicas: list[Replica]) -> str:
    token = create_token(replicas[0], "owner", scope="owner")
    assert eventually(lambda: all(each.status("/api/agents", token) == 200 for each in replicas))
    return token


def send(
    replica: Replica, token: str, method: str, path: str, body: Any = None, **headers: str
) -> httpx2.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return replica.rest.send(
        method, path, body, headers={"authorization": f"Bearer {token}", **sent}
    )


def test_an_agent_edited_on_one_replica_is_enforced_on_all(
    replicas: list[Replica], owner: str
) -> None:
    first, second, third = replicas
    token = create_token(first, "edited", "edited")

    def can_count(replica: Replica) -> bool:
        return bool(
            send(replica, token, "POST", "/api/tools/notes.count/call", {"args": {}})
            .json()
            .get("ok")
        )

    assert eventually(lambda: all(map(can_count, replicas)))
    changed = send(
        first, owner, "PATCH", "/api/agents/edited", {"settings": {"tools": ["machine"]}}
    )
    assert changed.status_code == 200, changed.text
    assert eventually(lambda: not any(map(can_count, replicas)))
    histories = [
        send(each, owner, "GET", "/api/settings/history").json()["changes"] for each in replicas
    ]
    assert histories[0] == histories[1] == histories[2]
    assert histories[0][0]["id"] == changed.json()["id"]
    undone = send(second, owner, "POST", f"/api/settings/history/{changed.json()['id']}/undo")
    assert undone.status_code == 200, undone.text
    assert eventually(lambda: all(map(can_count, replicas)))
    removed = third.cli("agents", "remove", "edited")  # the file of each replica has it still
    assert removed.returncode == 0, removed.stderr
    assert eventually(lambda: not any(map(can_count, replicas)))
    assert send(first, owner, "GET", "/api/agents/edited").status_code == 404
    assert first.cli("settings", "undo", "--yes").returncode == 0
    assert eventually(lambda: all(map(can_count, replicas)))
    assert "All replicas apply it" in removed.stdout


def test_of_two_people_on_different_replicas_one_is_told_and_nothing_is_lost(
    replicas: list[Replica], owner: str
) -> None:
    path, changes = "/api/agents/limited", [{"clients": ["ada"]}, {"tools": ["notes"]}]
    tags = {send(each, owner, "GET", path).headers["etag"] for each in replicas}
    assert len(tags) == 1

    def change(number: int, tag: str) -> httpx2.Response:
        return send(
            replicas[number], owner, "PATCH", path, {"settings": changes[number]}, if_match=tag
        )

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(change, range(2), [*tags, *tags]))
    assert sorted(answer.status_code for answer in answers) == [200, 412]
    late = next(number for number, answer in enumerate(answers) if answer.status_code == 412)
    again = change(late, answers[late].json()["error"]["details"]["etag"])
    assert again.status_code == 200, again.text
    values = send(replicas[late], owner, "GET", path).json()["entry"]["values"]
    assert {name: values[name] for name in ("clients", "tools", "budgets")} == {
        "clients": ["ada"],
        "tools": ["notes"],
        "budgets": {"calls": 5},
    }


def test_commands_on_several_machines_at_once_all_succeed(
    replicas: list[Replica], owner: str
) -> None:
    def change(number: int) -> str:
        done = replicas[number % 3].cli(
            "agents", "set", "many", f"tool_config.t{number}.limit={number}"
        )
        return done.stderr if done.returncode else ""

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(change, range(6))) == [""] * 6
    values = send(replicas[0], owner, "GET", "/api/settings/history").json()
    assert sum(entry["names"] == ["many"] for entry in values["changes"]) == 6
    assert eventually(
        lambda: send(replicas[1], owner, "GET", "/api/agents/many").status_code == 200
    )
    found = send(replicas[1], owner, "GET", "/api/agents/many").json()["entry"]["values"][
        "tool_config"
    ]
    assert found == {f"t{number}": {"limit": number} for number in range(6)}
    file = replicas[0].home / "servers.json"
    file.write_text('{"mcpServers": {"tracker": {"url": "https://t.example.com/mcp"}}}')
    first = replicas[0]
    trusting = {**first.variables, "ONETOOL_TRUST": "1"}
    imported = run_store_cli(first.home, first.work, trusting, "import", str(file))
    assert imported.returncode == 0, imported.stderr
    assert eventually(
        lambda: send(replicas[1], owner, "GET", "/api/servers/tracker").status_code == 200
    )


def test_a_replica_killed_while_it_edits_leaves_whole_changes(
    replicas: list[Replica], owner: str, tmp_path: Path
) -> None:
    other, acknowledged, is_enough = replicas[0], list[str](), threading.Event()
    prepare_home(tmp_path, other.work, SETTINGS)
    with start_replica(tmp_path, other.work, other.variables["ONETOOL_STORE"]) as victim:
        assert eventually(lambda: victim.status("/api/agents", owner) == 200)

        def edit(worker: int) -> None:
            for number in range(100):
                name, body = f"k{worker}-{number}", {"settings": {"permissions": ["read"]}}
                try:
                    if send(victim, owner, "PATCH", f"/api/agents/{name}", body).status_code != 200:
                        return
                except httpx2.HTTPError:  # it was killed
                    return
                acknowledged.append(name)
                if len(acknowledged) > 4:
                    is_enough.set()

        with ThreadPoolExecutor(2) as pool:
            working = [pool.submit(edit, worker) for worker in range(2)]
            assert is_enough.wait(60)
            victim.kill()
            for each in working:
                each.result()
    assert other.cli("agents", "set", "after", "permissions=[read]").returncode == 0
    listed = other.cli("agents", "list", "--json")
    names = {agent["name"] for agent in json.loads(listed.stdout)["agents"]}
    assert names >= {*acknowledged, "after"}


def test_invalid_settings_in_the_store_are_a_problem_and_stop_no_replica(
    replicas: list[Replica], tmp_path: Path
) -> None:
    state = open_postgres(replicas[0].variables["ONETOOL_STORE"], KEY, tmp_path)
    valid = state.settings.refresh()

    def write(stored: StoredSettings) -> None:
        get_settings(state).update(lambda _current, history: (stored, history))

    def has_problem(replica: Replica) -> bool:
        problems = "\n".join(replica.rest.get("/api/health")["problems"])
        return "store/onetool.yaml:1: agents.limited.permissions must be a list" in problems

    try:
        write(StoredSettings("agents: {limited: {permissions: [fly]}}\n"))
        for replica in replicas[:2]:
            assert eventually(partial(has_problem, replica))
            assert (
                run(replica, "len(notes.count()) >= 0") == "True"
            )  # the agent `default` is as before
    finally:
        write(valid)
        state.close()
    assert eventually(lambda: not has_problem(replicas[0]))


def test_failed_attempts_are_counted_on_all_replicas_together(replicas: list[Replica]) -> None:
    """An address has 20 attempts in all.

    A token that a replica has accepted from it is accepted on the others.

    It is the last test, because the address is limited for a minute.
    """
    known, new = create_token(replicas[0], "known"), create_token(replicas[0], "new")
    within(EFFECTIVE_SECONDS, lambda: replicas[0].status("/api/tools", known) == 200)
    forget_attempts(replicas)
    statuses = [
        replicas[number % 3].status("/api/tools", f"wrong-{number}") for number in range(24)
    ]
    assert statuses == [401] * 20 + [429] * 4
    assert [each.status("/api/tools", known) for each in replicas] == [200] * 3
    assert [each.status("/api/tools", new) for each in replicas] == [429] * 3
    assert [each.status("/api/tools") for each in replicas] == [200] * 3, (
        "local requests need no token"
    )
