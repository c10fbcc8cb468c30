"""Admin UI sessions, opened with a one-time code of `onetool ui` or of a sign-in.

A request belongs to a session if it has both the cookie, which scripts cannot read, and the header,
which the browser never adds by itself. The cookie alone proves nothing: other servers on this
machine receive it too, because cookies do not depend on the port.

The cookie has the session itself, sealed. Sessions after a sign-in are valid on every replica;
those of `onetool ui`, which are only for requests of the local machine, are valid on the server
that opened them.
"""

import base64
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Self

from anyio.to_thread import run_sync as run_in_thread
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from onetool.errors import StorageError, ToolError
from onetool.server.http.errors import ApiError
from onetool.server.http.live_tokens import (
    STORE_AWAY,
    FindToken,
    RequestCredential,
    identify_issuer,
)
from onetool.settings.access import Issuer
from onetool.state.counters import Counters
from onetool.state.file_kinds import EndedSessions
from onetool.state.sealing import KEY_BYTES, Sealer
from onetool.state.storage import State
from onetool.util.clock_watch import Clock
from onetool.util.running_servers import CODE_SECONDS, redeem_code
from onetool_child.json_types import JsonMapping, JsonObject

CSRF_HEADER = "x-onetool-csrf"
SESSION_SECONDS = 12 * 3600.0
SIGN_IN_SECONDS = 600.0
# kinds of sealed facts
SESSION = "session"
CODE = "code"
SIGN_IN = "sign-in"
CREDENTIAL_FACTS = ("actor", "agent", "scope", "token_id", "expires", "origin")
NO_HEADERS = Headers({})
KEY_NAME = "browser sessions"
USED = "used sign-in "
USED_SECONDS = 3600.0  # longer than codes are valid


class BrowserVault:
    """Seals facts for browsers, so that no server needs to remember them.

    It remembers only what must not be used again: used codes, and ended sessions. Its key gives the
    cookie its name, because servers on one machine share cookies.
    """

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
        """Return the vault of all servers with this state.

        Blocks when it is opened for the first time.
        """
        key = state.load_key(KEY_NAME)
        return cls(
            key,
            state.counters,
            state.ended_sessions,
            clock=clock,
            get_problem=lambda: state.problem,
        )

    def seal(self, kind: str, seconds: float, facts: JsonMapping) -> str:
        """Return the facts as text that only a server can read, and that is valid for this time."""
        known = {"id": os.urandom(16).hex(), "end": self._clock() + seconds, **facts}
        sealed = self._sealer.seal(json.dumps(known).encode(), kind.encode())
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")  # for URLs and cookies

    def open(self, kind: str, text: str) -> JsonObject | None:
        """Return the facts; None if they were changed, are of another kind, or have expired."""
        try:
            sealed = base64.b64decode(
                text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True
            )
            facts: JsonObject = json.loads(self._sealer.open(sealed, kind.encode()))
        except (StorageError, ValueError):
            return None
        return facts if self._clock() < facts["end"] else None

    def use(self, kind: str, text: str) -> JsonObject | None:
        """Return the facts, once. Blocks."""
        facts = self.open(kind, text)
        is_new = facts is not None and self._counters.take(USED + facts["id"], 1, USED_SECONDS) == 0
        return facts if is_new else None

    # --- sessions that have ended -----------------------------------------------------------------

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


@dataclass(frozen=True, slots=True)
class BrowserSession:
    credential: RequestCredential
    csrf: str


class BrowserSessions:
    """The sessions of one server, and those of all servers with its state."""

    def __init__(
        self,
        user: Callable[[], Path],
        state: Callable[[], State],
        clock: Clock = time.time,
        *,
        issuers: Callable[[], Iterable[Issuer]] = tuple,
    ) -> None:
        self._user = user
        self._get_state = state
        self._clock = clock
        self._issuers = issuers
        self._local = BrowserVault.create_local(clock)
        self._shared: tuple[State, BrowserVault] | None = None

    def _open_vault(self) -> BrowserVault:
        """Return the vault of sign-ins. Blocks when it is used for the first time."""
        state = self._get_state()
        if self._shared is None or self._shared[0] is not state:
            self._shared = state, BrowserVault.open_for(state, self._clock)
        return self._shared[1]

    # --- opening ----------------------------------------------------------------------------------

    def begin_sign_in(self, facts: JsonObject, *, is_secure: bool) -> tuple[str, str]:
        """Return a Set-Cookie header that marks the browser, and a state with the facts.

        Blocks.
        """
        vault = self._open_vault()
        binding = secrets.token_urlsafe(32)
        state = vault.seal(SIGN_IN, SIGN_IN_SECONDS, {**facts, "binding": binding})
        # Lax: the issuer, which is another site, sends the browser back.
        return (
            _make_cookie(f"{vault.cookie}_sign_in", binding, SIGN_IN_SECONDS, "Lax", is_secure),
            state,
        )

    def end_sign_in(self, state: str, headers: Headers) -> tuple[JsonObject | None, bool]:
        """Return the facts of a state, once, and whether this browser has started the sign-in.

        Blocks.
        """
        vault = self._open_vault()
        facts = vault.use(SIGN_IN, state)
        return facts, facts is not None and _is_bound(vault, facts, headers)

    def create_code(self, credential: RequestCredential, headers: Headers) -> str:
        """Return a code that opens a session in this browser. Blocks."""
        vault = self._open_vault()
        return vault.seal(
            CODE,
            CODE_SECONDS,
            {**_list_facts(credential), "binding": _read_binding(vault, headers)},
        )

    def open(
        self,
        code: str,
        headers: Headers = NO_HEADERS,
        *,
        is_local: bool = True,
        is_secure: bool = False,
    ) -> tuple[str, BrowserSession] | None:
        """Return the Set-Cookie header and the new session; None if the code is invalid.

        Codes of `onetool ui` are valid on the local machine only. Blocks on the disk or the
        database.
        """
        if is_local and redeem_code(self._user(), code):
            owner = RequestCredential("admin UI", None, "owner", lambda _find: True)
            return self._add(self._local, owner, is_secure=is_secure)
        vault = self._open_vault()
        facts = vault.use(CODE, code)
        if facts is None or not _is_bound(vault, facts, headers):
            return None
        return self._add(vault, self._restore(facts), is_secure=is_secure)

    def _add(
        self, vault: BrowserVault, credential: RequestCredential, *, is_secure: bool
    ) -> tuple[str, BrowserSession]:
        seconds = min(SESSION_SECONDS, credential.expires - self._clock())
        csrf = secrets.token_urlsafe(32)
        cookie = vault.seal(SESSION, seconds, {**_list_facts(credential), "csrf": csrf})
        return _make_cookie(vault.cookie, cookie, seconds, "Strict", is_secure), BrowserSession(
            credential, csrf
        )

    def _restore(self, facts: JsonObject) -> RequestCredential:
        """Return the credential that was sealed.

        It is accepted while the settings have the entry of its issuer.
        """
        origin = facts["origin"]

        def is_live(_find: object) -> bool:
            return not origin or any(identify_issuer(entry) == origin for entry in self._issuers())

        return RequestCredential(
            **{name: facts[name] for name in CREDENTIAL_FACTS}, is_live=is_live
        )

    # --- use --------------------------------------------------------------------------------------

    async def find(self, headers: Headers) -> RequestCredential | None:
        """Return the credential of the session whose cookie and CSRF value the request has.

        Raise an ApiError if it is not known whether the session has ended.
        """
        session = await self._find_facts(headers)
        if session is None:
            return None
        vault, facts = session
        vault.check()
        credential = self._restore(facts)
        # It is accepted until the session ends, also in requests that are open then.
        credential = replace(
            credential, is_live=_until_ended(vault, facts["id"], credential.is_live)
        )
        return credential if credential.is_live(lambda _hash: None) else None

    async def close(self, headers: Headers) -> str:
        """End the request's session, and return the header that deletes its cookie."""
        session = await self._find_facts(headers)
        if session is None:
            return _make_cookie(self._local.cookie, "", 0.0, "Strict", is_secure=False)
        vault, facts = session
        await run_in_thread(vault.end, facts)
        return _make_cookie(vault.cookie, "", 0.0, "Strict", is_secure=False)

    async def _find_facts(self, headers: Headers) -> tuple[BrowserVault, JsonObject] | None:
        cookies = cookie_parser(headers.get("cookie", ""))
        csrf_token = headers.get(CSRF_HEADER, "")
        for vault in await self._list_vaults():
            facts = vault.open(SESSION, cookies.get(vault.cookie, ""))
            if facts is not None and hmac.compare_digest(
                facts["csrf"].encode(), csrf_token.encode("utf-8", "replace")
            ):
                return vault, facts
        return None

    async def _list_vaults(self) -> list[BrowserVault]:
        if self._shared is not None and self._shared[0] is self._get_state():
            return [self._local, self._shared[1]]
        try:
            return [self._local, await run_in_thread(self._open_vault)]
        except ToolError:  # the sessions of other servers cannot be opened
            return [self._local]


def _until_ended(
    vault: BrowserVault, identifier: str, is_live: Callable[[FindToken], bool]
) -> Callable[[FindToken], bool]:
    return lambda find: not vault.has_ended(identifier) and is_live(find)


def _list_facts(credential: RequestCredential) -> JsonObject:
    return {name: getattr(credential, name) for name in CREDENTIAL_FACTS}


def _read_binding(vault: BrowserVault, headers: Headers) -> str:
    return cookie_parser(headers.get("cookie", "")).get(f"{vault.cookie}_sign_in", "")


def _is_bound(vault: BrowserVault, facts: JsonObject, headers: Headers) -> bool:
    binding = _read_binding(vault, headers)
    return hmac.compare_digest(facts["binding"].encode(), binding.encode("utf-8", "replace"))


def _make_cookie(name: str, value: str, seconds: float, same_site: str, is_secure: bool) -> str:
    secure = "; Secure" if is_secure else ""
    return (
        f"{name}={value}; Path=/; Max-Age={max(0.0, seconds):.0f}; HttpOnly;"
        f" SameSite={same_site}{secure}"
    )
