"""The one list of checks: `ot.health()`, `/api/health` and `onetool doctor` report what is found here.

Nothing is started or changed: upstream servers and extensions are judged by their recorded state. `onetool doctor`
starts them first, and shows also what is in order.
"""

import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePath
from typing import Any

import anyio.to_thread

from onetool.bundles.source import BundleSource
from onetool.bus.sources import RegisteredTools
from onetool.checks import assistants, extensions, kept, places, servers, settings
from onetool.config.load import Examined, Loaded
from onetool.config.reading import SettingsReader
from onetool.errors import ToolError
from onetool.extensions.packs import Extensions
from onetool.logging import Log
from onetool.problem import OK, PROBLEM, STORAGE, WARNING, Location, Problem, storage_problem
from onetool.proxy.servers import Servers
from onetool.redact import Redactor
from onetool.registry import Registry
from onetool.state import State
from onetool.util.secret_finder import secrets_in
from onetool.version import __version__

LEVELS = (PROBLEM, WARNING, OK)
MAX_LENGTH = 2000
CHECK_SECONDS = 0.5  # for each database that `report_health` checks
# Codes of problems that may follow from another one: a file in a directory that cannot be used cannot be used either.
CONSEQUENCES = frozenset({STORAGE, "busy"})


@dataclass(frozen=True, slots=True)
class Checks:
    """What runs, as it is judged and shown."""

    registry: Registry
    registered: RegisteredTools
    extensions: Extensions
    servers: Servers
    bundles: BundleSource
    reader: SettingsReader

    async def report_health(self, state: State, log: Log) -> dict[str, Any]:
        """Return how everything is doing; `findings` are the problems in their parts."""
        with suppress(ToolError):  # `find_problems` reports it
            await self.registry.refresh()
        servers = await self.servers.states()  # first: it notices servers that went away
        found = [each for each in await self.find_problems(state, log, CHECK_SECONDS) if each.level != OK]
        return {
            "version": __version__,
            "python": platform.python_version(),
            "cwd": str(state.loaded.folders.working_dir),
            "registry": {"status": "ok", "tool_count": await anyio.to_thread.run_sync(len, self.registry)},
            "proxy": {
                "status": "degraded" if "disconnected" in servers.values() else "ok",
                "server_count": len(servers),
                "servers": servers,
            },
            "workers": self.extensions.states,
            "isolation": await state.cells.probe(),
            "problems": [str(each) for each in found],
            "findings": [each.to_json() for each in found],
        }

    async def find_problems(
        self, state: State, log: Log, seconds: float | None = None, stored: Iterable[Problem] = ()
    ) -> list[Problem]:
        """Return what is wrong, then what is in order. Databases are checked for `seconds` at most.

        `stored` is what somebody found about kept files before anything ran.
        """
        unread: list[Problem] = []
        try:
            await self.registry.refresh()
        except ToolError as error:
            unread = [Problem.of(error)]
        return await anyio.to_thread.run_sync(self._find, state, log, seconds, stored, unread)

    def _find(
        self, state: State, log: Log, seconds: float | None, stored: Iterable[Problem], unread: list[Problem]
    ) -> list[Problem]:
        read = self.reader.examine(state.loaded)
        found = [
            *places.problems(read),
            *read.errors,
            *read.loaded.problems,
            *stored,
            *kept.problems(read.loaded, seconds),
            *self.bundles.findings(),
            *extensions.problems(self.extensions, read.loaded),
            *servers.problems(self.servers, read, self.registry, self.extensions),
            *settings.problems(self.registry, read),
            # A program that embeds OneTool is not asked about the machine's MCP clients.
            *(assistants.problems(read.loaded.folders) if self.reader.has_files else ()),
            *unread,
            *map(Problem, self.registered.installed_problems),
            *self._noticed(state, log, read),
        ]
        return in_order(found, read.loaded)

    def _noticed(self, state: State, log: Log, read: Examined) -> Iterator[Problem]:
        """Yield what the running parts noticed."""
        yield from (*state.loaded.problems, *self.extensions.refused)
        if state.error is not None and not read.errors:  # else they are named one by one
            yield Problem(str(state.error))
        if state.audit.problem:
            yield storage_problem(state.audit.problem, state.audit.file)
        if state.switches.problem:
            yield state.switches.problem
        yield from state.stores.problems
        if log.problem:
            yield storage_problem(log.problem, state.loaded.folders.data / "logs" / "onetool.log")


def in_order(problems: Iterable[Problem], loaded: Loaded) -> list[Problem]:
    """Return each problem once, the worst first, without consequences of others and without secrets."""
    # Servers repeat in what they print the secrets that stand in their environment, or in the file itself.
    told = [
        secrets_in({"env": dict(each.env), "headers": dict(each.headers), "args": list(each.args)})
        for each in loaded.settings.servers.values()
    ]
    redact = Redactor([*loaded.secret_values, *chain.from_iterable(told)])
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
            hint = f"correct line {place.line} of {place.file}"
        found[replace(each, message=_shortened(redact(each.message)), hint=_shortened(redact(hint)))] = None
    return sorted(found, key=lambda each: LEVELS.index(each.level))


def _shortened(text: str) -> str:
    """For a person to read: what is wrong may be a value of any length."""
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}… ({len(text):,} characters)"
