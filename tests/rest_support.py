"""An HTTP server for tests, on loopback, in a thread or in its own process.

`Rest` is a client with helpers for tests of bundles.
"""

import contextlib
import json
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import uuid_utils
from anyio.from_thread import start_blocking_portal
from tests.support import PROGRAM, TIMEOUT_SECONDS, environment

from onetool.app import OneTool
from onetool.server.http.http_server import HttpServer
from onetool.server.http.request_checks import Bind
from onetool.settings.load import Loaded
from onetool.settings.model import Settings
from onetool.settings.paths import Directories
from onetool.util.logging import Log
from onetool_child.json_types import JsonObject

UNKNOWN: Final = "0192f0c1-7a10-7c3e-9d2b-3f5a6b7c8d9e"


def new_id() -> str:
    return str(uuid_utils.uuid7())


def new_slug() -> str:
    return f"b-{uuid_utils.uuid7().hex}"


@dataclass(frozen=True)
class Rest:
    client: httpx2.Client

    @property
    def port(self) -> int:
        return int(self.client.base_url.port or 0)

    def send(self, method: str, path: str, body: object = None, **options: Any) -> httpx2.Response:
        given: dict[str, Any] = {} if body is None else {"json": body}
        return self.client.request(method, path, **given, **options)

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON of a successful GET request."""
        answer = self.client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def bundle(self, slug: str = "", *, enabled: bool = True) -> str:
        """Create a bundle and return its path."""
        path = f"/tools/bundles/{new_id()}"
        body = {"slug": slug or new_slug(), "displayName": "A bundle", "isEnabled": enabled}
        answer = self.send("PUT", path, body)
        assert answer.status_code == 201, answer.text
        return path

    def tool(self, bundle: str, slug: str = "now", version: str = "1.0", **fields: Any) -> str:
        """Create a tool and return its path."""
        path = f"{bundle}/tools/{slug}/version/{version}"
        answer = self.send("PUT", path, fields if "type" in fields else {**draft(), **fields})
        assert answer.status_code == 201, answer.text
        return path

    def invoke(self, tool: str, args: Mapping[str, Any] | None = None) -> httpx2.Response:
        return self.send("POST", f"{tool}/invoke", {"args": dict(args or {})})

    def switch(self, path: str, *, on: bool) -> JsonObject:
        answer = self.send("PATCH", path, {"isEnabled": on})
        assert answer.status_code == 200, answer.text
        shown: JsonObject = answer.json()
        return shown

    def pages(self, path: str, kind: str, **parameters: Any) -> Iterator[list[JsonObject]]:
        """Yield all pages."""
        token: dict[str, str] = {}
        while True:
            page = self.get(path, **parameters, **token)
            yield page[kind]
            if "nextPageToken" not in page:
                return
            token = {"pageToken": page["nextPageToken"]}

    def all(self, path: str, kind: str, **parameters: Any) -> list[JsonObject]:
        return [item for page in self.pages(path, kind, **parameters) for item in page]


def draft(function: str = "sample.give") -> JsonObject:
    """Return the body of a tool that echoes its arguments."""
    return {
        "displayName": "Now",
        "isEnabled": True,
        "type": "python",
        "pythonImpl": {"function": function},
    }


def http_draft(url: str, **impl: Any) -> JsonObject:
    given = {"method": "GET", "urlTemplate": url, **impl}
    return {"displayName": "A page", "isEnabled": True, "type": "http", "httpImpl": given}


def get_error_code(answer: httpx2.Response) -> tuple[int, str]:
    """Return the error of a response and check the form of its body."""
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert set(error) == {"code", "message", "details"}
    assert error["message"]
    assert isinstance(error["details"], dict)
    return answer.status_code, error["code"]


@dataclass(frozen=True)
class ServedApp:
    """A server. `change` applies other settings, as a reload does."""

    rest: Rest
    onetool: OneTool
    change: Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def serve_app(
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    tools: Iterable[object] = (),
    secrets: Mapping[str, str] | None = None,
    log: Log | None = None,
    *,
    port: int = 0,
) -> Iterator[ServedApp]:
    """Start a server in a thread, with its data in the directory."""
    directories = Directories(working_dir=folder, user=folder)

    def load(settings: Mapping[str, Any]) -> Loaded:
        return Loaded(Settings.model_validate(settings), secrets or {}, (), (), directories)

    loaded = load(settings or {})
    with start_blocking_portal("asyncio") as portal:
        onetool = OneTool(read=lambda: loaded, log=log or Log())

        def change(settings: Mapping[str, Any]) -> None:
            nonlocal loaded
            loaded = load(settings)
            portal.call(onetool.live_settings.apply)

        with portal.wrap_async_context_manager(onetool) as app:
            for tool in tools:
                app.bus.register_tool(tool)
            server = HttpServer(app, "127.0.0.1", port)
            running = portal.start_task_soon(server.run, _ignore_bind)
            try:
                with make_client(f"http://127.0.0.1:{server.bind.port}") as client:
                    yield ServedApp(Rest(client), app, change)
            finally:
                portal.call(server.stop)
                running.result(TIMEOUT_SECONDS)


def _ignore_bind(_bind: Bind) -> None:
    """Ignore readiness: the socket accepts connections before the server is ready."""


def make_client(url: str) -> httpx2.Client:
    return httpx2.Client(base_url=url, timeout=TIMEOUT_SECONDS * 3, trust_env=False)


# --- in a separate process ------------------------------------------------------------------------


@contextlib.contextmanager
def serve_process(
    home: Path, *arguments: str, cwd: Path | None = None
) -> Iterator[tuple[subprocess.Popen[str], JsonObject]]:
    """Start `onetool serve --http` on a free port and yield its process and output."""
    command = [PROGRAM, "serve", "--http", "--port", "0", "--json", *arguments]
    pipe = subprocess.PIPE
    server = subprocess.Popen(
        command,
        cwd=cwd or home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        encoding="utf-8",
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, server.communicate(timeout=TIMEOUT_SECONDS)
        yield server, json.loads(line)
    finally:
        server.kill()
        server.communicate()


def raw(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send raw bytes and return status, headers and body of the response."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as connection:
        connection.sendall(request)
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    return int(first.split(" ")[1]), headers, body
