"""All that is looked at, in the order in which it is told. What takes long is looked at side by side.

Nothing is mended here, and nothing that is kept is changed: no call is counted, and a damaged file stays as it is.
"""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from ot.app import OneTool
from ot.cli.doctor import assistants, extensions, kept, machine, places, servers, settings
from ot.cli.doctor.finding import PROBLEM, Finding, shortened, told
from ot.cli.terminal import Progress
from ot.clients.hiding import secrets_in
from ot.config.load import Examined, Loaded, examine
from ot.errors import ToolError
from ot.paths import Folders, find_folders
from ot.redact import Redactor

WORKER_SECONDS = 60.0


async def examined(config: Path | None) -> list[Finding]:
    """Each finding once, without secrets."""
    folders = find_folders(os.environ, Path.cwd(), config, Path.home())
    read = await anyio.to_thread.run_sync(examine, folders, os.environ)
    if folders.config_file is not None and not folders.config_file.parent.is_dir():
        read = replace(read, loaded=replace(read.loaded, folders=_without_project(folders)))
    with Progress("looking at everything") as progress:
        async with OneTool(read=lambda: _in_a_hurry(read.loaded)) as app:
            findings = await _everything(app, read, progress)
    redact = Redactor([*read.loaded.secret_values, *_secrets_of_servers(read.loaded)])
    clean = (Finding(each.level, shortened(redact(each.what)), shortened(redact(each.advice))) for each in findings)
    return list(dict.fromkeys(clean))


def _without_project(folders: Folders) -> Folders:
    """Who mistypes the name of a configuration file does not want its folder made."""
    return Folders(folders.working_dir, folders.user)


def _in_a_hurry(loaded: Loaded) -> Loaded:
    """Shorten the start of workers, and do not count what the doctor does. Servers keep their own timeouts."""
    own = loaded.settings
    workers = own.workers.model_copy(update={"start_timeout": min(own.workers.start_timeout, WORKER_SECONDS)})
    stats = own.stats.model_copy(update={"enabled": False})
    return replace(loaded, settings=own.model_copy(update={"workers": workers, "stats": stats}), problems=())


def _secrets_of_servers(loaded: Loaded) -> Iterator[str]:
    """Those that stand in the environment, or in the file itself: servers repeat them in what they print."""
    for server in loaded.settings.servers.values():
        yield from secrets_in({"env": dict(server.env), "headers": dict(server.headers), "args": list(server.args)})


async def _everything(app: OneTool, read: Examined, progress: Progress) -> list[Finding]:
    stored = await anyio.to_thread.run_sync(kept.findings, read.loaded)  # before anything is done that could mend it
    placed = await anyio.to_thread.run_sync(places.findings, read)
    undiscovered = await _discovered(app, set())
    running, answering, ran = await asyncio.gather(
        extensions.findings(app, read.loaded, progress.say),
        servers.findings(app, read.place_of, progress.say),
        machine.run(app, can_run=not read.errors),
    )
    undiscovered += await _discovered(app, None)
    named = settings.findings(app, read)
    clients = await anyio.to_thread.run_sync(assistants.findings, read.loaded.folders)
    stored = places.outside(placed, stored)
    consequences = _unsaid([*undiscovered, *answering], stored)
    reported = [*stored, *placed, *running, *consequences, *named, *clients]
    return [
        *machine.findings(app),
        *places.outside(placed, settings.wrong(read)),
        *(each for each in reported if each.level == PROBLEM),
        *places.outside(placed, await _rest(app, reported)),
        *(each for each in reported if each.level != PROBLEM),
        *ran,
        machine.isolation((await app.cells.probe())["sandbox"], app.settings.execution.isolation),
    ]


async def _discovered(app: OneTool, words: set[str] | None) -> list[Finding]:
    try:
        await app.discover(words)
    except ToolError as error:
        return [told(PROBLEM, error.message)]
    return []


async def _rest(app: OneTool, reported: list[Finding]) -> list[Finding]:
    """What the running product itself complains of and nobody here has said yet."""
    try:
        problems = (await app.health())["problems"]
    except ToolError as error:
        problems = [error.message]
    own = {*app.servers.problems, *extensions.problems_of(app), *_lines(app.log.problem)}
    return _unsaid([told(PROBLEM, text) for text in problems if text not in own], reported)


def _unsaid(findings: list[Finding], reported: list[Finding]) -> list[Finding]:
    """Those that name no file of which something was reported: what follows from it is not told again."""
    said = "\n".join(each.what for each in reported)
    return [each for each in findings if each.what not in said and not any(file in said for file in _files(each.what))]


def _files(text: str) -> list[str]:
    return [word.rstrip(":,.;") for word in text.split() if word.startswith("/")]


def _lines(text: str | None) -> list[str]:
    return text.splitlines() if text else []
