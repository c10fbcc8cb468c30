"""Attacks on the HTTP server: slow, idle, excessive, malformed and cross-origin requests."""

import contextlib
import hashlib
import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from tests.http_support import serve_site
from tests.rest_support import ServedApp, get_error_code, make_client, raw, serve_app, serve_process
from tests.support import PROGRAM, TIMEOUT_SECONDS, configure, environment, eventually

from onetool.server.http import http_server, timeouts
from onetool.server.http.json_body import IMPORTS, MAX_BODY_BYTES, MAX_IMPORT_BYTES
from onetool.server.http.timeouts import ConnectionLimiter
from onetool.settings.model import RunLimits
from onetool.util.logging import Log
from onetool.util.token_ids import TOKEN_ID_CHARS

AT_ONCE_EACH: Final = RunLimits().running
TOKENS: Final = {
    "ada": "ot_token-of-ada",
    "ada-2": "ot_second-token-of-ada",
    "bob": "ot_token-of-bob",
}
SETTINGS: Final = {
    "agents": {name: {"permissions": ["read"]} for name in TOKENS},
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
    "output": {"max_inline_size": 200},
}
HOST: Final = b"Host: localhost\r\n"
CLOSE: Final = b"Connection: close\r\n\r\n"
POST: Final = b"POST /api/run HTTP/1.1\r\n" + HOST
HALF_A_HEAD: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HALF_A_BODY: Final = b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nx"
SLEEP: Final = {"command": "import time\ntime.sleep(60)"}
MCP: Final = "2026-07-28"
LARGE: Final = {"command": "[[number] * 10 for number in range(1000)]"}


def build_auth_header(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name]}"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedApp]:
    with serve_app(tmp_path, SETTINGS) as served:
        yield served


@contextlib.contextmanager
def open_connections(
    server: ServedApp, count: int, sending: bytes, source: str = "127.0.0.1"
) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            to = ("127.0.0.1", server.rest.port)
            one = stack.enter_context(socket.create_connection(to, TIMEOUT_SECONDS, (source, 0)))
            one.settimeout(None)  # otherwise non-blocking reads would wait
            one.sendall(sending)
            found.append(one)
        yield found


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server closed the connection."""
    try:
        while connection.recv(1 << 16, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def is_served(server: ServedApp) -> bool:
    return server.rest.client.get("/healthz").text == "ok\n"


# --- slow and idle connections --------------------------------------------------------------------


@pytest.mark.slow
def test_incomplete_requests_do_not_block_others(
    server: ServedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_connections(server, 1000, HALF_A_HEAD) as halves:
        assert not any(map(is_closed, halves))
        for _ in range(20):
            assert is_served(server)
        monkeypatch.setattr(timeouts, "HEAD_SECONDS", 0.5)
        assert eventually(lambda: all(map(is_closed, halves)))
        assert is_served(server)


@pytest.mark.parametrize(
    "sending", [b"", HALF_A_HEAD, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /"]
)
def test_an_endless_head_is_closed(
    server: ServedApp, monkeypatch: pytest.MonkeyPatch, sending: bytes
) -> None:
    monkeypatch.setattr(timeouts, "HEAD_SECONDS", 0.5)
    with open_connections(server, 1, sending) as (slow,):
        assert eventually(lambda: is_closed(slow))


@pytest.mark.parametrize(
    "half", [HALF_A_HEAD, HALF_A_BODY, HALF_A_BODY.replace(b"/api/run", b"/nothing")]
)
def test_a_slow_body_is_closed(
    server: ServedApp, monkeypatch: pytest.MonkeyPatch, half: bytes
) -> None:
    for name in ("HEAD_SECONDS", "WINDOW_SECONDS", "LINGER_SECONDS"):
        monkeypatch.setattr(timeouts, name, 0.5)
    with open_connections(server, 1, half) as (slow,):

        def drip() -> bool:
            with contextlib.suppress(OSError):
                slow.sendall(b"x")
            return is_closed(slow)

        assert eventually(drip)
        assert is_served(server)


@pytest.mark.slow
def test_a_body_above_the_minimum_rate_is_accepted(
    server: ServedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "WINDOW_SECONDS", 0.5)
    monkeypatch.setattr(timeouts, "HEAD_SECONDS", 0.5)
    code = f"#{'x' * 200_000}\n1+1"

    def body() -> Iterator[bytes]:
        text = json.dumps({"command": code}).encode()
        for start in range(0, len(text), 10_000):
            time.sleep(0.15)
            yield text[start : start + 10_000]

    headers = {"content-type": "application/json"}
    answer = server.rest.client.post("/api/run", content=body(), headers=headers)
    assert answer.json()["blocks"] == ["2"]


def test_clients_that_do_not_read_are_closed(
    server: ServedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "WINDOW_SECONDS", 0.5)
    asking = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", server.rest.port))
        deaf.sendall(asking * 300)
        deaf.setblocking(False)

        def is_unreachable() -> bool:
            try:
                deaf.send(b"x")
            except BlockingIOError:
                return False
            except OSError:
                return True
            return False

        assert eventually(is_unreachable, TIMEOUT_SECONDS * 2)
    assert is_served(server)


def test_idle_connections_can_be_reused_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 2)
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve_app(tmp_path, SETTINGS) as server, open_connections(server, 1, whole) as (idle,):
        for _ in range(3):
            received = b""
            while not received.endswith(b"\r\n\r\nok\n"):
                received += idle.recv(1 << 16)
            idle.sendall(whole)
        assert eventually(lambda: is_closed(idle))


# --- too many connections and requests ------------------------------------------------------------


def test_idle_connections_are_closed_when_the_server_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 20)
    with (
        serve_app(tmp_path, SETTINGS) as server,
        open_connections(server, 60, HALF_A_HEAD) as halves,
    ):
        for _ in range(5):
            with make_client(str(server.rest.client.base_url)) as client:
                assert client.get("/healthz").text == "ok\n"
        assert eventually(lambda: sum(map(is_closed, halves)) >= 40)


def test_an_address_at_its_limit_closes_its_idle_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        http_server, "ConnectionLimiter", partial(ConnectionLimiter, max_per_address=5)
    )
    with (
        serve_app(tmp_path, SETTINGS) as server,
        open_connections(server, 1, HALF_A_HEAD, "127.0.0.2") as (other,),
    ):
        with open_connections(server, 12, HALF_A_HEAD) as halves:
            assert eventually(lambda: sum(map(is_closed, halves)) == 7)
            assert is_served(server)
        assert not is_closed(other)


def test_a_busy_server_rejects_new_connections_with_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", AT_ONCE_EACH)
    body = json.dumps(SLEEP).encode()
    head = POST + b"Content-Type: application/json\r\nAccept: text/event-stream\r\n"
    busy = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with (
        serve_app(tmp_path, SETTINGS) as server,
        open_connections(server, AT_ONCE_EACH, busy) as sleepers,
    ):
        for one in sleepers:
            assert one.recv(1), "the run has started"
        assert _get_rejection(server.rest.port) == (503, "busy", "1")
        assert not any(map(is_closed, sleepers))
        sleepers[0].close()
        assert eventually(lambda: is_served(server))


def _get_rejection(port: int) -> tuple[int, str, str]:
    status, headers, body = raw(
        port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    error = json.loads(body)["error"] if body.startswith(b"{") else {"code": ""}
    return status, error["code"], headers.get("retry-after", "")


@pytest.mark.slow
def test_runs_queue_then_are_rejected_and_agents_take_turns(tmp_path: Path) -> None:
    each, waiting, beyond = 2, 4, 5
    settings = {**SETTINGS, "limits": {"running": each, "waiting": waiting}}
    many = each + waiting + beyond
    with serve_app(tmp_path, settings) as server, ThreadPoolExecutor(many) as pool:
        client = server.rest.client

        def run(_number: int) -> httpx2.Response:
            return client.post(
                "/api/run",
                json={"command": "import time\ntime.sleep(2)\n1"},
                headers=build_auth_header("ada"),
            )

        requests = [pool.submit(run, number) for number in range(many)]
        assert eventually(
            lambda: any(one.done() and one.result().status_code == 429 for one in requests)
        )
        others = client.post("/api/run", json={"command": "1+1"}, headers=build_auth_header("bob"))
        assert others.json()["blocks"] == ["2"]
        assert not all(one.done() for one in requests), "bob waited for all requests of ada"
        answers = [one.result() for one in requests]
    rejected = [answer for answer in answers if answer.status_code == 429]
    assert 1 <= len(rejected) <= beyond
    assert {get_error_code(answer) for answer in rejected} == {(429, "rate_limited")}
    assert {answer.headers["retry-after"] for answer in rejected} == {"1"}
    assert all(
        "limits: {running, waiting}" in answer.json()["error"]["message"] for answer in rejected
    )
    assert {tuple(answer.json()["blocks"]) for answer in answers if answer.status_code == 200} == {
        ("1",)
    }


def test_disconnected_clients_leave_the_queue(server: ServedApp) -> None:
    body = json.dumps(SLEEP).encode()
    head = POST + b"Content-Type: application/json\r\n"
    with open_connections(server, 30, head + b"Content-Length: %d\r\n\r\n" % len(body) + body):
        runs = "/api/runs"
        assert eventually(lambda: len(server.rest.get(runs)["runs"]) == AT_ONCE_EACH)
    answer = server.rest.client.post("/api/run", json={"command": "1+1"})
    assert answer.json()["blocks"] == ["2"]


def test_mcp_clients_get_an_error_when_the_queue_is_full(tmp_path: Path) -> None:
    settings = {**SETTINGS, "limits": {"running": 1, "waiting": 1}}
    with serve_app(tmp_path, settings) as server, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(partial(_run_over_mcp, server), range(8)))
    rejected = [result["content"][0]["text"] for result in results if result["isError"]]
    assert rejected
    assert all("1 request already waiting" in text and "limits:" in text for text in rejected)
    assert {result["content"][0]["text"] for result in results if not result["isError"]} == {"1"}


def _run_over_mcp(server: ServedApp, number: int) -> Any:
    call = {"name": "run", "arguments": {"command": "import time\ntime.sleep(1)\n1"}}
    about = {
        "protocolVersion": MCP,
        "clientInfo": {"name": "crowd", "version": "1"},
        "clientCapabilities": {},
    }
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in about.items()}
    message = {
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": {"_meta": meta, **call},
    }
    headers = {"mcp-protocol-version": MCP, "mcp-method": "tools/call", "mcp-name": "run"}
    accept = {"accept": "application/json, text/event-stream"}
    with make_client(str(server.rest.client.base_url)) as client:
        info = client.post("/mcp", json=message, headers={**headers, **accept}).text
    line = next((line for line in info.splitlines() if line.startswith("data: {")), info)
    return {"isError": False, **json.loads(line.removeprefix("data: "))["result"]}


# --- malformed and oversized ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "statuses"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100 + b"\r\n\r\n", {400}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
        (b"GET /healthz HTTP/9.9\r\n" + HOST + CLOSE, {400}),
        (b"GET /healthz HTTP/1.1\r\n" + HOST + HOST + CLOSE, {400}),
        (b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n" + CLOSE, {400}),
        (b"GET /healthz HTTP/1.1\r\nHost: local\0host\r\n" + CLOSE, {400}),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n .evil.example\r\n" + CLOSE, {400, 403}),
        (b"GET http://localhost/healthz HTTP/1.1\r\n" + HOST + CLOSE, {400}),
        (b"CONNECT evil.example:443 HTTP/1.1\r\n" + HOST + CLOSE, {400}),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n" + HOST + CLOSE, {400, 413}),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 100_000 + b"\r\n" + CLOSE, {400, 413}),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: x\r\n" * 5000 + CLOSE, {400, 413}),
        (b"GET /page/%2e%2e/api/tools HTTP/1.1\r\n" + HOST + CLOSE, {400}),
        (b"GET /page%2f..%2fapi/tools HTTP/1.1\r\n" + HOST + CLOSE, {400}),
        (b"GET /healthz%00 HTTP/1.1\r\n" + HOST + CLOSE, {400}),
        (POST + b"Content-Length: -1\r\n" + CLOSE, {400}),
        (POST + b"Content-Length: " + b"9" * 5000 + b"\r\n" + CLOSE, {400, 413}),
        (POST + b"Content-Length: 999999999\r\n" + CLOSE, {413}),
        (POST + b"Content-Length: 999999999\r\nExpect: 100-continue\r\n" + CLOSE, {413}),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n" + CLOSE, {400}),
        (
            POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n" + CLOSE + b"0\r\n\r\n",
            {400},
        ),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n" + CLOSE + b"0\r\n\r\n", {400}),
        (POST + b"Transfer-Encoding: chunked\r\n" + CLOSE + b"zz\r\n\r\n", {400}),
        (
            b"POST /nothing HTTP/1.1\r\n"
            + HOST
            + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n\r\n",
            {400, 404},
        ),
    ],
)
def test_malformed_requests_get_the_standard_error_body(
    server: ServedApp, request_: bytes, statuses: set[int], capfd: pytest.CaptureFixture[str]
) -> None:
    status, headers, body = raw(server.rest.port, request_)
    assert status in statuses, body
    first, _ = json.JSONDecoder().raw_decode(body.decode())
    assert set(first["error"]) == {"code", "message", "details"}
    assert headers["x-content-type-options"] == "nosniff"
    assert is_served(server)
    assert "Traceback" not in capfd.readouterr().err


SMUGGLED: Final = b"GET /api/health HTTP/1.1\r\n" + HOST + b"\r\n"
LENGTH: Final = b"Content-Length: 4\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"


TOKENS_SENT: Final = (
    b"",
    *(b"Authorization: Bearer %s\r\n" % token for token in (b"ot_token-of-ada", b"wrong")),
)
TWO_LENGTHS: Final = (
    LENGTH + CHUNKED,
    CHUNKED + LENGTH,
    LENGTH + LENGTH + CHUNKED,
    LENGTH.lower() + CHUNKED.upper().replace(b"CHUNKED", b"chunked"),
    LENGTH + b"Transfer-Encoding:\tchunked \r\n",
    LENGTH + b"Transfer-Encoding: Chunked\r\n",
    LENGTH + b"Transfer-Encoding : chunked\r\n",
    LENGTH + b"Transfer-Encoding: identity\r\n",
    LENGTH + b"Transfer-Encoding: chunked, identity\r\n",
    LENGTH + b"Transfer-Encoding: x\r\n chunked\r\n",
    LENGTH + b"Transfer-Encoding: \x0bchunked\r\n",
    b"Content-Length: 4\r\nContent-Length: 5\r\n",
    b"Content-Length: 4, 5\r\n",
    b"Content-Length: +4\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
)


def test_a_body_with_two_lengths_closes_the_connection(server: ServedApp) -> None:
    """Further requests on the connection get no response."""
    for token, framing in itertools.product(TOKENS_SENT, TWO_LENGTHS):
        sent = b"POST /api/run HTTP/1.1\r\n" + HOST + token + framing + b"\r\n0\r\n\r\n" + SMUGGLED
        status, _, body = raw(server.rest.port, sent)
        assert status == 400, (token, framing)
        assert b"HTTP/1.1" not in body, (token, framing)
    assert is_served(server)


def test_forwarded_requests_do_not_act_as_the_owner(server: ServedApp) -> None:
    for name, value in {
        "CF-Connecting-IP": "192.0.2.1",
        "X-Anything": "192.0.2.1",
        "X-Envoy-Peer": "x",
    }.items():
        answer = server.rest.client.post("/api/run", json={"command": "1"}, headers={name: value})
        assert get_error_code(answer) == (401, "unauthorized")
        assert name.lower() in answer.json()["error"]["message"]


def test_a_tool_cannot_act_as_the_owner_through_the_servers_port(tmp_path: Path) -> None:
    """Tools cannot access either of two servers of one home, by any name or redirect."""
    settings = {
        "agents": {"ada": {"permissions": ["network"]}},
        "auth": SETTINGS["auth"] | {"tokens": SETTINGS["auth"]["tokens"][:1]},  # type: ignore[index, operator]
        "http": {"allowedHosts": ["*"], "allowPrivateAddresses": True},
    }
    with (
        serve_app(tmp_path, settings) as mine,
        serve_app(tmp_path, settings) as other,
        serve_site() as site,
    ):
        hosts = ("127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]", socket.gethostname())
        for port in (mine.rest.port, other.rest.port):
            urls = [f"http://{host}:{port}/api/run" for host in hosts]
            urls.append(site.url(f"/redirect-to?url=http://127.0.0.1:{port}/api/stats"))
            code = f"[http.get(url=url) for url in {urls!r}]"
            for command in [code, *(f"http.get(url={url!r})" for url in urls)]:
                ran = mine.rest.client.post(
                    "/api/run", json={"command": command}, headers=build_auth_header("ada")
                ).json()
                assert ran["isError"], ran
                assert (
                    "is a OneTool server" in ran["blocks"][-1]
                    or "is not known" in ran["blocks"][-1]
                )
        marked = {"onetool-outgoing": "1"}
        assert get_error_code(mine.rest.client.get("/api/tools", headers=marked)) == (
            401,
            "unauthorized",
        )


def send_whole(port: int, head: bytes, body: Iterator[bytes]) -> tuple[int, bytes]:
    """Send a whole request, then read the response like a simple client.

    Return its status and the rest of it.
    """
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as connection:
        connection.sendall(head)
        for piece in body:
            connection.sendall(piece)
        received = connection.recv(1 << 16)
        while b"}}" not in received:
            chunk = connection.recv(1 << 16)
            assert chunk, received
            received += chunk
    return int(received.split(b" ", 2)[1]), received


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: %d",
        b"Content-Length: %d\r\nExpect: 100-continue",
        b"Transfer-Encoding: chunked",
    ],
)
def test_a_client_that_sends_a_whole_large_body_gets_413(
    server: ServedApp, version: bytes, connection: bytes, framing: bytes
) -> None:
    size = 3 * MAX_BODY_BYTES
    piece = b" " * (1 << 20)
    pieces = [piece] * (size // len(piece))
    if b"chunked" in framing:
        pieces = [*(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]
    else:
        framing %= size
    head = b"POST /api/run HTTP/%s\r\n%sConnection: %s\r\n%s\r\n\r\n" % (
        version,
        HOST,
        connection,
        framing,
    )
    status, received = send_whole(server.rest.port, head, iter(pieces))
    assert status == 413, received
    assert is_served(server)


def test_every_route_answers_a_large_body_with_413(server: ServedApp) -> None:
    document = server.rest.get("/openapi.json")
    routes = [("post", "/mcp"), ("post", "/auth/callback"), ("post", "/nothing")]
    routes += [
        (method, path)
        for path, methods in document["paths"].items()
        for method in methods
        if method != "get"
    ]
    for method, path in routes:
        size = 2 * (MAX_IMPORT_BYTES if path in IMPORTS else MAX_BODY_BYTES)
        length = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % size
        head = b"%s %s HTTP/1.1\r\n%s%s" % (method.upper().encode(), path.encode(), HOST, length)
        status, received = send_whole(
            server.rest.port, head, itertools.repeat(b" " * (1 << 20), size >> 20)
        )
        assert status == 413, (method, path, received)


@pytest.mark.nightly
@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
def test_a_client_that_sends_a_large_body_slowly_gets_413(
    server: ServedApp, connection: bytes
) -> None:
    def drip() -> Iterator[bytes]:
        for _ in range(100):
            time.sleep(0.1)
            yield b" " * (size // 100)

    size = 2 * MAX_BODY_BYTES
    head = b"%sConnection: %s\r\nContent-Length: %d\r\n\r\n" % (POST, connection, size // 100 * 100)
    assert send_whole(server.rest.port, head, drip())[0] == 413


@pytest.mark.nightly
def test_an_endless_body_is_closed_at_its_limit(server: ServedApp) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 1 << 30:
            sent += 1 << 20
            yield b" " * (1 << 20)

    with contextlib.suppress(httpx2.TransportError):
        answer = server.rest.client.post(
            "/api/run", content=endless(), headers={"content-type": "application/json"}
        )
        assert answer.status_code == 413
    assert is_served(server)


def test_pipelined_requests_are_answered_in_order(server: ServedApp) -> None:
    asking = [
        b"GET /api/tools/machine.now HTTP/1.1\r\n",
        b"GET /healthz HTTP/1.1\r\n",
        b"GET /nothing HTTP/1.1\r\n",
    ] * 5
    whole = (
        b"".join(line + HOST + b"\r\n" for line in asking)
        + b"GET /healthz HTTP/1.1\r\n"
        + HOST
        + CLOSE
    )
    with socket.create_connection(("127.0.0.1", server.rest.port), TIMEOUT_SECONDS) as connection:
        connection.sendall(whole)
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
    statuses = [
        line.split(b" ")[1] for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")
    ]
    assert len(received.split(b"HTTP/1.1 ")) == 17
    assert statuses[:1] == [b"200"]


# --- cross-origin requests and other agents -------------------------------------------------------


@pytest.mark.slow
def test_every_route_rejects_wrong_hosts_and_origins(server: ServedApp) -> None:
    client = server.rest.client
    document = client.get("/openapi.json").json()
    routes = [(method, path) for path, methods in document["paths"].items() for method in methods]
    routes += [
        ("get", "/"),
        ("get", "/page/index.html"),
        ("post", "/mcp"),
        ("get", "/mcp"),
        ("get", "/openapi.json"),
    ]
    assert len(routes) > 20
    wrong: Sequence[dict[str, str]] = (
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    )
    for method, path in routes:
        for headers in wrong:
            for extra in ({}, build_auth_header("ada")):
                answer = client.request(method.upper(), path, headers={**headers, **extra})
                assert answer.status_code == 403, (method, path, headers)
                assert not any(name.startswith("access-control") for name in answer.headers)


def test_agents_cannot_access_each_others_data(server: ServedApp) -> None:
    client = server.rest.client
    ran = client.post("/api/run", json=LARGE, headers=build_auth_header("ada")).json()
    handle = json.loads(ran["blocks"][-1])["handle"]
    run = ran["runID"]
    for path in (f"/api/results/{handle}", f"/api/runs/{run}"):
        assert client.get(path, headers=build_auth_header("ada")).status_code == 200
        assert get_error_code(client.get(path, headers=build_auth_header("bob"))) == (
            404,
            "not_found",
        )
    stolen = {"command": f"ot.result({handle!r}, limit=1)"}
    assert client.post("/api/run", json=stolen, headers=build_auth_header("bob")).json()["isError"]
    assert not client.post("/api/run", json=stolen, headers=build_auth_header("ada")).json()[
        "isError"
    ]
    assert client.get("/api/runs", headers=build_auth_header("bob")).json()["runs"][0]["id"] != run
    called = {"args": {"handle": handle}}
    assert not client.post(
        "/api/tools/ot.result/call", json=called, headers=build_auth_header("bob")
    ).json()["ok"]


def test_a_result_belongs_to_one_token(server: ServedApp) -> None:
    client = server.rest.client
    ran = client.post("/api/run", json=LARGE, headers=build_auth_header("ada")).json()
    handle = json.loads(ran["blocks"][-1])["handle"]
    token_id = hashlib.sha256(TOKENS["ada"].encode()).hexdigest()[:TOKEN_ID_CHARS]
    image = server.onetool.media.put(b"picture", "image/png", "ada", token_id)
    for path in (f"/api/results/{handle}", f"/api/media/{image}"):
        assert client.get(path, headers=build_auth_header("ada")).status_code == 200
        assert get_error_code(client.get(path, headers=build_auth_header("ada-2"))) == (
            404,
            "not_found",
        )
    for code in (f"ot.result({handle!r}, limit=1)", f"ot.load({handle!r})"):
        answers = [
            client.post("/api/run", json={"command": code}, headers=build_auth_header(name)).json()
            for name in TOKENS
        ]
        assert [answer["isError"] for answer in answers] == [False, True, True]
        called = client.post(
            f"/api/tools/{code[: code.index('(')]}/call",
            json={"args": {"handle": handle}},
            headers=build_auth_header("ada-2"),
        )
        assert not called.json()["ok"]
    shown = {"command": f"{{'type': 'image', 'media': {image!r}}}"}
    media = [
        client.post("/api/run", json=shown, headers=build_auth_header(name)).json()["media"]
        for name in TOKENS
    ]
    assert [len(each) for each in media] == [1, 0, 0]


def test_the_owner_can_read_results_of_the_default_agents_tokens(server: ServedApp) -> None:
    results = server.onetool.results
    of_token = results.put("kept", tool="run", token_id="a" * TOKEN_ID_CHARS)["handle"]
    of_owner = results.put("kept", tool="run")["handle"]
    for handle in (of_token, of_owner):
        assert server.rest.get(f"/api/results/{handle}")["lines"] == ["kept"]


def test_statistics_of_a_run_belong_to_its_token_or_the_owner(server: ServedApp) -> None:
    def read_stats(command: str, **headers: str) -> Any:
        body = {"command": command, "format": "json"}
        return server.rest.client.post("/api/run", json=body, headers=headers).json()["blocks"][-1]

    for name in ("ada", "bob"):
        read_stats("ot.version()", **build_auth_header(name))
    count = "ot.stats()['total_calls']"
    assert [read_stats(count, **build_auth_header(name)) for name in ("ada", "bob")] == ["1", "1"]
    assert read_stats(count) == "4"
    called = server.rest.client.post(
        "/api/tools/ot.stats/call",
        json={"args": {"period": "month"}},
        headers=build_auth_header("ada"),
    )
    assert called.json()["value"]["total_calls"] == 2


def test_the_log_has_every_request_and_no_secrets(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", gathers=False)
    with serve_app(tmp_path / "data", SETTINGS, log=log) as server:
        client, headers = server.rest.client, {"x-request-id": "mine-1", **build_auth_header("ada")}
        answer = client.get("/api/tools/machine.now?note=hush-hush", headers=headers)
        assert answer.headers["x-request-id"] == "mine-1"
        client.get("/nothing/of-the-sort", headers={"authorization": "Bearer ot_hush-hush"})
    text = (tmp_path / "log").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines() if '"http.request"' in line]
    first = next(line for line in lines if line["correlation_id"] == "mine-1")
    assert (first["method"], first["route"], first["status"], first["agent"]) == (
        "GET",
        "/api/tools/{name}",
        400,
        "ada",
    )
    assert next(line for line in lines if line["status"] == 401)["route"] is None
    assert "hush" not in text
    assert TOKENS["ada"] not in text


def test_a_logged_run_has_its_request_id(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", gathers=False)
    protocol = "io.modelcontextprotocol"
    about = {f"{protocol}/protocolVersion": "2026-07-28", f"{protocol}/clientCapabilities": {}}
    params = {"name": "run", "arguments": {"command": "2"}, "_meta": about}
    with serve_app(tmp_path / "data", SETTINGS, log=log) as server:
        client, headers = (
            server.rest.client,
            {"x-request-id": "over-rest", **build_auth_header("ada")},
        )
        client.post("/api/run", json={"command": "1"}, headers=headers)
        kind = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
        }
        names = {"mcp-method": "tools/call", "mcp-name": "run", "x-request-id": "over-mcp"}
        sent = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        assert (
            client.post("/mcp", json=sent, headers={**headers, **kind, **names}).status_code == 200
        )
    lines = map(json.loads, (tmp_path / "log").read_text(encoding="utf-8").splitlines())
    assert [line["request_id"] for line in lines if line["name"] == "run"] == [
        "over-rest",
        "over-mcp",
    ]


# --- shutdown -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_endless_run_is_cancelled_on_shutdown(tmp_path: Path) -> None:
    with serve_process(tmp_path) as (server, info), make_client(info["url"]) as client:
        answers: list[httpx2.Response] = []
        asking = threading.Thread(
            target=lambda: answers.append(client.post("/api/run", json=SLEEP))
        )
        asking.start()
        with make_client(info["url"]) as other:
            assert eventually(lambda: other.get("/api/runs").json()["runs"])
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=TIMEOUT_SECONDS * 3)
        asking.join(TIMEOUT_SECONDS)
        assert get_error_code(answers[0]) == (503, "busy")
        assert server.returncode == 0
        assert "Traceback" not in err


def test_event_streams_do_not_delay_shutdown(tmp_path: Path) -> None:
    with serve_process(tmp_path) as (server, info), make_client(info["url"]) as client:
        with client.stream("GET", "/api/activity") as stream:
            assert next(stream.iter_lines()).startswith("event: start")
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=http_server.GRACE_SECONDS / 2)
        assert server.returncode == 0


@pytest.mark.slow
def test_no_result_is_lost_when_killed_under_load(tmp_path: Path) -> None:
    configure(tmp_path, "output: {max_inline_size: 200}")
    with serve_process(tmp_path) as (server, info):
        handles = _load_until_killed(server, info["url"])
    assert len(handles) > 10
    with (
        serve_process(tmp_path, "--port", str(info["port"])) as (_, again),
        make_client(again["url"]) as client,
    ):
        for handle in handles:
            kept = client.get(f"/api/results/{handle}", params={"limit": 1})
            assert kept.status_code == 200, kept.text
        assert client.post("/api/run", json={"command": "1+1"}).json()["blocks"] == ["2"]
        assert client.get("/readyz").text == "ready\n"


def _load_until_killed(server: subprocess.Popen[str], url: str) -> list[str]:
    """Return the handles that clients received before the server ended."""
    handles: list[str] = []

    def ask() -> None:
        with make_client(url) as client, contextlib.suppress(httpx2.TransportError):
            while True:
                ran = client.post("/api/run", json=LARGE).json()
                handles.append(json.loads(ran["blocks"][-1])["handle"])

    asking = [threading.Thread(target=ask) for _ in range(10)]
    for one in asking:
        one.start()
    assert eventually(lambda: len(handles) > 10, TIMEOUT_SECONDS * 3)
    server.kill()
    for one in asking:
        one.join(TIMEOUT_SECONDS)
    return handles


# --- rejected starts ------------------------------------------------------------------------------

WITHOUT: Final = """
import os, sys
from tests.e2e.missing_layers import pretend_that_this_kernel_has_no
pretend_that_this_kernel_has_no(sys.argv[1].split(","))
os.execv(sys.argv[2], sys.argv[2:])
"""
OPEN: Final = ("serve", "--http", "--host", "0.0.0.0", "--port", "0", "--json")
TOKEN: Final = "auth: {tokens: [{name: me, token_env: MY_TOKEN}]}"


def _start_server(home: Path, missing: str) -> "subprocess.Popen[str]":
    env = {
        **environment(home),
        "MY_TOKEN": "ot_open-sesame",
        "PYTHONPATH": str(Path(__file__).parent.parent.parent),
    }
    command = [sys.executable, "-c", WITHOUT, missing, PROGRAM, *OPEN]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=home, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("missing", ["landlock", "seccomp", "landlock,seccomp"])
def test_other_addresses_are_not_served_without_isolation(tmp_path: Path, missing: str) -> None:
    configure(tmp_path, TOKEN)
    with _start_server(tmp_path, missing) as server:
        out, err = server.communicate(timeout=TIMEOUT_SECONDS * 2)
    assert (server.returncode, out) == (1, "")
    assert missing.replace(",", ", ") in err
    assert "execution: {isolation: off}" in err
    assert "Traceback" not in err


@pytest.mark.nightly
def test_isolation_off_allows_other_addresses(tmp_path: Path) -> None:
    configure(tmp_path, f"{TOKEN}\nexecution: {{isolation: off}}")
    with _start_server(tmp_path, "landlock") as server:
        try:
            assert server.stdout is not None
            assert json.loads(server.stdout.readline())["host"] == "0.0.0.0"
        finally:
            server.kill()
