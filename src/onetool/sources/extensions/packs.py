"""The source of extension tools: files that are read when they are new or changed.

Nothing is read at startup. `refresh` looks for new files; a tool checks its own file before each
call. Each file has a worker.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Set as AbstractSet
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.policy.effects import PRIVATE, apply_settings, get_implied_permissions, get_labels
from onetool.core.tool import HeldTools, Tool
from onetool.errors import ToolError
from onetool.processes.process import Variables
from onetool.processes.supervised import SharedPool
from onetool.settings.load import Loaded
from onetool.settings.model import PackSettings
from onetool.settings.paths import extension_files, resolve_path
from onetool.settings.trust import TrustDecision
from onetool.sources.extensions import static_analysis
from onetool.sources.extensions.backends import (
    PYTEST,
    QueueBackend,
    Timeouts,
    WorkerBackend,
    run_pack_tests,
)
from onetool.sources.extensions.environments import (
    Environments,
    Report,
    StartCommand,
    WorkerLaunch,
    make_script_environment,
    make_worker_environment,
)
from onetool.sources.extensions.static_analysis import Extension, Function
from onetool.sources.extensions.worker import CallTool, Worker
from onetool.state.storage import Jobs
from onetool.util.context import Permission, ToolContext
from onetool.util.problem import Location, Problem
from onetool.util.tasks import BackgroundTasks, retrieve_error
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.settings.access import Sandbox

TOOLS_DIRECTORY = "tools"
PackBackend = WorkerBackend | QueueBackend


class _Setup(NamedTuple):
    """A pack's settings. If they change, the worker is replaced."""

    settings: PackSettings
    timeouts: Timeouts
    secrets: Variables
    declared: Mapping[str, str | None]  # what `Context.secret` returns; None if it is not set


class Extensions(HeldTools):
    """The extension packs.

    `list_reserved_names` returns the built-in packs; `check_trust` checks project files. `get_jobs`
    returns the jobs of queues. Without it, all packs run here.
    """

    def __init__(
        self,
        list_reserved_names: Callable[[], AbstractSet[str]],
        call_tool: CallTool,
        environment: Variables,
        log: Callable[..., None],
        check_trust: Callable[[Loaded], TrustDecision],
        *,
        shared: SharedPool[Worker] | None = None,
        get_jobs: Callable[[], Jobs] | None = None,
    ) -> None:
        super().__init__()
        self._shared = shared
        self._get_jobs = get_jobs
        self._list_reserved_names = list_reserved_names
        self._call_tool = call_tool
        self._environment = environment
        self._log = log
        self._check_trust = check_trust
        self._packs: dict[str, PackBackend] = {}
        self._all: set[PackBackend] = set()  # including replaced ones whose workers have not ended
        self._setups: dict[str, _Setup] = {}
        self._found: dict[Path, Extension] = {}
        self._installed: list[Extension] | None = None  # of packages, once they were looked for
        self._accepted: set[Path] = set()
        self._problems: dict[str, Problem] = {}
        self.name_conflicts: dict[str, Problem] = {}  # packs whose name is already in use
        self.trust_problems: tuple[Problem, ...] = ()  # why project files were rejected
        # that a user named on the command line; they come first
        self.named_files: tuple[Path, ...] = ()
        self._unconfigured: set[Path] = set()  # named files that are in no directory of packs
        self._lock = asyncio.Lock()
        self._next_scan: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks()
        self._loaded: Loaded
        self._environments_by_directory: dict[Path, Environments] = {}
        self._environments: Environments

    def configure(self, loaded: Loaded, /) -> None:
        """Apply new settings. They take effect with the next `refresh`."""
        self._loaded = loaded
        # a reload reads everything, regardless of timestamps
        self._found = {}
        self._installed = None
        directory = loaded.directories.private / "environments"
        self._environments = self._environments_by_directory.setdefault(
            directory, Environments(directory, self._environment)
        )

    @property
    def all_extensions(self) -> list[Extension]:
        """All extension files and packs in installed packages, including invalid ones."""
        return [*self._found.values(), *(self._installed or ())]

    @property
    def active_extensions(self) -> list[Extension]:
        """The extensions whose tools can be called."""
        return [pack.extension for _, pack in sorted(self._packs.items())]

    def problems(self) -> Mapping[str, Problem]:
        return {**self._problems, **self.name_conflicts}

    @property
    def findings(self) -> list[Problem]:
        """Problems with files and failed starts; see `name_conflicts` for the others."""
        problems = [
            problem
            for file in self.all_extensions
            for problem in (file.problem, *file.problems)
            if problem is not None
        ]
        return [*problems, *self.failures.values()]

    @property
    def failures(self) -> dict[str, Problem]:
        """Failed starts by pack, each with a file location."""
        failures: dict[str, Problem] = {}
        for name, pack in sorted(self._packs.items()):
            if (error := pack.failure) is not None:
                location = Location(str(pack.extension.file))
                problem = Problem.of(error)
                if not problem.location:
                    problem = replace(
                        problem, message=f"{location}: {problem.message}", location=location
                    )
                failures[name] = problem
        return failures

    @property
    def declared_secrets(self) -> dict[str, list[str]]:
        """The secret names that each pack declares, in its file or in the settings."""
        return {name: list(setup.declared) for name, setup in self._setups.items()}

    @property
    def queues(self) -> dict[str, str]:
        """Queue names by pack, if workers on other machines make its calls."""
        return {
            name: pack.queue
            for name, pack in sorted(self._packs.items())
            if isinstance(pack, QueueBackend)
        }

    @property
    def states(self) -> dict[str, str]:
        return {name: pack.state for name, pack in sorted(self._packs.items())}

    def describe_kind(self, pack: str, /) -> str:
        package = self._packs[pack].extension.package if pack in self._packs else ""
        return f"package {package}" if package else self.kind

    def describe(self, pack: str, /) -> str:
        return self._packs[pack].extension.description if pack in self._packs else ""

    async def refresh(self, _packs_needed: Collection[str] | None = None, /) -> None:
        """Look for new, changed and removed files. Callers that wait for the same scan share it."""
        if self._next_scan is None:
            self._next_scan = asyncio.ensure_future(self._refresh())
            self._next_scan.add_done_callback(retrieve_error)
        await asyncio.shield(self._next_scan)

    async def _refresh(self) -> None:
        async with self._lock:
            self._next_scan = None
            extensions = await run_in_thread(self._scan)
            self._found = {extension.file: extension for extension in extensions}
            # If several directories contain a pack, the first one wins.
            packs = (*reversed(self._installed or ()), *reversed(extensions))
            self._apply({extension.pack: extension for extension in packs})

    async def _refresh_pack(self, name: str) -> None:
        """Check one pack's file; cheap if it is unchanged."""
        pack = self._packs.get(name)
        if pack is not None and _has_changed(pack.extension):
            await self.refresh()

    async def close(self) -> None:
        self._tasks.cancel()
        await self._tasks.wait()
        await asyncio.gather(
            *(environments.close() for environments in self._environments_by_directory.values())
        )
        await asyncio.gather(*(pack.close() for pack in self._all))

    # --- packs ------------------------------------------------------------------------------------

    def _scan(self) -> list[Extension]:
        if self._installed is None:
            from onetool.sources.extensions.installed import find_installed

            self._installed = find_installed(self._loaded.settings.disabled_packages)
        directories = self._loaded.directories.pack_directories(self._loaded.settings.tools_dir)
        configured = [file for directory in directories for file in extension_files(directory)]
        files = list(dict.fromkeys([*self.named_files, *configured]))
        self._unconfigured = {*self.named_files} - {*configured}
        return [self._read(file) for file in self._filter_trusted(files)]

    def _read(self, file: Path) -> Extension:
        extension = self._found.get(file)
        if extension is None or _has_changed(extension):
            return static_analysis.read(file)
        return extension

    def _filter_trusted(self, files: list[Path]) -> list[Path]:
        """Return the files that may be used: a person must trust a project's new files."""
        user_directory = self._loaded.directories.user / TOOLS_DIRECTORY
        trusted = {*self._accepted, *self.named_files}
        new = {file for file in {*files} - trusted if not file.is_relative_to(user_directory)}
        verdict = self._check_trust(self._loaded) if new else TrustDecision(trusted=True)
        self.trust_problems = verdict.problems
        accepted = [file for file in files if verdict.trusted or file not in new]
        self._accepted.update(accepted)
        return accepted

    def _apply(self, extensions: Mapping[str, Extension]) -> None:
        self.name_conflicts = {}
        self._problems = {}
        usable = {}
        for name, extension in extensions.items():
            if extension.problem:
                self._problems[name] = extension.problem
            else:
                usable[name] = extension
        for name in [name for name in self._packs if name not in usable]:
            self._forget(name)
        for name, extension in usable.items():
            setup = self._get_setup(extension)
            if self._is_unchanged(name, extension, setup):
                continue
            if name in self._packs:
                self._forget(name)
            elif name in self._list_reserved_names():
                message = f"{extension.file}: pack name {name!r} conflicts with a built-in pack"
                hint = f'add `pack = "another_name"` to {extension.file}, or rename the file'
                hint = f"disabled_packages: [{extension.package}]" if extension.package else hint
                self.name_conflicts[name] = Problem(message, hint, Location(str(extension.file)))
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
        pack = self._make_backend(extension, setup)
        self._packs[extension.pack], self._setups[extension.pack] = pack, setup
        self._all = {backend for backend in self._all if not backend.is_over} | {pack}
        for function in extension.functions:
            self.add(self._make_tool(extension, function, pack, setup))
        if isinstance(pack, WorkerBackend):
            self._tasks.start(self._build_ahead(extension))

    def _make_backend(self, extension: Extension, setup: _Setup) -> PackBackend:
        """Return a pack's backend.

        A file of a project never reaches a queue: only its name may be known.
        """
        directories = self._loaded.directories
        project = directories.project
        if directories.config_file is not None:  # the user named the settings file
            project = None
        is_user_file = project is None or not extension.file.is_relative_to(project)
        if setup.settings.queue and self._get_jobs is not None and is_user_file:
            wait_seconds = self._loaded.settings.workers.job_ttl
            return QueueBackend(
                extension, setup.timeouts, setup.settings.queue, wait_seconds, self._get_jobs
            )
        return WorkerBackend(
            extension,
            setup.timeouts,
            partial(self._prepare, setup),
            self._call_tool,
            self._log,
            get_worker=partial(self._get_worker, setup, extension),
            identity=[dict(setup.settings.options), sorted(setup.declared), sorted(setup.secrets)],
        )

    def _forget(self, name: str) -> None:
        pack = self._packs.pop(name)
        del self._setups[name]
        for function in pack.extension.functions:
            self.remove(f"{name}.{function.name}")
        pack.retire()

    def _make_tool(
        self, extension: Extension, function: Function, pack: PackBackend, setup: _Setup
    ) -> Tool:
        granted = setup.settings.permissions
        tool = Tool(
            name=f"{extension.pack}.{function.name}",
            backend=pack,
            input=function.input,
            output=function.output,
            description=function.description,
            permissions=(
                extension.permissions | function.permissions if granted is None else granted
            ),
            effects=function.effects,
            is_idempotent=function.is_idempotent,
            source=f"package:{extension.package}" if extension.package else "local",
            returns=function.returns,
            example=function.example,
            docstring=function.docstring,
            file=str(extension.file),
            refresh=partial(self._refresh_pack, extension.pack),
        )
        if setup.secrets or setup.declared:  # it can read what belongs to an account
            tool = replace(tool, labels=get_labels(tool) | {PRIVATE})
        configured = apply_settings(tool, setup.settings)
        if granted is not None:
            return configured
        implied = get_implied_permissions(configured.effects)
        return replace(configured, permissions=configured.permissions | implied)

    # --- workers ----------------------------------------------------------------------------------

    def _get_setup(self, extension: Extension) -> _Setup:
        settings = self._loaded.settings
        name = extension.pack
        pack = settings.tools.get(name, PackSettings())
        workers = settings.workers
        # Another file may have the name of a pack, but not its secrets.
        if extension.file in self._unconfigured:
            extension = replace(extension, secrets=())
            pack = PackSettings(sandbox=pack.sandbox, timeout=pack.timeout)
        timeouts = Timeouts(
            workers.start_timeout, pack.timeout or workers.call_timeout, workers.idle_timeout
        )
        available = self._loaded.secrets_for(name)
        secrets = {key: available[key] for key in pack.secrets if key in available}
        declared = {**self._get_declared(extension, pack), **dict.fromkeys(pack.secrets), **secrets}
        return _Setup(pack, timeouts, secrets, declared)

    def _get_declared(self, extension: Extension, pack: PackSettings) -> dict[str, str | None]:
        """Return the secrets that the file itself declares.

        Secrets of the user for a file of a project, and all secrets for a sandboxed file, need a
        setting: an edit of the file must not give it more.
        """
        if pack.sandbox is not None and pack.sandbox.enabled:
            return {}
        users = self._loaded.user_secrets
        is_user_file = extension.file.is_relative_to(
            self._loaded.directories.user / TOOLS_DIRECTORY
        )
        values = users if is_user_file else dict(self._loaded.secrets.items() - users.items())
        return {name: values.get(name) for name in extension.secrets}

    async def _prepare(self, setup: _Setup, extension: Extension, report: Report) -> WorkerLaunch:
        directories = self._loaded.directories
        sandbox = _make_sandbox(
            extension, setup.settings, directories.working_dir, directories.home
        )
        start = await self._environments.get_start_command(extension.header, extension.file, report)
        visible = {**make_worker_environment(self._environment), **setup.secrets}
        variables = {
            **(make_script_environment(self._environment) if start.by_uv else {}),
            **visible,
        }
        directory = self._environments.directory if start.by_uv else directories.working_dir
        return WorkerLaunch(
            pack=extension.pack,
            file=extension.file,
            module=extension.module,
            classes={
                function.name: function.tool_class
                for function in extension.functions
                if function.tool_class
            },
            start=start,
            environment=variables,
            hidden=tuple(variables.keys() - visible.keys()),
            settings=setup.settings.options,
            secrets=setup.declared,
            cwd=directories.working_dir,
            start_directory=directory,
            sandbox=sandbox,
            max_bytes=self._loaded.settings.execution.max_output_bytes,
            remember=(
                partial(self._environments.remember, extension.header) if start.by_uv else None
            ),
        )

    def _get_worker(self, setup: _Setup, extension: Extension, launch: WorkerLaunch) -> Worker:
        """Return a new worker, or another application's if it would start the same."""
        if self._shared is None or not setup.settings.shared:
            return Worker(launch)
        # uv starts the first worker of an environment, its Python the others.
        start = StartCommand(())
        definition = (
            replace(
                launch, start=start, environment={}, hidden=(), start_directory=None, remember=None
            ),
            setup,
            (extension.digest, extension.siblings),
            (
                make_worker_environment(self._environment),
                make_script_environment(self._environment),
            ),
            self._environments.directory,
        )
        return self._shared.get(definition, partial(Worker, launch))

    async def run_tests(self, name: str, context: ToolContext) -> list[JsonObject]:
        """Run the tests beside a pack with pytest; return each outcome."""
        extension = self._packs[name].extension
        setup = self._setups[name]
        report = context.client.progress or (lambda _line: None)
        packages = await self._environments.get_packages(PYTEST, extension.file, report)
        launch = await self._prepare(setup, extension, report)
        seconds = setup.timeouts.start
        return await run_pack_tests(launch, seconds, packages, self._call_tool, context)

    async def _build_ahead(self, extension: Extension) -> None:
        """Create the environment in the background. The first call reports errors."""
        name = extension.pack
        header = extension.header
        if header is None:
            return
        try:
            await self._environments.build(
                header,
                extension.file,
                lambda line: self._log("worker.environment", pack=name, text=line),
            )
        except Exception as error:  # noqa: BLE001 - the first call fails with the same error
            self._log("worker.environment", pack=name, status="error", text=str(error))


def _has_changed(extension: Extension) -> bool:
    try:
        if static_analysis.stamp_file(extension.file) != extension.stamp:
            return True
        if extension.package:
            return False
        siblings = static_analysis.stamp_siblings(extension.file)
    except OSError:
        return True
    return siblings != extension.siblings


def _make_sandbox(
    extension: Extension, settings: PackSettings, cwd: Path, home: Path
) -> JsonMapping | None:
    rules: Sandbox | None = settings.sandbox
    if rules is None or not rules.enabled:
        return None
    if rules.denied_patterns:  # the kernel can allow directories, but not exclude names in them
        raise ToolError(
            f"tools.{extension.pack}.sandbox.denied_patterns is not supported for extensions",
            hint="list the directories that the worker may use in allowed_paths",
        )
    needed = (
        function.permissions | get_implied_permissions(function.effects)
        for function in extension.functions
    )
    declared = extension.permissions.union(*needed)
    permitted = declared if settings.permissions is None else settings.permissions
    write = [str(resolve_path(path, cwd, home)) for path in rules.allowed_paths] or [str(cwd)]
    return {
        "read": [str(extension.file.parent)],
        "write": write,
        "network": Permission.NETWORK in permitted,
    }
