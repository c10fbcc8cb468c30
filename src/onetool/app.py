"""The only constructor of everything: settings, sources of tools, cells; and what takes it all down again.

`async with OneTool(settings) as app:` gives `app.bus` and `await app.run(command)`. There is no state outside of
it. Nothing is started before it is needed; `warm_up` is for doors that know a run will come.
"""

import asyncio
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio

from onetool.agents import Agents
from onetool.audit import AuditLog
from onetool.bundles.source import BundleSource
from onetool.bus.bus import ToolBus
from onetool.config.load import Examined, Loaded
from onetool.config.model import Settings
from onetool.config.reading import SettingsReader, config_files, examine_settings, given_settings, read_settings
from onetool.context import ToolContext
from onetool.errors import ConfigError, ToolError
from onetool.extensions.environments import for_worker
from onetool.extensions.packs import Extensions
from onetool.logging import Log
from onetool.net import Net
from onetool.paths import FOLDER, Folders
from onetool.problem import Problem
from onetool.proxy.servers import Servers
from onetool.redact import Redactor
from onetool.registry import Registry
from onetool.runner.answer import Answer, Journal
from onetool.runner.cells import Cells
from onetool.runner.fence_processor import strip
from onetool.runner.tool_loader import shipped_tools
from onetool.search import SearchHit
from onetool.search.search_documents import CatalogSearch
from onetool.state import State, make_state
from onetool.storage import MediaStorage, ResultStorage
from onetool.stores import Stores
from onetool.telemetry import Notices, Telemetry
from onetool.util.background_tasks import BackgroundTasks
from onetool.util.invisible import escape_invisible
from onetool.util.running_servers import list_servers

if TYPE_CHECKING:
    from onetool.checks import Checks
    from onetool.system import System

__all__ = ["OneTool", "examine_settings", "read_settings"]

WORKS_WITHOUT_SETTINGS = re.compile(r"\s*ot\.(health|help|reload)\([^()]*\)\s*")
RELOADED = "OK: Configuration reloaded"


class OneTool:
    """Settings that are passed in are all there is: no file is read. `folder` is where things are kept then.

    `examine` reads the settings again for checks, with what is wrong in them and where.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        folder: Path | None = None,
        read: Callable[[], Loaded] | None = None,
        examine: Callable[[], Examined] | None = None,
        log: Log | None = None,
        make_cells: Callable[..., Cells] = Cells,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        given = partial(given_settings, settings or Settings(), folder or Path.home() / FOLDER)
        environment = os.environ if environment is None else environment
        self._reader = SettingsReader(read or given, examine, environment)
        self._make_cells, self._log = make_cells, log
        self._state: State | None = None
        self.agents = Agents(self._warn)
        self.bus = ToolBus(cost_of=self.agents.cost_of)
        self._telemetry, self._notices = Telemetry(self.bus.events), Notices()
        registered, registry = self.bus.registered, self.bus.registry
        registered.has_installed = True

        def log_event(*event: Any, **fields: Any) -> None:
            self.log.event(*event, **fields)

        self.extensions = Extensions(
            lambda: registered.pack_names, self.bus.call_tool, environment, log_event, self._reader.still_trusted
        )
        self.servers = Servers(registry.switched, for_worker(environment), log_event, lambda: self._now.media)
        self.bundles = BundleSource(registry, lambda: self._now.net)
        registry.sources = (registered, self.extensions, self.servers, self.bundles)
        self._search = CatalogSearch(registry)
        self._retiring = BackgroundTasks()
        self.exposed: tuple[str, ...] = ()  # names that doors publish one to one, beside `run`
        self.listening_ports: set[int] = set()  # of this process, where tools must not send requests to

    async def __aenter__(self) -> Self:
        self.bus.registered.ship(shipped_tools(self.bus.threads))
        loaded, error = self._reader.read_first()
        self._configure(loaded, error)
        self._notices.everybody = loaded.problems
        return self

    async def __aexit__(self, *_: object) -> None:
        self._retiring.cancel()
        state = self._now
        await state.cells.__aexit__(None, None, None)
        await asyncio.gather(*(source.close() for source in self.registry.sources), state.net.close())
        for close in (state.stores.close, state.audit.close, self.log.close):
            await anyio.to_thread.run_sync(close)

    def _configure(self, loaded: Loaded, error: ConfigError | None = None) -> None:
        """Put a configuration in force, whole. Runs that are under way end in the cells they have."""
        if self._log is None:
            self._log = Log(loaded.folders.data / "logs" / "onetool.log")
        old, log = self._state, self._log
        state = self._state = make_state(
            loaded, error, old, bus=self.bus, log=log, make_cells=self._make_cells, own_ports=self._own_ports
        )
        log.use(loaded.settings.log_level, state.redact)
        self.bus.events.redact, self.bus.admit = state.redact, state.audit.admit
        self._telemetry.configure(log, state.audit, state.stores)
        self.agents.configure(loaded, state.projects)
        self.registry.aliases, self.registry.switches = loaded.settings.aliases, state.switches
        for source in self.registry.sources:
            source.configure(loaded)
        for work in old.retire(state) if old is not None else ():
            self._retiring.start(work)

    def _own_ports(self) -> set[int]:
        """Return the ports that servers of this home directory listen on. It reads files."""
        others = (entry.port for entry in list_servers(self.folders.user))
        return self.listening_ports | {port for port in others if port is not None}

    @property
    def _now(self) -> State:
        if self._state is None:
            raise RuntimeError("OneTool is not open: use `async with OneTool(settings) as app:`")
        return self._state

    # --- runs ---------------------------------------------------------------------------------------------------

    async def run(
        self,
        command: object,
        *,
        agent: str = "default",
        journal: Journal | None = None,
        preset_format: str | None = None,
        meta: Mapping[str, Any] | None = None,
        is_owner: bool = False,
        token_id: str = "",
        client: str = "",
    ) -> Answer:
        """What an MCP client sees when it calls `run(command)`; `meta` is what it says about the request."""
        state = self._now
        if state.error is not None and not _works_without_settings(command):
            return Answer(
                (escape_invisible(f"The configuration is wrong, so nothing runs until it is right:\n{state.error}"),),
                is_error=True,
                error="config_error",
            )
        journal = journal or Journal()
        try:
            context = self.context(agent, journal, meta, is_owner=is_owner, token_id=token_id, client=client)
        except ToolError as error:
            return Answer((f"{type(error).__name__}: {error}",), is_error=True, error=error.type)
        with self._telemetry.run(context, journal, command) as outcome:
            answer = outcome.answer = await state.runner.run(command, context, journal, preset_format)
        notices = (*self._notices.take(agent), *(f"Note: {notice}" for notice in journal.notices))
        return replace(answer, blocks=(*map(state.redact, notices), *answer.blocks)) if notices else answer

    async def begin_session(self, own_tokens: int, *, agent: str = "default", client: str = "") -> None:
        """A client has come, for which our own definition costs so much. What it may call soon is got ready."""
        self.servers.keeps_running = self.bundles.keeps_running = True
        await self.discover()
        begin = partial(self._telemetry.begin_session, agent=agent, client=client)
        await anyio.to_thread.run_sync(begin, self.registry, self.bundles.definition_tokens(), own_tokens)

    def context(
        self,
        agent: str = "default",
        journal: Journal | None = None,
        meta: Mapping[str, Any] | None = None,
        *,
        is_owner: bool = False,
        token_id: str = "",
        client: str = "",
    ) -> ToolContext:
        """The facts of a call that this agent makes."""
        self.registry.apply_switches()
        system: System = self
        return ToolContext(
            **self.agents.facts(agent),
            working_dir=self._now.loaded.folders.working_dir,
            correlation_id=os.urandom(8).hex(),
            bus=self.bus,
            system=system,
            progress=journal.note if journal else None,
            heard=journal.hear if journal else None,
            notice=journal.notify if journal else None,
            metadata={"_meta": meta} if meta else {},
            is_owner=is_owner,
            token_id=token_id,
            client=client,
        )

    def warm_up(self) -> None:
        """Have a cell ready before the first run asks for one. Returns at once."""
        self._now.cells.warm_up()

    def _warn(self, agent: str, text: str) -> None:
        """Something that an agent should know soon, and the log for good."""
        self._notices.add(agent, text)
        self.log.event("warning", level="WARNING", agent=agent, text=text)

    # --- what the ot pack asks (ot.context.System) ---------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        return self.bus.registry

    @property
    def config_error(self) -> ConfigError | None:
        """What is wrong with the configuration, where it is; nothing but help runs until it is right."""
        return self._now.error

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What a person should know about what was read."""
        return self._now.loaded.problems

    @property
    def settings(self) -> Settings:
        return self._now.loaded.settings

    @property
    def folders(self) -> Folders:
        return self._now.loaded.folders

    @property
    def config_files(self) -> tuple[Path, ...]:
        """The configuration files in force; none if a program passed the settings in."""
        return config_files(self._now.loaded)

    @property
    def stores(self) -> Stores:
        return self._now.stores

    @property
    def media(self) -> MediaStorage:
        return self._now.media

    @property
    def audit(self) -> AuditLog:
        return self._now.audit

    @property
    def net(self) -> Net:
        return self._now.net

    @property
    def redact(self) -> Redactor:
        """`redact(text)` is the text without the values of secrets."""
        return self._now.redact

    @property
    def cells(self) -> Cells:
        return self._now.cells

    @property
    def switched_off(self) -> frozenset[str]:
        """Tools and packs that somebody has switched off; what is stored has switches of its own."""
        return self._now.switches.off()

    @property
    def results(self) -> ResultStorage:
        return self._now.results

    async def discover(self, words: Collection[str] | None = None) -> None:
        """Have in the registry what is there now; `words` are the packs that matter, where not all do."""
        await self.registry.refresh(words)

    async def switch(self, name: str, *, on: bool) -> None:
        """Switch a tool or a pack on or off, for good; what is stored has its own switch."""
        await anyio.to_thread.run_sync(partial(self._now.switches.set, name, on=on))
        self.registry.apply_switches()

    async def search(self, query: str, limit: int = 20) -> list[SearchHit]:
        """What fits, over everything there is at this moment."""
        await self.discover()
        state = self._now
        facts = state.stores.search, query, limit, state.loaded.settings, self.bundles
        return await anyio.to_thread.run_sync(self._search.search, *facts)

    @property
    def log(self) -> Log:
        assert self._log is not None
        return self._log

    async def reload(self) -> str:
        """Read everything again; a configuration that is wrong changes nothing and is reported."""
        answer = await self.apply_settings()
        await self.discover()
        return answer

    async def apply_settings(self, *, unasked: bool = False) -> str:
        """Read the settings again and use them.

        With `unasked`, because files changed and nobody asked for a reload, raise if that would take a whole file of
        settings away: the project directory lost its trust, or the file is gone.
        """
        read = partial(self._reader.read_again, self._now.loaded, unasked=unasked)
        self._configure(await anyio.to_thread.run_sync(read))
        return RELOADED

    async def health(self) -> dict[str, Any]:
        """Return how everything is doing; `findings` are the problems in their parts."""
        return await self._checks().report_health(self._now, self.log)

    async def check(self, seconds: float | None = None, stored: Iterable[Problem] = ()) -> list[Problem]:
        """Return everything that is wrong or in order, from files and recorded states; nothing is started for it.

        `stored` is what somebody found about kept files before anything ran.
        """
        return await self._checks().find_problems(self._now, self.log, seconds, stored)

    def _checks(self) -> "Checks":
        from onetool.checks import Checks

        sources = self.bus.registered, self.extensions, self.servers, self.bundles
        return Checks(self.registry, *sources, self._reader)


def _works_without_settings(command: object) -> bool:
    try:
        return isinstance(command, str) and WORKS_WITHOUT_SETTINGS.fullmatch(strip(command)) is not None
    except ToolError:
        return False
