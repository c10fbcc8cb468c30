"""How a refusal looks over HTTP: one body for all, `{"error": {"code", "message", "details"}}`, and its status."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import JSONResponse

from ot.errors import BundleError, ToolError, describe
from ot.invisible import escape_invisible

STATUS: Final[dict[str, int]] = {
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
    "bundle_deleted": 409,
    "bundle_not_empty": 409,
    "tool_disabled": 409,
    "precondition_failed": 412,
    "too_large": 413,
    "unsupported_media_type": 415,
    "rate_limited": 429,
    "internal": 500,
    "busy": 503,
    "audit_unavailable": 503,
    "storage_unavailable": 507,
}
# A call that did not come to run, by the type of its error; whatever is not here ran, and its failure is an answer.
REFUSED_CALLS: Final[dict[str, str]] = {
    "validation_error": "invalid",
    "not_found": "not_found",
    "permission_denied": "permission_denied",
    "audit_unavailable": "audit_unavailable",
}


class Refusal(Exception):
    def __init__(
        self,
        code: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = escape_invisible(message)
        super().__init__(message)
        self.code, self.message, self.details, self.headers = code, message, dict(details or {}), dict(headers or {})

    @property
    def response(self) -> JSONResponse:
        body = {"error": {"code": self.code, "message": self.message, "details": self.details}}
        return JSONResponse(body, STATUS[self.code], self.headers)


def refusal_of(error: ToolError) -> Refusal:
    """The refusal that an error of the store, or of a call that never ran, is."""
    if isinstance(error, BundleError):
        return Refusal(str(error.fields.get("code", "invalid")), error.message, error.fields.get("details"))
    fields = {key: value for key, value in describe(error).items() if key not in {"class", "message"}}
    return Refusal(REFUSED_CALLS.get(error.type, "invalid"), error.message, fields)
