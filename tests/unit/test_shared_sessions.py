"""Sessions of the admin UI on several replicas: opened, used and ended on different ones."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers
from tests.postgres_support import get_database
from tests.replicas_support import KEY
from tests.support import eventually

from onetool.server.http.errors import ApiError
from onetool.server.http.live_tokens import RequestCredential, identify_issuer
from onetool.server.http.sessions import CSRF_HEADER, BrowserSessions
from onetool.settings.access import Issuer
from onetool.state.opening import open_postgres
from onetool.state.storage import State
from onetool.util.running_servers import create_code

pytestmark = pytest.mark.slow
ENTRY = Issuer(
    issuer="https://id.example.com", audience=("a",), client_id="onetool", default_agent="default"
)
ALICE = RequestCredential(
    "subject alice", "default", "use", lambda _find: True, "t", 4e9, identify_issuer(ENTRY)
)


class Replica:
    """The sessions of one replica, with a home of its own."""

    def __init__(self, state: State, home: Path) -> None:
        self.state, self.home, self.issuers = state, home, [ENTRY]
        self.sessions = BrowserSessions(lambda: home, lambda: state, issuers=lambda: self.issuers)

    def find(self, headers: dict[str, str]) -> RequestCredential | None:
        return asyncio.run(self.sessions.find(Headers(headers)))

    def close(self, headers: dict[str, str]) -> str:
        return asyncio.run(self.sessions.close(Headers(headers)))


@pytest.fixture
def replicas(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    with ExitStack() as stack:
        started = []
        for name in ("first", "second"):
            state = open_postgres(postgres_url, KEY, tmp_path / name)
            stack.callback(state.close)
            state.start()
            assert state.wait(60)
            started.append(Replica(state, tmp_path / name))
        yield started[0], started[1]


def get_cookie(header: str) -> str:
    return header.partition(";")[0]


def sign_in(first: Replica, second: Replica) -> dict[str, str]:
    """Sign in, each step on the other replica, and return the headers of the session."""
    cookie, state = first.sessions.begin_sign_in({"nonce": "n"}, is_secure=False)
    binding = Headers({"cookie": get_cookie(cookie)})
    assert second.sessions.end_sign_in(f"{state[:-6]}AAAAAA", binding) == (None, False)
    facts, is_bound = second.sessions.end_sign_in(state, binding)
    assert (facts or {})["nonce"] == "n"
    assert is_bound
    assert first.sessions.end_sign_in(state, binding) == (
        None,
        False,
    ), "a state is used once, on all replicas"
    code = second.sessions.create_code(ALICE, binding)
    assert first.sessions.open(code, Headers({}), is_local=False) is None, (
        "it is for the browser that signed in"
    )
    code = second.sessions.create_code(ALICE, binding)
    opened = first.sessions.open(code, binding, is_local=False)
    assert opened is not None
    assert second.sessions.open(code, binding, is_local=False) is None, (
        "a code is used once, on all replicas"
    )
    return {"cookie": get_cookie(opened[0]), CSRF_HEADER: opened[1].csrf}


def test_a_session_is_valid_on_every_replica_until_it_ends_on_one(
    replicas: tuple[Replica, Replica],
) -> None:
    first, second = replicas
    headers = sign_in(first, second)
    for replica in replicas:
        found = replica.find(headers)
        assert found is not None
        assert (found.actor, found.agent, found.scope, found.expires) == (
            "subject alice",
            "default",
            "use",
            4e9,
        )
        assert replica.find({**headers, CSRF_HEADER: "wrong"}) is None
        assert replica.find({**headers, "cookie": f"{headers['cookie'][:-6]}AAAAAA"}) is None, (
            "it was changed"
        )
    second.issuers = []
    assert second.find(headers) is None, "its issuer was removed from the settings"
    second.issuers = [ENTRY]
    found = first.find(headers)
    assert found is not None
    assert found.is_live(lambda _hash: None)
    assert "Max-Age=0" in second.close(headers)
    assert second.find(headers) is None
    assert eventually(lambda: first.find(headers) is None)
    assert not found.is_live(lambda _hash: None), "a request that was open ends too"


def test_a_session_is_rejected_while_the_database_is_away(
    replicas: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = replicas
    headers = sign_in(first, second)
    owner = first.sessions.open(create_code(first.home))
    assert owner is not None
    local: dict[str, Any] = {"cookie": get_cookie(owner[0]), CSRF_HEADER: owner[1].csrf}
    assert second.find(local) is None, "a session of `onetool ui` is for one server"
    monkeypatch.setattr(
        type(get_database(first.state).listener), "is_current", property(lambda _self: False)
    )
    with pytest.raises(ApiError) as rejected:
        first.find(headers)
    assert rejected.value.code == "busy"
    assert first.find(local) is not None, "it needs no database"
