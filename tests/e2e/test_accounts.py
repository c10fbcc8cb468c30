"""Several accounts and several agents: each call uses its own sign-in, and rules and records see
the account.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.authorization_server import AuthorizationServer, authorization_server
from tests.oauth_support import call_as, open_signed_app, sign_in
from tests.support import configure, eventually, run_cli

from onetool.errors import ArgumentError, SignInRequired
from onetool.state.run_records import Decision

AGENTS = ("default", "bob")
ACCOUNTS = ("work", "home")
ROUNDS = 2_500 if os.environ.get("ONETOOL_NIGHTLY") == "1" else 25  # times 2 agents and 2 accounts


@pytest.fixture
def server() -> Iterator[AuthorizationServer]:
    with authorization_server() as running:
        yield running


def make_settings(server: AuthorizationServer, **agent: Any) -> dict[str, Any]:
    return {
        "servers": {"gh": {"url": server.url, "auth": "oauth", "accounts": list(ACCOUNTS)}},
        "execution": {"max_tool_calls": 5000, "timeout": 600},
        "agents": {
            "default": {"permissions": ["read", "network"], **agent},
            "bob": {"permissions": ["network"]},
        },
    }


def test_identities_are_never_crossed(tmp_path: Path, server: AuthorizationServer) -> None:
    server.knobs.expires_in = 2  # so that tokens are also refreshed
    with open_signed_app(tmp_path, make_settings(server)) as app:
        for agent in AGENTS:
            for account in ACCOUNTS:
                with pytest.raises(SignInRequired) as raised:
                    call_as(app, "gh.whoami", agent, account)
                assert f"--account {account}" in raised.value.hint
                assert ("--agent bob" in raised.value.hint) == (agent == "bob")
                sign_in(app, user=f"{agent}-{account}", agent=agent, account=account)
        code = (
            "work, home = ot.account('gh', 'work'), ot.account('gh', 'home')\n"
            f"calls = [gh.whoami, work.whoami, home.whoami] * {ROUNDS // 25 * 10}\n"
            "ot.parallel(calls)"
        )
        seen: Counter[tuple[str, str, str]] = Counter()
        for _ in range(max(1, ROUNDS // 250)):
            runs = {
                agent: app.portal.start_task_soon(run_as, app.onetool, code, agent)
                for agent in AGENTS
            }
            for agent, running in runs.items():
                answer = running.result(600)
                assert not answer.is_error, answer.text
                for number, user in enumerate(json.loads(answer.blocks[-1])):
                    seen[agent, ("work", "work", "home")[number % 3], user] += 1
        crossed = {each: count for each, count in seen.items() if each[2] != f"{each[0]}-{each[1]}"}
    text = (
        f"{sum(seen.values())} interleaved calls of 2 agents with 2 accounts:"
        f" {sum(crossed.values())} crossed"
    )
    print(text)  # noqa: T201 - the number is the result
    assert crossed == {}
    assert {user for _, _, user in seen} == {
        f"{agent}-{account}" for agent in AGENTS for account in ACCOUNTS
    }


async def run_as(onetool: Any, code: str, agent: str) -> Any:
    return await onetool.run(code, agent=agent)


def test_agents_share_a_sign_in_only_if_the_settings_say_so(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    settings = make_settings(server)
    with open_signed_app(tmp_path, settings) as app:
        sign_in(app, user="ada", account="work")
        assert call_as(app, "gh.whoami") == "ada"
        with pytest.raises(SignInRequired):
            call_as(app, "gh.whoami", "bob")
    settings["servers"]["gh"]["auth"] = {"type": "oauth", "shared": True}
    with open_signed_app(tmp_path, settings) as app:
        sign_in(app, user="team", account="work")
        assert [call_as(app, "gh.whoami", agent) for agent in AGENTS] == ["team", "team"]


def test_rules_and_records_see_the_account(tmp_path: Path, server: AuthorizationServer) -> None:
    rules = [{"tools": "gh.*", "account": "home", "decision": "deny"}]
    with open_signed_app(tmp_path, make_settings(server, policy=rules)) as app:
        for account in ACCOUNTS:
            sign_in(app, user=account, account=account)
        assert app.value("gh.whoami()") == "work"
        assert app.value("ot.account('gh', 'work').whoami()") == "work"
        assert "rule 1 of its policy denies" in app.failure("ot.account('gh', 'home').whoami()")
        assert "its accounts are work, home" in app.failure("ot.account('gh', 'other').whoami()")
        code = "note = ot.account('gh', 'home').write_note('x')\ngh.write_note(note)"
        listed = app.data(f"ot.plan(code={code!r})")["calls"]
        assert [(each["tool"], each["account"]) for each in listed] == [
            ("gh.write_note", "home"),
            ("gh.write_note", "work"),
        ]
        assert "has no account" in app.failure("ot.account('machine', 'work').cpu()")
        with pytest.raises(ArgumentError):
            call_as(app, "machine.cpu", account="work")
        lines = Path(app.onetool.audit.place).read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    accounts = [each.get("account") for each in records if each.get("tool") == "gh.whoami"]
    assert accounts == ["work", "work", "work", "work", "home", "other"]


def test_the_command_calls_with_an_account(tmp_path: Path, server: AuthorizationServer) -> None:
    settings = make_settings(server)
    configure(tmp_path, yaml.safe_dump(settings))
    with open_signed_app(tmp_path, settings) as app:
        for account in ACCOUNTS:
            sign_in(app, user=account, account=account)
    assert run_cli(tmp_path, "call", "gh.whoami", "--account", "home").stdout == '"home"\n'


def test_an_approval_is_for_one_account(tmp_path: Path, server: AuthorizationServer) -> None:
    server.knobs.resource_metadata = {"scopes_supported": ["write"]}
    with open_signed_app(tmp_path, make_settings(server, policy="ask-writes")) as app:
        for account in ACCOUNTS:
            sign_in(app, user=account, account=account)

        async def ask(code: str) -> Any:
            return await app.onetool.run(code)

        answer = app.portal.start_task_soon(ask, "ot.account('gh', 'home').write_note('x')")
        runs = app.onetool.state.runs
        assert eventually(
            lambda: [call for run in runs.list_runs() for call in runs.list_calls(run.id)]
        )
        (call,) = [call for run in runs.list_runs() for call in runs.list_calls(run.id)]
        assert json.loads(call.arguments) == {"text": "x", "@account": "home"}
        (run,) = runs.list_runs()
        decision = Decision(is_approved=True, by="ada")
        app.portal.call(
            lambda: app.onetool.runs.decide(run.id, decision, via="cli", transport="cli")
        )
        assert answer.result(40).blocks[-1] == "wrote x"
