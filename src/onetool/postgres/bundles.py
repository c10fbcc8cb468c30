"""Bundles in PostgreSQL. Each replica has a copy of the files, with the index that searches use, and follows the store.

A change is made in the copy, by the rules of `onetool.bundles`, while the lock of the database is held. It is committed
to the database before it counts. If that fails, or the process ends, the copy is compared with the database again.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import md5
from pathlib import Path
from typing import Any, Final, TypeVar

from onetool.bundles.builtins import STATES_FILE
from onetool.bundles.bundle_storage import BundleDirectory
from onetool.bundles.store_lock import WriteJournal
from onetool.errors import StorageError
from onetool.postgres.changes import Changes
from onetool.postgres.database import Database, Statements
from onetool.util import atomic

T = TypeVar("T")
STATE: Final = ".generation"  # the generation of the store that the copy has; missing if it may differ
KEY: Final = ".key"  # of page tokens, which are valid on every replica
LOCK: Final = "bundles"
KIND: Final = "bundles"
GENERATION: Final = "SELECT number FROM generations WHERE kind = 'bundles'"
CHANGED: Final = "SELECT path, content FROM bundle_files WHERE version > ?"
DIGESTS: Final = "SELECT path, md5(content) FROM bundle_files WHERE content IS NOT NULL"
CONTENTS: Final = "SELECT path, content FROM bundle_files WHERE path = ANY(?)"
PUT: Final = """
INSERT INTO bundle_files VALUES (?, ?, ?)
ON CONFLICT (path) DO UPDATE SET version = excluded.version, content = excluded.content
"""
PUT_KEY: Final = "INSERT INTO bundle_files VALUES (?, ?, ?) ON CONFLICT DO NOTHING"


class BundleMirror(BundleDirectory):
    """A copy of the files in the database. Reads never wait for a database that is away."""

    def __init__(self, root: Path, *, database: Database, changes: Changes, **options: Any) -> None:
        super().__init__(root, **options)
        self._database, self._changes = database, changes
        self._seen: int | None = None  # the number of changes up to which the copy is current

    def read(self, work: Callable[[Any], T]) -> T:
        if getattr(self._thread, "touched", None) is None:
            with suppress(StorageError):  # the copy is used while the database is away
                self._follow()
        return super().read(work)

    @contextmanager
    def writing(self) -> Iterator[WriteJournal]:
        """Hold the locks of the copy and of the database, with a copy that is current. Commit at the end."""
        if getattr(self._thread, "touched", None) is not None:
            with super().writing() as journal:
                yield journal
            return
        with super().writing() as journal, self._database.transaction() as transaction:
            transaction.lock(LOCK)
            self._pull(transaction, journal)
            touched = self._thread.touched = set[str]()
            try:
                yield journal
                generation = self._push(transaction, touched) if touched else None
            finally:
                self._thread.touched = None
        if generation is not None:
            self._write_state(generation)

    def sync(self, journal: WriteJournal, paths: list[str]) -> None:
        touched = getattr(self._thread, "touched", None)
        if touched is not None:
            touched.update(paths)
            (self.root / STATE).unlink(missing_ok=True)
        super().sync(journal, paths)

    # --- from the database ------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Bring the copy up to date, if the store has changed since it was last read."""
        number = self._changes.number(KIND)
        if number == self._seen:
            return
        rows = self._database.select(GENERATION)
        if self._read_state() != (int(rows[0][0]) if rows else 0):
            with super().writing() as journal, self._database.transaction() as transaction:
                transaction.lock(LOCK)
                self._pull(transaction, journal)
        self._seen = number

    def _pull(self, transaction: Statements, journal: WriteJournal) -> None:
        found = transaction.execute(GENERATION).fetchone()
        generation, known = int(found[0]) if found else 0, self._read_state()
        if known == generation:
            return
        if known is None or known > generation:
            transaction.execute(PUT_KEY, (KEY, generation, os.urandom(32).hex().encode()))
            contents = self._find_differences(transaction)
        else:
            contents = dict(transaction.execute(CHANGED, (known,)).fetchall())
        self._apply(journal, contents)
        self._write_state(generation)

    def _find_differences(self, transaction: Statements) -> dict[str, bytes | None]:
        """Return the content of all files that differ from the copy; None for those that do not exist."""
        stored = dict(transaction.execute(DIGESTS).fetchall())
        local = {path: md5((self.root / path).read_bytes()).hexdigest() for path in self._list_files()}  # noqa: S324
        different = [path for path, digest in stored.items() if local.get(path) != digest]
        contents: dict[str, bytes | None] = dict.fromkeys(local.keys() - stored.keys())
        contents.update(transaction.execute(CONTENTS, (different,)).fetchall())
        return contents

    def _list_files(self) -> list[str]:
        bundles = (file.relative_to(self.root).as_posix() for file in self.root.glob("[!.]*/*.json"))
        return [*bundles, *(name for name in (STATES_FILE, KEY) if (self.root / name).exists())]

    def _apply(self, journal: WriteJournal, contents: Mapping[str, bytes | None]) -> None:
        (self.root / STATE).unlink(missing_ok=True)
        indexed = [path for path in contents if "/" in path]
        journal.begin(indexed)
        for path, content in contents.items():
            file = self.root / path
            if content is not None:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                atomic.write(file, content.decode())
            else:
                file.unlink(missing_ok=True)
                with suppress(OSError):  # other files are left
                    file.parent.rmdir()
        super().sync(journal, indexed)
        if STATES_FILE in contents:
            self.increment_version()

    # --- to the database --------------------------------------------------------------------------------------------

    def _push(self, transaction: Statements, paths: set[str]) -> int:
        generation = transaction.announce(KIND)
        transaction.executemany(PUT, [(path, generation, self._read(path)) for path in sorted(paths)])
        return generation

    def _read(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def _read_state(self) -> int | None:
        try:
            state = json.loads((self.root / STATE).read_bytes())
            return int(state["generation"]) if state["store"] == self._database.place else None
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError):
            return None

    def _write_state(self, generation: int) -> None:
        state = {"store": self._database.place, "generation": generation}
        atomic.write(self.root / STATE, json.dumps(state))
