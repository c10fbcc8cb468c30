"""Find a target's authorization server, by RFC 9728 and then RFC 8414 or OpenID Connect.

Documents are parsed by the models of the MCP SDK. Everything in them is checked before it is used:
the issuer must be the expected one, the resource must belong to the server, and PKCE with S256 must
be supported. Each step is reported, for `onetool doctor`. This imports the SDK, so it is only
imported with the first sign-in.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar
from urllib.parse import unquote, urlencode, urlsplit

import httpx2
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls as list_metadata_urls,
    build_protected_resource_metadata_discovery_urls as list_resource_urls,
    extract_field_from_www_auth,
    issuers_match,
)
from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import AnyHttpUrl, BaseModel, ValidationError

from onetool.errors import NetworkError, ToolError
from onetool.net import Response
from onetool.net.oauth.credential import (
    Credential,
    SignInEndpoints,
    SignInTarget,
    TokenRejected,
    describe_code,
)
from onetool.net.oauth.guarded_http import PROBES, GuardedHttp
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

OK = 200
UNAUTHORIZED = 401
SERVER_ERROR = 500
MAX_SHOWN_CHARS = 200
S256 = "S256"
ENDPOINTS = (
    "authorization_endpoint", "token_endpoint", "registration_endpoint",
    "device_authorization_endpoint", "revocation_endpoint", "jwks_uri",
)  # fmt: skip
URL_ERRORS = frozenset({"url_parsing", "url_scheme"})  # of pydantic
SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+( [\x21\x23-\x5b\x5d-\x7e]+)*")
RESOURCE_DOCUMENT = "the protected resource metadata"
OnStep = Callable[[str], None]
Model = TypeVar("Model", bound=BaseModel)


def parse_document(model: type[Model], document: JsonMapping, source: str) -> Model:
    """Return the document. Raise an error that names the field that is missing or wrong."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        problem = "is not a valid URL" if first["type"] in URL_ERRORS else "is missing or invalid"
        raise invalid_document(source, f"{first['loc'][0]} {problem}") from None


def invalid_document(source: str, problem: str) -> ToolError:
    return NetworkError(f"cannot use {source}: {problem}", reason="protocol")


class ServerMetadata(OAuthMetadata):
    """Authorization server metadata, with the OpenID Connect fields.

    Which endpoints exist varies.
    """

    authorization_endpoint: AnyHttpUrl | None = None  # type: ignore[assignment]  # some issuers only publish keys
    token_endpoint: AnyHttpUrl | None = None  # type: ignore[assignment]
    device_authorization_endpoint: AnyHttpUrl | None = None
    jwks_uri: AnyHttpUrl | None = None

    @classmethod
    def parse(
        cls,
        document: JsonMapping,
        url: str,
        http: GuardedHttp,
        *,
        issuer: str | None,
        required: Sequence[str] = ("authorization_endpoint", "token_endpoint"),
        needs_pkce: bool = False,
    ) -> Self:
        """Return the metadata at a URL, which must name the issuer."""
        metadata = parse_document(cls, document, url)
        missing = next((name for name in required if getattr(metadata, name) is None), None)
        if missing is not None:
            raise invalid_document(url, f"{missing} is missing")
        methods = metadata.code_challenge_methods_supported
        if needs_pkce and S256 not in (methods or ()):
            problem = "is missing" if methods is None else f"does not contain {S256}"
            raise invalid_document(
                url, f"code_challenge_methods_supported {problem}: PKCE is required"
            )
        for name in ENDPOINTS:
            endpoint = getattr(metadata, name)
            if endpoint is not None:
                http.check_url(str(endpoint), name)
        if issuer is not None and not issuers_match(str(metadata.issuer), issuer):
            raise invalid_document(
                url, f"issuer is {quote(str(metadata.issuer), MAX_SHOWN_CHARS)}, not {issuer}"
            )
        return metadata

    def build_sign_in_url(
        self, credential: Credential, state: str, verifier: str, nonce: str = ""
    ) -> str:
        """Return the URL at which a person signs in. `verifier` is the PKCE secret."""
        digest = hashlib.sha256(verifier.encode()).digest()
        fields = {
            "response_type": "code",
            "client_id": credential.client_id,
            "redirect_uri": credential.redirect_uri,
            "state": state,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": S256,
            "resource": credential.resource,
            "scope": credential.scope,
            "prompt": "consent" if "offline_access" in credential.scope.split() else "",
            "nonce": nonce,
        }
        query = urlencode({name: value for name, value in fields.items() if value})
        url = str(self.authorization_endpoint)
        separator = "&" if urlsplit(url).query else "?"
        return f"{url}{separator}{query}"

    def read_code(self, fields: Mapping[str, str]) -> str:
        """Return the code in a sign-in's answer.

        Raise if it is an error, or of another server (RFC 9207).
        """
        iss = fields.get("iss")
        if iss is not None and iss != str(self.issuer):
            raise ToolError(
                "the sign-in failed: the answer comes from another authorization server (iss)"
            )
        if iss is None and self.authorization_response_iss_parameter_supported:
            raise ToolError(
                "the sign-in failed: the answer has no iss, although the authorization server"
                " sends it"
            )
        if "error" in fields or not fields.get("code"):
            code = describe_code(fields.get("error", ""))
            raise TokenRejected(
                f"the sign-in failed: the authorization server answered {code}", error=code
            )
        return fields["code"]


@dataclass(frozen=True, slots=True)
class Discovered:
    """A target's authorization server, and the resource and scope to request."""

    server: ServerMetadata
    resource: str = ""
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Discovery:
    """Finds one target's authorization server. `report` receives a line for each step."""

    http: GuardedHttp
    target: SignInTarget
    report: OnStep = lambda _: None

    async def discover(self) -> Discovered:
        if self.target.endpoints is not None:
            server = await self._find_api_server(self.target.endpoints)
            return Discovered(server, scope=" ".join(self.target.scopes))
        challenge = await self._probe()
        resource = await self._find_resource(challenge)
        server = await self._find_server(self._choose_issuer(resource))
        scope = self._choose_scope(challenge, resource, server)
        return Discovered(server, "" if resource is None else str(resource.resource), scope)

    # --- the resource -----------------------------------------------------------------------------

    async def _probe(self) -> str:
        """Request the server without a token and return its challenge."""
        url = self.target.url
        challenge = ""
        for probe in PROBES:
            source = f"servers.{self.target.name}.url"
            response = await self.http.post_json(url, probe, source, self.target.headers)
            challenge = response.header("www-authenticate") or ""
            shown = ", without WWW-Authenticate"
            if challenge:
                shown = f", WWW-Authenticate: {challenge[:MAX_SHOWN_CHARS]}"
            self.report(f"POST {url} ({probe['method']}) without a token: {response.status}{shown}")
            if response.status == UNAUTHORIZED:
                break
        return challenge

    async def _find_resource(self, challenge: str) -> ProtectedResourceMetadata | None:
        url_in_challenge = read_challenge(challenge, "resource_metadata")
        failure: NetworkError | None = None
        for url in list_resource_urls(url_in_challenge, self.target.url):
            source = "resource_metadata of WWW-Authenticate" if url == url_in_challenge else "url"
            response = await self.http.get(url, source)
            document = self._read_document(url, response)
            if document is not None:
                return self._parse_resource(document)
            if response.status >= SERVER_ERROR:
                failure = NetworkError(f"{url} returned {response.status}", reason="protocol")
        if failure is not None:  # it says nothing about whether there is a document
            raise failure
        self.report(
            "no protected resource metadata: the authorization server is expected at the origin of"
            " the server"
        )
        return None

    def _parse_resource(self, document: JsonMapping) -> ProtectedResourceMetadata:
        """Return the document. Raise if it is about another resource."""
        metadata = parse_document(ProtectedResourceMetadata, document, RESOURCE_DOCUMENT)
        resource = str(metadata.resource)
        self.http.check_url(resource, "resource")
        expected = resource_url_from_server_url(self.target.url)
        if not check_resource_allowed(requested_resource=expected, configured_resource=resource):
            raise invalid_document(
                RESOURCE_DOCUMENT, f"resource is {quote(resource, MAX_SHOWN_CHARS)}, not {expected}"
            )
        return metadata

    def _choose_issuer(self, resource: ProtectedResourceMetadata | None) -> str | None:
        """Return the issuer, or None if the server does not name one."""
        configured = self.target.settings.issuer
        if resource is None:
            return configured
        issuers = [str(issuer) for issuer in resource.authorization_servers]
        if configured is None:
            return issuers[0]
        if not any(issuers_match(configured, issuer) for issuer in issuers):
            raise NetworkError(
                f"{self.target.name} names the authorization server"
                f" {quote(issuers[0], MAX_SHOWN_CHARS)}, not {configured}",
                hint=f"check servers.{self.target.name}.auth.issuer",
                reason="host_not_allowed",
            )
        return configured

    def _choose_scope(
        self, challenge: str, resource: ProtectedResourceMetadata | None, server: ServerMetadata
    ) -> str:
        """Return the scope to request: from the settings, the challenge, or the resource."""
        if self.target.scopes:
            return " ".join(self.target.scopes)
        supported = (resource.scopes_supported if resource is not None else None) or ()
        scope = read_challenge(challenge, "scope") or " ".join(supported)
        if not SCOPE.fullmatch(scope):
            return ""
        needs_offline = (
            "offline_access" in (server.scopes_supported or ())
            and "offline_access" not in scope.split()
        )
        return f"{scope} offline_access" if needs_offline else scope

    # --- the authorization server -----------------------------------------------------------------

    async def _find_server(self, issuer: str | None) -> ServerMetadata:
        if issuer is not None:
            self.http.check_url(issuer, "authorization_servers")
        expected = issuer or _read_origin(self.target.url)
        urls = list_metadata_urls(issuer, self.target.url)
        server = await self._find_metadata(urls, expected, "authorization_servers", needs_pkce=True)
        if server is not None:
            self.report(f"the issuer is {server.issuer}")
            return server
        if issuer is not None:
            raise NetworkError(
                f"the authorization server {issuer} has no metadata: tried {' and '.join(urls)}",
                reason="protocol",
            )
        self.report(
            "no server metadata: using the endpoints /authorize, /token and /register of"
            f" {expected}"
        )
        names = {"authorization": "authorize", "token": "token", "registration": "register"}
        endpoints = {f"{name}_endpoint": f"{expected}/{path}" for name, path in names.items()}
        return ServerMetadata.model_validate({"issuer": expected, **endpoints})

    async def _find_metadata(
        self, urls: Sequence[str], issuer: str, source: str, *, needs_pkce: bool = False
    ) -> ServerMetadata | None:
        """Return the first metadata document at these URLs, which must name the issuer."""
        for url in urls:
            document = self._read_document(url, await self.http.get(url, source))
            if document is not None:
                return ServerMetadata.parse(
                    document, url, self.http, issuer=issuer, needs_pkce=needs_pkce
                )
        return None

    async def _find_api_server(self, endpoints: SignInEndpoints) -> ServerMetadata:
        """Return an API's server: the issuer in the settings, or what the tool names."""
        issuer = self.target.settings.issuer
        if issuer is not None:
            server = await self._find_metadata(
                list_metadata_urls(issuer, issuer), issuer, "openIdConnectUrl"
            )
            return server or self._use_endpoints(issuer, endpoints)
        if endpoints.token_url:
            return self._use_endpoints(_read_origin(endpoints.token_url), endpoints)
        url = endpoints.open_id_connect_url
        document = self._read_document(url, await self.http.get(url, "openIdConnectUrl"))
        if document is None:
            raise NetworkError(f"{url} has no metadata of a server", reason="protocol")
        server = ServerMetadata.parse(document, url, self.http, issuer=None)
        if not url.startswith(str(server.issuer).rstrip("/")):
            problem = (
                f"issuer is {quote(str(server.issuer), MAX_SHOWN_CHARS)}, which is another host"
            )
            raise invalid_document(url, problem)
        return server

    def _use_endpoints(self, issuer: str, endpoints: SignInEndpoints) -> ServerMetadata:
        """Return the endpoints that a tool names, which must be below the issuer's URL."""
        if not _is_below(endpoints.token_url, issuer):
            shown = quote(endpoints.token_url or endpoints.open_id_connect_url, MAX_SHOWN_CHARS)
            message = (
                f"{issuer} has no metadata, and {self.target.name} names {shown}, which is not"
                " below it"
            )
            hint = f"check tools.{self.target.name}.auth.issuer"
            raise NetworkError(message, hint=hint, reason="host_not_allowed")
        self.http.check_url(endpoints.token_url, "tokenUrl")
        document = {"issuer": issuer, "token_endpoint": endpoints.token_url}
        if endpoints.authorization_url:
            self.http.check_url(endpoints.authorization_url, "authorizationUrl")
            document["authorization_endpoint"] = endpoints.authorization_url
        return parse_document(ServerMetadata, document, self.target.name)

    def _read_document(self, url: str, response: Response) -> JsonObject | None:
        """Return the document, or None if there is none at this URL."""
        document = response.parse_object() if response.status == OK else None
        problem = ", not a JSON object" if response.status == OK and document is None else ""
        self.report(f"GET {url}: {response.status}{problem}")
        return document


def read_challenge(challenge: str, field: str) -> str | None:
    """Return a field from a WWW-Authenticate header."""
    response = httpx2.Response(
        UNAUTHORIZED, headers={b"www-authenticate": challenge.encode("latin-1", "replace")}
    )
    return extract_field_from_www_auth(response, field)


def _is_below(url: str, issuer: str) -> bool:
    """Return whether a URL is below the issuer's, without segments that lead elsewhere."""
    path = unquote(urlsplit(url).path)
    return url.startswith(f"{issuer.rstrip('/')}/") and ".." not in path and "\\" not in path


def _read_origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
