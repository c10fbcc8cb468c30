"""Keys of sealed values: random, stored as rows that are encrypted with `ONETOOL_KEY`.

`ONETOOL_KEY` may have several keys, separated by commas: the first one seals, all of them open. So a key is replaced by
setting `new,old` on every replica, and later `new`.
"""

import os
from contextlib import suppress
from typing import Final, NamedTuple

from onetool.errors import StorageError, ToolError
from onetool.state.postgres_database import Database, Statements
from onetool.state.sealing import KEY_BYTES, Sealer
from onetool.util.problem import STORAGE

VARIABLE: Final = "ONETOOL_KEY"
GENERATE: Final = f"export {VARIABLE}=$(openssl rand -hex {KEY_BYTES})"
VALUES: Final = "values"  # the key of most values, the first one of each database
BROWSER_SESSIONS: Final = "browser sessions"
ALL: Final = "all"  # the name of the only value of a kind
PUT_VALUE: Final = """
INSERT INTO sealed_values VALUES (?, ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET version = excluded.version, sealed = excluded.sealed
"""


class RequiredValue(NamedTuple):
    """A value that is stored together with its key, so that a missing one was deleted by somebody without the key."""

    key: str
    kind: str
    name: str
    initial: bytes


REQUIRED: Final = (
    RequiredValue(VALUES, "disabled", ALL, b"[]"),
    RequiredValue(VALUES, "bundles", "builtins.json", b""),
    RequiredValue(VALUES, "settings", "current", b'{"version": 1, "text": "", "secrets": ""}'),
    RequiredValue(BROWSER_SESSIONS, "ended session", ALL, b"{}"),
)


def load_sealer(database: Database, name: str) -> Sealer:
    """Return the sealer with the key of this name."""
    return _make_sealer(load_key(database, name), f"the key {name} of {database.place}")


def load_key(database: Database, name: str) -> bytes:
    """Return the key of this name, which is created once."""
    outer = [_make_sealer(key, VARIABLE) for key in parse_keys(database.key)]
    about = f"key {name}".encode()
    with database.transaction() as transaction:
        transaction.lock("keys")
        if transaction.execute("SELECT 1 FROM keys").fetchone() is None:
            _create_key(transaction, outer[0], VALUES)
        found = transaction.execute("SELECT sealed FROM keys WHERE name = ?", (name,)).fetchone()
        if found is None and name == VALUES:
            raise make_error(f"the key {name} of {database.place} is missing: what it sealed cannot be read")
        if found is None:
            return _create_key(transaction, outer[0], name)
        key, is_current = open_any(outer, found[0], about)
        if not is_current:
            transaction.execute("UPDATE keys SET sealed = ? WHERE name = ?", (outer[0].seal(key, about), name))
    return key


def _create_key(transaction: Statements, outer: Sealer, name: str) -> bytes:
    """Store a new key, and the first values that it seals."""
    key = os.urandom(KEY_BYTES)
    transaction.execute("INSERT INTO keys VALUES (?, ?)", (name, outer.seal(key, f"key {name}".encode())))
    sealer = _make_sealer(key, name)
    for value in REQUIRED:
        if value.key == name:
            sealed = sealer.seal(value.initial, describe_value(value.kind, value.name, 1))
            transaction.execute(PUT_VALUE, (value.kind, value.name, 1, sealed))
    return key


def describe_value(kind: str, name: str, version: int) -> bytes:
    """Return what a sealed value is bound to."""
    return f"{kind} {name} (version {version})".encode()


def parse_keys(text: str) -> list[bytes]:
    """Return the keys in the variable, the one that seals first."""
    keys = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        key = b""
        with suppress(ValueError):
            key = bytes.fromhex(part)
        if len(key) != KEY_BYTES:
            raise ToolError(
                f"invalid {VARIABLE}: expected {2 * KEY_BYTES} hexadecimal digits, or several such keys separated by "
                "commas",
                hint=f"`{GENERATE}` sets a new one",
            )
        keys.append(key)
    if not keys:
        raise ToolError(
            f"{VARIABLE} is not set: state in PostgreSQL is sealed with it",
            hint=f"set it to the same value on every replica; `{GENERATE}` creates one",
        )
    return keys


def open_any(sealers: list[Sealer], sealed: bytes, about: bytes) -> tuple[bytes, bool]:
    """Return the value, and whether the first sealer sealed it."""
    for sealer in sealers[1:]:
        with suppress(StorageError):
            return sealer.open(sealed, about), False
    return sealers[0].open(sealed, about), True


def _make_sealer(key: bytes, name: str) -> Sealer:
    return Sealer(key, name, make_error)


def make_error(message: str) -> StorageError:
    hint = f"set {VARIABLE} to the value that the other replicas have, or restore the database from a backup"
    return StorageError(message, hint=hint, code=STORAGE)
