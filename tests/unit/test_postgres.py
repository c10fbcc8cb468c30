"""PostgreSQL: migrations, roles, keys, leases and limits."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from tests.postgres_support import PostgresServer, get_database
from tests.support import TIMEOUT_SECONDS, eventually

from onetool.errors import CallRejected, StorageError, ToolError
from onetool.runs.results.blobs import Media
from onetool.runs.results.store import StoredResults
from onetool.settings.access import Token
from onetool.settings.model import Output
from onetool.state.changes import Changes
from onetool.state.counters import CounterTables
from onetool.state.credentials import CredentialKey
from onetool.state.document_kinds import SavedSnippet
from onetool.state.documents import StoreUnavailable
from onetool.state.listener import Leases
from onetool.state.opening import open_postgres
from onetool.state.postgres_database import Database
from onetool.state.replica_kinds import AuditRows, NoticeRows
from onetool.state.run_records import CallState, DurableCall, RunRecord, RunState
from onetool.state.schema import (
    MIGRATIONS,
    VERSION,
    Migration,
    migrate,
    read_version,
    render_grants,
)
from onetool.state.storage import State

KEY, OTHER_KEY = "11" * 32, "22" * 32


@pytest.fixture
def open_state(postgres_url: str, tmp_path: Path) -> Iterator[Callable[..., State]]:
    """Yield a function that opens the state as one more replica does."""
    opened: list[State] = []

    def open_replica(
        key: str = KEY, url: str = postgres_url, changes: Changes | None = None
    ) -> State:
        state = open_postgres(url, key, tmp_path / f"cache-{len(opened)}", changes=changes)
        opened.append(state)
        return state

    yield open_replica
    for state in opened:
        state.close()


def read_tables(url: str) -> list[tuple[object, ...]]:
    query = """
    SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns
    WHERE table_schema LIKE 'onetool%' ORDER BY 1, 2, 3
    """
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def test_servers_that_migrate_at_once_wait_for_each_other(postgres_url: str) -> None:
    def start(_number: int) -> int:
        with Database(postgres_url, KEY) as database:
            ((count,),) = database.select("SELECT count(*) FROM schema_versions")
            return int(count)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(start, range(4))) == [VERSION] * 4


def test_a_newer_schema_is_rejected_and_not_changed_and_a_compatible_one_is_used(
    postgres_url: str,
) -> None:
    added = Migration("ALTER TABLE pins_added ADD COLUMN more text", compatible=1)
    compatible = (
        *MIGRATIONS,
        Migration("CREATE TABLE pins_added (name text)", compatible=1),
        added,
    )
    breaking = (
        *compatible,
        Migration("ALTER TABLE pins_added DROP COLUMN more", compatible=len(compatible) + 1),
    )
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        migrate(connection, "it")
        migrate(connection, "it", compatible)
        with Database(postgres_url, KEY) as older:
            assert older.select("SELECT count(*) FROM pins_added") == [(0,)]
        migrate(connection, "it", breaking)
        before = read_tables(postgres_url)
        with (
            Database(postgres_url, KEY) as older,
            pytest.raises(ToolError, match="was written by a newer OneTool"),
        ):
            older.select("SELECT 1")
        with pytest.raises(ToolError, match="was written by a newer OneTool"):
            migrate(connection, "it")
        assert read_version(connection) == (len(breaking), len(breaking))
    assert read_tables(postgres_url) == before


def test_a_failed_migration_changes_nothing(postgres_url: str) -> None:
    broken = (*MIGRATIONS, Migration("CREATE TABLE half (name text); SELECT 1 / 0", compatible=1))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate(connection, "it", broken)
        assert read_version(connection) == (0, 0)


def test_each_role_can_do_what_it_needs_and_nothing_else(
    postgres_server: PostgresServer, open_state: Callable[..., State], postgres_url: str
) -> None:
    name, suffix = postgres_url.rpartition("/")[2], str(time.time_ns())
    replica, worker = f"replica_{suffix}", f"worker_{suffix}"
    postgres_server.execute(f"CREATE ROLE {replica} LOGIN", f"CREATE ROLE {worker} LOGIN")
    state = open_state(url=postgres_server.url(name, replica))
    with pytest.raises(ToolError, match="has no tables"):  # only the migration role creates them
        state.pins.names()
    open_state().pins.names()
    for _ in range(2):  # it is executed after each upgrade
        postgres_server.execute(render_grants(replica, worker), database=name)
    state = open_state(url=postgres_server.url(name, replica))
    handle = StoredResults.open(state, Output()).put("of the replica", tool="t")["handle"]
    state.runs.put_run(RunRecord("r_1", "default", "1"))
    state.recorder.flush()
    state.audit(Path(), str).write("call.started")
    with pytest.raises(StorageError, match="permission denied"):
        get_database(state).execute("DELETE FROM audit")
    with pytest.raises(StorageError, match="permission denied"):
        get_database(state).execute("CREATE TABLE onetool.more (id integer)")
    with Database(postgres_server.url(name, worker), KEY) as of_worker:
        assert of_worker.select("SELECT count(*) FROM chunks") == [(0,)]  # none of its own
        of_worker.execute(
            "INSERT INTO chunks (handle, part, number, data) VALUES ('h', 'txt', 0, 'x')"
        )
        assert of_worker.select("SELECT handle FROM chunks") == [("h",)]
        for table in ("keys", "runs", "documents", "audit"):
            with pytest.raises(StorageError, match="permission denied"):
                of_worker.select(f"SELECT * FROM {table}")
        with pytest.raises(StorageError, match="row-level security"):
            of_worker.execute(
                "INSERT INTO chunks (handle, part, number, data, writer) VALUES ('i', 'txt', 0,"
                " 'x', ?)",
                (replica,),
            )
    assert StoredResults.open(state, Output()).load(handle) == "of the replica"


def test_tokens_that_were_written_without_the_key_are_rejected(
    open_state: Callable[..., State],
) -> None:
    state = open_state(KEY)
    for name in ("raised", "copied", "kept"):
        assert state.tokens.create(Token(name=name, hash=f"hash of {name}")) == ()
    assert [token.hash for token in state.tokens.apply([])] == [
        "hash of copied",
        "hash of kept",
        "hash of raised",
    ]
    raised, kept = (
        "version = version + 1 WHERE name = 'raised'",
        "SELECT content FROM documents WHERE name = 'kept'",
    )
    get_database(state).execute(f"UPDATE documents SET content = content || 'x'::bytea, {raised}")
    get_database(state).execute(
        f"UPDATE documents SET content = ({kept}), version = version + 1 WHERE name = 'copied'"
    )
    get_database(state).execute("INSERT INTO documents VALUES ('tokens', 'forged', 1, 'forged')")
    forged = Token(name="forged", hash="hash of the settings")
    assert [token.name for token in state.tokens.apply([forged])] == ["kept"]
    assert [token.name for token in open_state(f"{OTHER_KEY},{KEY}").tokens.apply([])] == ["kept"]


def test_snippets_and_pins_that_were_written_without_the_key_are_rejected(
    open_state: Callable[..., State],
) -> None:
    state = open_state(KEY)
    state.snippets.put(SavedSnippet("default", "hello", "", "'secret code'"))
    state.pins.update("gh", lambda _: {"read": {"hash": "1"}})
    state.pins.update("other", lambda _: {"write": {"hash": "2"}})
    database = get_database(state)
    assert b"secret" not in b"".join(
        row[0] for row in database.select("SELECT content FROM documents")
    )
    database.execute(
        "UPDATE documents SET content = (SELECT content FROM documents WHERE name = 'other'),"
        " version = version + 1 WHERE name = 'gh'"
    )
    database.execute(
        "UPDATE documents SET content = 'forged', version = version + 1 WHERE kind = 'snippets'"
    )
    replica = open_state(KEY)
    for read in (lambda: replica.pins.get("gh"), replica.snippets.list_all):
        with pytest.raises(StorageError, match="was changed, or was not sealed with"):
            read()
    assert replica.pins.get("other") == {"write": {"hash": "2"}}


def test_a_key_is_replaced_without_losing_what_it_sealed(open_state: Callable[..., State]) -> None:
    open_state(KEY).runs.put_run(RunRecord("r_1", "default", "secret code"))
    with pytest.raises(StorageError, match="ONETOOL_KEY"):
        open_state(OTHER_KEY).runs.get_run("r_1")
    shared = open_state(KEY).load_key("request state")
    both = open_state(f"{OTHER_KEY},{KEY}")  # what every replica has while the key is replaced
    assert both.runs.get_run("r_1")
    assert both.load_key("request state") == shared
    get_database(both).select("SELECT handle FROM sessions")
    after = open_state(OTHER_KEY)
    found = after.runs.get_run("r_1")
    assert found is not None
    assert found.code == "secret code"
    assert after.load_key("request state") == shared
    for key in ("", "abc", "zz" * 32):
        with pytest.raises(ToolError, match="ONETOOL_KEY"):
            open_state(key).runs.list_runs()
    rows = get_database(after).select("SELECT sealed FROM runs")
    assert b"secret" not in rows[0][0]


def test_a_replica_that_lost_its_lease_sends_no_more_calls(
    open_state: Callable[..., State], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_state(), open_state()
    sent = DurableCall(1, "t", "{}", "key", 0, CallState.SENT)
    first.runs.put_run(RunRecord("r_1", "default", "1", owner=first.runs.owner))
    assert not second.runs.claim("r_1", second.runs.owner)
    assert second.runs.list_orphans() == []
    with monkeypatch.context() as patched:
        patched.setattr(Leases, "SECONDS", 0.0)
        assert second.runs.list_orphans() == ["r_1"]
        assert second.runs.claim("r_1", second.runs.owner)
    with pytest.raises(CallRejected, match="another replica has continued"):
        first.runs.write_calls("r_1", [sent])
    first.runs.set_state("r_1", RunState.FAILED, outcome="of the first")
    first.runs.end_runs([("r_1", [], RunState.FAILED)])
    first.runs.set_state("r_1", RunState.HALTED)
    continued = second.runs.get_run("r_1")
    assert continued is not None
    assert (continued.state, continued.outcome) == (RunState.RUNNING, None)
    second.runs.write_calls("r_1", [sent])
    second.runs.set_state("r_1", RunState.DONE)
    assert not first.runs.claim("r_1", first.runs.owner)


def test_one_of_many_replicas_claims_a_run(open_state: Callable[..., State]) -> None:
    replicas = [open_state() for _ in range(4)]
    replicas[0].runs.put_run(RunRecord("r_1", "default", "1", owner="gone"))
    together = threading.Barrier(len(replicas))

    def claim(state: State) -> bool:
        together.wait()
        return state.runs.claim("r_1", state.runs.owner)

    with ThreadPoolExecutor(len(replicas)) as pool:
        assert sum(pool.map(claim, replicas)) == 1


def test_rate_limits_and_budgets_are_exact_across_replicas(
    open_state: Callable[..., State],
) -> None:
    replicas = [CounterTables(get_database(open_state())) for _ in range(3)]

    def take(number: int) -> bool:
        return replicas[number % 3].take("tool", 10, 60) == 0

    def reserve(number: int) -> bool:
        return replicas[number % 3].reserve("calls", 1, 10)[0]

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(24))) == 10
        assert sum(pool.map(reserve, range(24))) == 10
    assert 0 < replicas[0].take("tool", 10, 60) <= 60
    replicas[1].settle("calls", -1)
    assert replicas[2].reserve("calls", 1, 10) == (True, 10)
    assert replicas[0].reserve("calls", 1, 10) == (False, 10)
    assert replicas[0].take("other", 0, 60) == 60


def test_credentials_are_encrypted_and_changed_by_one_replica_at_a_time(
    open_state: Callable[..., State],
) -> None:
    replicas = [open_state() for _ in range(4)]
    key = CredentialKey("https://resource", "account")

    def add(number: int) -> None:
        replicas[number % 4].credentials.update(key, lambda known: (known or "secret") + "+")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(16)))
    credentials = replicas[0].credentials
    assert credentials.get(key) == "secret" + "+" * 16
    assert credentials.list_keys() == [key]
    ((name, sealed),) = get_database(replicas[0]).select(
        "SELECT name, content FROM documents WHERE kind = 'credentials'"
    )
    assert not any(text in sealed + name.encode() for text in (b"secret", b"resource"))
    assert credentials.get(key._replace(account="other")) is None
    assert credentials.update(key, lambda _: None) is None
    assert credentials.list_keys() == []


def test_changes_reach_followers_by_notification_and_after_a_lost_connection(
    open_state: Callable[..., State], postgres_server: PostgresServer, postgres_url: str
) -> None:
    writer, follower = open_state(), open_state()
    follower.start()
    assert follower.wait(TIMEOUT_SECONDS)
    writer.disabled_tools.set("a.b", on=False)
    assert eventually(lambda: "a.b" in follower.disabled_tools.off(), 2)
    name = postgres_url.rpartition("/")[2]
    end = (
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND query"
        " LIKE '%'"
    )
    postgres_server.execute(f"{end} AND pid <> pg_backend_pid()")
    writer = open_state()
    writer.disabled_tools.set("a.c", on=False)
    assert eventually(lambda: "a.c" in follower.disabled_tools.off())
    assert follower.problem is None


def wait_for_polls(feed: Changes) -> None:
    """Wait until the database was polled twice more."""
    runs = feed.number("runs")
    assert eventually(lambda: feed.number("runs") > runs + 1)


def test_each_change_is_reported_once_in_each_process_also_in_the_one_that_made_it(
    open_state: Callable[..., State],
) -> None:
    feeds = [Changes(), Changes()]
    first, second = replicas = [open_state(changes=feed) for feed in feeds]
    for replica in replicas:
        replica.start()
        assert replica.wait(TIMEOUT_SECONDS)
    before = [feed.number("disabled") for feed in feeds]
    for number in range(3):
        first.disabled_tools.set(f"a.{number}", on=False)
        assert feeds[0].number("disabled") == before[0] + number + 1  # at once
        assert f"a.{number}" in first.disabled_tools.off()
    assert eventually(lambda: "a.2" in second.disabled_tools.off())
    wait_for_polls(feeds[1])  # a change is loaded before it is reported
    known = feeds[1].number("disabled")
    assert 1 <= known - before[1] <= 3
    second.disabled_tools.set("b", on=False)
    assert eventually(
        lambda: "b" in first.disabled_tools.off()
    )  # what it had made itself was polled before
    assert feeds[0].number("disabled") == before[0] + 4
    wait_for_polls(feeds[1])
    assert feeds[1].number("disabled") == known + 1


def test_a_change_that_cannot_be_loaded_at_once_is_loaded_by_the_next_poll(
    open_state: Callable[..., State], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = open_state()
    state.start()
    assert state.wait(TIMEOUT_SECONDS)
    cached = state.disabled_tools._names
    load = cached._load
    failures = [StoreUnavailable("away")]

    def fail_once() -> frozenset[str]:
        if failures:
            raise failures.pop()
        return load()

    monkeypatch.setattr(cached, "_load", fail_once)
    state.disabled_tools.set("a.b", on=False)
    assert not failures
    assert eventually(lambda: "a.b" in state.disabled_tools.off())


def test_errors_show_no_password() -> None:
    url = "postgresql://me:s3cret@127.0.0.1:1/db?sslpassword=hid"
    with Database(url, KEY) as database, pytest.raises(StorageError) as caught:
        database.select("SELECT 1")
    assert caught.value.fields["code"] == "store_unavailable"
    assert caught.value.fields["is_retryable"] is True
    assert "s3cret" not in str(caught.value)
    assert "hid" not in str(caught.value)
    with (
        Database(url.replace("s3cret", "s3%cret"), KEY) as invalid,
        pytest.raises(StorageError) as caught,
    ):
        invalid.select("SELECT 1")
    assert "cret" not in str(caught.value)  # libpq quotes what it cannot decode


def test_a_wrong_clock_of_a_replica_expires_nothing(
    open_state: Callable[..., State], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, exact = Output(result_ttl=3600), open_state()
    handle = StoredResults.open(exact, output).put("kept", tool="t")["handle"]
    media = Media.open(exact, output).put(b"kept", "image/png", "default")
    session = exact.sessions.create()
    exact.runs.put_run(
        RunRecord("r_1", "default", "1", state=RunState.WAITING, expires=exact.runs.now() + 60)
    )
    true_time = time.time
    monkeypatch.setattr(
        time, "time", lambda: true_time() + 30 * 86_400
    )  # nothing else of the machine can be wrong
    ahead = open_state()
    ahead.start()
    assert ahead.wait(TIMEOUT_SECONDS)
    assert abs(ahead.runs.now() - true_time()) < 5
    results = StoredResults.open(ahead, output)
    results.put("of a replica whose clock is a month ahead", tool="t")  # sweeps
    assert results.load(handle) == "kept"
    assert Media.open(ahead, output).get(media, "default").data == b"kept"
    ahead.sessions.create()  # sweeps
    assert ahead.sessions.list_keys(session) == []
    assert ahead.runs.delete_expired(ahead.runs.now()) == 0
    assert StoredResults.open(exact, output).load(handle) == "kept"


def test_old_records_of_the_audit_log_and_old_messages_are_deleted(
    open_state: Callable[..., State], postgres_server: PostgresServer, postgres_url: str
) -> None:
    name, replica = postgres_url.rpartition("/")[2], f"replica_{time.time_ns()}"
    open_state().pins.names()
    postgres_server.execute(f"CREATE ROLE {replica} LOGIN")
    postgres_server.execute(render_grants(replica, replica), database=name)
    database, megabyte = get_database(open_state()), "repeat('x', 1 << 20)"
    database.execute(f"INSERT INTO audit (record) SELECT {megabyte} FROM generate_series(1, 120)")
    records = open_state(url=postgres_server.url(name, replica)).audit(Path(), str)
    records.max_bytes, records.keep = (
        1 << 20,
        0,
    )  # a replica cannot delete the last 100 MiB, whatever it asks for
    records.event("call")
    assert eventually(lambda: database.select("SELECT count(*), min(id) FROM audit") == [(100, 22)])
    records.max_bytes = 1 << 40
    assert isinstance(records, AuditRows)
    assert (records.trim(), records.problem) == (0, None)
    records.close()
    notices = open_state().notices(1000)
    assert isinstance(notices, NoticeRows)
    for number in range(5):
        notices.append("a.yaml", bytes([number]) * 300)
        notices.append("b.yaml", b"kept")
    assert notices.read("a.yaml") == b"".join(bytes([number]) * 300 for number in (2, 3, 4))
    assert notices.read("b.yaml") == b"kept" * 5


def test_a_replica_notices_that_a_newer_one_has_changed_the_tables(
    open_state: Callable[..., State], postgres_url: str
) -> None:
    replica = open_state()
    replica.start()
    assert replica.wait(TIMEOUT_SECONDS)
    compatible = (*MIGRATIONS, Migration("CREATE TABLE added (name text)", compatible=1))
    breaking = (*compatible, Migration("DROP TABLE added", compatible=len(compatible) + 1))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        migrate(connection, "it", compatible)
        assert replica.pins.names() == []
        migrate(connection, "it", breaking)
    assert eventually(lambda: "was written by a newer OneTool" in (replica.problem or ""))
    with pytest.raises(StorageError):
        replica.pins.update("server", lambda _: {"tool": {}})
