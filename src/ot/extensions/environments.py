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

import anyio.to_thread

from ot.errors import ToolError
from ot.extensions.pep723 import Header

Tell = Callable[[str], None]
LONGEST_ERROR = 4000
# What programs need to find their files, and the network where there are proxies and certificates of one's own.
PASSED_ON = frozenset({
    *("HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TEMP", "TMP", "USER", "LOGNAME", "SHELL"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "UV_CACHE_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("SYSTEMROOT", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "PATHEXT", "COMSPEC"),
})  # fmt: skip


def for_worker(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name in PASSED_ON}


def for_uv(environment: Mapping[str, str]) -> dict[str, str]:
    """Indexes and their passwords are uv's business, not that of the tools."""
    return {name: value for name, value in environment.items() if name in PASSED_ON or name.startswith("UV_")}


class Environments:
    """`folder` keeps, for each header, a script that has it, and where its Python is."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, for_uv(environment)
        self._making: dict[str, asyncio.Task[str]] = {}
        self._known: dict[str, str] = {}

    async def python_for(self, header: Header | None, file: Path, tell: Tell = lambda _line: None) -> str:
        """The path of the interpreter. Making it may take a while, which is told; several may wait for one."""
        if header is None:
            return sys.executable
        key = f"{header.digest}-{file.parent.as_posix()}" if header.names_local_files else header.digest
        known = self._known.get(key)
        if known is not None and await anyio.to_thread.run_sync(os.access, known, os.X_OK):
            return known
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.ensure_future(self._found_or_made(header, file, tell))
            task.add_done_callback(lambda _task: self._making.pop(key, None))
        self._known[key] = await asyncio.shield(task)
        return self._known[key]

    async def _found_or_made(self, header: Header, file: Path, tell: Tell) -> str:
        script = file if header.names_local_files else self._folder / f"{header.digest}.py"
        noted = self._folder / f"{header.digest}.path"
        if not header.names_local_files:
            known = await anyio.to_thread.run_sync(_noted, noted)
            if known:
                return known
            await anyio.to_thread.run_sync(_write, script, header.as_script)
        tell("uv is preparing the environment")
        await self._uv(["sync", "--script", str(script)], tell)
        python = (await self._uv(["python", "find", "--script", str(script)], tell)).strip()
        await anyio.to_thread.run_sync(_write, noted, python)
        return python

    async def _uv(self, arguments: list[str], tell: Tell) -> str:
        process = await asyncio.create_subprocess_exec(
            await anyio.to_thread.run_sync(_uv_program),
            *arguments,
            "--no-progress",
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
        if status:
            raise ToolError(f"uv could not make the environment: {said.strip()[-LONGEST_ERROR:]}")
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
        raise ToolError(f"uv is not installed, so extension tools cannot be started: {error}") from None


def _noted(file: Path) -> str | None:
    """The interpreter of an environment that was made before, if it is still there."""
    try:
        python = file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return python if os.access(python, os.X_OK) else None


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
