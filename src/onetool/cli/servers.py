"""Show, add and remove upstream servers, start and stop them, and accept changed tool definitions."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from onetool.cli.approver import can_confirm, confirm_person
from onetool.cli.command import Actions, Command, add_edit_options
from onetool.cli.invocation import Invocation, check_settings, open_app
from onetool.errors import ToolError
from onetool.util.text import pluralize, quote
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.admin.servers import ServerStatus
    from onetool.admin.sign_ins import ServerSignIn
    from onetool.app import OneTool


def add_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser, _list)
    actions.add("list", _list, "Show the servers and their sign-ins (the default)")
    text = "Accept a server's new and changed tool definitions and update its pins"
    accept = actions.add("accept", _accept, text)
    accept.add_argument("server", metavar="SERVER", help="name of the server in onetool.yaml")
    accept.add_argument(
        "--token",
        metavar="TOKEN",
        help="token of scope approve, to accept hints without a terminal",
    )
    add = actions.add(
        "add", _add, "Add a server: by its URL, or by the command after -- that starts it"
    )
    add.usage = "onetool servers add [options] NAME (--url URL | -- COMMAND [ARGUMENT ...])"
    add.add_argument(
        "server", metavar="NAME", help="name of the server, which code uses to call its tools"
    )
    add.add_argument("--url", metavar="URL", help="URL of a server over HTTP")
    add.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable; can be repeated",
    )
    add.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="header; can be repeated",
    )
    remove = actions.add("remove", _remove, "Remove a server from the settings")
    enable = actions.add("enable", _enable, "Enable a server")
    disable = actions.add("disable", _enable, "Disable a server without removing it")
    start = actions.add("start", _start, "Start a server in the shared server and list its tools")
    stop = actions.add("stop", _start, "Stop a server; the next call starts it again")
    for action in (remove, enable, disable, start, stop):
        action.add_argument("server", metavar="NAME", help="name of the server in onetool.yaml")
    add_edit_options(add, chooses_file=True)
    add_edit_options(remove, enable, disable)


def check(options: Namespace) -> None:
    if options.action != "add":
        return
    if (options.url is None) == (not options.following):
        options.usage_error("expected --url URL, or the command of the server after --")
    if (options.env and options.url) or (options.header and not options.url):
        options.usage_error("--env is for commands, and --header is for URLs")


async def _accept(command: Invocation) -> None:
    """Accept what a server offers. Its hints lower effects, so that a person must confirm them."""
    from onetool.admin.servers import PinAcceptance, accept_tools
    from onetool.sources.upstream.definitions import digest

    options = command.options
    output = command.output
    with output.progress(f"listing the tools of {options.server}"):
        upstream = await command.app.servers.list_now(options.server)
    tools = upstream.tools
    changes = {**tools.differences.changed, **tools.differences.new}
    if not options.json:
        differences = [
            f"{options.server}.{tool}:\n{difference}" for tool, difference in changes.items()
        ]
        output.write("\n\n".join(differences) or f"{options.server}: no changes.")
        output.write("\n")
    accepts_hints = bool(tools.claims) and await _confirm_claims(tools.claims, options)
    seen = PinAcceptance(digest=digest(tools.definitions))
    await command.do(accept_tools, options.server, seen, accepts_hints=accepts_hints)
    names = ", ".join(changes)
    done = (
        f"\n{options.server}: accepted {names}. Run `onetool reload` to apply it to running"
        " servers."
    )
    if options.json or changes:
        command.show({"server": options.server, "accepted": changes}, [done])


async def _confirm_claims(claims: Mapping[str, str], options: Namespace) -> bool:
    """Return whether a person accepts what tools say about themselves.

    Raise if the person does not want it.
    """
    if not can_confirm(options.token):
        print(
            f"{options.server}: what its tools say about their effects was not accepted. "
            "Hint: run the command in a terminal, or use --token TOKEN",
            file=sys.stderr,
        )
        return False
    lines = [f"{options.server} says about its tools, and policies will rely on it:"]
    async with open_app(options, is_guarded=True) as app:
        check_settings(app)
        await confirm_person(
            app, options.token, [*lines, *(f"  {tool}: {text}" for tool, text in claims.items())]
        )
    return True


# --- editing --------------------------------------------------------------------------------------


async def _add(command: Invocation) -> None:
    from onetool.admin.servers import ServerAddition, add_servers

    options = command.options
    if options.url is None:
        program, *arguments = options.following
        settings = {"command": program, "args": arguments, "env": _read_pairs(options.env, "=")}
    else:
        settings = {"url": options.url, "headers": _read_pairs(options.header, ":")}
    settings = {key: value for key, value in settings.items() if value}
    addition = ServerAddition.parse({"name": options.server, "settings": settings})
    edited = await command.do(
        add_servers, command.edit_query, addition, directory=command.directory
    )
    command.show_edit(edited, servers=[options.server])


async def _remove(command: Invocation) -> None:
    from onetool.admin.servers import remove_server

    edited = await command.do(remove_server, command.options.server, command.edit_query)
    command.show_edit(edited)


async def _enable(command: Invocation) -> None:
    from onetool.admin.servers import change_server
    from onetool.admin.settings_edits import SettingsPatch

    patch = SettingsPatch(
        settings={"enabled": None if command.options.action == "enable" else False}
    )
    server = command.options.server
    edited = await command.do(change_server, server, query=command.edit_query, body=patch)
    command.show_edit(edited)


def _read_pairs(texts: list[str], separator: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, has_separator, value = text.partition(separator)
        if not has_separator or not name.strip():
            raise ToolError(f"invalid value {quote(text)}: expected NAME{separator}VALUE")
        pairs[name.strip()] = value.strip() if separator == ":" else value
    return pairs


# --- reading --------------------------------------------------------------------------------------


async def _start(command: Invocation) -> None:
    from onetool.admin.servers import start_server, stop_server

    name = command.options.server
    is_start = command.options.action == "start"
    with command.output.progress(f"{'starting' if is_start else 'stopping'} {name}"):
        server = await command.do(start_server if is_start else stop_server, name)
    fields = server.model_dump(include={"name", "kind", "state", "problem", "tool_count"})
    command.show(fields, [f"{name}: {server.state}, {_count_tools(server)}"])


async def _list(command: Invocation) -> None:
    """Print the servers and their sign-ins, from files. Nothing is started."""
    from onetool.admin.servers import list_servers
    from onetool.admin.sign_ins import list_sign_ins

    servers = (await command.do(list_servers)).servers
    sign_ins: dict[str, list[ServerSignIn]] = {server.name: [] for server in servers}
    for sign_in in (await command.do(list_sign_ins, of_all_agents=True)).sign_ins:
        sign_ins[sign_in.name].append(sign_in)
    data = {
        "servers": [_describe(command.app, server, sign_ins[server.name]) for server in servers]
    }
    lines = (line for server in servers for line in _render(server, sign_ins[server.name]))
    command.show(data, lines, "No servers. To add one: onetool servers add NAME --url URL")


def _render(server: "ServerStatus", sign_ins: "list[ServerSignIn]") -> Iterator[str]:
    yield (
        f"{server.name}  {server.kind}, {_count_tools(server) if server.is_enabled else 'disabled'}"
    )
    yield from map(_render_sign_in, sign_ins)


def _count_tools(server: "ServerStatus") -> str:
    if server.tool_count is None:
        return "tools not listed yet"
    return pluralize(server.tool_count, "tool")


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


COMMANDS = {
    "servers": Command(
        __doc__,
        add_arguments,
        check=check,
        local_actions={"accept"},  # it asks in the terminal
        takes_command=True,  # after `--`
    )
}
