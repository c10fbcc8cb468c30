"""Facts that browsers keep for a server: sealed, so that it need not remember them, and other replicas can open them.

A server remembers only what must not be used again: codes that were used, and sessions that have ended.
"""

import base64
import json
import os
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Self

from onetool.errors import StorageError
from onetool.state.memory import Counters, EndedSessions
from onetool.state.sealing import KEY_BYTES, Sealer
from onetool.state.storage import State
from onetool.transports.http.errors import ApiError
from onetool.transports.http.live_tokens import STORE_AWAY
from onetool.util.clock_watch import Clock
from onetool_child.json_types import JsonMapping, JsonObject

KEY_NAME = "browser sessions"
USED = "used sign-in "
USED_SECONDS = 3600.0  # longer than codes are valid


class BrowserVault:
    """Seals facts for browsers. The name of its cookie is that of its key: servers on one machine share cookies."""

    def __init__(
        self,
        key: bytes,
        counters: Counters,
        ended: EndedSessions,
        *,
        clock: Clock = time.time,
        get_problem: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._counters = counters
        self._ended = ended
        self._clock = clock
        self._get_problem = get_problem
        self.cookie = f"onetool_{sha256(b'cookie' + key).hexdigest()[:16]}"
        self._sealer = Sealer(key, "the key of browser sessions", StorageError)

    @classmethod
    def create_local(cls, clock: Clock = time.time) -> Self:
        """Return a vault of one server: a restart ends its sessions."""
        return cls(os.urandom(KEY_BYTES), Counters(), EndedSessions(clock), clock=clock)

    @classmethod
    def open_for(cls, state: State, clock: Clock = time.time) -> Self:
        """Return the vault of all servers with this state. Blocks when it is opened for the first time."""
        key = state.load_key(KEY_NAME)
        return cls(key, state.counters, state.ended_sessions, clock=clock, get_problem=lambda: state.problem)

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
        is_new = facts is not None and self._counters.take(USED + facts["id"], 1, USED_SECONDS) == 0
        return facts if is_new else None

    # --- sessions that have ended -------------------------------------------------------------------------------------

    def end(self, facts: JsonMapping) -> None:
        """End the session with these facts. Blocks."""
        self._ended.end(facts["id"], facts["end"])

    def has_ended(self, identifier: str) -> bool:
        try:
            return identifier in self._ended.list_all()
        except StorageError:  # nobody knows which sessions have ended
            return True

    def check(self) -> None:
        """Raise an ApiError if it is not known which sessions have ended."""
        if (problem := self._get_problem()) is not None:
            raise ApiError("busy", f"cannot check sessions: {problem}", {"reason": STORE_AWAY})
