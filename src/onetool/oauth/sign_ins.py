"""The sign-ins of the application: tokens for requests, starting and finishing sign-ins, and their state."""

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.config.load import Loaded
from onetool.config.model import OAuth, Server
from onetool.errors import ConfigError, ToolError
from onetool.net import ANY_HOST, Net
from onetool.oauth.credential import Credential, Identity, SignInTarget
from onetool.oauth.discovery import Discovered, Discovery, OnStep
from onetool.oauth.guarded_http import GuardedHttp
from onetool.oauth.pending import PendingSignIn, PendingSignIns, check_answer
from onetool.oauth.token_requests import DEVICE_GRANT, TokenRejected, TokenRequests
from onetool.oauth.token_source import MAX_REFRESHES, TokenSource
from onetool.util.background_tasks import BackgroundTasks
from onetool.util.text import describe_unknown_account
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.state.storage import CredentialStorage

CALLBACK_PATH = "/oauth/callback"
CLIENT_PATH = "/oauth/client.json"
LOOPBACK_REDIRECTS = ("http://127.0.0.1/callback", "http://localhost/callback")
MAX_INTERVAL_SECONDS = 60.0
DEFAULT_INTERVAL_SECONDS = 5.0
DEFAULT_AGENT = "default"
NO_CREDENTIAL = Credential("", "", "")
MAX_DEVICE_SECONDS = 600.0


class SignIns:
    """The sign-ins. `own_ports` are the ports of OneTool's own servers, which requests must not reach."""

    def __init__(self, own_ports: Callable[[], set[int]]) -> None:
        self._net = Net(ANY_HOST, own_ports=own_ports)
        self._tasks = BackgroundTasks(lambda _error: None)  # the callers get the errors
        self._limiter = anyio.CapacityLimiter(MAX_REFRESHES)
        self._sources: dict[Identity, TokenSource] = {}
        self.pending = PendingSignIns()

    def configure(self, loaded: Loaded, credentials: "CredentialStorage") -> None:
        """Apply new settings."""
        self._store = credentials
        self._allow_private_addresses = loaded.settings.http.allow_private_addresses
        url = loaded.settings.auth.public_url
        self.public_url = url.rstrip("/") if url else None
        self._sources.clear()

    async def close(self) -> None:
        """Let refreshes end: a token that is not stored would be lost."""
        await self._tasks.wait()
        await self._net.close()

    # --- tokens -------------------------------------------------------------------------------------------------------

    def get_source(self, identity: Identity) -> TokenSource:
        """Return the source of the token of an identity."""
        if identity not in self._sources:
            self._sources[identity] = TokenSource(
                identity, self._store, renew=self._renew, tasks=self._tasks, limiter=self._limiter
            )
        return self._sources[identity]

    async def _renew(self, target: SignInTarget, old: Credential | None) -> Credential:
        """Refresh a credential, or sign in as the client itself."""
        requests = self._requests(target)
        if old is not None:
            return await requests.refresh(old)
        discovered = await self.discover(target)
        credential = replace(await requests.register(discovered, "", None), signed_in_at=time.time())
        scope = {"scope": discovered.scope or ""}
        return credential.add_tokens(await requests.request_tokens(credential, "client_credentials", scope))

    def _http(self, target: SignInTarget) -> GuardedHttp:
        return GuardedHttp(self._net, target.url, allow_private_addresses=self._allow_private_addresses)

    def _requests(self, target: SignInTarget) -> TokenRequests:
        return TokenRequests(self._http(target), target.settings)

    # --- sign-ins of people -------------------------------------------------------------------------------------------

    async def discover(
        self, target: SignInTarget, challenge: str | None = None, on_step: OnStep = lambda _: None
    ) -> Discovered:
        return await Discovery(self._http(target), target, on_step).discover(challenge)

    async def begin(self, identity: Identity, redirect_uri: str) -> PendingSignIn:
        """Find the authorization server, register a client and return the sign-in, which waits for a person."""
        found = await self.discover(identity.target)
        if not found.server.authorization_endpoint:
            raise ToolError(
                f"{identity.target.name} has no authorization endpoint", hint="use grant client_credentials"
            )
        credential, before = await self._register(identity, found, redirect_uri)
        scope = _merge_scopes(found.scope, before)
        return self.pending.add(identity, credential, found, scope)

    async def finish(self, fields: Mapping[str, str], browser: str | None = None) -> tuple[Identity, Credential]:
        """Finish the sign-in with the fields of its callback, which can be used once.

        `browser` is the cookie of the browser, unless the callback is on loopback.
        """
        pending = self.pending.take(fields.get("state", ""))
        if browser is not None and not hmac.compare_digest(pending.browser.encode(), browser.encode()):
            raise ToolError("the sign-in failed: it was not started in this browser. Start it again")
        pending.discovered.server.check_issuer(fields.get("iss"))
        code = check_answer(fields)
        requests = self._requests(pending.identity.target)
        credential = replace(pending.credential, scope=pending.scope or "", signed_in_at=time.time())
        credential = credential.add_tokens(await requests.exchange_code(credential, code, pending.verifier))
        await self.get_source(pending.identity).store(credential)
        return pending.identity, credential

    async def try_to_finish(self, pending: PendingSignIn, fields: Mapping[str, str]) -> bool:
        """Finish this sign-in. Return False if the fields belong to another one, or to none."""
        try:
            await self.finish(fields)
        except ToolError:
            if self.pending.has(pending):
                return False
            raise
        return True

    async def begin_device(self, identity: Identity) -> tuple[JsonObject, Credential]:
        """Start a device flow: return its codes and URL, and the credential for `finish_device`."""
        found = await self.discover(identity.target)
        if not found.server.device_authorization_endpoint:
            raise ToolError(
                f"{found.server.issuer} does not support the device flow: device_authorization_endpoint is missing",
                hint=f"{identity.command} --no-browser",
            )
        credential, before = await self._register(identity, found, LOOPBACK_REDIRECTS[0])
        found = replace(found, scope=_merge_scopes(found.scope, before))
        codes = await self._requests(identity.target).request_device(found, credential)
        return codes, replace(credential, scope=found.scope or "")

    async def finish_device(self, identity: Identity, codes: JsonMapping, credential: Credential) -> Credential:
        """Wait until the person has signed in on another device."""
        interval = _read_number(codes.get("interval"), DEFAULT_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS)
        lifetime = _read_number(codes.get("expires_in"), MAX_DEVICE_SECONDS, MAX_DEVICE_SECONDS)
        deadline = time.monotonic() + lifetime
        form = {"device_code": codes["device_code"]}
        requests = self._requests(identity.target)
        while time.monotonic() < deadline:
            await asyncio.sleep(interval)
            try:
                answer = await requests.request_tokens(credential, DEVICE_GRANT, form)
            except TokenRejected as error:
                match error.fields.get("error"):
                    case "authorization_pending":
                        continue
                    case "slow_down":
                        interval = min(interval + DEFAULT_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS)
                        continue
                raise
            done = replace(credential.add_tokens(answer), signed_in_at=time.time())
            await self.get_source(identity).store(done)
            return done
        raise ToolError("the sign-in failed: nobody entered the code in time")

    async def _register(
        self, identity: Identity, found: Discovered, redirect_uri: str
    ) -> tuple[Credential, Credential | None]:
        """Return a credential with a client, and the stored one. A client that was registered before is used again."""
        before = await self.get_source(identity).read()
        server = found.server
        is_same = before is not None and (before.issuer, before.redirect_uri) == (server.issuer, redirect_uri)
        if before is not None and is_same and identity.target.settings.client_id is None:
            kept = replace(before.drop_tokens(), token_endpoint=server.token_endpoint, resource=found.resource)
            return replace(kept, user="", missing_scope=""), before
        client_url = f"{self.public_url}{CLIENT_PATH}" if (self.public_url or "").startswith("https://") else None
        return await self._requests(identity.target).register(found, redirect_uri, client_url), before

    async def sign_out(self, identity: Identity) -> bool:
        """Delete the sign-in and revoke its tokens. Return whether there was one."""
        source = self.get_source(identity)
        credential = await source.read()
        if credential is None:
            return False
        await source.update(lambda _: None)
        with suppress(ToolError):  # the tokens are deleted here; they expire there
            await self._requests(identity.target).revoke(credential)
        return True

    # --- state --------------------------------------------------------------------------------------------------------

    async def describe(self, identity: Identity) -> JsonObject:
        """Return the state of a sign-in, without secrets."""
        credential = await self.get_source(identity).read() or NO_CREDENTIAL
        current = credential if credential.is_usable else NO_CREDENTIAL
        expires = current.expires_at
        return {
            "account": identity.account or None,
            "agent": identity.subject or None,
            "signed_in": credential.is_usable,
            "user": current.user or None,
            "expires_at": None if expires is None else in_utc(expires, "seconds"),
            "refreshes": bool(credential.refresh_token),
            "scope": credential.scope or None,
            "issuer": credential.issuer or None,
        }

    async def list_identities(self, target: SignInTarget) -> list[Identity]:
        """Return the identities of the target: those of its settings, and those that are stored."""
        subject = "" if target.settings.shared else DEFAULT_AGENT
        accounts = target.accounts or ("",)
        found = {(account, subject): None for account in accounts}
        for key in await run_in_thread(self._store.list_keys):
            if key.target == target.make_key().target and key.account in accounts:
                found[key.account, key.subject] = None
        return [Identity(target, *each) for each in found]

    def build_client_document(self) -> JsonObject | None:
        """Return the metadata document of this client, or None without an https URL."""
        if not (self.public_url or "").startswith("https://"):
            return None
        return {
            "client_id": f"{self.public_url}{CLIENT_PATH}",
            "client_name": "OneTool",
            "client_uri": self.public_url,
            "redirect_uris": [f"{self.public_url}{CALLBACK_PATH}", *LOOPBACK_REDIRECTS],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }


def make_server_target(name: str, server: Server) -> SignInTarget | None:
    """Return what to sign in to for a server, or None if it has no URL or its own header Authorization."""
    if server.url is None or any(header.lower() == "authorization" for header in server.headers):
        return None
    return SignInTarget(
        name,
        server.url,
        server.auth or OAuth(),
        accounts=tuple(server.accounts),
        headers=tuple(server.headers.items()),
        is_optional=server.auth is None and not server.accounts,
    )


def identify(target: SignInTarget, account: str = "", agent: str = DEFAULT_AGENT) -> Identity:
    """Return the identity for an account and an agent. Raise if the settings do not have the account."""
    account = account or (target.accounts[0] if target.accounts else "")
    if account and account not in target.accounts:
        raise ConfigError(
            describe_unknown_account(target.name, account, target.accounts),
            hint=f"add it to accounts of {target.name} in onetool.yaml",
        )
    return Identity(target, account, "" if target.settings.shared else agent)


def _merge_scopes(scope: str | None, before: Credential | None) -> str | None:
    """Add the scope that a call needed, and keep what was granted before."""
    if before is None or not before.missing_scope:
        return scope
    words = [*before.scope.split(), *(scope or "").split(), *before.missing_scope.split()]
    return " ".join(dict.fromkeys(words))


def _read_number(value: Any, default: float, maximum: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return min(float(value), maximum) if is_number else default
