"""What is kept on disk: whether each file is whole, and not of a newer OneTool. Nothing is changed.

The file of switches is not here: what disables every tool says so itself (`onetool.switches`).
"""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from onetool.bundles.source import folder_of, store_of
from onetool.config import trust
from onetool.config.load import Loaded
from onetool.errors import ToolError
from onetool.problem import Problem, storage_problem
from onetool.proxy import pins
from onetool.stats import record, shapes
from onetool.util.newer import Newer, refuse_newer

STEPS_BETWEEN_LOOKS = 10_000  # of SQLite, some milliseconds
BEGUN_ANEW = "type `onetool run 1`: a new one is begun, and this one is kept beside it"


class _Kept(NamedTuple):
    """A JSON file: the key that must be there, and what to do about a damaged one."""

    file: Path
    version: int
    key: str | None
    damaged: str


def problems(loaded: Loaded, seconds: float | None = None) -> list[Problem]:
    """Check each file; databases for as many seconds, because a large one takes long."""
    data = loaded.folders.data
    return [
        *_database(data / "stats" / "stats.db", record.VERSION, BEGUN_ANEW, seconds),
        *(found for kept in _files(loaded) for found in _json(kept)),
    ]


def stored_bundles(loaded: Loaded) -> list[Problem]:
    """Read all bundles again, which takes long where there are many."""
    store, folder = store_of(loaded), folder_of(loaded)
    try:
        store.rescan()
        problems = store.problems
    except ToolError as error:
        hint = error.hint or f"see that {folder} can be read and written"
        problems = [storage_problem(f"{folder}: {error.message}", folder, hint)]
    store.close()
    return problems


def _files(loaded: Loaded) -> Iterator[_Kept]:
    data, user = loaded.folders.data, loaded.folders.user
    yield _Kept(data / "stats" / "shapes.json", shapes.VERSION, "shapes", "type `rm {file}`: they are learnt anew")
    yield _Kept(data / "pins.json", pins.VERSION, None, "type `rm {file}`: what servers offer now is pinned then")
    yield _Kept(user / trust.STORE, trust.VERSION, None, "type `rm {file}`, then `onetool trust` in your projects")


def _json(kept: _Kept) -> Iterator[Problem]:
    try:
        data: Any = json.loads(kept.file.read_bytes())
        refuse_newer(data.get("version"), kept.version, kept.file)
        if kept.key is not None:
            data[kept.key]
    except FileNotFoundError:
        return
    except Newer as error:
        yield Problem.of(error)
    except OSError as error:
        hint = f"chmod u+rw {quote(str(kept.file))}"
        yield storage_problem(f"{kept.file} cannot be read: {error.strerror}", kept.file, hint)
    except (ValueError, AttributeError, KeyError, RecursionError):
        yield storage_problem(f"{kept.file} is damaged", kept.file, kept.damaged.format(file=quote(str(kept.file))))


def _database(file: Path, version: int, damaged: str, seconds: float | None) -> Iterator[Problem]:
    if not file.exists():
        return
    try:
        with closing(sqlite3.connect(record.database_uri(file, "ro"), uri=True, timeout=5)) as database:
            if seconds is not None:
                deadline = time.monotonic() + seconds
                database.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_LOOKS)
            refuse_newer(database.execute("pragma user_version").fetchone()[0], version, file)
            (verdict,) = database.execute("pragma quick_check(1)").fetchone()
    except Newer as error:
        yield Problem.of(error)
        return
    except sqlite3.Error as error:
        verdict = "ok" if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT else str(error)
    if verdict != "ok":
        yield storage_problem(f"{file} is damaged: {verdict}", file, damaged.format(file=quote(str(file))))
