"""The source of extension tools: files in directories, read when they are new or changed, each with a worker.

Nothing is read at startup. `refresh` looks for new files; a tool checks its own file before each call.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from onetool._tool import Tool
from onetool.config.load import Loaded
from onetool.config.model import Pack as PackSettings, Sandbox
from onetool.config.trust import Verdict
from onetool.context import Permission
from onetool.errors import ToolError
from onetool.extensions import source
from onetool.extensions.environments import Environments, for_scripts, for_worker
from onetool.extensions.pack import Pack, Times
from onetool.extensions.source import Extension, Function
from onetool.extensions.worker import CallTool, Launch
from onetool.paths import extension_files, placed
from onetool.problem import Location, Problem
from onetool.registry import HeldTools
from onetool.util.background_tasks import BackgroundTasks

TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class _Setup:
    """The settings of a pack. If they change, the worker is replaced."""

    settings: PackSettings
    times: Times
    secrets: Mapping[str, str]


class Extensions(HeldTools):
    """The extension packs. `taken` returns the built-in packs; `still_trusted` checks the files of a project."""

    def __init__(
        self,
        taken: Callable[[], AbstractSet[str]],
        call_tool: CallTool,
        environment: Mapping[str, str],
        log: Callable[..., None],
        still_trusted: Callable[[Loaded], Verdict],
    ) -> None:
        super().__init__()
        self._taken_names, self._call_tool, self._environment = taken, call_tool, environment
        self._log, self._still_trusted = log, still_trusted
        self._packs: dict[str, Pack] = {}
        self._all: set[Pack] = set()  # including replaced ones whose workers have not ended
        self._setups: dict[str, _Setup] = {}
        self._found: dict[Path, Extension] = {}
        self._accepted: set[Path] = set()
        self._problems: dict[str, Problem] = {}
        self.taken: dict[str, Problem] = {}  # packs whose name is already in use
        self.refused: tuple[Problem, ...] = ()  # why project files were rejected
        self._lock = asyncio.Lock()
        self._next_scan: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks()
        self._loaded: Loaded
        self._made_in: dict[Path, Environments] = {}
        self._environments: Environments

    def configure(self, loaded: Loaded, /) -> None:
        """Apply new settings. They take effect with the next `refresh`."""
        self._loaded = loaded
        self._found = {}  # a reload reads everything, regardless of timestamps
        folder = loaded.folders.data / "environments"
        self._environments = self._made_in.setdefault(folder, Environments(folder, self._environment))

    @property
    def found(self) -> list[Extension]:
        """All extension files, including invalid ones."""
        return list(self._found.values())

    @property
    def used(self) -> list[Extension]:
        """The extensions whose tools can be called."""
        return [pack.extension for _, pack in sorted(self._packs.items())]

    def problems(self) -> Mapping[str, Problem]:
        return {**self._problems, **self.taken}

    @property
    def findings(self) -> list[Problem]:
        """Problems with files and failed starts; name conflicts are in `taken`."""
        found = [each for file in self.found for each in (file.problem, *file.problems) if each is not None]
        return [*found, *self.failures.values()]

    @property
    def failures(self) -> dict[str, Problem]:
        """Failed starts by pack, each with the location of its file."""
        failures: dict[str, Problem] = {}
        for name, pack in sorted(self._packs.items()):
            if (error := pack.failure) is not None:
                place = Location(str(pack.extension.file))
                own = Problem.of(error)
                failures[name] = (
                    own if own.location else replace(own, message=f"{place}: {own.message}", location=place)
                )
        return failures

    @property
    def states(self) -> dict[str, str]:
        return {name: pack.state for name, pack in sorted(self._packs.items())}

    def describe(self, pack: str, /) -> str:
        return self._packs[pack].extension.description if pack in self._packs else ""

    async def refresh(self, _words: Collection[str] | None = None, /) -> None:
        """Look for new, changed and removed files. Callers that wait for the same scan share it."""
        if self._next_scan is None:
            self._next_scan = asyncio.ensure_future(self._refresh())
            self._next_scan.add_done_callback(lambda scan: scan.cancelled() or scan.exception())
        await asyncio.shield(self._next_scan)

    async def _refresh(self) -> None:
        async with self._lock:
            self._next_scan = None
            found = await anyio.to_thread.run_sync(self._scan)
            self._found = {extension.file: extension for extension in found}
            # If several directories contain a pack, the first one wins.
            self._apply({extension.pack: extension for extension in reversed(found)})

    async def _refresh_pack(self, name: str) -> None:
        """Check the file of one pack; cheap if it is unchanged."""
        pack = self._packs.get(name)
        if pack is not None and _has_changed(pack.extension):
            await self.refresh()

    async def close(self) -> None:
        self._tasks.cancel()
        await self._tasks.wait()
        await asyncio.gather(*(environments.close() for environments in self._made_in.values()))
        await asyncio.gather(*(pack.close() for pack in self._all))

    # --- packs --------------------------------------------------------------------------------------------------------

    def _scan(self) -> list[Extension]:
        directories = self._loaded.folders.pack_directories(self._loaded.settings.tools_dir)
        files = [file for directory in directories for file in extension_files(directory)]
        known = self._found
        return [
            known[file] if file in known and not _has_changed(known[file]) else source.read(file)
            for file in self._filter_trusted(files)
        ]

    def _filter_trusted(self, files: list[Path]) -> list[Path]:
        """Return the files that may be used: a new file of a project requires the trust of a person."""
        own = self._loaded.folders.user / TOOLS
        new = {file for file in files if file not in self._accepted and not file.is_relative_to(own)}
        verdict = self._still_trusted(self._loaded) if new else Verdict(trusted=True)
        self.refused = verdict.problems
        accepted = [file for file in files if verdict.trusted or file not in new]
        self._accepted.update(accepted)
        return accepted

    def _apply(self, extensions: Mapping[str, Extension]) -> None:
        self._problems = {name: each.problem for name, each in extensions.items() if each.problem}
        self.taken = {}
        usable = {name: each for name, each in extensions.items() if not each.problem}
        for name in [name for name in self._packs if name not in usable]:
            self._forget(name)
        for name, extension in usable.items():
            setup = self._setup(name)
            if self._is_unchanged(name, extension, setup):
                continue
            if name in self._packs:
                self._forget(name)
            elif name in self._taken_names():
                message = f"{extension.file}: pack name {name!r} conflicts with a built-in pack"
                hint = f'add `pack = "another_name"` to {extension.file}, or rename the file'
                self.taken[name] = Problem(message, hint, Location(str(extension.file)))
                continue
            self._add(extension, setup)

    def _is_unchanged(self, name: str, extension: Extension, setup: _Setup) -> bool:
        pack = self._packs.get(name)
        if pack is None or self._setups[name] != setup or pack.extension.digest != extension.digest:
            return False
        if pack.extension.siblings != extension.siblings:
            return False
        pack.extension = replace(pack.extension, stamp=extension.stamp)
        return pack.extension.file == extension.file

    def _add(self, extension: Extension, setup: _Setup) -> None:
        pack = Pack(extension, setup.times, partial(self._prepare, setup), self._call_tool, self._log)
        self._packs[extension.pack], self._setups[extension.pack] = pack, setup
        self._all = {each for each in self._all if not each.is_over} | {pack}
        for function in extension.functions:
            self.add(self._tool(extension, function, pack, setup))
        self._tasks.start(self._build_ahead(extension))

    def _forget(self, name: str) -> None:
        pack = self._packs.pop(name)
        del self._setups[name]
        for function in pack.extension.functions:
            self.remove(f"{name}.{function.name}")
        pack.retire()

    def _tool(self, extension: Extension, function: Function, pack: Pack, setup: _Setup) -> Tool:
        granted = setup.settings.permissions
        return Tool(
            name=f"{extension.pack}.{function.name}",
            backend=pack,
            input=function.input,
            description=function.description,
            permissions=extension.permissions if granted is None else granted,
            returns=function.returns,
            example=function.example,
            file=str(extension.file),
            refresh=partial(self._refresh_pack, extension.pack),
        )

    # --- workers ------------------------------------------------------------------------------------------------------

    def _setup(self, name: str) -> _Setup:
        settings = self._loaded.settings
        own, workers = settings.tools.get(name, PackSettings()), settings.workers
        times = Times(workers.start_timeout, own.timeout or workers.call_timeout, workers.idle_timeout)
        known = self._loaded.secrets_for(name)
        secrets = {key: known[key] for key in own.secrets if key in known}
        return _Setup(own, times, secrets)

    async def _prepare(self, setup: _Setup, extension: Extension, tell: Callable[[str], None]) -> Launch:
        folders = self._loaded.folders
        sandbox = _sandbox(extension, setup.settings, folders.working_dir, folders.home)
        start = await self._environments.get_start(extension.header, extension.file, tell)
        own = {**for_worker(self._environment), **setup.secrets}
        variables = {**(for_scripts(self._environment) if start.by_uv else {}), **own}
        directory = self._environments.folder if start.by_uv else folders.working_dir
        return Launch(
            pack=extension.pack,
            file=extension.file,
            start=start,
            environment=variables,
            hidden=tuple(variables.keys() - own.keys()),
            settings=setup.settings.options,
            cwd=folders.working_dir,
            start_in=directory,
            sandbox=sandbox,
            max_bytes=self._loaded.settings.execution.max_output_bytes,
            remember=partial(self._environments.remember, extension.header) if start.by_uv else None,
        )

    async def _build_ahead(self, extension: Extension) -> None:
        """Create the environment in the background. The first call reports errors."""
        name, header = extension.pack, extension.header
        if header is None:
            return
        try:
            await self._environments.build(
                header, extension.file, lambda line: self._log("worker.environment", pack=name, text=line)
            )
        except Exception as error:  # noqa: BLE001 - see above
            self._log("worker.environment", pack=name, status="error", text=str(error))


def _has_changed(extension: Extension) -> bool:
    try:
        return (source.stamp_file(extension.file), source.stamp_siblings(extension.file)) != (
            extension.stamp,
            extension.siblings,
        )
    except OSError:
        return True


def _sandbox(extension: Extension, own: PackSettings, cwd: Path, home: Path) -> Mapping[str, Any] | None:
    rules: Sandbox | None = own.sandbox
    if rules is None or not rules.enabled:
        return None
    if rules.denied_patterns:  # the kernel can allow directories, but not exclude names in them
        raise ToolError(
            f"tools.{extension.pack}.sandbox.denied_patterns is not supported for extensions",
            hint="list the directories that the worker may use in allowed_paths",
        )
    permitted = extension.permissions if own.permissions is None else own.permissions
    write = [str(placed(path, cwd, home)) for path in rules.allowed_paths] or [str(cwd)]
    return {"read": [str(extension.file.parent)], "write": write, "network": Permission.NETWORK in permitted}
