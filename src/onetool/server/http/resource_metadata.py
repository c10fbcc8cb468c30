"""Metadata of this server as a protected resource (RFC 9728), from which MCP clients learn where to
sign in.
"""

from collections.abc import Callable, Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onetool.server.http.errors import ApiError, json_response
from onetool.server.http.request_checks import Bind, find_base_url, read_bind
from onetool.settings.access import Auth

PREFIX = "/.well-known/oauth-protected-resource"
RESOURCES = {PREFIX: "", f"{PREFIX}/mcp": "/mcp"}  # paths of documents and of their resources
METADATA_PATHS = frozenset(RESOURCES)


def build_challenge(error: ApiError, base_url: str | None, path: str) -> str:
    """Return the WWW-Authenticate header of a rejected request, with the URL of the metadata if
    there is one.
    """
    parameters = {}
    if base_url is not None:
        parameters["resource_metadata"] = f"{base_url}{PREFIX}{'/mcp' if path == '/mcp' else ''}"
    if error.details.get("reason"):
        parameters |= {
            "error": "invalid_token",
            "error_description": error.message.partition("\n")[0],
        }
    pairs = (f'{name}="{value}"' for name, value in parameters.items())
    return f"Bearer {', '.join(pairs)}".strip()


def routes(settings: Callable[[], Auth], bind: Bind | None) -> Iterator[Route]:
    async def show_metadata(request: Request) -> Response:
        auth = settings()
        base_url = find_base_url(request.scope, bind or read_bind(request.scope), auth.public_url)
        if not auth.issuers:
            raise ApiError(
                "not_found", f"no such path: {request.url.path} (auth.issuers is not set)"
            )
        if base_url is None:
            raise ApiError(
                "not_found",
                "the URL of this server is unknown",
                hint="set auth.public_url in onetool.yaml",
            )
        scopes = dict.fromkeys(scope for issuer in auth.issuers for scope in issuer.scopes)
        return json_response(
            {
                "resource": base_url + RESOURCES[request.url.path],
                "authorization_servers": [*dict.fromkeys(issuer.issuer for issuer in auth.issuers)],
                "scopes_supported": [*scopes],
                "bearer_methods_supported": ["header"],
                "resource_name": "OneTool",
            }
        )

    for path in RESOURCES:
        yield Route(path, show_metadata)
