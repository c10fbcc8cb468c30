"""The application: creates and closes settings, sources of tools, cells and stores.

Use `async with OneTool(settings) as app:`, then `app.bus` and `await app.run(command)`; or `with` and `run_sync` in
programs without an event loop. All state is in this object, and nothing is started before it is needed; transports that
expect a run call `warm_up`.
"""

import asyncio
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

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
from onetool.core.context import ToolContext
from onetool.core.registry import Registry
from onetool.core.render import render
from onetool.errors import ConfigError, SignInRequired, ToolError, describe
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
from onetool.runner.answer import Answer
from onetool.runner.cells import MEASURES_WORK, Cells, CellSource
from onetool.runner.fence_processor import strip
from onetool.runner.isolation import describe_interpreter, find_isolation_problem
from onetool.runner.run_output import ClientChannel, RunOutput
from onetool.runner.tool_loader import load_builtin_tools
from onetool.runs.gate import Gate
from onetool.runs.model import DurableCall, DurableRunRecord
from onetool.runs.notifier import ApprovalNotifier
from onetool.runs.replay import ReplayGate
from onetool.runs.runs import DurableOutcome, Runs
from onetool.runs.starters import is_revoked
from onetool.search import SearchHit
from onetool.search.search_documents import CatalogSearch
from onetool.snippets.saved_snippets import merge_snippets
from onetool.state.audit import AuditLog
from onetool.state.disabled_tools import OWNER_MARK, list_owner_marks
from onetool.state.storage import MediaStorage, ResultStorage, State
from onetool.telemetry import Notices, Telemetry
from onetool.util.background_tasks import BackgroundTasks
from onetool.util.invisible import escape_invisible
from onetool.util.problem import Problem
from onetool.util.redact import Redactor
from onetool.util.running_servers import list_servers
from onetool.util.shared_flight import SharedFlight
from onetool.util.text import quote
from onetool_child.data import as_data

if TYPE_CHECKING:
    from onetool.checks import Checks
    from onetool.core.system import System
    from onetool.shared_processes import SharedProcesses
    from onetool.snippets.saved_snippets import SavedSnippet
    from onetool.stats.summary import StatsSummary

__all__ = ["OneTool", "examine_settings", "read_settings"]

WORKS_WITHOUT_SETTINGS = re.compile(r"\s*ot\.(health|help|reload)\([^()]*\)\s*")
STORE_SECONDS = 5.0  # to wait for the database when the application is opened
RELOADED = "OK: Configuration reloaded"
LOG_LEVELS = {"debug": "DEBUG", "info": "INFO", "notice": "INFO", "warning": "WARNING"}  # of MCP; others are errors


class OneTool:
    """The application: `with OneTool() as app: app.run_sync("1 + 1").value`, or `async with` and `await app.run(...)`.

    It reads no settings files (`from_files` does): `settings` are the settings and `folder` is the data directory.
    `examine` reads the settings for checks and returns all problems with their locations. `shared` are the processes
    that it shares with other applications of this process.
    """

    def __init__(
        self,
        settings: Settings | Mapping[str, Any] | None = None,
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
        self.editing_settings = asyncio.Lock()  # held by an edit until it is in effect here
        self._make_cells, self._log = make_cells if shared is None else shared.cells.open, log
        self._state: Parts | None = None
        self.times_configured = 0
        self.times_fixed = 0  # what health reports as fixable
        self._plan_turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by agent
        self.agents = Agents(self._warn)
        self.llm = LanguageModel(self._own_ports)
        self.sign_ins = SignIns(self._own_ports)
        self._notifier = ApprovalNotifier(self._own_ports)
        self.runs = Runs(self._run_again)
        self.bus = ToolBus(get_cost=self.agents.get_cost)
        self._telemetry, self._notices = Telemetry(self.bus.events, self.agents.get_cost), Notices()
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
            get_jobs=lambda: self.stores.jobs,
        )
        services = UpstreamServices(
            registry.mark_disabled,
            log_event,
            lambda: self._require_state().media,
            self.sign_ins,
            None if shared is None else shared.connections,
        )
        self.servers = Servers(services, make_worker_environment(environment), lambda: self.stores)
        self.bundles = BundleSource(
            registry,
            lambda: self._require_state().net,
            lambda: self._require_state().media,
            self.sign_ins,
            lambda: self.stores,
        )
        registry.sources = (registered, self.extensions, self.servers, self.bundles)
        self._search = CatalogSearch(registry)
        self._health: SharedFlight[dict[str, Any]] = SharedFlight()
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._blocking is not None
        self._blocking.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        self.bus.registered.add_builtin(load_builtin_tools(self.bus.threads))
        loaded, error = await anyio.to_thread.run_sync(self.reader.read_first)
        self._configure(loaded, error)
        await self._join_store()
        self._notices.general = self.problems
        return self

    async def __aexit__(self, *_: object) -> None:
        self._retiring.cancel()
        state = self._require_state()
        await self.runs.close()
        await self._notifier.close()
        await state.cells.__aexit__(None, None, None)
        await asyncio.gather(*(source.close() for source in self.registry.sources), state.net.close(), self.llm.close())
        await self.sign_ins.close()
        for close in (state.audit.close, state.stores.close, self.log.close):
            await anyio.to_thread.run_sync(close)

    def _configure(self, loaded: Loaded, error: ConfigError | None = None) -> None:
        """Apply a configuration. Current runs finish in their cells."""
        if self._log is None:
            self._log = Log(loaded.directories.data / "logs" / "onetool.log")
        old, log = self._state, self._log
        state = self._state = make_parts(
            loaded, error, old, bus=self.bus, log=log, make_cells=self._make_cells, own_ports=self._own_ports
        )
        log.configure(loaded.settings.log_level, state.redact)
        self.bus.events.redact, self.bus.admit = state.redact, state.audit.admit
        self._telemetry.configure(log, state.audit, state.stores)
        self.agents.configure(loaded, state.projects, state.stores.guard_budget)
        self.llm.configure(loaded, state.redact, state.stores.token_usage)
        self.sign_ins.configure(loaded, state.stores.credentials)
        private = loaded.settings.http.allow_private_addresses
        self._notifier.configure(
            loaded.settings.approvals.notify, state.redact, log, self.environment, allow_private_addresses=private
        )
        self.runs.configure(
            state.stores.runs,
            loaded.settings.approvals,
            str(loaded.directories.working_dir),
            python=describe_interpreter(state.cells.isolation["cells"]),
            keeps_cells=MEASURES_WORK,
            get_policy=self.agents.get_policy,
            is_revoked=self._is_revoked,
            on_event=self._record_decision,
        )
        self.registry.aliases, self.registry.switches = loaded.settings.aliases, state.stores.disabled_tools
        for source in self.registry.sources:
            source.configure(loaded)
        self.times_configured += 1
        for work in old.retire(state) if old is not None else ():
            self._retiring.start(work)

    def _is_revoked(self, run: DurableRunRecord) -> bool:
        auth = self.settings.auth
        return is_revoked(run, self.stores.tokens.apply(auth.tokens), auth.issuers)

    def _own_ports(self) -> set[int]:
        """Return the ports that servers of this user listen on, from files."""
        others = (entry.port for entry in list_servers(self.directories.user))
        return self.listening_ports | {port for port in others if port is not None}

    def _require_state(self) -> Parts:
        if self._state is None:
            raise RuntimeError("OneTool is not open: use `async with OneTool(settings) as app:`")
        return self._state

    # --- runs ---------------------------------------------------------------------------------------------------

    async def run(
        self,
        command: object,
        *,
        agent: str = "default",
        output: RunOutput | None = None,
        preset_format: str | None = None,
        meta: Mapping[str, Any] | None = None,
        is_owner: bool = False,
        token_id: str = "",
        actor: str = "",
        client: str = "",
        session: str = "",
    ) -> Answer:
        """Run a command and return the answer for the client; `meta` is the metadata of the request."""
        state = self._require_state()
        if state.error is not None and not _works_without_settings(command):
            return Answer(
                (escape_invisible(f"invalid settings; nothing runs until they are fixed:\n{state.error}"),),
                is_error=True,
                error="config_error",
            )
        output = output or RunOutput(keeps_value=True)
        try:
            context = self.context(
                agent,
                output,
                meta,
                is_owner=is_owner,
                token_id=token_id,
                actor=actor,
                client=client,
                session=session,
                kind="run",
            )
        except ToolError as error:
            return Answer((f"{type(error).__name__}: {error}",), is_error=True, error=error.type)
        gate: Gate = context.gate
        gate.record = replace(gate.record, code=command if isinstance(command, str) else "", format=preset_format)
        work = partial(self._run_once, command, context, output, preset_format, session)
        if not gate.is_replayable:
            return await work()
        try:
            answer = await self.runs.run(gate, work, _to_outcome)
        except ToolError as error:  # a person stopped the run
            return Answer((f"{type(error).__name__}: {error}",), is_error=True, error=error.type)
        if answer is None:
            output.channel.listener = None
            return Answer((self.runs.describe_pause(gate),), is_paused=True)
        return answer

    async def _run_once(
        self, command: object, context: ToolContext, output: RunOutput, preset_format: str | None, session: str = ""
    ) -> Answer:
        state = self._require_state()
        with self._telemetry.run(context, output, command) as outcome:
            try:
                answer = outcome.answer = await state.runner.run(command, context, output, preset_format)
            finally:
                if not context.gate.is_replayable:
                    self.runs.finish_later(
                        context.gate, "cancelled" if outcome.answer is None else outcome.answer.error
                    )
        unisolated = find_isolation_problem(state.cells.isolation["sandbox"], self.settings.execution.isolation)
        if unisolated is not None and unisolated not in self._notices.general:
            self._notices.general = (*self._notices.general, unisolated)
        notices = (*self._notices.take(context.agent_id, session), *(f"Note: {notice}" for notice in output.notices))
        return replace(answer, blocks=(*map(state.redact, notices), *answer.blocks)) if notices else answer

    async def plan(self, code: str, context: ToolContext) -> dict[str, Any]:
        """Return what the code would do. Only tools that read are called.

        An agent has one plan at a time, so that it takes one cell more than its runs. Waiting counts as time of
        the caller, and the plan gets half of the memory that the run does not use.
        """
        from onetool.runner.planning import plan, reject_nested

        reject_nested(context)
        async with self._plan_turns[context.agent_id]:
            return await plan(self._require_state().runner, code, context, self.redact.redact_data)

    async def replay(
        self, record: DurableRunRecord, calls: Iterable[DurableCall], code: str, context: ToolContext
    ) -> Answer:
        """Run code with the recorded answers of a run, and return its answer. No tool is called."""
        gate = ReplayGate.from_record(record, calls)
        output = RunOutput(keeps_value=True)
        return await self._require_state().runner.run(code, replace(context, gate=gate), output, record.format)

    async def save_snippet(self, name: str, description: str, run_id: str, context: ToolContext) -> "SavedSnippet":
        """Save a run that worked as a snippet of its agent."""
        from onetool.runner.snippet_saver import SnippetSaver

        state = self._require_state()
        saver = SnippetSaver(state.runner, self.runs, state.stores.snippets, state.redact)
        return await saver.save(name, description, run_id, context)

    async def _run_again(self, record: DurableRunRecord, gate: Gate) -> DurableOutcome:
        """Execute a run of an ended process again, or make its call."""
        output = RunOutput(keeps_value=True)
        context = self.context(
            record.agent, output, token_id=record.token_id, actor=record.actor, client=record.client, gate=gate
        )
        if record.kind == "run":
            return _to_outcome(await self._run_once(record.code, context, output, record.format))
        call = json.loads(record.code)
        context = replace(context, account=call.get("account", ""))
        result = await self.bus.call_tool(call["tool"], call["arguments"], context)
        if result.error is not None:
            return DurableOutcome(error=describe(result.error))
        return DurableOutcome((render(as_data(result.value)),), as_data(result.value))

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

    def context(
        self,
        agent: str = "default",
        output: RunOutput | None = None,
        meta: Mapping[str, Any] | None = None,
        *,
        is_owner: bool = False,
        token_id: str = "",
        actor: str = "",
        client: str = "",
        session: str = "",
        kind: Literal["run", "call"] = "call",
        hold: float = 0.0,
        gate: Gate | None = None,
    ) -> ToolContext:
        """Return the context for a run of this agent, or for one call.

        `session` identifies the session of the client. A call outside of a run waits for `hold` seconds for a person.
        """
        self.registry.apply_switches()
        system: System = self
        channel = output.channel if output else ClientChannel()
        correlation_id = gate.id.removeprefix("r_") if gate is not None else os.urandom(16).hex()
        if gate is None:
            ask = channel.approve
            hold = self.settings.approvals.wait if kind == "run" else hold
            identity = {"token_id": token_id, "actor": actor, "client": client, "session": session}
            gate = self.runs.open_gate(agent, correlation_id, kind, **identity, ask=ask, hold=hold)
            gate.is_direct = kind == "call"
        return ToolContext(
            **self.agents.context_fields(agent),
            working_dir=self._require_state().loaded.directories.working_dir,
            correlation_id=correlation_id,
            gate=gate,
            bus=self.bus,
            system=system,
            on_progress=partial(self._report_progress, output) if output else None,
            on_log=partial(self._log_message, channel),
            on_ask=channel.ask,
            get_settings=self._get_pack_settings,
            store_media=lambda data, mime_type: self.media.put(data, mime_type, agent, token_id),
            on_foreign_value=output.record_foreign if output else None,
            is_untrusted=(lambda: output.is_untrusted) if output else None,
            notice=output.notify if output else None,
            ask_client=channel.ask_client,
            metadata={"_meta": meta} if meta else {},
            is_owner=is_owner,
            token_id=token_id,
            actor=actor,
            client=client,
        )

    def _record_decision(self, name: str, **fields: Any) -> None:
        """Log an event of a durable run. Decisions of people are also audited, and people learn that calls wait."""
        self.log.event(name, **fields)
        if name == "run.waiting":
            self._notifier.notify(fields["run"], fields["agent"], fields["text"])
        if "by" in fields:
            self.audit.decision(**fields)

    def _get_pack_settings(self, pack: str) -> Mapping[str, Any]:
        found = self.settings.tools.get(pack)
        return found.options if found is not None else {}

    def _report_progress(self, output: RunOutput, text: str, *numbers: float | None) -> None:
        output.report_progress(self.redact(text), *numbers)

    def _log_message(self, channel: ClientChannel, message: str, level: str) -> None:
        self.log.event("tool.log", level=LOG_LEVELS.get(level, "ERROR"), text=message)
        if channel.log is not None:
            channel.log(message, level)

    def warm_up(self) -> None:
        """Start a cell before the first run. Returns immediately."""
        self._require_state().cells.warm_up()

    def _warn(self, agent: str, text: str) -> None:
        """Add a notice for the agent and log a warning."""
        self._notices.add(agent, text)
        self.log.event("warning", level="WARNING", agent=agent, text=text)

    # --- the System protocol of onetool.core.system -------------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        return self.bus.registry

    @property
    def config_error(self) -> ConfigError | None:
        """The error in the configuration, if any; only help runs until it is fixed."""
        return self._require_state().error

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems found in the configuration."""
        return self._require_state().loaded.problems

    @property
    def settings(self) -> Settings:
        return self._require_state().loaded.settings

    @property
    def directories(self) -> Directories:
        return self._require_state().loaded.directories

    @property
    def stores(self) -> State:
        return self._require_state().stores

    @property
    def media(self) -> MediaStorage:
        return self._require_state().media

    @property
    def audit(self) -> AuditLog:
        return self._require_state().audit

    @property
    def net(self) -> Net:
        return self._require_state().net

    @property
    def redact(self) -> Redactor:
        """The redactor: `redact(text)` removes the values of secrets."""
        return self._require_state().redact

    @property
    def cells(self) -> CellSource:
        return self._require_state().cells

    @property
    def disabled_names(self) -> frozenset[str]:
        """The names of disabled tools and packs, without bundles, which have their own state."""
        return frozenset(name for name in self.stores.disabled_tools.off() if not name.startswith(OWNER_MARK))

    @property
    def owner_disabled(self) -> frozenset[str]:
        """The names of tools, versions and packs, and the IDs of stored tools and bundles, that an owner disabled.

        `*` if that is unknown.
        """
        return list_owner_marks(self.stores.disabled_tools.off())

    def mark_disabled(self, keys: Iterable[str], *, on: bool) -> None:
        """Record that an owner disabled these names or IDs, or enabled them. Blocks on the disk."""
        marks = [f"{OWNER_MARK}{key}" for key in (self.owner_disabled.intersection(keys) if on else keys)]
        if marks:
            self.stores.disabled_tools.set(*marks, on=on)

    @property
    def results(self) -> ResultStorage:
        return self._require_state().results

    async def discover(self, words: Collection[str] | None = None) -> None:
        """Update the registry; `words` are the packs that are needed, None for all."""
        await self.registry.refresh(words)

    async def switch(self, name: str, *, on: bool) -> None:
        """Enable or disable a tool or pack permanently."""
        await anyio.to_thread.run_sync(partial(self.stores.disabled_tools.set, name, on=on))
        self.registry.apply_switches()

    async def search(self, query: str, limit: int = 20, agent: str | None = None) -> list[SearchHit]:
        """Search all tools, packs, snippets and aliases. `agent` adds the saved snippets that it can use."""
        await self.discover()
        state = self._require_state()
        settings, saved = state.loaded.settings, state.stores.snippets

        def search() -> list[SearchHit]:
            usable = {} if agent is None else merge_snippets({}, saved, agent)
            more = {name: snippet for name, snippet in usable.items() if name not in settings.snippets}
            return self._search.search(
                state.stores.search, query, limit, settings, stored=self.bundles.searchable(), saved=more
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

        def read() -> Loaded:
            old = self._require_state().loaded
            return self.reader.accept(examined or self.reader.read(), old, unasked=unasked)

        self._configure(await anyio.to_thread.run_sync(read))
        await self._join_store()
        return RELOADED

    async def apply_edit(self, after: Loaded, files: SettingsContents) -> None:
        """Apply an edit that this process has validated and written. The files are not read again."""
        accept = partial(self.reader.accept_edit, after, files, self._require_state().loaded)
        self._configure(await anyio.to_thread.run_sync(accept))
        await self._join_store()

    @property
    def loaded(self) -> Loaded:
        return self._require_state().loaded

    async def _join_store(self) -> None:
        """Wait for a store that was just opened, and apply the settings there."""
        state = self.stores
        is_new = self.reader.join(state.settings, self.settings.store or "")
        if not is_new:
            return
        await anyio.to_thread.run_sync(state.wait, STORE_SECONDS)
        if self.reader.is_outdated:
            read = partial(self.reader.reread, self._require_state().loaded, unasked=False)
            with suppress(ToolError):  # until the files are valid again, no agent may call anything
                self._configure(await anyio.to_thread.run_sync(read))

    async def has_current_settings(self) -> bool:
        """Return whether the settings in effect are valid, and are those that the files have now."""
        state = self._require_state()
        try:
            loaded = await anyio.to_thread.run_sync(partial(self.reader.reread, state.loaded, unasked=False))
        except ToolError:
            return False
        return state.error is None and loaded == state.loaded

    async def health(self) -> dict[str, Any]:
        """Return the health report; `findings` are the problems as data."""
        report = lambda: self._checks().report_health(self._require_state(), self.log)  # noqa: E731 - it is short
        return await self._health.join(report, (self.times_configured, self.times_fixed))

    async def check(self, seconds: float | None = None, stored: Iterable[Problem] = ()) -> list[Problem]:
        """Return the results of all checks, from files and recorded states. Nothing is started.

        `stored` are problems with stored files that were found earlier.
        """
        return await self._checks().find_problems(self._require_state(), self.log, seconds, stored)

    def _checks(self) -> "Checks":
        from onetool.checks import Checks

        return Checks(self.registry, self.extensions, self.servers, self.bundles, self.reader)


def _to_outcome(answer: Answer) -> DurableOutcome:
    error = None if answer.make_exception is None else describe(answer.make_exception())
    if answer.is_error and error is None:
        error = {"type": answer.error, "class": ToolError.__name__, "message": answer.text}
    return DurableOutcome(answer.blocks, None if error else answer.value, error, answer.media)


def _works_without_settings(command: object) -> bool:
    try:
        return isinstance(command, str) and WORKS_WITHOUT_SETTINGS.fullmatch(strip(command)) is not None
    except ToolError:
        return False
