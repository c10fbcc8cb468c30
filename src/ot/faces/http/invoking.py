"""A stored tool, called over HTTP: the state that refuses a call, and what an outcome looks like.

The call itself goes the one path, `bus.call_tool`. A call that was refused is a refusal; one that ran is an outcome,
whether it went well or not.
"""

from collections.abc import Mapping
from typing import Any, Final

from ot.bundles.model import StoredTool
from ot.bundles.rules import invalid
from ot.errors import BundleError, ToolError, describe
from ot.faces.http.refusals import REFUSED_CALLS, Refusal, refusal_of
from ot.redact import Redactor
from ot.schema import JSON
from ot.tool import Result
from ot_child.data import NotData, as_data

RATE_LIMITED: Final = "rate_limited"


def check_in_use(stored: StoredTool) -> None:
    if not stored.bundle_enabled:
        message = f"the bundle {stored.bundle_slug} is switched off, and its tools with it; switch it on to call them"
        raise BundleError(message, code="bundle_disabled", details={"bundleID": stored.bundle_id})
    if not stored.in_use:
        reason = stored.disabled_reason or "it is switched off"
        name = f"{stored.bundle_slug}.{stored.slug} {stored.version}"
        raise BundleError(f"{name} cannot be called: {reason}", code="tool_disabled", details={"toolID": stored.id})


def arguments_in(body: Mapping[str, Any]) -> JSON:
    unknown = [name for name in body if name != "args"]
    if unknown:
        raise invalid(f'the body has {unknown[0]!a}, which nobody asked for; send {{"args": {{...}}}}')
    args = body.get("args", {})
    if not isinstance(args, dict):
        raise invalid("args must be an object: the tool's arguments by their names")
    return args


def outcome_of(result: Result, redact: Redactor) -> JSON:
    """What the tool gave, as data without secrets. Raises the refusal, where the tool never came to run."""
    if result.error is not None:
        return _failure(result.error, redact, ran=result.ran)
    try:
        return {"ok": True, "value": redact.in_data(as_data(result.value))}
    except (NotData, RecursionError):
        message = "the value is nested too deeply, or refers to itself, and cannot be sent"
        return _failure(ToolError(message), redact, ran=True)


def _failure(error: Exception, redact: Redactor, *, ran: bool) -> JSON:
    refused = _refused(error, ran=ran)
    if refused is not None:
        raise Refusal(refused.code, redact(refused.message), redact.in_data(refused.details), refused.headers)
    told = {key: value for key, value in describe(error).items() if key != "class"}
    return {"ok": False, "error": redact.in_data(_as_data(told))}


def _refused(error: Exception, *, ran: bool) -> Refusal | None:
    if not isinstance(error, ToolError):
        return None
    if error.fields.get("code") == RATE_LIMITED:
        wait = {"retry-after": str(error.fields.get("retry_after", 60))}
        return Refusal(RATE_LIMITED, error.message, _fields(error), wait)
    if not ran and (isinstance(error, BundleError) or error.type in REFUSED_CALLS):
        refused = refusal_of(error)
        return Refusal(refused.code, refused.message, _as_data(refused.details), refused.headers)
    return None


def _fields(error: ToolError) -> JSON:
    return _as_data({key: value for key, value in error.fields.items() if key != "code"})


def _as_data(fields: JSON) -> JSON:
    """Fields are a tool's own, and may be anything."""
    try:
        data: JSON = as_data(fields)
    except (NotData, RecursionError):
        return {key: str(value) for key, value in fields.items()}
    return data
