"""This machine: Python, the packages, uv, whether a run works, and how far code is confined."""

import importlib.metadata
import platform
import sys
from collections.abc import Iterator

from onetool.app import OneTool
from onetool.checks.extensions import INSTALL_UV, has_uv
from onetool.extensions.pack import Pack
from onetool.problem import OK, WARNING, Problem
from onetool.version import __version__

FULL = "landlock+seccomp"
CHECK = "sum(range(10))"


def problems(app: OneTool) -> Iterator[Problem]:
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    yield Problem(f"onetool {__version__} on {system}", level=OK)
    yield Problem(f"mcp {importlib.metadata.version('mcp')}", level=OK)
    packs = (tool.backend.extension for tool in app.registry if isinstance(tool.backend, Pack))
    if not has_uv() and all(extension.header is None for extension in packs):  # else `onetool.checks` reports it
        yield Problem("uv is missing; extension packs with dependencies will need it", INSTALL_UV, level=WARNING)
    yield Problem(f"{len(app.registry)} tools", level=OK)


async def run(app: OneTool, *, can_run: bool) -> list[Problem]:
    """Nothing runs while the configuration is wrong, and that is told already."""
    if not can_run:
        return []
    answer = await app.run(CHECK)
    if not answer.is_error and answer.blocks[-1] == "45":
        return [Problem("a run works", level=OK)]
    return [Problem(f"a run fails: {answer.text}", f"onetool run '{CHECK}'")]


def isolation(sandbox: str, wanted: str) -> Problem:
    if wanted == "off":
        hint = "set execution.isolation to auto"
        return Problem("isolation is off: code runs with your own rights", hint, level=WARNING)
    if sandbox == FULL:
        return Problem(f"code is confined: {sandbox}", level=OK)
    hint = (
        "Linux 5.13 or newer has both layers" if sys.platform == "linux" else "Linux has them; use a container or WSL"
    )
    what = f"code runs in a process of its own, but this machine offers only: {sandbox}"
    return Problem(what, hint, level=WARNING)
