"""Run the MCP server on stdio, or over HTTP with --http."""

import gc
import json
import signal
import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from typing import TYPE_CHECKING

from onetool.cli.invocation import run_with_app
from onetool.cli.terminal import print_notices
from onetool.util.text import pluralize

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.server.http.request_checks import Bind

HANGUP = getattr(signal, "SIGHUP", None)
HOST = "127.0.0.1"
PORT = 8765
STATUS = """\
onetool {version} is an MCP server. An assistant starts it and connects to its standard input.
{tools} in {packs} {are} ready. {connected}

Next: {next}

Other commands:
  onetool demo          Run a short demonstration
  onetool run 'CODE'    Run code as an assistant would
  onetool tools         List tools
  onetool doctor        Check the installation
  onetool --help        Show all commands\
"""
JSON = "print the URL as JSON (requires --http)"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--http", action="store_true", help="serve over HTTP instead of stdio")
    parser.add_argument(
        "--host", metavar="HOST", help=f"address to listen on (default: {HOST}; requires --http)"
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="PORT",
        help=f"port to listen on (default: {PORT}; 0 for any free port; requires --http)",
    )
    parser.add_argument(
        "--standalone",
        action="store_true",
        help="serve in this process instead of through the shared server",
    )
    parser.add_argument(
        "--expose",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="tools, packs or servers to publish as MCP tools, in addition to `run`",
    )


def main(options: Namespace) -> int:
    gc.disable()  # until everything is imported, none of which is garbage
    if HANGUP is not None:  # it means reload, once the server has started
        signal.signal(HANGUP, signal.SIG_IGN)
    if options.http:
        return _serve_http(options)
    if options.host is not None or options.port is not None or options.json:
        options.usage_error("--host, --port and --json require --http")
    return run_with_app(
        options, _show_status if sys.stdin.isatty() else partial(_serve, names=options.expose)
    )


async def _serve(app: "OneTool", names: list[str]) -> int:
    from onetool.server.mcp.mcp_server import serve_stdio

    await _expose(app, names)
    relax_collector()
    await serve_stdio(app)
    return 0


def relax_collector() -> None:
    """Run the garbage collector rarely and exclude long-lived objects, because full collections
    stall the server.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


async def _expose(app: "OneTool", names: list[str]) -> None:
    """Publish these tools, packs or servers. Raise if one of them does not exist."""
    if names:
        from onetool.server.mcp.exposed_tools import check

        app.exposed = tuple(names)
        await check(app)


async def _show_status(app: "OneTool") -> int:
    """Print what is installed and connected, without starting upstream servers."""
    from anyio.to_thread import run_sync as run_in_thread

    from onetool.util.version import __version__

    await app.discover(())
    await app.bundles.refresh()
    tools = len(app.registry)
    packs = len(app.registry.packs())
    connected, what_next = await run_in_thread(_clients)
    if app.config_error is not None:
        what_next = f"fix the settings; nothing runs until then:\n{app.config_error}"
    shown = {
        "tools": pluralize(tools, "tool"),
        "packs": pluralize(packs, "pack"),
        "are": "is" if tools == 1 else "are",
    }
    print(STATUS.format(version=__version__, connected=connected, next=what_next, **shown))
    for problem in app.problems:
        print(f"\nonetool: note: {problem}", file=sys.stderr)
    return 0


def _clients() -> tuple[str, str]:
    """Return the connected assistants and the next step, as text."""
    from onetool.cli import connect

    machine = connect.current_machine()
    titles = [client.title for client in connect.find_connected_clients(machine)]
    if titles:
        return f"Connected: {', '.join(titles)}.", f'ask your assistant: "{connect.QUESTION}"'
    return (
        "No assistant is connected.",
        f"onetool connect {connect.suggest_client(machine)} --write",
    )


# --- HTTP -----------------------------------------------------------------------------------------


def _serve_http(options: Namespace) -> int:
    host = HOST if options.host is None else options.host
    port = PORT if options.port is None else options.port

    async def serve(app: "OneTool") -> int:
        from onetool.server.http.http_server import serve_http

        if app.config_error is not None:
            print(f"onetool: invalid settings:\n{app.config_error}", file=sys.stderr)
        print_notices(app.problems)
        await _expose(app, options.expose)
        relax_collector()
        await serve_http(app, host, port, lambda bind: _print_url(bind, as_json=options.json))
        return 0

    return run_with_app(options, serve)


def _print_url(bind: "Bind", *, as_json: bool) -> None:
    from onetool.server.http.asgi_app import PARTS

    print(f"onetool: listening on {bind.url} ({', '.join(PARTS)})", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps({"url": bind.url, "host": bind.host, "port": bind.port}), flush=True)
