"""The servers that run in one home directory, reload requests to all, and one-time codes for them.

Each server holds a lock on a file of its own while it runs. The kernel releases the lock when the
process ends, so an entry whose lock is free is stale, whatever its process ID says.

With a code, the owner of the home directory proves to a running server who they are. A code is a
file that only the owner can create. It is named by the hash of the code, valid for CODE_SECONDS and
deleted by its first use.
"""

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onetool.util import atomic
from onetool.util.atomic import locked, try_lock
from onetool.util.token_ids import hash_token
from onetool_child.json_types import JsonObject

DIRECTORY = "run"
REQUEST = "reload.json"
LOCK_SUFFIX = ".lock"
ENTRY_SUFFIX = ".server.json"
CODE_SECONDS = 120.0
SUFFIX = ".code"


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """The published state of a running server.

    `answer` is its answer to the reload request `generation`.
    """

    pid: int
    url: str = ""
    port: int | None = None
    directory: str = ""
    generation: int = 0
    is_ok: bool = True
    answer: str = ""

    @property
    def is_on_loopback(self) -> bool:
        parts = urlsplit(self.url)
        return is_loopback(parts.hostname or "")


@dataclass(slots=True)
class Registration:
    """The entry of this process.

    Without a writable home directory there is none, and `update` does nothing.
    """

    entry: ServerEntry
    path: Path | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def create(cls, user: Path, entry: ServerEntry) -> "Registration":
        directory = user / DIRECTORY
        name = os.urandom(8).hex()
        created = cls(entry)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = directory / f"{name}{LOCK_SUFFIX}"
            created._stack.callback(lock.unlink, missing_ok=True)
            file = created._stack.enter_context(lock.open("x"))
            try_lock(file.fileno())
            created.path = directory / f"{name}{ENTRY_SUFFIX}"
            created._stack.callback(created.path.unlink, missing_ok=True)
            created.update(entry)
        except OSError:
            created.close()
        return created

    def update(self, entry: ServerEntry) -> None:
        self.entry = entry
        if self.path is not None:
            with suppress(OSError):  # a full disk must not stop a server
                atomic.write(
                    self.path,
                    json.dumps({name: getattr(entry, name) for name in ServerEntry.__slots__}),
                )

    def close(self) -> None:
        self.path = None
        with suppress(OSError):
            self._stack.close()


class OwnPorts:
    """The ports that servers of this user listen on. Call it in a thread: it reads files."""

    def __init__(self) -> None:
        self.listening: set[int] = set()  # in this process
        self.user: Path | None = None  # directory of the user, for the servers of other processes

    def __call__(self) -> set[int]:
        others = [] if self.user is None else list_servers(self.user)
        return self.listening | {entry.port for entry in others if entry.port is not None}


def list_servers(user: Path) -> list[ServerEntry]:
    """Return the running servers, and remove stale entries."""
    try:
        paths = sorted((user / DIRECTORY).glob(f"*{ENTRY_SUFFIX}"))
    except OSError:
        return []
    entries = (dict(_select_fields(_read_json(path))) for path in paths if _is_alive(path))
    return [ServerEntry(**fields) for fields in entries if "pid" in fields]


def request_reload(user: Path) -> int:
    """Ask all running servers to reload; return the generation that their answers will have."""
    directory = user / DIRECTORY
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(directory / f"{REQUEST}{LOCK_SUFFIX}"):
        generation = read_generation(user) + 1
        atomic.write(directory / REQUEST, json.dumps({"generation": generation}))
    return generation


def read_generation(user: Path) -> int:
    data = _read_json(user / DIRECTORY / REQUEST)
    generation = data.get("generation")
    return generation if type(generation) is int else 0


def _is_alive(entry: Path) -> bool:
    lock = entry.with_name(entry.name.removesuffix(ENTRY_SUFFIX) + LOCK_SUFFIX)
    try:
        with lock.open("a") as file:
            if not try_lock(file.fileno()):
                return True
        for stale in (entry, lock):  # closed, because Windows deletes no open file
            stale.unlink(missing_ok=True)
    except OSError:
        return False
    return False


def _select_fields(data: JsonObject) -> Iterator[tuple[str, Any]]:
    kinds = {
        "pid": int,
        "url": str,
        "port": int,
        "directory": str,
        "generation": int,
        "is_ok": bool,
        "answer": str,
    }
    for name, kind in kinds.items():
        if type(data.get(name)) is kind:
            yield name, data[name]


def _read_json(path: Path) -> JsonObject:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


# --- one-time codes -------------------------------------------------------------------------------


def create_code(user: Path) -> str:
    """Create a code for the servers of this home directory, and delete those that have expired."""
    code = secrets.token_urlsafe(32)
    directory = user / DIRECTORY
    for path in directory.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > CODE_SECONDS:
                path.unlink()
    atomic.write(_code_path(user, code), "")
    return code


def redeem_code(user: Path, code: str) -> bool:
    """Use up the code and return whether it was valid."""
    path = _code_path(user, code)
    try:
        age = time.time() - path.stat().st_mtime
        path.unlink()  # of two users, only one succeeds
    except OSError:
        return False
    return age <= CODE_SECONDS


def _code_path(user: Path, code: str) -> Path:
    return user / DIRECTORY / f"{hash_token(code)}{SUFFIX}"


# --- loopback -------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Return whether the host is `localhost` or any form of loopback address."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
