"""Sessions of the admin UI, opened by `onetool ui` with a one-time code.

A request belongs to a session if it has both the cookie, which scripts cannot read, and the header, which the browser
never adds by itself. The cookie alone proves nothing: other servers on this machine receive it too, because cookies do
not depend on the port.
"""

import hmac
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from onetool.util.one_time_codes import redeem_code

CSRF_HEADER: Final = "x-onetool-csrf"
SESSION_SECONDS: Final = 12 * 3600.0
MAX_SESSIONS: Final = 100


class BrowserSessions:
    """The sessions of one server, in memory: a restart ends them. The name of the cookie is unique to the server."""

    def __init__(self, user: Callable[[], Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._user, self._clock = user, clock
        self._name = f"onetool_{os.urandom(8).hex()}"
        self._sessions: dict[str, tuple[str, float]] = {}  # cookies: CSRF values, ends

    def open(self, code: str) -> tuple[str, str] | None:
        """Return the Set-Cookie header and the CSRF value of a new session; None if the code is not valid."""
        if not redeem_code(self._user(), code):
            return None
        now = self._clock()
        live = [(cookie, found) for cookie, found in self._sessions.items() if found[1] > now]
        cookie, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._sessions = {**dict(live[1 - MAX_SESSIONS :]), cookie: (csrf, now + SESSION_SECONDS)}
        header = f"{self._name}={cookie}; Path=/; Max-Age={SESSION_SECONDS:.0f}; HttpOnly; SameSite=Strict"
        return header, csrf

    def is_open(self, headers: Headers) -> bool:
        """Return whether the request has the cookie and the CSRF value of a session."""
        given = headers.get(CSRF_HEADER, "")
        if not given:
            return False
        cookie = cookie_parser(headers.get("cookie", "")).get(self._name, "")
        csrf, end = self._sessions.get(cookie, ("", 0.0))
        return bool(csrf) and hmac.compare_digest(csrf.encode(), given.encode()) and self._clock() < end
