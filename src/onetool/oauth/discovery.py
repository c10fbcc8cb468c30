"""Finding the authorization server of a target: RFC 9728 for the resource, RFC 8414 or OpenID Connect for the server.

Everything that a server sends is checked before it is used: the issuer must be the expected one, the resource must
belong to the server, and PKCE with S256 must be supported. Each step is reported, for `onetool doctor`.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote, urlencode, urlsplit

from onetool.errors import NetworkError, ToolError
from onetool.net import Response
from onetool.oauth.credential import ApiEndpoints, SignInTarget
from onetool.oauth.guarded_http import GuardedHttp
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

OK = 200
UNAUTHORIZED = 401
SERVER_ERROR = 500
MAX_SHOWN_CHARS = 200
S256 = "S256"
ENDPOINTS = (
    *("authorization_endpoint", "token_endpoint", "registration_endpoint"),
    *("device_authorization_endpoint", "revocation_endpoint", "jwks_uri"),
)
SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+( [\x21\x23-\x5b\x5d-\x7e]+)*")
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "onetool", "version": "1"},
}
# Some servers accept one of these without a token.
PROBES = (
    {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}},
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO},
)
OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """The metadata of an authorization server."""

    issuer: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    registration_endpoint: str = ""
    device_authorization_endpoint: str = ""
    revocation_endpoint: str = ""
    jwks_uri: str = ""
    scopes_supported: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] = ()
    accepts_client_documents: bool = False  # URLs of documents as client ids
    sends_issuer: bool = False  # whether authorization responses have `iss`

    @classmethod
    def parse(
        cls,
        document: JsonMapping,
        url: str,
        http: GuardedHttp,
        *,
        required: Sequence[str] = ("authorization_endpoint", "token_endpoint"),
        needs_pkce: bool = True,
    ) -> Self:
        """Return the metadata. Raise an error that names the field that is missing or wrong."""
        for name in ("issuer", *required):
            if not isinstance(document.get(name), str) or not document[name]:
                raise invalid_document(url, f"{name} is missing")
        methods = document.get("code_challenge_methods_supported")
        if needs_pkce and (not isinstance(methods, list) or S256 not in methods):
            problem = "is missing" if methods is None else f"does not contain {S256}"
            raise invalid_document(url, f"code_challenge_methods_supported {problem}: PKCE is required")
        endpoints = {name: _read_endpoint(document, name, http) for name in ENDPOINTS}
        return cls(
            issuer=document["issuer"],
            **endpoints,
            scopes_supported=_read_strings(document.get("scopes_supported")),
            auth_methods=_read_strings(document.get("token_endpoint_auth_methods_supported")),
            accepts_client_documents=document.get("client_id_metadata_document_supported") is True,
            sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        )

    def build_sign_in_url(self, client_id: str, redirect_uri: str, state: str, verifier: str, **more: str) -> str:
        """Return the URL at which a person signs in. `verifier` is the secret of PKCE; empty fields are left out."""
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": S256,
            **{name: value for name, value in more.items() if value},
        }
        separator = "&" if urlsplit(self.authorization_endpoint).query else "?"
        return f"{self.authorization_endpoint}{separator}{urlencode(query)}"

    def check_issuer(self, iss: str | None) -> None:
        """Raise if the answer to a sign-in comes from another authorization server (RFC 9207)."""
        if iss is not None and iss != self.issuer:
            raise ToolError("the sign-in failed: the answer comes from another authorization server (iss)")
        if iss is None and self.sends_issuer:
            raise ToolError("the sign-in failed: the answer has no iss, although the authorization server sends it")


@dataclass(frozen=True, slots=True)
class Discovered:
    """The authorization server of a target, the resource to name in requests, and the scope to request."""

    server: ServerMetadata
    resource: str
    scope: str | None


class Discovery:
    """Finds the authorization server of one target. `on_step` receives a line for each step."""

    def __init__(self, http: GuardedHttp, target: SignInTarget, on_step: OnStep = lambda _: None) -> None:
        self._http = http
        self._target = target
        self._report = on_step

    async def discover(self, challenge: str | None = None) -> Discovered:
        """Find the server. `challenge` is the header WWW-Authenticate of a response, if there was one."""
        if self._target.endpoints is not None:
            return await self._read_api_endpoints(self._target.endpoints)
        if challenge is None:
            challenge = await self._probe()
        resource_document = await self._find_resource_document(challenge)
        resource = self._check_resource(resource_document)
        issuer = self._choose_issuer(resource_document)
        server = await self._find_server(issuer)
        scope = self._choose_scope(challenge, resource_document, server)
        return Discovered(server, resource, scope)

    # --- the resource -------------------------------------------------------------------------------------------------

    async def _probe(self) -> str:
        """Request the server without a token and return its challenge."""
        url = self._target.url
        challenge = ""
        for probe in PROBES:
            source = f"servers.{self._target.name}.url"
            response = await self._http.post_json(url, probe, source, self._target.headers)
            challenge = response.header("www-authenticate") or ""
            named = f", WWW-Authenticate: {challenge[:MAX_SHOWN_CHARS]}" if challenge else ", without WWW-Authenticate"
            self._report(f"POST {url} ({probe['method']}) without a token: {response.status}{named}")
            if response.status == UNAUTHORIZED:
                break
        return challenge

    async def _find_resource_document(self, challenge: str) -> JsonObject | None:
        from mcp.client.auth.utils import build_protected_resource_metadata_discovery_urls

        named = read_challenge(challenge, "resource_metadata")
        failure: NetworkError | None = None
        for url in build_protected_resource_metadata_discovery_urls(named, self._target.url):
            response = await self._http.get(url, "resource_metadata of WWW-Authenticate" if url == named else "url")
            document = self._read_document(url, response)
            if document is not None:
                return document
            if response.status >= SERVER_ERROR:
                failure = NetworkError(f"{url} returned {response.status}", reason="protocol")
        if failure is not None:  # it says nothing about whether there is a document
            raise failure
        self._report("no protected resource metadata: the authorization server is expected at the origin of the server")
        return None

    def _check_resource(self, document: JsonMapping | None) -> str:
        """Return the resource to name in requests. Raise if the document is about another one."""
        from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url

        expected = resource_url_from_server_url(self._target.url)
        if document is None:
            return ""
        resource = document.get("resource")
        if not isinstance(resource, str) or not resource:
            raise invalid_document("the protected resource metadata", "resource is missing")
        self._http.check_url(resource, "resource")
        if not check_resource_allowed(requested_resource=expected, configured_resource=resource):
            raise invalid_document(
                "the protected resource metadata", f"resource is {quote(resource, MAX_SHOWN_CHARS)}, not {expected}"
            )
        return resource

    def _choose_issuer(self, document: JsonMapping | None) -> str | None:
        """Return the issuer, or None if the server does not name one."""
        named = _read_strings(document.get("authorization_servers")) if document is not None else ()
        wanted = self._target.settings.issuer
        if document is not None and not named:
            raise invalid_document("the protected resource metadata", "authorization_servers is missing or empty")
        if wanted is None:
            return named[0] if named else None
        if named and not any(is_same_issuer(wanted, each) for each in named):
            raise NetworkError(
                f"{self._target.name} names the authorization server {quote(named[0], MAX_SHOWN_CHARS)}, not {wanted}",
                hint=f"check servers.{self._target.name}.auth.issuer",
                reason="host_not_allowed",
            )
        return wanted

    # --- the authorization server -------------------------------------------------------------------------------------

    async def _find_server(self, issuer: str | None) -> ServerMetadata:
        from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls

        if issuer is not None:
            self._http.check_url(issuer, "authorization_servers")
        expected = issuer or _read_origin(self._target.url)
        urls = build_oauth_authorization_server_metadata_discovery_urls(issuer, self._target.url)
        server = await self._find_metadata(urls, expected, "authorization_servers")
        if server is not None:
            self._report(f"the issuer is {server.issuer}")
            return server
        if issuer is not None:
            raise NetworkError(
                f"the authorization server {issuer} has no metadata: tried {' and '.join(urls)}", reason="protocol"
            )
        self._report(f"no server metadata: using the endpoints /authorize, /token and /register of {expected}")
        return ServerMetadata(expected, f"{expected}/authorize", f"{expected}/token", f"{expected}/register")

    async def _find_metadata(
        self, urls: Iterable[str], issuer: str, source: str, *, needs_pkce: bool = True
    ) -> ServerMetadata | None:
        """Return the first metadata document at these URLs, which must be of the issuer."""
        for url in urls:
            document = self._read_document(url, await self._http.get(url, source))
            if document is None:
                continue
            server = ServerMetadata.parse(document, url, self._http, needs_pkce=needs_pkce)
            if not is_same_issuer(server.issuer, issuer):
                raise invalid_document(url, f"issuer is {quote(server.issuer, MAX_SHOWN_CHARS)}, not {issuer}")
            return server
        return None

    def _choose_scope(self, challenge: str, document: JsonMapping | None, server: ServerMetadata) -> str | None:
        """Return the scope to request: of the settings, the challenge, or the resource; None for no parameter."""
        if self._target.scopes:
            return " ".join(self._target.scopes)
        supported = _read_strings((document or {}).get("scopes_supported"))
        scope = read_challenge(challenge, "scope") or " ".join(supported)
        if not SCOPE.fullmatch(scope):
            return None
        needs_offline = "offline_access" in server.scopes_supported and "offline_access" not in scope.split()
        return f"{scope} offline_access" if needs_offline else scope

    # --- APIs ---------------------------------------------------------------------------------------------------------

    async def _read_api_endpoints(self, endpoints: ApiEndpoints) -> Discovered:
        """Return the endpoints of an HTTP tool, which its definition names."""
        scope = " ".join(self._target.scopes) or None
        if self._target.settings.issuer:
            return Discovered(await self._find_api_server(self._target.settings.issuer, endpoints), "", scope)
        if not endpoints.token_url:
            url = endpoints.openid_url
            document = self._read_document(url, await self._http.get(url, "openIdConnectUrl"))
            if document is None:
                raise NetworkError(f"{url} has no metadata of a server", reason="protocol")
            server = ServerMetadata.parse(document, url, self._http, needs_pkce=False)
            if not url.startswith(server.issuer.rstrip("/")):
                problem = f"issuer is {quote(server.issuer, MAX_SHOWN_CHARS)}, which is another host"
                raise invalid_document(url, problem)
            return Discovered(server, "", scope)
        return Discovered(self._use_endpoints(_read_origin(endpoints.token_url), endpoints), "", scope)

    async def _find_api_server(self, issuer: str, endpoints: ApiEndpoints) -> ServerMetadata:
        """Return the server of an issuer in the settings: its metadata, or endpoints of the tool below its URL."""
        from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls

        urls = build_oauth_authorization_server_metadata_discovery_urls(issuer, issuer)
        server = await self._find_metadata(urls, issuer, "openIdConnectUrl", needs_pkce=False)
        if server is not None:
            return server
        if not _is_below(endpoints.token_url, issuer):
            named = quote(endpoints.token_url or endpoints.openid_url, MAX_SHOWN_CHARS)
            message = f"{issuer} has no metadata, and {self._target.name} names {named}, which is not below it"
            hint = f"check tools.{self._target.name}.auth.issuer"
            raise NetworkError(message, hint=hint, reason="host_not_allowed")
        return self._use_endpoints(issuer, endpoints)

    def _use_endpoints(self, issuer: str, endpoints: ApiEndpoints) -> ServerMetadata:
        self._http.check_url(endpoints.token_url, "tokenUrl")
        if endpoints.authorization_url:
            self._http.check_url(endpoints.authorization_url, "authorizationUrl")
        return ServerMetadata(issuer, endpoints.authorization_url, endpoints.token_url)

    def _read_document(self, url: str, response: Response) -> JsonObject | None:
        """Return the document, or None if there is none at this URL."""
        document = response.parse_object() if response.status == OK else None
        found = "not a JSON object" if response.status == OK and document is None else ""
        self._report(f"GET {url}: {response.status}{f', {found}' if found else ''}")
        return document


def read_challenge(challenge: str, field: str) -> str | None:
    """Return a field of a header WWW-Authenticate."""
    import httpx2
    from mcp.client.auth.utils import extract_field_from_www_auth

    response = httpx2.Response(UNAUTHORIZED, headers={b"www-authenticate": challenge.encode("latin-1", "replace")})
    return extract_field_from_www_auth(response, field)


def is_same_issuer(one: str, other: str) -> bool:
    """Return whether two issuers are equal; a root issuer may have a slash at its end."""
    return one == other or (one.rstrip("/") == other.rstrip("/") and urlsplit(one).path in {"", "/"})


def _is_below(url: str, issuer: str) -> bool:
    """Return whether a URL is below the URL of an issuer, without segments that lead elsewhere."""
    path = unquote(urlsplit(url).path)
    return url.startswith(f"{issuer.rstrip('/')}/") and ".." not in path and "\\" not in path


def _read_endpoint(document: JsonMapping, name: str, http: GuardedHttp) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise invalid_document("the metadata of the authorization server", f"{name} is not a URL")
    http.check_url(value, name)
    return value


def _read_strings(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _read_origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def invalid_document(url: str, problem: str) -> ToolError:
    return NetworkError(f"cannot use {url}: {problem}", reason="protocol")
