"""Checks of the machine: Python, packages, uv and a test run."""

import importlib.metadata
import platform
from collections.abc import Iterator

from onetool.app import OneTool
from onetool.checks.extensions import INSTALL_UV, has_uv
from onetool.extensions.worker_backend import WorkerBackend
from onetool.util.problem import OK, WARNING, Problem
from onetool.util.text import pluralize
from onetool.util.version import __version__

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
