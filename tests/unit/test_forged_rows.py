"""PostgreSQL: rows that were written, replayed or deleted by somebody without `ONETOOL_KEY`."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.bundles_support import bundle_body, list_slugs, new_bundle, open_store, tool_body
from tests.postgres_support import PostgresServer, get_database, get_settings
from tests.support import TIMEOUT_SECONDS, eventually

from onetool.errors import ApprovalRequired, BundleError, CallRejected, StorageError
from onetool.settings.access import Token
from onetool.settings.contents import StoredSettings
from onetool.sources.bundles import BundleStore
from onetool.sources.bundles.source import open_bundles as open_bundle_store
from onetool.state.document_kinds import EVERYTHING
from onetool.state.opening import open_postgres
from onetool.state.postgres_database import Database
from onetool.state.run_records import CallState, Decision, DurableCall, Grant, RunRecord
from onetool.state.schema import render_grants
from onetool.state.storage import State

KEY = "11" * 32
Open = Callable[[], State]
OpenBundles = Callable[[], BundleStore]
FORGE = """
UPDATE documents SET content = (SELECT content FROM documents WHERE kind = 'bundles' AND name LIKE ?), version = ?
WHERE kind = 'bundles' AND name LIKE ?
"""
FORGE_ALL = "UPDATE documents SET content = 'forged', version = version + 1"
SEALED = "SELECT content FROM documents WHERE kind = ? AND name LIKE ?"


@pytest.fixture
def open_state(postgres_url: str, tmp_path: Path) -> Iterator[Open]:
    """Yield a function that opens the state as one more replica does."""
    opened: list[State] = []

    def open_replica() -> State:
        state = open_postgres(postgres_url, KEY, tmp_path / f"cache-{len(opened)}")
        opened.append(state)
        return state

    yield open_replica
    for state in opened:
        state.close()


@pytest.fixture
def open_bundles(open_state: Open, tmp_path: Path) -> Iterator[OpenBundles]:
    """Yield a function that opens the bundles as one more replica does.

    One bundle with two tools is built in.
    """
    opened: list[BundleStore] = []
    with open_store(tmp_path / "shipped") as shipped:
        bundle = new_bundle(shipped, "essentials")
        for slug in ("first", "second"):
            shipped.put_tool(bundle, slug, "1", tool_body())

    def open_replica() -> BundleStore:
        opened.append(open_bundle_store(open_state(), tmp_path, 1_000, tmp_path / "shipped"))
        return opened[-1]

    yield open_replica
    for store in opened:
        store.close()


def announce(state: State, kind: str) -> int:
    """Count a change, as anybody who can write the database can do."""
    with get_database(state).transaction() as transaction:
        return transaction.announce(kind)


def is_everything_off(state: State) -> bool:
    return state.disabled_tools.off() == {EVERYTHING}


def own_slugs(store: BundleStore) -> list[str]:
    return [tool.slug for tool in store.list_tools(size=256).items if not tool.is_built_in]


def test_forged_tools_are_not_loaded_and_reported_until_they_are_stored_again(
    open_state: Open, open_bundles: OpenBundles
) -> None:
    database, follower = get_database(open_state()), open_bundles()
    bundle = new_bundle(follower, "rain")
    for slug in ("kept", "copied", "replayed", "removed"):
        follower.put_tool(bundle, slug, "1", tool_body())
    ((old,),) = database.select(SEALED, "bundles", "%/replayed@1.json")
    follower.set_tool_enabled(bundle, "replayed", "1", False)
    generation = announce(open_state(), "bundles")
    database.execute(FORGE, ("%/kept@1.json", generation, "%/copied@1.json"))
    replay = (
        "UPDATE documents SET content = ?, version = ? WHERE kind = 'bundles' AND name LIKE"
        " '%/replayed@1.json'"
    )
    database.execute(replay, (old, generation))
    remove = (
        "UPDATE documents SET content = '', version = ? WHERE kind = 'bundles' AND name LIKE"
        " '%/removed@1.json'"
    )
    database.execute(remove, (generation,))
    outside = follower._directory.root.parent / "outside.json"
    outside.touch()
    for name in ("../outside.json", f"rain-{bundle}/added@1.json", "x" * 5_000):
        database.execute(
            "INSERT INTO documents VALUES ('bundles', ?, ?, 'forged')", (name, generation)
        )
    for store in (follower, open_bundles()):
        assert own_slugs(store) == ["kept"]
        (problem,) = store.problems
        assert "changed without ONETOOL_KEY" in problem.message
        assert "copied@1.json" in problem.message
        assert "1 more" in problem.message
        assert "store these bundles and tools again" in problem.hint
    assert outside.exists()
    follower.put_tool(bundle, "copied", "1", tool_body())
    follower.put_tool(bundle, "added", "1", tool_body())
    follower.delete_tool(bundle, "added", "1")
    assert own_slugs(follower) == ["kept", "copied"]
    (problem,) = follower.problems
    assert "copied@1.json" not in problem.message
    assert "added@1.json" not in problem.message
    database.execute(
        "DELETE FROM documents WHERE kind = 'bundles' AND (content = 'forged' OR content IN"
        " ('', ?))",
        (old,),
    )
    for store in (follower, open_bundles()):
        assert own_slugs(store) == ["kept", "copied"]
        assert store.problems == []


def test_a_forged_bundle_is_not_used_and_can_be_stored_again(
    open_state: Open, open_bundles: OpenBundles
) -> None:
    store = open_bundles()
    bundle = new_bundle(store, "rain", isEnabled=False)
    generation = announce(open_state(), "bundles")
    get_database(open_state()).execute(
        "UPDATE documents SET content = 'forged', version = ? WHERE name LIKE '%/bundle.json'",
        (generation,),
    )
    assert store.bundle_by_slug("rain") is None
    assert len(store.problems) == 1
    store.put_bundle(bundle, bundle_body("rain"))
    for replica in (store, open_bundles()):
        assert replica.bundle_by_slug("rain") is not None
        assert replica.problems == []


@pytest.mark.parametrize("attack", ["DELETE FROM documents", FORGE_ALL])
def test_built_in_bundles_are_disabled_if_it_is_unknown_which_were(
    attack: str, open_state: Open, open_bundles: OpenBundles
) -> None:
    store = open_bundles()
    (built_in,) = store.list_bundles().items
    store.set_tool_enabled(built_in.id, "first", "1", False)
    assert list_slugs(open_bundles()) == ["second"]
    get_database(open_state()).execute(
        f"{attack} WHERE kind = 'bundles' AND name = 'builtins.json'"
    )
    replica = open_bundles()
    assert list_slugs(replica) == []
    assert any(
        "builtins.json" in problem.message and "ONETOOL_KEY" in problem.message
        for problem in replica.problems
    )


@pytest.mark.parametrize(
    "attack",
    [
        f"{FORGE_ALL} WHERE kind = 'disabled'",
        "DELETE FROM documents WHERE kind = 'disabled'",
        "DELETE FROM keys WHERE name = 'values'; DELETE FROM documents",
    ],
)
def test_without_an_authentic_list_all_tools_are_disabled(attack: str, open_state: Open) -> None:
    writer, follower = open_state(), open_state()
    follower.start()
    assert follower.wait(TIMEOUT_SECONDS)
    writer.disabled_tools.set("a.b", on=False)
    assert eventually(lambda: follower.disabled_tools.off() == {"a.b"})
    get_database(writer).execute(attack)
    announce(writer, "disabled")
    for state in (follower, open_state()):
        assert eventually(partial(is_everything_off, state))
        assert state.disabled_tools.problem is not None
        assert "all tools are disabled" in state.disabled_tools.problem.message
        assert "backup" in state.disabled_tools.problem.hint
        with pytest.raises(BundleError):
            state.disabled_tools.set("a.b", on=True)
    assert follower.problem is None, "the database answers"


def test_an_ended_session_does_not_return(open_state: Open) -> None:
    state = open_state()
    database = get_database(state)
    until, expired = database.now() + 60, database.now() - 10_000
    for identifier, end in (("old", expired), ("first", until), ("second", until)):
        state.ended_sessions.end(identifier, end)
    assert open_state().ended_sessions.list_all() == {"first", "second"}
    assert state.ended_sessions.problem is None
    for attack in (FORGE_ALL, "DELETE FROM documents"):
        database.execute(f"{attack} WHERE kind = 'ended session'")
        replica = open_state()
        with pytest.raises(StorageError):
            replica.ended_sessions.list_all()
        assert replica.ended_sessions.problem is not None
        assert "no browser session is valid" in replica.ended_sessions.problem.message
    key = state.load_key("browser sessions")
    database.execute("DELETE FROM keys WHERE name = 'browser sessions'")
    replica = open_state()
    assert replica.ended_sessions.list_all() == frozenset()
    assert replica.load_key("browser sessions") != key, (
        "sessions that have ended cannot be opened any more"
    )


def test_deleted_settings_are_missed(open_state: Open) -> None:
    state = open_state()
    assert not state.settings.refresh().problem
    get_database(state).execute("DELETE FROM documents WHERE kind = 'settings'")
    assert "was deleted" in open_state().settings.refresh().problem


# --- rows that were rolled back -------------------------------------------------------------------


class RollBack:
    """Somebody with the role of the replicas, but without the key, who keeps rows and puts them
    back.
    """

    def __init__(self, server: PostgresServer, url: str, owner: State) -> None:
        database = url.rpartition("/")[2]
        replica, worker = f"replica_{database}", f"worker_{database}"
        server.execute(f"CREATE ROLE {replica} LOGIN", f"CREATE ROLE {worker} LOGIN")
        owner.pins.names()  # creates the tables
        server.execute(render_grants(replica, worker), database=database)
        self.url = server.url(database, replica)
        self._database = Database(self.url)

    def keep(self, table: str, where: str) -> tuple[object, ...]:
        (row,) = self._database.select(f"SELECT * FROM {table} WHERE {where}")
        return row

    def put_back(self, table: str, where: str, row: tuple[object, ...]) -> None:
        """Replace the row that is stored now, with an update and with a deletion, as far as the
        database permits it.
        """
        (now,) = self._database.select(f"SELECT row_to_json(t) FROM {table} t WHERE {where}")
        columns = ", ".join(f'"{name}"' for name in now[0])
        marks = ", ".join("?" * len(row))
        for statements in (
            [(f"UPDATE {table} SET ({columns}) = ({marks}) WHERE {where}", row)],
            [
                (f"DELETE FROM {table} WHERE {where}", ()),
                (f"INSERT INTO {table} VALUES ({marks})", row),
            ],
        ):
            with suppress(StorageError), self._database.transaction() as transaction:
                for statement, values in statements:
                    transaction.execute(statement, values)

    def close(self) -> None:
        self._database.close()


@pytest.fixture
def roll_back(
    postgres_server: PostgresServer, postgres_url: str, open_state: Open
) -> Iterator[RollBack]:
    with closing(RollBack(postgres_server, postgres_url, open_state())) as attacker:
        yield attacker


def test_a_revoked_token_does_not_return(open_state: Open, roll_back: RollBack) -> None:
    state = open_state()
    token = Token(name="laptop", hash="11", agent="default")
    assert state.tokens.create(token) == ()
    row = roll_back.keep("documents", "kind = 'tokens' AND name = 'laptop'")
    assert state.tokens.revoke("laptop", [token])
    roll_back.put_back("documents", "kind = 'tokens' AND name = 'laptop'", row)
    for replica in (state, open_state()):
        assert replica.tokens.apply([token]) == []


def test_disabled_tools_settings_and_ended_sessions_do_not_return(
    open_state: Open, roll_back: RollBack
) -> None:
    state = open_state()
    state.disabled_tools.set("a.b", on=True)
    state.load_key("browser sessions")
    kinds = ("disabled", "settings", "ended session")
    rows = {kind: roll_back.keep("documents", f"kind = '{kind}'") for kind in kinds}
    state.disabled_tools.set("a.b", on=False)
    get_settings(state).update(lambda _before, _history: (StoredSettings("agents: {}"), "[]"))
    state.ended_sessions.end("session", get_database(state).now() + 60)
    for kind, row in rows.items():
        where = f"kind = '{kind}'" + (" AND name = 'current'" if kind == "settings" else "")
        roll_back.put_back("documents", where, row)
    replica = open_state()
    assert replica.disabled_tools.off() == {"a.b"}
    assert replica.settings.refresh().text == "agents: {}"
    assert replica.ended_sessions.list_all() == {"session"}


def test_an_approved_call_is_not_sent_twice(open_state: Open, roll_back: RollBack) -> None:
    runs = open_state().runs
    call = DurableCall(1, "t", "{}", "key", 0, CallState.PENDING, effects=("write",))
    runs.put_run(RunRecord("r_1", "default", "code", owner=runs.owner), [call])
    runs.decide("r_1", Decision(is_approved=True, by="Ada"))
    (approved,) = runs.list_calls("r_1")
    row = roll_back.keep("calls", "run = 'r_1'")
    runs.write_calls("r_1", [replace(approved, state=CallState.SENT)])
    roll_back.put_back("calls", "run = 'r_1'", row)
    (again,) = runs.list_calls("r_1")
    assert again == approved, "the database accepts the older row"
    with pytest.raises(CallRejected, match="was sent before"):
        runs.write_calls("r_1", [replace(again, state=CallState.SENT)])


def test_replicas_delete_no_recent_record_of_a_sent_call(
    open_state: Open, roll_back: RollBack
) -> None:
    state = open_state()
    call = DurableCall(1, "t", "{}", "key", 0, CallState.APPROVED, effects=("write",), by="Ada")
    state.runs.put_run(RunRecord("r_1", "default", "code", owner=state.runs.owner), [call])
    state.runs.write_calls("r_1", [replace(call, state=CallState.SENT)])
    database = get_database(state)
    database.execute("INSERT INTO sent_calls VALUES ('r_old', 1, 1, '', 0)")
    size = database.select(Database.size_query)[0][0]
    attacker = Database(roll_back.url)
    with closing(attacker):
        with pytest.raises(StorageError):
            attacker.execute("DELETE FROM sent_calls")
        attacker.select("SELECT trim_sent_calls('infinity')")
    assert database.select("SELECT run FROM sent_calls") == [("r_1",)]
    assert 0 < database.select(Database.size_query)[0][0] < size, "sent calls count"


def test_a_call_that_a_person_repeats_is_sent_once_more_only(
    open_state: Open, roll_back: RollBack
) -> None:
    runs = open_state().runs
    call = DurableCall(1, "t", "{}", "key", 0, CallState.APPROVED, effects=("write",), by="Ada")
    runs.put_run(RunRecord("r_1", "default", "code", owner=runs.owner), [call])
    runs.write_calls("r_1", [replace(call, state=CallState.SENT)])
    runs.write_calls("r_1", [replace(call, state=CallState.UNKNOWN)])
    assert runs.resolve("r_1", 1, CallState.APPROVED, by="Ada")
    (repeated,) = runs.list_calls("r_1")
    row = roll_back.keep("calls", "run = 'r_1'")
    runs.write_calls("r_1", [replace(repeated, state=CallState.SENT)])
    roll_back.put_back("calls", "run = 'r_1'", row)
    (again,) = runs.list_calls("r_1")
    with pytest.raises(CallRejected, match="was sent before"):
        runs.write_calls("r_1", [replace(again, state=CallState.SENT)])


def test_a_grant_does_not_refill(open_state: Open, roll_back: RollBack) -> None:
    runs = open_state().runs
    pending = DurableCall(1, "t", "{}", "key", 0, CallState.PENDING)
    runs.put_run(RunRecord("r_1", "default", "code", owner=runs.owner), [pending])
    grant = Grant("g_1", "t", left=2, run="r_1", expires=4e9)
    runs.decide("r_1", Decision(is_approved=True, by="Ada", grants=(grant,)))
    row = roll_back.keep("grants", "id = 'g_1'")
    sent = [
        DurableCall(number, "t", "{}", f"key {number}", 0, CallState.SENT, by="grant g_1")
        for number in (2, 3, 4)
    ]
    for call in sent[:2]:
        runs.write_calls("r_1", [call], grant="g_1")
    assert runs.list_grants("default", "r_1") == []
    roll_back.put_back("grants", "id = 'g_1'", row)
    assert runs.list_grants("default", "r_1") == []
    with pytest.raises(ApprovalRequired, match="does not cover"):
        runs.write_calls("r_1", [sent[2]], grant="g_1")
