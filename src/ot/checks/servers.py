"""Upstream servers: programs that are missing, starts that failed, and what each offers."""

import shlex
import shutil
from collections.abc import Iterator

from ot.checks.finding import PROBLEM, WARNING, Finding, problem, told, warning
from ot.config.load import Examined
from ot.config.model import Server
from ot.proxy.servers import Servers
from ot.proxy.upstream import Upstream
from ot.registry import Registry, python_name


def findings(servers: Servers, read: Examined, registry: Registry) -> Iterator[Finding]:
    settings = read.loaded.settings.servers
    for name, server in settings.items():
        failure = servers.find(name).failure if name in servers.names else None
        yield from _failures(name, server, failure, read.place_of(("servers", name)))
    yield from _offers(servers)
    yield from _namesakes(servers, read, registry)


def has_program(server: Server) -> bool:
    return server.command is None or shutil.which(server.command) is not None


def _failures(name: str, server: Server, failure: str | None, place: str) -> Iterator[Finding]:
    if not server.enabled:
        return
    if not has_program(server):
        what = f"{place}: the server {name} cannot be started: there is no program {server.command!r}"
        yield problem(what, f"install {server.command}, or correct servers.{name}.command ({place})")
    elif failure:
        yield told(PROBLEM, f"{place}: the server {failure}", _advice(name, server, place))


def _advice(name: str, server: Server, place: str) -> str:
    off = f"or leave it out: `enabled: false` in servers.{name} ({place})"
    if server.url is not None:
        return f"see that it runs and that servers.{name}.url is right, {off}"
    return f"see what it says: {shlex.join([str(server.command), *server.args])}\n{off}"


def _offers(servers: Servers) -> Iterator[Finding]:
    """What has changed, and what cannot be checked."""
    settings = {name: servers.find(name).server for name in servers.names}
    failures = {servers.find(name).failure for name in servers.names}
    for text in servers.problems:
        if text in failures:
            continue
        name = max((name for name in settings if text.startswith(f"{name}.")), key=len, default="")
        what, _, difference = text.partition(" Look at it, then type ")
        if not difference:
            yield warning(text, f"tell the authors of {name}") if name else told(PROBLEM, text)
            continue
        is_strict = name in settings and settings[name].pin == "strict"
        refused = " It is refused until you accept it." if is_strict else ""
        shown = difference.partition("\n")[2]
        yield Finding(
            PROBLEM if is_strict else WARNING,
            f"{what}{refused}\n{shown}",
            f"look at it, then type: onetool accept {name}",
        )


def _namesakes(servers: Servers, read: Examined, registry: Registry) -> Iterator[Finding]:
    for name in servers.names:
        tools = map(registry.find, list(registry.held_in(python_name(name)).values()))
        others = [tool for tool in tools if not isinstance(tool.backend, Upstream)]
        if others:
            place, whose = read.place_of(("servers", name)), others[0].file or "a pack that ships"
            what = f"{place}: the server {name} has the name of another pack ({whose}): one hides tools of the other"
            yield problem(what, f"give the server another name ({place})")
