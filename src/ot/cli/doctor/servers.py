"""Check the configured MCP servers: whether each answers, and whether it offers what it did.

Each server gets its own `timeout` to answer. As many start at a time as the machine has cores.
"""

import asyncio
import os
import shlex
import shutil
from collections.abc import Callable, Iterator

from ot.app import OneTool
from ot.cli.doctor.finding import PROBLEM, WARNING, Finding, ok, problem, told, warning
from ot.config.model import Loc, Server
from ot.errors import ToolError
from ot.proxy.upstream import Upstream
from ot.registry import python_name

PlaceOf = Callable[[Loc], str]
Say = Callable[[str], None]


async def findings(app: OneTool, place_of: PlaceOf, say: Say) -> list[Finding]:
    names = [name for name, server in app.settings.servers.items() if server.enabled]
    slots, waiting, done = asyncio.Semaphore(os.cpu_count() or 1), list[str](), list[str]()

    def report() -> None:
        pending = f": waiting for {', '.join(waiting)}" if waiting else ""
        say(f"checked {len(done)} of {len(names)} servers{pending}")

    async def looked_at(name: str) -> Finding:
        async with slots:
            waiting.append(name)
            report()
            try:
                return await _looked_at(app, name, place_of)
            finally:
                waiting.remove(name)
                done.append(name)
                report()

    found = await asyncio.gather(*map(looked_at, names))
    return [*found, *_offers(app), *_namesakes(app, place_of)]


async def _looked_at(app: OneTool, name: str, place_of: PlaceOf) -> Finding:
    server, place = app.settings.servers[name], place_of(("servers", name))
    if server.command is not None and shutil.which(server.command) is None:
        what = f"{place}: the server {name} cannot be started: there is no program {server.command!r}"
        return problem(what, f"install {server.command}, or correct servers.{name}.command ({place})")
    upstream = app.servers.find(name)
    try:
        await upstream.connection(only_list=True)
    except ToolError as error:
        return told(PROBLEM, f"{place}: the server {error.message}", _advice(name, server, place))
    return ok(f"the server {name} answers; it has {len(upstream.definitions)} tools")


def _advice(name: str, server: Server, place: str) -> str:
    off = f"or leave it out: `enabled: false` in servers.{name} ({place})"
    if server.url is not None:
        return f"see that it runs and that servers.{name}.url is right, {off}"
    return f"see what it says: {shlex.join([str(server.command), *server.args])}\n{off}"


def _offers(app: OneTool) -> Iterator[Finding]:
    """What has changed, and what cannot be checked."""
    failures = {app.servers.find(name).failure for name in app.settings.servers}
    for text in app.servers.problems:
        if text in failures:
            continue
        name = max((name for name in app.settings.servers if text.startswith(f"{name}.")), key=len, default="")
        what, _, difference = text.partition(" Look at it, then type ")
        if not difference:
            yield warning(text, f"tell the authors of {name}") if name else told(PROBLEM, text)
            continue
        is_strict = name in app.settings.servers and app.settings.servers[name].pin == "strict"
        refused = " It is refused until you accept it." if is_strict else ""
        shown = difference.partition("\n")[2]
        yield Finding(
            PROBLEM if is_strict else WARNING,
            f"{what}{refused}\n{shown}",
            f"look at it, then type: onetool accept {name}",
        )


def _namesakes(app: OneTool, place_of: PlaceOf) -> Iterator[Finding]:
    for name in app.settings.servers:
        tools = map(app.registry.find, app.registry.in_pack(python_name(name)).values())
        others = [tool for tool in tools if not isinstance(tool.backend, Upstream)]
        if others:
            place, whose = place_of(("servers", name)), others[0].file or "a pack that ships"
            what = f"{place}: the server {name} has the name of another pack ({whose}): one hides tools of the other"
            yield problem(what, f"give the server another name ({place})")
