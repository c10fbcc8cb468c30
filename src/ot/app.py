"""The only constructor of everything: settings, registry, cells; and what takes it all down again.

`async with OneTool(settings) as app:` gives `app.bus` and `await app.run(command)`. There is no state outside of
it. Nothing is started before it is needed; `warm_up` is for doors that know a run will come.
"""

import asyncio
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import anyio

from ot.bus.bus import Call, ToolBus
from ot.config.load import Loaded, load
from ot.config.model import Settings
from ot.context import ToolContext
from ot.errors import ConfigError, ToolError
from ot.logging import Log, redactor
from ot.paths import Folders, find_folders
from ot.registry import Registry
from ot.runner.cells import Cells, Limits
from ot.runner.fence_processor import strip
from ot.runner.runner import Answer, Journal, Runner
from ot.runner.tool_loader import shipped_tools
from ot.version import __version__

WORKS_WITHOUT_SETTINGS = re.compile(r"\s*ot\.(health|help|reload)\([^()]*\)\s*")
RELOADED = "OK: Configuration reloaded"


def read_settings(
    env: Mapping[str, str], cwd: Path, config_file: Path | None = None, home: Path | None = None
) -> Loaded:
    """What the files and variables of this machine say."""
    return load(find_folders(env, cwd, config_file, home or Path.home()), env)


@dataclass(frozen=True, slots=True)
class _State:
    """All that a reload replaces, as one piece."""

    loaded: Loaded
    error: ConfigError | None
    cells: Cells
    runner: Runner
    redact: Callable[[str], str]


class OneTool:
    def __init__(
        self,
        settings: Settings | None = None,
        *,
        read: Callable[[], Loaded] | None = None,
        log: Log | None = None,
        make_cells: Callable[..., Cells] = Cells,
    ) -> None:
        self._read = read or (lambda: _given(settings or Settings()))
        self._make_cells, self._log = make_cells, log
        self.bus = ToolBus(Registry(), record=self._record)
        self._state: _State | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._unsaid: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        for tool in shipped_tools(self.bus.threads):
            self.bus.register_tool(tool)
        error = None
        try:
            loaded = self._read()
        except ConfigError as wrong:
            error, loaded = wrong, _given(Settings())
        self._become(loaded, error)
        self._unsaid = loaded.problems
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._retiring:
            task.cancel()
        await self._now.cells.__aexit__(None, None, None)
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
    ) -> Answer:
        """What an MCP client sees when it calls `run(command)`."""
        state = self._now
        if state.error is not None and not _works_without_settings(command):
            return Answer(
                (f"The configuration is wrong, so nothing runs until it is right:\n{state.error}",),
                is_error=True,
                error="config_error",
            )
        try:
            context = self.context(agent)
        except ToolError as error:
            return Answer((f"{type(error).__name__}: {error}",), is_error=True, error=error.type)
        with self.log.span("run", correlation_id=context.correlation_id, agent=agent) as fields:
            answer = await state.runner.run(command, context, journal, preset_format)
            fields["error"] = answer.error
        return replace(answer, blocks=tuple(map(state.redact, (*self._notices(), *answer.blocks))))

    def context(self, agent: str = "default") -> ToolContext:
        """The facts of a call that this agent makes."""
        known = self.settings.agents
        if agent not in known:
            raise ToolError(f"there is no agent {agent!r}; agents are {', '.join(sorted(known))}")
        limits = known[agent]
        return ToolContext(
            agent_id=agent,
            agent_config=limits.tool_config,
            working_dir=self._now.loaded.folders.working_dir,
            permissions=limits.permissions,
            correlation_id=os.urandom(8).hex(),
            system=self,
        )

    def warm_up(self) -> None:
        """Have a cell ready before the first run asks for one. Returns at once."""
        self._now.cells.warm_up()

    def _notices(self) -> tuple[str, ...]:
        """What a person should know, once, with the first answer."""
        unsaid, self._unsaid = self._unsaid, ()
        return tuple(f"Note: {notice}" for notice in unsaid)

    # --- what the ot pack asks (ot.context.System) ---------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        return self.bus.registry

    @property
    def config_error(self) -> ConfigError | None:
        """What is wrong with the configuration, where it is; nothing but help runs until it is right."""
        return self._now.error

    @property
    def problems(self) -> tuple[str, ...]:
        """What a person should know about what was read."""
        return self._now.loaded.problems

    @property
    def settings(self) -> Settings:
        return self._now.loaded.settings

    @property
    def log(self) -> Log:
        assert self._log is not None
        return self._log

    async def reload(self) -> str:
        """Read everything again; a configuration that is wrong changes nothing and is reported."""
        loaded = await anyio.to_thread.run_sync(self._read)
        self._become(loaded, None)
        return RELOADED

    async def health(self) -> dict[str, Any]:
        state = self._now
        servers = {
            name: "disconnected" if server.enabled else "disabled" for name, server in self.settings.servers.items()
        }
        degraded = "disconnected" in servers.values()
        problems = [*state.loaded.problems, *_lines(state.error), *_lines(self.log.problem)]
        return {
            "version": __version__,
            "python": platform.python_version(),
            "cwd": str(state.loaded.folders.working_dir),
            "registry": {"status": "ok", "tool_count": len(self.registry)},
            "proxy": {
                "status": "degraded" if degraded else "ok",
                "server_count": len(servers),
                "servers": servers,
            },
            "isolation": await state.cells.probe(),
            "problems": problems,
        }

    # --- building -------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> _State:
        if self._state is None:
            raise RuntimeError("OneTool is not open: use `async with OneTool(settings) as app:`")
        return self._state

    def _become(self, loaded: Loaded, error: ConfigError | None) -> None:
        """Put a configuration in force, whole. Runs that are under way end in the cells they have."""
        old, execution = self._state, loaded.settings.execution
        redact = redactor(loaded.secrets.values())
        if self._log is None:
            self._log = Log(loaded.folders.data / "logs" / "onetool.log", loaded.settings.log_level, redact)
        keep = old is not None and old.loaded.settings.execution == execution
        cells = old.cells if old is not None and keep else self._new_cells(loaded.settings)
        runner = Runner(
            self.bus,
            cells,
            max_command_bytes=execution.max_command_bytes,
            max_tool_calls=execution.max_tool_calls,
            max_output_bytes=execution.max_output_bytes,
        )
        self.registry.aliases = loaded.settings.aliases
        self._state = _State(loaded, error, cells, runner, redact)
        if old is not None and not keep:
            self._retire(old.cells)

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

    def _retire(self, cells: Cells) -> None:
        task = asyncio.ensure_future(cells.retire())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _record(self, call: Call) -> None:
        name = call.name if call.name.startswith("ot.") else "tool.call"
        outcome = {"status": "ok"} if call.error is None else {"status": "error", "error_type": call.error}
        self.log.event(
            name,
            duration_ms=round(call.seconds * 1000, 3),
            **outcome,
            correlation_id=call.correlation_id,
            agent=call.agent_id,
            tool=call.name,
        )


def _given(settings: Settings) -> Loaded:
    """Settings that a program passed in: no files are read, and none but the log is written."""
    folders = Folders(working_dir=Path.cwd(), user=Path.home() / ".onetool")
    return Loaded(settings, {}, (), (), folders)


def _works_without_settings(command: object) -> bool:
    try:
        return isinstance(command, str) and WORKS_WITHOUT_SETTINGS.fullmatch(strip(command)) is not None
    except ToolError:
        return False


def _lines(problem: object) -> list[str]:
    return str(problem).splitlines() if problem else []
