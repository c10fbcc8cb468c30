"""The metadata and keys of OpenID providers, fetched over the checked HTTP client and cached.

Only issuers in the settings are asked. What they answer is hostile: their name must be the expected
one, documents are small, redirects are not followed, and other hosts than their own must have
public addresses and use https.

Keys are fetched again every ten minutes in the background, and at most once a minute because of an
unknown key. If they cannot be fetched for an hour, no JWT of the issuer is accepted until they can.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import NetworkError, ToolError
from onetool.net import ANY_HOST, Net, Response
from onetool.net.oauth.discovery import ServerMetadata, invalid_document
from onetool.net.oauth.guarded_http import GuardedHttp
from onetool.server.http.errors import ApiError
from onetool.util.clock_watch import Clock
from onetool.util.logging import Log
from onetool.util.tasks import BackgroundTasks
from onetool_child.json_types import JsonObject

MAX_KEYS = 100
MAX_KEY_ID_CHARS = 200
# of the modulus in base64: 2048 to 8192 bits
MIN_RSA_CHARS = 340
MAX_RSA_CHARS = 1400
MAX_EXPONENT_CHARS = 12
REFRESH_SECONDS = 600.0
MAX_AGE_SECONDS = 3600.0
UNKNOWN_KEY_SECONDS = 60.0  # between fetches because of an unknown key
RETRY_SECONDS = 5.0  # between fetches while the issuer cannot be reached
OK = 200
# By the type and the curve of a key; None for a key without a curve.
ALGORITHMS = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}


class IssuerKey(NamedTuple):
    """A published key."""

    key_id: object
    algorithms: Collection[str]
    key: Any  # for PyJWT

    def fits(self, key_id: str | None, algorithm: str) -> bool:
        return algorithm in self.algorithms and key_id in (None, self.key_id)


@dataclass(slots=True)
class _IssuerState:
    metadata: ServerMetadata | None = None
    keys: tuple[IssuerKey, ...] = ()
    fetched: float = -MAX_AGE_SECONDS  # when keys were fetched
    attempted: float = -MAX_AGE_SECONDS  # when the last fetch began
    has_failed: bool = False  # whether the last fetch failed
    fetch: asyncio.Future[None] | None = None  # the last one

    def find(self, key_id: str | None, algorithm: str) -> IssuerKey | None:
        """Return the key. Without an id, the only one that fits."""
        keys = [key for key in self.keys if key.fits(key_id, algorithm)]
        if key_id is None and len(keys) > 1:
            return None
        return keys[0] if keys else None


class IssuerDirectory:
    """The issuers that are known to this server."""

    def __init__(self, log: Log, clock: Clock = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._states: dict[str, _IssuerState] = {}
        # Failures are logged, and retried later.
        self._background = BackgroundTasks(lambda _error: None)

    async def find_key(self, issuer: str, key_id: str | None, algorithm: str) -> Any:
        """Return a public key of the issuer, or None.

        Raise an ApiError if the issuer cannot be reached.
        """
        state = await self._get_state(issuer)
        key = state.find(key_id, algorithm)
        if key is None and self._clock() - state.attempted >= UNKNOWN_KEY_SECONDS:
            await asyncio.shield(self._start_fetch(issuer, state))
            key = state.find(key_id, algorithm)
        if key is None and state.has_failed:
            raise _unavailable_error(issuer)
        return None if key is None else key.key

    async def get_metadata(self, issuer: str) -> ServerMetadata:
        state = await self._get_state(issuer)
        assert state.metadata is not None
        return state.metadata

    @asynccontextmanager
    async def connect(self, issuer: str) -> AsyncIterator[GuardedHttp]:
        """Open a client for requests to an issuer, for a moment: the next request is minutes away."""
        net = Net(ANY_HOST)
        try:
            yield GuardedHttp(net, issuer)
        finally:
            await net.close()

    async def _get_state(self, issuer: str) -> _IssuerState:
        """Return the state with keys that are not too old."""
        state = self._states.setdefault(issuer, _IssuerState())
        now = self._clock()
        if now - state.fetched >= MAX_AGE_SECONDS:
            if state.has_failed and now - state.attempted < RETRY_SECONDS:
                raise _unavailable_error(issuer)
            await asyncio.shield(self._start_fetch(issuer, state))
        elif (
            now - state.fetched >= REFRESH_SECONDS and now - state.attempted >= UNKNOWN_KEY_SECONDS
        ):
            self._start_fetch(issuer, state)
        return state

    def _start_fetch(self, issuer: str, state: _IssuerState) -> asyncio.Future[None]:
        """Fetch metadata and keys, once for all requests that wait."""
        if state.fetch is None or state.fetch.done():
            state.attempted = self._clock()
            state.has_failed = False
            state.fetch = self._background.start(self._fetch(issuer, state))
        return state.fetch

    async def _fetch(self, issuer: str, state: _IssuerState) -> None:
        """Fetch metadata and keys. Raise an ApiError if that fails."""
        try:
            async with self.connect(issuer) as http:
                state.metadata = await _fetch_metadata(http, issuer)
                response = await http.get(str(state.metadata.jwks_uri), "jwks_uri")
            state.keys = await run_in_thread(_parse_keys, response)
        except ToolError as error:
            state.has_failed = True
            self._log.event("auth.issuer", level="WARNING", issuer=issuer, text=error.message)
            raise _unavailable_error(issuer) from None
        state.fetched = state.attempted


async def _fetch_metadata(http: GuardedHttp, issuer: str) -> ServerMetadata:
    url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    document = _parse_object(await http.get(url, "issuer"))
    return ServerMetadata.parse(document, url, http, issuer=issuer, required=("jwks_uri",))


def _parse_object(response: Response) -> JsonObject:
    document = response.parse_object() if response.status == OK else None
    if document is None:
        raise invalid_document(response.url, f"status {response.status}, or not a JSON object")
    return document


def _parse_keys(response: Response) -> tuple[IssuerKey, ...]:
    keys = _parse_object(response).get("keys")
    if not isinstance(keys, list):
        raise NetworkError("the issuer returned a document without keys", reason="protocol")
    return tuple(filter(None, map(_parse_key, keys[:MAX_KEYS])))


def _parse_key(jwk: Any) -> IssuerKey | None:
    """Return the key; None unless it is a public key for signatures, of a reasonable size."""
    import jwt

    try:
        key_id = jwk.get("kid")
        if jwk.get("use", "sig") != "sig" or "verify" not in jwk.get("key_ops", ["verify"]):
            return None
        if key_id is not None and len(key_id) > MAX_KEY_ID_CHARS:
            return None
        if jwk["kty"] == "RSA" and not MIN_RSA_CHARS <= len(jwk["n"]) <= MAX_RSA_CHARS:
            return None
        if jwk["kty"] == "RSA" and len(jwk["e"]) > MAX_EXPONENT_CHARS:
            return None
        algorithms = ALGORITHMS[jwk["kty"], jwk.get("crv")]
        allowed = [algorithm for algorithm in algorithms if jwk.get("alg", algorithm) == algorithm]
        return IssuerKey(key_id, allowed, jwt.PyJWK(jwk, algorithms[0]).key)
    except Exception:  # noqa: BLE001 - hostile input: whatever is wrong with a key, it is not used
        return None


def _unavailable_error(issuer: str) -> ApiError:
    message = (
        f"cannot check the token: the issuer {issuer} cannot be reached, or its answer is not valid"
    )
    return ApiError("issuer_unavailable", message, {"issuer": issuer}, {"retry-after": "5"})
