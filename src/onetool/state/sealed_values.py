"""Sealed values by kind and name, such as credentials that replicas share. One replica at a time changes a value."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final

from onetool.state.changes import Changes
from onetool.state.keys import PUT_VALUE, REQUIRED, VALUES, VARIABLE, describe_value, load_sealer, make_error
from onetool.state.postgres_database import Database
from onetool.state.sealing import Sealer
from onetool.state.storage import CredentialKey

GET: Final = "SELECT version, sealed FROM sealed_values WHERE kind = ? AND name = ?"
DELETE: Final = "DELETE FROM sealed_values WHERE kind = ? AND name = ?"
NAMES: Final = "SELECT name FROM sealed_values WHERE kind = ? ORDER BY name"


class SealedValues:
    """The values of one kind. Methods block on the database.

    A value is bound to its name and version. Reading one that somebody without the key wrote, or deleted although it is
    required, raises StorageError.
    """

    def __init__(self, database: Database, kind: str, key: str = VALUES) -> None:
        self._database, self._kind, self._key = database, kind, key
        self._required = {value.name for value in REQUIRED if value.kind == kind}

    def get(self, name: str) -> bytes | None:
        self.load()
        rows = self._database.select(GET, self._kind, name)
        return self._open_row(name, rows[0] if rows else None)

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Change a value while its lock is held; None deletes it. `change` may take as long as a request."""

        def apply(values: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
            return {name: change(values[name])}

        return self.update_all([name], apply)[name]

    def update_all(
        self, names: Sequence[str], change: Callable[[Mapping[str, bytes | None]], dict[str, bytes | None]]
    ) -> dict[str, bytes | None]:
        """Change several values in one transaction, while the lock of the first one is held."""
        self.load()
        with self._database.transaction() as transaction:
            transaction.lock(f"{self._kind} {names[0]}")
            rows = {name: transaction.execute(GET, (self._kind, name)).fetchone() for name in names}
            values = change({name: self._open_row(name, row) for name, row in rows.items()})
            for name, value in values.items():
                row = rows[name]
                if value is None:
                    transaction.execute(DELETE, (self._kind, name))
                else:
                    version = 1 if row is None else row[0] + 1
                    transaction.execute(PUT_VALUE, (self._kind, name, version, self.seal(name, version, value)))
            transaction.announce(self._kind)
        return values

    def names(self) -> list[str]:
        return [name for (name,) in self._database.select(NAMES, self._kind)]

    def load(self) -> None:
        """Load the key, before a transaction that would wait for it, and before required values are read."""
        assert self._sealer is not None

    def seal(self, name: str, version: int, value: bytes) -> bytes:
        return self._sealer.seal(value, describe_value(self._kind, name, version))

    def open(self, name: str, version: int, sealed: bytes) -> bytes:
        return self._sealer.open(sealed, describe_value(self._kind, name, version))

    def _open_row(self, name: str, row: tuple[int, bytes] | None) -> bytes | None:
        if row is not None:
            return self.open(name, *row)
        if name in self._required:
            raise make_error(f"{self._kind} {name} was deleted from {self._database.place} without {VARIABLE}")
        return None

    @cached_property
    def _sealer(self) -> Sealer:
        return load_sealer(self._database, self._key)


class CredentialRows:
    """Credentials of sign-ins. Their keys are sealed too: the name of a row is a digest."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._values, self._changes = SealedValues(database, "credentials"), changes
        self._written = 0  # the number of changes made here, which are effective at once

    def version(self) -> object:
        return self._changes.number("credentials"), self._written

    def list_keys(self) -> list[CredentialKey]:
        found = (self._values.get(name) for name in self._values.names())
        return [CredentialKey(*json.loads(each)["key"]) for each in found if each is not None]

    def get(self, key: CredentialKey) -> str | None:
        found = self._values.get(_digest(key))
        return None if found is None else str(json.loads(found)["credential"])

    def update(self, key: CredentialKey, change: Callable[[str | None], str | None]) -> str | None:
        """Replace a credential, while no other replica can; None deletes it. Return the new one."""

        def apply(found: bytes | None) -> bytes | None:
            changed = change(None if found is None else str(json.loads(found)["credential"]))
            return None if changed is None else json.dumps({"key": key, "credential": changed}).encode()

        value = self._values.update(_digest(key), apply)
        self._written += 1
        return None if value is None else str(json.loads(value)["credential"])


def _digest(key: CredentialKey) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()
