"""Checks of extension packs: unreadable files, duplicate names and failed starts."""

import sys
from collections.abc import Iterator

from onetool.config.load import Loaded
from onetool.extensions.environments import NO_UV
from onetool.extensions.packs import Extensions
from onetool.problem import PROBLEM, WARNING, Location, Problem
from onetool.registry import python_name

INSTALL_UV = f"{sys.executable} -m pip install uv"


def problems(extensions: Extensions, loaded: Loaded) -> Iterator[Problem]:
    yield from (each for each in extensions.findings if each.code != NO_UV)
    yield from _find_duplicates(extensions, loaded)
    servers = set(map(python_name, loaded.settings.servers))  # a server of that name is reported separately
    yield from (problem for name, problem in extensions.name_conflicts.items() if name not in servers)
    files = sorted(str(each.file) for each in extensions.active_extensions if each.header is not None)
    if files and not has_uv():
        what = f"uv is not installed, so these extension packs cannot start: {', '.join(files)}"
        yield Problem(what, INSTALL_UV, code=NO_UV)


def has_uv() -> bool:
    try:
        from uv import find_uv_bin

        find_uv_bin()
    except (ImportError, FileNotFoundError):
        return False
    return True


def _find_duplicates(extensions: Extensions, loaded: Loaded) -> Iterator[Problem]:
    """Yield duplicate packs: a warning if a project overrides a pack of the user, otherwise a problem."""
    found = extensions.all_extensions
    for pack in dict.fromkeys(each.pack for each in found):
        first, *rest = (each.file for each in found if each.pack == pack)
        if rest:
            others = ", ".join(map(str, rest))
            layers = {
                next(filter(file.is_relative_to, loaded.directories.layers), file.parent.parent)
                for file in (first, *rest)
            }
            yield Problem(
                f"duplicate extension pack {pack}: {first} is used, {others} is ignored",
                f'delete or rename one of them with `pack = "another_name"`: {others}',
                Location(str(rest[0])),
                level=WARNING if len(layers) > len(rest) else PROBLEM,
            )
