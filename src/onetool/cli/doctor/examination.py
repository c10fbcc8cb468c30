"""All that the doctor looks at: it starts every server, every pack and one run, then checks as `onetool.checks` does.

Nothing is mended here, and nothing that is kept is changed: no call is counted, and a damaged file stays as it is.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from onetool.app import OneTool
from onetool.checks import in_order, kept
from onetool.checks.extensions import has_uv
from onetool.cli.doctor import machine
from onetool.cli.terminal import Progress
from onetool.config.load import Examined, Loaded, examine
from onetool.errors import ToolError
from onetool.extensions.pack import RUNNING, Pack
from onetool.paths import Folders, find_folders
from onetool.problem import OK, WARNING, Location, Problem

WORKER_SECONDS = 60.0


async def examine_all(config: Path | None) -> list[Problem]:
    """Return each problem once, without secrets, and what is in order."""
    folders = find_folders(os.environ, Path.cwd(), config, Path.home())
    read = await anyio.to_thread.run_sync(examine, folders, os.environ)
    if folders.config_file is not None and not folders.config_file.parent.is_dir():
        # Who mistypes the name of a configuration file does not want its folder made.
        read = replace(read, loaded=replace(read.loaded, folders=Folders(folders.working_dir, folders.user)))
    with Progress("looking at everything") as progress:
        async with OneTool(read=lambda: _in_a_hurry(read.loaded), examine=lambda: read) as app:
            return await _examine(app, read, progress)


def _in_a_hurry(loaded: Loaded) -> Loaded:
    """Shorten the start of workers, and do not count what the doctor does. Servers keep their own timeouts."""
    own = loaded.settings
    workers = own.workers.model_copy(update={"start_timeout": min(own.workers.start_timeout, WORKER_SECONDS)})
    stats = own.stats.model_copy(update={"enabled": False})
    return replace(loaded, settings=own.model_copy(update={"workers": workers, "stats": stats}), problems=())


async def _examine(app: OneTool, read: Examined, progress: Progress) -> list[Problem]:
    # Before anything is done that could mend it.
    stored = await anyio.to_thread.run_sync(lambda: [*kept.problems(read.loaded), *kept.stored_bundles(read.loaded)])
    with suppress(ToolError):  # `check` reports it
        await app.discover(set())
    packs, servers, ran = await asyncio.gather(
        _start_packs(app, progress.say), _ask_servers(app, progress.say), machine.run(app, can_run=not read.errors)
    )
    checked = await app.check(stored=stored)
    sandbox = (await app.cells.probe())["sandbox"]
    started = in_order([*packs, *servers], read.loaded)
    ended = [*ran, machine.isolation(sandbox, app.settings.execution.isolation)]
    return [*machine.problems(app), *checked, *started, *ended]


async def _start_packs(app: OneTool, say: Callable[[str], None]) -> list[Problem]:
    """Start each extension pack. Why one cannot be started is reported by `onetool.checks`."""
    packs = {tool.pack: tool.backend for tool in app.registry if isinstance(tool.backend, Pack)}
    startable = {name: pack for name, pack in packs.items() if has_uv() or pack.extension.header is None}

    async def start(name: str, pack: Pack) -> Problem | None:
        try:
            async with asyncio.timeout(WORKER_SECONDS):
                with suppress(ToolError):
                    await pack.warm_up(app.context())
        except TimeoutError:
            file = pack.extension.file
            what = f"{file}: {name} was not ready within {WORKER_SECONDS:g} s"
            hint = "type `onetool doctor` again: uv goes on where it was"
            return Problem(what, hint, Location(str(file)), level=WARNING)
        return Problem(f"the extension pack {name} can be started", level=OK) if pack.state == RUNNING else None

    if startable:
        say(f"starting {', '.join(startable)}")
    return [found for found in await asyncio.gather(*(start(*each) for each in startable.items())) if found]


async def _ask_servers(app: OneTool, say: Callable[[str], None]) -> list[Problem]:
    """Start each server, as many at a time as there are cores. `onetool.checks` reports why one does not answer."""
    names = [name for name, server in app.settings.servers.items() if server.enabled]
    slots, waiting, done = asyncio.Semaphore(os.cpu_count() or 1), list[str](), list[str]()

    def report() -> None:
        pending = f": waiting for {', '.join(waiting)}" if waiting else ""
        say(f"checked {len(done)} of {len(names)} servers{pending}")

    async def ask(name: str) -> Problem | None:
        upstream = app.servers.upstream(name)
        async with slots:
            waiting.append(name)
            report()
            try:
                await upstream.connection(only_list=True)
            except ToolError:
                return None
            finally:
                waiting.remove(name)
                done.append(name)
                report()
        return Problem(f"the server {name} answers; it has {len(upstream.definitions)} tools", level=OK)

    return [found for found in await asyncio.gather(*map(ask, names)) if found]
