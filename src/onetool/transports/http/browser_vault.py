"""Facts that browsers keep for a server: sealed, so that it need not remember them, and other replicas can open them.

A server remembers only what must not be used again: codes that were used, and sessions that have ended.
"""

import base64
import json
import os
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final, Protocol, Self

from onetool.errors import StorageError
from onetool.state.sealing import KEY_BYTES, Sealer
from onetool.state.storage import RemoteState
from onetool.transports.http.errors import ApiError
from onetool.transports.http.tokens import STORE_AWAY
from onetool_child.json_types import JsonMapping, JsonObject

KEY_NAME: Final = "browser sessions"
MAX_USED: Final = 10_000
USED: Final = "used sign-in "
USED_SECONDS: Final = 3600.0  # longer than codes are valid


class SessionMemory(Protocol):
    """A memory of what must not be used again. `use` and `end` block."""

    def use(self, identifier: str) -> bool:
        """Return whether it is used for the first time."""
        ...

    def end(self, identifier: str, until: float) -> None:
        """End a session that is valid until this time."""
        ...

    def has_ended(self, identifier: str) -> bool: ...
    def check(self) -> None:
        """Raise an ApiError if it is not known which sessions have ended."""
        ...


class LocalMemory:
    """The memory of one server."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used: dict[str, None] = {}
        self._ended: dict[str, float] = {}

    def use(self, identifier: str) -> bool:
        is_first = identifier not in self._used
        self._used[identifier] = None
        while len(self._used) > MAX_USED:
            del self._used[next(iter(self._used))]
        return is_first

    def end(self, identifier: str, until: float) -> None:
        now = self._clock()
        self._ended = {**{known: end for known, end in self._ended.items() if end > now}, identifier: until}

    def has_ended(self, identifier: str) -> bool:
        return identifier in self._ended

    def check(self) -> None:
        pass


class SharedMemory:
    """The memory of all replicas, in their store."""

    def __init__(self, remote: RemoteState) -> None:
        self._remote = remote

    def use(self, identifier: str) -> bool:
        return self._remote.counters.take(USED + identifier, 1, USED_SECONDS) == 0

    def end(self, identifier: str, until: float) -> None:
        self._remote.ended_sessions.end(identifier, until)

    def has_ended(self, identifier: str) -> bool:
        try:
            return identifier in self._remote.ended_sessions.list_all()
        except StorageError:  # nobody knows which sessions have ended
            return True

    def check(self) -> None:
        if (problem := self._remote.problem) is not None:
            raise ApiError("busy", f"cannot check sessions: {problem}", {"reason": STORE_AWAY})


class BrowserVault:
    """Seals facts for browsers. The name of its cookie is that of its key: servers on one machine share cookies."""

    def __init__(self, key: bytes, memory: SessionMemory, clock: Callable[[], float] = time.time) -> None:
        self.memory, self._clock = memory, clock
        self.cookie = f"onetool_{sha256(b'cookie' + key).hexdigest()[:16]}"
        self._sealer = Sealer(key, "the key of browser sessions", StorageError)

    @classmethod
    def create_local(cls, clock: Callable[[], float] = time.time) -> Self:
        """Return a vault of one server: a restart ends its sessions."""
        return cls(os.urandom(KEY_BYTES), LocalMemory(clock), clock)

    @classmethod
    def open_shared(cls, remote: RemoteState, clock: Callable[[], float] = time.time) -> Self:
        """Return the vault of all replicas. Blocks on the database when it is opened for the first time."""
        return cls(remote.load_key(KEY_NAME), SharedMemory(remote), clock)

    def seal(self, kind: str, seconds: float, facts: JsonMapping) -> str:
        """Return the facts as text that only a server can read, and that is valid for this time."""
        known = {"id": os.urandom(16).hex(), "end": self._clock() + seconds, **facts}
        sealed = self._sealer.seal(json.dumps(known).encode(), kind.encode())
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")  # for URLs and cookies

    def open(self, kind: str, text: str) -> JsonObject | None:
        """Return the facts; None if they were changed, are of another kind, or have expired."""
        try:
            sealed = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
            facts: JsonObject = json.loads(self._sealer.open(sealed, kind.encode()))
        except (StorageError, ValueError):
            return None
        return facts if self._clock() < facts["end"] else None

    def use(self, kind: str, text: str) -> JsonObject | None:
        """Return the facts, once. Blocks."""
        facts = self.open(kind, text)
        return facts if facts is not None and self.memory.use(facts["id"]) else None
