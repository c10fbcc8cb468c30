"""Bundles that come with the program: a folder like the store's own, read into memory and never written.

Only their switches can be changed. What a person chose stands in a file of the store, by id, over what the program
ships. They are asked in the same way as the store's own.
"""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

from pydantic import BaseModel, Field, ValidationError

from onetool.bundles import disk
from onetool.bundles.disk import Stamp, stamp_of
from onetool.bundles.index import Index, create, opened
from onetool.bundles.mirror import Mirror, problems_in
from onetool.bundles.model import camel_case
from onetool.bundles.records import SCHEMA_VERSION, Unreadable, check_version
from onetool.bundles.rules import unusable
from onetool.problem import Problem, storage_problem

T = TypeVar("T")
SWITCHES: Final = "builtins.json"


class Switches(BaseModel):
    """On or off, by id, for whatever was ever switched."""

    model_config = camel_case
    schema_version: int = SCHEMA_VERSION
    bundles: dict[str, bool] = Field(default_factory=dict)
    tools: dict[str, bool] = Field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "Switches":
        try:
            data = json.loads(disk.read(file)[0])
            check_version(data)
            return cls.model_validate(data)
        except FileNotFoundError:
            return cls()
        except (ValueError, RecursionError, ValidationError) as error:
            raise Unreadable(f"is no file of switches: {error}") from None

    def text(self) -> bytes:
        return (json.dumps(self.model_dump(by_alias=True), indent=2) + "\n").encode()


class BuiltIns:
    def __init__(self, folder: Path | None, switches: Path) -> None:
        self._folder, self._switches_file = folder, switches
        self._database: sqlite3.Connection | None = None
        self._stamp: Stamp | None = None
        self._lock = Lock()
        self._problem: Problem | None = None

    @property
    def problems(self) -> list[Problem]:
        found = self.read(lambda database: problems_in(database, self._folder or Path()))
        return found + ([self._problem] if self._problem else [])

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            stamp = stamp_of(self._switches_file) if self._folder else None
            if self._database is None or stamp != self._stamp:
                self._load(stamp)
            assert self._database is not None
            return work(self._database)

    def switched(self, table: str, ident: str, *, on: bool) -> bytes:
        """The file of switches with this one set."""
        try:
            switches = Switches.read(self._switches_file)
        except Unreadable as error:
            raise unusable(f"{self._switches_file} {error}; mend it or delete it") from None
        getattr(switches, table)[ident] = on
        return switches.text()

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
            self._database = None

    def _load(self, stamp: Stamp | None) -> None:
        if self._database is not None:
            self._database.close()
        self._database, self._stamp = opened(":memory:"), stamp
        create(self._database)
        if self._folder is not None:
            Mirror(self._folder, Index(self._folder)).fill(self._database)
            self._apply(self._database)

    def _apply(self, database: sqlite3.Connection) -> None:
        self._problem = None
        try:
            switches = Switches.read(self._switches_file)
        except Unreadable as error:
            message = f"all built-in bundles are disabled: {self._switches_file} {error}"
            self._problem = storage_problem(message, self._switches_file, "fix it or delete it")
            database.execute("update bundles set enabled = 0, body = json_set(body, '$.isEnabled', json('false'))")
            return
        change = "update {} set enabled = ?, body = json_set(body, '$.isEnabled', json(?)) where id = ?"
        for table in ("bundles", "tools"):
            chosen = getattr(switches, table).items()
            rows = ((on, "true" if on else "false", ident) for ident, on in chosen)
            database.executemany(change.format(table), rows)
