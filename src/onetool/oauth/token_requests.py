"""Requests to the endpoints of an authorization server: registration, tokens, devices and revocation."""

import base64
import re
import secrets
import time
from dataclasses import replace
from typing import Any
from urllib.parse import quote as quote_url

from onetool.config.model import OAuth
from onetool.errors import ConfigError, NetworkError, ToolError
from onetool.net import Response
from onetool.oauth.credential import Credential, TokenAnswer
from onetool.oauth.discovery import Discovered, is_same_issuer
from onetool.oauth.guarded_http import GuardedHttp
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

CREATED = frozenset({200, 201})
OK = 200
SERVER_ERROR = 500
TOO_MANY = 429
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_SECONDS = 300
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")  # as a header may contain it
MAX_SHOWN_CHARS = 200
ERROR_CODE = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
USER_CLAIMS = ("email", "preferred_username", "name", "sub")


class TokenRejected(ToolError):
    """The authorization server rejected a request; `error` is its code, such as `invalid_grant`."""


class TokenRequests:
    """Sends requests to the authorization server of one target."""

    def __init__(self, http: GuardedHttp, settings: OAuth) -> None:
        self._http = http
        self._settings = settings

    async def register(self, found: Discovered, redirect_uri: str, client_url: str | None) -> Credential:
        """Return a credential without tokens: with the client of the settings, a client document, or a new client."""
        server = found.server
        credential = Credential(
            issuer=server.issuer,
            token_endpoint=server.token_endpoint,
            client_id=self._settings.client_id or "",
            redirect_uri=redirect_uri,
            resource=found.resource,
            revocation_endpoint=server.revocation_endpoint,
        )
        if self._settings.client_id is not None:
            return replace(credential, auth_method=self._choose_auth_method(server.auth_methods))
        if client_url is not None and server.accepts_client_documents:
            return replace(credential, client_id=client_url)
        if not server.registration_endpoint:
            raise ConfigError(
                f"{server.issuer} has no registration_endpoint: clients must be registered by hand",
                hint="register a client there with the redirect URI "
                f"{redirect_uri or 'http://127.0.0.1/callback'}, then set auth: {{type: oauth, client_id: ...}}",
            )
        return await self._register_client(found, credential)

    def _choose_auth_method(self, supported: tuple[str, ...]) -> str:
        if self._settings.private_key is not None:
            return "private_key_jwt"
        if self._settings.client_secret is None:
            return "none"
        return "client_secret_post" if supported and "client_secret_basic" not in supported else "client_secret_basic"

    async def _register_client(self, found: Discovered, credential: Credential) -> Credential:
        supported = found.server.auth_methods
        known = ("none", "client_secret_post", "client_secret_basic")
        method = next((each for each in known if each in supported), "none")
        request: JsonObject = {
            "client_name": "OneTool",
            "redirect_uris": [credential.redirect_uri],
            "grant_types": ["authorization_code", "refresh_token", DEVICE_GRANT]
            if found.server.device_authorization_endpoint
            else ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            "application_type": "native" if credential.redirect_uri.startswith("http://") else "web",
            **({"scope": found.scope} if found.scope else {}),
        }
        url = found.server.registration_endpoint
        response = await self._http.post_json(url, request, "registration_endpoint")
        answer = response.parse_object()
        if response.status not in CREATED or answer is None:
            raise _rejection("registration of the client", response)
        client_id = answer.get("client_id")
        secret = answer.get("client_secret") or ""
        assigned = answer.get("token_endpoint_auth_method") or ("client_secret_basic" if secret else "none")
        if not isinstance(client_id, str) or not client_id or not isinstance(secret, str):
            raise NetworkError(f"cannot use the answer of {url}: client_id is missing", reason="protocol")
        if assigned not in known or (assigned != "none" and not secret):
            raise NetworkError(
                f"cannot use the answer of {url}: token_endpoint_auth_method is {quote(str(assigned), 60)}",
                reason="protocol",
            )
        return replace(credential, client_id=client_id, client_secret=secret, auth_method=assigned)

    # --- tokens -------------------------------------------------------------------------------------------------------

    async def exchange_code(self, credential: Credential, code: str, verifier: str) -> TokenAnswer:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": credential.redirect_uri,
            "code_verifier": verifier,
        }
        return await self.request_tokens(credential, form)

    async def refresh(self, credential: Credential) -> Credential:
        form = {"grant_type": "refresh_token", "refresh_token": credential.refresh_token}
        return credential.add_tokens(await self.request_tokens(credential, form))

    async def request_device(self, found: Discovered, credential: Credential) -> JsonObject:
        """Return the codes of a device flow. The verification URL is checked."""
        url = found.server.device_authorization_endpoint
        form = {
            **({"scope": found.scope} if found.scope else {}),
            **({"resource": credential.resource} if credential.resource else {}),
        }
        form, headers = self._authenticate(credential, form)
        response = await self._http.post_form(url, form, "device_authorization_endpoint", headers)
        answer = response.parse_object()
        if response.status != OK or answer is None:
            raise _rejection("start of the device flow", response)
        for name in ("device_code", "user_code", "verification_uri"):
            if not isinstance(answer.get(name), str) or not TOKEN.fullmatch(answer[name]):
                raise NetworkError(f"cannot use the answer of {url}: {name} is missing", reason="protocol")
        self._http.check_url(answer["verification_uri"], "verification_uri")
        return answer

    async def revoke(self, credential: Credential) -> None:
        """Revoke the tokens at the authorization server, if it supports that."""
        token = credential.refresh_token or credential.access_token
        if credential.revocation_endpoint and token:
            form, headers = self._authenticate(credential, {"token": token})
            await self._http.post_form(credential.revocation_endpoint, form, "revocation_endpoint", headers)

    async def request_tokens(self, credential: Credential, form: dict[str, str]) -> TokenAnswer:
        if credential.resource:
            form = {**form, "resource": credential.resource}
        form, headers = self._authenticate(credential, form)
        response = await self._http.post_form(credential.token_endpoint, form, "token_endpoint", headers)
        answer = response.parse_object()
        if response.status != OK or answer is None:
            raise _rejection("request of a token", response)
        return _parse_tokens(answer, credential.token_endpoint)

    def _authenticate(self, credential: Credential, form: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the form and the headers with the proof of the client, which only the issuer in the settings gets."""
        issuer = self._settings.issuer
        if issuer is not None and not is_same_issuer(credential.issuer, issuer):
            message = f"the sign-in is of {credential.issuer}, but the settings name the issuer {issuer}"
            raise TokenRejected(message, error="invalid_grant")
        secret = credential.client_secret or self._settings.client_secret or ""
        client_id = credential.client_id
        match credential.auth_method:
            case "client_secret_basic":
                pair = f"{quote_url(client_id, safe='')}:{quote_url(secret, safe='')}"
                return form, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
            case "client_secret_post":
                return {**form, "client_id": client_id, "client_secret": secret}, {}
            case "private_key_jwt":
                assertion = self._sign_assertion(credential)
                return {**form, "client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}, {}
        return {**form, "client_id": client_id}, {}

    def _sign_assertion(self, credential: Credential) -> str:
        import jwt
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key((self._settings.private_key or "").encode(), None)
        except (ValueError, TypeError):
            raise ConfigError("auth.private_key is not a private key in PEM format without a password") from None
        curves = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
        if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in curves:
            algorithm = curves[key.curve.name]
        elif isinstance(key, rsa.RSAPrivateKey):
            algorithm = "RS256"
        elif isinstance(key, ed25519.Ed25519PrivateKey):
            algorithm = "EdDSA"
        else:
            raise ConfigError("auth.private_key has an unsupported type: use RSA, EC (P-256, P-384, P-521) or Ed25519")
        now = int(time.time())
        claims = {
            "iss": credential.client_id,
            "sub": credential.client_id,
            "aud": credential.issuer,
            "iat": now,
            "exp": now + ASSERTION_SECONDS,
            "jti": secrets.token_urlsafe(24),
        }
        headers = {"kid": self._settings.key_id} if self._settings.key_id else None
        return jwt.encode(claims, key, algorithm, headers)


def _parse_tokens(answer: JsonMapping, url: str) -> TokenAnswer:
    access = answer.get("access_token")
    refresh = answer.get("refresh_token")
    scope = answer.get("scope")
    if not isinstance(access, str) or not TOKEN.fullmatch(access):
        raise NetworkError(f"cannot use the answer of {url}: access_token is missing or invalid", reason="protocol")
    if str(answer.get("token_type", "bearer")).lower() != "bearer":
        kind = quote(str(answer["token_type"]), 60)
        raise NetworkError(f"cannot use the answer of {url}: token_type is {kind}, not Bearer", reason="protocol")
    id_token = answer.get("id_token")
    return TokenAnswer(
        access_token=access,
        refresh_token=refresh if isinstance(refresh, str) and TOKEN.fullmatch(refresh) else "",
        expires_in=_parse_seconds(answer.get("expires_in")),
        scope=scope if isinstance(scope, str) else None,
        user=_read_user(id_token),
        id_token=id_token if isinstance(id_token, str) else "",
    )


def _parse_seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return min(max(seconds, 0.0), 10.0**9) if seconds == seconds else None  # noqa: PLR0124 - NaN differs from itself


def _read_user(id_token: Any) -> str:
    """Return the name of the user, for people to see. The token came from the issuer, so it needs no signature."""
    import jwt

    if not isinstance(id_token, str):
        return ""
    try:
        claims = jwt.decode(id_token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        return ""
    names = (claims.get(name) for name in USER_CLAIMS)
    return next((name[:MAX_SHOWN_CHARS] for name in names if isinstance(name, str) and name.isprintable()), "")


def _rejection(subject: str, response: Response) -> ToolError:
    """Return the error for a failed request. It never contains more of the answer than its error code."""
    answer = response.parse_object() or {}
    code = answer.get("error")
    if response.status >= SERVER_ERROR or response.status == TOO_MANY or not isinstance(code, str):
        return NetworkError(f"{subject} failed: the authorization server returned {response.status}", reason="protocol")
    shown = code if ERROR_CODE.fullmatch(code) else "an invalid error code"
    return TokenRejected(f"{subject} failed: the authorization server answered {shown}", error=shown)
