"""Synchronization of the index with the files of the store: all files, or those that changed.

The files are authoritative. A file that cannot be read is recorded as a problem and left unchanged.
Everything except `find_differences` requires the lock of the store.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from shlex import quote
from threading import Event

from onetool.sources.bundles import filesystem
from onetool.sources.bundles.bundle_index import (
    bundle_names,
    changing,
    drop_bundle,
    drop_tool,
    write_bundle,
    write_tool,
)
from onetool.sources.bundles.filenames import BUNDLE_FILE, is_tool_file, parse_id, tool_file_names
from onetool.sources.bundles.filesystem import Stamp
from onetool.sources.bundles.records import BundleFile, ToolFile, Unreadable
from onetool.sources.bundles.rules import unavailable
from onetool.sources.search.index import index_rows
from onetool.util.problem import Problem, storage_problem

BATCH_FILES = 5_000  # files whose rows are committed together
STORE_FILES = {"builtins.json"}  # next to the directories of bundles


class IndexSync:
    def __init__(self, root: Path, batch_files: int = BATCH_FILES) -> None:
        self._root = root
        self._batch_files = batch_files
        self._known_words: set[str] = set()
        self._has_all_paths = False  # whether the tools of a new bundle are among the paths

    def update(self, database: sqlite3.Connection, paths: Iterable[str]) -> None:
        """Update the index from these files, in this order and in the caller's transaction.

        The paths are relative to the root of the store.
        """
        self._known_words = set()  # earlier writes may have been rolled back
        for path in paths:
            self._sync(database, path)
        index_rows(database)

    def update_all(self, database: sqlite3.Connection, closing: Event) -> None:
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

    def find_differences(self, database: sqlite3.Connection, closing: Event) -> list[str]:
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

    def _find_differences_in(self, database: sqlite3.Connection, directory: str) -> Iterator[str]:
        stamps = _read_known_stamps(database, directory)
        if not stamps:
            yield f"{directory}/{BUNDLE_FILE}"
        for name, stamp in _read_stamps(self._root / directory):
            if stamps.pop(name, None) != stamp:
                yield f"{directory}/{name}"
        yield from (f"{directory}/{name}" for name in stamps)

    def _sync(self, database: sqlite3.Connection, path: str) -> None:
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

    def _sync_bundle(self, database: sqlite3.Connection, directory: str) -> None:
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

    def _sync_tool(self, database: sqlite3.Connection, directory: str, name: str) -> None:
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


def _check_bundle(database: sqlite3.Connection, directory: str, file: BundleFile) -> None:
    others = "select folder from bundles where id = ? and folder <> ?"
    for (other,) in database.execute(others, (file.id, directory)):
        raise Unreadable(f"has the same ID as {other}")
    others = "select folder from bundles where slug = ? and folder <> ? and deleted_at is null"
    for (other,) in database.execute(others, (file.slug, directory)):
        if file.soft_deleted_at is None:
            raise Unreadable(
                f"has the slug {file.slug!r}, which {other} also has; change one of them"
            )


def _check_tool(database: sqlite3.Connection, bundle: str, file: ToolFile) -> None:
    pair = "select file from tools where bundle = ? and slug = ? and version = ?"
    for (other,) in database.execute(pair, (bundle, file.slug, file.version)):
        raise Unreadable(
            f"contains {file.slug}@{file.version}, which {other} also contains; delete one of them"
        )
    for (other,) in database.execute("select file from tools where id = ?", (file.id,)):
        raise Unreadable(f"has the same ID as {other}; give it another UUID of version 7")


def _read_known_stamps(database: sqlite3.Connection, directory: str) -> dict[str, Stamp]:
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


def _record_problem(database: sqlite3.Connection, path: str, problem: Unreadable) -> None:
    row = database.execute("select reason, hint from problems where path = ?", (path,)).fetchone()
    if row != (str(problem), problem.hint):
        database.execute(
            "insert or replace into problems values (?, ?, ?)", (path, str(problem), problem.hint)
        )


def list_problems(database: sqlite3.Connection, root: Path) -> list[Problem]:
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
    """Return whether the path is a directory and not a link, whose target would be outside the
    store.
    """
    return path.is_dir() and not path.is_symlink()


def sort_paths(paths: Iterable[str]) -> list[str]:
    """Return the paths with bundles before their tools."""
    return sorted(paths, key=lambda path: (not path.endswith(f"/{BUNDLE_FILE}"), path))


def _list_visible(directory: Path) -> set[str]:
    """Return the names in a directory, without hidden files: those of the system and of the store
    itself.
    """
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
