"""HTTP errors: an exception, its status, and a body `{"error": {"code", "message", "details"}}`.

Handlers raise a `ToolError` or an `ApiError`; `ErrorBoundary` renders both and hides unexpected
exceptions. A tool that ran and failed is not an HTTP error: its error is the response to the call.
"""

import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onetool.admin.model import AdminError, camel_case
from onetool.admin.precondition import ANY, Precondition, compute_etag, encode
from onetool.errors import BundleError, StorageError, ToolError
from onetool.util.invisible import escape_invisible
from onetool.util.logging import Log
from onetool_child.data import text
from onetool_child.json_types import JsonMapping, JsonObject

STATUS: dict[str, int] = {
    "invalid": 400,
    "unauthorized": 401,
    "builtin_read_only": 403,
    "forbidden": 403,
    "permission_denied": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "duplicate": 409,
    "slug_taken": 409,
    "bundle_disabled": 409,
    "bundle_not_empty": 409,
    "tool_disabled": 409,
    "not_waiting": 409,
    "read_only": 409,
    "not_connected": 409,
    "definitions_changed": 409,
    "precondition_failed": 412,
    "too_large": 413,
    "unsupported_media_type": 415,
    "rate_limited": 429,
    "internal": 500,
    "busy": 503,
    "issuer_unavailable": 503,
    "audit_unavailable": 503,
    "store_unavailable": 503,
    "storage_unavailable": 507,
}
# Codes for errors without a code of their own, by type. A call that fails with another type did
# run.
CODES = {
    "validation_error": "invalid",
    "not_found": "not_found",
    "permission_denied": "permission_denied",
    "audit_unavailable": "audit_unavailable",
}
# Unless the error says otherwise.
RETRY_SECONDS = {"busy": "1", "rate_limited": "60", "store_unavailable": "2"}


class ApiError(Exception):
    """An error with a status code. The hint is the last line of the message."""

    def __init__(
        self,
        code: str,
        message: str,
        details: JsonMapping | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        hint: str = "",
    ) -> None:
        self.message = escape_invisible(f"{message}\nHint: {hint}" if hint else message)
        super().__init__(self.message)
        self.code = code
        self.hint = hint
        self.details = dict(details or {})
        self.headers = dict(headers or {})
        if code in RETRY_SECONDS:
            self.headers.setdefault("retry-after", RETRY_SECONDS[code])

    @classmethod
    def from_error(cls, error: ToolError) -> "ApiError":
        if isinstance(error, AdminError):
            details = {camel_case(key): value for key, value in error.details.items()}
            return cls(error.code, error.message, details, hint=error.hint)
        fields = dict(error.fields)
        code = fields.pop("code", None)
        wait = fields.pop("retry_after", None)
        headers = {"retry-after": str(wait)} if isinstance(wait, int) else {}
        if isinstance(error, BundleError):
            details = {
                **(fields.get("details") or {}),
                **({"hint": error.hint} if error.hint else {}),
            }
            return cls(
                code or "invalid",
                error.message,
                {camel_case(key): value for key, value in details.items()},
            )
        if code == "rate_limited":
            return cls(
                code,
                error.message,
                {camel_case(key): value for key, value in fields.items()},
                headers,
            )
        if code == "store_unavailable":
            return cls(
                code, error.message, {camel_case(key): value for key, value in fields.items()}
            )
        if code is not None:
            fields["code"] = code
        status = CODES.get(error.type, "invalid")
        if isinstance(error, StorageError):
            status = StorageError.type
        return cls(status, error.message, {**fields, "type": error.type}, headers)

    @property
    def status(self) -> int:
        return STATUS[self.code]

    @property
    def body(self) -> JsonObject:
        return {"error": {"code": self.code, "message": self.message, "details": self.details}}

    @property
    def response(self) -> Response:
        """The error as a response. Details come from tools and may hold any text."""
        return Response(
            text(self.body).encode("utf-8", "replace"),
            self.status,
            self.headers,
            "application/json",
        )


class ErrorBoundary:
    """ASGI middleware that renders exceptions as responses.

    For an unexpected exception, the client gets a correlation id that is also in the log. `count`
    is called with the status of every response.
    """

    def __init__(self, inner: ASGIApp, log: Log, count: Callable[[Scope, int], None]) -> None:
        self._inner = inner
        self._log = log
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False
        scope["app"] = self._inner  # so that the router raises what it has no route for

        async def send_and_count(message: Message) -> None:
            nonlocal has_started
            if not has_started:
                has_started = True
                self._count(scope, message["status"])
            await send(message)

        try:
            await self._inner(scope, receive, send_and_count)
        except Exception as error:  # noqa: BLE001 - every exception becomes a response
            response = self._response(scope, error)
            if not has_started:
                await response(scope, receive, send_and_count)

    def _response(self, scope: Scope, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=400)  # the client is gone
        if isinstance(error, HTTPException):
            error = _routing_error(scope, error)
        if isinstance(error, ToolError):
            error = ApiError.from_error(error)
        if isinstance(error, ApiError):
            return error.response
        correlation_id = scope.get("state", {}).get("request_id") or os.urandom(8).hex()
        trace = "".join(traceback.format_exception(error))
        request = {"method": scope["method"], "path": scope["path"]}
        self._log.event(
            "http.error", level="ERROR", correlation_id=correlation_id, **request, text=trace
        )
        message = f"internal error; see log entry {correlation_id}"
        return ApiError("internal", message, {"correlationID": correlation_id}).response


def _routing_error(scope: Scope, error: HTTPException) -> ApiError:
    """Return the error for an unknown path or method. Several routes may share a path."""
    if error.status_code == STATUS["not_found"]:
        return ApiError("not_found", f"no such path: {scope['path']}")
    matching = [
        route for route in scope["router"].routes if route.matches(scope)[0] is not Match.NONE
    ]
    allowed = ", ".join(sorted({method for route in matching for method in route.methods or ()}))
    message = f"method {scope['method']} is not allowed for {scope['path']} (allowed: {allowed})"
    return ApiError(
        "method_not_allowed", message, {"allowed": allowed.split(", ")}, {"allow": allowed}
    )


# --- responses ------------------------------------------------------------------------------------


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
