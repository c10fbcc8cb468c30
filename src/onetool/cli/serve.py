"""Run the MCP server on standard input and output, for an assistant to talk to; or, with --http, as a web server."""

import argparse
import gc
import json
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

from onetool.cli.opening import with_onetool
from onetool.cli.terminal import print_notices
from onetool_child.summary import number

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.faces.http.gate import Bind

HANGUP = getattr(signal, "SIGHUP", None)
HOST, PORT = "127.0.0.1", 8765
STATUS = """\
onetool {version}: this is an MCP server, it waits for an assistant on standard input.
{tools} in {packs} {are} ready. {connected}

Next: {next}

Or type:
  onetool demo          see what it does
  onetool run 'CODE'    run code as an assistant would
  onetool tools         list the tools
  onetool doctor        check the installation
  onetool --help        everything else\
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--http", action="store_true", help="serve over HTTP instead, to this machine alone")
    parser.add_argument("--host", metavar="H", help=f"with --http: the address to listen on ({HOST})")
    parser.add_argument(
        "--port", type=int, metavar="P", help=f"with --http: the port to listen on ({PORT}); 0 takes one that is free"
    )
    parser.add_argument("--json", action="store_true", help="with --http: print the address as JSON")
    parser.add_argument(
        "--expose",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="tools, packs or servers to publish one to one, beside the one tool `run`",
    )


def main(options: argparse.Namespace) -> int:
    if HANGUP is not None:  # it means reload, as soon as there is something to reload
        signal.signal(HANGUP, signal.SIG_IGN)
    if options.http:
        return _over_http(options)
    if options.host is not None or options.port is not None or options.json:
        options.refuse("--host, --port and --json are for HTTP; type `onetool serve --http` with them")
    return with_onetool(options, _status if sys.stdin.isatty() else partial(_serve, names=options.expose))


async def _serve(app: "OneTool", names: list[str]) -> int:
    from onetool.faces.mcp.server import serve_stdio

    await _expose(app, names)
    _relax_collector()
    await serve_stdio(app)
    return 0


def _relax_collector() -> None:
    """Let the garbage collector run rarely, and skip what lives as long as the server: a full collection is a stall."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


async def _expose(app: "OneTool", names: list[str]) -> None:
    """Raises where there is nothing of such a name."""
    if names:
        from onetool.faces.mcp.exposed import check

        app.exposed = tuple(names)
        await check(app)


async def _status(app: "OneTool") -> int:
    """What is known on this disk: no server is started for it."""
    import anyio.to_thread

    from onetool.version import __version__

    await app.discover(())
    await app.bundles.refresh()
    tools, packs = len(app.registry), len(app.registry.packs())
    connected, what_next = await anyio.to_thread.run_sync(_clients)
    if app.config_error is not None:
        what_next = f"mend the configuration, without which nothing runs:\n{app.config_error}"
    shown = {"tools": number(tools, "tool"), "packs": number(packs, "pack"), "are": "is" if tools == 1 else "are"}
    print(STATUS.format(version=__version__, connected=connected, next=what_next, **shown))
    for problem in app.problems:
        print(f"\nonetool: note: {problem}", file=sys.stderr)
    return 0


def _clients() -> tuple[str, str]:
    """Who is connected, and what to do next."""
    from onetool.cli import connect
    from onetool.clients.catalogue import CLIENTS

    place = connect.this_place()
    titles = [client.title for client in connect.connected(place)]
    if titles:
        return f"Connected: {', '.join(titles)}.", f'ask your assistant: "{connect.QUESTION}"'
    first = next((client.name for client in connect.present(place)), next(iter(CLIENTS)))
    return "No assistant is connected yet.", f"onetool connect {first} --write"


# --- HTTP ----------------------------------------------------------------------------------------------------------


def _over_http(options: argparse.Namespace) -> int:
    host = HOST if options.host is None else options.host
    port = PORT if options.port is None else options.port

    async def serve(app: "OneTool") -> int:
        from onetool.faces.http.running import serve_http

        if app.config_error is not None:
            print(f"onetool: the configuration is wrong:\n{app.config_error}", file=sys.stderr)
        print_notices(app.problems)
        await _expose(app, options.expose)
        _relax_collector()
        await serve_http(app, host, port, lambda bind: _tell_address(bind, as_json=options.json))
        return 0

    return with_onetool(options, serve)


def _tell_address(bind: "Bind", *, as_json: bool) -> None:
    from onetool.faces.http.server import PARTS

    print(f"onetool: listening on {bind.url} ({', '.join(PARTS)})", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps({"url": bind.url, "host": bind.host, "port": bind.port}), flush=True)
