"""Credentials in encrypted files for their owner only, one file for each sign-in.

The key comes from the keyring of the operating system if the extra `keyring` is installed and there is one, otherwise
from a file beside the credentials. A process that refreshes a token holds the lock of its file.
"""

import base64
import hashlib
import importlib
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from onetool.errors import StorageError
from onetool.state.sealing import KEY_BYTES, Sealer, sealing_error
from onetool.state.storage import CredentialKey
from onetool.util import atomic
from onetool.util.locks import locked
from onetool.util.storage_errors import storage_error
from onetool.util.versioning import check_version
from onetool_child.json_types import JsonObject

VERSION = 1
DIRECTORY = "credentials"
KEY_FILE = "key"
SUFFIX = ".json"
TICK_NS = 50_000_000
PROBE_CHARS = 4_096  # more than a credential usually has
SERVICE = "onetool"  # the name of the key in a keyring


class CredentialStore:
    """The credentials in one directory, such as `~/.onetool/credentials`."""

    def __init__(self, directory: Path, keyring: Any = None) -> None:
        self._directory = directory
        self._keyring = keyring
        self._sealer: Sealer | None = None

    def version(self) -> object:
        try:
            changed = self._directory.stat().st_mtime_ns
        except OSError:
            return None
        now = time.time_ns()
        # A directory that has just changed may change again within the same tick of the file system's clock.
        return (changed, now) if now - changed < TICK_NS else changed

    def list_keys(self) -> list[CredentialKey]:
        found = (self._read(file) for file in sorted(self._directory.glob(f"*{SUFFIX}")))
        return [CredentialKey(*each["key"]) for each in found if each is not None]

    def get(self, key: CredentialKey) -> str | None:
        found = self._read(self._locate(key))
        return None if found is None else str(found["credential"])

    def update(self, key: CredentialKey, change: Callable[[str | None], str | None]) -> str | None:
        file = self._locate(key)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(file.with_suffix(".lock")):
                before = self.get(key)
                # The change may use up a token: a disk that cannot be written must be noticed first.
                self._check_writable(file, key, before)
                after = change(before)
                if after is None:
                    file.unlink(missing_ok=True)
                elif after != before:
                    self._write(file, key, after)
        except OSError as error:
            raise storage_error(self._directory, error, StorageError) from error
        return after

    def _check_writable(self, file: Path, key: CredentialKey, credential: str | None) -> None:
        if credential is not None:
            self._write(file, key, credential)
            return
        probe = file.with_suffix(".probe")
        self._write(probe, key, " " * PROBE_CHARS)
        probe.unlink()

    def _locate(self, key: CredentialKey) -> Path:
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
        return self._directory / f"{digest[:32]}{SUFFIX}"

    def _write(self, file: Path, key: CredentialKey, credential: str) -> None:
        content = json.dumps({"key": key, "credential": credential}).encode()
        sealed = base64.b64encode(self._open_sealer(must_exist=False).seal(content, file.name.encode())).decode()
        atomic.write(file, json.dumps({"version": VERSION, "sealed": sealed}), durable=True)

    def _read(self, file: Path) -> JsonObject | None:
        try:
            data = json.loads(file.read_bytes())
            check_version(data.get("version"), VERSION, file)
            sealed = base64.b64decode(data["sealed"])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(self._directory, error, StorageError) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise sealing_error(f"{file} is damaged", self._directory) from None
        content: JsonObject = json.loads(self._open_sealer(must_exist=True).open(sealed, file.name.encode()))
        return content

    def _open_sealer(self, *, must_exist: bool) -> Sealer:
        if self._sealer is None:
            file = self._directory / KEY_FILE
            keyring = None if file.exists() else self._keyring or find_keyring()
            if keyring is not None:
                key = _load_keyring_key(keyring, str(self._directory), must_exist=must_exist)
                make_error = partial(sealing_error, directory=self._directory)
                self._sealer = Sealer(key, "the key in the keyring", make_error)
            else:
                self._sealer = Sealer.from_file(file, must_exist=must_exist)
        return self._sealer


def find_keyring() -> Any:
    """Return the keyring of the operating system, or None if there is none or the extra is not installed."""
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        return None
    backend = keyring.get_keyring()
    is_usable = getattr(backend, "priority", 0) > 0  # the backend for systems without a keyring has 0
    return backend if is_usable else None


def _load_keyring_key(keyring: Any, name: str, *, must_exist: bool) -> bytes:
    """Read the key of a directory from the keyring, or create it."""
    text = keyring.get_password(SERVICE, name)
    if text is None:
        if must_exist:
            raise sealing_error(f"the key of {name} is missing in the keyring", Path(name))
        text = os.urandom(KEY_BYTES).hex()
        keyring.set_password(SERVICE, name, text)
        text = keyring.get_password(SERVICE, name)  # of two processes, the last one wins
    key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise sealing_error(f"the key of {name} in the keyring is damaged", Path(name))
    return key
