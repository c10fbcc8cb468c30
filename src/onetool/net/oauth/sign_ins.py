"""The application's sign-ins: request tokens, start and finish sign-ins, report their state."""

import hmac
import importlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import ConfigError, SignInRequired, ToolError
from onetool.net import ANY_HOST, Net
from onetool.net.oauth.credential import Credential, Identity, SignInTarget
from onetool.net.oauth.guarded_http import GuardedHttp
from onetool.net.oauth.pending import LoopbackCallback, PendingSignIn, PendingSignIns
from onetool.net.oauth.token_source import MAX_REFRESHES, TokenSource
from onetool.settings.access import OAuth
from onetool.settings.load import Loaded
from onetool.settings.model import Server
from onetool.util.context import ToolContext
from onetool.util.tasks import BackgroundTasks
from onetool.util.text import describe_unknown_account, quote
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.net.oauth.discovery import Discovered, OnStep, ServerMetadata
    from onetool.net.oauth.token_requests import DeviceCodes, TokenAnswer, TokenRequests
    from onetool.state.credentials import CredentialStore

CALLBACK_PATH = "/oauth/callback"
CLIENT_PATH = "/oauth/client.json"
HEAVY_MODULE = (  # it imports the MCP SDK, which would block the event loop
    "onetool.net.oauth.token_requests"
)
LOOPBACK_REDIRECTS = ("http://127.0.0.1/callback", "http://localhost/callback")
DEFAULT_AGENT = "default"
ACCEPT = "accept"  # the answer of a client that shows the URL
WAIT_SECONDS = 300.0  # for the person, after the client has shown the URL
NO_CREDENTIAL = Credential("", "", "")


class SignIns:
    """The sign-ins.

    `own_ports` are the ports of OneTool's own servers, which requests must not reach.

    `find_bundle_target` returns what to sign in to for the tools of a bundle, or None. It may block
    on disk access.
    """

    find_bundle_target: Callable[[str], SignInTarget | None]

    def __init__(self, own_ports: Callable[[], set[int]]) -> None:
        self._net = Net(ANY_HOST, own_ports=own_ports)
        self._tasks = BackgroundTasks(lambda _error: None)  # the callers get the errors
        self._limiter = anyio.CapacityLimiter(MAX_REFRESHES)
        self._sources: dict[Identity, TokenSource] = {}
        self.pending = PendingSignIns()

    def configure(self, loaded: Loaded, credentials: "CredentialStore") -> None:
        """Apply new settings."""
        self._store = credentials
        self._allow_private_addresses = loaded.settings.http.allow_private_addresses
        self._servers = loaded.settings.servers
        url = loaded.settings.auth.public_url
        self.public_url = url.rstrip("/") if url else None
        self._sources.clear()

    async def close(self) -> None:
        """Let refreshes end: a token that is not stored would be lost."""
        await self._tasks.wait()
        await self._net.close()

    # --- tokens -----------------------------------------------------------------------------------

    def get_source(self, identity: Identity) -> TokenSource:
        """Return an identity's token source."""
        if identity not in self._sources:
            self._sources[identity] = TokenSource(
                identity, self._store, renew=self._renew, tasks=self._tasks, limiter=self._limiter
            )
        return self._sources[identity]

    async def _renew(self, identity: Identity, old: Credential | None) -> Credential:
        """Refresh a credential, or sign in as the client itself."""
        requests = await self._open_requests(identity.target)
        if old is not None:
            return old.add_tokens(await requests.refresh(old))
        credential = await requests.register(await self.discover(identity.target), "")
        return credential.add_tokens(
            await requests.request_tokens(credential, "client_credentials", scope=credential.scope)
        )

    def _http(self, target: SignInTarget) -> GuardedHttp:
        return GuardedHttp(
            self._net, target.url, allow_private_addresses=self._allow_private_addresses
        )

    async def _open_requests(self, target: SignInTarget) -> "TokenRequests":
        await run_in_thread(importlib.import_module, HEAVY_MODULE)
        from onetool.net.oauth.token_requests import TokenRequests

        return TokenRequests(self._http(target), target.settings)

    # --- sign-ins of people -----------------------------------------------------------------------

    async def find_target(self, name: str) -> SignInTarget:
        """Return the server or API with this name. Raise if it cannot be signed in to."""
        if name in self._servers:
            target = make_server_target(name, self._servers[name])
            if target is None:
                reason = (
                    f"{name} cannot be signed in to: it runs on stdio or has its own header"
                    " Authorization"
                )
                raise ToolError(
                    reason, hint=f"set its credentials in servers.{name} in onetool.yaml"
                )
            return target
        target = await run_in_thread(self.find_bundle_target, name)
        if target is None:
            configured = ", ".join(self._servers) or "none"
            raise ToolError(
                f"no server or bundle with OAuth named {quote(name)}",
                hint=f"configured servers: {configured}",
            )
        return target

    async def discover(
        self, target: SignInTarget, on_step: "OnStep" = lambda _: None
    ) -> "Discovered":
        await run_in_thread(importlib.import_module, HEAVY_MODULE)
        from onetool.net.oauth.discovery import Discovery

        return await Discovery(self._http(target), target, on_step).discover()

    async def ask_client(self, error: SignInRequired, context: ToolContext) -> bool:
        """Show the URL to the person at the client, if that is on this machine.

        Return whether a sign-in was finished.

        The run does not count the time.
        """
        import mcp_types as types

        send_request = context.client.send_request
        if send_request is None or context.token_id or self.public_url:
            return False
        try:
            target = await self.find_target(str(error.fields.get("server", "")))
            identity = identify(target, str(error.fields.get("account", "")), context.agent_id)
            if target.is_machine:
                return False
            async with LoopbackCallback().listen(0) as callback:
                pending = await self.begin(identity, callback.redirect_uri)
                callback.accept(partial(self.try_to_finish, pending))
                message = f"Sign in to {identity.label}, so that a tool call can continue"
                request = types.ElicitRequest(
                    params=types.ElicitRequestURLParams(message=message, url=pending.url)
                )
                with context.client.waiting():
                    answer = await send_request(request)
                    if getattr(answer, "action", None) != ACCEPT:
                        self.pending.discard(pending)
                        return False
                    await callback.wait(WAIT_SECONDS)
        except ToolError:
            return False  # the call reports that a sign-in is required
        return True

    async def begin(self, identity: Identity, redirect_uri: str) -> PendingSignIn:
        """Find the authorization server, register a client and return the pending sign-in."""
        server, credential = await self._prepare(identity, redirect_uri)
        if server.authorization_endpoint is None:
            raise ToolError(
                f"{identity.target.name} has no authorization endpoint",
                hint="use grant client_credentials",
            )
        return self.pending.add(identity, credential, server)

    async def finish(
        self, fields: Mapping[str, str], browser: str | None = None
    ) -> tuple[Identity, Credential]:
        """Finish the sign-in with its callback fields, which can be used once.

        `browser` is the cookie of the browser, unless the callback is on loopback.
        """
        pending = self.pending.take(fields.get("state", ""))
        if browser is not None and not hmac.compare_digest(
            pending.browser.encode(), browser.encode()
        ):
            raise ToolError(
                "the sign-in failed: it was not started in this browser. Start it again"
            )
        code = pending.server.read_code(fields)
        requests = await self._open_requests(pending.identity.target)
        answer = await requests.exchange_code(pending.credential, code, pending.verifier)
        return pending.identity, await self._complete(pending.identity, pending.credential, answer)

    async def _complete(
        self, identity: Identity, credential: Credential, answer: "TokenAnswer"
    ) -> Credential:
        credential = credential.add_tokens(answer)
        await self.get_source(identity).store(credential)
        return credential

    async def try_to_finish(self, pending: PendingSignIn, fields: Mapping[str, str]) -> bool:
        """Finish this sign-in. Return False if the fields belong to another one, or to none."""
        try:
            await self.finish(fields)
        except ToolError:
            if self.pending.has(pending):
                return False
            raise
        return True

    async def begin_device(self, identity: Identity) -> tuple["DeviceCodes", Credential]:
        """Start a device flow: return its codes and URL, and the credential for `finish_device`."""
        server, credential = await self._prepare(identity, LOOPBACK_REDIRECTS[0])
        if server.device_authorization_endpoint is None:
            raise ToolError(
                f"{server.issuer} does not support the device flow: device_authorization_endpoint"
                " is missing",
                hint=f"{identity.command} --no-browser",
            )
        requests = await self._open_requests(identity.target)
        return await requests.request_device(server, credential), credential

    async def finish_device(
        self, identity: Identity, codes: "DeviceCodes", credential: Credential
    ) -> Credential:
        """Wait until the person has signed in on another device."""
        requests = await self._open_requests(identity.target)
        return await self._complete(
            identity, credential, await requests.wait_for_device(credential, codes)
        )

    async def _prepare(
        self, identity: Identity, redirect_uri: str
    ) -> tuple["ServerMetadata", Credential]:
        """Find the authorization server.

        Return it with a credential that has a client and the scope to request.

        A client that was registered before is used again.
        """
        target = identity.target
        discovered = await self.discover(target)
        server = discovered.server
        before = await self.get_source(identity).read()
        discovered = replace(discovered, scope=_merge_scopes(discovered.scope, before))
        is_same = before is not None and (before.issuer, before.redirect_uri) == (
            str(server.issuer),
            redirect_uri,
        )
        if before is not None and is_same and target.settings.client_id is None:
            return server, replace(
                before.drop_tokens(),
                token_endpoint=str(server.token_endpoint),
                resource=discovered.resource,
                scope=discovered.scope,
                missing_scope="",
                user="",
            )
        requests = await self._open_requests(target)
        client_url = None
        if self.public_url and self.public_url.startswith("https://"):
            client_url = f"{self.public_url}{CLIENT_PATH}"
        return server, await requests.register(discovered, redirect_uri, client_url)

    async def sign_out(self, identity: Identity) -> bool:
        """Delete the sign-in and revoke its tokens. Return whether there was one."""
        source = self.get_source(identity)
        credential = await source.read()
        if credential is None:
            return False
        await source.update(lambda _: None)
        with suppress(ToolError):  # the tokens are deleted here; they expire there
            await (await self._open_requests(identity.target)).revoke(credential)
        return True

    # --- state ------------------------------------------------------------------------------------

    async def describe(self, identity: Identity) -> JsonObject:
        """Return a sign-in's state, without secrets."""
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
        """Return the target's identities: those in its settings, and stored ones."""
        subject = "" if target.settings.shared else DEFAULT_AGENT
        accounts = target.accounts or ("",)
        identities = {(account, subject): None for account in accounts}
        own = Identity(target).key
        for key in await run_in_thread(self._store.list_keys):
            if key.target == own.target and key.account in accounts:
                identities[key.account, key.subject] = None
        return [Identity(target, *fields) for fields in identities]

    def build_client_document(self) -> JsonObject | None:
        """Return this client's metadata document, or None without an https URL."""
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
    """Return a server's sign-in target; None without a URL or with an own Authorization."""
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
    """Return the identity for an account and an agent.

    Raise if the settings do not have the account.
    """
    account = account or (target.accounts[0] if target.accounts else "")
    if account and account not in target.accounts:
        raise ConfigError(
            describe_unknown_account(target.name, account, target.accounts),
            hint=f"add it to accounts of {target.name} in onetool.yaml",
        )
    return Identity(target, account, "" if target.settings.shared else agent)


def _merge_scopes(scope: str, before: Credential | None) -> str:
    """Add the scope that a call needed, and keep what was granted before."""
    if before is None or not before.missing_scope:
        return scope
    words = f"{before.scope} {scope} {before.missing_scope}".split()
    return " ".join(dict.fromkeys(words))
