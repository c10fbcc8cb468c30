"""Upstream servers: programs that are missing, starts that failed, names that others have, and what each offers."""

import shlex
from collections.abc import Iterator

from onetool.config.load import Examined
from onetool.config.model import Server
from onetool.extensions.packs import Extensions
from onetool.problem import Location, Problem
from onetool.proxy.connection import missing_program
from onetool.proxy.launch import plan_launch
from onetool.proxy.servers import Servers
from onetool.proxy.upstream import Upstream
from onetool.registry import Registry, python_name


def problems(servers: Servers, read: Examined, registry: Registry, extensions: Extensions) -> Iterator[Problem]:
    owners = {each.pack: str(each.file) for each in extensions.found}
    for tool in registry:
        if not isinstance(tool.backend, Upstream):
            owners.setdefault(python_name(tool.pack), tool.file or "a pack that ships")
    for name, server in read.loaded.settings.servers.items():
        place = read.place_of(("servers", name))
        if server.enabled:
            yield from _failure(name, server, servers, read, place)
        pack = python_name(name)
        if owner := owners.get(pack):
            what = f"{place}: the server {name} has the name of another pack ({owner}): one hides tools of the other"
            yield Problem(what, f"give the server another name ({place})", place)
        owners.setdefault(pack, f"the server {name}")
    yield from servers.findings


def _failure(name: str, server: Server, servers: Servers, read: Examined, place: Location) -> Iterator[Problem]:
    if server.command and not plan_launch(name, server, read.loaded, servers.environment).has_program():
        error = missing_program(name, server.command)
        yield Problem(f"{place}: the server {error.message}", f"{error.hint} ({place})", place)
    elif name in servers.names and (failure := servers.upstream(name).failure):
        hint = f"or leave it out: `enabled: false` in servers.{name} ({place})"
        if server.command:
            hint = f"see what it says: {shlex.join([server.command, *server.args])}\n{hint}"
        else:
            hint = f"see that it runs and that servers.{name}.url is right, {hint}"
        yield Problem(f"{place}: the server {failure}", hint, place)
