"""Disconnect a client: an assistant of the shared server, or an MCP session over HTTP.

Without CLIENT, list them.

A disconnected assistant gets an error for each request in flight, and its connection ends. A
session over HTTP is unknown from then on; a client with a valid token may open a new one.
"""

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from onetool.cli.invocation import Invocation
from onetool.cli.terminal import format_list
from onetool.errors import ToolError
from onetool.util.text import pluralize, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from onetool.admin.clients import ConnectedClientInfo

LOCAL = True  # a server does not ask itself
CHECKS_SETTINGS = False
HEADINGS = ("client", "name", "kind", "agent", "since", "last call", "process", "directory or URL")
MIN_PREFIX_CHARS = 4  # enough to be unique


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "client", metavar="CLIENT", nargs="?", help="id of the client, its process, or its name"
    )


async def execute(command: Invocation) -> None:
    from onetool.admin.clients import disconnect_client, list_clients
    from onetool.cli.server_session import open_session

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
    client, url = _choose(clients, command.options.client)
    if url:
        with open_session(user, url) as session:
            session.request("DELETE", f"/api/clients/{client.id}")
    else:
        await command.do(disconnect_client, client.id)
    command.show(
        {"disconnected": client.id}, [f"Disconnected {client.name or 'a client'} ({client.id})."]
    )


def _list_http(user: "Path") -> "Iterator[tuple[ConnectedClientInfo, str]]":
    """Yield the clients of HTTP servers, with the URLs of the servers."""
    from onetool.admin.clients import ConnectedClientList
    from onetool.cli.server_session import list_local_servers, open_session

    for server in list_local_servers(user):
        with open_session(user, server.url) as session:
            answer = ConnectedClientList.parse(session.request("GET", "/api/clients"))
        yield from ((client, server.url) for client in answer.clients if client.kind == "http")


def _choose(
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
