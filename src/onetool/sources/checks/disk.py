"""Checks of the disk: directories that are written or that the settings name, and stored files.

Stored files must be intact and not written by a newer OneTool. Checks change nothing. A problem may
name a fix that is safe to make without asking: it deletes nothing, and changes no settings,
permissions or trust. Callers make only fixes of problems that were just found.
"""

import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from onetool.errors import ToolError
from onetool.settings import trust
from onetool.settings.contents import TRUST_FILE
from onetool.settings.load import Examined, Loaded
from onetool.settings.paths import resolve_path
from onetool.sources.bundles.source import bundles_directory, open_store
from onetool.state import documents, run_store, session_store
from onetool.state.credentials import CredentialFile
from onetool.state.documents import DocumentFile
from onetool.state.opening import open_files
from onetool.state.session_store import SessionStore
from onetool.state.sqlite_database import SealedDatabase, database_uri
from onetool.state.stats.database import VERSION as STATISTICS_VERSION
from onetool.util.background import exclusive, is_unchanged, put_aside
from onetool.util.problem import (
    WARNING,
    Location,
    NewerVersion,
    Problem,
    check_tables,
    check_version,
    storage_problem,
)

PROGRESS_INTERVAL = 10_000  # SQLite instructions, some milliseconds
RECREATED = "run `onetool run 1` to create a new one; the damaged file is kept"
LOST_RUNS = (
    "restore it from a backup, or stop OneTool and run `rm {file}*` (runs that wait are lost)"
)
LOST_DOCUMENTS = (
    "restore it from a backup, or stop OneTool and run `rm {file}*` (disabled tools are enabled,"
    " tools of servers are pinned again, and saved snippets are lost)"
)
LOST_SIGN_INS = (
    "restore it from a backup, or stop OneTool, run `rm {file}*` and sign in again with `onetool"
    " login`"
)
LOST_SESSIONS = (
    "restore it from a backup, or stop OneTool and run `rm {file}*` (the values of sessions are"
    " lost)"
)
WRITTEN_DIRECTORIES = ("logs", "stats", "tmp", "cache", "environments")
MIN_FREE_BYTES = 16 << 20  # a single large result may need more
CREATE_DIRECTORY = "create_directory"
PUT_ASIDE = "put_aside"


# --- Directories ----------------------------------------------------------------------------------


def check_directories(read: Examined) -> Iterator[Problem]:
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
            (place for place in (directory, *directory.parents) if os.path.lexists(place)),
            directory,
        )
        if any(existing.is_relative_to(place) for place in unusable):
            continue
        path = quote(str(existing))
        if not existing.is_dir():
            is_link = existing.is_symlink() and not existing.exists()
            reason = "not a directory"
            if is_link:
                reason = f"a link to {existing.readlink()}, which does not exist"
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
    configured = os.environ.get("TMPDIR")  # of this process, which clients of the daemon share
    try:
        used = tempfile.gettempdir()
    except FileNotFoundError as error:
        yield Problem(
            f"no usable directory for temporary files: {error.strerror}", "export TMPDIR=/tmp"
        )
        return
    if configured and os.path.realpath(configured) != os.path.realpath(used):
        what = f"cannot write to TMPDIR ({configured}); using {used} instead"
        yield storage_problem(
            what, Path(configured), f"mkdir -p {quote(configured)}   or: unset TMPDIR", WARNING
        )
    yield from _check_space(Path(used))


def _check_named(read: Examined) -> Iterator[Problem]:
    settings = read.loaded.settings
    directories = read.loaded.directories
    named: list[tuple[tuple[str | int, ...], str, str]] = []
    for name, text in settings.projects.items():
        named.append((("projects", name), f"project {name}", text))
    for index, text in enumerate(settings.tools_dir):
        named.append((("tools_dir", index), "tools_dir", text))
    for name, agent in settings.agents.items():
        for index, text in enumerate(agent.sandbox.allowed_paths):
            setting = ("agents", name, "sandbox", "allowed_paths", index)
            named.append((setting, f"agent {name}", text))
    for location, what, text in named:
        path = resolve_path(text, directories.root, directories.home)
        place = read.locate(location)
        if not path.exists():
            hint = f"correct the path, or create the directory: mkdir -p {quote(str(path))}"
            fix = name_fix(CREATE_DIRECTORY, path)
            yield Problem(
                f"{place}: {what} uses {path}, which does not exist", hint, place, fix=fix
            )


# --- Stored files ---------------------------------------------------------------------------------


def check_stored_files(loaded: Loaded, seconds: float | None = None) -> list[Problem]:
    """Check each file; check a database for at most `seconds`, because a large one takes long."""
    data = loaded.directories.data
    private = loaded.directories.private
    runs = SealedDatabase(private / "runs" / "runs.db", run_store.SCHEMA, run_store.VERSION)
    places = dict.fromkeys((data, private, loaded.directories.user))
    files = [DocumentFile(place).file for place in places]
    sessions = SessionStore(private).database
    sign_ins = CredentialFile(loaded.directories.user)
    statistics = data / "stats" / "stats.db"
    problems: list[Problem] = []
    for file in files:
        problems += _check_database(file, documents.VERSION, LOST_DOCUMENTS, seconds)
    problems += _check_database(statistics, STATISTICS_VERSION, RECREATED, seconds)
    problems += _check_sealed(runs, run_store.VERSION, LOST_RUNS, seconds)
    problems += _check_sealed(sessions, session_store.VERSION, LOST_SESSIONS, seconds)
    problems += _check_sealed(sign_ins, documents.VERSION, LOST_SIGN_INS, seconds)
    problems += _check_trust(loaded.directories.user / TRUST_FILE)
    return problems


def check_bundles(loaded: Loaded) -> list[Problem]:
    """Re-read all bundles, which is slow if there are many."""
    directory = bundles_directory(loaded)
    store = open_store(loaded, open_files(loaded.directories))
    try:
        store.rescan()
        problems = store.problems
    except ToolError as error:
        hint = error.hint or f"make {directory} readable and writable"
        problems = [storage_problem(f"{directory}: {error.message}", directory, hint)]
    store.close()
    return problems


def _check_trust(file: Path) -> Iterator[Problem]:
    try:
        data: Any = json.loads(file.read_bytes())
        check_version(data.get("version"), trust.VERSION, file)
    except FileNotFoundError:
        return
    except NewerVersion as error:
        yield Problem.of(error)
    except OSError as error:
        yield storage_problem(
            f"cannot read {file}: {error.strerror}", file, f"chmod u+rw {quote(str(file))}"
        )
    except (ValueError, AttributeError, RecursionError):
        hint = f"run `rm {quote(str(file))}`, then `onetool trust` in your projects"
        yield storage_problem(f"{file} is damaged", file, hint)


def _check_sealed(
    database: SealedDatabase, version: int, damaged: str, seconds: float | None
) -> Iterator[Problem]:
    """Check a database with sealed values, then whether its key is the one that sealed them."""
    problems = list(_check_database(database.file, version, damaged, seconds))
    yield from problems
    if not problems and database.exists():
        with closing(database):
            try:
                database.select("SELECT sealed FROM key_check")  # opening it checks the key
            except ToolError as error:
                yield Problem.of(error)


def _check_database(
    file: Path, version: int, damaged: str, seconds: float | None
) -> Iterator[Problem]:
    """Check a database. With a limit in `seconds`, one that is as OneTool left it is not read."""
    if not file.exists():
        return
    try:
        with closing(sqlite3.connect(database_uri(file, "ro"), uri=True, timeout=5)) as database:
            if seconds is not None:
                deadline = time.monotonic() + seconds
                database.set_progress_handler(
                    lambda: time.monotonic() > deadline, PROGRESS_INTERVAL
                )
            check_tables(database, version, file)
            is_known = seconds is not None and is_unchanged(file)
            (result,) = (
                ("ok",) if is_known else database.execute("pragma quick_check(1)").fetchone()
            )
    except NewerVersion as error:
        yield Problem.of(error)
        return
    except sqlite3.Error as error:
        is_interrupted = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
        result = "ok" if is_interrupted else str(error)
    if result != "ok":
        problem = storage_problem(
            f"{file} is damaged: {result}", file, damaged.format(file=quote(str(file)))
        )
        yield replace(problem, fix=name_fix(PUT_ASIDE, file)) if damaged == RECREATED else problem


# --- Fixes ----------------------------------------------------------------------------------------


def name_fix(kind: str, path: Path) -> str:
    """Return a fix identifier, for `Problem.fix`."""
    return f"{kind} {path}"


def apply_fix(fix: str) -> str:
    """Make a fix and return what was done. Raise a ToolError if it fails. Blocks on disk access."""
    kind, _, path = fix.partition(" ")
    if kind not in FIXES:
        raise ToolError(f"unknown fix {fix!r}")
    try:
        return FIXES[kind](Path(path))
    except OSError as error:
        raise ToolError(f"cannot fix {path}: {error.strerror or error}") from None


def _create_directory(path: Path) -> str:
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    return f"created {path}"


def _put_aside(path: Path) -> str:
    """Rename a damaged file that OneTool creates again. It is kept."""
    with exclusive(path):
        renamed = put_aside(path, time.time())
    return f"renamed {path} to {renamed}; OneTool creates a new one"


FIXES: Mapping[str, Callable[[Path], str]] = {
    CREATE_DIRECTORY: _create_directory,
    PUT_ASIDE: _put_aside,
}
