"""A server with settings files that people edit, in a thread, and clients with tokens of every
scope.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
from anyio.from_thread import start_blocking_portal
from tests.proxy_support import HOSTILE
from tests.rest_support import Rest, make_client
from tests.support import TIMEOUT_SECONDS, configure, environment

from onetool.app import OneTool
from onetool.server.http.http_server import HttpServer
from onetool.settings.settings_reader import examine_settings, read_settings
from onetool.util.logging import Log
from onetool.util.token_ids import hash_token

TOKENS: Final = {
    scope: f"ot_{scope}-token-of-ada" for scope in ("use", "approve", "admin", "owner")
}
SETTINGS: Final = """\
# Settings of the team
servers:
  # changes its mind
  moody: {{command: {python}, args: [{script}, changes, {notes}], pin: strict}}  # strict on purpose
agents:
  default:
    permissions: [read, network]  # no writing
  reviewer: {{permissions: [read], tools: [fs, machine]}}
auth:
  tokens:
{tokens}
# the end
"""


@dataclass(frozen=True)
class EditedHome:
    """A running server and its home directory. Tokens belong to the agent `reviewer`."""

    rest: Rest
    onetool: OneTool
    home: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.rest.port}"

    @property
    def text(self) -> str:
        return (self.home / ".onetool" / "onetool.yaml").read_text("utf-8")

    def send(
        self, method: str, path: str, body: object = None, scope: str = "owner", **headers: str
    ) -> httpx2.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if scope:
            sent["authorization"] = f"Bearer {TOKENS[scope]}"
        return self.rest.send(method, path, body, headers=sent)

    def get(self, path: str, scope: str = "owner") -> Any:
        answer = self.send("GET", path, scope=scope)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def audited(self) -> list[dict[str, Any]]:
        """Return the changes in the audit log."""
        lines = (self.home / ".onetool" / "logs" / "audit.jsonl").read_text("utf-8").splitlines()
        return [record for record in map(json.loads, lines) if record["name"] == "change"]


def make_settings(home: Path) -> str:
    lines = (
        f"    - {{name: {scope}, hash: {hash_token(token)}, agent: reviewer, scope: {scope}}}"
        for scope, token in TOKENS.items()
    )
    names = {"python": sys.executable, "script": HOSTILE, "notes": home, "tokens": "\n".join(lines)}
    return SETTINGS.format_map(names)


@contextlib.contextmanager
def serve_home(home: Path, **variables: str) -> Iterator[EditedHome]:
    configure(home, make_settings(home))
    env = {**environment(home), **variables}
    with start_blocking_portal("asyncio") as portal:
        onetool = OneTool(
            read=lambda: read_settings(env, home, None, home),
            examine=lambda: examine_settings(env, home, None, home),
            environment=env,
            log=Log(),
        )
        with portal.wrap_async_context_manager(onetool) as app:
            server = HttpServer(app, "127.0.0.1", 0)
            running = portal.start_task_soon(server.run, lambda _bind: None)
            try:
                with make_client(f"http://127.0.0.1:{server.bind.port}") as client:
                    yield EditedHome(Rest(client), app, home)
            finally:
                portal.call(server.stop)
                running.result(TIMEOUT_SECONDS)
