"""The metadata and keys of OpenID providers, fetched over the checked HTTP client and cached.

Only issuers in the settings are asked. What they answer is hostile: their name must be the expected one, documents are
small, redirects are not followed, and other hosts than their own must have public addresses and use https.

Keys are fetched again every ten minutes in the background, and at most once a minute because of an unknown key. If they
cannot be fetched for an hour, no JWT of the issuer is accepted until they can.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import NetworkError, ToolError
from onetool.logging import Log
from onetool.net import ANY_HOST, Net, Response
from onetool.oauth.discovery import ServerMetadata, invalid_document
from onetool.oauth.guarded_http import GuardedHttp
from onetool.transports.http.errors import ApiError
from onetool.util.background_tasks import BackgroundTasks
from onetool.util.clock_watch import Clock
from onetool_child.json_types import JsonMapping, JsonObject

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
# The type and curve of the key that each algorithm needs; None for a key without a curve.
KEY_TYPES = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", (None,))),
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519", "Ed448")),
}


@dataclass(slots=True)
class IssuerKey:
    """A published key. Its parsed form is created for an algorithm at its first use."""

    jwk: JsonMapping
    _parsed: JsonObject = field(default_factory=dict)

    def fits(self, key_id: str | None, algorithm: str) -> bool:
        kind, curves = KEY_TYPES[algorithm]
        is_type = self.jwk["kty"] == kind and self.jwk.get("crv") in curves
        return is_type and self.jwk.get("alg", algorithm) == algorithm and key_id in {None, self.jwk.get("kid")}

    def parse(self, algorithm: str) -> Any:
        """Return the key for PyJWT, or None if it is not valid."""
        import jwt

        if algorithm not in self._parsed:
            try:
                self._parsed[algorithm] = jwt.PyJWK(dict(self.jwk), algorithm)
            except Exception:  # noqa: BLE001 - hostile input: whatever the library raises, the key is not used
                self._parsed[algorithm] = None
        return self._parsed[algorithm]


@dataclass(slots=True)
class _IssuerState:
    metadata: ServerMetadata | None = None
    keys: tuple[IssuerKey, ...] = ()
    fetched: float = -MAX_AGE_SECONDS  # when keys were fetched
    attempted: float = -MAX_AGE_SECONDS  # when the last fetch began
    has_failed: bool = False  # whether the last fetch failed
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def find(self, key_id: str | None, algorithm: str) -> IssuerKey | None:
        """Return the key. Without an id, the only one that fits."""
        found = [key for key in self.keys if key.fits(key_id, algorithm)]
        return found[0] if len(found) == 1 or (found and key_id is not None) else None


class IssuerDirectory:
    """The issuers that are known to this server."""

    def __init__(self, log: Log, clock: Clock = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._states: dict[str, _IssuerState] = {}
        self._background = BackgroundTasks(lambda _error: None)  # failures are logged, and retried later

    async def find_key(self, issuer: str, key_id: str | None, algorithm: str) -> Any:
        """Return a public key of the issuer, or None. Raise an ApiError if the issuer cannot be reached."""
        state = await self._get_state(issuer)
        found = state.find(key_id, algorithm)
        if found is None and self._clock() - state.attempted >= UNKNOWN_KEY_SECONDS:
            await self._fetch(issuer, state)
            found = state.find(key_id, algorithm)
        if found is None and state.has_failed:
            raise _unavailable_error(issuer)
        return None if found is None else found.parse(algorithm)

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
            await self._fetch(issuer, state)
        elif now - state.fetched >= REFRESH_SECONDS and now - state.attempted >= UNKNOWN_KEY_SECONDS:
            state.attempted = now
            self._background.start(self._fetch(issuer, state, now))
        return state

    async def _fetch(self, issuer: str, state: _IssuerState, attempted: float | None = None) -> None:
        """Fetch metadata and keys, once for all requests that wait. Raise an ApiError if that fails."""
        begun = state.attempted if attempted is None else attempted
        async with state.lock:
            now = self._clock()
            is_done = state.attempted > begun  # by another request, while this one waited
            if is_done or (state.has_failed and now - state.attempted < RETRY_SECONDS):
                if state.has_failed:
                    raise _unavailable_error(issuer)
                return
            state.attempted = now
            try:
                async with self.connect(issuer) as http:
                    state.metadata = await _fetch_metadata(http, issuer)
                    response = await http.get(str(state.metadata.jwks_uri), "jwks_uri")
                state.keys = await run_in_thread(_parse_keys, response)
            except ToolError as error:
                state.has_failed = True
                self._log.event("auth.issuer", level="WARNING", issuer=issuer, text=error.message)
                raise _unavailable_error(issuer) from None
            state.fetched = now
            state.has_failed = False


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
    import jwt  # noqa: F401 - here and not with the first JWT, because importing it takes a while

    keys = _parse_object(response).get("keys")
    if not isinstance(keys, list):
        raise NetworkError("the issuer returned a document without keys", reason="protocol")
    return tuple(IssuerKey(key) for key in keys[:MAX_KEYS] if isinstance(key, dict) and _is_usable(key))


def _is_usable(jwk: JsonMapping) -> bool:
    """Return whether this is a public key for signatures, of a reasonable size."""
    key_id = jwk.get("kid")
    uses = jwk.get("key_ops", ["verify"])
    if jwk.get("use", "sig") != "sig" or not isinstance(uses, list) or "verify" not in uses:
        return False
    if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= MAX_KEY_ID_CHARS):
        return False
    if jwk.get("kty") == "RSA":
        modulus = jwk.get("n")
        exponent = jwk.get("e")
        if not isinstance(modulus, str) or not isinstance(exponent, str):
            return False
        return MIN_RSA_CHARS <= len(modulus) <= MAX_RSA_CHARS and len(exponent) <= MAX_EXPONENT_CHARS
    return jwk.get("kty") in {"EC", "OKP"}


def _unavailable_error(issuer: str) -> ApiError:
    message = f"cannot check the token: the issuer {issuer} cannot be reached, or its answer is not valid"
    return ApiError("issuer_unavailable", message, {"issuer": issuer}, {"retry-after": "5"})
