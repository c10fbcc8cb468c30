"""The commands serve and worker, which run until they are stopped."""

import gc
import json
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.command import Command
from onetool.cli.invocation import run_with_app
from onetool.cli.terminal import print_notices
from onetool.errors import ArgumentError, ToolError
from onetool.util.problem import Problem
from onetool.util.text import pluralize

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.server.http.request_checks import Bind
    from onetool.settings.load import Loaded
    from onetool.sources.extensions.packs import Extensions
    from onetool.util.logging import Log

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
GRACE_SECONDS = 20.0
MAX_GRACE_SECONDS = 86_400.0
Served = dict[str, list[str]]  # packs by queue


# --- serve ----------------------------------------------------------------------------------------


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


def _run_serve(options: Namespace) -> int:
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
    """Collect garbage rarely, without long-lived objects: collections stall the server."""
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


# --- worker ---------------------------------------------------------------------------------------


def _add_worker_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--queue",
        action="append",
        required=True,
        metavar="NAME",
        help="name of a queue; repeat it for several",
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=1,
        metavar="N",
        help="number of calls at once (default: 1)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=GRACE_SECONDS,
        metavar="SECONDS",
        help=f"time for calls in flight when it is stopped (default: {GRACE_SECONDS:g})",
    )


def _run_worker(options: Namespace) -> int:
    import asyncio

    from onetool.settings.settings_reader import read_settings
    from onetool.state.keys import parse_keys
    from onetool.state.opening import require_store
    from onetool.util.logging import Log
    from onetool.util.redact import Redactor

    if options.concurrency < 1:
        raise ArgumentError(f"invalid concurrency {options.concurrency}: expected at least 1")
    if not 0 <= options.grace < MAX_GRACE_SECONDS:
        raise ArgumentError(
            f"invalid grace {options.grace:g}: expected 0 to {MAX_GRACE_SECONDS:g} seconds"
        )
    loaded = read_settings(os.environ, Path.cwd(), options.config)
    print_notices(loaded.problems)
    require_store(loaded, "a worker takes its jobs from a database, and the state is in files")
    parse_keys(loaded.store_key)
    served = find_packs(loaded, options.queue)
    log = Log(loaded.directories.data / "logs" / "worker.log")
    log.configure(loaded.settings.log_level, Redactor(loaded.secret_values))
    try:
        asyncio.run(_work(loaded, served, options, log))
    finally:
        log.close()
    return 0


def find_packs(loaded: "Loaded", queues: list[str]) -> Served:
    """Return the packs of each queue, as the settings name them.

    No jobs are taken from a queue without packs.
    """
    tools = loaded.settings.tools.items()
    served = {
        queue: sorted(pack for pack, options in tools if options.queue == queue) for queue in queues
    }
    known = ", ".join(sorted({options.queue for _, options in tools if options.queue})) or "none"
    for queue in (queue for queue, packs in served.items() if not packs):
        message = (
            f"no jobs are taken from the queue {queue!r}: the settings give no pack to it (queues:"
            f" {known})"
        )
        print_notices(
            [Problem(message, f"set `tools: {{PACK: {{queue: {queue}}}}}` in onetool.yaml")]
        )
    return {queue: packs for queue, packs in served.items() if packs}


async def _work(loaded: "Loaded", served: Served, options: Namespace, log: "Log") -> None:
    import anyio.to_thread

    from onetool.state.postgres_database import Database
    from onetool.util.deadline import on_stop_signal

    with Database(loaded.settings.store, loaded.store_key) as database:
        await anyio.to_thread.run_sync(database.prepare_schema)
        # Needs the libraries that the database needs.
        from onetool.sources.extensions.queue_worker import QueueWorker

        extensions = _open_extensions(loaded, log)
        try:
            await extensions.refresh()
            tools = _count_tools(loaded, extensions, served)
            limits = {"concurrency": options.concurrency, "grace_seconds": options.grace}
            worker = QueueWorker(loaded, database, extensions, served, log=log.event, **limits)
            with on_stop_signal(worker.stop):
                await worker.run(lambda: _print_ready(served, tools, database.place, options))
        finally:
            await extensions.close()


def _open_extensions(loaded: "Loaded", log: "Log") -> "Extensions":
    from onetool.settings.settings_reader import SettingsReader
    from onetool.sources.extensions.packs import Extensions
    from onetool.sources.extensions.queue_worker import reject_call

    reader = SettingsReader(lambda: loaded, None, os.environ)
    extensions = Extensions(frozenset, reject_call, os.environ, log.event, reader.still_trusted)
    extensions.configure(loaded)
    return extensions


def _count_tools(loaded: "Loaded", extensions: "Extensions", served: Served) -> int:
    """Return the number of tools. Raise if a pack is missing or cannot be used."""
    problems = extensions.problems()
    packs = [pack for packs_served in served.values() for pack in packs_served]
    for pack in packs:
        if pack in problems:
            raise ToolError(problems[pack].message, hint=problems[pack].hint)
        if not extensions.list_tools(pack):
            directories = loaded.directories.pack_directories(loaded.settings.tools_dir)
            hint = f"put {pack}/{pack}_tools.py in {', '.join(map(str, directories))}"
            raise ToolError(
                f"no pack {pack!r}: the settings give it to a queue, and no file has it", hint=hint
            )
    return sum(len(extensions.list_tools(pack)) for pack in packs)


def _print_ready(served: Served, tools: int, place: str, options: Namespace) -> None:
    for queue, packs in served.items():
        print(f"onetool: serving queue {queue} of {place}: {', '.join(packs)}", file=sys.stderr)
    calls = pluralize(options.concurrency, "call")
    print(f"onetool: {pluralize(tools, 'tool')}, {calls} at once", file=sys.stderr, flush=True)
    if options.json:
        print(
            json.dumps({"queues": served, "tools": tools, "concurrency": options.concurrency}),
            flush=True,
        )


COMMANDS = {
    "serve": Command(
        "Run the MCP server on stdio, or over HTTP with --http.",
        add_arguments,
        main=_run_serve,
        json="print the URL as JSON (requires --http)",
    ),
    "worker": Command(
        "Make the calls of packs with a queue, for replicas that share a PostgreSQL database.",
        _add_worker_arguments,
        main=_run_worker,
        json="print a line of JSON when it takes jobs",
    ),
}
