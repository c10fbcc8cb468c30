"""Whether each upstream server answers. What is wrong with one is reported by `ot.checks`.

Each server gets its own `timeout` to answer. As many start at a time as the machine has cores.
"""

import asyncio
import os
from collections.abc import Callable

from ot.app import OneTool
from ot.checks.finding import Finding, ok
from ot.checks.servers import has_program
from ot.errors import ToolError

Say = Callable[[str], None]


async def findings(app: OneTool, say: Say) -> list[Finding]:
    names = [name for name, server in app.settings.servers.items() if server.enabled]
    slots, waiting, done = asyncio.Semaphore(os.cpu_count() or 1), list[str](), list[str]()

    def report() -> None:
        pending = f": waiting for {', '.join(waiting)}" if waiting else ""
        say(f"checked {len(done)} of {len(names)} servers{pending}")

    async def looked_at(name: str) -> Finding | None:
        async with slots:
            waiting.append(name)
            report()
            try:
                return await _looked_at(app, name)
            finally:
                waiting.remove(name)
                done.append(name)
                report()

    found = await asyncio.gather(*map(looked_at, names))
    return [each for each in found if each is not None]


async def _looked_at(app: OneTool, name: str) -> Finding | None:
    if not has_program(app.settings.servers[name]):
        return None
    upstream = app.servers.find(name)
    try:
        await upstream.connection(only_list=True)
    except ToolError:
        return None
    return ok(f"the server {name} answers; it has {len(upstream.definitions)} tools")
