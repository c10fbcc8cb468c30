"""Folders: those that the product writes to, and those that the configuration names."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from onetool.bundles.source import folder_of
from onetool.config.load import Examined, Loaded
from onetool.paths import placed
from onetool.problem import WARNING, Location, Problem, storage_problem

WRITTEN = ("logs", "stats", "tmp", "cache", "environments")
LEAST_FREE = 16 << 20  # bytes; a single large result may need more


def problems(read: Examined) -> Iterator[Problem]:
    yield from _written(read.loaded)
    yield from _scratch()
    yield from _named(read)


def _written(loaded: Loaded) -> Iterator[Problem]:
    folders = loaded.folders
    audit = placed(loaded.settings.audit.file, folders.data, folders.home).parent
    inside = [*(folders.data / name for name in WRITTEN), folder_of(loaded), audit]
    closed: list[Path] = []  # what is in them is reported with them
    for folder in dict.fromkeys([folders.user, folders.data, *inside]):
        there = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), folder)
        if any(there.is_relative_to(each) for each in closed):
            continue
        path = quote(str(there))
        if not there.is_dir():
            what = f"{there} is no folder, so that nothing can be kept in it"
            yield storage_problem(what, there, f"mv {path} {quote(f'{there}.old')}")
        elif not os.access(there, os.R_OK | os.W_OK | os.X_OK):
            is_ours = not hasattr(os, "getuid") or there.stat().st_uid == os.getuid()
            hint = f"chmod -R u+rwX {path}" if is_ours else f"sudo chown -R $(id -u) {path}"
            what = f"{there} cannot be written, so that nothing is kept there"
            if hasattr(os, "statvfs") and os.statvfs(there).f_flag & os.ST_RDONLY:
                what, hint = f"{what}: the disk is read-only", f"remount it writable, or move {there} to another disk"
            yield storage_problem(what, there, hint)
        else:
            continue
        closed.append(there)
    data = folders.data if folders.data.is_dir() else folders.home
    if not closed and data.is_dir():
        yield from _full(data)


def _full(folder: Path) -> Iterator[Problem]:
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        state = f"almost full, {free:,} bytes are left" if free else "full"
        yield Problem(f"{folder}: the disk is {state}", f"make room: df -h {quote(str(folder))}", Location(str(folder)))


def _scratch() -> Iterator[Problem]:
    wanted = os.environ.get("TMPDIR")
    try:
        used = tempfile.gettempdir()
    except FileNotFoundError as error:
        yield Problem(f"there is no folder for scratch files: {error.strerror}", "export TMPDIR=/tmp")
        return
    if wanted and os.path.realpath(wanted) != os.path.realpath(used):
        what = f"TMPDIR is {wanted}, which cannot be written, so that {used} is used"
        yield storage_problem(what, Path(wanted), f"mkdir -p {quote(wanted)}   or: unset TMPDIR", WARNING)
    yield from _full(Path(used))


def _named(read: Examined) -> Iterator[Problem]:
    settings, folders = read.loaded.settings, read.loaded.folders
    named: list[tuple[tuple[str | int, ...], str, str]] = [
        *((("projects", name), f"the project {name}", text) for name, text in settings.projects.items()),
        *((("tools_dir", index), "tools_dir", text) for index, text in enumerate(settings.tools_dir)),
        *(
            (("agents", name, "sandbox", "allowed_paths", index), f"the agent {name}", text)
            for name, agent in settings.agents.items()
            for index, text in enumerate(agent.sandbox.allowed_paths)
        ),
    ]
    for loc, what, text in named:
        path, place = placed(text, folders.working_dir, folders.home), read.place_of(loc)
        if not path.exists():
            hint = f"correct it ({place}), or make the folder: mkdir -p {quote(str(path))}"
            yield Problem(f"{place}: {what} is to use {path}, which is not there", hint, place)
