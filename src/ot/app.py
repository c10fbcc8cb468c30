"""The only constructor of everything: settings, registry, cells; and what takes it all down again.

`async with OneTool(settings) as app:` gives `app.bus` and `await app.run(command)`. There is no state outside of
it. Nothing is started before it is needed; `warm_up` is for doors that know a run will come.
"""

import asyncio
import os
import platform
import re
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import anyio

from ot.agents import Agents
from ot.audit import Audit
from ot.bundles.source import BundleSource, folder_of
from ot.bus.bus import ToolBus
from ot.config.load import Examined, Loaded, examine, load
from ot.config.model import Loc, Pack, Settings
from ot.config.trust import Facts, Verdict, difference, since_start, still_trusted
from ot.context import ToolContext
from ot.errors import ConfigError, ToolError
from ot.extensions.environments import for_worker
from ot.extensions.packs import Extensions
from ot.logging import Log
from ot.net import HostRules, Net
from ot.paths import FOLDER, Folders, find_folders, placed
from ot.problem import OK, Location, Problem, storage_problem
from ot.proxy.servers import Servers
from ot.recording import Recording
from ot.redact import Redactor
from ot.registry import Registry, python_name
from ot.runner.answer import Answer, Journal, Presenter
from ot.runner.cells import Cells, Limits
from ot.runner.fence_processor import strip
from ot.runner.runner import Runner
from ot.runner.tool_loader import shipped_tools
from ot.running_servers import list_servers
from ot.search import Hit
from ot.search.corpus import documents
from ot.storage import MediaStorage, ResultStorage, SwitchStorage
from ot.stores import Stores
from ot.switches import Switches
from ot.tool import Tool
from ot.util.background_tasks import BackgroundTasks
from ot.util.gc_pauses import no_gc_pauses
from ot.util.invisible import escape_invisible
from ot.version import __version__

WORKS_WITHOUT_SETTINGS = re.compile(r"\s*ot\.(health|help|reload)\([^()]*\)\s*")
RELOADED = "OK: Configuration reloaded"
CHECK_SECONDS = 0.5  # for each database that `health` checks


def read_settings(
    env: Mapping[str, str], cwd: Path, config_file: Path | None = None, home: Path | None = None
) -> Loaded:
    """What the files and variables of this machine say."""
    return load(find_folders(env, cwd, config_file, home or Path.home()), env)


def examine_settings(
    env: Mapping[str, str], cwd: Path, config_file: Path | None = None, home: Path | None = None
) -> Examined:
    """The same for checks: what is wrong is reported instead of raised."""
    return examine(find_folders(env, cwd, config_file, home or Path.home()), env)


@dataclass(frozen=True, slots=True)
class _State:
    """All that a reload replaces, as one piece."""

    loaded: Loaded
    error: ConfigError | None
    cells: Cells
    runner: Runner
    redact: Redactor
    stores: Stores
    results: ResultStorage
    media: MediaStorage
    audit: Audit
    net: Net
    switches: SwitchStorage


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
        self._read = read or (lambda: _given(settings or Settings(), folder or Path.home() / FOLDER))
        self._make_cells, self._log, self._examine = make_cells, log, examine
        self.agents = Agents(self._warn)
        self.bus = ToolBus(
            Registry(),
            admit=self._admit,
            discover=self.discover,
            cost_of=self.agents.cost_of,
        )
        self._recording = Recording(self.bus.events)
        self._environment = os.environ if environment is None else environment
        self._extensions = Extensions(self.bus.registry, self.bus.call_tool, self._environment)
        self.bundles = BundleSource(self.bus.registry, lambda: self._now.net)
        self.servers = Servers(self.bus.registry, for_worker(self._environment))
        self.registry.elsewhere = lambda: (*map(python_name, self.servers.names), *self.bundles.packs)
        self._state: _State | None = None
        self._at_start: Facts | None = None  # of a project that only ONETOOL_TRUST=1 trusts
        self._retiring = BackgroundTasks()
        self._unsaid: tuple[Problem, ...] = ()
        self._unsaid_to: dict[str, list[str]] = {}
        self._installed: asyncio.Future[list[str]] | None = None  # what is wrong with packages that bring tools
        self._searched: object = None  # what the search has been told about
        self._updating = threading.Lock()
        self.exposed: tuple[str, ...] = ()  # names that doors publish one to one, beside `run`
        self.listening_ports: set[int] = set()  # of this process, where tools must not send requests to

    async def __aenter__(self) -> Self:
        self._shipped = tuple(shipped_tools(self.bus.threads))
        for tool in self._shipped:
            self.bus.register_tool(tool)
        error = None
        try:
            loaded = self._read()
        except ConfigError as wrong:
            error, loaded = wrong, self._without_settings()
        self._at_start = loaded.snapshot or ({} if error is None else None)
        self._become(loaded, error)
        self._unsaid = loaded.problems
        return self

    def _without_settings(self) -> Loaded:
        """Return what is in force while the settings are wrong: the defaults, in the directories that are meant."""
        folders = self._examine().loaded.folders if self._examine is not None else None
        if folders is None or folders.config_file is not None:  # a mistyped --config names no directory to write to
            return _given(Settings(), Path.home() / FOLDER)
        return Loaded(Settings(), {}, (), (), folders)

    async def __aexit__(self, *_: object) -> None:
        self._retiring.cancel()
        await self._now.cells.__aexit__(None, None, None)
        await asyncio.gather(self._extensions.close(), self.servers.close(), self._now.net.close())
        await anyio.to_thread.run_sync(self._now.stores.close)
        await anyio.to_thread.run_sync(self.bundles.close)
        await anyio.to_thread.run_sync(self._now.audit.close)
        if self._log is not None:
            await anyio.to_thread.run_sync(self._log.close)

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
        with self._recording.run(context, journal, command) as outcome:
            answer = outcome.answer = await state.runner.run(command, context, journal, preset_format)
        notices = (*self._notices(agent), *(f"Note: {notice}" for notice in journal.notices))
        return replace(answer, blocks=(*map(state.redact, notices), *answer.blocks)) if notices else answer

    async def begin_session(self, own_tokens: int, *, agent: str = "default", client: str = "") -> None:
        """A client has come, for which our own definition costs so much. What it may call soon is got ready."""
        self.servers.keeps_running = self.bundles.keeps_running = True
        await self.discover()
        begin = partial(self._recording.begin_session, agent=agent, client=client)
        await anyio.to_thread.run_sync(begin, self.registry, own_tokens)

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
        self._apply_switches()
        return ToolContext(
            **self.agents.facts(agent),
            working_dir=self._now.loaded.folders.working_dir,
            correlation_id=os.urandom(8).hex(),
            bus=self.bus,
            system=self,
            progress=journal.note if journal else None,
            heard=journal.hear if journal else None,
            notice=journal.notify if journal else None,
            metadata={"_meta": meta} if meta else {},
            is_owner=is_owner,
            token_id=token_id,
            client=client,
        )

    def _admit(self, tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Awaitable[object]:
        return self._now.audit.admit(tool, args, context)

    def warm_up(self) -> None:
        """Have a cell ready before the first run asks for one. Returns at once."""
        self._now.cells.warm_up()

    def _warn(self, agent: str, text: str) -> None:
        """Something that an agent should know soon, and the log for good."""
        self._unsaid_to.setdefault(agent, []).append(text)
        self.log.event("warning", level="WARNING", agent=agent, text=text)

    def _notices(self, agent: str) -> tuple[str, ...]:
        """What a person should know, once, with the first answer; and what this agent should."""
        unsaid, self._unsaid = self._unsaid, ()
        return tuple(f"Note: {notice}" for notice in (*unsaid, *self._unsaid_to.pop(agent, ())))

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

    def describe(self, pack: str) -> str:
        """What a pack says about itself. It may wait for the disk."""
        return self._extensions.described.get(pack) or self.bundles.describe(pack)

    def note_unlisted(self, context: ToolContext) -> str:
        """Return sentences on what is missing from lists; empty if nothing is."""
        built = "stored tools not listed yet: their index is being built." if self.bundles.is_building else ""
        return " ".join(filter(None, (self.servers.note_unlisted(context), built)))

    @property
    def folders(self) -> Folders:
        return self._now.loaded.folders

    @property
    def config_files(self) -> tuple[Path, ...]:
        """The configuration files in force; none if a program passed the settings in."""
        loaded = self._now.loaded
        configured = (loaded.folders.config_of(layer) for layer in loaded.folders.layers)
        return tuple(path for path in configured if path in loaded.files)

    @property
    def stores(self) -> Stores:
        return self._now.stores

    @property
    def media(self) -> MediaStorage:
        return self._now.media

    @property
    def audit(self) -> Audit:
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
    def workers(self) -> Mapping[str, str]:
        """What the process of each extension pack is doing."""
        return self._extensions.states

    def worker_problem(self, pack: str) -> Problem | None:
        """Return why the process of an extension pack could not be started the last time."""
        return self._extensions.failures.get(pack)

    @property
    def switched_off(self) -> frozenset[str]:
        """Tools and packs that somebody has switched off; what is stored has switches of its own."""
        return self._now.switches.off()

    @property
    def results(self) -> ResultStorage:
        return self._now.results

    async def discover(self, words: Collection[str] | None = None) -> None:
        """Have in the registry what is there now; `words` are the packs that matter, where not all do."""
        await self._look_for_installed()  # first: of two packs with one name it is always the same that is refused
        await asyncio.gather(self._extensions.discover(), self.servers.discover(words))
        self._apply_switches()
        await self.bundles.discover(words)  # the last, because a name that is taken stays whose it is
        self.servers.explain()

    async def _look_for_installed(self) -> list[str]:
        """Packages are not installed while we run: once is enough. Who is cancelled leaves it to the others."""
        if self._installed is None:
            self._installed = asyncio.ensure_future(anyio.to_thread.run_sync(self.bus.register_installed))
        return await asyncio.shield(self._installed)

    def _apply_switches(self) -> None:
        switches = self._now.switches
        off = switches.off()
        self.registry.switch_off(off, *([str(switches.problem)] if switches.problem else []))

    async def switch(self, name: str, *, on: bool) -> None:
        """Switch a tool or a pack on or off, for good; what is stored has its own switch."""
        await anyio.to_thread.run_sync(partial(self._now.switches.set, name, on=on))
        self._apply_switches()

    async def search(self, query: str, limit: int = 20) -> list[Hit]:
        """What fits, over everything there is at this moment."""
        await self.discover()
        return await anyio.to_thread.run_sync(self._search, self._now, query, limit)

    def _search(self, state: _State, query: str, limit: int) -> list[Hit]:
        search, packs = state.stores.search, self.bundles.packs
        now = (self.registry.changes, packs, state)  # packs say something new only together with their tools
        with self._updating:
            if self._searched != now:
                with no_gc_pauses():
                    search.update(documents(self.registry, packs.values(), state.loaded.settings))
                self._searched = now
        hits = search.search(query, limit, shelves=self.bundles.shelves())
        return [hit for hit in hits if hit.kind != "tool" or not self.registry.is_off(hit.name)]

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
        loaded = await anyio.to_thread.run_sync(self._read)
        self._refuse_what_came_later(loaded)
        if unasked:
            self._refuse_loss(loaded)
        self._become(loaded, None)
        return RELOADED

    def _refuse_loss(self, loaded: Loaded) -> None:
        if self.folders.project is not None and loaded.folders.project is None:
            why = "\n".join(map(str, loaded.problems))
            raise ToolError(why or f"{self.folders.project} is not trusted any more")
        for gone in set(self.config_files).difference(loaded.files):
            raise ToolError(f"{gone} is gone", hint="put it back, or run `onetool reload` to do without it")

    def _refuse_what_came_later(self, loaded: Loaded) -> None:
        """Raise if a project changed that only ONETOOL_TRUST=1 trusts: a run must not write what a reload executes."""
        if loaded.snapshot is None:
            return
        if self._at_start is None:  # the first settings that could be read
            self._at_start = loaded.snapshot
        assert loaded.folders.project is not None
        if changes := difference(self._at_start, loaded.snapshot, loaded.folders.project):
            problem = since_start(loaded.folders.project, changes)
            raise ConfigError(problem.message, hint=problem.hint, location=problem.location, code=problem.code)

    def _still_trusted(self, loaded: Loaded) -> Verdict:
        return still_trusted(loaded.folders, self._environment, self._at_start)

    async def health(self) -> dict[str, Any]:
        """Return how everything is doing; `findings` are the problems in their parts."""
        state = self._now
        with suppress(ToolError):  # `check` reports it
            await self.discover()
        servers = await self.servers.states()  # first: it notices servers that went away
        found = [each for each in await self.check(CHECK_SECONDS) if each.level != OK]
        degraded = "disconnected" in servers.values()
        return {
            "version": __version__,
            "python": platform.python_version(),
            "cwd": str(state.loaded.folders.working_dir),
            "registry": {"status": "ok", "tool_count": await anyio.to_thread.run_sync(len, self.registry)},
            "proxy": {
                "status": "degraded" if degraded else "ok",
                "server_count": len(servers),
                "servers": servers,
            },
            "workers": self.workers,
            "isolation": await state.cells.probe(),
            "problems": [str(each) for each in found],
            "findings": [each.to_json() for each in found],
        }

    async def check(self, seconds: float | None = None, stored: Iterable[Problem] = ()) -> list[Problem]:
        """Return everything that is wrong or in order, from files and recorded states; nothing is started for it.

        `stored` is what somebody found about kept files before anything ran.
        """
        from ot.checks import Subject, check

        undiscovered: list[Problem] = []
        try:
            await self.discover()
        except ToolError as error:
            undiscovered = [Problem.of(error)]
        loaded, installed = self._now.loaded, await self._look_for_installed()
        read = await anyio.to_thread.run_sync(self._examine or (lambda: Examined(loaded, (), _setting_name)))
        bundles = await anyio.to_thread.run_sync(lambda: self.bundles.problems)
        recorded = (*undiscovered, *map(Problem, installed), *self._recorded_problems(read))
        clients = self._examine is not None
        parts = (self.registry, self.servers, self._extensions, bundles)
        subject = Subject(read, *parts, recorded, checks_clients=clients)
        return await anyio.to_thread.run_sync(check, subject, seconds, stored)

    def _recorded_problems(self, read: Examined) -> Iterator[Problem]:
        """Yield what the running parts noticed."""
        state = self._now
        yield from (*state.loaded.problems, *self._extensions.refused)
        if state.error is not None and not read.errors:  # else they are named one by one
            yield Problem(str(state.error))
        if state.audit.problem:
            yield storage_problem(state.audit.problem, state.audit.file)
        if state.switches.problem:
            yield state.switches.problem
        yield from state.stores.problems
        if self.log.problem:
            yield storage_problem(self.log.problem, state.loaded.folders.data / "logs" / "onetool.log")

    # --- building -------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> _State:
        if self._state is None:
            raise RuntimeError("OneTool is not open: use `async with OneTool(settings) as app:`")
        return self._state

    def _become(self, loaded: Loaded, error: ConfigError | None) -> None:
        """Put a configuration in force, whole. Runs that are under way end in the cells they have."""
        old, settings = self._state, loaded.settings
        redact = Redactor(loaded.secret_values)
        if self._log is None:
            self._log = Log(loaded.folders.data / "logs" / "onetool.log")
        self._log.use(settings.log_level, redact)
        is_same = old is not None and old.loaded.settings.execution == settings.execution
        cells = old.cells if old is not None and is_same else self._new_cells(settings)
        stores = _stores(old, loaded)
        results = stores.results(settings.output)
        presenter = Presenter(settings.output, results, redact)
        projects = _projects(loaded)
        runner = Runner(self.bus, cells, settings, presenter, projects=projects, discover=self.discover)
        self.registry.aliases = settings.aliases
        self.agents.use(loaded, projects)
        unused = self.bundles.use(loaded)
        for tool in self._shipped:
            self.registry.replace(_as_configured(tool, settings.tools.get(tool.pack)))
        media, audit, net = stores.media(settings.output), _audit(old, loaded, redact), self._net(settings)
        switches = Switches(loaded.folders.data)
        self._state = _State(loaded, error, cells, runner, redact, stores, results, media, audit, net, switches)
        self.bus.events.redact = redact
        self._recording.keep_in(self._log, audit, stores)
        self.servers.use(loaded, self._log.event, media.put)
        self._extensions.use(loaded, self._log.event, partial(self._still_trusted, loaded))
        if unused is not None:
            self._retiring.start(anyio.to_thread.run_sync(unused.close))
        if old is not None:
            self._retire_parts(old)

    def _retire_parts(self, old: _State) -> None:
        """Whatever of the state before is not part of the one that is now in force."""
        now = self._now
        if now.cells is not old.cells:
            self._retiring.start(old.cells.retire())
        if now.stores is not old.stores:
            self._retiring.start(anyio.to_thread.run_sync(old.stores.close))
        if now.audit is not old.audit:
            self._retiring.start(anyio.to_thread.run_sync(old.audit.close))
        if now.net is not old.net:
            self._retiring.start(old.net.close())

    def _net(self, settings: Settings) -> Net:
        """Requests that are under way end by the rules they began with."""
        old = self._state
        if old is not None and old.loaded.settings.http == settings.http:
            return old.net
        rules = HostRules(settings.http.allowed_hosts, settings.http.allow_private_addresses)
        return Net(rules, own_ports=self._own_ports)

    def _own_ports(self) -> set[int]:
        """Return the ports that servers of this home directory listen on. It reads files."""
        others = (entry.port for entry in list_servers(self.folders.user))
        return self.listening_ports | {port for port in others if port is not None}

    def _new_cells(self, settings: Settings) -> Cells:
        execution = settings.execution
        limits = Limits(
            timeout=execution.timeout,
            memory_mb=execution.memory_mb,
            max_output_bytes=execution.max_output_bytes,
            isolation=execution.isolation,
            cells=execution.cells,
        )
        return self._make_cells(limits, on_stray=lambda text: self.log.event("cell.output", text=text))


def _given(settings: Settings, folder: Path) -> Loaded:
    """Settings that a program passed in: no files are read."""
    return Loaded(settings, {}, (), (), Folders(working_dir=Path.cwd(), user=folder))


def _stores(old: _State | None, loaded: Loaded) -> Stores:
    folder, settings = loaded.folders.data, loaded.settings.stats
    if old is None or old.stores.folder != folder:
        return Stores.opened(folder, settings, folder_of(loaded) / ".usage" / "usage.db")
    old.stores.recorder.enabled, old.stores.recorder.keep_days = settings.enabled, settings.keep_days
    return old.stores


def _as_configured(tool: Tool, pack: Pack | None) -> Tool:
    """What `tools.<pack>` says about a pack that ships."""
    if pack is None:
        return tool
    timeout = tool.timeout if pack.timeout is None else pack.timeout
    return replace(tool, timeout=timeout, permissions=tool.permissions | (pack.permissions or frozenset()))


def _audit(old: _State | None, loaded: Loaded, redact: Redactor) -> Audit:
    settings = loaded.settings.audit
    file = placed(settings.file, loaded.folders.data, loaded.folders.home)
    audit = old.audit if old is not None and old.audit.file == file else Audit(file, redact)
    audit.use(redact, settings.max_bytes, settings.keep)
    return audit


def _projects(loaded: Loaded) -> dict[str, str]:
    folders = loaded.folders
    return {
        name: str(placed(path, folders.working_dir, folders.home)) for name, path in loaded.settings.projects.items()
    }


def _works_without_settings(command: object) -> bool:
    try:
        return isinstance(command, str) and WORKS_WITHOUT_SETTINGS.fullmatch(strip(command)) is not None
    except ToolError:
        return False


def _setting_name(loc: Loc) -> Location:
    return Location(".".join(map(str, loc)))
