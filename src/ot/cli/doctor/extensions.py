"""Whether each extension pack can be started. What is wrong with one is reported by `ot.checks`."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ot.app import OneTool
from ot.checks.extensions import has_uv
from ot.checks.finding import Finding, ok, warning
from ot.errors import ToolError
from ot.extensions.pack import RUNNING, Pack
from ot.tool import Tool

SECONDS = 60.0


async def findings(app: OneTool, say: Callable[[str], None]) -> list[Finding]:
    tools = {tool.pack: tool for tool in app.registry if isinstance(tool.backend, Pack)}
    startable = [tool for tool in tools.values() if has_uv() or _pack(tool).extension.header is None]
    if startable:
        say(f"starting {', '.join(tool.pack for tool in startable)}")
    started = await asyncio.gather(*(_started(app, tool) for tool in startable))
    return [found for found in started if found is not None]


async def _started(app: OneTool, tool: Tool) -> Finding | None:
    pack = _pack(tool)
    try:
        async with asyncio.timeout(SECONDS):
            with suppress(ToolError):
                await pack.warm_up(app.context())
    except TimeoutError:
        what = f"{tool.file}: {tool.pack} was not ready within {SECONDS:g} s"
        return warning(what, "type `onetool doctor` again: uv goes on where it was")
    return ok(f"the extension pack {tool.pack} can be started") if pack.state == RUNNING else None


def _pack(tool: Tool) -> Pack:
    assert isinstance(tool.backend, Pack)
    return tool.backend
