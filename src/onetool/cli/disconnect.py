"""Disconnect a client: an assistant of the shared server, or an MCP session over HTTP. Without CLIENT, list them.

A disconnected assistant gets an error for each request in flight, and its connection ends. A session over HTTP is
unknown from then on; a client with a valid token may open a new one.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from onetool.cli.options import add_json, find_command_directories, print_json
from onetool.cli.terminal import format_table
from onetool.daemon_client import ask_daemon
from onetool.errors import ToolError
from onetool.util.text import pluralize, quote
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

HEADINGS = ("client", "name", "kind", "agent", "since", "last call", "process", "directory or URL")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("client", metavar="CLIENT", nargs="?", help="id of the client, its process, or its name")
    add_json(parser)


def main(options: Namespace) -> int:
    user = find_command_directories(options).user
    clients = [*_list_local(), *_list_http(user)]
    if options.client is None:
        return _show(clients, as_json=options.json)
    client = _choose(clients, options.client)
    _disconnect(user, client)
    if options.json:
        print_json({"disconnected": client["id"]}, indent=None)
    else:
        print(f"Disconnected {client['name'] or 'a client'} ({client['id']}).")
    return 0


def _list_local() -> list[JsonObject]:
    try:
        status = ask_daemon({"kind": "status"}) or {}
    except TimeoutError as error:
        raise ToolError(str(error), hint="see `onetool daemon logs`") from None
    return [{**client, "place": client["directory"], "url": ""} for client in status.get("clients", ())]


def _list_http(user: Path) -> list[JsonObject]:
    from onetool.cli.server_session import list_local_servers, open_session

    found = []
    for server in list_local_servers(user):
        with open_session(user, server.url) as session:
            listed = session.request("GET", "/api/clients")["clients"]
        found += [
            {**client, "pid": None, "place": server.url, "url": server.url}
            for client in listed
            if client["kind"] == "http"
        ]
    return found


def _choose(clients: list[JsonObject], wanted: str) -> JsonObject:
    found = [
        client
        for client in clients
        if wanted in {client["id"], str(client["pid"]), client["name"]}
        or (len(wanted) >= 4 and client["id"].startswith(wanted))  # noqa: PLR2004 - enough to be unique
    ]
    hint = "run `onetool disconnect` to list the connected clients"
    if not found:
        raise ToolError(f"no connected client {quote(wanted)}", hint=hint)
    if len(found) > 1:
        raise ToolError(f"{quote(wanted)} is ambiguous: {pluralize(len(found), 'client')} match", hint=hint)
    return found[0]


def _disconnect(user: Path, client: JsonObject) -> None:
    from onetool.cli.server_session import open_session

    if not client["url"]:
        ask_daemon({"kind": "disconnect", "argv": [client["id"]]})
        return
    with open_session(user, client["url"]) as session:
        session.request("DELETE", f"/api/clients/{client['id']}")


def _show(clients: list[JsonObject], *, as_json: bool) -> int:
    shown = [{name: value for name, value in client.items() if name not in {"place", "url"}} for client in clients]
    if as_json:
        print_json({"clients": shown})
    elif not clients:
        print("No clients are connected.")
    else:
        print("\n".join(format_table([HEADINGS, *map(_format_row, clients)])))
    return 0


def _format_row(client: JsonObject) -> tuple[str, ...]:
    last = client.get("last_call") or client.get("lastCall")
    name = " ".join(client["name"].split()) or "-"
    process = str(client["pid"] or "-")
    times = _to_time(client["since"]), _to_time(last) if last else "never"
    return client["id"], name, client["kind"], client.get("agent") or "-", *times, process, client["place"]


def _to_time(moment: float | str) -> str:
    return moment if isinstance(moment, str) else in_utc(moment, "seconds")
