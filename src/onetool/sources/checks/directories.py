"""Checks of directories: those that OneTool writes to, and those that the settings name."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from onetool.settings.load import Examined, Loaded
from onetool.settings.paths import resolve_path
from onetool.sources.bundles.source import bundles_directory
from onetool.sources.checks.fixes import CREATE_DIRECTORY, name_fix
from onetool.util.problem import WARNING, Location, Problem, storage_problem

WRITTEN_DIRECTORIES = ("logs", "stats", "tmp", "cache", "environments")
MIN_FREE_BYTES = 16 << 20  # a single large result may need more


def problems(read: Examined) -> Iterator[Problem]:
    yield from _check_written(read.loaded)
    yield from _check_temporary()
    yield from _check_named(read)


def _check_written(loaded: Loaded) -> Iterator[Problem]:
    directories = loaded.directories
    audit = resolve_path(loaded.settings.audit.file, directories.data, directories.home).parent
    inside = [
        *(directories.data / name for name in WRITTEN_DIRECTORIES),
        bundles_directory(loaded),
        audit,
    ]
    unusable: list[Path] = []  # problems inside of these are not reported again
    for directory in dict.fromkeys([directories.user, directories.data, *inside]):
        existing = next(
            (each for each in (directory, *directory.parents) if os.path.lexists(each)), directory
        )
        if any(existing.is_relative_to(each) for each in unusable):
            continue
        path = quote(str(existing))
        if not existing.is_dir():
            is_link = existing.is_symlink() and not existing.exists()
            reason = (
                f"a link to {existing.readlink()}, which does not exist"
                if is_link
                else "not a directory"
            )
            what = f"{existing} is {reason}, so nothing can be stored in it"
            yield storage_problem(what, existing, f"mv {path} {quote(f'{existing}.old')}")
        elif not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
            is_ours = not hasattr(os, "getuid") or existing.stat().st_uid == os.getuid()
            hint = f"chmod -R u+rwX {path}" if is_ours else f"sudo chown -R $(id -u) {path}"
            what = f"cannot write to {existing}, so nothing is stored there"
            if hasattr(os, "statvfs") and os.statvfs(existing).f_flag & os.ST_RDONLY:
                what = f"{what}: the disk is read-only"
                hint = f"remount it writable, or move {existing} to another disk"
            yield storage_problem(what, existing, hint)
        else:
            continue
        unusable.append(existing)
    data = directories.data if directories.data.is_dir() else directories.home
    if not unusable and data.is_dir():
        yield from _check_space(data)


def _check_space(directory: Path) -> Iterator[Problem]:
    free = shutil.disk_usage(directory).free
    if free < MIN_FREE_BYTES:
        state = f"almost full, {free:,} bytes left" if free else "full"
        yield Problem(
            f"{directory}: the disk is {state}",
            f"free up disk space: df -h {quote(str(directory))}",
            Location(str(directory)),
        )


def _check_temporary() -> Iterator[Problem]:
    wanted = os.environ.get("TMPDIR")  # of this process, which clients of the daemon share
    try:
        used = tempfile.gettempdir()
    except FileNotFoundError as error:
        yield Problem(
            f"no usable directory for temporary files: {error.strerror}", "export TMPDIR=/tmp"
        )
        return
    if wanted and os.path.realpath(wanted) != os.path.realpath(used):
        what = f"cannot write to TMPDIR ({wanted}); using {used} instead"
        yield storage_problem(
            what, Path(wanted), f"mkdir -p {quote(wanted)}   or: unset TMPDIR", WARNING
        )
    yield from _check_space(Path(used))


def _check_named(read: Examined) -> Iterator[Problem]:
    settings = read.loaded.settings
    directories = read.loaded.directories
    named: list[tuple[tuple[str | int, ...], str, str]] = [
        *(
            (("projects", name), f"project {name}", text)
            for name, text in settings.projects.items()
        ),
        *(
            (("tools_dir", index), "tools_dir", text)
            for index, text in enumerate(settings.tools_dir)
        ),
        *(
            (("agents", name, "sandbox", "allowed_paths", index), f"agent {name}", text)
            for name, agent in settings.agents.items()
            for index, text in enumerate(agent.sandbox.allowed_paths)
        ),
    ]
    for loc, what, text in named:
        path = resolve_path(text, directories.root, directories.home)
        place = read.locate(loc)
        if not path.exists():
            hint = f"correct the path, or create the directory: mkdir -p {quote(str(path))}"
            fix = name_fix(CREATE_DIRECTORY, path)
            yield Problem(
                f"{place}: {what} uses {path}, which does not exist", hint, place, fix=fix
            )
