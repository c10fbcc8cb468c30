"""Sessions of the admin UI, opened with a one-time code: of `onetool ui`, or after a sign-in at an issuer.

A request belongs to a session if it has both the cookie, which scripts cannot read, and the header, which the browser
never adds by itself. The cookie alone proves nothing: other servers on this machine receive it too, because cookies do
not depend on the port.
"""

import hmac
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from onetool.transports.http.credential import RequestCredential
from onetool.util.one_time_codes import CODE_SECONDS, redeem_code

CSRF_HEADER: Final = "x-onetool-csrf"
SESSION_SECONDS: Final = 12 * 3600.0
SIGN_IN_SECONDS: Final = 600.0
MAX_SESSIONS: Final = 1000
MAX_CODES: Final = 1000


@dataclass(frozen=True, slots=True)
class BrowserSession:
    credential: RequestCredential
    csrf: str
    end: float


@dataclass(frozen=True, slots=True)
class _Code:
    """A code for a browser that has signed in, and the cookie that the browser must have."""

    credential: RequestCredential
    binding: str
    end: float


class BrowserSessions:
    """The sessions of one server, in memory: a restart ends them. The names of its cookies are unique to the server."""

    def __init__(self, user: Callable[[], Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._user, self._clock = user, clock
        self._name = f"onetool_{os.urandom(8).hex()}"
        self._sessions: dict[str, BrowserSession] = {}  # by cookie
        self._codes: dict[str, _Code] = {}

    # --- opening ----------------------------------------------------------------------------------------------------

    def begin_sign_in(self, *, is_secure: bool) -> tuple[str, str]:
        """Return a Set-Cookie header that marks the browser that signs in, and its value."""
        binding = secrets.token_urlsafe(32)
        # Lax: the issuer, which is another site, sends the browser back.
        return self._make_cookie(f"{self._name}_sign_in", binding, SIGN_IN_SECONDS, "Lax", is_secure), binding

    def read_binding(self, headers: Headers) -> str:
        return cookie_parser(headers.get("cookie", "")).get(f"{self._name}_sign_in", "")

    def create_code(self, credential: RequestCredential, binding: str) -> str:
        """Return a code that opens a session in the browser with this cookie."""
        now, code = self._clock(), secrets.token_urlsafe(32)
        live = [(key, each) for key, each in self._codes.items() if each.end > now]
        self._codes = {**dict(live[1 - MAX_CODES :]), code: _Code(credential, binding, now + CODE_SECONDS)}
        return code

    def open(
        self, code: str, *, binding: str = "", is_local: bool = True, is_secure: bool = False
    ) -> tuple[str, BrowserSession] | None:
        """Return the Set-Cookie header of a new session, and the session; None if the code is not valid.

        Codes of `onetool ui` are valid on the local machine only. Blocks on disk access.
        """
        found = self._codes.pop(code, None)
        if found is not None:
            is_bound = hmac.compare_digest(found.binding.encode(), binding.encode("utf-8", "replace"))
            credential = found.credential if is_bound and self._clock() < found.end else None
        elif is_local and redeem_code(self._user(), code):
            credential = RequestCredential("admin UI", None, "owner", lambda _find: True)
        else:
            credential = None
        return None if credential is None else self._add(credential, is_secure=is_secure)

    def _add(self, credential: RequestCredential, *, is_secure: bool) -> tuple[str, BrowserSession]:
        now = self._clock()
        seconds = min(SESSION_SECONDS, credential.expires - time.time())
        live = [(key, each) for key, each in self._sessions.items() if each.end > now]
        cookie, session = (
            secrets.token_urlsafe(32),
            BrowserSession(credential, secrets.token_urlsafe(32), now + seconds),
        )
        self._sessions = {**dict(live[1 - MAX_SESSIONS :]), cookie: session}
        return self._make_cookie(self._name, cookie, seconds, "Strict", is_secure), session

    @staticmethod
    def _make_cookie(name: str, value: str, seconds: float, same_site: str, is_secure: bool) -> str:
        secure = "; Secure" if is_secure else ""
        return f"{name}={value}; Path=/; Max-Age={max(0.0, seconds):.0f}; HttpOnly; SameSite={same_site}{secure}"

    # --- use --------------------------------------------------------------------------------------------------------

    def find(self, headers: Headers) -> RequestCredential | None:
        """Return the credential of the session whose cookie and CSRF value the request has."""
        cookie = cookie_parser(headers.get("cookie", "")).get(self._name, "")
        session, given = self._sessions.get(cookie), headers.get(CSRF_HEADER, "")
        if session is None or not hmac.compare_digest(session.csrf.encode(), given.encode("utf-8", "replace")):
            return None
        credential = session.credential
        if self._clock() >= session.end or not credential.is_live(lambda _hash: None):
            return None
        return replace(credential, is_live=lambda find: cookie in self._sessions and credential.is_live(find))

    def close(self, headers: Headers) -> str:
        """End the session of a request that belongs to one, and return the header that deletes its cookie."""
        if self.find(headers) is not None:
            self._sessions.pop(cookie_parser(headers.get("cookie", "")).get(self._name, ""), None)
        return self._make_cookie(self._name, "", 0.0, "Strict", is_secure=False)
