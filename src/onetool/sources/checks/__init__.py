"""The checks behind `ot.health()`, `/api/health` and `onetool doctor`.

Nothing is started or changed: upstream servers and extensions are checked by their recorded state.
`onetool doctor` starts them first and also shows checks that passed.
"""

import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import Protocol

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.audit import AuditLog
from onetool.core.live_settings import LiveSettings
from onetool.core.registry import Registry
from onetool.errors import ToolError
from onetool.runs.cells import CellSource
from onetool.runs.wasm_launcher import find_isolation_problem
from onetool.settings.load import Examined, Loaded
from onetool.sources.bundles.source import BundleSource
from onetool.sources.checks.disk import check_directories, check_stored_files
from onetool.sources.checks.setup import (
    check_assistants,
    check_extensions,
    check_servers,
    check_settings,
)
from onetool.sources.extensions.packs import Extensions
from onetool.sources.extensions.static_analysis import IGNORED
from onetool.sources.upstream.servers import Servers
from onetool.state.storage import State
from onetool.util.logging import Log
from onetool.util.problem import OK, PROBLEM, STORAGE, WARNING, Location, Problem, storage_problem
from onetool.util.redact import Redactor
from onetool.util.secret_finder import find_secrets
from onetool.util.version import __version__
from onetool_child.json_types import JsonObject

LEVELS = (PROBLEM, WARNING, OK)
MAX_LENGTH = 2000
CHECK_SECONDS = 0.5  # for each database that `report_health` checks
# Codes of problems that another one may cause: a file in an unusable directory is unusable too.
CONSEQUENCES = frozenset({STORAGE, "busy"})


class Checked(Protocol):
    """The running application that is checked."""

    registry: Registry
    extensions: Extensions
    servers: Servers
    bundles: BundleSource
    live_settings: LiveSettings
    state: State
    audit: AuditLog
    cells: CellSource
    log: Log


async def report_health(app: Checked) -> JsonObject:
    """Return a health report; `findings` are the problems as structured data."""
    with suppress(ToolError):  # `find_problems` reports it
        await app.registry.refresh()
    servers = await app.servers.states()  # first, because it detects disconnected servers
    checked = await find_problems(app, CHECK_SECONDS)
    isolation = await app.cells.probe()
    loaded = app.live_settings.loaded
    unisolated = find_isolation_problem(isolation["sandbox"], loaded.settings.execution.isolation)
    problems = [
        problem for problem in (unisolated, *checked) if problem is not None and problem.level != OK
    ]
    ignored = [
        problem.message for problem in checked if problem.level == OK and problem.code == IGNORED
    ]
    return {
        "version": __version__,
        "python": platform.python_version(),
        "cwd": str(loaded.directories.working_dir),
        "registry": {"status": "ok", "tool_count": await run_in_thread(len, app.registry)},
        "proxy": {
            "status": (
                "degraded" if {"disconnected", "sign_in_required"} & {*servers.values()} else "ok"
            ),
            "server_count": len(servers),
            "servers": servers,
        },
        "workers": app.extensions.states,
        **({"ignored": ignored} if ignored else {}),
        "isolation": isolation,
        "problems": [problem.to_line() for problem in problems],
        "findings": [problem.to_json() for problem in problems],
    }


async def find_problems(
    app: Checked, seconds: float | None = None, stored: Iterable[Problem] = ()
) -> list[Problem]:
    """Return the problems, then the checks that passed.

    Each database is checked for at most `seconds`.

    `stored` are problems with stored files that were found before anything ran.
    """
    unread: list[Problem] = []
    try:
        await app.registry.refresh()
    except ToolError as error:
        unread = [Problem.of(error)]
    return await run_in_thread(_find, app, seconds, stored, unread)


def _find(
    app: Checked, seconds: float | None, stored: Iterable[Problem], unread: list[Problem]
) -> list[Problem]:
    reader = app.live_settings.reader
    read = reader.examine(app.live_settings.loaded)
    disabled = app.state.disabled_tools.problem  # says more than a check of the same file
    problems = [
        *([disabled] if disabled is not None else []),
        *check_directories(read),
        *read.errors,
        *read.loaded.problems,
        *stored,
        *check_stored_files(read.loaded, seconds),
        *app.bundles.findings(),
        *check_extensions(app.extensions, read.loaded),
        *check_servers(app.servers, read, app.registry, app.extensions),
        *check_settings(app.registry, read),
    ]
    if reader.has_files:  # else a program embeds OneTool, to which MCP clients are irrelevant
        problems += check_assistants(read.loaded.directories, read.loaded.environment)
    problems += unread
    problems += _collect_recorded(app, read)
    return sort_problems(problems, read.loaded)


def _collect_recorded(app: Checked, read: Examined) -> Iterator[Problem]:
    """Yield problems that running components recorded."""
    loaded = app.live_settings.loaded
    yield from (*loaded.problems, *app.extensions.trust_problems)
    if loaded.error is not None and not read.errors:  # otherwise they are listed one by one
        yield Problem(str(loaded.error))
    if app.audit.problem:
        yield storage_problem(app.audit.problem, loaded.audit_file)
    yield from app.state.problems
    yield from app.state.jobs.find_problems(app.extensions.queues)
    if app.log.problem:
        yield storage_problem(app.log.problem, loaded.directories.data / "logs" / "onetool.log")


def sort_problems(problems: Iterable[Problem], loaded: Loaded) -> list[Problem]:
    """Return each problem once, the worst first, without consequences and secrets."""
    # The output of servers may contain secrets of their environment or settings.
    secrets = [*loaded.secret_values]
    for server in loaded.settings.servers.values():
        fields = {
            "env": dict(server.env),
            "headers": dict(server.headers),
            "args": list(server.args),
        }
        secrets += find_secrets(fields)
    redact = Redactor(secrets)
    causes: list[Location] = []
    unique: dict[Problem, None] = {}
    for problem in problems:
        place = problem.location
        if place is not None and problem.code in CONSEQUENCES:
            if any(PurePath(place.file).is_relative_to(cause.file) for cause in causes):
                continue
            causes.append(place)
        hint = problem.hint
        if not hint and place is not None and place.line:
            hint = f"fix line {place.line}"
        unique[
            replace(problem, message=_shorten(redact(problem.message)), hint=_shorten(redact(hint)))
        ] = None
    return sorted(unique, key=lambda problem: LEVELS.index(problem.level))


def _shorten(text: str) -> str:
    """Shorten a message, which may contain a long value."""
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}… ({len(text):,} characters)"
