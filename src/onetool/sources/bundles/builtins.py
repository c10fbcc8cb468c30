"""Built-in bundles: a directory with the layout of the store, read into memory and never written.

They can only be enabled and disabled. The user's choices are kept in a file of the store, by ID,
and override the shipped defaults. Built-in bundles are queried in the same way as stored ones.
"""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Event, RLock
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from onetool.sources.bundles import filesystem
from onetool.sources.bundles.bundle_index import BundleIndex
from onetool.sources.bundles.filesystem import Stamp, read_stamp
from onetool.sources.bundles.model import camel_case
from onetool.sources.bundles.records import SCHEMA_VERSION, Unreadable, check_version
from onetool.sources.bundles.rules import unavailable
from onetool.sources.bundles.sync import IndexSync, list_problems
from onetool.util.problem import Problem, storage_problem

T = TypeVar("T")


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

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
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

    def _apply_states(self, database: sqlite3.Connection) -> None:
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
