"""The application: constructs settings, sources of tools, cells and the state, and closes them.

Use `async with OneTool(settings) as app:`, then `app.bus` and `await app.run(command)`; or `with`
and `run_sync` in programs without an event loop. All state is in this object, and nothing is
started before it is needed; transports that expect a run call `app.cells.warm_up()`.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.agents import Agents
from onetool.core.bus.bus import ToolBus
from onetool.core.live_settings import LiveSettings
from onetool.core.telemetry import Telemetry
from onetool.core.threads import LoopThread, call_blocking, reject_event_loop
from onetool.net.oauth.sign_ins import SignIns
from onetool.runs.answer import Answer
from onetool.runs.live_runs import LiveRuns
from onetool.runs.parts import MakeCells, PartsFactory, SharedProcesses, make_sources
from onetool.runs.runs import Runs
from onetool.settings.load import Examined, Loaded
from onetool.settings.model import Settings
from onetool.settings.settings_reader import (
    SettingsReader,
    examine_settings,
    validate_settings,
    wrap_settings,
)
from onetool.sources.llm import LanguageModel
from onetool.sources.search.search_documents import CatalogSearch
from onetool.state.changes import Changes
from onetool.util.context import Caller, ToolContext
from onetool.util.logging import Log
from onetool.util.running_servers import OwnPorts
from onetool.util.tasks import SharedFlight

if TYPE_CHECKING:
    from onetool.util.http_clients import HttpClientServer


class OneTool:
    """The application: `with OneTool() as app: app.run_sync("1 + 1").value`, or `async with` and
    `await app.run(...)`.

    It reads no settings files (`from_files` does): `settings` are the settings and `folder` is the
    data directory. `examine` reads the settings for checks and returns all problems with their
    locations. `shared` are the processes that it shares with other applications of this process.
    """

    def __init__(
        self,
        settings: Settings | Mapping[str, Any] | None = None,
        *,
        folder: Path | None = None,
        read: Callable[[], Loaded] | None = None,
        examine: Callable[[], Examined] | None = None,
        log: Log | None = None,
        make_cells: MakeCells | None = None,
        environment: Mapping[str, str] | None = None,
        shared: SharedProcesses | None = None,
    ) -> None:
        program_settings = (
            settings if isinstance(settings, Settings) else validate_settings(settings or {})
        )
        if read is None and examine is None:
            read = lambda: wrap_settings(program_settings, folder)  # noqa: E731 - it is an argument
        self.environment = os.environ if environment is None else environment
        reader = SettingsReader(read, examine, self.environment)
        self.log = Log() if log is None else log
        self._has_log_file = log is None
        self.own_ports = OwnPorts()  # tools must not send requests to them
        self.changes = Changes()
        self.agents = Agents(lambda *args: self.runs.warn(*args))  # noqa: PLW0108 - created below
        self.bus = ToolBus(get_cost=self.agents.get_cost)
        self.registry = self.bus.registry
        self.llm = LanguageModel(self.own_ports)
        self.sign_ins = SignIns(self.own_ports)
        self.runs = Runs(self.bus, self.agents, self.changes, self, self.own_ports)
        self.telemetry = Telemetry(self.bus.events, self.agents.get_cost)
        sources = make_sources(
            self.bus,
            self,
            self.sign_ins,
            reader,
            log=self.log,
            environment=self.environment,
            shared=shared,
        )
        self.extensions = sources.extensions
        self.servers = sources.servers
        self.bundles = sources.bundles
        self.changes.subscribe("pins", self.servers.mark_unpinned)
        self.sign_ins.find_bundle_target = self.bundles.find_sign_in_target
        self.catalog = CatalogSearch(self.registry, self.bundles.searchable)
        parts = self._parts = PartsFactory(
            self.bus, self.log, self.changes, self.own_ports, make_cells=make_cells, shared=shared
        )
        self.live_settings = LiveSettings(
            reader,
            self._configure,
            lambda: parts.require().state,
            self.registry.refresh,
        )
        self.health_reports: SharedFlight[dict[str, Any]] = SharedFlight()
        self.exposed: tuple[str, ...] = ()  # tools that MCP publishes in addition to `run`
        self.live_runs = LiveRuns(self.bus.events)  # transports that show them start it
        self.http_clients: HttpClientServer | None = None  # of MCP
        self.list_neighbors: Callable[[], Sequence[OneTool]] = (
            tuple  # other applications of this process
        )
        self._loop_thread = LoopThread()

    @classmethod
    def from_files(
        cls,
        config_file: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        working_dir: Path | None = None,
        **options: Any,
    ) -> Self:
        """Return the application with the settings files of this machine, as the command line reads
        them.

        `environment` and `working_dir` are those of this process unless they are given.
        """
        environment = os.environ if environment is None else environment
        return cls(
            examine=lambda: examine_settings(environment, working_dir or Path.cwd(), config_file),
            environment=environment,
            **options,
        )

    def __enter__(self) -> Self:
        """Open the application on an event loop in a thread of its own, for `run_sync`."""
        reject_event_loop("async with OneTool() as app:")
        self.bus.portal = self._loop_thread.open(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> None:
        self._loop_thread.close(kind, error)
        self.bus.portal = None

    async def __aenter__(self) -> Self:
        await self.live_settings.open()
        self.runs.notices.general = self.problems
        return self

    async def __aexit__(self, *_: object) -> None:
        self.changes.close()
        await self.runs.close()
        await self.cells.__aexit__(None, None, None)
        await asyncio.gather(
            self.registry.close(),
            self.llm.close(),
            self.net.close(),
            run_in_thread(self.catalog.close),
        )
        await self.sign_ins.close()
        await self._parts.close()
        await run_in_thread(self.log.close)

    def _configure(self, loaded: Loaded) -> None:
        """Apply settings. Current runs finish in their cells."""
        if self._has_log_file:
            self.log.open(loaded.directories.data / "logs" / "onetool.log")
        parts = self._parts.make(loaded)
        self.settings = loaded.settings
        self.directories = loaded.directories
        self.problems = loaded.problems
        self.config_error = loaded.error  # only help runs until it is fixed
        self.state = parts.state
        self.results = parts.results
        self.media = parts.media
        self.audit = parts.audit
        self.net = parts.net
        self.cells = parts.cells
        self.redact = parts.redact
        self.own_ports.user = loaded.directories.user
        self.log.configure(loaded.settings.log_level, parts.redact)
        self.bus.events.redact = parts.redact
        self.bus.admit = parts.audit.admit
        self.telemetry.configure(self.log, parts.audit, parts.state)
        self.agents.configure(loaded, parts.projects, parts.state.guard_budget)
        self.llm.configure(loaded, parts.redact, parts.state.token_usage)
        self.sign_ins.configure(loaded, parts.state.credentials)
        self.runs.configure(
            loaded,
            parts.runner,
            parts.state.runs,
            parts.media,
            redact=parts.redact,
            log=self.log,
            environment=self.environment,
            is_revoked=parts.is_revoked,
            record_decision=parts.audit.record_decision,
        )
        self.catalog.configure(loaded.settings, parts.state)
        self.registry.configure(loaded, parts.state.disabled_tools)
        self.health_reports.forget()
        self.changes.report("settings")

    async def run(self, command: object, *, agent: str = "default") -> Answer:
        """Run a command as this agent, and return the answer for the client."""
        self._parts.require()
        return await self.runs.run(command, Caller(agent))

    def run_sync(self, command: object, *, agent: str = "default") -> Answer:
        """Run a command and wait for the answer, in a program without an event loop."""
        instead = "await app.run(...)"
        reject_event_loop(instead)
        self._loop_thread.require()
        answer: Answer = call_blocking(
            lambda: self.run(command, agent=agent), self.bus.portal, instead
        )
        return answer

    def context(self, agent: str = "default") -> ToolContext:
        """Return a context for calls of this agent outside of runs."""
        self._parts.require()
        return self.runs.open_context(Caller(agent))

    async def discover(self, words: Collection[str] | None = None) -> None:
        """Update the registry; `words` are the packs that are needed, None for all."""
        await self.registry.refresh(words)

    async def health(self) -> dict[str, Any]:
        """Return the health report; `findings` are the problems as data."""
        from onetool.sources.checks import report_health

        return await self.health_reports.join(lambda: report_health(self))
