"""This machine: Python, the packages, uv, whether a run works, and how far code is confined."""

import importlib.metadata
import platform
import sys
from collections.abc import Iterator

from ot.app import OneTool
from ot.checks.extensions import INSTALL_UV, has_uv
from ot.checks.finding import Finding, ok, problem, warning
from ot.extensions.pack import Pack
from ot.version import __version__

FULL = "landlock+seccomp"
CHECK = "sum(range(10))"


def findings(app: OneTool) -> Iterator[Finding]:
    yield ok(f"onetool {__version__} on Python {platform.python_version()}, {platform.system()} {platform.release()}")
    yield ok(f"mcp {importlib.metadata.version('mcp')}")
    yield from _uv(app)
    yield ok(f"{len(app.registry)} tools")


def _uv(app: OneTool) -> Iterator[Finding]:
    """Where a pack needs uv, `ot.checks` reports that it is missing."""
    packs = (tool.backend.extension for tool in app.registry if isinstance(tool.backend, Pack))
    if not has_uv() and all(extension.header is None for extension in packs):
        yield warning("uv is missing; extension packs with dependencies will need it", INSTALL_UV)


async def run(app: OneTool, *, can_run: bool) -> list[Finding]:
    """Nothing runs while the configuration is wrong, and that is told already."""
    if not can_run:
        return []
    answer = await app.run(CHECK)
    if not answer.is_error and answer.blocks[-1] == "45":
        return [ok("a run works")]
    return [problem(f"a run fails: {answer.text}", f"onetool run '{CHECK}'")]


def isolation(sandbox: str, wanted: str) -> Finding:
    if wanted == "off":
        return warning("isolation is off: code runs with your own rights", "set execution.isolation to auto")
    if sandbox == FULL:
        return ok(f"code is confined: {sandbox}")
    advice = (
        "Linux 5.13 or newer has both layers" if sys.platform == "linux" else "Linux has them; use a container or WSL"
    )
    return warning(f"code runs in a process of its own, but this machine offers only: {sandbox}", advice)
