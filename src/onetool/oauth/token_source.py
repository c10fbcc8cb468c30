"""The token of one identity: read from the store, refreshed when it expires, once for all callers and processes.

The lock of the store is held while a token is refreshed, never while a request uses the token. A process that gets the
lock reads the store again and uses the token of another process if there is a newer one.
"""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import SignInRequired, ToolError
from onetool.oauth.credential import Credential, Identity
from onetool.oauth.failures import TokenRejected
from onetool.state.credentials import CredentialKey, CredentialStore
from onetool.util.background_tasks import BackgroundTasks

# Errors of a token endpoint after which the refresh token is useless.
FINAL_ERRORS = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
MAX_REFRESHES = 64  # threads that wait for other processes
Renew = Callable[[Identity, Credential | None], Awaitable[Credential]]


class TokenSource:
    """The token of one identity. `renew` refreshes a credential, or signs in a machine without one."""

    def __init__(
        self,
        identity: Identity,
        store: CredentialStore,
        *,
        renew: Renew,
        tasks: BackgroundTasks,
        limiter: anyio.CapacityLimiter,
    ) -> None:
        self.identity = identity
        self._store = store
        self._renew = renew
        self._tasks = tasks
        self._limiter = limiter
        self._version: object = ()  # of the store when it was read
        self._credential: Credential | None = None
        self._renewal: asyncio.Future[Credential] | None = None
        self._is_target_used = False

    async def is_target_used(self) -> bool:
        """Return whether anybody has signed in to the target, with any account and for any agent."""
        await self.read()
        return self._is_target_used

    async def read(self) -> Credential | None:
        """Return the stored credential. The store is read again if any process has changed it."""
        version = self._store.version()
        if version != self._version:
            self._credential = await run_in_thread(self._find)
            self._version = version
        return self._credential

    def _find(self) -> Credential | None:
        """Return the most recent sign-in of this identity."""
        own = self._make_key()
        keys = self._store.list_keys()
        self._is_target_used = any(key.target == own.target for key in keys)
        texts = [self._store.get(key) for key in keys if key[1:] == own[1:]]
        credentials = [Credential.from_json(text) for text in texts if text is not None]
        return max(credentials, key=lambda credential: credential.signed_in_at, default=None)

    def _make_key(self, issuer: str = "") -> CredentialKey:
        return self.identity.target.make_key(issuer, self.identity.account, self.identity.subject)

    async def get(self) -> str:
        """Return a valid token. Raise SignInRequired if there is none and none can be requested."""
        credential = await self.read()
        if credential is not None and credential.is_valid:
            return credential.access_token
        used = "" if credential is None else credential.access_token
        if not used and not self.identity.target.is_machine:
            raise self.identity.require_sign_in()
        return await self.replace(used)

    async def replace(self, used: str) -> str:
        """Return a token after the one that was used expired or was rejected."""
        self._version = ()
        credential = await self.read()
        if credential is not None and credential.is_valid and credential.access_token != used:
            return credential.access_token  # another process has refreshed it
        if self.identity.target.is_machine:
            return (await self._start(self._sign_in(used))).access_token
        if credential is None:
            raise self.identity.require_sign_in()
        if not credential.refresh_token:
            raise self.identity.require_sign_in(f"the sign-in to {self.identity.label} has expired")
        return (await self._start(self._refresh(self._make_key(credential.issuer), used))).access_token

    async def _start(self, work: "Awaitable[Credential]") -> Credential:
        """Run the work once for all callers. A cancelled caller does not cancel it: a token could get lost."""
        if self._renewal is None or self._renewal.done():
            self._renewal = self._tasks.start(work)
        else:
            work.close()  # type: ignore[attr-defined]  # it is a coroutine
        return await asyncio.shield(self._renewal)

    async def _refresh(self, key: CredentialKey, used: str) -> Credential:
        loop = asyncio.get_running_loop()
        failure = list[SignInRequired]()

        def change(text: str | None) -> str | None:
            current = None if text is None else Credential.from_json(text)
            if current is None or not current.refresh_token:
                failure.append(self.identity.require_sign_in())
                return text
            if current.access_token != used and not current.is_due:
                return text  # another process was faster
            try:
                renewed = asyncio.run_coroutine_threadsafe(self._renew_checked(current), loop).result()
            except TokenRejected as error:
                reason = f"the sign-in to {self.identity.label} has ended: {error.message}"
                failure.append(self.identity.require_sign_in(reason))
                return current.drop_tokens().to_json()
            return renewed.to_json()

        text = await run_in_thread(self._store.update, key, change, limiter=self._limiter)
        self._version = ()
        if failure or text is None:
            raise failure[0] if failure else self.identity.require_sign_in()
        return Credential.from_json(text)

    async def _renew_checked(self, credential: Credential) -> Credential:
        try:
            return await self._renew(self.identity, credential)
        except TokenRejected as error:
            if error.fields.get("error") in FINAL_ERRORS:
                raise
            raise ToolError(f"cannot refresh the token of {self.identity.label}: {error.message}") from None

    async def _sign_in(self, used: str) -> Credential:
        """Request a token for the client itself, unless another process has a newer one."""
        credential = await self.read()
        if credential is not None and credential.is_valid and credential.access_token != used:
            return credential
        try:
            credential = await self._renew(self.identity, None)
        except TokenRejected as error:
            raise ToolError(
                f"cannot sign in to {self.identity.label}: {error.message}",
                hint=f"check client_id and the secret or key of servers.{self.identity.target.name}.auth",
            ) from None
        await self.store(credential)
        return credential

    async def store(self, credential: Credential) -> None:
        """Store a new sign-in, and delete those of other issuers."""
        key = self._make_key(credential.issuer)
        await run_in_thread(self._replace_all, key, credential.to_json(), limiter=self._limiter)
        self._version = ()

    def _replace_all(self, key: CredentialKey, text: str) -> None:
        self._store.update(key, lambda _: text)
        for other in self._store.list_keys():
            if other[1:] == key[1:] and other != key:
                self._store.update(other, lambda _: None)

    async def update(self, change: Callable[[Credential], Credential | None]) -> None:
        """Change the stored credential, if there is one; None deletes it."""
        credential = await self.read()
        if credential is None:
            return

        def apply(text: str | None) -> str | None:
            changed = None if text is None else change(Credential.from_json(text))
            return None if changed is None else changed.to_json()

        await run_in_thread(self._store.update, self._make_key(credential.issuer), apply, limiter=self._limiter)
        self._version = ()
