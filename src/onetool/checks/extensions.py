"""Extension packs: files that cannot be read, names that two have, and starts that failed."""

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
    yield from _namesakes(extensions, loaded)
    servers = set(map(python_name, loaded.settings.servers))  # a server that has the name is reported as such
    yield from (problem for name, problem in extensions.taken.items() if name not in servers)
    files = sorted(str(each.file) for each in extensions.used if each.header is not None)
    if files and not has_uv():
        what = f"uv is missing, so that these extension packs cannot be started: {', '.join(files)}"
        yield Problem(what, INSTALL_UV, code=NO_UV)


def has_uv() -> bool:
    try:
        from uv import find_uv_bin

        find_uv_bin()
    except (ImportError, FileNotFoundError):
        return False
    return True


def _namesakes(extensions: Extensions, loaded: Loaded) -> Iterator[Problem]:
    """A project may put a pack in the place of the person's own; beside each other they are a mistake."""
    found = extensions.found
    for pack in dict.fromkeys(each.pack for each in found):
        first, *rest = (each.file for each in found if each.pack == pack)
        if rest:
            others = ", ".join(map(str, rest))
            layers = {
                next(filter(file.is_relative_to, loaded.folders.layers), file.parent.parent) for file in (first, *rest)
            }
            yield Problem(
                f"several extension files are called {pack}: {first} counts, and not {others}",
                f'delete one of them, or write `pack = "another_name"` into it: {others}',
                Location(str(rest[0])),
                level=WARNING if len(layers) > len(rest) else PROBLEM,
            )
