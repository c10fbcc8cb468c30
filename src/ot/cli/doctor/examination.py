"""All that is looked at, in the order in which it is told. What takes long is looked at side by side.

Nothing is mended here, and nothing that is kept is changed: no call is counted, and a damaged file stays as it is.
"""

import asyncio
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from ot.app import OneTool
from ot.checks import kept, places, unsaid, without_secrets
from ot.checks.finding import PROBLEM, Finding
from ot.cli.doctor import extensions, machine, servers
from ot.cli.terminal import Progress
from ot.config.load import Examined, Loaded, examine
from ot.errors import ToolError
from ot.paths import Folders, find_folders

WORKER_SECONDS = 60.0


async def examined(config: Path | None) -> list[Finding]:
    """Each finding once, without secrets."""
    folders = find_folders(os.environ, Path.cwd(), config, Path.home())
    read = await anyio.to_thread.run_sync(examine, folders, os.environ)
    if folders.config_file is not None and not folders.config_file.parent.is_dir():
        read = replace(read, loaded=replace(read.loaded, folders=_without_project(folders)))
    with Progress("looking at everything") as progress:
        async with OneTool(read=lambda: _in_a_hurry(read.loaded), examine=lambda: read) as app:
            findings = await _everything(app, read, progress)
    return without_secrets(findings, read.loaded)


def _without_project(folders: Folders) -> Folders:
    """Who mistypes the name of a configuration file does not want its folder made."""
    return Folders(folders.working_dir, folders.user)


def _in_a_hurry(loaded: Loaded) -> Loaded:
    """Shorten the start of workers, and do not count what the doctor does. Servers keep their own timeouts."""
    own = loaded.settings
    workers = own.workers.model_copy(update={"start_timeout": min(own.workers.start_timeout, WORKER_SECONDS)})
    stats = own.stats.model_copy(update={"enabled": False})
    return replace(loaded, settings=own.model_copy(update={"workers": workers, "stats": stats}), problems=())


async def _everything(app: OneTool, read: Examined, progress: Progress) -> list[Finding]:
    stored = await anyio.to_thread.run_sync(_stored, read.loaded)  # before anything is done that could mend it
    with suppress(ToolError):  # `check` reports it
        await app.discover(set())
    started, answering, ran = await asyncio.gather(
        extensions.findings(app, progress.say),
        servers.findings(app, progress.say),
        machine.run(app, can_run=not read.errors),
    )
    checked = await app.check()
    said = "\n".join(each.what for each in checked)
    stored = [each for each in places.outside(checked, stored) if each.what not in said]
    reported = [*checked, *stored, *started, *answering]
    return [
        *machine.findings(app),
        *(each for each in reported if each.level == PROBLEM),
        *(each for each in reported if each.level != PROBLEM),
        *ran,
        machine.isolation((await app.cells.probe())["sandbox"], app.settings.execution.isolation),
    ]


def _stored(loaded: Loaded) -> list[Finding]:
    files = kept.findings(loaded)
    return [*files, *unsaid(kept.rescanned_bundles(loaded), files)]
