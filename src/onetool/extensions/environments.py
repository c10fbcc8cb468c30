"""Python environments for script headers: created by uv once per header, then reused by the path of the interpreter.

A file without a header uses the Python of the server.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread

from onetool.config.programs import NO_CONFIG, uv_settings
from onetool.errors import StorageError, ToolError
from onetool.extensions.pep723 import Header
from onetool.problem import Location
from onetool.util import atomic
from onetool.util.storage_errors import storage_error

if TYPE_CHECKING:
    from onetool.storage import EnvironmentStorage

Tell = Callable[[str], None]
MAX_ERROR_CHARS = 4000
MAX_LINE_BYTES = 1 << 20
# Variables that programs need to find their files, proxies and certificates.
PASSED_ON = frozenset({
    *("HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TEMP", "TMP", "USER", "LOGNAME", "SHELL"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "UV_CACHE_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("SYSTEMROOT", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "PATHEXT", "COMSPEC"),
})  # fmt: skip


NO_UV = "no_uv"  # the error code if uv is not installed
PREPARING = "uv is preparing the environment"
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


class Start(NamedTuple):
    """The start of a command, without the script; with `by_uv` it includes the script."""

    command: tuple[str, ...]
    by_uv: bool = False


def for_worker(environment: Mapping[str, str]) -> dict[str, str]:
    return _with_safe_path({name: value for name, value in environment.items() if name in PASSED_ON})


def for_uv(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for uv, which includes package indexes and their passwords."""
    passed = {name: value for name, value in environment.items() if name in PASSED_ON or name.startswith("UV_")}
    return _with_safe_path(passed)


def for_scripts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for uv to prepare a script, without configuration of the working directory."""
    return {**uv_settings(environment), **for_uv(environment), **NO_CONFIG}


def _with_safe_path(variables: dict[str, str]) -> dict[str, str]:
    """Remove relative directories from PATH."""
    if "PATH" in variables:
        kept = [entry for entry in variables["PATH"].split(os.pathsep) if Path(entry).is_absolute()]
        variables["PATH"] = os.pathsep.join(kept)
    return variables


class Environments:
    """The environments. `folder` contains a script for each header, and the path of its interpreter once known."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self._environment = folder, for_scripts(environment)
        self._interpreters: EnvironmentStorage = InterpreterFiles(folder)
        self._making: dict[str, asyncio.Task[str]] = {}

    async def get_start(self, header: Header | None, file: Path, tell: Tell = lambda _line: None) -> Start:
        """Return how to start a worker. uv creates a missing environment on the way, unless it is being created."""
        if header is None:
            return Start((sys.executable,))
        if header.names_local_files or header.digest in self._making:
            tell(PREPARING)
            return Start((await self._get_python(header, file, tell),))
        known = await anyio.to_thread.run_sync(self._interpreters.get, header.digest)
        if known:
            return Start((known,))
        script, uv = await anyio.to_thread.run_sync(self._script, header)
        tell(PREPARING)
        return Start((uv, "run", *self._options, "--script", script), by_uv=True)

    async def build(self, header: Header, file: Path, tell: Tell) -> None:
        """Create the environment before it is needed."""
        if not await anyio.to_thread.run_sync(self._interpreters.get, header.digest):
            await self._get_python(header, file, tell)

    async def remember(self, header: Header | None, python: str) -> None:
        """Record the interpreter of a worker that uv started."""
        if header is not None and not header.names_local_files:
            await anyio.to_thread.run_sync(self._interpreters.put, header.digest, python)

    @property
    def _options(self) -> tuple[str, ...]:
        """Options of uv. A `uv.toml` in a cloned repository must not choose the package index."""
        return ("--no-progress", "--no-config", "--project", str(self.folder))

    async def close(self) -> None:
        """Cancel environments that are being created; uv completes them the next time."""
        tasks = list(self._making.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _script(self, header: Header) -> tuple[str, str]:
        script = self.folder / f"{header.digest}.py"
        _write(script, f"{header.as_script}{BOOT}")
        return str(script), _uv_program()

    async def _get_python(self, header: Header, file: Path, tell: Tell) -> str:
        """Return the path of the interpreter; callers share the creation of an environment."""
        key = f"{file}" if header.names_local_files else header.digest
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.ensure_future(self._make(header, file, tell))
            task.add_done_callback(lambda _: self._making.pop(key, None))
            # If all callers were cancelled, nobody retrieves the exception.
            task.add_done_callback(lambda made: made.cancelled() or made.exception())
        return await asyncio.shield(task)

    async def _make(self, header: Header, file: Path, tell: Tell) -> str:
        script, uv = await anyio.to_thread.run_sync(self._script, header)
        script = str(file) if header.names_local_files else script
        await self._uv(uv, ["sync", *self._options, "--script", script], file, tell)
        python = (await self._uv(uv, ["python", "find", *self._options, "--script", script], file, tell)).strip()
        await self.remember(header, python)
        return python

    async def _uv(self, uv: str, arguments: list[str], file: Path, tell: Tell) -> str:
        process = await asyncio.create_subprocess_exec(
            uv,
            *arguments,
            limit=MAX_LINE_BYTES,
            cwd=self.folder,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await asyncio.gather(_read(process.stdout), _read(process.stderr, tell))
            status = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if status:
            raise environment_error(file, errors.strip()[-MAX_ERROR_CHARS:])
        return output


async def _read(stream: asyncio.StreamReader | None, tell: Tell = lambda _line: None) -> str:
    assert stream is not None
    lines = []
    async for line in stream:
        lines.append(line.decode("utf-8", "replace"))
        tell(lines[-1].strip())
    return "".join(lines)


def _uv_program() -> str:
    from uv import find_uv_bin

    try:
        return str(find_uv_bin())
    except FileNotFoundError as error:
        raise ToolError(f"cannot start extension tools: uv is not installed: {error}", code=NO_UV) from None


class InterpreterFiles:
    """The recorded interpreters of environments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, digest: str) -> str | None:
        """Return the path of an interpreter if it still exists."""
        try:
            python = (self._folder / f"{digest}.path").read_text(encoding="utf-8")
            return python if Path(python).is_file() and os.access(python, os.X_OK) else None
        except (OSError, ValueError):
            return None

    def put(self, digest: str, python: str) -> None:
        _write(self._folder / f"{digest}.path", python)


def _write(file: Path, text: str) -> None:
    try:
        atomic.write(file, text)
    except OSError as error:
        raise storage_error(file.parent, error, StorageError) from None


def environment_error(file: Path, errors: str) -> ToolError:
    """Return the error for an extension whose environment could not be created."""
    hint = f"fix the dependencies in the header of {file}, or check that uv can reach its package index"
    message = f"{file}: uv could not create the environment: {errors}"
    return ToolError(message, hint=hint, location=Location(str(file)))
