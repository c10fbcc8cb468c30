"""`ot.session`: values that code keeps between runs, restarts and processes."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support import App, open_app, run_cli

from onetool import tool
from onetool.errors import BudgetExceeded, PermissionDenied, StorageError, ToolError
from onetool.state import session_store
from onetool.state.session_store import TTL_SECONDS, SessionStore, SessionValue
from onetool.util.context import Caller, Foreign, ToolContext

HANDLE = re.compile("s_[0-9a-f]{32}")
JSON_VALUE = {"a": [1, 2.5, -0.0, None, True, 10**30, "é😀\x00", "\ud800"], "": {}}


@tool("outside.text")
def read_outside(context: ToolContext) -> str:
    """Return text of an untrusted server."""
    context.run.record_foreign(Foreign("outside.text", {}, is_untrusted=True))
    return "hello"


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with open_app({"agents": {"default": {}, "other": {}}}, [read_outside]) as opened:
        yield opened


@pytest.fixture
def handle(app: App) -> str:
    return app.value("ot.session()")


def use(app: App, handle: str, code: str) -> Any:
    return app.data(f"s = ot.session({handle!r})\n{code}")


def test_a_session_is_a_dictionary(app: App) -> None:
    code = f"s = ot.session(); s['x'] = {JSON_VALUE!r}; s['y'] = 1; s.id"
    handle = app.value(code)
    assert HANDLE.fullmatch(handle)
    assert use(app, handle, f"s['x'] == {JSON_VALUE!r}")
    assert use(app, handle, "[list(s), len(s), bool(s), 'x' in s, 'z' in s]") == [
        ["x", "y"],
        2,
        True,
        True,
        False,
    ]
    assert use(
        app, handle, "[s.get('z'), s.get('z', 7), s.setdefault('y', 9), s.setdefault('z', 9)]"
    ) == [
        None,
        7,
        1,
        9,
    ]
    assert use(
        app, handle, "[s.pop('y'), s.pop('y', 'gone'), s.update(b=2, a=1), list(s), s == dict(s)]"
    ) == [
        1,
        "gone",
        None,
        ["x", "z", "b", "a"],
        True,
    ]
    assert use(app, handle, "[s.__delitem__('x'), list(s.items()), list(s.values())][1:]") == [
        [["z", 9], ["b", 2], ["a", 1]],
        [9, 2, 1],
    ]
    assert use(app, handle, "[ot.session(handle=s).clear(), len(s), s]") == [None, 0, handle]
    assert app.failure(f"ot.session({handle!r})['z']").startswith("KeyError: 'z'")
    assert app.failure(f"del ot.session({handle!r})['z']").startswith("KeyError: 'z'")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("(1, 2)", "the value of 'k' has type tuple"),
        ("[{'a': {3}}]", "the value of 'a' has type set"),
        ("float('nan')", "the value of 'k' has nan"),
        ("{'a': {1: 2}}", "a key has type int"),
        ("__import__('datetime').date.today()", "the value of 'k' has type date"),
    ],
)
def test_only_json_can_be_stored(app: App, handle: str, value: str, problem: str) -> None:
    assert f"ArgumentError: a session keeps JSON values only: {problem}" in app.failure(
        f"ot.session({handle!r})['k'] = {value}"
    )
    assert use(app, handle, "len(s)") == 0


def test_concurrent_runs_lose_nothing(app: App, handle: str) -> None:
    code = (
        "s = ot.session({0!r})\nfor n in range(30):\n    s[f'{1}-{{n}}'] = n\ns.setdefault('first',"
        " {1})"
    )
    runs = [app.start(code.format(handle, number)) for number in range(3)]
    winners = {run.result(60).blocks[-1] for run in runs}
    assert len(winners) == 1
    assert use(app, handle, "[len(s), s['first']]") == [91, int(winners.pop())]


def test_quotas_are_errors_that_change_nothing(app: App, handle: str) -> None:
    code = f"s = ot.session({handle!r})\n"
    assert "BudgetExceeded: the session would have" in app.failure(
        f"{code}s['k'] = 'x' * (1 << 20)"
    )
    assert "1001 keys, the limit is 1000" in app.failure(
        f"{code}s.update({{str(n): n for n in range(1001)}})"
    )
    assert "invalid key" in app.failure(f"{code}s['a\\nb'] = 1")
    assert use(app, handle, "len(s)") == 0


def test_a_session_belongs_to_its_agent(app: App, handle: str) -> None:
    text = app.run(f"ot.session({handle!r})['k'] = 1", agent="other").text
    assert f"PermissionDenied: the session {handle} belongs to another agent or token" in text
    error = app.call("ot.session", {"handle": "s_" + "0" * 32}).error
    assert isinstance(error, ToolError)
    assert error.type == "not_found"


def test_values_of_untrusted_sources_stay_untrusted(app: App, handle: str) -> None:
    app.run(f"s = ot.session({handle!r}); s['before'] = 1; s['after'] = outside.text()")
    answers = {key: app.run(f"ot.session({handle!r})[{key!r}]").text for key in ("before", "after")}
    assert answers["before"] == "1"
    assert "hello" in answers["after"]
    assert answers["after"] != "hello"  # wrapped, like every untrusted answer


def test_other_processes_read_a_session(tmp_path: Path) -> None:
    handle = run_cli(tmp_path, "run", "s = ot.session(); s['page'] = 7; s.id").stdout.strip()
    assert run_cli(tmp_path, "run", f"ot.session({handle!r})['page']").stdout == "7\n"


# --- the store ------------------------------------------------------------------------------------


def test_tokens_expiry_and_deletion(tmp_path: Path) -> None:
    now = [1000.0]
    with closing(SessionStore(tmp_path, clock=lambda: now[0], steady=lambda: now[0])) as store:
        handle = store.create("a", "t1")
        store.update(handle, {"k": SessionValue("1")}, "a", "t1")
        assert store.list_keys(handle, "a") == [
            "k"
        ]  # without a token, an agent sees those of all its tokens
        for agent, token in (("a", "t2"), ("b", ""), ("b", "t1")):
            with pytest.raises(PermissionDenied):
                store.get(handle, ["k"], agent, token)
        for _ in range(3):  # each use postpones the expiry
            now[0] += TTL_SECONDS - 1
            assert store.get(handle, ["k"], "a", "t1") == {"k": SessionValue("1")}
        now[0] += TTL_SECONDS + 1
        with pytest.raises(ToolError, match="has expired"):
            store.get(handle, ["k"], "a", "t1")
        store.create("b")
        with closing(sqlite3.connect(tmp_path / "runs" / "sessions.db")) as database:
            assert database.execute("SELECT count(*) FROM session_values").fetchone() == (0,)


@pytest.mark.parametrize("days", [8, -8])
def test_sessions_are_kept_after_the_clock_has_jumped(tmp_path: Path, days: int) -> None:
    now = [1_800_000_000.0]
    with closing(SessionStore(tmp_path, clock=lambda: now[0])) as store:
        handle = store.create()
        store.update(handle, {"k": SessionValue("1")})
    with closing(
        SessionStore(tmp_path, clock=lambda: now[0])
    ) as store:  # compares the clock with that of its start
        now[0] += days * 86_400
        store.create()
        now[0] -= days * 86_400
        assert store.get(handle, ["k"]) == {"k": SessionValue("1")}


def test_stored_values_are_sealed(tmp_path: Path) -> None:
    with closing(SessionStore(tmp_path)) as store:
        first, second = store.create(), store.create()
        store.update(first, {"k": SessionValue(json.dumps("a private text"))})
        store.update(second, {"k": SessionValue("2", ("private",))})
    files = list((tmp_path / "runs").iterdir())
    assert all(b"private" not in file.read_bytes() for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    with closing(sqlite3.connect(tmp_path / "runs" / "sessions.db")) as database:
        select = "(SELECT sealed FROM session_values WHERE handle = ?)"
        database.execute(
            f"UPDATE session_values SET sealed = {select} WHERE handle = ?", (second, first)
        )
        database.commit()
    with closing(SessionStore(tmp_path)) as store:
        assert store.get(second, ["k"]) == {"k": SessionValue("2", ("private",))}
        with pytest.raises(StorageError, match="was changed"):
            store.get(first, ["k"])


def test_empty_sessions_make_room_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_store, "MAX_SESSIONS", 2)
    with closing(SessionStore(tmp_path)) as store:
        other, empty, full = (store.create("a", token) for token in ("t2", "t1", "t1"))
        store.update(full, {"k": SessionValue("1")}, "a", "t1")
        new = store.create("a", "t1")
        store.update(new, {"k": SessionValue("1")}, "a", "t1")
        with pytest.raises(ToolError, match="does not exist"):
            store.list_keys(empty, "a", "t1")
        with pytest.raises(BudgetExceeded, match="agent a has 2 sessions"):
            store.create("a", "t1")
        assert store.list_keys(other, "a", "t2") == []
        store.create("a", "t2")


# --- policies -------------------------------------------------------------------------------------


@tool("vault.read", effects=["read"], labels=["private", "untrusted"])
def read_vault() -> str:
    """Return private data with text from outside."""
    return "secret plan"


@tool("mail.send", effects=["external"])
def send_mail(text: str) -> str:
    """Send a mail."""
    return f"sent {text}"


def test_labels_stay_with_values() -> None:
    settings = {"agents": {"default": {"policy": "guarded"}}, "approvals": {"wait": 0}}
    with open_app(settings, [read_vault, send_mail]) as app:

        def run(code: str, session: str) -> str:
            return str(
                app.portal.call(partial(app.onetool.runs.run, code, Caller(session=session))).text
            )

        handle = run(
            "s = ot.session(); s['clean'] = 1; s['tainted'] = vault.read(); s['clean'] = 2; s.id",
            "first",
        )
        assert run("s = ot.session(); s['a'] = 1; mail.send(str(s['a']))", "second") == "sent 1"
        assert run(f"mail.send(str(ot.session({handle!r}).get('tainted')))", "second").startswith(
            "paused"
        )
        assert run("mail.send('anything')", "second").startswith("paused")
        assert run("mail.send('anything')", "third") == "sent anything"
        assert run(f"mail.send(str(ot.session({handle!r})['clean']))", "third").startswith("paused")
