"""Helpers for tests of sign-ins: `onetool login` with a person who answers it."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from anyio.from_thread import start_blocking_portal
from tests.authorization_server import AuthorizationServer, approve, find_callback
from tests.support import PROGRAM, App, configure, environment

from onetool.app import OneTool
from onetool.net.oauth.pending import parse_callback
from onetool.net.oauth.sign_ins import identify
from onetool.settings.load import Loaded
from onetool.settings.model import Settings
from onetool.settings.paths import Directories
from onetool.util.logging import Log

URL = re.compile(r"https?://\S*code_challenge\S*")


def configure_server(
    home: Path, server: AuthorizationServer, auth: Any = "oauth", **more: Any
) -> None:
    """Write settings with the protected server `gh`."""
    settings = {"servers": {"gh": {"url": server.url, **({"auth": auth} if auth else {}), **more}}}
    configure(home, yaml.safe_dump(settings))


def start_login(home: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PROGRAM, "login", *arguments],
        cwd=home,
        env={**environment(home), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def read_url(process: "subprocess.Popen[str]") -> str:
    """Return the authorization URL that the command prints."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if found := URL.search(line):
            return found[0]
    assert process.stderr is not None
    raise AssertionError(f"no authorization URL: {seen}{process.stderr.read()}")


def login(home: Path, *arguments: str, user: str = "ada", paste: bool = False) -> str:
    """Sign in with the command and return its output.

    With `paste`, the person pastes the callback URL.
    """
    with start_login(home, *arguments, "--no-browser") as process:
        url = read_url(process)
        if not paste:
            assert "Signed in" in approve(url, user).text
        output, errors = process.communicate(
            f"{find_callback(url, user)}\n" if paste else None, timeout=40
        )
    assert process.returncode == 0, output + errors
    return output


@contextmanager
def open_signed_app(folder: Path, settings: dict[str, Any], **options: Any) -> Iterator[App]:
    """Open OneTool in this process with its credentials in this directory."""
    directories = Directories(working_dir=folder, user=folder / ".onetool")
    loaded = Loaded(Settings.model_validate(settings), {}, (), (), directories)
    with start_blocking_portal("asyncio") as portal:
        onetool = OneTool(read=lambda: loaded, **{"log": Log(), **options})
        with portal.wrap_async_context_manager(onetool) as app:
            yield App(portal, app)


def sign_in(
    app: App, name: str = "gh", user: str = "ada", account: str = "", agent: str = "default"
) -> None:
    """Sign in within this process."""

    async def begin() -> str:
        identity = identify(await app.onetool.sign_ins.find_target(name), account, agent)
        return (await app.onetool.sign_ins.begin(identity, "http://127.0.0.1:9/callback")).url

    callback = find_callback(app.portal.call(begin), user)
    app.portal.call(app.onetool.sign_ins.finish, parse_callback(callback))


def call_as(app: App, name: str, agent: str = "default", account: str = "") -> Any:
    """Call a tool with an account, and return its value or raise its error."""
    from dataclasses import replace

    async def call() -> Any:
        context = replace(app.onetool.context(agent), account=account)
        return (await app.onetool.bus.call_tool(name, {}, context)).unwrap()

    return app.portal.call(call)
