"""Make the calls of packs with a queue, for replicas that share a PostgreSQL database."""

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.terminal import print_notices
from onetool.errors import ArgumentError, ToolError
from onetool.util.problem import Problem
from onetool.util.text import pluralize

if TYPE_CHECKING:
    from onetool.settings.load import Loaded
    from onetool.sources.extensions.packs import Extensions
    from onetool.util.logging import Log

GRACE_SECONDS = 20.0
MAX_GRACE_SECONDS = 86_400.0
Served = dict[str, list[str]]  # packs by queue
JSON = "print a line of JSON when it takes jobs"


def add_arguments(parser: ArgumentParser) -> None:
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


def main(options: Namespace) -> int:
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
    from onetool.util.clock_watch import on_stop_signal

    with Database(loaded.settings.store, loaded.store_key) as database:
        await anyio.to_thread.run_sync(database.prepare_schema)
        from onetool.sources.extensions.queue_worker import (
            QueueWorker,
        )  # needs the libraries that the database needs

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
    packs = [pack for each in served.values() for pack in each]
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
