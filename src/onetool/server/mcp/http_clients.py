"""The clients that use MCP over HTTP: who they are, and when they made their last request.

Clients of protocols before 2026 have a session, which can be ended. Later ones have none: they are
known by their token and name, and listed for some minutes after their last request.
"""

import time
from collections.abc import Collection
from hashlib import sha256
from typing import Any

from onetool.util.bounded_dict import BoundedDict
from onetool.util.clock_watch import Clock
from onetool.util.http_clients import HttpClient

SESSION_HEADER = "mcp-session-id"
MAX_CLIENTS = 2000
RECENT_SECONDS = 600.0
ID_CHARS = 16


class HttpClients:
    """The clients of one server, those with the latest requests."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._known: BoundedDict[str, HttpClient] = BoundedDict(MAX_CLIENTS)

    def note(self, request: Any, name: str, agent: str) -> None:
        """Record a request."""
        state = request.scope.get("state", {})
        session = request.headers.get(SESSION_HEADER)
        actor = str(state.get("actor", ""))
        now = self._clock()
        key = session or f"{state.get('token_id', '')}/{agent}/{name}"
        client = self._known.get(key) or HttpClient(_identify(key), session, agent, actor, now, now)
        client.name = name or client.name
        client.last_call = now
        self._known[key] = client

    def list_clients(self, sessions: Collection[str]) -> list[HttpClient]:
        """Return the clients of these open sessions, and those without a session that made a
        request recently.
        """
        oldest = self._clock() - RECENT_SECONDS
        for key, client in list(self._known.items()):
            if client.session not in sessions if client.session else client.last_call <= oldest:
                del self._known[key]
        return list(self._known.values())


def _identify(key: str) -> str:
    return sha256(key.encode("utf-8", "replace")).hexdigest()[:ID_CHARS]
