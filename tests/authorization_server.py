"""An authorization server and an MCP server that it protects, for tests: real HTTP on two ports of
loopback.

It supports protected resource and server metadata, dynamic registration, client metadata documents,
authorization codes with PKCE, rotation of refresh tokens with reuse detection, the device flow,
client credentials and signed assertions. `Knobs` makes it misbehave, `counts` counts what it was
asked. Whoever opens the authorization URL has signed in: the parameter `user` of that URL says as
whom.
"""

import asyncio
import base64
import hashlib
import json
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
import jwt
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
START_SECONDS = 20
JsonObject = dict[str, Any]


@dataclass
class Knobs:
    """The behavior of the server.

    A value of None in `metadata` or `resource_metadata` removes the field.
    """

    expires_in: float | None = 3600
    rotates: bool = True
    issues_refresh_tokens: bool = True
    keys: JsonObject = field(default_factory=dict)  # public keys of clients, by id
    clients: dict[str, str] = field(
        default_factory=dict
    )  # secrets of clients that are registered in advance
    metadata: JsonObject = field(default_factory=dict)
    resource_metadata: JsonObject = field(default_factory=dict)
    challenge: str | None = None  # the header WWW-Authenticate
    scope: str = "read"  # that calls of tools need
    iss: str | None = ""  # of authorization responses; empty for the right one, None for none
    redirects_metadata_to: str = ""
    has_metadata: bool = True  # of the authorization server
    delay_seconds: float = 0.0  # of metadata documents
    padding_bytes: int = 0  # of metadata documents
    refresh_status: int = 200
    refresh_delay_seconds: float = 0.0
    device_denials: int = 1  # polls before the device flow is approved
    token_response: JsonObject = field(default_factory=dict)  # replaces fields of token responses


@dataclass
class Family:
    """The tokens of one sign-in. A refresh token that is used twice revokes all of them."""

    user: str
    client: str
    scope: str
    resource: str
    is_revoked: bool = False
    refresh_token: str = ""


class AuthorizationServer:
    """The server. `url` is the MCP server, `issuer` the authorization server, `api` an API without
    metadata.
    """

    def __init__(self) -> None:
        self.knobs = Knobs()
        self.counts: Counter[str] = Counter()
        self.clients: dict[str, JsonObject] = {}
        self.access: dict[str, tuple[Family, float]] = {}  # token -> family and expiry
        self.refresh: dict[str, Family] = {}
        self.families: list[Family] = []
        self.requests: list[tuple[str, JsonObject]] = []  # endpoint and parameters
        self._codes: dict[str, JsonObject] = {}
        self._other_issuer = ""
        self._devices: dict[str, JsonObject] = {}
        self._resource_socket, self._issuer_socket = (
            socket.create_server(("127.0.0.1", 0)) for _ in range(2)
        )
        self.origin = f"http://127.0.0.1:{self._resource_socket.getsockname()[1]}"
        self.issuer = f"http://127.0.0.1:{self._issuer_socket.getsockname()[1]}"
        self.url, self.api = f"{self.origin}/mcp", f"{self.origin}/api"
        config = uvicorn.Config(
            self._build_app(),
            log_level="critical",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)

    @property
    def tokens(self) -> set[str]:
        """All secrets that were issued."""
        issued = {*self.access, *self.refresh}
        return issued | {
            client["client_secret"] for client in self.clients.values() if "client_secret" in client
        }

    @property
    def revoked(self) -> int:
        return sum(family.is_revoked for family in self.families)

    @contextmanager
    def run(self) -> Iterator["AuthorizationServer"]:
        thread = Thread(
            target=self._server.run,
            args=([self._resource_socket, self._issuer_socket],),
            daemon=True,
        )
        thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            assert time.monotonic() < deadline, "the authorization server did not start"
            time.sleep(0.01)
        try:
            yield self
        finally:
            self._server.should_exit = True
            thread.join(START_SECONDS)

    def expire_access_tokens(self) -> None:
        """Make the MCP server reject all access tokens, which clients believe to be valid."""
        self.access = {token: (family, 0.0) for token, (family, _) in self.access.items()}

    def accept_tokens_of(self, issuer: str) -> None:
        """Make the MCP server accept the tokens of another authorization server, which it asks for
        the user.
        """
        self._other_issuer = issuer
        self.knobs.resource_metadata = {"authorization_servers": [issuer]}

    def _ask_issuer(self, header: str) -> Family | None:
        answer = httpx2.get(
            f"{self._other_issuer}/me", headers={"authorization": header}, trust_env=False
        )
        return (
            Family(answer.json()["sub"], "", "", "")
            if answer.status_code == httpx2.codes.OK
            else None
        )

    # --- metadata ---------------------------------------------------------------------------------

    async def _send_document(self, document: JsonObject, changes: Mapping[str, Any]) -> Response:
        knobs = self.knobs
        await asyncio.sleep(knobs.delay_seconds)
        if knobs.redirects_metadata_to:
            return RedirectResponse(knobs.redirects_metadata_to)
        changed = {**document, **changes}
        content = json.dumps({key: value for key, value in changed.items() if value is not None})
        return Response(content + " " * knobs.padding_bytes, media_type="application/json")

    async def resource_metadata(self, _request: Request) -> Response:
        self.counts["resource_metadata"] += 1
        document = {
            "resource": self.url,
            "authorization_servers": [self.issuer],
            "scopes_supported": ["read"],
        }
        return await self._send_document(document, self.knobs.resource_metadata)

    async def server_metadata(self, _request: Request) -> Response:
        self.counts["server_metadata"] += 1
        if not self.knobs.has_metadata:
            return Response(status_code=404)
        document = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "device_authorization_endpoint": f"{self.issuer}/device",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "scopes_supported": ["read", "write", "offline_access"],
            "authorization_response_iss_parameter_supported": True,
            "token_endpoint_auth_methods_supported": [
                "none",
                "client_secret_basic",
                "private_key_jwt",
            ],
        }
        return await self._send_document(document, self.knobs.metadata)

    # --- clients ----------------------------------------------------------------------------------

    async def register(self, request: Request) -> Response:
        self.counts["register"] += 1
        client = {**await request.json(), "client_id": f"c_{secrets.token_hex(8)}"}
        self.clients[client["client_id"]] = client
        return JSONResponse(client, 201)

    def _authenticate_client(self, request: Request, form: Mapping[str, Any]) -> str | None:
        """Return the id of the client, or None if it does not prove who it is."""
        header = request.headers.get("authorization", "")
        if header.startswith("Basic "):
            name, _, secret = (
                base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
            )
            return name if self.knobs.clients.get(name) == secret else None
        if form.get("client_assertion_type") == ASSERTION_TYPE:
            return self._check_assertion(str(form["client_assertion"]))
        name = str(form.get("client_id", ""))
        needs_secret = name in self.knobs.clients or name in self.knobs.keys
        if needs_secret:
            return (
                name
                if name in self.knobs.clients
                and form.get("client_secret") == self.knobs.clients[name]
                else None
            )
        return name if name in self.clients or name.startswith("https://") else None

    def _check_assertion(self, assertion: str) -> str | None:
        name = jwt.decode(assertion, options={"verify_signature": False})["iss"]
        audiences = [self.issuer, f"{self.issuer}/token"]
        try:
            claims = jwt.decode(
                assertion, self.knobs.keys[name], ["ES256", "RS256"], audience=audiences
            )
        except (jwt.InvalidTokenError, KeyError):
            return None
        return name if claims["sub"] == name and "jti" in claims else None

    # --- authorization ----------------------------------------------------------------------------

    async def authorize(self, request: Request) -> Response:
        """Sign the user in and redirect to the client."""
        self.counts["authorize"] += 1
        query = dict(request.query_params)
        self.requests.append(("authorize", query))
        client = self.clients.get(query["client_id"], {})
        if "redirect_uris" in client and query["redirect_uri"] not in client["redirect_uris"]:
            return JSONResponse({"error": "invalid_redirect_uri"}, 400)
        if query.get("code_challenge_method") != "S256":
            return JSONResponse({"error": "invalid_request"}, 400)
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        iss = self.issuer if self.knobs.iss == "" else self.knobs.iss
        answer = {"code": code, "state": query["state"], **({} if iss is None else {"iss": iss})}
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode(answer)}", 302)

    async def device(self, request: Request) -> Response:
        self.counts["device"] += 1
        form = dict(await request.form())
        code = secrets.token_urlsafe(16)
        self._devices[code] = {**form, "polls": self.knobs.device_denials}
        answer = {
            "device_code": code,
            "user_code": "ABCD-EFGH",
            "verification_uri": f"{self.issuer}/device",
        }
        return JSONResponse({**answer, "expires_in": 60, "interval": 0.05})

    # --- tokens -----------------------------------------------------------------------------------

    async def token(self, request: Request) -> Response:
        form = {key: str(value) for key, value in (await request.form()).items()}
        grant = form.get("grant_type", "")
        self.counts[f"token {grant}"] += 1
        self.requests.append(("token", form))
        client = self._authenticate_client(request, form)
        if client is None:
            return JSONResponse({"error": "invalid_client"}, 401)
        match grant:
            case "authorization_code":
                return self._exchange_code(form, client)
            case "refresh_token":
                return await self._refresh(form, client)
            case "client_credentials":
                return self._issue(
                    Family(client, client, form.get("scope", ""), form.get("resource", "")), False
                )
            case value if value == DEVICE_GRANT:
                return self._poll_device(form, client)
        return JSONResponse({"error": "unsupported_grant_type"}, 400)

    def _exchange_code(self, form: JsonObject, client: str) -> Response:
        query = self._codes.pop(form.get("code", ""), None)
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).decode().rstrip("=")
        if query is None or query["code_challenge"] != challenge or query["client_id"] != client:
            return JSONResponse({"error": "invalid_grant"}, 400)
        if form.get("redirect_uri") != query["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        user = query.get("user", "ada")
        return self._issue(Family(user, client, query.get("scope", ""), query.get("resource", "")))

    async def _refresh(self, form: JsonObject, client: str) -> Response:
        await asyncio.sleep(self.knobs.refresh_delay_seconds)
        if self.knobs.refresh_status != httpx2.codes.OK:
            return JSONResponse({"error": "temporarily_unavailable"}, self.knobs.refresh_status)
        family = self.refresh.get(form.get("refresh_token", ""))
        if family is None or family.is_revoked or family.client != client:
            self.counts["rejected refreshes"] += 1
            return JSONResponse({"error": "invalid_grant"}, 400)
        if self.knobs.rotates and form["refresh_token"] != family.refresh_token:
            family.is_revoked = True
            return JSONResponse({"error": "invalid_grant"}, 400)
        return self._issue(family)

    def _poll_device(self, form: JsonObject, client: str) -> Response:
        waiting = self._devices.get(form.get("device_code", ""))
        if waiting is None:
            return JSONResponse({"error": "expired_token"}, 400)
        waiting["polls"] -= 1
        if waiting["polls"] >= 0:
            return JSONResponse({"error": "authorization_pending"}, 400)
        del self._devices[form["device_code"]]
        return self._issue(
            Family("device user", client, waiting.get("scope", ""), waiting.get("resource", ""))
        )

    def _issue(self, family: Family, can_refresh: bool = True) -> Response:
        if family not in self.families:
            self.families.append(family)
        token, lifetime = f"at_{secrets.token_urlsafe(24)}", self.knobs.expires_in
        self.access[token] = family, time.time() + (3600 if lifetime is None else lifetime)
        answer: JsonObject = {"access_token": token, "token_type": "Bearer", "scope": family.scope}
        if lifetime is not None:
            answer["expires_in"] = lifetime
        if can_refresh and self.knobs.issues_refresh_tokens:
            if not family.refresh_token or self.knobs.rotates:
                family.refresh_token = f"rt_{secrets.token_urlsafe(24)}"
                self.refresh[family.refresh_token] = family
            answer["refresh_token"] = family.refresh_token
        return JSONResponse({**answer, **self.knobs.token_response})

    async def revoke(self, request: Request) -> Response:
        self.counts["revoke"] += 1
        family = self.refresh.get(str((await request.form()).get("token", "")))
        if family is not None:
            family.is_revoked = True
        return Response()

    # --- the protected server ---------------------------------------------------------------------

    def find_family(self, header: str) -> Family | None:
        """Return the sign-in of a valid access token."""
        if self._other_issuer:
            return self._ask_issuer(header) if header else None
        family, expiry = self.access.get(header.removeprefix("Bearer "), (None, 0.0))
        return (
            family
            if family is not None and not family.is_revoked and time.time() < expiry
            else None
        )

    def find_owner(self, header: str) -> Family | None:
        """Return the sign-in of a token that was valid when the request arrived."""
        if self._other_issuer:
            return self._ask_issuer(header)
        return self.access.get(header.removeprefix("Bearer "), (None, 0.0))[0]

    def _build_app(self) -> Starlette:
        server = MCPServer("protected")

        @server.tool()
        async def whoami(ctx: Context) -> str:
            """Return the user whose token called."""
            request = ctx.request_context.request
            assert request is not None
            family = self.find_owner(request.headers["authorization"])
            return "" if family is None else family.user

        @server.tool()
        async def write_note(text: str) -> str:
            """Write a note, which needs the scope `write`."""
            return f"wrote {text}"

        async def get_me(request: Request) -> Response:
            family = self.find_family(request.headers.get("authorization", ""))
            return (
                JSONResponse({"user": family.user})
                if family
                else JSONResponse({"error": "no"}, 401)
            )

        async def count_other(_request: Request) -> Response:
            self.counts["other"] += 1
            return JSONResponse({})

        inner = server.streamable_http_app(
            streamable_http_path="/mcp", stateless_http=True, json_response=True
        )
        routes = [
            Route("/.well-known/oauth-protected-resource/mcp", self.resource_metadata),
            Route("/.well-known/oauth-authorization-server", self.server_metadata),
            Route("/register", self.register, methods=["POST"]),
            Route("/authorize", self.authorize),
            Route("/device", self.device, methods=["POST"]),
            Route("/token", self.token, methods=["POST"]),
            Route("/revoke", self.revoke, methods=["POST"]),
            Route("/api/me", get_me),
            Route("/api/other", count_other),
            Mount("/", self._protect(inner)),
        ]
        return Starlette(routes=routes, lifespan=inner.router.lifespan_context)

    def _protect(self, inner: Any) -> Any:
        async def serve(scope: Any, receive: Any, send: Any) -> None:
            request = Request(scope, receive)
            family = self.find_family(request.headers.get("authorization", ""))
            metadata = (
                f'Bearer resource_metadata="{self.origin}/.well-known/oauth-protected-resource/mcp"'
            )
            self.counts["mcp"] += 1
            if family is None:
                self.counts["401"] += 1
                challenge = metadata if self.knobs.challenge is None else self.knobs.challenge
                await Response("", 401, {"www-authenticate": challenge})(scope, receive, send)
                return
            body = await request.body()
            if (
                b'"write_note"' in body
                and b"tools/call" in body
                and "write" not in family.scope.split()
            ):
                self.counts["403"] += 1
                challenge = f'{metadata}, error="insufficient_scope", scope="write"'
                await Response("", 403, {"www-authenticate": challenge})(scope, receive, send)
                return
            waiting = [{"type": "http.request", "body": body, "more_body": False}]

            async def replay() -> Any:
                return waiting.pop() if waiting else await receive()

            await inner(scope, replay, send)

        return serve


@contextmanager
def authorization_server(**knobs: Any) -> Iterator[AuthorizationServer]:
    """Run a server with these knobs."""
    server = AuthorizationServer()
    server.knobs = Knobs(**knobs)
    with server.run():
        yield server


def approve(url: str, user: str = "ada") -> httpx2.Response:
    """Open an authorization URL as a browser does, sign in and return the answer of the callback."""
    sign = "&" if urlsplit(url).query else "?"
    return httpx2.get(
        f"{url}{sign}user={user}", follow_redirects=True, timeout=START_SECONDS, trust_env=False
    )


def find_callback(url: str, user: str = "ada") -> str:
    """Sign in and return the callback URL without opening it, as a person who pastes it."""
    answer = httpx2.get(f"{url}&user={user}", timeout=START_SECONDS, trust_env=False)
    return answer.headers["location"]
