"""Signing in to a protected server as a person does: with the commands, in an empty home directory."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mcp_types as types
import pytest
from tests.authorization_server import AuthorizationServer, approve, authorization_server
from tests.oauth_support import configure_server, login, read_url, start_login
from tests.rest_support import serve_process
from tests.support import connect, get_texts, run_cli


@pytest.fixture
def server() -> Iterator[AuthorizationServer]:
    with authorization_server() as running:
        yield running


def show_servers(home: Path) -> dict[str, dict[str, object]]:
    done = run_cli(home, "servers", "--json")
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["servers"]}


def test_a_call_names_the_login_command_and_works_after_it(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    configure_server(tmp_path, server)
    refused = run_cli(tmp_path, "call", "gh.whoami", "--json")
    error = json.loads(refused.stdout)["error"]
    assert (refused.returncode, error["type"]) == (1, "sign_in_required")
    assert "onetool login gh" in error["hint"]
    assert show_servers(tmp_path)["gh"]["signed_in"] is False

    assert "Signed in to gh. It has 2 tools." in login(tmp_path, "gh")
    assert json.loads(run_cli(tmp_path, "call", "gh.whoami").stdout) == "ada"
    state = show_servers(tmp_path)["gh"]
    assert (state["signed_in"], state["tools"]) == (True, 2)
    assert str(state["expires_at"]).endswith("Z")
    assert "signed in, token expires" in run_cli(tmp_path, "servers", "list").stdout

    assert run_cli(tmp_path, "logout", "gh").stdout == "Signed out of gh.\n"
    assert server.counts["revoke"] == server.revoked == 1
    after = run_cli(tmp_path, "call", "gh.whoami")
    assert after.returncode == 1
    assert "onetool login gh" in after.stderr
    assert show_servers(tmp_path)["gh"]["signed_in"] is False


def test_a_server_without_the_setting_is_recognized_by_its_answer(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    configure_server(tmp_path, server, auth=None)
    assert "onetool login gh" in run_cli(tmp_path, "call", "gh.whoami").stderr
    assert "onetool login gh" in run_cli(tmp_path, "doctor").stdout
    assert (
        "gh requires a sign-in: onetool login gh" in run_cli(tmp_path, "connect", "cursor").stdout
    )
    (tmp_path / "mcp.json").write_text(
        json.dumps({"mcpServers": {"other": {"url": server.url}}}), encoding="utf-8"
    )
    imported = run_cli(tmp_path, "import", "mcp.json", "--user", ONETOOL_TRUST="1")
    assert "other requires a sign-in: onetool login other" in imported.stdout, (
        imported.stdout + imported.stderr
    )
    login(tmp_path, "gh")
    assert json.loads(run_cli(tmp_path, "call", "gh.whoami").stdout) == "ada"


def test_a_pasted_callback_url_and_a_strange_callback(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    configure_server(tmp_path, server)
    login(tmp_path, "gh", user="grace", paste=True)
    assert json.loads(run_cli(tmp_path, "call", "gh.whoami").stdout) == "grace"
    with start_login(tmp_path, "gh", "--no-browser") as process:
        url = read_url(process)
        approve(url.replace("state=", "state=x"))  # not an answer to this sign-in: it keeps waiting
        assert process.poll() is None
        assert "Signed in" in approve(url, "alan").text
        process.communicate(timeout=40)
    assert json.loads(run_cli(tmp_path, "call", "gh.whoami").stdout) == "alan"
    assert (
        server.counts["register"] == 1
    )  # the client is registered with the port of the first sign-in


def test_the_browser_of_the_user_is_opened_with_the_url(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    configure_server(tmp_path, server)
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n', encoding="utf-8")
    browser.chmod(0o700)
    with start_login(tmp_path, "gh", BROWSER=str(browser)) as process:
        url = read_url(process)
        approve(url)
        process.communicate(timeout=40)
    assert process.returncode == 0
    assert (tmp_path / "opened").read_text(encoding="utf-8") == url


def test_the_device_flow(tmp_path: Path, server: AuthorizationServer) -> None:
    configure_server(tmp_path, server)
    done = run_cli(tmp_path, "login", "gh", "--device")
    assert done.returncode == 0, done.stderr
    assert "ABCD-EFGH" in done.stdout
    assert f"{server.issuer}/device" in done.stdout
    assert json.loads(run_cli(tmp_path, "call", "gh.whoami").stdout) == "device user"


def test_a_running_server_uses_a_sign_in_at_once_and_a_scope_is_added(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    configure_server(tmp_path, server)
    with connect(tmp_path) as client:
        result = client.run("gh.whoami()")
        assert result.is_error
        assert "SignInRequired" in get_texts(result)[-1]
        assert "onetool login gh" in get_texts(result)[-1]
        login(tmp_path, "gh")
        assert get_texts(client.run("gh.whoami()")) == ["ada"]
        more = get_texts(
            client.run(
                "try:\n    gh.write_note('x')\nexcept SignInRequired as error:\n    print(error)"
            )
        )
        assert "needs more permissions at gh (scope write)" in more[-1]
        login(tmp_path, "gh")
        assert server.requests[-2][1]["scope"] == "read offline_access write"
        assert get_texts(client.run("gh.write_note('x')")) == ["wrote x"]
        run_cli(tmp_path, "logout", "gh")
        assert "SignInRequired" in get_texts(client.run("gh.whoami()"))[-1]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_with_url_elicitation_shows_the_url(
    tmp_path: Path, server: AuthorizationServer, mode: str
) -> None:
    configure_server(tmp_path, server)
    answers = ["decline", "accept"]

    async def elicit(_context: Any, params: Any) -> types.ElicitResult:
        action = answers.pop(0)
        if action == "accept":
            assert urlsplit(params.url).netloc == urlsplit(server.issuer).netloc
            await asyncio.to_thread(approve, params.url, "grace")
        return types.ElicitResult(action=action)  # type: ignore[arg-type]  # one of the allowed actions

    with connect(tmp_path, mode, elicitation_callback=elicit) as client:
        assert "SignInRequired" in get_texts(client.run("gh.whoami()"))[-1]
        assert get_texts(client.run("gh.whoami()")) == ["grace"]
    assert answers == []


def test_rest_health_and_doctor(tmp_path: Path, server: AuthorizationServer) -> None:
    configure_server(tmp_path, server)
    with serve_process(tmp_path) as (_, info):
        import httpx2

        def post(path: str, body: object) -> httpx2.Response:
            return httpx2.post(f"{info['url']}{path}", json=body, trust_env=False, timeout=30)

        answer = post("/api/tools/gh.whoami/call", {"args": {}})
        assert answer.json()["error"]["type"] == "sign_in_required", answer.text
        health = post("/api/run", {"command": "ot.health()['proxy']"}).json()
        assert "sign_in_required" in json.dumps(health)
    server.knobs.metadata = {"token_endpoint": None}
    found = run_cli(tmp_path, "doctor").stdout
    assert f"GET {server.origin}/.well-known/oauth-protected-resource/mcp: 200" in found
    assert "token_endpoint is missing" in found
    assert "onetool login gh" in found


@pytest.mark.parametrize(
    "arguments", [("nothing",), ("gh", "--account", "work"), ("gh", "--agent", "nobody")]
)
def test_wrong_names_are_usage_errors(
    tmp_path: Path, server: AuthorizationServer, arguments: tuple[str, ...]
) -> None:
    configure_server(tmp_path, server)
    done = run_cli(tmp_path, "login", *arguments)
    assert done.returncode == 1
    assert "onetool: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminated_login_leaves_nothing(tmp_path: Path, server: AuthorizationServer) -> None:
    configure_server(tmp_path, server)
    with start_login(tmp_path, "gh", "--no-browser") as process:
        url = read_url(process)
        process.terminate()
        assert process.wait(20) == 143
    with pytest.raises(Exception, match="refused"):
        approve(url)
    assert isinstance(process, subprocess.Popen)
    assert show_servers(tmp_path)["gh"]["signed_in"] is False
