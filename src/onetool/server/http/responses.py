"""JSON responses with ETags and conditional requests."""

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from onetool.admin.precondition import ANY, Precondition, compute_etag, encode

MEDIA_TYPE = "application/json"
NO_CACHE = "no-cache"


def json_response(
    data: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(encode(data), status, headers, MEDIA_TYPE)


def conditional_response(data: Any, request_headers: Headers) -> Response:
    """Return the data with its ETag, or 304 if the client already has it."""
    headers = {"etag": compute_etag(data), "cache-control": NO_CACHE}
    if not {headers["etag"], ANY}.isdisjoint(read_precondition(request_headers).unexpected):
        return Response(None, 304, headers)
    return json_response(data, 200, headers)


def read_precondition(request_headers: Headers) -> Precondition:
    """Return the ETags of a request. Weak ETags match only on reads."""
    unexpected = [tag.removeprefix("W/") for tag in _parse_etags(request_headers, "if-none-match")]
    return Precondition(_parse_etags(request_headers, "if-match"), unexpected)


def _parse_etags(request_headers: Headers, name: str) -> list[str]:
    return [
        tag.strip()
        for line in request_headers.getlist(name)
        for tag in line.split(",")
        if tag.strip()
    ]
