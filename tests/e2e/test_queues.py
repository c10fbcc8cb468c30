"""Calls that workers of queues make: results, errors, cancellation, killed processes, and a hostile
database.

Replicas and workers use the roles of the guide, each with its own home and settings.
"""

import json
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from tests.cells_support import NIGHTLY
from tests.postgres_support import PostgresServer, run_postgres
from tests.queues_support import (
    QUEUES,
    SECRET,
    QueueProcess,
    list_notes,
    run_worker,
    start_worker,
    write_heavy,
)
from tests.replicas_support import (
    KEY,
    Replica,
    prepare_home,
    run_store_cli,
    start_replica,
    start_replicas,
)
from tests.rest_support import make_client
from tests.support import TIMEOUT_SECONDS, configure, eventually

from onetool.state.schema import render_grants

LOST_SECONDS = 25.0  # until a killed process is detected, and its job is executed again
HANDOVER_SECONDS = 40.0  # until another replica continues a run
SETTINGS = f"""\
agents: {{default: {{permissions: [read, write, network], tool_config: {{heavy.describe: {{limit: 5}}}}}}}}
tools:
{
    "".join(
        f"  {pack}: {{queue: {pack}, timeout: {timeout}, effects: {{note: write, put: write, '*': read}},"
        f" idempotent: [put]}}" + chr(10)
        for pack, timeout in QUEUES.items()
    )
}
"""

pytestmark = pytest.mark.slow


class Queues:
    """A database with roles, two replicas, and the directory of everything."""

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        self.server, self.directory, self.database = server, directory, server.create_database()
        suffix = str(time.time_ns())
        self.replica_role, self.worker_role = f"replica_{suffix}", f"worker_{suffix}"
        roles = (f"CREATE ROLE {role} LOGIN" for role in (self.replica_role, self.worker_role))
        server.execute(*roles)
        home = directory / "migration"
        prepare_home(home, directory, "")
        variables = {"ONETOOL_STORE": server.url(self.database), "ONETOOL_KEY": KEY}
        upgraded = run_store_cli(home, directory, variables, "store", "upgrade")
        assert upgraded.returncode == 0, upgraded.stderr
        self.execute(render_grants(self.replica_role, self.worker_role))
        self.replicas: list[Replica] = []

    @property
    def replica_url(self) -> str:
        return self.server.url(self.database, self.replica_role)

    @property
    def worker_url(self) -> str:
        return self.server.url(self.database, self.worker_role)

    def execute(self, *statements: str) -> list[Any]:
        return self.server.execute("SET search_path = onetool", *statements, database=self.database)

    @property
    def notes(self) -> list[str]:
        return list_notes(self.directory)

    @contextmanager
    def worker(self, pack: str, *arguments: str) -> Iterator[QueueProcess]:
        home = self.directory / f"worker-{pack}-{time.time_ns()}"
        write_heavy(home / ".onetool" / "tools", self.directory, pack)
        with start_worker(home, self.worker_url, pack, *arguments) as started:
            yield started


@pytest.fixture(scope="module")
def queues(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Queues]:
    directory = tmp_path_factory.mktemp("queues")
    queues = Queues(postgres_server, directory)
    for pack in QUEUES:
        write_heavy(directory / "work" / "packs", directory, pack)
    with start_replicas(directory, queues.replica_url, 2, SETTINGS) as queues.replicas:
        yield queues


@pytest.fixture(scope="module")
def worker(queues: Queues) -> Iterator[QueueProcess]:
    with queues.worker("heavy", "--concurrency", "4") as started:
        yield started


def call(replica: Replica, tool: str, **arguments: Any) -> Any:
    answer = replica.call(tool, **arguments).json()
    assert answer["ok"], answer
    return answer["value"]


def fail(replica: Replica, tool: str, **arguments: Any) -> Mapping[str, Any]:
    answer = replica.call(tool, **arguments).json()
    assert not answer["ok"], answer
    error: Mapping[str, Any] = answer["error"]
    return error


def run(replica: Replica, code: str) -> str:
    answer = replica.run(code).json()
    assert not answer["isError"], answer
    return "\n".join(answer["blocks"])


def start(pool: ThreadPoolExecutor, queues: Queues, tool: str, **arguments: Any) -> "Future[Any]":
    """Make a call in a thread, and wait until its job is in the queue."""
    query = "SELECT count(*) FROM jobs"
    before = queues.execute(query)
    future = pool.submit(lambda: queues.replicas[0].call(tool, **arguments).json())
    assert eventually(lambda: queues.execute(query) > before)
    return future


# --- calls ----------------------------------------------------------------------------------------


def test_a_call_is_made_by_the_worker_with_its_own_settings(
    queues: Queues, worker: QueueProcess
) -> None:
    first, second = queues.replicas
    assert call(first, "heavy.add", a=2) == 3
    assert run(second, "heavy.add(2) + heavy.add(3, b=4)") == "10"
    directory, variables = call(first, "heavy.identify")
    assert directory == str(worker.home)
    assert not [name for name in variables if name.startswith("ONETOOL")]
    assert "serving queue heavy" in worker.errors
    assert int(first.rest.get("/api/stats", tool="heavy.add")["totalCalls"]) >= 1
    caller = call(first, "heavy.describe")
    assert caller == ["default", 5, ["network", "read", "write"], str(worker.home), {}]


def test_errors_are_those_of_the_tool(queues: Queues, worker: QueueProcess) -> None:
    first = queues.replicas[0]
    assert (fail(first, "heavy.fail", kind="tool")["reason"], worker.process.poll()) == (
        "tool",
        None,
    )
    code = "try:\n    heavy.fail(kind='value')\nexcept ValueError as error:\n    print(error)"
    assert "wrong value" in run(first, code)
    assert first.call("heavy.add", b=1).status_code == 400  # rejected before it becomes a job
    nested = fail(first, "heavy.nest")
    assert nested["code"] == "remote_worker"
    assert "cannot call other tools" in nested["message"]


def test_secrets_of_the_worker_leave_it_redacted(queues: Queues, worker: QueueProcess) -> None:
    shown = call(queues.replicas[0], "heavy.reveal")
    assert shown == "the secret is [REDACTED]"
    assert SECRET not in worker.log


@pytest.mark.usefixtures("worker")
def test_large_arguments_and_results_are_deleted_early(queues: Queues) -> None:
    first = queues.replicas[0]
    assert (
        run(first, "len(heavy.repeat('a', count=3_000_000) + heavy.repeat('ä', count=100_000))")
        == "3100000"
    )
    assert run(first, "heavy.measure('x' * 900_000 + 'ä' * 900_000)") == "1800000"
    large = "SELECT count(*) FROM jobs WHERE octet_length(sealed) + octet_length(result) > 65536"
    assert eventually(lambda: queues.execute(large) == [(0,)])


@pytest.mark.usefixtures("worker")
def test_media_are_readable_on_every_replica(queues: Queues) -> None:
    first, second = queues.replicas
    handle = call(first, "heavy.draw")["chart"]["media"]
    content = second.rest.client.get(f"/api/media/{handle}")
    assert (content.headers["content-type"], len(content.content)) == ("image/png", 72)


@pytest.mark.usefixtures("worker")
def test_progress_reaches_the_client(queues: Queues) -> None:
    first = queues.replicas[0]
    headers = {"accept": "text/event-stream"}
    events = first.rest.send(
        "POST", "/api/tools/heavy.report/call", {"args": {}}, headers=headers
    ).text
    assert [f"step {number}" in events for number in range(3)] == [True] * 3, events
    assert '"value":"reported"' in events
    log = first.home / ".onetool" / "logs" / "onetool.log"
    assert eventually(lambda: "almost done" in log.read_text())


# --- queues without a worker ----------------------------------------------------------------------


def test_a_queue_without_a_worker_is_reported(queues: Queues) -> None:
    first = queues.replicas[0]
    error = fail(first, "brief.add", a=1)
    assert error["code"] == "no_worker"
    assert error["type"] == "timeout"
    assert "onetool worker --queue brief" in error["hint"]
    (found,) = [
        each
        for each in first.rest.get("/api/health")["findings"]
        if "queue brief" in each["message"]
    ]
    assert found["hint"] == "onetool worker --queue brief"
    status = json.loads(first.cli("store", "status", "--json").stdout)
    assert status["queues"] is not None


def test_commands_say_what_is_missing(queues: Queues, tmp_path: Path) -> None:
    home = tmp_path / "home"
    work = tmp_path / "work"
    work.mkdir()
    prepare_home(home, work, "tools: {notes: {queue: heavy}}")
    store = {"ONETOOL_STORE": queues.worker_url}
    key = {"ONETOOL_KEY": KEY}
    for variables, queue, expected in (
        ({}, "heavy", "set store in"),
        (store, "heavy", "ONETOOL_KEY is not set"),
        (
            {"ONETOOL_STORE": "postgresql://a:pass-word@127.0.0.1:1/x"} | key,
            "heavy",
            "does not answer",
        ),
    ):
        shown = run_store_cli(home, work, variables, "worker", "--queue", queue)
        assert (shown.returncode, expected in shown.stderr) == (1, True), shown.stderr
        assert "pass-word" not in shown.stderr
    shown = run_store_cli(home, work, {}, "call", "notes.count")
    assert "tools.notes.queue needs a database" in shown.stdout + shown.stderr
    write_heavy(home / ".onetool" / "tools", work, "spare")
    with start_worker(home, queues.worker_url, "spare", "--queue", "other") as idle:
        assert "no jobs are taken from the queue 'other'" in idle.errors
        assert "(queues: spare)" in idle.errors
    configure(home, "tools: {missing: {queue: heavy}}")
    shown = run_store_cli(home, work, store | key, "worker", "--queue", "heavy")
    assert "no pack 'missing'" in shown.stderr
    (work / ".onetool").mkdir()
    (work / ".onetool" / "onetool.yaml").write_text("tools: {notes: {queue: heavy}}")
    shown = run_store_cli(home, work, {"ONETOOL_TRUST": "1"}, "call", "notes.count")
    assert "tools.notes.queue cannot be set by a project" in shown.stdout + shown.stderr


# --- a hostile database ---------------------------------------------------------------------------


def test_forged_changed_and_repeated_jobs_are_not_executed(queues: Queues) -> None:
    waiting = "SELECT id FROM procrastinate_jobs WHERE status = 'todo' AND queue_name = 'spare'"
    with ThreadPoolExecutor(2) as pool:
        changed = start(pool, queues, "spare.note", text="changed")
        exchanged = start(pool, queues, "spare.note", text="exchanged")
        queues.execute(
            "UPDATE jobs SET sealed = other.sealed FROM jobs AS other WHERE jobs.id <> other.id"
            f" AND jobs.number IN ({waiting}) AND other.number IN ({waiting})",
        )
        queues.execute(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, args) VALUES ('spare',"
            " 'onetool.run_job', '{\"job\": \"unknown\"}'), ('spare', 'os.system', '{\"command\":"
            " \"id\"}'), ('spare', 'builtin:procrastinate.builtin_tasks.remove_old_jobs',"
            " '{\"max_hours\": 0}')",
            "INSERT INTO jobs (id, number, expires, sealed) SELECT 'unknown', id, now() + interval"
            " '1 day', 'forged' FROM procrastinate_jobs WHERE args ->> 'job' = 'unknown'",
        )
        with queues.worker("spare") as worker:
            for future in (changed, exchanged):
                assert future.result(20)["error"]["code"] == "job_rejected"
            assert call(queues.replicas[1], "spare.note", text="executed") == "executed"
            _repeat_last_job(queues)
            assert eventually(lambda: worker.log.count("job.rejected") == 5, 15), worker.log
    assert [note for note in queues.notes if note in {"changed", "exchanged", "executed"}] == [
        "executed"
    ]


def _repeat_last_job(queues: Queues) -> None:
    """Add the last job again, and let it wait again."""
    ((number,),) = queues.execute(
        "SELECT max(id) FROM procrastinate_jobs WHERE status = 'succeeded' AND queue_name = 'spare'"
    )
    queues.execute(
        "INSERT INTO procrastinate_jobs (queue_name, task_name, args)"
        f" SELECT queue_name, task_name, args FROM procrastinate_jobs WHERE id = {number}",
        "UPDATE jobs SET result = NULL, expires = now() + interval '1 day' WHERE number ="
        f" {number}",
        f"UPDATE procrastinate_jobs SET status = 'todo', attempts = 0 WHERE id = {number}",
    )


def test_a_changed_result_is_rejected(queues: Queues, worker: QueueProcess) -> None:
    first = queues.replicas[0]
    assert call(first, "heavy.add", a=40) == 41
    queues.execute(
        "CREATE FUNCTION swap() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path ="
        " onetool AS $$ BEGIN NEW.result = (SELECT result FROM jobs WHERE result IS NOT NULL LIMIT"
        " 1); RETURN NEW; END $$",
        "CREATE TRIGGER swap BEFORE UPDATE ON jobs FOR EACH ROW WHEN (NEW.result IS NOT NULL)"
        " EXECUTE FUNCTION swap()",
    )
    try:
        error = first.call("heavy.add", a=50).json()["error"]
    finally:
        queues.execute("DROP TRIGGER swap ON jobs", "DROP FUNCTION swap")
    assert "was changed" in error["message"]
    assert call(first, "heavy.add", a=60) == 61
    assert worker.process.poll() is None


@pytest.mark.usefixtures("worker")
def test_the_role_of_workers_reaches_only_jobs(queues: Queues) -> None:
    tables = queues.execute(
        "SELECT schemaname, tablename FROM pg_tables WHERE schemaname LIKE 'onetool%'"
    )
    allowed = {"jobs", "queue_workers", "files", "chunks", "schema_versions"}
    others = {
        (schema, name)
        for schema, name in tables
        if name not in allowed and "procrastinate" not in name
    }
    assert {("onetool", name) for name in ("runs", "keys", "documents", "audit")} <= others
    rejected = [
        *(f"SELECT * FROM {schema}.{name}" for schema, name in sorted(others)),
        "SELECT result FROM jobs",
        "UPDATE jobs SET sealed = 'x'",
        "UPDATE jobs SET number = 1",
        "DELETE FROM jobs",
        "INSERT INTO jobs (id, number, expires, sealed) SELECT 'x', number, expires, sealed FROM jobs",
        "DELETE FROM procrastinate_jobs",
        "UPDATE queue_workers SET queue = 'x'",
        "INSERT INTO procrastinate_jobs (queue_name, task_name) VALUES ('heavy', 'x')",
        "UPDATE procrastinate_jobs SET args = '{}'",
    ]  # fmt: skip
    with psycopg.connect(queues.worker_url, autocommit=True) as connection:
        connection.execute("SET search_path = onetool")
        for statement in rejected:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def expire(queues: Queues, table: str, seen: str, process: int) -> None:
    """Let the last sign of a killed process be old. `ONETOOL_NIGHTLY=1` waits for that."""
    if not NIGHTLY:
        changed = f"UPDATE {table} SET {seen} = {seen} - interval '1 minute'"
        if table == "procrastinate_workers":
            changed += " FROM queue_workers WHERE worker = id AND"
        else:
            changed += " WHERE"
        assert queues.execute(f"{changed} description LIKE '%process {process}' RETURNING 1") == [
            (1,)
        ]


# --- ends of processes ----------------------------------------------------------------------------


def test_a_killed_worker_is_detected_and_only_idempotent_calls_are_repeated(queues: Queues) -> None:
    with ThreadPoolExecutor(2) as pool, queues.worker("spare", "--concurrency", "2") as first:
        repeated = start(pool, queues, "spare.put", text="repeated", seconds=2)
        interrupted = start(pool, queues, "spare.note", text="interrupted", seconds=2)
        assert eventually(lambda: {"repeated", "interrupted"} <= {*queues.notes})
        first.kill()
        expire(queues, "procrastinate_workers", "last_heartbeat", first.process.pid)
        with queues.worker("spare"):
            assert repeated.result(LOST_SECONDS) == {"ok": True, "value": "repeated"}
            error = interrupted.result(LOST_SECONDS)["error"]
    assert (error["type"], error["code"]) == ("interrupted", "worker_lost")
    assert [queues.notes.count(text) for text in ("repeated", "interrupted")] == [2, 1]


def test_a_worker_that_lost_its_jobs_while_it_was_suspended_changes_nothing(queues: Queues) -> None:
    with ThreadPoolExecutor(2) as pool, queues.worker("spare", "--concurrency", "2") as first:
        repeated = start(pool, queues, "spare.put", text="taken over", seconds=2)
        interrupted = start(pool, queues, "spare.note", text="given up", seconds=2)
        assert eventually(lambda: {"taken over", "given up"} <= {*queues.notes})
        first.process.send_signal(signal.SIGSTOP)
        expire(queues, "procrastinate_workers", "last_heartbeat", first.process.pid)
        assert interrupted.result(LOST_SECONDS)["error"]["code"] == "worker_lost"
        with queues.worker("spare"):
            assert eventually(lambda: queues.notes.count("taken over") == 2)
            first.process.send_signal(signal.SIGCONT)
            assert eventually(lambda: first.log.count("discarded") == 2), first.log
            assert repeated.result(LOST_SECONDS) == {"ok": True, "value": "taken over"}
    assert queues.notes.count("given up") == 1


def test_a_job_whose_delivery_was_lost_is_executed(queues: Queues) -> None:
    with ThreadPoolExecutor(1) as pool, queues.worker("spare") as worker:
        worker.process.send_signal(signal.SIGSTOP)
        undelivered = start(pool, queues, "spare.note", text="undelivered")
        queues.execute(
            "UPDATE procrastinate_jobs SET status = 'doing', worker_id = (SELECT max(worker) FROM"
            " queue_workers) WHERE status = 'todo' AND queue_name = 'spare'"
        )
        worker.process.send_signal(signal.SIGCONT)
        assert undelivered.result(TIMEOUT_SECONDS) == {"ok": True, "value": "undelivered"}


def test_a_stopped_worker_completes_its_call(queues: Queues) -> None:
    with ThreadPoolExecutor(1) as pool, queues.worker("spare") as first:
        completed = start(pool, queues, "spare.note", text="completed", seconds=3)
        assert eventually(lambda: "completed" in queues.notes)
        first.process.terminate()
        worker = (
            "FROM queue_workers WHERE worker = id AND description LIKE '%process"
            f" {first.process.pid}'"
        )
        queues.execute(
            "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '5 seconds'"
            f" {worker}"
        )
        fresh = (
            "SELECT count(last_heartbeat > now() - interval '4 seconds' OR NULL) FROM"
            " procrastinate_workers,"
        )
        fresh += worker.removeprefix("FROM")
        assert eventually(lambda: queues.execute(fresh) == [(1,)])
        assert completed.result(TIMEOUT_SECONDS) == {"ok": True, "value": "completed"}
        assert first.process.wait(TIMEOUT_SECONDS) == 0
        assert queues.execute(fresh) == [(0,)]


def test_cancelled_and_timed_out_calls_end_on_the_worker(
    queues: Queues, worker: QueueProcess
) -> None:
    first = queues.replicas[0]
    with make_client(str(first.rest.client.base_url)) as client, suppress(httpx2.TimeoutException):
        body = {"args": {"text": "cancelled", "seconds": 25}}
        client.post("/api/tools/heavy.note/call", json=body, timeout=1.5)
    query = (
        "SELECT status::text, result IS NULL FROM procrastinate_jobs AS job JOIN jobs ON number ="
        " job.id"
    )
    query += " ORDER BY number DESC LIMIT 1"
    assert eventually(lambda: queues.execute(query) == [("aborted", True)])
    assert eventually(lambda: "job.cancelled" in worker.log, 5), worker.log
    with queues.worker("brief") as brief:
        error = fail(first, "brief.note", text="late", seconds=25)
        assert error["type"] == "timeout"
        assert call(first, "brief.add", a=1) == 2
        assert brief.process.poll() is None


def test_a_stopped_worker_returns_idempotent_calls_that_take_too_long(queues: Queues) -> None:
    with ThreadPoolExecutor(2) as pool:
        with queues.worker("spare", "--concurrency", "2", "--grace", "0.2") as first:
            returned = start(pool, queues, "spare.put", text="returned", seconds=3)
            stopped = start(pool, queues, "spare.note", text="stopped", seconds=3)
            assert eventually(lambda: {"returned", "stopped"} <= {*queues.notes})
            assert first.terminate() == 0
        error = stopped.result(TIMEOUT_SECONDS)["error"]
        assert (error["type"], error["code"]) == ("interrupted", "worker_lost")
        with queues.worker("spare"):
            assert returned.result(TIMEOUT_SECONDS) == {"ok": True, "value": "returned"}
    assert [queues.notes.count(text) for text in ("returned", "stopped")] == [2, 1]


# --- background -----------------------------------------------------------------------------------


def test_a_result_in_the_background_is_readable_on_another_replica(
    queues: Queues, worker: QueueProcess
) -> None:
    first, second = queues.replicas
    handle = run(first, "ot.background('heavy.note', text='behind', seconds=1)")
    assert handle.startswith("r_")
    assert run(second, f"ot.run_result('{handle}', wait=10)") == "behind"
    assert queues.notes.count("behind") == 1
    assert worker.process.poll() is None


@pytest.mark.usefixtures("worker")
def test_a_background_call_survives_its_replica(queues: Queues) -> None:
    work, home = queues.replicas[0].work, queues.directory / "home-killed"
    prepare_home(home, work, SETTINGS)
    with start_replica(home, work, queues.replica_url) as third:
        handle = run(third, "ot.background('heavy.note', text='restarted', seconds=2)")
        assert eventually(lambda: "restarted" in queues.notes)
        third.process.terminate()
        third.process.wait(TIMEOUT_SECONDS)
    with start_replica(home, work, queues.replica_url) as third:
        assert run(third, f"ot.run_result('{handle}', wait=10)") == "restarted"
        handle = run(third, "ot.background('heavy.note', text='survived', seconds=2)")
        assert eventually(lambda: "survived" in queues.notes)
        third.kill()
        expire(queues, "servers", "seen", third.process.pid)
    deadline = time.monotonic() + HANDOVER_SECONDS
    while (shown := run(queues.replicas[1], f"ot.run_result('{handle}', wait=5)")).startswith(
        "running"
    ):
        assert time.monotonic() < deadline, shown
    assert shown == "survived"
    assert [queues.notes.count(text) for text in ("restarted", "survived")] == [1, 1]


# --- the database ---------------------------------------------------------------------------------


def test_jobs_that_ended_are_deleted_after_a_while(queues: Queues, worker: QueueProcess) -> None:
    """A replica deletes old jobs after its first call, and then every minute."""
    call(queues.replicas[0], "heavy.add", a=1)
    queues.execute("UPDATE procrastinate_events SET at = at - interval '2 days'")
    work, home = queues.replicas[0].work, queues.directory / "home-deleting"
    prepare_home(home, work, SETTINGS)
    with start_replica(home, work, queues.replica_url) as third:
        call(third, "heavy.add", a=1)
        ended = "SELECT count(*) FROM jobs WHERE result IS NOT NULL"
        assert eventually(lambda: queues.execute(ended) == [(1,)], 15)
        finished = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"
        assert queues.execute(finished) == [(1,)]
    assert worker.process.poll() is None


def test_calls_survive_a_restart_of_the_database(tmp_path: Path) -> None:
    with run_postgres(is_durable=True) as server, ThreadPoolExecutor(1) as pool:
        url = server.url(server.create_database())
        work = tmp_path / "work" / "packs"
        write_heavy(work, tmp_path, "heavy")
        with (
            start_replicas(tmp_path, url, 1, SETTINGS) as (replica,),
            run_worker(tmp_path, url) as worker,
        ):
            slow = pool.submit(replica.call, "heavy.note", text="slow", seconds=4)
            assert eventually(lambda: "slow" in list_notes(tmp_path))
            server.stop("immediate")
            time.sleep(1)
            server.start()
            assert slow.result(30).json() == {"ok": True, "value": "slow"}
            assert eventually(lambda: replica.call("heavy.add", a=1).json().get("value") == 2, 20)
            assert worker.terminate() == 0
        assert list_notes(tmp_path) == ["slow"]
