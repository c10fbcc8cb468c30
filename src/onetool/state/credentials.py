"""Credentials of sign-ins, in sealed documents that are named by the digests of their keys.

In files, their key comes from the keyring of the operating system if the extra `keyring` is
installed and there is one, otherwise from a file beside the database.
"""

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from sqlite3 import Connection, Cursor
from typing import Any, NamedTuple

from onetool.state.documents import PUT, SCHEMA, VERSION, Documents
from onetool.state.sealing import KEY_BYTES, Sealer, sealing_error
from onetool.state.sqlite_database import SealedDatabase, StateDatabase
from onetool.util.atomic import locked

KIND = "credentials"
DIRECTORY = "credentials"
FILE = "credentials.db"
SERVICE = "onetool"  # the name of the key in a keyring
PROBE = "probe"  # the kind of a document that is written to test the disk
PROBE_BYTES = 8_192  # more than a credential usually has


class CredentialKey(NamedTuple):
    """The identity of a sign-in: its resource, account and agent.

    Another sign-in with the same key replaces it.

    Bundles, clients and grants never share one, because each may have other rights.
    """

    resource: str
    account: str = ""
    subject: str = ""  # the agent; empty for a sign-in that all agents share
    bundle: str = ""  # whose tools use it; empty for an upstream server
    client: str = ""  # in the settings; empty for a client that registered itself
    grant: str = ""

    @property
    def target(self) -> tuple[str, str, str, str]:
        """The key without the person."""
        return (self.resource, self.bundle, self.client, self.grant)


class CredentialStore:
    """Credentials as text, encrypted at rest, also their keys."""

    def __init__(self, database: StateDatabase) -> None:
        self.documents = Documents(database, KIND)
        self._database = database

    def version(self) -> object:
        """Return a value that changes when any process has written. Takes microseconds."""
        return self._database.number(KIND)

    def list_keys(self) -> list[CredentialKey]:
        return [CredentialKey(*document["key"]) for document in self.documents.get_all().values()]

    def get(self, key: CredentialKey) -> str | None:
        return _get_credential(self.documents.get(_digest(key)))

    def update(self, key: CredentialKey, change: Callable[[str | None], str | None]) -> str | None:
        """Replace a credential, while no other process can; None deletes it. Return the new one.

        `change` may take seconds. A database that cannot be written raises before it is called.
        """

        def apply(document: Any) -> Any:
            credential = change(_get_credential(document))
            return None if credential is None else {"key": key, "credential": credential}

        return _get_credential(self.documents.update(_digest(key), apply))


class CredentialFile(SealedDatabase):
    """The database of the credentials of a user.

    The lock of a credential is held while it is changed, and the lock of the database only while it
    is written. So a process that waits for an authorization server does not block changes of other
    credentials.
    """

    def __init__(self, directory: Path, keyring: Any = None) -> None:
        super().__init__(directory / DIRECTORY / FILE, SCHEMA, VERSION)
        self._keyring = keyring

    @contextmanager
    def changing(
        self,
        kind: str,  # noqa: ARG002 - of the interface
        name: str,
        *,
        is_announced: bool,  # noqa: ARG002
    ) -> Iterator["_SingleStatements"]:
        self._test_disk(name)
        with self.storage_errors(), locked(self.file.with_name(f"{name}.lock")):
            yield _SingleStatements(self)

    def _test_disk(self, name: str) -> None:
        """Write to the disk. Otherwise a change could use up a token and lose the new one."""
        with self.transaction() as transaction:
            transaction.execute(PUT, (PROBE, name, 0, bytes(PROBE_BYTES)))
            transaction.execute("DELETE FROM documents WHERE kind = ?", (PROBE,))

    def _open_writer(self) -> Connection:
        database = super()._open_writer()
        database.execute("PRAGMA synchronous = FULL")
        return database

    def _make_sealer(self, *, must_exist: bool) -> Sealer:
        directory = self.file.parent
        keyring = None if self.key_file.exists() else self._keyring or find_keyring()
        if keyring is None:
            return super()._make_sealer(must_exist=must_exist)
        key = _load_keyring_key(keyring, directory, must_exist=must_exist)
        return Sealer(key, "the key in the keyring", partial(sealing_error, directory=directory))


class _SingleStatements:
    """Statements that are transactions of their own."""

    def __init__(self, database: SealedDatabase) -> None:
        self._database = database

    def execute(self, statement: str, parameters: Any = ()) -> Cursor:
        with self._database.transaction() as transaction:
            return transaction.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Any) -> None:
        with self._database.transaction() as transaction:
            transaction.executemany(statement, parameters)


def find_keyring() -> Any:
    """Return the keyring of the operating system, or None if there is none or the extra is not
    installed.
    """
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        return None
    backend = keyring.get_keyring()
    is_usable = (
        getattr(backend, "priority", 0) > 0
    )  # the backend for systems without a keyring has 0
    return backend if is_usable else None


def _load_keyring_key(keyring: Any, directory: Path, *, must_exist: bool) -> bytes:
    """Read the key of a directory from the keyring, or create it."""
    text = keyring.get_password(SERVICE, str(directory))
    if text is None:
        if must_exist:
            raise sealing_error(f"the key of {directory} is missing in the keyring", directory)
        text = os.urandom(KEY_BYTES).hex()
        keyring.set_password(SERVICE, str(directory), text)
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise sealing_error(f"the key of {directory} in the keyring is damaged", directory)
    return key


def _get_credential(document: Any) -> str | None:
    return None if document is None else str(document["credential"])


def _digest(key: CredentialKey) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()
