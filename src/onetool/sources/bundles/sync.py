"""Synchronization of the index with the files of the store, and the built-in bundles.

The files are authoritative. A file that cannot be read is recorded as a problem and left unchanged.
Everything except `find_differences` requires the lock of the store.

Built-in bundles are a directory with the layout of the store, read into memory and never written.
They can only be enabled and disabled. The user's choices are kept in a file of the store, by ID,
and override the shipped defaults. Built-in bundles are queried in the same way as stored ones.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from shlex import quote
from sqlite3 import Connection
from threading import Event, RLock
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from onetool.sources.bundles import filesystem
from onetool.sources.bundles.bundle_index import (
    BundleIndex,
    bundle_names,
    changing,
    drop_bundle,
    drop_tool,
    write_bundle,
    write_tool,
)
from onetool.sources.bundles.filesystem import Stamp, read_stamp
from onetool.sources.bundles.model import camel_case
from onetool.sources.bundles.records import (
    SCHEMA_VERSION,
    BundleFile,
    ToolFile,
    Unreadable,
    check_version,
)
from onetool.sources.bundles.rules import (
    BUNDLE_FILE,
    is_tool_file,
    parse_id,
    tool_file_names,
    unavailable,
)
from onetool.sources.search.index import index_rows
from onetool.util.problem import Problem, storage_problem

BATCH_FILES = 5_000  # files whose rows are committed together
STORE_FILES = {"builtins.json"}  # next to the directories of bundles
T = TypeVar("T")


class IndexSync:
    def __init__(self, root: Path, batch_files: int = BATCH_FILES) -> None:
        self._root = root
        self._batch_files = batch_files
        self._known_words: set[str] = set()
        self._has_all_paths = False  # whether the tools of a new bundle are among the paths

    def update(self, database: Connection, paths: Iterable[str]) -> None:
        """Update the index from these files, in this order and in the caller's transaction.

        The paths are relative to the root of the store.
        """
        self._known_words = set()  # earlier writes may have been rolled back
        for path in paths:
            self._sync(database, path)
        index_rows(database)

    def update_all(self, database: Connection, closing: Event) -> None:
        """Update the index from all files, in batches.

        Each is kept if the process ends or `closing` is set.
        """
        paths = sort_paths(self.find_differences(database, closing))
        self._has_all_paths = True
        try:
            for start in range(0, len(paths), self._batch_files):
                batch = paths[start : start + self._batch_files]
                with changing(database):
                    self.update(database, takewhile(lambda _path: not closing.is_set(), batch))
        finally:
            self._has_all_paths = False
        if closing.is_set():
            raise unavailable("it was closed while its index was being built")

    def find_differences(self, database: Connection, closing: Event) -> list[str]:
        """Return the files whose time or size differs between the index and the disk."""
        paths = [path for (path,) in database.execute("select path from problems")]
        missing = dict(database.execute("select folder, id from bundles").fetchall())
        for name in _list_visible(self._root) - STORE_FILES:
            if closing.is_set():
                return []
            if is_directory(self._root / name):
                missing.pop(name, None)
                paths += self._find_differences_in(database, name)
            else:
                paths.append(name)
        return paths + [f"{directory}/{BUNDLE_FILE}" for directory in missing]

    # --- one directory ----------------------------------------------------------------------------

    def _find_differences_in(self, database: Connection, directory: str) -> Iterator[str]:
        stamps = _read_known_stamps(database, directory)
        if not stamps:
            yield f"{directory}/{BUNDLE_FILE}"
        for name, stamp in _read_stamps(self._root / directory):
            if stamps.pop(name, None) != stamp:
                yield f"{directory}/{name}"
        yield from (f"{directory}/{name}" for name in stamps)

    def _sync(self, database: Connection, path: str) -> None:
        directory, _, name = path.partition("/")
        printable = path.encode("utf-8", "backslashreplace").decode()
        try:
            if not name or printable != path:
                self._report_foreign_file(path)
            elif name == BUNDLE_FILE:
                self._sync_bundle(database, directory)
            else:
                self._sync_tool(database, directory, name)
        except Unreadable as problem:
            _record_problem(database, printable, problem)
        else:
            database.execute("delete from problems where path = ?", (path,))

    def _report_foreign_file(self, path: str) -> None:
        """Report a file next to the directories of bundles, or with a name that is not UTF-8."""
        if path not in STORE_FILES and os.path.lexists(self._root / path):
            raise Unreadable("is not a file of the store")

    # --- a bundle ---------------------------------------------------------------------------------

    def _sync_bundle(self, database: Connection, directory: str) -> None:
        row = database.execute(
            "select id, mtime, size from bundles where folder = ?", (directory,)
        ).fetchone()
        try:
            file, stamp = self._read_bundle_file(directory)
            if row and Stamp(*row[1:]) == stamp:
                return
            _check_bundle(database, directory, file)
        except (FileNotFoundError, Unreadable) as error:
            if row:
                drop_bundle(database, row[0])
            if isinstance(error, Unreadable):
                raise
            if _list_visible(self._root / directory):
                raise Unreadable("is missing, so the directory is not a bundle") from None
            span = f"{directory}/", f"{directory}0"  # "0" follows "/" in ASCII
            database.execute("delete from problems where path >= ? and path < ?", span)
            return  # it is empty: it was being created or deleted
        is_renamed = row is not None and bundle_names(database, row[0]) != (
            file.slug,
            file.display_name,
        )
        if is_renamed:  # its tools are found by its names too
            drop_bundle(database, row[0])
        write_bundle(database, directory, file, stamp)
        if is_renamed or (row is None and not self._has_all_paths):
            for name in sorted(_list_visible(self._root / directory) - {BUNDLE_FILE}):
                self._sync(database, f"{directory}/{name}")

    def _read_bundle_file(self, directory: str) -> tuple[BundleFile, Stamp]:
        if parse_id(directory) is None or (self._root / directory).is_symlink():
            raise Unreadable(
                "is not in a bundle directory, whose name ends with - and the bundle ID"
            )
        content, stamp = filesystem.read(self._root / directory / BUNDLE_FILE)
        file = BundleFile.read(content)
        if file.id != parse_id(directory):
            raise Unreadable(f"has the ID {file.id}, but the name of its directory has another")
        return file, stamp

    # --- a tool -----------------------------------------------------------------------------------

    def _sync_tool(self, database: Connection, directory: str, name: str) -> None:
        bundle = database.execute(
            "select id from bundles where folder = ?", (directory,)
        ).fetchone()
        if bundle is None:  # the problem of the bundle is reported already
            return
        query = "select key, mtime, size from tools where bundle = ? and file = ?"
        indexed = database.execute(query, (bundle[0], name)).fetchone()
        try:
            content, stamp = filesystem.read(self._root / directory / name)
            if indexed and Stamp(*indexed[1:]) == stamp:
                return
            file = _parse_tool_file(name, content)
        except (FileNotFoundError, Unreadable) as error:
            if indexed:
                drop_tool(database, indexed[0])
            if isinstance(error, Unreadable):
                raise
            return
        if indexed:
            drop_tool(database, indexed[0])
        _check_tool(database, bundle[0], file)
        write_tool(database, bundle[0], name, file, stamp, known_words=self._known_words)


def _parse_tool_file(name: str, content: bytes) -> ToolFile:
    file = ToolFile.read(content)
    if not is_tool_file(name, file.slug, file.version):
        raise Unreadable(
            f"contains {file.slug}@{file.version}, so it must be named"
            f" {tool_file_names(file.slug, file.version)[0]}"
        )
    return file


def _check_bundle(database: Connection, directory: str, file: BundleFile) -> None:
    others = "select folder from bundles where id = ? and folder <> ?"
    for (other,) in database.execute(others, (file.id, directory)):
        raise Unreadable(f"has the same ID as {other}")
    others = "select folder from bundles where slug = ? and folder <> ? and deleted_at is null"
    for (other,) in database.execute(others, (file.slug, directory)):
        if file.soft_deleted_at is None:
            raise Unreadable(
                f"has the slug {file.slug!r}, which {other} also has; change one of them"
            )


def _check_tool(database: Connection, bundle: str, file: ToolFile) -> None:
    pair = "select file from tools where bundle = ? and slug = ? and version = ?"
    for (other,) in database.execute(pair, (bundle, file.slug, file.version)):
        raise Unreadable(
            f"contains {file.slug}@{file.version}, which {other} also contains; delete one of them"
        )
    for (other,) in database.execute("select file from tools where id = ?", (file.id,)):
        raise Unreadable(f"has the same ID as {other}; give it another UUID of version 7")


def _read_known_stamps(database: Connection, directory: str) -> dict[str, Stamp]:
    bundle = database.execute(
        "select id, mtime, size from bundles where folder = ?", (directory,)
    ).fetchone()
    if bundle is None:
        return {}
    rows = database.execute("select file, mtime, size from tools where bundle = ?", (bundle[0],))
    return {
        BUNDLE_FILE: Stamp(*bundle[1:]),
        **{name: Stamp(mtime, size) for name, mtime, size in rows},
    }


def _record_problem(database: Connection, path: str, problem: Unreadable) -> None:
    row = database.execute("select reason, hint from problems where path = ?", (path,)).fetchone()
    if row != (str(problem), problem.hint):
        database.execute(
            "insert or replace into problems values (?, ?, ?)", (path, str(problem), problem.hint)
        )


def list_problems(database: Connection, root: Path) -> list[Problem]:
    """Return the problems of files, each with its file."""
    problems = []
    for path, reason, hint in database.execute(
        "select path, reason, hint from problems order by path"
    ):
        file = root / path
        default_hint = f"fix it, or move it away: `mv {quote(str(file))} ~`"
        problems.append(storage_problem(f"{file}: {reason}", file, hint or default_hint))
    return problems


def is_directory(path: Path) -> bool:
    """Return whether the path is a directory and not a link, which could leave the store."""
    return path.is_dir() and not path.is_symlink()


def sort_paths(paths: Iterable[str]) -> list[str]:
    """Return the paths with bundles before their tools."""
    return sorted(paths, key=lambda path: (not path.endswith(f"/{BUNDLE_FILE}"), path))


def _list_visible(directory: Path) -> set[str]:
    """Return the names in a directory, without the hidden files of the system and the store."""
    try:
        return {entry.name for entry in directory.iterdir() if not entry.name.startswith(".")}
    except OSError:
        return set()


def _read_stamps(directory: Path) -> Iterator[tuple[str, Stamp]]:
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                with suppress(OSError):
                    yield entry.name, Stamp.of(entry.stat(follow_symlinks=False))


# --- built-in bundles -----------------------------------------------------------------------------


class BuiltInStates(BaseModel):
    """Enabled states that the user changed, by ID."""

    model_config = camel_case
    schema_version: int = SCHEMA_VERSION
    bundles: dict[str, bool] = Field(default_factory=dict)
    tools: dict[str, bool] = Field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "BuiltInStates":
        try:
            data = json.loads(filesystem.read(file)[0])
            check_version(data)
            return cls.model_validate(data)
        except FileNotFoundError:
            return cls()
        except (ValueError, RecursionError, ValidationError) as error:
            raise Unreadable(f"is not valid: {error}") from None

    def text(self) -> bytes:
        return (json.dumps(self.model_dump(by_alias=True), indent=2) + "\n").encode()


class BuiltIns:
    def __init__(self, directory: Path | None, states: Path) -> None:
        self._directory = directory
        self._states_file = states
        self._index = BundleIndex()
        self._lock = RLock()
        self._stamp: Stamp | None = None
        self._problem: Problem | None = None

    @property
    def problems(self) -> list[Problem]:
        problems = self.read(lambda database: list_problems(database, self._directory or Path()))
        return problems + ([self._problem] if self._problem else [])

    def read(self, work: Callable[[Connection], T]) -> T:
        if self._directory is None:
            with self._index.connection() as database:
                return work(database)
        with self._lock:
            stamp = read_stamp(self._states_file)
            if stamp != self._stamp:
                self._index.close()
                self._stamp = stamp
            is_loaded = self._index.is_ready
            with self._index.connection() as database:
                if not is_loaded:
                    database.execute("update meta set value = 1 where name = 'built_in'")
                    IndexSync(self._directory).update_all(database, Event())
                    self._apply_states(database)
                return work(database)

    def render_states(self, table: str, item_id: str, *, enabled: bool) -> bytes:
        """Return the content of the file with this state changed."""
        try:
            states = BuiltInStates.read(self._states_file)
        except Unreadable as error:
            raise unavailable(f"{self._states_file} {error}; fix it or delete it") from None
        getattr(states, table)[item_id] = enabled
        return states.text()

    def close(self) -> None:
        self._index.close()

    def _apply_states(self, database: Connection) -> None:
        self._problem = None
        try:
            states = BuiltInStates.read(self._states_file)
        except Unreadable as error:
            message = f"all built-in bundles are disabled: {self._states_file} {error}"
            self._problem = storage_problem(message, self._states_file, "fix it or delete it")
            database.execute(
                "update bundles set enabled = 0, body = json_set(body, '$.isEnabled',"
                " json('false'))"
            )
            return
        change = (
            "update {} set enabled = ?, body = json_set(body, '$.isEnabled', json(?)) where id = ?"
        )
        for table in ("bundles", "tools"):
            changes = getattr(states, table).items()
            rows = (
                (enabled, "true" if enabled else "false", item_id) for item_id, enabled in changes
            )
            database.executemany(change.format(table), rows)
