"""Requests to the endpoints of an authorization server: registration, tokens, devices and revocation."""

import base64
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote as quote_url

from pydantic import ValidationError

from onetool.config.model import OAuth
from onetool.errors import ConfigError, NetworkError, ToolError
from onetool.net import Response
from onetool.oauth.credential import Credential, TokenAnswer
from onetool.oauth.discovery import Discovered, invalid_document, is_same_issuer
from onetool.oauth.guarded_http import GuardedHttp
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

SUCCESS = frozenset({200, 201})
SERVER_ERROR = 500
TOO_MANY = 429
AUTH_METHODS = ("none", "client_secret_post", "client_secret_basic")  # of clients that are registered here
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

    async def register(self, discovered: Discovered, redirect_uri: str, client_url: str | None) -> Credential:
        """Return a credential without tokens: with the client of the settings, a client document, or a new client."""
        server = discovered.server
        credential = Credential(
            issuer=server.issuer,
            token_endpoint=server.token_endpoint,
            client_id=self._settings.client_id or "",
            redirect_uri=redirect_uri,
            resource=discovered.resource,
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
        return await self._register_client(discovered, credential)

    def _choose_auth_method(self, supported: tuple[str, ...]) -> str:
        if self._settings.private_key is not None:
            return "private_key_jwt"
        if self._settings.client_secret is None:
            return "none"
        return "client_secret_post" if supported and "client_secret_basic" not in supported else "client_secret_basic"

    async def _register_client(self, discovered: Discovered, credential: Credential) -> Credential:
        from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata

        server = discovered.server
        device_grants = [DEVICE_GRANT] if server.device_authorization_endpoint else []
        request = OAuthClientMetadata.model_validate(
            {
                "client_name": "OneTool",
                "redirect_uris": [credential.redirect_uri],
                "grant_types": ["authorization_code", "refresh_token", *device_grants],
                "token_endpoint_auth_method": next((way for way in AUTH_METHODS if way in server.auth_methods), "none"),
                "application_type": "native" if credential.redirect_uri.startswith("http://") else "web",
                "scope": discovered.scope,
            }
        )
        url = server.registration_endpoint
        body = request.model_dump(mode="json", exclude_none=True)
        answer = _parse_answer(
            "registration of the client", await self._http.post_json(url, body, "registration_endpoint")
        )
        try:
            client = OAuthClientInformationFull.model_validate(answer)
        except ValidationError:
            raise _invalid_answer(url, "client_id is missing, or another field is invalid") from None
        secret = client.client_secret or ""
        method = client.token_endpoint_auth_method or ("client_secret_basic" if secret else "none")
        if method not in AUTH_METHODS or (method != "none" and not secret):
            raise _invalid_answer(url, f"token_endpoint_auth_method is {quote(method, 60)}")
        return replace(credential, client_id=client.client_id, client_secret=secret, auth_method=method)

    # --- tokens -------------------------------------------------------------------------------------------------------

    async def exchange_code(self, credential: Credential, code: str, verifier: str) -> TokenAnswer:
        form = {"code": code, "redirect_uri": credential.redirect_uri, "code_verifier": verifier}
        return await self.request_tokens(credential, "authorization_code", form)

    async def refresh(self, credential: Credential) -> Credential:
        form = {"refresh_token": credential.refresh_token}
        return credential.add_tokens(await self.request_tokens(credential, "refresh_token", form))

    async def request_tokens(self, credential: Credential, grant: str, form: Mapping[str, str]) -> TokenAnswer:
        url = credential.token_endpoint
        form = {"grant_type": grant, **form, "resource": credential.resource}
        response = await self._post(credential, url, form, "token_endpoint")
        return _parse_tokens(_parse_answer("request of a token", response), url)

    async def request_device(self, discovered: Discovered, credential: Credential) -> JsonObject:
        """Return the codes of a device flow. The verification URL is checked."""
        url = discovered.server.device_authorization_endpoint
        form = {"scope": discovered.scope or "", "resource": credential.resource}
        response = await self._post(credential, url, form, "device_authorization_endpoint")
        answer = _parse_answer("start of the device flow", response)
        for name in ("device_code", "user_code", "verification_uri"):
            if not isinstance(answer.get(name), str) or not TOKEN.fullmatch(answer[name]):
                raise _invalid_answer(url, f"{name} is missing")
        self._http.check_url(answer["verification_uri"], "verification_uri")
        return answer

    async def revoke(self, credential: Credential) -> None:
        """Revoke the tokens at the authorization server, if it supports that."""
        token = credential.refresh_token or credential.access_token
        if credential.revocation_endpoint and token:
            await self._post(credential, credential.revocation_endpoint, {"token": token}, "revocation_endpoint")

    async def _post(self, credential: Credential, url: str, form: Mapping[str, str], source: str) -> Response:
        """Send a form without its empty fields, and with the proof of the client."""
        proof, headers = self._authenticate(credential)
        form = {name: value for name, value in form.items() if value}
        return await self._http.post_form(url, {**form, **proof}, source, headers)

    def _authenticate(self, credential: Credential) -> tuple[dict[str, str], dict[str, str]]:
        """Return fields and headers with the proof of the client, which only the issuer in the settings gets."""
        issuer = self._settings.issuer
        if issuer is not None and not is_same_issuer(credential.issuer, issuer):
            message = f"the sign-in is of {credential.issuer}, but the settings name the issuer {issuer}"
            raise TokenRejected(message, error="invalid_grant")
        secret = credential.client_secret or self._settings.client_secret or ""
        client_id = credential.client_id
        match credential.auth_method:
            case "client_secret_basic":
                pair = f"{quote_url(client_id, safe='')}:{quote_url(secret, safe='')}"
                return {}, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
            case "client_secret_post":
                return {"client_id": client_id, "client_secret": secret}, {}
            case "private_key_jwt":
                assertion = self._sign_assertion(credential)
                return {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}, {}
        return {"client_id": client_id}, {}

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
        raise _invalid_answer(url, "access_token is missing or invalid")
    if str(answer.get("token_type", "bearer")).lower() != "bearer":
        raise _invalid_answer(url, f"token_type is {quote(str(answer['token_type']), 60)}, not Bearer")
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


def _invalid_answer(url: str, problem: str) -> ToolError:
    return invalid_document(f"the answer of {url}", problem)


def _parse_answer(subject: str, response: Response) -> JsonObject:
    """Return the answer. Errors never contain more of a rejection than its error code."""
    answer = response.parse_object()
    if response.status in SUCCESS and answer is not None:
        return answer
    code = (answer or {}).get("error")
    if response.status >= SERVER_ERROR or response.status == TOO_MANY or not isinstance(code, str):
        raise NetworkError(f"{subject} failed: the authorization server returned {response.status}", reason="protocol")
    shown = code if ERROR_CODE.fullmatch(code) else "an invalid error code"
    raise TokenRejected(f"{subject} failed: the authorization server answered {shown}", error=shown)
