"""Show, add and remove upstream servers, and accept changed tool definitions."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from onetool.cli.app_runner import check_settings
from onetool.cli.approver import can_confirm, confirm_person, open_guarded
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_json
from onetool.cli.settings_edits import add_edit_options, choose_directory, print_edit, read_query
from onetool.cli.terminal import CommandOutput
from onetool.errors import ToolError
from onetool.util.text import pluralize, quote
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.admin.servers import ServerStatus
    from onetool.admin.settings_edits import EditResult
    from onetool.admin.sign_ins import ServerSignIn
    from onetool.app import OneTool

LOCAL = True  # it changes settings as the owner, and asks in the terminal
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
    add_edit_options(remove, enable, disable)


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    check_settings(app, output)
    if options.action == "accept":
        return await _accept(app, options, output)
    if options.action in {None, "list"}:
        await _list(app, options, output)
    elif options.action == "add":
        print_edit(app, options, output, await _add(app, options), servers=[options.server])
    else:
        print_edit(app, options, output, await _change(app, options))
    return 0


async def _accept(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    """Accept what a server offers. Its hints lower effects, so that a person must confirm them."""
    from onetool.admin.servers import PinAcceptance, accept_tools
    from onetool.proxy.definitions import digest

    with output.progress(f"listing the tools of {options.server}"):
        upstream = await app.servers.list_now(options.server)
    tools = upstream.tools
    changes = {**tools.differences.changed, **tools.differences.new}
    if not options.json:
        differences = [f"{options.server}.{tool}:\n{difference}" for tool, difference in changes.items()]
        output.write("\n\n".join(differences) or f"{options.server}: no changes.")
        output.write("\n")
    accepts_hints = bool(tools.claims) and await _confirm_claims(tools.claims, options)
    seen = PinAcceptance(digest=digest(tools.definitions))
    await accept_tools(app, identify_owner(), options.server, seen, accepts_hints=accepts_hints)
    if options.json:
        output.write_json({"server": options.server, "accepted": changes})
    elif changes:
        names = ", ".join(changes)
        output.write(f"\n{options.server}: accepted {names}. Run `onetool reload` to apply it to running servers.\n")
    return 0


async def _confirm_claims(claims: Mapping[str, str], options: Namespace) -> bool:
    """Return whether a person accepts what tools say about themselves. Raise if the person does not want it."""
    if not can_confirm(options.token):
        print(
            f"{options.server}: what its tools say about their effects was not accepted. "
            "Hint: run the command in a terminal, or use --token TOKEN",
            file=sys.stderr,
        )
        return False
    lines = [f"{options.server} says about its tools, and policies will rely on it:"]
    async with open_guarded(options) as app:
        await confirm_person(app, options.token, [*lines, *(f"  {tool}: {text}" for tool, text in claims.items())])
    return True


# --- editing ---------------------------------------------------------------------------------------------------------


async def _add(app: "OneTool", options: Namespace) -> "EditResult":
    from onetool.admin.servers import ServerAddition, add_servers

    if (options.url is None) == (not options.following):
        options.usage_error("expected --url URL, or the command of the server after --")
    if (options.env and options.url) or (options.header and not options.url):
        options.usage_error("--env is for commands, and --header is for URLs")
    if options.url is None:
        command, *arguments = options.following
        settings = {"command": command, "args": arguments, "env": _read_pairs(options.env, "=")}
    else:
        settings = {"url": options.url, "headers": _read_pairs(options.header, ":")}
    settings = {key: value for key, value in settings.items() if value}
    addition = ServerAddition.parse({"name": options.server, "settings": settings})
    directory = choose_directory(app, options)
    return await add_servers(app, identify_owner(), read_query(options), addition, directory=directory)


async def _change(app: "OneTool", options: Namespace) -> "EditResult":
    from onetool.admin.servers import change_server, remove_server
    from onetool.admin.settings_edits import SettingsPatch

    query = read_query(options)
    if options.action == "remove":
        return await remove_server(app, identify_owner(), options.server, query)
    patch = SettingsPatch(settings={"enabled": None if options.action == "enable" else False})
    return await change_server(app, identify_owner(), options.server, query=query, body=patch)


def _read_pairs(texts: list[str], separator: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise ToolError(f"invalid value {quote(text)}: expected NAME{separator}VALUE")
        pairs[name.strip()] = value.strip() if separator == ":" else value
    return pairs


# --- reading ---------------------------------------------------------------------------------------------------------


async def _list(app: "OneTool", options: Namespace, output: CommandOutput) -> None:
    """Print the servers and their sign-ins, from files. Nothing is started."""
    from onetool.admin.servers import list_servers
    from onetool.admin.sign_ins import list_sign_ins

    servers = (await list_servers(app, identify_owner())).servers
    sign_ins: dict[str, list[ServerSignIn]] = {server.name: [] for server in servers}
    for sign_in in (await list_sign_ins(app, identify_owner(), of_all_agents=True)).sign_ins:
        sign_ins[sign_in.name].append(sign_in)
    if options.json:
        output.write_json({"servers": [_describe(app, server, sign_ins[server.name]) for server in servers]})
    elif not servers:
        output.write("No servers. To add one: onetool servers add NAME --url URL\n")
    for server in [] if options.json else servers:
        tools = "tools not listed yet" if server.tool_count is None else pluralize(server.tool_count, "tool")
        output.write(f"{server.name}  {server.kind}, {tools if server.is_enabled else 'disabled'}\n")
        output.write_lines(map(_render_sign_in, sign_ins[server.name]))


def _describe(app: "OneTool", server: "ServerStatus", sign_ins: "list[ServerSignIn]") -> JsonObject:
    first = sign_ins[0].model_dump() if sign_ins else {}
    headers = app.settings.servers[server.name].headers
    return {
        "name": server.name,
        "enabled": server.is_enabled,
        "kind": server.kind,
        "tools": server.tool_count,
        "auth": "oauth" if sign_ins else "header" if headers else None,
        **{key: first.get(key) for key in ("signed_in", "user", "expires_at")},
        "sign_ins": [sign_in.model_dump(exclude={"name"}) for sign_in in sign_ins],
    }


def _render_sign_in(sign_in: "ServerSignIn") -> str:
    account = f" --account {sign_in.account}" if sign_in.account else ""
    agent = f" --agent {sign_in.agent}" if sign_in.agent not in {None, "default"} else ""
    parts = filter(None, [sign_in.account, sign_in.agent and f"agent {sign_in.agent}"])
    label = " ".join(parts) or "all agents"
    if not sign_in.signed_in:
        return f"  {label}: not signed in: onetool login {sign_in.name}{account}{agent}"
    user = f" as {sign_in.user}" if sign_in.user else ""
    expiry = f", token expires {sign_in.expires_at}" if sign_in.expires_at else ""
    return f"  {label}: signed in{user}{expiry}"
