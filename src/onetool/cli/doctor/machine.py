"""Checks of the machine: Python, packages, uv, a test run, and the isolation of code."""

import importlib.metadata
import platform
import sys
from collections.abc import Iterator

from onetool.app import OneTool
from onetool.checks.extensions import INSTALL_UV, has_uv
from onetool.extensions.worker_backend import WorkerBackend
from onetool.problem import OK, WARNING, Problem
from onetool.util.text import pluralize
from onetool.util.version import __version__

FULL = "landlock+seccomp"
CHECK = "sum(range(10))"


def problems(app: OneTool) -> Iterator[Problem]:
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    yield Problem(f"onetool {__version__} on {system}", level=OK)
    yield Problem(f"mcp {importlib.metadata.version('mcp')}", level=OK)
    packs = (tool.backend.extension for tool in app.registry if isinstance(tool.backend, WorkerBackend))
    if not has_uv() and all(extension.header is None for extension in packs):  # else `onetool.checks` reports it
        yield Problem("uv is not installed; extension packs with dependencies require it", INSTALL_UV, level=WARNING)
    yield Problem(pluralize(len(app.registry), "tool"), level=OK)


async def run(app: OneTool, *, can_run: bool) -> list[Problem]:
    """Run a line of code, unless the settings are invalid, which is reported elsewhere."""
    if not can_run:
        return []
    answer = await app.run(CHECK)
    if not answer.is_error and answer.blocks[-1] == "45":
        return [Problem("test run succeeded", level=OK)]
    return [Problem(f"test run failed: {answer.text}", f"onetool run '{CHECK}'")]


def isolation(sandbox: str, wanted: str) -> Problem:
    if wanted == "off":
        hint = "set execution.isolation to auto"
        return Problem("isolation is disabled: code runs with your permissions", hint, level=WARNING)
    if sandbox == FULL:
        return Problem(f"code is isolated: {sandbox}", level=OK)
    hint = "use Linux 5.13 or newer" if sys.platform == "linux" else "use Linux, a container or WSL"
    what = f"code runs in a separate process with partial isolation: this machine offers only {sandbox}"
    return Problem(what, hint, level=WARNING)
