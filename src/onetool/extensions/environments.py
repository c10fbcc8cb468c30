"""The Python that a header asks for: made by uv, once for each header, and known from then on by its path.

uv resolves, installs, caches and locks; here it is only asked, and its words are passed on. A file without a header
gets the server's own Python.
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
LONGEST_ERROR = 4000
LONGEST_LINE = 1 << 20
# What programs need to find their files, and the network where there are proxies and certificates of one's own.
PASSED_ON = frozenset({
    *("HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TEMP", "TMP", "USER", "LOGNAME", "SHELL"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "UV_CACHE_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("SYSTEMROOT", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "PATHEXT", "COMSPEC"),
})  # fmt: skip


NO_UV = "no_uv"  # the code of errors for a machine without uv
PREPARING = "uv is preparing the environment"
# The script that uv runs: the worker, found in the first directory that it is given, working in the second.
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
    """The beginning of a command that ends in the name of a script; `by_uv` names the script already."""

    command: tuple[str, ...]
    by_uv: bool = False


def for_worker(environment: Mapping[str, str]) -> dict[str, str]:
    return _with_safe_path({name: value for name, value in environment.items() if name in PASSED_ON})


def for_uv(environment: Mapping[str, str]) -> dict[str, str]:
    """Indexes and their passwords are uv's business, not that of the tools."""
    passed = {name: value for name, value in environment.items() if name in PASSED_ON or name.startswith("UV_")}
    return _with_safe_path(passed)


def for_scripts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what uv gets that prepares a script: it reads no configuration of the working directory."""
    return {**uv_settings(environment), **for_uv(environment), **NO_CONFIG}


def _with_safe_path(variables: dict[str, str]) -> dict[str, str]:
    """Leave out directories of PATH that depend on where a program starts."""
    if "PATH" in variables:
        kept = [entry for entry in variables["PATH"].split(os.pathsep) if Path(entry).is_absolute()]
        variables["PATH"] = os.pathsep.join(kept)
    return variables


class Environments:
    """`folder` keeps, for each header, a script that has it, and where its Python is once that is known."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self._environment = folder, for_scripts(environment)
        self._interpreters: EnvironmentStorage = InterpreterFiles(folder)
        self._making: dict[str, asyncio.Task[str]] = {}

    async def start_of(self, header: Header | None, file: Path, tell: Tell = lambda _line: None) -> Start:
        """How to start a worker. What is not made yet uv makes on the way, unless somebody is at it already."""
        if header is None:
            return Start((sys.executable,))
        if header.names_local_files or header.digest in self._making:
            tell(PREPARING)
            return Start((await self._made(header, file, tell),))
        known = await anyio.to_thread.run_sync(self._interpreters.get, header.digest)
        if known:
            return Start((known,))
        script, uv = await anyio.to_thread.run_sync(self._script, header)
        tell(PREPARING)
        return Start((uv, "run", *self._options, "--script", script), by_uv=True)

    async def build(self, header: Header, file: Path, tell: Tell) -> None:
        """Have the environment ready before it is needed."""
        if not await anyio.to_thread.run_sync(self._interpreters.get, header.digest):
            await self._made(header, file, tell)

    async def remember(self, header: Header | None, python: str) -> None:
        """Where a worker that uv has started found its Python."""
        if header is not None and not header.names_local_files:
            await anyio.to_thread.run_sync(self._interpreters.put, header.digest, python)

    @property
    def _options(self) -> tuple[str, ...]:
        """Of no other directory: a `uv.toml` that somebody cloned must not say where packages come from."""
        return ("--no-progress", "--no-config", "--project", str(self.folder))

    async def close(self) -> None:
        """Leave what is half made; uv will finish it another time."""
        tasks = list(self._making.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _script(self, header: Header) -> tuple[str, str]:
        script = self.folder / f"{header.digest}.py"
        _write(script, f"{header.as_script}{BOOT}")
        return str(script), _uv_program()

    async def _made(self, header: Header, file: Path, tell: Tell) -> str:
        """The path of its Python. Several may wait for one that is being made."""
        key = f"{file}" if header.names_local_files else header.digest
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.ensure_future(self._make(header, file, tell))
            task.add_done_callback(lambda _: self._making.pop(key, None))
            # Whoever waited for it may have given up: then nobody else asks what went wrong.
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
            limit=LONGEST_LINE,
            cwd=self.folder,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, said = await asyncio.gather(_read(process.stdout), _read(process.stderr, tell))
            status = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if status:
            raise environment_error(file, said.strip()[-LONGEST_ERROR:])
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
        raise ToolError(f"uv is not installed, so extension tools cannot be started: {error}", code=NO_UV) from None


class InterpreterFiles:
    """The interpreters of environments that were made before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, digest: str) -> str | None:
        """Return the path of an interpreter, if it is still there."""
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


def environment_error(file: Path, said: str) -> ToolError:
    """Return the error for an extension whose environment uv could not make."""
    hint = f"correct the dependencies in the header of {file}, or see that uv reaches its index"
    message = f"{file}: uv could not make the environment: {said}"
    return ToolError(message, hint=hint, location=Location(str(file)))
