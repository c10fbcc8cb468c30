"""Sign in to an upstream server or an API with OAuth."""

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onetool.cli.invocation import Invocation, identify_owner
from onetool.cli.options import choose_stream
from onetool.cli.terminal import CommandOutput, Progress
from onetool.errors import ToolError
from onetool.util.text import pluralize
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.net.oauth.credential import Identity


LOCAL = True  # it opens a browser and listens on this machine


def add_arguments(parser: ArgumentParser) -> None:
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


async def execute(command: Invocation) -> None:
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
    known = urlsplit(stored.redirect_uri).port if stored is not None else None
    fixed = identity.target.settings.callback_port
    async with LoopbackCallback().listen(*((fixed,) if fixed else (known or 0, 0))) as callback:
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
