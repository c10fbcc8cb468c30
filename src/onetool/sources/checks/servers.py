"""Checks of upstream servers: missing programs, failed starts, duplicate names and changed
definitions.
"""

import shlex
from collections.abc import Iterator

from onetool.core.names import python_name
from onetool.core.registry import Registry
from onetool.errors import SignInRequired
from onetool.settings.load import Examined
from onetool.settings.model import Server
from onetool.sources.extensions.packs import Extensions
from onetool.sources.upstream.connection import missing_program
from onetool.sources.upstream.server_launch import plan_launch
from onetool.sources.upstream.servers import Servers
from onetool.sources.upstream.upstream import Upstream
from onetool.util.problem import WARNING, Location, Problem


def problems(
    servers: Servers, read: Examined, registry: Registry, extensions: Extensions
) -> Iterator[Problem]:
    owners = {each.pack: str(each.file) for each in extensions.all_extensions}
    for tool in registry:
        if not isinstance(tool.backend, Upstream):
            owners.setdefault(python_name(tool.pack), tool.file or "a built-in pack")
    for name, server in read.loaded.settings.servers.items():
        place = read.locate(("servers", name))
        if server.enabled:
            yield from _check_server(name, server, servers, read, place)
        pack = python_name(name)
        if owner := owners.get(pack):
            what = (
                f"{place}: server {name} has the name of another pack ({owner}), so its tools are"
                " left out"
            )
            yield Problem(what, "rename the server", place)
        owners.setdefault(pack, f"server {name}")
    yield from servers.findings


def _check_server(
    name: str, server: Server, servers: Servers, read: Examined, place: Location
) -> Iterator[Problem]:
    if (
        server.command
        and not plan_launch(name, server, read.loaded, servers.environment).has_program()
    ):
        error = missing_program(name, server.command)
        yield Problem(f"{place}: {error.message}", error.hint, place)
    elif (
        name in servers.names
        and (problem := servers.upstream(name).main.problem).code == SignInRequired.type
    ):
        yield Problem(f"{place}: {problem.message}", problem.hint, place, problem.code, WARNING)
    elif name in servers.names and (failure := servers.upstream(name).main.failure):
        hint = f"or disable it: set servers.{name}.enabled to false"
        if server.command:
            hint = f"check its output: {shlex.join([server.command, *server.args])}\n{hint}"
        else:
            hint = f"check that it runs and that servers.{name}.url is correct, {hint}"
        yield Problem(f"{place}: {failure}", hint, place)
