"""Commands for running servers: ui, reload and disconnect."""

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.cli.command import Command, find_command_directories, print_result
from onetool.cli.invocation import Invocation
from onetool.cli.terminal import format_list
from onetool.errors import ToolError
from onetool.util.running_servers import (
    CODE_SECONDS,
    ServerEntry,
    create_code,
    list_servers,
    request_reload,
)
from onetool.util.text import pluralize, quote
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx2

    from onetool.admin.clients import ConnectedClientInfo

DEFAULT_SECONDS = 10.0
POLL_SECONDS = 0.05
HEADINGS = ("client", "name", "kind", "agent", "since", "last call", "process", "directory or URL")
MIN_PREFIX_CHARS = 4  # enough to be unique
TIMEOUT_SECONDS = 10.0


# --- ui -------------------------------------------------------------------------------------------


def _add_ui_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, metavar="PORT", help="port of the server, if several are running"
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the URL without opening a browser"
    )


def _open_ui(options: Namespace) -> int:
    directories = find_command_directories(options)
    server = _choose_server(
        list_servers(directories.user), options.port, str(directories.working_dir)
    )
    if not server.is_on_loopback:
        if (url := _find_sign_in(options)) is not None:
            return _show(options, url, {"url": url})
        raise ToolError(
            f"the server at {server.url} listens for other machines, so every browser needs a"
            " token",
            hint="open it and sign in with a token: onetool token create NAME --scope owner",
        )
    # The code is in the fragment, which browsers neither send to servers nor pass on.
    url = f"{server.url}/#/code/{create_code(directories.user)}"
    return _show(options, url, {"url": url, "expires_in_seconds": CODE_SECONDS})


def _choose_server(running: list[ServerEntry], port: int | None, directory: str) -> ServerEntry:
    """Return the HTTP server: the one on this port, the only one, or the one of this directory."""
    servers = [entry for entry in running if entry.url and port in {None, entry.port}]
    if not servers:
        where = "" if port is None else f" on port {port}"
        hint = "start one with `onetool serve --http`"
        if running:
            hint += (
                ", or set daemon: {http: true} in ~/.onetool/onetool.yaml and run `onetool daemon"
                " restart`"
            )
        raise ToolError(f"no HTTP server is running{where}", hint=hint)
    here = [entry for entry in servers if entry.directory == directory]
    if len(servers) > 1 and len(here) != 1:
        listed = ", ".join(f"{entry.port} ({entry.directory})" for entry in servers)
        raise ToolError(
            f"several HTTP servers are running: ports {listed}", hint="choose one with --port PORT"
        )
    return servers[0] if len(servers) == 1 else here[0]


def _find_sign_in(options: Namespace) -> str | None:
    """Return the URL at which people can sign in with an issuer, if the settings have one."""
    from onetool.settings.load import load

    loaded = load(find_command_directories(options), os.environ)
    auth = loaded.settings.auth
    return auth.public_url if any(issuer.client_id for issuer in auth.issuers) else None


def _show(options: Namespace, url: str, data: JsonObject) -> int:
    print_result(options, data, [url])
    sys.stdout.flush()
    if not (options.json or options.no_browser):
        _open_browser(url)
    return 0


def _open_browser(url: str) -> None:
    """Open the URL in `$BROWSER` or the usual browser. Without one, the person has the URL."""
    import contextlib
    import webbrowser

    with contextlib.suppress(webbrowser.Error, OSError):
        webbrowser.open(url)


# --- reload ---------------------------------------------------------------------------------------


def _add_reload_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="SECONDS",
        help=f"time to wait for responses, in seconds (default: {DEFAULT_SECONDS:g})",
    )


def _reload(options: Namespace) -> int:
    user = find_command_directories(options).user
    try:
        asked = [entry.pid for entry in list_servers(user)]
        generation = request_reload(user) if asked else 0
    except OSError as error:
        raise ToolError(
            f"cannot reach running servers: {user}: {error.strerror or error}"
        ) from None
    servers = _wait_for_answers(user, generation, options.timeout) if asked else []
    lines = [_describe(entry, generation) for entry in servers]
    print_result(
        options, {"servers": lines}, map(_render, lines) if lines else ["No server is running."]
    )
    return 0 if all(line["ok"] for line in lines) else 1


def _render(line: JsonObject) -> str:
    place = line["url"] or f"stdio in {line['directory']}"
    return f"{line['pid']} ({place}): {'' if line['ok'] else 'failed: '}{line['answer']}"


def _wait_for_answers(user: Path, generation: int, seconds: float) -> list[ServerEntry]:
    """Wait until all servers have answered or the time is over; return those that still run."""
    deadline = time.monotonic() + seconds
    while True:
        servers = list_servers(user)
        if all(entry.generation >= generation for entry in servers) or time.monotonic() > deadline:
            return servers
        time.sleep(POLL_SECONDS)


def _describe(entry: ServerEntry, generation: int) -> JsonObject:
    has_answered = entry.generation >= generation
    answer = entry.answer if has_answered else "no response in time; see its log"
    return {
        "pid": entry.pid,
        "url": entry.url or None,
        "directory": entry.directory,
        "ok": has_answered and entry.is_ok,
        "answer": answer,
    }


# --- disconnect -----------------------------------------------------------------------------------


def _add_disconnect_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "client", metavar="CLIENT", nargs="?", help="id of the client, its process, or its name"
    )


async def _disconnect(command: Invocation) -> None:
    from onetool.admin.clients import disconnect_client, list_clients

    user = command.app.directories.user
    clients = [(client, "") for client in (await command.do(list_clients)).clients]
    clients += _list_http(user)
    if command.options.client is None:
        lines = format_list(HEADINGS, (_format_row(client, url) for client, url in clients))
        command.show(
            {"clients": [client.model_dump() for client, _ in clients]},
            lines,
            "No clients are connected.",
        )
        return
    client, url = _choose_client(clients, command.options.client)
    if url:
        with open_session(user, url) as session:
            session.request("DELETE", f"/api/clients/{client.id}")
    else:
        await command.do(disconnect_client, client.id)
    command.show(
        {"disconnected": client.id}, [f"Disconnected {client.name or 'a client'} ({client.id})."]
    )


def _list_http(user: Path) -> "Iterator[tuple[ConnectedClientInfo, str]]":
    """Yield the clients of HTTP servers, with the URLs of the servers."""
    from onetool.admin.clients import ConnectedClientList

    for server in list_local_servers(user):
        with open_session(user, server.url) as session:
            answer = ConnectedClientList.parse(session.request("GET", "/api/clients"))
        yield from ((client, server.url) for client in answer.clients if client.kind == "http")


def _choose_client(
    clients: "Sequence[tuple[ConnectedClientInfo, str]]", word: str
) -> "tuple[ConnectedClientInfo, str]":
    matches = [
        (client, url)
        for client, url in clients
        if word in {client.id, str(client.process), client.name}
        or (len(word) >= MIN_PREFIX_CHARS and client.id.startswith(word))
    ]
    hint = "run `onetool disconnect` to list the connected clients"
    if not matches:
        raise ToolError(f"no connected client {quote(word)}", hint=hint)
    if len(matches) > 1:
        raise ToolError(
            f"{quote(word)} is ambiguous: {pluralize(len(matches), 'client')} match", hint=hint
        )
    return matches[0]


def _format_row(client: "ConnectedClientInfo", url: str) -> tuple[str, ...]:
    name = " ".join(client.name.split()) or "-"
    process = str(client.process or "-")
    times = client.since, client.last_call or "never"
    return (
        client.id,
        name,
        client.kind,
        client.agent or "-",
        *times,
        process,
        url or client.directory,
    )


# --- sessions with servers ------------------------------------------------------------------------


def list_local_servers(user: Path) -> list[ServerEntry]:
    """Return the running HTTP servers that listen on loopback only: others need a token."""
    return [entry for entry in list_servers(user) if entry.is_on_loopback]


class ServerSession:
    """Requests of the owner to one server."""

    def __init__(self, client: "httpx2.Client") -> None:
        self._client = client

    def request(self, method: str, path: str) -> Any:
        """Return the JSON response.

        Raise a ToolError with the message of the server if it is an error.
        """
        response = self._client.request(method, path)
        data = response.json()
        if response.is_success:
            return data
        raise ToolError(str(data["error"]["message"]), code=data["error"]["code"])


@contextmanager
def open_session(user: Path, url: str) -> Iterator[ServerSession]:
    """Sign in to a server, and sign out at the end. Raise a ToolError if it does not answer."""
    import httpx2

    try:
        with httpx2.Client(base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            answer = client.post("/api/session", json={"code": create_code(user)})
            answer.raise_for_status()
            client.headers["x-onetool-csrf"] = answer.json()["csrf"]
            yield ServerSession(client)
            client.delete("/api/session")
    except (httpx2.HTTPError, ValueError, KeyError) as error:
        raise ToolError(f"the server at {url} does not answer as expected: {error}") from None


UI_HELP = """\
Print a one-time URL of the admin UI, which signs you in as the owner, and open it in the
browser.
"""
DISCONNECT_HELP = """\
Disconnect a client: an assistant of the shared server, or an MCP session over HTTP.

Without CLIENT, list them.

A disconnected assistant gets an error for each request in flight, and its connection ends. A
session over HTTP is unknown from then on; a client with a valid token may open a new one.
"""
COMMANDS = {
    "ui": Command(
        UI_HELP,
        _add_ui_arguments,
        main=_open_ui,
        json="print the URL as JSON, without opening a browser",
    ),
    "reload": Command(
        "Reload the settings of your running servers and print their responses.",
        _add_reload_arguments,
        main=_reload,
    ),
    "disconnect": Command(
        DISCONNECT_HELP,
        _add_disconnect_arguments,
        execute=_disconnect,
        checks_settings=False,
    ),
}
