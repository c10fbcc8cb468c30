"""The checks behind `ot.health()`, `/api/health` and `onetool doctor`.

Nothing is started or changed: upstream servers and extensions are checked by their recorded state. `onetool doctor`
starts them first and also shows checks that passed.
"""

import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePath

from anyio.to_thread import run_sync as run_in_thread

from onetool.bundles.source import BundleSource
from onetool.checks import assistants, directories, extensions, servers, settings, stored_files
from onetool.config.load import Examined, Loaded
from onetool.config.settings_reader import SettingsReader
from onetool.core.registry import Registry
from onetool.errors import ToolError
from onetool.extensions.packs import Extensions
from onetool.extensions.static_analysis import IGNORED
from onetool.logging import Log
from onetool.parts import Parts
from onetool.proxy.servers import Servers
from onetool.runner.isolation import find_isolation_problem
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


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of a running OneTool."""

    registry: Registry
    extensions: Extensions
    servers: Servers
    bundles: BundleSource
    reader: SettingsReader

    async def report_health(self, parts: Parts, log: Log) -> JsonObject:
        """Return a health report; `findings` are the problems as structured data."""
        with suppress(ToolError):  # `find_problems` reports it
            await self.registry.refresh()
        servers = await self.servers.states()  # first, because it detects disconnected servers
        checked = await self.find_problems(parts, log, CHECK_SECONDS)
        isolation = await parts.cells.probe()
        unisolated = find_isolation_problem(isolation["sandbox"], parts.loaded.settings.execution.isolation)
        found = [each for each in (unisolated, *checked) if each is not None and each.level != OK]
        ignored = [each.message for each in checked if each.level == OK and each.code == IGNORED]
        return {
            "version": __version__,
            "python": platform.python_version(),
            "cwd": str(parts.loaded.directories.working_dir),
            "registry": {"status": "ok", "tool_count": await run_in_thread(len, self.registry)},
            "proxy": {
                "status": "degraded" if {"disconnected", "sign_in_required"} & {*servers.values()} else "ok",
                "server_count": len(servers),
                "servers": servers,
            },
            "workers": self.extensions.states,
            **({"ignored": ignored} if ignored else {}),
            "isolation": isolation,
            "problems": [each.to_line() for each in found],
            "findings": [each.to_json() for each in found],
        }

    async def find_problems(
        self, parts: Parts, log: Log, seconds: float | None = None, stored: Iterable[Problem] = ()
    ) -> list[Problem]:
        """Return the problems, then the checks that passed. Each database is checked for at most `seconds`.

        `stored` are problems with stored files that were found before anything ran.
        """
        unread: list[Problem] = []
        try:
            await self.registry.refresh()
        except ToolError as error:
            unread = [Problem.of(error)]
        return await run_in_thread(self._find, parts, log, seconds, stored, unread)

    def _find(
        self, parts: Parts, log: Log, seconds: float | None, stored: Iterable[Problem], unread: list[Problem]
    ) -> list[Problem]:
        read = self.reader.examine(parts.loaded)
        disabled = parts.state.disabled_tools.problem  # says more than a check of the same file
        found = [
            *([disabled] if disabled is not None else []),
            *directories.problems(read),
            *read.errors,
            *read.loaded.problems,
            *stored,
            *stored_files.problems(read.loaded, seconds),
            *self.bundles.findings(),
            *extensions.problems(self.extensions, read.loaded),
            *servers.problems(self.servers, read, self.registry, self.extensions),
            *settings.problems(self.registry, read),
            # MCP clients of the machine are irrelevant to a program that embeds OneTool.
            *(assistants.problems(read.loaded.directories, read.loaded.environment) if self.reader.has_files else ()),
            *unread,
            *self._collect_recorded(parts, log, read),
        ]
        return sort_problems(found, read.loaded)

    def _collect_recorded(self, parts: Parts, log: Log, read: Examined) -> Iterator[Problem]:
        """Yield problems that running components recorded."""
        yield from (*parts.loaded.problems, *self.extensions.trust_problems)
        if parts.error is not None and not read.errors:  # otherwise they are listed one by one
            yield Problem(str(parts.error))
        if parts.audit.problem:
            yield storage_problem(parts.audit.problem, parts.loaded.audit_file)
        yield from parts.state.problems
        yield from parts.state.jobs.find_problems(self.extensions.queues)
        if log.problem:
            yield storage_problem(log.problem, parts.loaded.directories.data / "logs" / "onetool.log")


def sort_problems(problems: Iterable[Problem], loaded: Loaded) -> list[Problem]:
    """Return each problem once, the worst first, without consequences of others and without secrets."""
    # The output of servers may contain secrets of their environment or settings.
    found_secrets = [
        find_secrets({"env": dict(each.env), "headers": dict(each.headers), "args": list(each.args)})
        for each in loaded.settings.servers.values()
    ]
    redact = Redactor([*loaded.secret_values, *chain.from_iterable(found_secrets)])
    causes: list[Location] = []
    found: dict[Problem, None] = {}
    for each in problems:
        place = each.location
        if place is not None and each.code in CONSEQUENCES:
            if any(PurePath(place.file).is_relative_to(cause.file) for cause in causes):
                continue
            causes.append(place)
        hint = each.hint
        if not hint and place is not None and place.line:
            hint = f"fix line {place.line}"
        found[replace(each, message=_shorten(redact(each.message)), hint=_shorten(redact(hint)))] = None
    return sorted(found, key=lambda each: LEVELS.index(each.level))


def _shorten(text: str) -> str:
    """Shorten a message, which may contain a value of any length."""
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}… ({len(text):,} characters)"
