"""MCP over HTTP: both protocol versions on one port, many clients, isolated sessions."""

import hashlib
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import MCPError
from tests.conformance_support import ERAS, Published, publish
from tests.rest_support import serve_process
from tests.support import THREE_LINES, TIMEOUT_SECONDS, eventually

from onetool.core.tool import tool
from onetool.state.stats.summary import summarize
from onetool.util.token_ids import TOKEN_ID_CHARS

TOKENS = {"ada": "ot_token-of-ada", "ada-2": "ot_second-token-of-ada", "bob": "ot_token-of-bob"}
SETTINGS = {
    "agents": {
        "default": {"permissions": ["read", "network"]},
        "ada": {"permissions": ["read"]},
        "bob": {"permissions": ["read"], "tools": ["machine.now"]},
    },
    "auth": {
        "tokens": [
            {
                "name": name,
                "agent": name.partition("-")[0],
                "hash": hashlib.sha256(token.encode()).hexdigest(),
            }
            for name, token in TOKENS.items()
        ]
    },
    "snippets": {
        "greet": {"description": "Greet", "params": {"who": {}}, "body": "'Hello {{ who }}'"}
    },
    "output": {"max_inline_size": 200},
}
VERSION = "2026-07-28"
HANDSHAKE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "wire", "version": "1"},
    },
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Published]:
    with publish(tmp_path, SETTINGS) as published:
        yield published


def build_request(
    method: str, tool_name: str = "", /, **params: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body and headers of a request of the 2026 protocol."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
        **({"mcp-name": tool_name} if tool_name else {}),
    }
    return {
        "jsonrpc": "2.0",
        "id": 1,
        "method": method,
        "params": {"_meta": meta, **params},
    }, headers


def build_auth_header(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name]}"}


def open_session(server: Published, **headers: str) -> str:
    """Open a session and return its id."""
    opened = server.post(HANDSHAKE, headers)
    assert opened.status_code == 200, opened.text
    number = opened.headers["mcp-session-id"]
    initialized = server.post(
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {**headers, "mcp-session-id": number},
    )
    assert initialized.status_code == 202
    return number


# --- both eras ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
def test_the_sdk_client_works_with_its_protocol_version(server: Published, mode: str) -> None:
    with server.client(mode) as client:
        assert client.client.protocol_version == {"auto": VERSION, "legacy": "2025-11-25"}[mode]
        assert client.client.server_info.name == "onetool"
        assert "run" in client.client.instructions
        assert [each.name for each in client.list_tools().tools] == ["run"]
        assert client.said("run", command="6 * 7") == "42"
        failed = client.call("run", command="1 / 0")
        assert failed.is_error
        assert "ZeroDivisionError" in failed.content[0].text
        assert "# machine.now" in client.read_resource("ot://tool/machine.now").contents[0].text
        assert "Hello" in client.get_prompt("greet", {"who": "Ada"}).messages[0].content.text


def test_both_protocols_share_a_port_with_rest_and_health(server: Published) -> None:
    with server.client("auto") as new, server.client("legacy") as old:
        assert new.said("run", command="1 + 1") == old.said("run", command="1 + 1") == "2"
    assert httpx2.get(f"{server.url}/healthz").text == "ok\n"
    assert httpx2.get(f"{server.url}/tools").status_code == 200


def test_every_session_is_counted_once_for_its_agent(server: Published) -> None:
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    for agent in ("ada", "ada", "bob"):
        number = {
            **build_auth_header(agent),
            "mcp-session-id": open_session(server, **build_auth_header(agent)),
        }
        for _ in range(2):
            assert server.post(listing, number).status_code == 200
    for _ in range(2):  # requests without a session count as one client
        body, headers = build_request("tools/list")
        assert server.post(body, {**headers, **build_auth_header("bob")}).status_code == 200

    def count_sessions(agent: str) -> int:
        server.onetool.state.recorder.flush()
        return summarize(server.onetool.state.recorder.database, agent=agent)["savings"]["sessions"]

    assert eventually(lambda: (count_sessions("ada"), count_sessions("bob")) == (2, 2))
    assert count_sessions("default") == 0


def test_cacheable_results_have_cache_hints(server: Published) -> None:
    for method in (
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
    ):
        result = server.post(*build_request(method)).json()["result"]
        assert result["cacheScope"] == "private"
        assert result["ttlMs"] > 0
    read = server.post(*build_request("resources/read", "ot://tools", uri="ot://tools")).json()[
        "result"
    ]
    assert (read["ttlMs"], read["cacheScope"]) == (0, "private")
    found = server.post(*build_request("server/discover")).json()["result"]
    assert found["supportedVersions"] == [VERSION]
    assert found["capabilities"]["tools"] == {"listChanged": True}
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "onetool"


def test_headers_must_match_the_body(server: Published) -> None:
    body, headers = build_request("tools/call", "run", name="run", arguments={"command": "1"})
    assert server.post(body, headers).status_code == 200
    for wrong in ({"mcp-method": "tools/list"}, {"mcp-name": "other"}):
        rejected = server.post(body, {**headers, **wrong})
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (400, -32020)
    unknown = server.post(body, {**headers, "mcp-protocol-version": "2099-01-01"})
    assert unknown.status_code == 400
    missing, _ = build_request("tools/call", "run", name="run", arguments={"command": "1"})
    del missing["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert server.post(missing, headers).status_code == 400


def test_tool_lists_are_paginated(tmp_path: Path) -> None:
    tools = [tool(f"many.t{number:04}")(_make_tool()) for number in range(1200)]
    with publish(tmp_path, {}, "many", tools=tools) as server, server.client() as client:
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor:
            page = client.list_tools(cursor=cursor)
            found += [each.name for each in page.tools]
            cursor, pages = page.next_cursor, pages + 1
        assert pages == 3
        assert found == ["run", *(f"t{number:04}" for number in range(1200))]
        assert client.said("t0777") == "nothing"
        with pytest.raises(MCPError, match="invalid cursor"):
            client.list_tools(cursor="nonsense")


def _make_tool() -> Any:
    def nothing() -> str:
        return "nothing"

    return nothing


# --- progress, cancellation, trace ----------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
def test_a_long_run_reports_progress_and_can_be_cancelled(server: Published, mode: str) -> None:
    reported = threading.Event()

    async def progress(*_: object) -> None:
        reported.set()

    with server.client(mode) as client:
        command = {"command": "import time\nwhile True: time.sleep(0.05)"}
        call = partial(client.client.call_tool, "run", command, progress_callback=progress)
        running = client.portal.start_task_soon(call)
        assert reported.wait(TIMEOUT_SECONDS)
        assert len(server.onetool.telemetry._active) == 1
        running.cancel()
        assert eventually(lambda: not server.onetool.telemetry._active)
        assert client.said("run", command="'next'") == "next"


@pytest.mark.parametrize("mode", ERAS)
def test_output_of_a_run_is_sent_as_progress(server: Published, mode: str) -> None:
    reports: list[tuple[float, str]] = []

    async def report(_progress: float, _total: float | None, message: str | None) -> None:
        if not (message or "").startswith("running for"):  # sent on a busy machine
            reports.append((time.time(), message or ""))

    with server.client(mode) as client:
        answer = client.call_tool("run", {"command": THREE_LINES}, progress_callback=report)
    times = list(map(float, answer.content[0].text.split()))
    assert "".join(message for _, message in reports) == answer.content[0].text
    assert [at < following for (at, _), following in zip(reports, times[1:], strict=False)] == [
        True,
        True,
    ]


def test_a_disconnect_ends_the_run_of_the_client(server: Published) -> None:
    body, headers = build_request(
        "tools/call", "run", name="run", arguments={"command": "import time\ntime.sleep(60)"}
    )
    accepted = {"accept": "application/json, text/event-stream", **headers}
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(f"{server.url}/mcp", json=body, headers=accepted, timeout=1, trust_env=False)
    assert eventually(lambda: not server.onetool.telemetry._active)


# --- ownership ------------------------------------------------------------------------------------


def test_a_session_belongs_to_the_agent_that_opened_it(server: Published) -> None:
    ask = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
    number = open_session(server, **build_auth_header("ada"))
    assert (
        server.post(ask, {**build_auth_header("ada"), "mcp-session-id": number}).status_code == 200
    )
    for other in (build_auth_header("bob"), {}):
        stolen = {**other, "mcp-session-id": number}
        assert server.post(ask, stolen).status_code == 404
        listening = {"accept": "text/event-stream", **stolen}
        assert (
            httpx2.get(f"{server.url}/mcp", headers=listening, trust_env=False).status_code == 404
        )
        assert (
            httpx2.delete(f"{server.url}/mcp", headers=stolen, trust_env=False).status_code == 404
        )
    assert (
        server.post(ask, {**build_auth_header("ada"), "mcp-session-id": number}).status_code == 200
    )
    own = {**build_auth_header("ada"), "mcp-session-id": number}
    assert httpx2.delete(f"{server.url}/mcp", headers=own, trust_env=False).status_code == 200
    assert server.post(ask, own).status_code == 404
    without = open_session(server)
    assert (
        server.post(ask, {**build_auth_header("ada"), "mcp-session-id": without}).status_code == 404
    )
    assert (
        server.post(ask, {**build_auth_header("ada"), "mcp-session-id": "f" * 32}).status_code
        == 404
    )


@pytest.mark.spec("toolbus.agent.by-token")
@pytest.mark.parametrize("mode", ERAS)
def test_the_token_determines_the_agent(server: Published, mode: str) -> None:
    client_info = types.Implementation(name="ada", version="1")
    with server.client(mode, TOKENS["bob"], client_info=client_info) as client:
        assert (
            "may not call machine.disk"
            in client.call("run", command="machine.disk()").content[0].text
        )
        assert client.said("run", command="bool(machine.now())") == "True"
        own = [
            each.name
            for each in client.list_resources().resources
            if not each.name.startswith("ot.")
        ]
        assert own == ["tools", "machine.now"]
        with pytest.raises(MCPError, match="no resource"):
            client.read_resource("ot://tool/machine.disk")
        values = client.complete(
            types.ResourceTemplateReference(type="ref/resource", uri="ot://tool/{name}"),
            {"name": "name", "value": "m"},
        ).completion.values
        assert values == ["machine.now"]
    with server.client(mode, TOKENS["ada"], client_info=client_info) as client:
        assert client.said("run", command="bool(machine.disk())") == "True"


@pytest.mark.parametrize("other", ["bob", "ada-2"])
@pytest.mark.parametrize("mode", ERAS)
def test_a_result_belongs_to_its_agent_and_token(server: Published, mode: str, other: str) -> None:
    with server.client(mode, TOKENS["ada"]) as ada, server.client(mode, TOKENS[other]) as bob:
        stored = ada.said("run", command="'secret words ' * 200")
        found = re.search(r"ot\.result\(handle=['\"](\w+)", stored) or re.search(
            r"handle\W+(\w{8,})", stored
        )
        assert found, stored
        handle = found.group(1)
        assert "secret words" in ada.said(
            "run", command=f"ot.result(handle={handle!r}, limit=50, unit='chars')"
        )
        for code in (
            f"ot.result(handle={handle!r}, limit=50, unit='chars')",
            f"ot.load({handle!r})",
        ):
            rejected = bob.call("run", command=code)
            assert rejected.is_error
            assert "secret words" not in str(rejected.content)


@pytest.mark.parametrize("mode", ERAS)
def test_media_belong_to_their_agent_and_token(server: Published, mode: str) -> None:
    token_id = hashlib.sha256(TOKENS["ada"].encode()).hexdigest()[:TOKEN_ID_CHARS]
    handle = server.onetool.media.put(b"sound", "audio/wav", "ada", token_id)
    shown = {}
    for name, token in TOKENS.items():
        with server.client(mode, token) as client:
            answer = client.call("run", command=f"{{'type': 'audio', 'media': {handle!r}}}")
            shown[name] = [block.type for block in answer.content]
    assert shown == {"ada": ["text", "audio"], "ada-2": ["text"], "bob": ["text"]}


def test_a_wrong_token_is_rejected(server: Published) -> None:
    rejected = server.post(
        *_add_headers(build_request("tools/list"), {"authorization": "Bearer ot_wrong"})
    )
    assert rejected.status_code == 401
    assert rejected.headers["www-authenticate"] == "Bearer"


def _add_headers(
    request: tuple[Any, dict[str, str]], more: dict[str, str]
) -> tuple[Any, dict[str, str]]:
    return request[0], {**request[1], **more}


def test_cross_origin_requests_and_unknown_hosts_are_rejected(server: Published) -> None:
    for headers in (
        {"origin": "http://evil.example"},
        {"host": "evil.example"},
        {"sec-fetch-site": "cross-site"},
    ):
        assert server.post(*_add_headers(build_request("tools/list"), headers)).status_code == 403
        assert server.post(HANDSHAKE, headers).status_code == 403
    port = server.url.rpartition(":")[2]
    own = {"origin": f"http://localhost:{port}", "host": f"localhost:{port}"}
    assert server.post(*_add_headers(build_request("tools/list"), own)).status_code == 200


# --- hostile --------------------------------------------------------------------------------------


def test_oversized_and_invalid_messages_are_rejected(server: Published) -> None:
    body, headers = build_request(
        "tools/call", "run", name="run", arguments={"command": "x" * (5 << 20)}
    )
    assert server.post(body, headers).status_code == 413
    assert server.post({**HANDSHAKE, "params": {"x": "y" * (5 << 20)}}).status_code == 413
    address, kind = f"{server.url}/mcp", {"accept": "application/json, text/event-stream"}

    def chunks() -> Iterator[bytes]:
        for _ in range(80):
            yield b"x" * (1 << 16)

    for more in (headers, {}):
        streamed = httpx2.post(
            address,
            content=chunks(),
            headers={**kind, **more, "content-type": "application/json"},
            trust_env=False,
        )
        assert streamed.status_code == 413
    for wrong in (
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"jsonrpc": "2.0"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"id": 1e400}',
    ):
        for more in (headers, {}):
            sent = {**kind, **more, "content-type": "application/json"}
            rejected = httpx2.post(address, content=wrong, headers=sent, trust_env=False)
            assert 400 <= rejected.status_code < 500, (wrong, rejected.text)
    assert server.post(*build_request("tools/list")).status_code == 200


def test_invalid_arguments_are_reported(server: Published) -> None:
    for arguments in (
        {},
        {"command": 1},
        {"command": None},
        {"code": "1"},
        {"command": "1", "more": 2},
    ):
        body, headers = build_request("tools/call", "run", name="run", arguments=arguments)
        answer = server.post(body, headers).json()
        assert answer["result"]["isError"] is True, answer
    body, headers = build_request("tools/call", "nothing", name="nothing", arguments={})
    assert "no tool 'nothing'" in server.post(body, headers).json()["result"]["content"][0]["text"]


@pytest.mark.nightly
def test_concurrent_clients_of_both_protocols_get_their_own_responses(server: Published) -> None:
    def run_client(number: int) -> list[str]:
        with server.client(
            ERAS[number % 2], list(TOKENS.values())[number % 3] if number % 3 < 2 else None
        ) as client:
            return [client.said("run", command=f"{number} * 1000 + {each}") for each in range(5)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(run_client, range(16)))
    assert answers == [[str(number * 1000 + each) for each in range(5)] for number in range(16)]


def test_a_listener_is_notified_of_a_new_tool(server: Published) -> None:
    async def listen(client: Any) -> list[Any]:
        filters = {
            "resources_list_changed": True,
            "resource_subscriptions": ["ot://tools", "ot://tool/nothing"],
        }
        async with client.listen(**filters) as changes:
            assert changes.honored.resource_subscriptions == ["ot://tools"]
            server.onetool.bus.register_tool(tool("late.comer")(_make_tool()))
            await client.call_tool("run", {"command": "late.comer()"})
            return [await anext(aiter(changes)) for _ in range(2)]

    with server.client() as client:
        received = client.portal.call(listen, client.client)
        assert {type(each).__name__ for each in received} == {
            "ResourcesListChanged",
            "ResourceUpdated",
        }


@pytest.mark.slow
def test_a_server_shuts_down_while_clients_listen(tmp_path: Path) -> None:
    with serve_process(tmp_path) as (running, info):
        body, headers = build_request(
            "subscriptions/listen", notifications={"toolsListChanged": True}
        )
        accepted = {"accept": "application/json, text/event-stream", **headers}
        with httpx2.stream(
            "POST", f"{info['url']}/mcp", json=body, headers=accepted, trust_env=False
        ) as stream:
            first = next(line for line in stream.iter_lines() if line.startswith("data:"))
            assert json.loads(first[5:])["method"] == "notifications/subscriptions/acknowledged"
            running.send_signal(signal.SIGTERM)
            _, err = running.communicate(timeout=TIMEOUT_SECONDS * 2)
            assert running.returncode == 0
            assert "Traceback" not in err
