"""Checks of extension packs: unreadable files, duplicate names, failed starts, and what is not a
tool.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from onetool.core.names import python_name
from onetool.settings.load import Loaded
from onetool.sources.extensions.environments import NO_UV
from onetool.sources.extensions.packs import Extensions
from onetool.sources.extensions.static_analysis import (
    IGNORED,
    MAX_DIRECTORIES,
    NO_PACKAGES,
    SUFFIX,
    is_declared,
)
from onetool.util.problem import WARNING, Location, Problem

INSTALL_UV = f"{sys.executable} -m pip install uv"


def problems(extensions: Extensions, loaded: Loaded) -> Iterator[Problem]:
    yield from (each for each in extensions.findings if each.code != NO_UV)
    yield from _find_duplicates(extensions, loaded)
    servers = set(
        map(python_name, loaded.settings.servers)
    )  # a server of that name is reported separately
    yield from (
        problem for name, problem in extensions.name_conflicts.items() if name not in servers
    )
    files = sorted(
        str(each.file) for each in extensions.active_extensions if each.header is not None
    )
    if files and not has_uv():
        what = f"uv is not installed, so these extension packs cannot start: {', '.join(files)}"
        yield Problem(what, INSTALL_UV, code=NO_UV)
    for directory in loaded.directories.pack_directories(loaded.settings.tools_dir):
        yield from _find_unnamed(directory)
        yield from _find_too_deep(directory)


def _find_unnamed(directory: Path) -> Iterator[Problem]:
    """Yield files that look like packs, but do not have the name of one."""
    found: list[Path] = []
    with suppress(OSError):
        found = [
            file
            for file in directory.glob("*.py")
            if not file.stem.endswith(SUFFIX) and is_declared(file)
        ]
        for pack in sorted(
            path for path in directory.iterdir() if path.is_dir() and not path.name.startswith(".")
        ):
            if not (any(pack.glob(f"*{SUFFIX}.py")) or (pack / "__init__.py").exists()):
                found += sorted(pack.glob("*.py"))[:1]
    for file in found:
        name = f"{file.stem}{SUFFIX}.py"
        message = f"{file}: ignored, because its name does not end in {SUFFIX}.py"
        yield Problem(message, f"rename it to {name}", Location(str(file)), IGNORED, WARNING)


def _find_too_deep(directory: Path) -> Iterator[Problem]:
    """Yield files with the name of a pack that are below the directories in which packs are looked
    for.
    """
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
    """Yield duplicate packs, except those of the user that a project overrides."""
    found = extensions.all_extensions
    for pack in dict.fromkeys(each.pack for each in found):
        first, *rest = (each.file for each in found if each.pack == pack)
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
