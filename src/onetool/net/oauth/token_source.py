"""One identity's token: stored, and refreshed once for all callers and processes.

The lock of the store is held while a token is refreshed, never while a request uses the token. A
process that gets the lock reads the store again and uses the token of another process if there is a
newer one.
"""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import SignInRequired, ToolError
from onetool.net.oauth.credential import Credential, Identity, TokenRejected
from onetool.state.credentials import CredentialStore
from onetool.util.tasks import BackgroundTasks

# Errors of a token endpoint after which the refresh token is useless.
FINAL_ERRORS = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
MAX_REFRESHES = 64  # threads that wait for other processes
Renew = Callable[[Identity, Credential | None], Awaitable[Credential]]


class TokenSource:
    """One identity's token. `renew` refreshes a credential, or signs in a machine without one."""

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
        own = self.identity.key
        self._is_target_used = any(key.target == own.target for key in self._store.list_keys())
        return _parse(self._store.get(own))

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
        is_final = credential is not None and not credential.refresh_token
        if is_final and not self.identity.target.is_machine:
            raise self.identity.require_sign_in(f"the sign-in to {self.identity.label} has expired")
        return (await self._start(self._renew_stored(used))).access_token

    async def _start(self, work: "Awaitable[Credential]") -> Credential:
        """Run the work once for all callers.

        A cancelled caller does not cancel it: a token could get lost.
        """
        if self._renewal is None or self._renewal.done():
            self._renewal = self._tasks.start(work)
        else:
            work.close()  # type: ignore[attr-defined]  # it is a coroutine
        return await asyncio.shield(self._renewal)

    async def _renew_stored(self, used: str) -> Credential:
        """Renew the stored credential, while no other process can."""
        loop = asyncio.get_running_loop()
        failures: list[SignInRequired] = []

        def change(current: Credential | None) -> Credential | None:
            if current is not None and current.is_valid and current.access_token != used:
                return current  # another process was faster
            try:
                return asyncio.run_coroutine_threadsafe(self._renew_checked(current), loop).result()
            except SignInRequired as error:
                failures.append(error)
                return None if current is None else current.drop_tokens()

        renewed = await self._update(change)
        if failures or renewed is None:
            raise failures[0] if failures else self.identity.require_sign_in()
        return renewed

    async def _renew_checked(self, current: Credential | None) -> Credential:
        label = self.identity.label
        is_machine = self.identity.target.is_machine
        if not is_machine and (
            current is None or not current.refresh_token
        ):  # somebody has signed out
            raise self.identity.require_sign_in()
        try:
            return await self._renew(self.identity, None if is_machine else current)
        except TokenRejected as error:
            if is_machine:
                hint = (
                    "check client_id and the secret or key of"
                    f" servers.{self.identity.target.name}.auth"
                )
                raise ToolError(f"cannot sign in to {label}: {error.message}", hint=hint) from None
            if error.fields.get("error") in FINAL_ERRORS:
                raise self.identity.require_sign_in(
                    f"the sign-in to {label} has ended: {error.message}"
                ) from None
            raise ToolError(f"cannot refresh the token of {label}: {error.message}") from None

    async def store(self, credential: Credential) -> None:
        """Store a new sign-in and replace the last one."""
        await self._update(lambda _: credential)

    async def update(self, change: Callable[[Credential], Credential | None]) -> None:
        """Change the stored credential, if there is one; None deletes it."""
        if await self.read() is not None:
            await self._update(lambda current: current and change(current))

    async def _update(
        self, change: Callable[[Credential | None], Credential | None]
    ) -> Credential | None:
        def apply(text: str | None) -> str | None:
            changed = change(_parse(text))
            return None if changed is None else changed.to_json()

        text = await run_in_thread(
            self._store.update, self.identity.key, apply, limiter=self._limiter
        )
        self._version = ()
        return _parse(text)


def _parse(text: str | None) -> Credential | None:
    return None if text is None else Credential.from_json(text)
