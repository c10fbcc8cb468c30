"""Keys of sealed values: random, stored as rows that are encrypted with `ONETOOL_KEY`.

`ONETOOL_KEY` may have several keys, separated by commas: the first one seals, all of them open. So
a key is replaced by setting `new,old` on every replica, and later `new`.
"""

import os
from contextlib import suppress
from typing import NamedTuple

from onetool.errors import StorageError, ToolError
from onetool.state.documents import ALL, PUT, VALUES, describe_document
from onetool.state.postgres_database import Database, Statements
from onetool.state.sealing import KEY_BYTES, Sealer
from onetool.util.problem import STORAGE

VARIABLE = "ONETOOL_KEY"
GENERATE = f"export {VARIABLE}=$(openssl rand -hex {KEY_BYTES})"
BROWSER_SESSIONS = "browser sessions"


class RequiredDocument(NamedTuple):
    """A document that is stored with its key. Only somebody without the key can delete it."""

    key: str
    kind: str
    name: str
    initial: bytes


REQUIRED = (
    RequiredDocument(VALUES, "disabled", ALL, b"[]"),
    RequiredDocument(VALUES, "bundles", "builtins.json", b""),
    RequiredDocument(VALUES, "settings", "current", b'{"version": 1, "text": "", "secrets": ""}'),
    RequiredDocument(BROWSER_SESSIONS, "ended session", ALL, b"{}"),
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
        row = transaction.execute("SELECT sealed FROM keys WHERE name = ?", (name,)).fetchone()
        if row is None and name == VALUES:
            place = f"the key {name} of {database.place}"
            raise make_error(f"{place} is missing: what it sealed cannot be read")
        if row is None:
            return _create_key(transaction, outer[0], name)
        key, is_current = open_any(outer, row[0], about)
        if not is_current:
            sealed = outer[0].seal(key, about)
            transaction.execute("UPDATE keys SET sealed = ? WHERE name = ?", (sealed, name))
    return key


def missing_error(kind: str, name: str, place: str) -> StorageError | None:
    """Return the error if a missing document is required: it was deleted without the key."""
    if any((document.kind, document.name) == (kind, name) for document in REQUIRED):
        return make_error(f"{kind} {name} was deleted from {place} without {VARIABLE}")
    return None


def _create_key(transaction: Statements, outer: Sealer, name: str) -> bytes:
    """Store a new key, and the first documents that it seals."""
    key = os.urandom(KEY_BYTES)
    sealed_key = outer.seal(key, f"key {name}".encode())
    transaction.execute("INSERT INTO keys VALUES (?, ?)", (name, sealed_key))
    sealer = _make_sealer(key, name)
    for document in REQUIRED:
        if document.key == name:
            about = describe_document(document.kind, document.name, 0)
            sealed = sealer.seal(document.initial, about)
            transaction.execute(PUT, (document.kind, document.name, 0, sealed))
    return key


def parse_keys(text: str) -> list[bytes]:
    """Return the keys in the variable, the one that seals first."""
    keys = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        key = b""
        with suppress(ValueError):
            key = bytes.fromhex(part)
        if len(key) != KEY_BYTES:
            raise ToolError(
                f"invalid {VARIABLE}: expected {2 * KEY_BYTES} hexadecimal digits, or several such"
                " keys separated by commas",
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
    hint = (
        f"set {VARIABLE} to the value that the other replicas have, or restore the database from a"
        " backup"
    )
    return StorageError(message, hint=hint, code=STORAGE)
