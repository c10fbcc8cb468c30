"""Checks for settings, extension packs, upstream servers, and assistants.

Settings may have unresolved or hidden names, and snippets and tokens that do not work. Extensions
and servers may have failed to start or share a name. Assistants may start a missing command.
"""

import os
import re
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from onetool.core.names import python_name
from onetool.core.policy.effects import is_declared
from onetool.core.policy.rules import Policy
from onetool.core.registry import Registry
from onetool.errors import ArgumentError, SignInRequired, ToolError
from onetool.runs.snippets import expansion
from onetool.settings.clients import text_files
from onetool.settings.clients.catalog import CLIENTS, Client, Machine
from onetool.settings.clients.client_servers import parse_settings
from onetool.settings.clients.text_files import value_at
from onetool.settings.load import Examined, Loaded
from onetool.settings.model import Server
from onetool.settings.paths import Directories
from onetool.sources.extensions.environments import NO_UV
from onetool.sources.extensions.packs import Extensions
from onetool.sources.extensions.static_analysis import (
    IGNORED,
    MAX_DIRECTORIES,
    NO_PACKAGES,
    SUFFIX,
    declares_pack,
)
from onetool.sources.upstream.connection import missing_program
from onetool.sources.upstream.servers import Servers
from onetool.sources.upstream.stdio import plan_launch
from onetool.sources.upstream.upstream import Upstream
from onetool.util.problem import OK, WARNING, Location, Problem
from onetool.util.text import pluralize, quote
from onetool_child.json_types import JsonMapping
from onetool_child.names import OWN_PACK, is_reserved

GLOB = re.compile(r"[*?\[]")
INSTALL_UV = f"{sys.executable} -m pip install uv"


def check_settings(registry: Registry, read: Examined) -> Iterator[Problem]:
    yield from _check_aliases(registry, read)
    yield from _check_snippets(read)
    yield from _check_tokens(read)
    yield from _check_effects(registry, read)
    yield from _check_rules(registry, read)
    reserved = "has a name reserved by Python or OneTool, so"
    for pack in filter(is_reserved, registry.all_packs()):
        if pack != OWN_PACK:
            hint = f'call its tools with ot.pack("{pack}"), or rename it'
            yield Problem(
                f"pack {pack} {reserved} code cannot use it by that name", hint, level=WARNING
            )
    for name in filter(is_reserved, registry.map_python_names("")):
        hint = f'call it with ot.call("{name}"), or rename it'
        yield Problem(
            f"tool {name} {reserved} code cannot use it by that name", hint, level=WARNING
        )


def _check_tokens(read: Examined) -> Iterator[Problem]:
    for index, token in enumerate(read.loaded.settings.auth.tokens):
        place = read.locate(("auth", "tokens", index))
        if token.token_env and not read.loaded.environment.get(token.token_env):
            what = (
                f"{place}: token {token.name} is disabled: environment variable {token.token_env}"
                " is not set"
            )
            hint = f"export {token.token_env}=...   or: onetool token create NAME"
            yield Problem(what, hint, place, level=WARNING)
        elif token.expires_at <= time.time():
            what = f"{place}: token {token.name} has expired ({token.expires})"
            yield Problem(what, f"onetool token revoke {token.name}", place, level=WARNING)


def _check_effects(registry: Registry, read: Examined) -> Iterator[Problem]:
    """Yield a problem for each pack with undeclared effects, if an agent has a policy that can ask."""
    agents = read.loaded.settings.agents.items()
    asking = [name for name, agent in agents if Policy.from_settings(agent).can_ask]
    if not asking:
        return
    undeclared = Counter(
        tool.pack or tool.name for tool in registry if tool.enabled and not is_declared(tool)
    )
    for pack, count in sorted(undeclared.items()):
        what = (
            f"{pluralize(count, 'tool')} of {pack} without declared effects, and the policy of"
            f" {asking[0]} can ask"
        )
        hint = (
            f"such tools count as write and external; declare them: tools: {{{pack}: {{effects:"
            " {NAME: read}}}"
        )
        yield Problem(what, hint, level=WARNING)


def _check_rules(registry: Registry, read: Examined) -> Iterator[Problem]:
    """Yield policy rules that match no tool, which a misspelled name would cause."""
    unlisted = _get_unlisted_packs(registry, read)
    for name, agent in read.loaded.settings.agents.items():
        for index, rule in enumerate(() if isinstance(agent.policy, str) else agent.policy):
            if _matches_nothing(rule.tools, registry, unlisted):
                place = read.locate(("agents", name, "policy", index))
                what = f"{place}: no tool matches {quote(rule.tools)}, so the rule has no effect"
                hint = "correct it; `onetool tools` lists all names"
                yield Problem(what, hint, place, level=WARNING)


def _get_unlisted_packs(registry: Registry, read: Examined) -> set[str]:
    """Return the packs that exist, but whose tools are not known now."""
    servers = map(python_name, read.loaded.settings.servers)
    return {*registry.problems(), *servers} - set(registry.packs())


def _matches_nothing(tools: str, registry: Registry, unlisted: set[str]) -> bool:
    pack = tools.partition(".")[0]
    name = pack if GLOB.search(tools) else tools
    if GLOB.search(name) or python_name(pack) in unlisted:
        return False
    return registry.get(name) is None and not registry.is_pack(python_name(name))


def _check_aliases(registry: Registry, read: Examined) -> Iterator[Problem]:
    aliases = read.loaded.settings.aliases
    unlisted = _get_unlisted_packs(registry, read)
    for alias in aliases:
        place = read.locate(("aliases", alias))
        chain = [alias]
        if is_reserved(alias):
            reason = "a name reserved by Python or OneTool, so code cannot call it"
            yield Problem(f"{place}: alias {alias} has {reason}", "rename the alias", place)
        elif registry.is_pack(python_name(alias)):
            reason = f"the name of a pack, so {alias} in code refers to the pack"
            yield Problem(f"{place}: alias {alias} has {reason}", "rename the alias", place)
        while chain[-1] in aliases and chain.count(chain[-1]) == 1:
            chain.append(aliases[chain[-1]])
        target = chain[-1]
        if target in aliases:
            what = f"{place}: circular aliases: {' -> '.join(chain)}"
            yield Problem(what, f"correct {target}, or delete the line", place)
        elif registry.get(target) is None and python_name(target.partition(".")[0]) not in unlisted:
            near = registry.nearest(target)
            hint = f"correct {target}, or delete the line"
            if near:
                hint = f"write {near[0]} instead of {target}"
            yield Problem(f"{place}: unknown tool {quote(target)}", hint, place)


def _check_snippets(read: Examined) -> Iterator[Problem]:
    """Expand each snippet with example values.

    Errors that only an example value causes are ignored.
    """
    snippets = read.loaded.settings.snippets
    for name, snippet in snippets.items():
        place = read.locate(("snippets", name, "body"))
        try:
            expansion.expand_call(name, expansion.make_example(snippet), snippets)
        except ArgumentError:
            continue
        except ToolError as error:
            yield Problem(
                f"{place}: {error.message}", f"correct the body of the snippet {name}", place
            )


# --- Extension packs ------------------------------------------------------------------------------


def check_extensions(extensions: Extensions, loaded: Loaded) -> Iterator[Problem]:
    yield from (problem for problem in extensions.findings if problem.code != NO_UV)
    yield from _find_duplicates(extensions, loaded)
    servers = set(
        map(python_name, loaded.settings.servers)
    )  # a server of that name is reported separately
    yield from (
        problem for name, problem in extensions.name_conflicts.items() if name not in servers
    )
    with_header = [pack for pack in extensions.active_extensions if pack.header is not None]
    files = sorted(str(pack.file) for pack in with_header)
    if files and not has_uv():
        what = f"uv is not installed, so these extension packs cannot start: {', '.join(files)}"
        yield Problem(what, INSTALL_UV, code=NO_UV)
    for directory in loaded.directories.pack_directories(loaded.settings.tools_dir):
        yield from _find_unnamed(directory)
        yield from _find_too_deep(directory)


def _find_unnamed(directory: Path) -> Iterator[Problem]:
    """Yield files that look like packs, but are not named as one."""
    files: list[Path] = []
    with suppress(OSError):
        files = [
            file
            for file in directory.glob("*.py")
            if not file.stem.endswith(SUFFIX) and declares_pack(file)
        ]
        for pack in sorted(
            path for path in directory.iterdir() if path.is_dir() and not path.name.startswith(".")
        ):
            if not (any(pack.glob(f"*{SUFFIX}.py")) or (pack / "__init__.py").exists()):
                files += sorted(pack.glob("*.py"))[:1]
    for file in files:
        name = f"{file.stem}{SUFFIX}.py"
        message = f"{file}: ignored, because its name does not end in {SUFFIX}.py"
        yield Problem(message, f"rename it to {name}", Location(str(file)), IGNORED, WARNING)


def _find_too_deep(directory: Path) -> Iterator[Problem]:
    """Yield files that are named as a pack, but are too deep to be found."""
    for folder, folders, names in islice(os.walk(directory), MAX_DIRECTORIES):
        folders[:] = [name for name in folders if name.isidentifier() and name not in NO_PACKAGES]
        is_searched = Path(folder) == directory or Path(folder).parent == directory
        if is_searched or "__init__.py" in names:  # modules of a package are not packs
            continue
        for file in (Path(folder, name) for name in sorted(names) if name.endswith(f"{SUFFIX}.py")):
            message = (
                f"{file}: ignored, because packs are only looked for in {directory} and its"
                " subdirectories"
            )
            place = directory / file.stem.removesuffix(SUFFIX) / file.name
            yield Problem(message, f"move it to {place}", Location(str(file)), IGNORED, WARNING)


def has_uv() -> bool:
    try:
        from uv import find_uv_bin

        find_uv_bin()
    except (ImportError, FileNotFoundError):
        return False
    return True


def _find_duplicates(extensions: Extensions, loaded: Loaded) -> Iterator[Problem]:
    """Yield duplicate packs, except the user's packs that a project overrides."""
    extensions_found = extensions.all_extensions
    for pack in dict.fromkeys(extension.pack for extension in extensions_found):
        first, *rest = (extension.file for extension in extensions_found if extension.pack == pack)
        layers = {
            next(filter(file.is_relative_to, loaded.directories.layers), file.parent.parent)
            for file in (first, *rest)
        }
        if len(layers) <= len(rest):
            others = ", ".join(map(str, rest))
            yield Problem(
                f"duplicate extension pack {pack}: {first} is used, {others} is ignored",
                f'delete or rename one of them with `pack = "another_name"`: {others}',
                Location(str(rest[0])),
            )


# --- Upstream servers -----------------------------------------------------------------------------


def check_servers(
    servers: Servers, read: Examined, registry: Registry, extensions: Extensions
) -> Iterator[Problem]:
    owners = {extension.pack: str(extension.file) for extension in extensions.all_extensions}
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


# --- Assistants -----------------------------------------------------------------------------------


def check_assistants(directories: Directories, environment: Mapping[str, str]) -> list[Problem]:
    machine = Machine(sys.platform, environment, directories.home, directories.working_dir)
    problems: list[Problem] = []
    for client in CLIENTS.values():
        for file in client.locate_files(machine):
            problems += _check_file(client, file, machine)
    hint = f"onetool connect CLIENT --write   ({', '.join(CLIENTS)})"
    return problems or [Problem("no assistant is connected", hint, level=OK)]


def _check_file(client: Client, file: Path, machine: Machine) -> Iterator[Problem]:
    if not file.exists():
        return
    try:
        entry = value_at(parse_settings(text_files.read(file)), client.path)
    except ToolError as error:
        location = error.fields.get("location") or Location(str(file))
        yield Problem(f"{client.title}: {error.message}", error.hint, location, level=WARNING)
        return
    if isinstance(entry, Mapping):
        yield _check_entry(client, file, entry, machine)


def _check_entry(client: Client, file: Path, entry: JsonMapping, machine: Machine) -> Problem:
    scope = "" if file == client.locate_user_file(machine) else " --project"
    reconnect = f"onetool connect {client.name}{scope} --write"
    command = entry.get("command")
    env = entry.get("env")
    directory = env.get("OT_CWD") if isinstance(env, Mapping) else None
    if isinstance(command, str) and shutil.which(command, path=machine.env.get("PATH")) is None:
        what = f"{client.title} starts {command}, which does not exist ({file})"
        return Problem(what, reconnect, Location(str(file)))
    if isinstance(directory, str) and not Path(directory).is_dir():
        what = f"{client.title} starts OneTool in {directory}, which is not a directory ({file})"
        return Problem(what, f"{reconnect} --folder {machine.working_dir}", Location(str(file)))
    return Problem(f"{client.title} is connected ({file})", level=OK)
