"""Bundles in PostgreSQL.

Each replica has a copy of the files, with the index that searches use, and follows the store.

A change is made in the copy, by the rules of `onetool.sources.bundles`, while the lock of the
database is held. It is committed to the database before it counts. If that fails, or the process
ends, the copy is compared with the database again.

Files are sealed values with the generation of the store as version. What was not sealed with the
key is not copied.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import local
from typing import NamedTuple

from onetool.errors import StorageError
from onetool.state.documents import DELETED, PUT, Documents
from onetool.state.keys import VARIABLE
from onetool.state.postgres_database import Database, Statements
from onetool.state.storage import BUILT_IN_STATES, BundleFiles, IndexedDirectory
from onetool.util import atomic
from onetool.util.problem import STORAGE, Problem
from onetool.util.text import quote

STATE = ".generation"  # the generation of the store that the copy has; missing if it may differ
KEY = ".key"  # of page tokens, which are valid on every replica
LOCK = "bundles"
KIND = "bundles"
GENERATION = "SELECT number FROM generations WHERE kind = 'bundles'"
STORED = "SELECT name, version, content FROM documents WHERE kind = 'bundles'"
CHANGED = f"{STORED} AND (version > ? OR name = ANY(?))"
PUT_KEY = "INSERT INTO documents VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
UNKNOWN_STATES = b"unknown"  # not valid, so that all built-in bundles are disabled
MAX_NAMED = 5


class CopyState(NamedTuple):
    """The generation that the copy has, and the files of which the database has rows that are not
    authentic.
    """

    generation: int
    rejected: list[str]


class BundleMirror(BundleFiles):
    """A copy of the files in the database. Reads never wait for a database that is away."""

    def __init__(self, root: Path, database: Database) -> None:
        super().__init__(root)
        self._database = database
        self._thread = local()
        self._documents = Documents(database, KIND)
        self._seen: int | None = None  # the number of changes up to which the copy is current

    def follow(self, directory: IndexedDirectory) -> None:
        """Bring the copy up to date, if the store has changed since it was last read."""
        if getattr(self._thread, "touched", None) is not None:
            return
        with suppress(StorageError):  # the copy is used while the database is away
            number = self._database.number(KIND)
            if number == self._seen:
                return
            rows = self._database.select(GENERATION)
            if self._read_state() != CopyState(int(rows[0][0]) if rows else 0, []):
                self._documents.load()
                with directory.holding(), self._database.transaction() as transaction:
                    transaction.lock(LOCK)
                    self._pull(transaction, directory)
            self._seen = number

    @contextmanager
    def writing(self, directory: IndexedDirectory) -> Iterator[None]:
        """Hold the locks of the copy and of the database, with a copy that is current.

        Commit at the end.
        """
        if getattr(self._thread, "touched", None) is not None:
            with directory.holding():
                yield
            return
        self._documents.load()
        with directory.holding(), self._database.transaction() as transaction:
            transaction.lock(LOCK)
            rejected = self._pull(transaction, directory)
            touched = self._thread.touched = set[str]()
            try:
                yield
                generation = self._push(transaction, touched) if touched else None
            finally:
                self._thread.touched = None
        if generation is not None:
            self._write_state(
                CopyState(generation, [path for path in rejected if path not in touched])
            )

    def record(self, _directory: IndexedDirectory, paths: list[str]) -> None:
        touched = getattr(self._thread, "touched", None)
        if touched is not None:
            touched.update(paths)
            (self.root / STATE).unlink(missing_ok=True)

    @property
    def problems(self) -> list[Problem]:
        state = self._read_state()
        if state is None or not state.rejected:
            return []
        names = [quote(path) for path in state.rejected[:MAX_NAMED]]
        if len(state.rejected) > MAX_NAMED:
            names.append(f"{len(state.rejected) - MAX_NAMED:,} more")
        message = (
            f"files of bundles in {self._database.place} are not used: changed without {VARIABLE}:"
            f" {', '.join(names)}"
        )
        hint = "store these bundles and tools again, or restore the database from a backup"
        return [Problem(message, hint, code=STORAGE)]

    # --- from the database ------------------------------------------------------------------------

    def _pull(self, transaction: Statements, directory: IndexedDirectory) -> list[str]:
        """Bring the copy up to date, and return the files whose rows are not authentic.

        They are not in the copy.
        """
        row = transaction.execute(GENERATION).fetchone()
        generation = int(row[0]) if row else 0
        state = self._read_state()
        if state == CopyState(generation, []):
            return []
        if state is None or state.generation > generation:
            sealed = self._documents.seal(KEY, generation, os.urandom(32).hex().encode())
            transaction.execute(PUT_KEY, (KIND, KEY, generation, sealed))
            contents, rejected = self._find_differences(transaction)
        else:
            contents, rejected = self._find_changes(transaction, state)
        if BUILT_IN_STATES in rejected:
            contents[BUILT_IN_STATES] = UNKNOWN_STATES
        self._apply(contents, directory)
        self._write_state(CopyState(generation, rejected))
        return rejected

    def _find_differences(self, transaction: Statements) -> tuple[dict[str, bytes], list[str]]:
        """Return the content of all files that differ from the copy, and the files whose rows are
        not authentic.
        """
        contents = dict.fromkeys(self._list_files(), DELETED)
        rejected = list[str]()
        missing = {BUILT_IN_STATES}
        for path, content in self._open_rows(transaction.execute(STORED)):
            missing.discard(path)
            if content is None:
                rejected.append(path)
            elif content == self._read(path):
                contents.pop(path, None)
            else:
                contents[path] = content
        return contents, sorted({*rejected, *missing})

    def _find_changes(
        self, transaction: Statements, state: CopyState
    ) -> tuple[dict[str, bytes], list[str]]:
        """Return the content of the files that were changed since the copy was made, as
        `_find_differences` does.
        """
        rows = dict(self._open_rows(transaction.execute(CHANGED, state)))
        rejected = {path for path, content in rows.items() if content is None}
        if BUILT_IN_STATES in state.rejected and BUILT_IN_STATES not in rows:
            rejected.add(BUILT_IN_STATES)
        contents = {path: content for path, content in rows.items() if content is not None}
        if rejected:  # the names of their rows may be anything
            contents.update(dict.fromkeys(rejected.intersection(self._list_files()), DELETED))
        return contents, sorted(rejected)

    def _open_rows(
        self, rows: Iterable[tuple[str, int, bytes]]
    ) -> Iterator[tuple[str, bytes | None]]:
        """Yield each file with its content; None if somebody without the key wrote the row."""
        for path, version, sealed in rows:
            try:
                yield path, self._documents.open(path, version, sealed)
            except StorageError:
                yield path, None

    def _list_files(self) -> list[str]:
        bundles = (
            file.relative_to(self.root).as_posix() for file in self.root.glob("[!.]*/*.json")
        )
        return [*bundles, *(name for name in (BUILT_IN_STATES, KEY) if (self.root / name).exists())]

    def _apply(self, contents: Mapping[str, bytes], directory: IndexedDirectory) -> None:
        (self.root / STATE).unlink(missing_ok=True)
        indexed = [path for path in contents if "/" in path]
        directory.begin_change()
        for path, content in contents.items():
            file = self.root / path
            if content != DELETED:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                atomic.write(file, content.decode())
            else:
                file.unlink(missing_ok=True)
                with suppress(OSError):  # other files are left
                    file.parent.rmdir()
        directory.index_files(indexed)
        if BUILT_IN_STATES in contents:
            directory.increment_version()

    # --- to the database --------------------------------------------------------------------------

    def _push(self, transaction: Statements, paths: set[str]) -> int:
        generation = transaction.announce(KIND)
        rows = [
            (KIND, path, generation, self._documents.seal(path, generation, self._read(path)))
            for path in sorted(paths)
        ]
        transaction.executemany(PUT, rows)
        return generation

    def _read(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return DELETED

    def _read_state(self) -> CopyState | None:
        try:
            data = json.loads((self.root / STATE).read_bytes())
            state = CopyState(int(data["generation"]), list(data["rejected"]))
            return state if data["store"] == self._database.place else None
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError):
            return None

    def _write_state(self, state: CopyState) -> None:
        atomic.write(
            self.root / STATE, json.dumps({"store": self._database.place, **state._asdict()})
        )
