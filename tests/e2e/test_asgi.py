"""OneTool mounted in applications of Starlette and FastAPI, served by uvicorn, with real clients."""

import asyncio
import contextlib
import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from mcp import Client
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.support import eventually, get_texts, list_descendants

import onetool
from onetool import ToolError
from onetool.server.http.mounted_app import AsgiApp
from onetool.util.token_ids import hash_token

TOKEN = "ot_0123456789abcdef0123456789abcdef"
SETTINGS = {"auth": {"tokens": [{"name": "test", "hash": hash_token(TOKEN), "agent": "default"}]}}


def own_address() -> str:
    """Return an address of this machine that is not a loopback address; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@contextlib.contextmanager
def serve(app: Any, lifespan: Any = "auto", host: str = "127.0.0.1") -> Iterator[str]:
    """Serve an application and yield its URL."""
    server = uvicorn.Server(
        uvicorn.Config(app, host=host, port=0, lifespan=lifespan, log_level="error")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert eventually(lambda: server.started or not thread.is_alive())
        assert server.started
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def request(
    url: str, headers: Mapping[str, str] | None = None, body: object = None
) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    sent = urllib.request.Request(
        url, data, {"content-type": "application/json", **(headers or {})}
    )
    try:
        with urllib.request.urlopen(sent, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def run_over_mcp(url: str, code: str) -> str:
    async def run() -> str:
        async with Client(url) as client:
            return "\n".join(get_texts(await client.call_tool("run", {"command": code})))

    return asyncio.run(run())


def in_starlette(mounted: AsgiApp) -> Any:
    return Starlette(routes=[Mount("/tools/one", mounted)], lifespan=mounted.lifespan)


def in_fastapi(mounted: AsgiApp) -> Any:
    app = FastAPI()
    app.mount("/tools/one", mounted)
    return app


@pytest.mark.parametrize("mount", [in_starlette, in_fastapi])
def test_a_mounted_application_serves_everything(
    tmp_path: Path, mount: Callable[[AsgiApp], Any]
) -> None:
    before = list_descendants(os.getpid())
    with serve(mount(onetool.asgi(SETTINGS, folder=tmp_path))) as url:
        base = f"{url}/tools/one"
        assert run_over_mcp(f"{base}/mcp", "6 * 7") == "42"
        status, text = request(f"{base}/api/run", body={"command": "1 + 1"})
        assert (status, json.loads(text)["blocks"]) == (200, ["2"])
        assert request(f"{base}/healthz") == (200, "ok\n")
        status, page = request(f"{base}/")
        assert status == 200
        assert 'src="page/main.js"' in page
        assert request(f"{base}/page/main.js")[0] == 200
        assert request(f"{base}/nothing")[0] == 404
        assert request(f"{url}/api/tools")[0] == 404  # outside of the prefix
        assert list_descendants(os.getpid()) - before
    assert eventually(lambda: not list_descendants(os.getpid()) - before)


@pytest.mark.slow
def test_it_is_served_alone_with_the_lifespan_of_the_server(tmp_path: Path) -> None:
    app = onetool.asgi(folder=tmp_path, settings={})
    for _ in range(2):  # on a new event loop each time
        with serve(app, lifespan="on") as url:
            assert run_over_mcp(f"{url}/mcp", "'alone'") == "alone"


@pytest.mark.slow
def test_a_token_is_needed_by_everyone_else(tmp_path: Path) -> None:
    address = own_address()
    authorized = {"authorization": f"Bearer {TOKEN}"}
    with serve(in_fastapi(onetool.asgi(SETTINGS, folder=tmp_path)), host="0.0.0.0") as url:
        path = f"{url}/tools/one/api/tools"
        assert request(path)[0] == 200
        assert request(path, authorized)[0] == 200
        assert request(path, {"x-forwarded-for": "198.51.100.7"})[0] == 401
        assert request(path, {"host": "evil.example"})[0] == 403
        assert request(path, {"origin": "http://evil.example"})[0] == 403
        assert request(path, {"authorization": "Bearer ot_wrong"})[0] == 401
        if address:
            outside = path.replace("127.0.0.1", address)
            assert request(outside)[0] == 401
            assert request(outside, {"host": "localhost"})[0] == 401
            assert request(outside, authorized)[0] == 200
    with serve(onetool.asgi(SETTINGS, folder=tmp_path, require_token=True)) as url:
        assert request(f"{url}/api/tools")[0] == 401
        assert request(f"{url}/api/tools", authorized)[0] == 200


@pytest.mark.slow
def test_without_tokens_no_other_machine_is_served(tmp_path: Path) -> None:
    if not (address := own_address()):
        pytest.skip("this machine has only loopback addresses")
    with serve(onetool.asgi({}, folder=tmp_path), host="0.0.0.0") as url:
        status, text = request(f"{url.replace('127.0.0.1', address)}/healthz")
        assert status == 403
        assert "no tokens exist" in text
        assert request(f"{url}/healthz")[0] == 200


def test_settings_that_must_not_be_served_stop_the_server(tmp_path: Path) -> None:
    app = onetool.asgi({"auth": {"allowed_hosts": ["tools.example.com"]}}, folder=tmp_path)

    async def start() -> list[Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            sent.append(message)

        await app({"type": "lifespan"}, receive, send)
        return sent

    with pytest.raises(ToolError, match=r"auth\.tokens"):
        onetool.asgi({"auth": {"tokens": 3}})
    (message,) = asyncio.run(start())
    assert message["type"] == "lifespan.startup.failed"
    assert "no tokens exist" in message["message"]
