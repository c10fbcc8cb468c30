"""Show, add and remove upstream servers, and accept changed tool definitions."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync as run_in_thread

from onetool.cli.app_runner import run_with_settings
from onetool.cli.approver import RunJournal, can_confirm, confirm_person, open_journal
from onetool.cli.options import add_json
from onetool.cli.settings_changes import SettingsCommand, add_edit_options
from onetool.cli.terminal import Progress
from onetool.core.render import render
from onetool.errors import ToolError
from onetool.proxy.definitions import digest
from onetool.util.text import pluralize, quote
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.editing.planned_edit import PlannedEdit
    from onetool.editing.settings_editor import SettingsEditor

TAKES_COMMAND = True  # after `--`


def add_arguments(parser: ArgumentParser) -> None:
    add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="Show the servers and their sign-ins (the default)")
    accept = actions.add_parser("accept", help="Accept a server's new and changed tool definitions and update its pins")
    accept.add_argument("server", metavar="SERVER", help="name of the server in onetool.yaml")
    accept.add_argument("--token", metavar="TOKEN", help="token of scope approve, to accept hints without a terminal")
    add_json(listing, accept)
    usage = "onetool servers add [options] NAME (--url URL | -- COMMAND [ARGUMENT ...])"
    summary = "Add a server: by its URL, or by the command after -- that starts it"
    add = actions.add_parser("add", help=summary, usage=usage)
    add.add_argument("server", metavar="NAME", help="name of the server, which code uses to call its tools")
    add.add_argument("--url", metavar="URL", help="URL of a server over HTTP")
    add.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="environment variable; can be repeated"
    )
    add.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="header; can be repeated")
    remove = actions.add_parser("remove", help="Remove a server from the settings")
    enable = actions.add_parser("enable", help="Enable a server")
    disable = actions.add_parser("disable", help="Disable a server without removing it")
    for action in (remove, enable, disable):
        action.add_argument("server", metavar="NAME", help="name of the server in onetool.yaml")
    add_edit_options(add, chooses_file=True)
    for action in (remove, enable, disable):
        add_edit_options(action)


def main(options: Namespace) -> int:
    if options.action == "accept":
        with open_journal(options) as journal:
            return run_with_settings(options, lambda app: _accept(app, journal, options))
    if options.action in {None, "list"}:
        return run_with_settings(options, lambda app: _show(app, as_json=options.json))
    with SettingsCommand(options) as command:
        return _add(command, options) if options.action == "add" else _edit(command, options)


async def _accept(app: "OneTool", journal: RunJournal, options: Namespace) -> int:
    """Accept what a server offers. Its hints lower effects, so that a person must confirm them."""
    with Progress(f"listing the tools of {options.server}"):
        upstream = await app.servers.list_now(options.server)
    tools = upstream.tools
    changes = {**tools.differences.changed, **tools.differences.new}
    if not options.json:
        differences = [f"{options.server}.{tool}:\n{difference}" for tool, difference in changes.items()]
        print("\n\n".join(differences) or f"{options.server}: no changes.")
    confirm = partial(_confirm_claims, journal, tools.claims, options)
    accepts_hints = bool(tools.claims) and await run_in_thread(confirm, abandon_on_cancel=True)
    await app.servers.accept(options.server, digest(tools.definitions), accepts_hints=accepts_hints)
    if options.json:
        print(render({"server": options.server, "accepted": changes}, "json"))
    elif changes:
        names = ", ".join(changes)
        print(f"\n{options.server}: accepted {names}. Run `onetool reload` to apply it to running servers.")
    return 0


def _confirm_claims(journal: RunJournal, claims: Mapping[str, str], options: Namespace) -> bool:
    """Return whether a person accepts what tools say about themselves. Raise if the person does not want it."""
    if not can_confirm(options.token):
        print(
            f"{options.server}: what its tools say about their effects was not accepted. "
            "Hint: run the command in a terminal, or use --token TOKEN",
            file=sys.stderr,
        )
        return False
    lines = [f"{options.server} says about its tools, and policies will rely on it:"]
    confirm_person(journal, options.token, [*lines, *(f"  {tool}: {text}" for tool, text in claims.items())])
    return True


async def _show(app: "OneTool", *, as_json: bool) -> int:
    servers = [await _describe_server(app, name) for name in app.settings.servers]
    if as_json:
        print(render({"servers": servers}, "json"))
    else:
        print("\n".join(map(_render_server, servers)) or "No servers. To add one: onetool servers add NAME --url URL")
    return 0


# --- editing ---------------------------------------------------------------------------------------------------------


def _add(command: SettingsCommand, options: Namespace) -> int:
    import os

    from onetool.editing.server_changes import PlannedServers, ServerChanges

    if (options.url is None) == (not options.following):
        options.usage_error("expected --url URL, or the command of the server after --")
    if options.url is None:
        settings = {
            "command": options.following[0],
            "args": options.following[1:],
            "env": _read_pairs(options.env, "="),
        }
    else:
        settings = {"url": options.url, "headers": _read_pairs(options.header, ":")}
    if (options.env and options.url) or (options.header and not options.url):
        options.usage_error("--env is for commands, and --header is for URLs")
    settings = {key: value for key, value in settings.items() if value}
    planned: list[PlannedServers] = []

    def plan(editor: "SettingsEditor") -> "PlannedEdit":
        changes = ServerChanges(editor, command.loaded.directories, os.environ, command.directory)
        planned.append(changes.plan_new(options.server, settings))
        return planned[-1].edit

    def list_notes() -> list[str]:
        return command.describe_servers(planned[-1].result)

    return command.edit(plan, list_notes, servers=[options.server])


def _edit(command: SettingsCommand, options: Namespace) -> int:
    from onetool.editing.planned_edit import ItemChange

    def plan(editor: "SettingsEditor") -> "PlannedEdit":
        item = editor.find("servers", options.server)
        if item.value is None:
            known = ", ".join(command.loaded.settings.servers) or "none"
            raise ToolError(f"no server named {quote(options.server)}", hint=f"configured servers: {known}")
        value = None
        if options.action != "remove":
            value = {key: each for key, each in item.value.items() if key != "enabled"}
            value |= {"enabled": False} if options.action == "disable" else {}
        return editor.plan(f"servers.{options.action}", [ItemChange("servers", options.server, value)])

    return command.edit(plan)


def _read_pairs(texts: list[str], separator: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise ToolError(f"invalid value {quote(text)}: expected NAME{separator}VALUE")
        pairs[name.strip()] = value.strip() if separator == ":" else value
    return pairs


# --- reading ---------------------------------------------------------------------------------------------------------


async def _describe_server(app: "OneTool", name: str) -> JsonObject:
    """Return the state of a server from files. Nothing is started."""
    from onetool.oauth.sign_ins import make_server_target

    server = app.settings.servers[name]
    session = app.servers.upstream(name).main
    await session.load_cached()
    target = make_server_target(name, server)
    identities = [] if target is None else await app.sign_ins.list_identities(target)
    states = [await app.sign_ins.describe(each) for each in identities]
    first = states[0] if states else {}
    uses_oauth = server.auth is not None or bool(server.accounts) or any(each["signed_in"] for each in states)
    return {
        "name": name,
        "enabled": server.enabled,
        "kind": "stdio" if server.url is None else server.transport,
        "tools": len(session.tools.definitions) if session.is_known else None,
        "auth": "oauth" if uses_oauth else "header" if server.headers else None,
        "signed_in": first["signed_in"] if uses_oauth else None,
        "user": first.get("user"),
        "expires_at": first.get("expires_at"),
        "sign_ins": states if uses_oauth else [],
    }


def _render_server(server: JsonMapping) -> str:
    tools = "tools not listed yet" if server["tools"] is None else pluralize(server["tools"], "tool")
    parts = [server["kind"], tools if server["enabled"] else "disabled"]
    lines = [f"{server['name']}  {', '.join(parts)}"]
    for each in server["sign_ins"]:
        account = f" --account {each['account']}" if each["account"] else ""
        agent = f" --agent {each['agent']}" if each["agent"] not in {None, "default"} else ""
        label = " ".join([*filter(None, [each["account"], each["agent"] and f"agent {each['agent']}"])]) or "all agents"
        user = f" as {each['user']}" if each["user"] else ""
        expiry = f", token expires {each['expires_at']}" if each["expires_at"] else ""
        hint = f"not signed in: onetool login {server['name']}{account}{agent}"
        lines.append(f"  {label}: {f'signed in{user}{expiry}' if each['signed_in'] else hint}")
    return "\n".join(lines)
