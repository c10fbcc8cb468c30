"""Show upstream servers and whether you are signed in, or accept changed tool definitions."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onetool.cli.app_runner import run_with_settings
from onetool.cli.terminal import Progress
from onetool.render import render

if TYPE_CHECKING:
    from onetool.app import OneTool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="Show the servers and their sign-ins (the default)")
    accept = actions.add_parser("accept", help="Accept a server's new and changed tool definitions and update its pins")
    accept.add_argument("server", metavar="SERVER", help="name of the server in onetool.yaml")
    for action in (listing, accept):
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def main(options: argparse.Namespace) -> int:
    async def accept(app: "OneTool") -> int:
        with Progress(f"listing the tools of {options.server}"):
            changed = await app.servers.accept(options.server)
        if options.json:
            print(render({"server": options.server, "accepted": changed}, "json"))
        else:
            print(_describe_changes(options.server, changed))
        return 0

    async def show(app: "OneTool") -> int:
        servers = [await _describe_server(app, name) for name in app.settings.servers]
        if options.json:
            print(render({"servers": servers}, "json"))
        else:
            print("\n".join(map(_render_server, servers)) or "No servers. Add one under servers: in onetool.yaml.")
        return 0

    return run_with_settings(options, accept if options.action == "accept" else show)


async def _describe_server(app: "OneTool", name: str) -> dict[str, Any]:
    """Return the state of a server from files. Nothing is started."""
    from onetool.oauth.sign_ins import make_server_target

    server, upstream = app.settings.servers[name], app.servers.upstream(name)
    await upstream.load_cached()
    target = make_server_target(name, server)
    identities = [] if target is None else await app.sign_ins.list_identities(target)
    states = [await app.sign_ins.describe(each) for each in identities]
    first = states[0] if states else {}
    uses_oauth = server.auth is not None or bool(server.accounts) or any(each["signed_in"] for each in states)
    return {
        "name": name,
        "enabled": server.enabled,
        "kind": "stdio" if server.url is None else server.transport,
        "tools": len(upstream.definitions) if upstream.is_known else None,
        "auth": "oauth" if uses_oauth else "header" if server.headers else None,
        "signed_in": first["signed_in"] if uses_oauth else None,
        "user": first.get("user"),
        "expires_at": first.get("expires_at"),
        "sign_ins": states if uses_oauth else [],
    }


def _render_server(server: Mapping[str, Any]) -> str:
    tools = "tools not listed yet" if server["tools"] is None else f"{server['tools']} tools"
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


def _describe_changes(server: str, changed: Mapping[str, str]) -> str:
    """Return a summary with the differences, so that the user sees what was accepted."""
    if not changed:
        return f"{server}: no changes."
    differences = "\n\n".join(f"{server}.{tool}:\n{difference}" for tool, difference in changed.items())
    accepted = f"{server}: accepted {', '.join(changed)}. Run `onetool reload` to apply it to running servers."
    return f"{differences}\n\n{accepted}"
