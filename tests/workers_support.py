"""Helpers for tests of workers: extension packs in a temporary home directory."""

import os
import subprocess
import textwrap
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal
from tests.support import App

from onetool.app import OneTool
from onetool.settings.settings_reader import read_settings
from onetool.sources.extensions.environments import PASSED_VARIABLES
from onetool.util.context import Result
from onetool.util.logging import Log

HEADER = '# /// script\n# requires-python = ">=3.11"\n# dependencies = ["six"]\n# ///\n'


def write_pack(folder: Path, pack: str, body: str, header: str = "") -> Path:
    """Write a file of extension tools in this `.onetool` directory."""
    file = folder / "tools" / pack / f"{pack}_tools.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".fresh")  # editors save by replacing the file
    fresh.write_text(header + textwrap.dedent(body), encoding="utf-8")
    fresh.replace(file)
    return file


@dataclass(frozen=True)
class Workers:
    """An open OneTool and its user directory."""

    app: App
    folder: Path

    def write(self, pack: str, body: str, header: str = "") -> Path:
        return write_pack(self.folder, pack, body, header)

    def value(self, name: str, /, **args: Any) -> Any:
        return self.app.call(name, args).unwrap()

    def error(self, name: str, /, **args: Any) -> str:
        result = self.app.call(name, args)
        assert not result.ok, result.value
        return f"{type(result.error).__name__}: {result.error}"

    def start(self, name: str, /, **args: Any) -> Future[Result]:
        onetool = self.app.onetool
        return self.app.portal.start_task_soon(onetool.bus.call_tool, name, args, onetool.context())

    def is_well(self, name: str, /, **args: Any) -> bool:
        return self.app.call(name, args).ok

    @property
    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text("utf-8") if file.exists() else ""


@contextmanager
def open_workers(
    home: Path, settings: str = "", *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Iterator[Workers]:
    """Open a OneTool with this home directory, and this environment for uv and workers."""
    folder = home / ".onetool"
    folder.mkdir(parents=True, exist_ok=True)
    if settings:
        (folder / "onetool.yaml").write_text(textwrap.dedent(settings), encoding="utf-8")
    known = {} if env is None else dict(env)
    onetool = OneTool(
        read=lambda: read_settings(known, cwd or home, None, home),
        log=Log(folder / "log"),
        environment={**uv_environment(), **known},
    )
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(onetool) as opened,
    ):
        yield Workers(App(portal, opened), folder)


@cache
def uv_environment() -> dict[str, str]:
    """Return the environment for uv; its cache is shared, so that packages are fetched once."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_VARIABLES or name.startswith("UV_")
    }
    cache_folder = subprocess.run(
        ["uv", "cache", "dir"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {**passed, "UV_CACHE_DIR": cache_folder}


def is_alive(process: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
