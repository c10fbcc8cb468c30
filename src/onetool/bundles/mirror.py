"""Keeps the index like the files: all of it when there is none, and single files when they have changed.

Files are the truth. Whatever cannot be used is noted as a problem with its file and its reason, and left alone.
Everything but `differences` is for who holds the lock of the store.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from threading import Event
from typing import TYPE_CHECKING, Final

from onetool.bundles import disk
from onetool.bundles.disk import Stamp
from onetool.bundles.filenames import BUNDLE_FILE, id_in, is_file_of, tool_files
from onetool.bundles.index import (
    Index,
    bundle_names,
    drop_bundle,
    drop_tool,
    index_rows,
    rewrite_texts,
    write_bundle,
    write_tool,
)
from onetool.bundles.records import BundleFile, ToolFile, Unreadable
from onetool.problem import Problem, storage_problem

if TYPE_CHECKING:
    from onetool.bundles.vault import MemoryIndex

OUR_FILES: Final = {"builtins.json"}  # that stand beside the folders of bundles


class Mirror:
    def __init__(self, root: Path, index: "Index | MemoryIndex") -> None:
        self._root, self._index = root, index
        self._familiar: set[str] = set()
        self._is_filling = False

    def fill(self, database: sqlite3.Connection) -> None:
        """Put all there is into an empty database. All of it is indexed at the end: that is many times as fast."""
        self._familiar, self._is_filling = set(), True
        try:
            for name in sorted(_visible(self._root)):
                self._sync(database, f"{name}/{BUNDLE_FILE}" if is_folder(self._root / name) else name)
        finally:  # what is not indexed cannot be dropped from the index
            index_rows(database)

    def sync(self, paths: Iterable[str]) -> None:
        """Make the index say of these files, which are named from the root of the store, what they say."""
        self._familiar, self._is_filling = set(), False  # whatever was written before may have been undone
        with self._index.writing() as database:
            for path in sorted(paths, key=lambda path: (not path.endswith(f"/{BUNDLE_FILE}"), path)):  # bundles first
                self._sync(database, path)

    def differences(self, closing: Event) -> list[str]:
        """The files of which the index knows something else than the disk, judged by time and size."""
        with self._index.reading() as database:
            found = [path for (path,) in database.execute("select path from problems")]
            gone = dict(database.execute("select folder, id from bundles").fetchall())
            for name in _visible(self._root) - OUR_FILES:
                if closing.is_set():
                    return []
                if is_folder(self._root / name):
                    gone.pop(name, None)
                    found += self._differences_in(database, name)
                else:
                    found.append(name)
            return found + [f"{folder}/{BUNDLE_FILE}" for folder in gone]

    # --- one folder --------------------------------------------------------------------------------------------

    def _differences_in(self, database: sqlite3.Connection, folder: str) -> Iterator[str]:
        known = _known_in(database, folder)
        if not known:
            yield f"{folder}/{BUNDLE_FILE}"
        for name, stamp in _stamps(self._root / folder):
            if known.pop(name, None) != stamp:
                yield f"{folder}/{name}"
        yield from (f"{folder}/{name}" for name in known)

    def _sync(self, database: sqlite3.Connection, path: str) -> None:
        folder, _, name = path.partition("/")
        written = path.encode("utf-8", "backslashreplace").decode()
        try:
            if not name or written != path:
                self._sync_stranger(path)
            elif name == BUNDLE_FILE:
                self._sync_bundle(database, folder)
            else:
                self._sync_tool(database, folder, name)
        except Unreadable as problem:
            _note(database, written, problem)
        else:
            database.execute("delete from problems where path = ?", (path,))

    def _sync_stranger(self, path: str) -> None:
        """A file beside the folders, or with a name that is no UTF-8."""
        if path not in OUR_FILES and os.path.lexists(self._root / path):
            raise Unreadable("is none of the store's files")

    # --- a bundle ----------------------------------------------------------------------------------------------

    def _sync_bundle(self, database: sqlite3.Connection, folder: str) -> None:
        known = database.execute("select id, mtime, size from bundles where folder = ?", (folder,)).fetchone()
        try:
            file, stamp = self._bundle_file(folder)
            if known and Stamp(*known[1:]) == stamp:
                return
            _check_bundle(database, folder, file)
        except (FileNotFoundError, Unreadable) as error:
            if known:
                drop_bundle(database, known[0])
            if isinstance(error, Unreadable):
                raise
            if _visible(self._root / folder):
                raise Unreadable("is missing, so that the folder is no bundle") from None
            span = f"{folder}/", f"{folder}0"  # 0 is what comes after /
            database.execute("delete from problems where path >= ? and path < ?", span)
            return  # it is empty: it was on its way in, or out
        names = bundle_names(database, known[0]) if known else None
        write_bundle(database, folder, file, stamp)
        if known and names != bundle_names(database, file.id):
            rewrite_texts(database, file.id)
        if not known:
            for name in sorted(_visible(self._root / folder) - {BUNDLE_FILE}):
                self._sync(database, f"{folder}/{name}")

    def _bundle_file(self, folder: str) -> tuple[BundleFile, Stamp]:
        if id_in(folder) is None or (self._root / folder).is_symlink():
            raise Unreadable("is no folder of a bundle; its name must end with - and the id of the bundle")
        content, stamp = disk.read(self._root / folder / BUNDLE_FILE)
        file = BundleFile.read(content)
        if file.id != id_in(folder):
            raise Unreadable(f"has the id {file.id}, and its folder is named after another")
        return file, stamp

    # --- a tool ------------------------------------------------------------------------------------------------

    def _sync_tool(self, database: sqlite3.Connection, folder: str, name: str) -> None:
        bundle = database.execute("select id from bundles where folder = ?", (folder,)).fetchone()
        if bundle is None:  # what is wrong with the bundle is said already
            return
        row = "select key, mtime, size from tools where bundle = ? and file = ?"
        known = database.execute(row, (bundle[0], name)).fetchone()
        try:
            content, stamp = disk.read(self._root / folder / name)
            if known and Stamp(*known[1:]) == stamp:
                return
            file = _tool_file(name, content)
        except (FileNotFoundError, Unreadable) as error:
            if known:
                drop_tool(database, known[0])
            if isinstance(error, Unreadable):
                raise
            return
        if known:
            drop_tool(database, known[0])
        _check_tool(database, bundle[0], file)
        key = write_tool(database, bundle[0], name, file, stamp, familiar=self._familiar)
        if not self._is_filling:
            index_rows(database, key, key)


def _tool_file(name: str, content: bytes) -> ToolFile:
    file = ToolFile.read(content)
    if not is_file_of(name, file.slug, file.version):
        raise Unreadable(
            f"holds {file.slug}@{file.version}, so it must be called {tool_files(file.slug, file.version)[0]}"
        )
    return file


def _check_bundle(database: sqlite3.Connection, folder: str, file: BundleFile) -> None:
    others = "select folder from bundles where id = ? and folder <> ?"
    for (other,) in database.execute(others, (file.id, folder)):
        raise Unreadable(f"has the same id as {other}")
    others = "select folder from bundles where slug = ? and folder <> ? and deleted_at is null"
    for (other,) in database.execute(others, (file.slug, folder)):
        if file.soft_deleted_at is None:
            raise Unreadable(f"has the slug {file.slug!r}, which {other} has too; change one of them")


def _check_tool(database: sqlite3.Connection, bundle: str, file: ToolFile) -> None:
    pair = "select file from tools where bundle = ? and slug = ? and version = ?"
    for (other,) in database.execute(pair, (bundle, file.slug, file.version)):
        raise Unreadable(f"holds {file.slug}@{file.version}, which {other} holds too; delete one of them")
    for (other,) in database.execute("select file from tools where id = ?", (file.id,)):
        raise Unreadable(f"has the same id as {other}; give it another UUID of version 7")


def _known_in(database: sqlite3.Connection, folder: str) -> dict[str, Stamp]:
    bundle = database.execute("select id, mtime, size from bundles where folder = ?", (folder,)).fetchone()
    if bundle is None:
        return {}
    rows = database.execute("select file, mtime, size from tools where bundle = ?", (bundle[0],))
    return {BUNDLE_FILE: Stamp(*bundle[1:]), **{name: Stamp(mtime, size) for name, mtime, size in rows}}


def _note(database: sqlite3.Connection, path: str, problem: Unreadable) -> None:
    known = database.execute("select reason, hint from problems where path = ?", (path,)).fetchone()
    if known != (str(problem), problem.hint):
        database.execute("insert or replace into problems values (?, ?, ?)", (path, str(problem), problem.hint))


def problems_in(database: sqlite3.Connection, root: Path) -> list[Problem]:
    """Return what is wrong with files, each with its file."""
    found = []
    for path, reason, hint in database.execute("select path, reason, hint from problems order by path"):
        file = root / path
        away = f"fix it, or move it away: `mv {quote(str(file))} ~`"
        found.append(storage_problem(f"{file}: {reason}", file, hint or away))
    return found


def is_folder(path: Path) -> bool:
    """A link to one is a stranger: what it leads to is not ours."""
    return path.is_dir() and not path.is_symlink()


def _visible(folder: Path) -> set[str]:
    """What is in a folder. Hidden files are those of the system's, and ours."""
    try:
        return {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}
    except OSError:
        return set()


def _stamps(folder: Path) -> Iterator[tuple[str, Stamp]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                with suppress(OSError):
                    yield entry.name, Stamp.of(entry.stat(follow_symlinks=False))
