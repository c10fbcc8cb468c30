"""The commands login and logout, and notes about servers that need a sign-in."""

import asyncio
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Collection
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onetool.cli.command import Command, choose_stream
from onetool.cli.invocation import Invocation, identify_owner
from onetool.cli.terminal import CommandOutput, Progress
from onetool.errors import ToolError
from onetool.settings.paths import Directories
from onetool.util.text import pluralize
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.net.oauth.credential import Identity, SignInTarget

PROBE_SECONDS = 3.0  # for all servers together; a server that does not answer is not mentioned
UNAUTHORIZED = 401


# --- login ----------------------------------------------------------------------------------------


def _add_login_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="name of the server in onetool.yaml, or of a bundle"
    )
    parser.add_argument(
        "--account",
        default="",
        metavar="ACCOUNT",
        help="account of the server (default: the first)",
    )
    parser.add_argument(
        "--agent",
        default="default",
        metavar="AGENT",
        help="agent to sign in for (default: default)",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the URL instead of opening a browser"
    )
    parser.add_argument(
        "--device", action="store_true", help="enter a code on another device (device flow)"
    )


async def _login(command: Invocation) -> None:
    from onetool.admin.sign_ins import describe_sign_in
    from onetool.net.oauth.sign_ins import identify

    app = command.app
    options = command.options
    output = command.output
    if options.agent not in app.settings.agents:
        raise ToolError(
            f"unknown agent {options.agent!r}: expected {', '.join(sorted(app.settings.agents))}"
        )
    identity = identify(
        await app.sign_ins.find_target(options.name), options.account, options.agent
    )
    if identity.target.is_machine:
        with output.progress(f"signing in to {identity.label}"):
            await app.sign_ins.get_source(identity).get()
    elif options.device:
        await _use_device(app, identity, options)
    else:
        await _use_callback(app, identity, options)
    state = (await describe_sign_in(app, identity)).model_dump()
    tools = await _list_tools(app, identity, output)
    command.show({**state, "tools": tools}, [_describe(identity, state, tools)])


async def _use_callback(app: "OneTool", identity: "Identity", options: Namespace) -> None:
    """Sign in with a callback on loopback.

    The port is chosen first, because the client is registered with it.
    """
    from onetool.admin.sign_ins import begin_sign_in
    from onetool.net.oauth.pending import PENDING_SECONDS, LoopbackCallback

    stored = await app.sign_ins.get_source(identity).read()
    last_port = urlsplit(stored.redirect_uri).port if stored is not None else None
    fixed = identity.target.settings.callback_port
    async with LoopbackCallback().listen(*((fixed,) if fixed else (last_port or 0, 0))) as callback:
        with Progress(f"looking for the authorization server of {identity.label}"):
            pending = await begin_sign_in(app, identify_owner(), identity, callback.redirect_uri)
        callback.accept(partial(app.sign_ins.try_to_finish, pending))
        _show_url(pending.url, identity, options)
        if not options.no_browser and not await asyncio.to_thread(_open_browser, pending.url):
            _note("No browser was found. Open the URL yourself.", options)

        await callback.wait(
            PENDING_SECONDS, lambda problem: print(f"onetool: {problem}", file=sys.stderr)
        )


def _show_url(url: str, identity: "Identity", options: Namespace) -> None:
    host = urlsplit(url).netloc
    _note(f"Sign in to {identity.label} at {host}:\n\n{url}\n", options)
    _note(
        "If the browser cannot reach this machine, paste the URL of the page it ends at here.",
        options,
    )


async def _use_device(app: "OneTool", identity: "Identity", options: Namespace) -> None:
    with Progress(f"looking for the authorization server of {identity.label}"):
        codes, credential = await app.sign_ins.begin_device(identity)
    _note(
        f"To sign in to {identity.label}, open {codes.verification_uri} and enter the code", options
    )
    _note(f"\n    {codes.user_code}\n", options)
    await app.sign_ins.finish_device(identity, codes, credential)


def _note(text: str, options: Namespace) -> None:
    print(text, file=choose_stream(options), flush=True)


def _open_browser(url: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False


async def _list_tools(app: "OneTool", identity: "Identity", output: CommandOutput) -> int | None:
    """Connect and list the tools, so that other processes know them.

    Return their number; None for an API.
    """
    name = identity.target.name
    if name not in app.settings.servers or not app.settings.servers[name].enabled:
        return None
    try:
        with output.progress(f"listing the tools of {name}"):
            return await app.servers.upstream(name).list_as(identity)
    except ToolError as error:
        output.error(f"onetool: signed in, but the server cannot be used: {error}\n")
        return None


def _describe(identity: "Identity", state: JsonMapping, tools: int | None) -> str:
    user = f" as {state['user']}" if state["user"] else ""
    listed = "" if tools is None else f" It has {pluralize(tools, 'tool')}."
    expiry = (
        f" until {state['expires_at']}" if state["expires_at"] and not state["refreshes"] else ""
    )
    return f"Signed in to {identity.label}{user}{expiry}.{listed}"


# --- logout ---------------------------------------------------------------------------------------


def _add_logout_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="name of the server in onetool.yaml, or of a bundle"
    )
    parser.add_argument(
        "--account", default=None, metavar="ACCOUNT", help="account of the server (default: all)"
    )
    parser.add_argument(
        "--agent", default=None, metavar="AGENT", help="agent that was signed in for (default: all)"
    )


async def _logout(command: Invocation) -> None:
    from onetool.admin.sign_ins import sign_out_all

    options = command.options
    name = options.name
    ended = await sign_out_all(
        command.app, command.person, name, account=options.account, agent=options.agent
    )
    labels = ", ".join(dict.fromkeys(ended))
    line = f"Signed out of {labels}." if ended else f"{name}: not signed in."
    command.show({"name": name, "signed_out": bool(ended)}, [line])


# --- sign-in notes --------------------------------------------------------------------------------


def find_sign_in_notes(directories: Directories, names: Collection[str] | None = None) -> list[str]:
    """Return a line for each of these servers (or all) that lacks a required sign-in."""
    from onetool.net.oauth.sign_ins import make_server_target
    from onetool.settings.load import load
    from onetool.state.credentials import CredentialFile, CredentialStore

    try:
        settings = load(directories, os.environ).settings
        with closing(CredentialFile(directories.user)) as database:
            signed_in = {key.resource for key in CredentialStore(database).list_keys()}
    except ToolError:  # the command itself reports it, or `onetool doctor` does
        return []
    servers = {
        name: server
        for name, server in settings.servers.items()
        if server.enabled and (names is None or name in names)
    }
    targets = [
        target
        for name, server in servers.items()
        if (target := make_server_target(name, server)) is not None
    ]
    missing = [
        target for target in targets if target.url not in signed_in and not target.is_machine
    ]
    rejecting = asyncio.run(_probe([target for target in missing if target.is_optional]))
    found = [
        target.name for target in missing if not target.is_optional or target.name in rejecting
    ]
    return [f"{name} requires a sign-in: onetool login {name}" for name in found]


async def _probe(targets: "Collection[SignInTarget]") -> set[str]:
    """Return the servers that answer 401 to a request without a token."""
    from onetool.net import ANY_HOST, Net
    from onetool.net.oauth.guarded_http import PROBES, GuardedHttp

    net = Net(ANY_HOST)
    names = set[str]()

    async def probe(target: "SignInTarget") -> None:
        with suppress(ToolError):
            answer = await GuardedHttp(net, target.url).post_json(
                target.url, PROBES[0], "url", target.headers
            )
            challenge = answer.header("www-authenticate") or ""
            if answer.status == UNAUTHORIZED and target.accepts_sign_in(challenge):
                names.add(target.name)

    tasks = [asyncio.ensure_future(probe(each)) for each in targets]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=PROBE_SECONDS)
        for task in late:
            task.cancel()
    await net.close()
    return names


COMMANDS = {
    "login": Command(
        "Sign in to an upstream server or an API with OAuth.",
        _add_login_arguments,
        execute=_login,
    ),
    "logout": Command(
        "Sign out of an upstream server or an API: delete its tokens here and revoke them there.",
        _add_logout_arguments,
        execute=_logout,
    ),
}
