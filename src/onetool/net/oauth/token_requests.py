"""Requests to authorization servers: registration, tokens, devices and revocation.

Answers are parsed by the models of the MCP SDK. This imports the SDK, as `discovery` does.
"""

import asyncio
import base64
import secrets
import time
from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import quote as quote_url, urlencode

from mcp.client.auth.utils import issuers_match
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from onetool.errors import ConfigError, NetworkError, ToolError
from onetool.net import Request, Response
from onetool.net.oauth.credential import Credential, TokenRejected, describe_code
from onetool.net.oauth.discovery import Discovered, ServerMetadata, invalid_document, parse_document
from onetool.net.oauth.guarded_http import ACCEPT, FORM, GuardedHttp
from onetool.settings.access import OAuth
from onetool.util.text import quote
from onetool_child.json_types import JsonObject

SUCCESS = frozenset({200, 201})
SERVER_ERROR = 500
TOO_MANY = 429
AUTH_METHODS = (
    "none",
    "client_secret_post",
    "client_secret_basic",
)  # of clients that are registered here
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_SECONDS = 300
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
DEFAULT_INTERVAL_SECONDS = 5.0
MAX_INTERVAL_SECONDS = 60.0
MAX_DEVICE_SECONDS = 600.0
MAX_SHOWN_CHARS = 200
USER_CLAIMS = ("email", "preferred_username", "name", "sub")
Token = Annotated[str, Field(pattern=r"^[!-~]+$", max_length=65_536)]  # as a header may contain it


class TokenAnswer(OAuthToken):
    """A successful token response. A scope of None means that it did not change."""

    access_token: Token = Field(repr=False)
    refresh_token: Token | None = Field(default=None, repr=False)
    expires_in: float | None = Field(default=None, allow_inf_nan=False)  # type: ignore[assignment]  # some send 0.5
    id_token: str | None = Field(default=None, repr=False)

    @field_validator("refresh_token", "expires_in", "scope", "id_token", mode="wrap")
    @classmethod
    def _ignore_invalid(cls, value: Any, parse: ValidatorFunctionWrapHandler) -> Any:
        """Ignore a field that is not needed: the request may have used up the only refresh token."""
        try:
            return parse(value)
        except ValidationError:
            return None

    def read_user(self) -> str:
        """Return the user name, for people to see.

        The token came from the issuer, so it needs no signature.
        """
        import jwt

        try:
            claims = jwt.decode(self.id_token or "", options={"verify_signature": False})
        except jwt.InvalidTokenError:
            return ""
        names = (claims.get(name) for name in USER_CLAIMS)
        for name in names:
            if isinstance(name, str) and name.isprintable():
                return name[:MAX_SHOWN_CHARS]
        return ""


class DeviceCodes(BaseModel):
    """The response that starts a device flow: what the person enters, and where."""

    device_code: Token = Field(repr=False)
    user_code: Token
    verification_uri: Token
    interval: float = DEFAULT_INTERVAL_SECONDS
    expires_in: float = MAX_DEVICE_SECONDS


@dataclass(frozen=True, slots=True)
class TokenRequests:
    """Sends requests to one target's authorization server."""

    http: GuardedHttp
    settings: OAuth

    async def register(
        self, discovered: Discovered, redirect_uri: str, client_url: str | None = None
    ) -> Credential:
        """Return a credential without tokens: for a configured, documented or new client."""
        server = discovered.server
        credential = Credential(
            issuer=str(server.issuer),
            token_endpoint=str(server.token_endpoint),
            client_id=self.settings.client_id or "",
            redirect_uri=redirect_uri,
            resource=discovered.resource,
            revocation_endpoint=str(server.revocation_endpoint or ""),
            scope=discovered.scope,
        )
        if self.settings.client_id is not None:
            auth_method = self._choose_auth_method(
                server.token_endpoint_auth_methods_supported or []
            )
            return replace(credential, auth_method=auth_method)
        if client_url is not None and server.client_id_metadata_document_supported:
            return replace(credential, client_id=client_url)
        if server.registration_endpoint is None:
            raise ConfigError(
                f"{server.issuer} has no registration_endpoint: clients must be registered by hand",
                hint=(
                    "register a client there with the redirect URI"
                    f" {redirect_uri or 'http://127.0.0.1/callback'}, then set auth: {{type: oauth,"
                    " client_id: ...}"
                ),
            )
        return await self._register_client(server, credential)

    def _choose_auth_method(self, supported: list[str]) -> str:
        if self.settings.private_key is not None:
            return "private_key_jwt"
        if self.settings.client_secret is None:
            return "none"
        if supported and "client_secret_basic" not in supported:
            return "client_secret_post"
        return "client_secret_basic"

    async def _register_client(self, server: ServerMetadata, credential: Credential) -> Credential:
        supported = server.token_endpoint_auth_methods_supported or ()
        device_grants = [DEVICE_GRANT] if server.device_authorization_endpoint else []
        request = OAuthClientMetadata.model_validate(
            {
                "client_name": "OneTool",
                "redirect_uris": [credential.redirect_uri],
                "grant_types": ["authorization_code", "refresh_token", *device_grants],
                "token_endpoint_auth_method": next(
                    (way for way in AUTH_METHODS if way in supported), "none"
                ),
                "application_type": (
                    "native" if credential.redirect_uri.startswith("http://") else "web"
                ),
                "scope": credential.scope or None,
            }
        )
        url = str(server.registration_endpoint)
        body = request.model_dump(mode="json", exclude_none=True)
        response = await self.http.post_json(url, body, "registration_endpoint")
        answer = _parse_answer("registration of the client", response)
        client = parse_document(OAuthClientInformationFull, answer, f"the answer of {url}")
        secret = client.client_secret or ""
        method = client.token_endpoint_auth_method or ("client_secret_basic" if secret else "none")
        if method not in AUTH_METHODS or (method != "none" and not secret):
            raise invalid_document(
                f"the answer of {url}", f"token_endpoint_auth_method is {quote(method, 60)}"
            )
        return replace(
            credential, client_id=client.client_id, client_secret=secret, auth_method=method
        )

    # --- tokens -----------------------------------------------------------------------------------

    async def exchange_code(self, credential: Credential, code: str, verifier: str) -> TokenAnswer:
        form = {"code": code, "redirect_uri": credential.redirect_uri, "code_verifier": verifier}
        return await self.request_tokens(credential, "authorization_code", **form)

    async def refresh(self, credential: Credential) -> TokenAnswer:
        return await self.request_tokens(
            credential, "refresh_token", refresh_token=credential.refresh_token
        )

    async def request_tokens(self, credential: Credential, grant: str, **form: str) -> TokenAnswer:
        url = credential.token_endpoint
        form = {"grant_type": grant, **form, "resource": credential.resource}
        response = await self._post(credential, url, "token_endpoint", **form)
        return parse_document(
            TokenAnswer, _parse_answer("request of a token", response), f"the answer of {url}"
        )

    async def request_device(self, server: ServerMetadata, credential: Credential) -> DeviceCodes:
        """Start a device flow. The verification URL is checked."""
        url = str(server.device_authorization_endpoint)
        form = {"scope": credential.scope, "resource": credential.resource}
        response = await self._post(credential, url, "device_authorization_endpoint", **form)
        answer = _parse_answer("start of the device flow", response)
        codes = parse_document(DeviceCodes, answer, f"the answer of {url}")
        self.http.check_url(codes.verification_uri, "verification_uri")
        return codes

    async def wait_for_device(self, credential: Credential, codes: DeviceCodes) -> TokenAnswer:
        """Wait until the person has signed in on another device."""
        interval = codes.interval if codes.interval > 0 else DEFAULT_INTERVAL_SECONDS
        deadline = time.monotonic() + min(codes.expires_in, MAX_DEVICE_SECONDS)
        while time.monotonic() < deadline:
            await asyncio.sleep(min(interval, MAX_INTERVAL_SECONDS))
            try:
                return await self.request_tokens(
                    credential, DEVICE_GRANT, device_code=codes.device_code
                )
            except TokenRejected as error:
                if error.fields.get("error") == "slow_down":
                    interval += DEFAULT_INTERVAL_SECONDS
                elif error.fields.get("error") != "authorization_pending":
                    raise
        raise ToolError("the sign-in failed: nobody entered the code in time")

    async def revoke(self, credential: Credential) -> None:
        """Revoke the tokens at the authorization server, if it supports that."""
        token = credential.refresh_token or credential.access_token
        if credential.revocation_endpoint and token:
            await self._post(
                credential, credential.revocation_endpoint, "revocation_endpoint", token=token
            )

    async def _post(self, credential: Credential, url: str, source: str, **form: str) -> Response:
        """Send a form without its empty fields, and with the client's proof."""
        proof, headers = self._authenticate(credential)
        fields = {name: value for name, value in form.items() if value}
        content = urlencode(fields | proof).encode()
        return await self.http.send(
            Request("POST", url, (FORM, ACCEPT, *headers.items()), content), source
        )

    def _authenticate(self, credential: Credential) -> tuple[dict[str, str], dict[str, str]]:
        """Return fields and headers with the client's proof, for the configured issuer only."""
        issuer = self.settings.issuer
        if issuer is not None and not issuers_match(credential.issuer, issuer):
            message = (
                f"the sign-in is of {credential.issuer}, but the settings name the issuer {issuer}"
            )
            raise TokenRejected(message, error="invalid_grant")
        secret = credential.client_secret or self.settings.client_secret or ""
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
            key = load_pem_private_key((self.settings.private_key or "").encode(), None)
        except (ValueError, TypeError):
            raise ConfigError(
                "auth.private_key is not a private key in PEM format without a password"
            ) from None
        curves = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
        if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in curves:
            algorithm = curves[key.curve.name]
        elif isinstance(key, rsa.RSAPrivateKey):
            algorithm = "RS256"
        elif isinstance(key, ed25519.Ed25519PrivateKey):
            algorithm = "EdDSA"
        else:
            raise ConfigError(
                "auth.private_key has an unsupported type: use RSA, EC (P-256, P-384, P-521) or"
                " Ed25519"
            )
        now = int(time.time())
        claims = {
            "iss": credential.client_id,
            "sub": credential.client_id,
            "aud": credential.issuer,
            "iat": now,
            "exp": now + ASSERTION_SECONDS,
            "jti": secrets.token_urlsafe(24),
        }
        headers = {"kid": self.settings.key_id} if self.settings.key_id else None
        return jwt.encode(claims, key, algorithm, headers)


def _parse_answer(subject: str, response: Response) -> JsonObject:
    """Return the answer. Errors show only a rejection's error code."""
    answer = response.parse_object()
    if response.status in SUCCESS and answer is not None:
        return answer
    code = (answer or {}).get("error")
    if response.status >= SERVER_ERROR or response.status == TOO_MANY or not isinstance(code, str):
        raise NetworkError(
            f"{subject} failed: the authorization server returned {response.status}",
            reason="protocol",
        )
    shown = describe_code(code)
    raise TokenRejected(f"{subject} failed: the authorization server answered {shown}", error=shown)
