"""Test `onetool serve --http` as a process: output, signals and shutdown."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.http_support import Page, ReceivedRequest, send_response, serve_site
from tests.rest_support import (
    Rest,
    draft,
    get_error_code,
    http_draft,
    make_client,
    new_id,
    raw,
    serve_process,
)
from tests.support import PROGRAM, TIMEOUT_SECONDS, configure, environment, eventually, run_cli

from onetool.server.http.asgi_app import PARTS

LOOPBACK = "http: {allowedHosts: ['127.0.0.1'], allowPrivateAddresses: true}"


def test_the_server_prints_its_url_and_ends_on_a_signal(tmp_path: Path) -> None:
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        with serve_process(tmp_path) as (server, info):
            assert info["url"] == f"http://127.0.0.1:{info['port']}"
            with make_client(info["url"]) as client:
                assert client.get("/healthz").text == "ok\n"
            server.send_signal(signal_number)
            out, err = server.communicate(timeout=TIMEOUT_SECONDS)
            assert (server.returncode, out) == (0, "")
            parts = ", ".join(PARTS)
            assert err == f"onetool: listening on {info['url']} ({parts})\n"


def test_open_requests_finish_and_new_ones_are_rejected(tmp_path: Path) -> None:
    configure(tmp_path, LOOPBACK)
    with (
        serve_site() as site,
        serve_process(tmp_path) as (server, info),
        make_client(info["url"]) as client,
    ):
        rest = Rest(client)
        path = rest.tool(rest.bundle(), **http_draft(site.url("/slow")))
        release = threading.Event()
        site.pages["/slow"] = _make_page(release)
        answers: list[object] = []
        calling = threading.Thread(target=lambda: answers.append(rest.invoke(path).json()))
        calling.start()
        assert eventually(lambda: site.requests)
        server.send_signal(signal.SIGTERM)
        assert eventually(lambda: not _is_listening(info["port"]))
        release.set()
        calling.join(TIMEOUT_SECONDS)
        assert answers == [{"ok": True, "value": "late"}]
        server.communicate(timeout=TIMEOUT_SECONDS)
        assert server.returncode == 0


def _make_page(release: threading.Event) -> Page:
    async def show(_received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(release.wait, TIMEOUT_SECONDS)
        send_response(writer, b"late", ("Content-Type", "text/plain"))

    return show


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_a_second_signal_ends_immediately(tmp_path: Path) -> None:
    configure(tmp_path, LOOPBACK)
    with (
        serve_site() as site,
        serve_process(tmp_path) as (server, info),
        make_client(info["url"]) as client,
    ):
        rest = Rest(client)
        path = rest.tool(rest.bundle(), **http_draft(site.url("/never"), timeoutMs=60_000))
        with socket.create_connection(("127.0.0.1", info["port"])) as connection:
            body = b'{"args": {}}'
            head = (
                f"POST {path}/invoke HTTP/1.1\r\nHost: localhost\r\nContent-Type:"
                " application/json\r\n"
            )
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert eventually(lambda: site.requests)
            server.send_signal(signal.SIGINT)
            assert eventually(lambda: not _is_listening(info["port"]))
            server.send_signal(signal.SIGINT)
            _, err = server.communicate(timeout=TIMEOUT_SECONDS)
            assert "Traceback" not in err


def test_a_killed_client_and_an_incomplete_request_do_no_harm(tmp_path: Path) -> None:
    with serve_process(tmp_path) as (server, info):
        halves = []
        for _ in range(50):
            half = socket.create_connection(("127.0.0.1", info["port"]))
            half.sendall(
                b"PUT /tools/bundles/x HTTP/1.1\r\nHost: localhost\r\nContent-Length:"
                b" 100\r\n\r\nhalf"
            )
            halves.append(half)
        for half in halves[:25]:
            half.close()
        with make_client(info["url"]) as client:
            assert client.get("/tools").json() == {"tools": []}
        for half in halves[25:]:
            half.close()
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=TIMEOUT_SECONDS)
        assert "Traceback" not in err
    log = tmp_path / ".onetool" / "logs" / "onetool.log"
    assert "http.error" not in (log.read_text(encoding="utf-8") if log.exists() else "")


def test_malformed_requests_are_rejected_silently(tmp_path: Path) -> None:
    with serve_process(tmp_path) as (server, info):
        assert raw(info["port"], b"\x16\x03\x01 no HTTP\r\n\r\n")[0] == 400
        status, _, body = raw(info["port"], b"GET /tools HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert status == 400
        status, _, body = raw(info["port"], b"GET /tools HTTP/1.0\r\n\r\n")
        assert (status, json.loads(body)["error"]["code"]) == (400, "invalid")
        forwarded = (
            b"GET /tools HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 8.8.8.8\r\nConnection:"
            b" close\r\n\r\n"
        )
        assert raw(info["port"], forwarded)[0] == 401, "a forwarded request needs a token"
        upgrade = (
            b"GET /tools HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade,"
            b" close\r\n\r\n"
        )
        assert raw(info["port"], upgrade)[0] == 200
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=TIMEOUT_SECONDS)
        assert err.count("\n") == 1


def test_a_port_in_use_is_reported_with_a_hint(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        failed = run_cli(tmp_path, "serve", "--http", "--port", str(port))
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"onetool: cannot listen on 127.0.0.1: port {port} is in use")
    assert "--port 0" in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--http", "--host", "0.0.0.0", "--port", "0"), "no tokens exist"),
        (("--http", "--host", "192.0.2.1", "--port", "0"), "no tokens exist"),
        (("--http", "--host", "::", "--port", "0"), "no tokens exist"),
        (("--http", "--port", "70000"), "invalid port"),
        (("--http", "--port", "-1"), "invalid port"),
    ],
)
def test_invalid_addresses_are_reported(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    failed = run_cli(tmp_path, "serve", *arguments)
    assert failed.returncode == 1
    assert failed.stderr.startswith("onetool: ")
    assert expected in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize("option", [("--port", "1"), ("--json",)])
def test_http_options_without_http_are_reported(tmp_path: Path, option: tuple[str, ...]) -> None:
    failed = run_cli(tmp_path, "serve", *option)
    assert failed.returncode == 2
    assert "require --http" in failed.stderr


def test_other_addresses_are_served_with_a_token(tmp_path: Path) -> None:
    configure(tmp_path, "auth: {tokens: [{name: me, token_env: MY_TOKEN}]}")
    command = [PROGRAM, "serve", "--http", "--host", "0.0.0.0", "--port", "0", "--json"]
    env = {**environment(tmp_path), "MY_TOKEN": "ot_open-sesame"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["port"]
            with make_client(f"http://127.0.0.1:{port}") as client:
                assert get_error_code(client.get("/tools")) == (401, "unauthorized")
                assert client.get("/healthz").status_code == 200
                assert (
                    client.get(
                        "/tools", headers={"authorization": "Bearer ot_open-sesame"}
                    ).status_code
                    == 200
                )
        finally:
            os.kill(server.pid, signal.SIGKILL)


@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_other_loopback_names_are_served(tmp_path: Path, host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with serve_process(tmp_path, "--host", host) as (_, info), make_client(info["url"]) as client:
        assert client.get("/tools").json() == {"tools": []}


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_an_invalid_configuration_is_reported_and_nothing_is_stored(tmp_path: Path) -> None:
    configure(tmp_path, "stats: {enabeld: true}")
    with serve_process(tmp_path) as (server, info):
        with make_client(info["url"]) as client:
            answer = client.put(
                f"/tools/bundles/{new_id()}",
                json={"slug": "a", "displayName": "a", "isEnabled": True},
            )
            assert get_error_code(answer) == (503, "busy")
            assert "enabeld" in answer.text
            assert client.get("/healthz").status_code == 200
        server.send_signal(signal.SIGTERM)
        assert "enabeld" in server.communicate(timeout=TIMEOUT_SECONDS)[1]
    assert not (tmp_path / ".onetool" / "bundles").exists()


@pytest.mark.slow
def test_two_servers_and_the_cli_see_each_others_changes(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        rest, other = (Rest(stack.enter_context(_serve_client(tmp_path))) for _ in range(2))
        bundle = rest.bundle("my-machine")
        path = other.tool(bundle, "free-disk", **draft("machine.disk"))
        assert rest.invoke(path, {"unit": "MiB"}).json()["value"]["unit"] == "MiB"
        called = run_cli(tmp_path, "call", "my-machine.free-disk", "unit=GiB")
        assert json.loads(called.stdout)["unit"] == "GiB", called.stderr
        ran = run_cli(tmp_path, "run", "my_machine.free_disk(unit='GiB')['unit']")
        assert ran.stdout == "GiB\n", ran.stderr
        assert eventually(lambda: rest.get(path)["callCount"] == other.get(path)["callCount"] == 3)
        rest.switch(bundle, on=False)
        assert get_error_code(other.invoke(path)) == (409, "bundle_disabled")
        rejected = run_cli(tmp_path, "call", "my-machine.free-disk")
        assert rejected.returncode == 1
        assert "disabled" in rejected.stderr


@contextlib.contextmanager
def _serve_client(home: Path) -> Iterator[httpx2.Client]:
    with serve_process(home) as (_, info), make_client(info["url"]) as client:
        yield client
