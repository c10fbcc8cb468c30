"""Folders: those that the product writes to, and those that the configuration names."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import quote

from ot.bundles.source import folder_of
from ot.checks.finding import Finding, problem, warning
from ot.config.load import Examined, Loaded
from ot.config.model import Loc
from ot.paths import placed

WRITTEN = ("logs", "stats", "tmp", "cache", "environments")
NO_FOLDER = " is no folder, so that nothing can be kept in it"
LEAST_FREE = 16 << 20  # bytes; a single large result may need more


def findings(read: Examined) -> list[Finding]:
    return [*_written(read.loaded), *_scratch(), *_named(read)]


def outside(placed: Iterable[Finding], others: Iterable[Finding]) -> list[Finding]:
    """Without what is only wrong because its folder is no folder, which is told."""
    gone = [each.what.removesuffix(NO_FOLDER) + "/" for each in placed if each.what.endswith(NO_FOLDER)]
    return [each for each in others if not any(folder in each.what for folder in gone)]


# --- written to ----------------------------------------------------------------------------------------------------


def _written(loaded: Loaded) -> Iterator[Finding]:
    folders = loaded.folders
    audit = placed(loaded.settings.audit.file, folders.data, folders.home).parent
    inside = [*(folders.data / name for name in WRITTEN), folder_of(loaded), audit]
    closed: list[Path] = []
    for folder in dict.fromkeys([folders.user, folders.data, *inside]):
        if (found := _unusable(folder, closed)) is not None:
            yield found
    if not closed and (folders.data if folders.data.is_dir() else folders.home).is_dir():
        yield from _full(folders.data if folders.data.is_dir() else folders.home)


def _unusable(folder: Path, closed: list[Path]) -> Finding | None:
    """`closed` are the folders that were told already: what is in them is told with them."""
    there = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), folder)
    if any(there.is_relative_to(each) for each in closed):
        return None
    if not there.is_dir():
        closed.append(there)
        return problem(f"{there}{NO_FOLDER}", f"mv {quote(str(there))} {quote(f'{there}.old')}")
    if os.access(there, os.R_OK | os.W_OK | os.X_OK):
        return None
    closed.append(there)
    return problem(f"{there} cannot be written, so that nothing is kept there", _open_up(there))


def _open_up(folder: Path) -> str:
    path = quote(str(folder))
    is_ours = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    return f"chmod -R u+rwX {path}" if is_ours else f"sudo chown -R $(id -u) {path}"


def _full(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        yield problem(f"{folder}: the disk is full, {free:,} bytes are left", f"make room: df -h {quote(str(folder))}")


def _scratch() -> Iterator[Finding]:
    wanted = os.environ.get("TMPDIR")
    try:
        used = tempfile.gettempdir()
    except FileNotFoundError as error:
        yield problem(f"there is no folder for scratch files: {error.strerror}", "export TMPDIR=/tmp")
        return
    if wanted and os.path.realpath(wanted) != os.path.realpath(used):
        what = f"TMPDIR is {wanted}, which cannot be written, so that {used} is used"
        yield warning(what, f"mkdir -p {quote(wanted)}   or: unset TMPDIR")
    yield from _full(Path(used))


# --- named -----------------------------------------------------------------------------------------------------------


def _named(read: Examined) -> Iterator[Finding]:
    settings = read.loaded.settings
    for name, text in settings.projects.items():
        yield from _missing(read, ("projects", name), f"the project {name}", text)
    for index, text in enumerate(settings.tools_dir):
        yield from _missing(read, ("tools_dir", index), "tools_dir", text)
    for name, agent in settings.agents.items():
        for index, text in enumerate(agent.sandbox.allowed_paths):
            loc = ("agents", name, "sandbox", "allowed_paths", index)
            yield from _missing(read, loc, f"the agent {name}", text)


def _missing(read: Examined, loc: Loc, what: str, text: str) -> Iterator[Finding]:
    folders, place = read.loaded.folders, read.place_of(loc)
    path = placed(text, folders.working_dir, folders.home)
    if not path.exists():
        advice = f"correct it ({place}), or make the folder: mkdir -p {quote(str(path))}"
        yield problem(f"{place}: {what} is to use {path}, which is not there", advice)
