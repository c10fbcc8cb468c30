"""Checks of stored files: whether each is intact and not written by a newer OneTool.

Nothing is changed.
"""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from onetool.errors import ToolError
from onetool.settings import trust
from onetool.settings.contents import TRUST_FILE
from onetool.settings.load import Loaded
from onetool.sources.bundles.source import bundles_directory, open_store
from onetool.sources.checks.disk import PUT_ASIDE, name_fix
from onetool.state import documents, run_store, session_store
from onetool.state.credentials import CredentialFile
from onetool.state.documents import DocumentFile
from onetool.state.opening import open_files
from onetool.state.session_store import SessionStore
from onetool.state.sqlite_database import SealedDatabase, database_uri
from onetool.state.stats.database import VERSION as STATISTICS_VERSION
from onetool.util.background import is_unchanged
from onetool.util.problem import NewerVersion, Problem, check_tables, check_version, storage_problem

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


def problems(loaded: Loaded, seconds: float | None = None) -> list[Problem]:
    """Check each file; limit the check of a database to `seconds`, because a large one takes long."""
    data = loaded.directories.data
    private = loaded.directories.private
    runs = SealedDatabase(private / "runs" / "runs.db", run_store.SCHEMA, run_store.VERSION)
    places = dict.fromkeys((data, private, loaded.directories.user))
    files = [DocumentFile(place).file for place in places]
    return [
        *(
            found
            for file in files
            for found in _check_database(file, documents.VERSION, LOST_DOCUMENTS, seconds)
        ),
        *_check_database(data / "stats" / "stats.db", STATISTICS_VERSION, RECREATED, seconds),
        *_check_sealed(runs, run_store.VERSION, LOST_RUNS, seconds),
        *_check_sealed(
            SessionStore(private).database, session_store.VERSION, LOST_SESSIONS, seconds
        ),
        *_check_sealed(
            CredentialFile(loaded.directories.user), documents.VERSION, LOST_SIGN_INS, seconds
        ),
        *_check_trust(loaded.directories.user / TRUST_FILE),
    ]


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
        result = (
            "ok"
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
            else str(error)
        )
    if result != "ok":
        problem = storage_problem(
            f"{file} is damaged: {result}", file, damaged.format(file=quote(str(file)))
        )
        yield replace(problem, fix=name_fix(PUT_ASIDE, file)) if damaged == RECREATED else problem
