"""The application: creates and closes settings, sources of tools, cells and the state.

Use `async with OneTool(settings) as app:`, then `app.bus` and `await app.run(command)`; or `with` and `run_sync` in
programs without an event loop. All state is in this object, and nothing is started before it is needed; transports that
expect a run call `warm_up`.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio

from onetool.backends.threads import call_blocking, reject_event_loop
from onetool.bundles.source import BundleSource
from onetool.config.contents import SettingsContents, stamp_files
from onetool.config.load import Examined, Loaded
from onetool.config.model import Settings
from onetool.config.settings_reader import (
    SettingsReader,
    examine_settings,
    read_settings,
    validate_settings,
    wrap_settings,
)
from onetool.core.agents import Agents
from onetool.core.bus.bus import ToolBus
from onetool.core.context import Caller, ToolContext
from onetool.core.registry import Registry
from onetool.errors import ConfigError, SignInRequired, ToolError
from onetool.extensions.environments import make_worker_environment
from onetool.extensions.packs import Extensions
from onetool.llm import LanguageModel
from onetool.logging import Log
from onetool.net import Net
from onetool.oauth.credential import SignInTarget
from onetool.oauth.sign_ins import SignIns, identify, make_server_target
from onetool.parts import Parts, make_parts
from onetool.paths import FOLDER, Directories, extension_files
from onetool.proxy.servers import Servers
from onetool.proxy.upstream import UpstreamServices
from onetool.results.blobs import Media
from onetool.runner.answer import Answer
from onetool.runner.cells import Cells, CellSource
from onetool.runner.run_output import RunOutput
from onetool.runner.tool_loader import load_builtin_tools
from onetool.runs.runs import Runs
from onetool.search import SearchHit
from onetool.search.search_documents import CatalogSearch
from onetool.snippets.saved_snippets import merge_snippets
from onetool.state.audit import AuditLog
from onetool.state.changes import Changes
from onetool.state.storage import State
from onetool.telemetry import Telemetry
from onetool.util.background_tasks import BackgroundTasks
from onetool.util.problem import Problem
from onetool.util.redact import Redactor
from onetool.util.running_servers import list_servers
from onetool.util.shared_flight import SharedFlight
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.checks import Checks
    from onetool.results.store import StoredResults
    from onetool.shared_processes import SharedProcesses
    from onetool.stats.summary import StatsSummary

__all__ = ["OneTool", "examine_settings", "read_settings"]

STORE_SECONDS = 5.0  # to wait for the database when the application is opened
RELOADED = "OK: Configuration reloaded"


class OneTool:
    """The application: `with OneTool() as app: app.run_sync("1 + 1").value`, or `async with` and `await app.run(...)`.

    It reads no settings files (`from_files` does): `settings` are the settings and `folder` is the data directory.
    `examine` reads the settings for checks and returns all problems with their locations. `shared` are the processes
    that it shares with other applications of this process.
    """

    def __init__(
        self,
        settings: Settings | JsonMapping | None = None,
        *,
        folder: Path | None = None,
        read: Callable[[], Loaded] | None = None,
        examine: Callable[[], Examined] | None = None,
        log: Log | None = None,
        make_cells: Callable[..., CellSource] = Cells,
        environment: Mapping[str, str] | None = None,
        shared: "SharedProcesses | None" = None,
    ) -> None:
        given = settings if isinstance(settings, Settings) else validate_settings(settings or {})
        read_given = partial(wrap_settings, given, folder or Path.home() / FOLDER)
        environment = self.environment = os.environ if environment is None else environment
        is_given = read is None and examine is None
        self.reader = SettingsReader(read_given if is_given else read, examine, environment)
        self.changes = Changes()
        self.editing_settings = asyncio.Lock()  # held by an edit until it is in effect here
        self._make_cells, self._log = make_cells if shared is None else shared.cells.open, log
        self._parts: Parts | None = None
        self.times_configured = 0
        self.times_fixed = 0  # what health reports as fixable
        self.agents = Agents(self._warn)
        self.llm = LanguageModel(self._own_ports)
        self.sign_ins = SignIns(self._own_ports)
        self.bus = ToolBus(get_cost=self.agents.get_cost)
        self.runs = Runs(self.bus, self.agents, self, self._own_ports)
        self._telemetry = Telemetry(self.bus.events, self.agents.get_cost)
        registered, registry = self.bus.registered, self.bus.registry

        def log_event(*event: Any, **fields: Any) -> None:
            self.log.event(*event, **fields)

        self.extensions = Extensions(
            lambda: registered.pack_names,
            self.bus.call_tool,
            environment,
            log_event,
            self.reader.still_trusted,
            shared=None if shared is None else shared.workers,
            get_jobs=lambda: self.state.jobs,
        )
        services = UpstreamServices(
            registry.mark_disabled,
            log_event,
            lambda: self._require_parts().media,
            self.sign_ins,
            None if shared is None else shared.connections,
        )
        self.servers = Servers(services, registry, make_worker_environment(environment), lambda: self.state)
        self.changes.subscribe("pins", self.servers.mark_unpinned)
        self.bundles = BundleSource(
            registry,
            lambda: self._require_parts().net,
            lambda: self._require_parts().media,
            self.sign_ins,
            lambda: self.state,
        )
        registry.sources = (registered, self.extensions, self.servers, self.bundles)
        self._search = CatalogSearch(registry)
        self._health: SharedFlight[JsonObject] = SharedFlight()
        self._reload: SharedFlight[str] = SharedFlight()
        self.summaries: SharedFlight[StatsSummary] = SharedFlight()
        self._retiring = BackgroundTasks()
        self.exposed: tuple[str, ...] = ()  # tools that MCP publishes in addition to `run`
        self.listening_ports: set[int] = set()  # of this process; tools must not send requests to them
        self._blocking: ExitStack | None = None  # closes the application and the thread of its event loop

    @classmethod
    def from_files(
        cls,
        config_file: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        working_dir: Path | None = None,
        **options: Any,
    ) -> Self:
        """Return the application with the settings files of this machine, as the command line reads them.

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
        from anyio.from_thread import start_blocking_portal

        reject_event_loop("async with OneTool() as app:")
        with ExitStack() as stack:
            portal = self.bus.portal = stack.enter_context(start_blocking_portal("asyncio", name="onetool"))
            stack.callback(setattr, self.bus, "portal", None)
            stack.enter_context(portal.wrap_async_context_manager(self))
            self._blocking = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        assert self._blocking is not None
        self._blocking.__exit__(kind, error, None if error is None else error.__traceback__)

    async def __aenter__(self) -> Self:
        self.bus.registered.add_builtin(load_builtin_tools(self.bus.threads))
        loaded, error = await anyio.to_thread.run_sync(self.reader.read_first)
        self._configure(loaded, error)
        await self._join_store()
        self.runs.notices.general = self.problems
        return self

    async def __aexit__(self, *_: object) -> None:
        self.changes.close()
        self._retiring.cancel()
        parts = self._require_parts()
        await self.runs.close()
        await parts.cells.__aexit__(None, None, None)
        await asyncio.gather(*(source.close() for source in self.registry.sources), parts.net.close(), self.llm.close())
        await self.sign_ins.close()
        for close in (parts.audit.close, parts.state.close, self.log.close):
            await anyio.to_thread.run_sync(close)

    def _configure(self, loaded: Loaded, error: ConfigError | None = None) -> None:
        """Apply a configuration. Current runs finish in their cells."""
        if self._log is None:
            self._log = Log(loaded.directories.data / "logs" / "onetool.log")
        old, log = self._parts, self._log
        parts = self._parts = make_parts(
            loaded, error, old, self.changes, self.bus, log=log, make_cells=self._make_cells, own_ports=self._own_ports
        )
        log.configure(loaded.settings.log_level, parts.redact)
        self.bus.events.redact, self.bus.admit = parts.redact, parts.audit.admit
        self._telemetry.configure(log, parts.audit, parts.state)
        self.agents.configure(loaded, parts.projects, parts.state.guard_budget)
        self.llm.configure(loaded, parts.redact, parts.state.token_usage)
        self.sign_ins.configure(loaded, parts.state.credentials)
        self.runs.configure(
            loaded,
            parts.runner,
            parts.state.runs,
            parts.media,
            redact=parts.redact,
            log=log,
            error=error,
            environment=self.environment,
            is_revoked=parts.is_revoked,
            record_decision=parts.audit.decision,
        )
        self.registry.aliases, self.registry.switches = loaded.settings.aliases, parts.state.disabled_tools
        for source in self.registry.sources:
            source.configure(loaded)
        self.times_configured += 1
        self.changes.report("settings")
        for work in old.retire(parts) if old is not None else ():
            self._retiring.start(work)

    def _own_ports(self) -> set[int]:
        """Return the ports that servers of this user listen on, from files."""
        others = (entry.port for entry in list_servers(self.directories.user))
        return self.listening_ports | {port for port in others if port is not None}

    def _require_parts(self) -> Parts:
        if self._parts is None:
            raise RuntimeError("OneTool is not open: use `async with OneTool(settings) as app:`")
        return self._parts

    # --- runs ---------------------------------------------------------------------------------------------------

    async def run(self, command: object, *, agent: str = "default", output: RunOutput | None = None) -> Answer:
        """Run a command as this agent, and return the answer for the client."""
        return await self.runs.run(command, Caller(agent), output)

    def run_sync(self, command: object, *, agent: str = "default") -> Answer:
        """Run a command and wait for the answer, in a program without an event loop."""
        instead = "await app.run(...)"
        reject_event_loop(instead)
        if self.bus.portal is None:
            raise ToolError("cannot use run_sync: OneTool was not opened for it", hint="write `with OneTool() as app:`")
        answer: Answer = call_blocking(partial(self.run, command, agent=agent), self.bus.portal, instead)
        return answer

    async def begin_session(self, own_tokens: int, *, agent: str = "default", client: str = "") -> None:
        """Start a client session: discover tools and record the token cost of their definitions."""
        self.servers.keeps_running = self.bundles.keeps_running = True
        await self.discover()
        begin = partial(self._telemetry.begin_session, agent=agent, client=client)
        await anyio.to_thread.run_sync(begin, self.registry, self.bundles.definition_tokens(), own_tokens)

    def context(self, agent: str = "default", output: RunOutput | None = None) -> ToolContext:
        """Return a context for calls of this agent outside of runs."""
        return self.runs.open_context(Caller(agent), output)

    def warm_up(self) -> None:
        """Start a cell before the first run. Returns immediately."""
        self._require_parts().cells.warm_up()

    def _warn(self, agent: str, text: str) -> None:
        """Add a notice for the agent and log a warning."""
        self.runs.notices.add(agent, text)
        self.log.event("warning", level="WARNING", agent=agent, text=text)

    # --- the System protocol of onetool.core.system -------------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        return self.bus.registry

    @property
    def config_error(self) -> ConfigError | None:
        """The error in the configuration, if any; only help runs until it is fixed."""
        return self._require_parts().error

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems found in the configuration."""
        return self.loaded.problems

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @property
    def directories(self) -> Directories:
        return self.loaded.directories

    @property
    def state(self) -> State:
        return self._require_parts().state

    @property
    def media(self) -> Media:
        return self._require_parts().media

    @property
    def audit(self) -> AuditLog:
        return self._require_parts().audit

    @property
    def net(self) -> Net:
        return self._require_parts().net

    @property
    def redact(self) -> Redactor:
        """The redactor: `redact(text)` removes the values of secrets."""
        return self._require_parts().redact

    @property
    def cells(self) -> CellSource:
        return self._require_parts().cells

    @property
    def results(self) -> "StoredResults":
        return self._require_parts().results

    async def discover(self, words: Collection[str] | None = None) -> None:
        """Update the registry; `words` are the packs that are needed, None for all."""
        await self.registry.refresh(words)

    async def switch(self, name: str, *, on: bool) -> None:
        """Enable or disable a tool or pack permanently."""
        await anyio.to_thread.run_sync(partial(self.state.disabled_tools.set, name, on=on))
        self.registry.apply_switches()

    async def search(self, query: str, limit: int = 20, agent: str | None = None) -> list[SearchHit]:
        """Search all tools, packs, snippets and aliases. `agent` adds the saved snippets that it can use."""
        await self.discover()
        parts = self._require_parts()
        settings, saved = parts.loaded.settings, parts.state.snippets

        def search() -> list[SearchHit]:
            usable = {} if agent is None else merge_snippets({}, saved, agent)
            more = {name: snippet for name, snippet in usable.items() if name not in settings.snippets}
            return self._search.search(
                parts.state.search, query, limit, settings, stored=self.bundles.searchable(), saved=more
            )

        return await anyio.to_thread.run_sync(search)

    async def find_sign_in_target(self, name: str) -> SignInTarget:
        """Return the server or API with this name. Raise if it cannot be signed in to."""
        if name in self.settings.servers:
            target = make_server_target(name, self.settings.servers[name])
            if target is None:
                reason = f"{name} cannot be signed in to: it runs on stdio or has its own header Authorization"
                raise ToolError(reason, hint=f"set its credentials in servers.{name} in onetool.yaml")
            return target
        target = await anyio.to_thread.run_sync(self.bundles.find_sign_in_target, name)
        if target is None:
            known = ", ".join(self.settings.servers) or "none"
            raise ToolError(f"no server or bundle with OAuth named {quote(name)}", hint=f"configured servers: {known}")
        return target

    async def sign_in_at_client(self, error: SignInRequired, context: ToolContext) -> bool:
        """Ask the person at the client to sign in, if the client is on this machine. Return whether that was done."""
        from onetool.oauth.client_sign_in import sign_in_at_client

        if context.token_id or self.sign_ins.public_url:
            return False
        try:
            target = await self.find_sign_in_target(str(error.fields.get("server", "")))
            identity = identify(target, str(error.fields.get("account", "")), context.agent_id)
        except ToolError:
            return False
        return await sign_in_at_client(self.sign_ins, identity, context)

    @property
    def log(self) -> Log:
        assert self._log is not None
        return self._log

    async def reload(self) -> str:
        """Reload the configuration and the tools, as an agent may request it.

        Raise, and change nothing, if the configuration is invalid or would be left out.
        """
        key: object = object()  # only a program knows whether the settings that it passes have changed
        if self.reader.has_files:
            key = await anyio.to_thread.run_sync(self._stamp_sources), self.reader.get_stored()
        return await self._reload.join(self._reload_all, key)

    def _stamp_sources(self) -> object:
        """Return what changes if a reload has anything to read or to reject."""
        tools = self.directories.pack_directories(self.settings.tools_dir)
        return tuple(stamp_files(self.directories).items()), tuple(map(extension_files, tools))

    async def _reload_all(self) -> str:
        answer = await self.apply_settings(unasked=True)
        await self.discover()
        return answer

    async def apply_settings(self, examined: Examined | None = None, *, unasked: bool = False) -> str:
        """Apply the settings as they were just read, or read them now.

        With `unasked`, when no person requested it, raise if a settings file would be dropped: the project directory
        lost its trust, or the file is gone.
        """
        await self._apply(partial(self.reader.reread, self.loaded, examined, unasked=unasked))
        return RELOADED

    async def apply_edit(self, after: Loaded, files: SettingsContents) -> None:
        """Apply an edit that this process has validated and written. The files are not read again."""
        await self._apply(partial(self.reader.accept_edit, after, files, self.loaded))

    async def _apply(self, read: Callable[[], Loaded]) -> None:
        self._configure(await anyio.to_thread.run_sync(read))
        await self._join_store()

    @property
    def loaded(self) -> Loaded:
        return self._require_parts().loaded

    async def _join_store(self) -> None:
        """Wait for a store that was just opened, and apply the settings there."""
        state = self.state
        is_new = self.reader.join(state.settings, self.settings.store or "")
        if not is_new:
            return
        await anyio.to_thread.run_sync(state.wait, STORE_SECONDS)
        if self.reader.is_outdated:
            with suppress(ToolError):  # until the files are valid again, no agent may call anything
                await self.apply_settings()

    async def has_current_settings(self) -> bool:
        """Return whether the settings in effect are valid, and are those that the files have now."""
        parts = self._require_parts()
        try:
            loaded = await anyio.to_thread.run_sync(partial(self.reader.reread, parts.loaded, unasked=False))
        except ToolError:
            return False
        return parts.error is None and loaded == parts.loaded

    async def health(self) -> JsonObject:
        """Return the health report; `findings` are the problems as data."""
        report = lambda: self._checks().report_health(self._require_parts(), self.log)  # noqa: E731 - it is short
        return await self._health.join(report, (self.times_configured, self.times_fixed))

    async def check(self, seconds: float | None = None, stored: Iterable[Problem] = ()) -> list[Problem]:
        """Return the results of all checks, from files and recorded states. Nothing is started.

        `stored` are problems with stored files that were found earlier.
        """
        return await self._checks().find_problems(self._require_parts(), self.log, seconds, stored)

    def _checks(self) -> "Checks":
        from onetool.checks import Checks

        return Checks(self.registry, self.extensions, self.servers, self.bundles, self.reader)
