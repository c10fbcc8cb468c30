"""Encryption of stored values with AES-256-GCM.

The key is in a file for its owner only, which is created once.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Self

from onetool.errors import StorageError
from onetool.util import atomic
from onetool.util.background import exclusive
from onetool.util.problem import STORAGE, Location

KEY_BYTES = 32
NONCE_BYTES = 12


class Sealer:
    """Encrypts values and detects changes.

    `about` names a value, so that two values cannot be exchanged.
    """

    def __init__(
        self, key: bytes, key_name: str, make_error: Callable[[str], StorageError]
    ) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # takes some milliseconds

        self._cipher = AESGCM(key)
        self._key_name = key_name
        self.make_error = make_error

    @classmethod
    def from_file(cls, file: Path, *, must_exist: bool = False) -> Self:
        """Return a sealer with the key in this file. See `load_key`."""
        make_error = partial(sealing_error, directory=file.parent)
        return cls(load_key(file, must_exist=must_exist), f"the key {file}", make_error)

    def seal(self, value: bytes, about: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value, about)

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Return the value.

        Raise StorageError if it was changed, has another name, or was sealed with another key.
        """
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
        except (InvalidTag, ValueError, TypeError):  # too short, or text
            name = about.decode(errors="replace")
            raise self.make_error(
                f"{name} was changed, or was not sealed with {self._key_name}"
            ) from None


class NotSealed(Sealer):
    """Leaves values as they are: whoever can write the file can read a key beside it."""

    def __init__(self) -> None:
        """Use no key."""

    def seal(self, value: bytes, about: bytes) -> bytes:  # noqa: ARG002
        return value

    def open(self, sealed: bytes, about: bytes) -> bytes:  # noqa: ARG002
        return sealed


def load_key(file: Path, *, must_exist: bool = False) -> bytes:
    """Read a key, or create it.

    Set `must_exist` if sealed values exist: a new key could not open them.
    """
    if not must_exist and not file.exists():
        with exclusive(file):
            if not file.exists():
                atomic.write(file, os.urandom(KEY_BYTES).hex(), durable=True)
                sync_directory(file.parent)
    try:
        key = bytes.fromhex(file.read_text("ascii"))
    except FileNotFoundError:
        raise sealing_error(
            f"the key {file} is missing: what it sealed cannot be read", file.parent
        ) from None
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise sealing_error(
            f"the key {file} is damaged: what it sealed cannot be read", file.parent
        )
    return key


class PageKey:
    """The key of page tokens in a file. A damaged one is replaced."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._temporary_key = os.urandom(
            KEY_BYTES
        )  # for a disk that cannot be written: its tokens are valid here only

    def load(self) -> bytes:
        """Return the key.

        It is read each time: another process may create it or replace the directory.
        """
        try:
            with suppress(StorageError):
                return load_key(self._file)
            self._file.unlink()
            return load_key(self._file)
        except (OSError, StorageError):
            return self._temporary_key


def sync_directory(directory: Path) -> None:
    """Make new files in the directory survive a power failure. Windows cannot open a directory."""
    if sys.platform == "win32":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sealing_error(message: str, directory: Path) -> StorageError:
    """Return the error for a directory with damaged or changed values."""
    hint = (
        f"restore {directory} from a backup, or stop OneTool and delete all of it: `rm -r"
        f" {quote(str(directory))}`"
    )
    return StorageError(message, hint=hint, location=Location(str(directory)), code=STORAGE)
