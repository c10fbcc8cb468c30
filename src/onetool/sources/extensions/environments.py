"""Python environments of script headers, and the start commands of workers.

uv creates an environment once per header and then its interpreter is used directly. A file without a
header uses the Python of the server. An invalid header is ignored and reported.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from anyio.to_thread import run_sync as run_in_thread

import onetool_child
from onetool.errors import StorageError, ToolError
from onetool.processes.process import Printed, Variables
from onetool.processes.programs import Program, run
from onetool.settings.programs import NO_CONFIG, uv_settings
from onetool.sources.extensions.script_header import ScriptHeader
from onetool.util import atomic
from onetool.util.problem import Location, storage_error
from onetool.util.tasks import retrieve_error
from onetool_child.json_types import JsonMapping, JsonObject

Report = Callable[[str], None]
# Variables that programs need to find their files, proxies and certificates.
PASSED_VARIABLES = frozenset({
    "HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TEMP", "TMP", "USER", "LOGNAME", "SHELL",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "UV_CACHE_DIR",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
    "SYSTEMROOT", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "PATHEXT", "COMSPEC",
})  # fmt: skip
OUTPUT_VARIABLES = {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
NO_UV = "no_uv"  # the error code if uv is not installed
PREPARING_MESSAGE = "uv is preparing the environment"
# The script that uv runs: it imports the worker from its first argument and changes to its second.
BOOT = """
import os, sys
home, directory = sys.argv[1:3]
del sys.argv[1:3]
os.chdir(directory)
sys.path.insert(0, home)
import onetool_child.worker as worker
sys.path.remove(home)
worker.main()
"""


class StartCommand(NamedTuple):
    """A command's first arguments. They include the script if `by_uv` is set."""

    command: tuple[str, ...]
    by_uv: bool = False


def make_worker_environment(environment: Variables) -> dict[str, str]:
    """Return the environment for a worker."""
    return _remove_relative_paths(
        {name: value for name, value in environment.items() if name in PASSED_VARIABLES}
    )


def make_uv_environment(environment: Variables) -> dict[str, str]:
    """Return the environment for uv, which includes package indexes and their passwords."""
    passed = {
        name: value
        for name, value in environment.items()
        if name in PASSED_VARIABLES or name.startswith("UV_")
    }
    return _remove_relative_paths(passed)


def make_script_environment(environment: Variables) -> dict[str, str]:
    """Return variables for uv to prepare a script, ignoring project configuration."""
    return {**uv_settings(environment), **make_uv_environment(environment), **NO_CONFIG}


def _remove_relative_paths(variables: dict[str, str]) -> dict[str, str]:
    """Remove relative directories from PATH."""
    if "PATH" in variables:
        kept = [entry for entry in variables["PATH"].split(os.pathsep) if Path(entry).is_absolute()]
        variables["PATH"] = os.pathsep.join(kept)
    return variables


class Environments:
    """The environments.

    `directory` contains a script per header, and the path of its interpreter once known.
    """

    def __init__(self, directory: Path, environment: Variables) -> None:
        self.directory = directory
        self._environment = make_script_environment(environment)
        self._interpreters = InterpreterFiles(directory)
        self._in_progress: dict[str, asyncio.Task[str]] = {}

    async def get_start_command(
        self, header: ScriptHeader | None, file: Path, report: Report = lambda _line: None
    ) -> StartCommand:
        """Return the command to start a worker, in which uv may create the environment."""
        if header is None:
            return StartCommand((sys.executable,))
        if header.uses_local_files or header.digest in self._in_progress:
            report(PREPARING_MESSAGE)
            return StartCommand((await self._get_python(header, file, report),))
        interpreter = await run_in_thread(self._interpreters.get, header.digest)
        if interpreter:
            return StartCommand((interpreter,))
        script, uv = await run_in_thread(self._write_script, header)
        report(PREPARING_MESSAGE)
        return StartCommand((uv, "run", *self._options, "--script", script), by_uv=True)

    async def build(self, header: ScriptHeader, file: Path, report: Report) -> None:
        """Create the environment before it is needed."""
        if not await run_in_thread(self._interpreters.get, header.digest):
            await self._get_python(header, file, report)

    async def get_packages(self, header: ScriptHeader, file: Path, report: Report) -> Path:
        """Return an environment's package directory, which is created if necessary."""
        await self.build(header, file, report)
        python = Path((await self.get_start_command(header, file, report)).command[0])
        pattern = "Lib/site-packages" if sys.platform == "win32" else "lib/python*/site-packages"
        return next(python.parents[1].glob(pattern))

    async def remember(self, header: ScriptHeader | None, python: str) -> None:
        """Record the interpreter that uv chose for a worker."""
        if header is not None and not header.uses_local_files:
            await run_in_thread(self._interpreters.put, header.digest, python)

    @property
    def _options(self) -> tuple[str, ...]:
        """Options for uv. A `uv.toml` in a cloned repository must not choose the package index."""
        return ("--no-progress", "--no-config", "--project", str(self.directory))

    async def close(self) -> None:
        """Cancel environments that are being created; uv completes them the next time."""
        tasks = list(self._in_progress.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _write_script(self, header: ScriptHeader) -> tuple[str, str]:
        script = self.directory / f"{header.digest}.py"
        _write(script, f"{header.as_script}{BOOT}")
        return str(script), find_uv()

    async def _get_python(self, header: ScriptHeader, file: Path, report: Report) -> str:
        """Return the interpreter path; callers share the work to create an environment."""
        key = f"{file}" if header.uses_local_files else header.digest
        task = self._in_progress.get(key)
        if task is None:
            task = self._in_progress[key] = asyncio.ensure_future(
                self._create(header, file, report)
            )
            task.add_done_callback(lambda _: self._in_progress.pop(key, None))
            task.add_done_callback(retrieve_error)  # all callers may have been cancelled
        return await asyncio.shield(task)

    async def _create(self, header: ScriptHeader, file: Path, report: Report) -> str:
        script, uv = await run_in_thread(self._write_script, header)
        script = str(file) if header.uses_local_files else script
        await self._run_uv(uv, ["sync", *self._options, "--script", script], file, report)
        python = await self._run_uv(
            uv, ["python", "find", *self._options, "--script", script], file, report
        )
        await self.remember(header, python)
        return python

    async def _run_uv(self, uv: str, arguments: list[str], file: Path, report: Report) -> str:
        def report_lines(text: str) -> None:
            for line in text.splitlines():
                report(line.strip())

        output = Printed()
        errors = Printed(report_lines)
        program = Program([uv, *arguments], self.directory, self._environment, starts_others=True)
        ended = await run(program, output.add, errors.add)
        if ended.status:
            raise environment_error(file, errors.tail)
        return output.tail


def find_uv() -> str:
    from uv import find_uv_bin

    try:
        return str(find_uv_bin())
    except FileNotFoundError as error:
        raise ToolError(
            f"cannot start extension tools: uv is not installed: {error}", code=NO_UV
        ) from None


class InterpreterFiles:
    """The recorded interpreters."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, digest: str) -> str | None:
        """Return an interpreter's path if it still exists."""
        try:
            python = (self._directory / f"{digest}.path").read_text(encoding="utf-8")
            return python if Path(python).is_file() and os.access(python, os.X_OK) else None
        except (OSError, ValueError):
            return None

    def put(self, digest: str, python: str) -> None:
        _write(self._directory / f"{digest}.path", python)


def _write(file: Path, text: str) -> None:
    try:
        atomic.write(file, text)
    except OSError as error:
        raise storage_error(file.parent, error, StorageError) from None


def environment_error(file: Path, errors: str) -> ToolError:
    """Return the error for an extension whose environment could not be created."""
    hint = (
        f"fix the dependencies in the header of {file}, or check that uv can reach its package"
        " index"
    )
    message = f"{file}: uv could not create the environment: {errors}"
    return ToolError(message, hint=hint, location=Location(str(file)))


# --- Workers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """Parameters to start a worker."""

    pack: str
    file: Path
    start: StartCommand
    environment: Variables
    settings: JsonMapping
    cwd: Path
    start_directory: Path | None = None  # the initial directory, in which uv looks for files
    sandbox: JsonMapping | None = None
    module: str = ""  # to import in place of the file, for a pack of an installed package
    classes: Mapping[str, str] = field(default_factory=dict)  # by tool name, if tools are objects
    hidden: tuple[str, ...] = ()  # environment variables for uv that tools do not see
    secrets: Mapping[str, str | None] = field(default_factory=dict, repr=False)  # declared ones
    max_bytes: int = 104_857_600
    remember: Callable[[str], Awaitable[None]] | None = None  # called with the interpreter's path
    runs_tests: bool = False  # whether it serves `onetool_child.serving` instead of the tools

    @property
    def command(self) -> list[str]:
        """The command. The current directory is never on the import path."""
        home = str(Path(onetool_child.__file__).parent.parent)  # on the path only during startup
        if self.start.by_uv:
            return [*self.start.command, home, str(self.cwd)]
        return [*self.start.command, "-P", "-c", BOOT, home, str(self.cwd)]

    @property
    def variables(self) -> dict[str, str]:
        """The environment, with unbuffered UTF-8 output; the worker removes these variables."""
        return {**self.environment, **OUTPUT_VARIABLES}

    @property
    def options(self) -> JsonObject:
        return {
            "file": str(self.file),
            "module": self.file.stem,
            "pack": self.pack,
            "import": self.module,
            "classes": dict(self.classes),
            "settings": dict(self.settings),
            "secrets": dict(self.secrets),
            "sandbox": self.sandbox,
            "hidden": [*self.hidden, *OUTPUT_VARIABLES],
            "max_bytes": self.max_bytes,
            "runs_tests": self.runs_tests,
        }
