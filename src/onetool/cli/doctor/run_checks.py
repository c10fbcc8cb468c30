"""Starts every upstream server, every extension pack and one run, then performs the checks of
`onetool.sources.checks`.

Without `--fix`, nothing is repaired: damaged files stay as they are. Calls are not counted.
"""

import asyncio
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync as run_in_thread

from onetool.admin.health import FixRequest, make_fix
from onetool.app import OneTool
from onetool.cli.invocation import identify_owner
from onetool.cli.terminal import Progress
from onetool.cli.trust import find_errors
from onetool.errors import SignInRequired, ToolError
from onetool.net.oauth.sign_ins import make_server_target
from onetool.runs.wasm_launcher import check_isolation
from onetool.settings.load import Examined, Loaded, examine
from onetool.settings.paths import Directories, find_directories
from onetool.sources.checks import find_problems, sort_problems
from onetool.sources.checks.disk import check_bundles, check_stored_files
from onetool.sources.checks.setup import INSTALL_UV, has_uv
from onetool.sources.extensions.backends import RUNNING, WorkerBackend
from onetool.util.problem import OK, PROBLEM, WARNING, Location, Problem
from onetool.util.text import pluralize
from onetool.util.version import __version__

if TYPE_CHECKING:
    from onetool.net.oauth.discovery import ServerMetadata

WORKER_SECONDS = 60.0
CHECK = "sum(range(10))"


async def run_all_checks(config: Path | None, *, makes_fixes: bool) -> list[Problem]:
    """Return each problem once, without secrets, and the checks that passed.

    Make the fixes that are safe first.
    """
    directories = find_directories(os.environ, Path.cwd(), config, Path.home())
    read = await run_in_thread(examine, directories, os.environ)
    if directories.config_file is not None and not directories.config_file.parent.is_dir():
        # A mistyped --config must not create a directory.
        read = replace(
            read,
            loaded=replace(
                read.loaded, directories=Directories(directories.working_dir, directories.user)
            ),
        )
    ignored = await run_in_thread(_check_ignored_project, directories, read.loaded)
    with Progress("running checks") as progress:
        async with OneTool(
            read=lambda: _shorten_timeouts(read.loaded), examine=lambda: read
        ) as app:
            problems = [*await _examine(app, read, progress), *ignored]
            return await _make_fixes(app, problems) if makes_fixes else problems


async def _make_fixes(app: OneTool, problems: list[Problem]) -> list[Problem]:
    """Make the safe fixes, and return what was done and the remaining problems."""
    fixed: dict[str, Problem] = {}
    for fix in dict.fromkeys(problem.fix for problem in problems if problem.fix):
        try:
            done = (await make_fix(app, identify_owner(), FixRequest(fix=fix), offered=[fix])).done
            fixed[fix] = Problem(f"fixed: {done}", level=OK)
        except ToolError as error:
            fixed[fix] = Problem(error.message)
    return [*fixed.values(), *(problem for problem in problems if problem.fix not in fixed)]


def _check_ignored_project(directories: Directories, loaded: Loaded) -> list[Problem]:
    """Return the errors in the settings of a project that is not trusted."""
    if directories.project is None or loaded.directories.project is not None:
        return []
    return [
        error
        for error in find_errors(directories, directories.project)
        if error not in loaded.problems
    ]


def _shorten_timeouts(loaded: Loaded) -> Loaded:
    """Shorten the start timeout of workers and disable statistics. Servers keep their timeouts."""
    settings = loaded.settings
    workers = settings.workers.model_copy(
        update={"start_timeout": min(settings.workers.start_timeout, WORKER_SECONDS)}
    )
    stats = settings.stats.model_copy(update={"enabled": False})
    return replace(
        loaded,
        settings=settings.model_copy(update={"workers": workers, "stats": stats}),
        problems=(),
    )


async def _examine(app: OneTool, read: Examined, progress: Progress) -> list[Problem]:
    # First, because the following steps may repair files.
    stored = await run_in_thread(
        lambda: [*check_stored_files(read.loaded), *check_bundles(read.loaded)]
    )
    with suppress(ToolError):  # `check` reports it
        await app.discover(set())
    packs, servers, ran = await asyncio.gather(
        _start_packs(app, progress.update),
        _start_servers(app, progress.update),
        _run_code(app, can_run=not read.errors),
    )
    checked = await find_problems(app, stored=stored)
    sandbox = (await app.cells.probe())["sandbox"]
    started = sort_problems([*packs, *servers], read.loaded)
    ended = [*ran, check_isolation(sandbox, app.settings.execution.isolation)]
    return [*_check_machine(app), *checked, *started, *ended]


async def _start_packs(app: OneTool, report_progress: Callable[[str], None]) -> list[Problem]:
    """Start each extension pack. `onetool.sources.checks` reports failures."""
    packs = {
        tool.pack: tool.backend for tool in app.registry if isinstance(tool.backend, WorkerBackend)
    }
    startable = {
        name: pack for name, pack in packs.items() if has_uv() or pack.extension.header is None
    }

    async def start(name: str, pack: WorkerBackend) -> Problem | None:
        try:
            async with asyncio.timeout(WORKER_SECONDS):
                with suppress(ToolError):
                    await pack.warm_up(app.context())
        except TimeoutError:
            file = pack.extension.file
            what = f"{file}: extension pack {name} did not start within {WORKER_SECONDS:g} s"
            hint = "run `onetool doctor` again: uv resumes the installation"
            return Problem(what, hint, Location(str(file)), level=WARNING)
        origin = f" of the package {pack.extension.package}" if pack.extension.package else ""
        if pack.state == RUNNING:
            return Problem(f"extension pack {name}{origin} starts", level=OK)
        return None

    if startable:
        report_progress(f"starting {', '.join(startable)}")
    return [
        problems
        for problems in await asyncio.gather(*(start(*each) for each in startable.items()))
        if problems
    ]


async def _start_servers(app: OneTool, report_progress: Callable[[str], None]) -> list[Problem]:
    """Start each server, as many at a time as there are cores.

    `onetool.sources.checks` reports failures.
    """
    names = [name for name, server in app.settings.servers.items() if server.enabled]
    slots = asyncio.Semaphore(os.cpu_count() or 1)
    waiting = list[str]()
    done = list[str]()

    def report() -> None:
        pending = f": waiting for {', '.join(waiting)}" if waiting else ""
        report_progress(f"checked {len(done)} of {len(names)} servers{pending}")

    async def ask(name: str) -> Problem | None:
        upstream = app.servers.upstream(name)
        async with slots:
            waiting.append(name)
            report()
            try:
                await upstream.main.connect(only_list=True)
            except SignInRequired as error:
                return await _trace_sign_in(app, name, error)
            except ToolError:
                return None
            finally:
                waiting.remove(name)
                done.append(name)
                report()
        return Problem(
            f"server {name} responds: {pluralize(len(upstream.tools.definitions), 'tool')}",
            level=OK,
        )

    return [problem for problem in await asyncio.gather(*map(ask, names)) if problem]


# --- signing in -----------------------------------------------------------------------------------


async def _trace_sign_in(app: OneTool, name: str, error: SignInRequired) -> Problem:
    """Return the discovery steps, with the failing step and its reason.

    `onetool.sources.checks` reports the error.
    """
    target = make_server_target(name, app.settings.servers[name])
    if target is None:
        return Problem(error.message, error.hint)
    steps: list[str] = []
    try:
        discovered = await app.sign_ins.discover(target, on_step=steps.append)
    except ToolError as failure:
        lines = [f"server {name}: its authorization server cannot be used", *steps, failure.message]
        return Problem(
            "\n".join(lines),
            failure.hint or "report it to the operator of the server",
            level=PROBLEM,
        )
    client = _describe_client(app, name, discovered.server)
    scope = f"scope to request: {discovered.scope or 'none'}"
    lines = [f"server {name}: the authorization server was found", *steps, client, scope]
    return Problem("\n".join(lines), level=OK)


def _describe_client(app: OneTool, name: str, server: "ServerMetadata") -> str:
    auth = app.settings.servers[name].auth
    if auth is not None and auth.client_id:
        return "client: client_id of the settings"
    if (
        server.client_id_metadata_document_supported
        and app.sign_ins.build_client_document() is not None
    ):
        return "client: the metadata document of this server (public_url)"
    if server.registration_endpoint is not None:
        return f"client: registered at {server.registration_endpoint}"
    return f"client: registration_endpoint is missing; set servers.{name}.auth.client_id"


# --- the machine ----------------------------------------------------------------------------------


def _check_machine(app: OneTool) -> Iterator[Problem]:
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    yield Problem(f"onetool {__version__} on {system}", level=OK)
    yield Problem(f"mcp {importlib.metadata.version('mcp')}", level=OK)
    packs = (
        tool.backend.extension for tool in app.registry if isinstance(tool.backend, WorkerBackend)
    )
    if not has_uv() and all(
        extension.header is None for extension in packs
    ):  # else `onetool.sources.checks` reports it
        yield Problem(
            "uv is not installed; extension packs with dependencies require it",
            INSTALL_UV,
            level=WARNING,
        )
    yield Problem(pluralize(len(app.registry), "tool"), level=OK)


async def _run_code(app: OneTool, *, can_run: bool) -> list[Problem]:
    """Run a line of code, unless the settings are invalid, which is reported elsewhere."""
    if not can_run:
        return []
    answer = await app.run(CHECK)
    if not answer.is_error and answer.blocks[-1] == "45":
        return [Problem("test run succeeded", level=OK)]
    return [Problem(f"test run failed: {answer.text}", f"onetool run '{CHECK}'")]
