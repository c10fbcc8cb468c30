"""How one tool has been used, read from the statistics. What all tools add up to is `ot.stats.summary`."""

from pathlib import Path

from ot.errors import ToolError
from ot.moments import in_utc
from ot.schema import JSON
from ot.stats.summary import Usage, usage_of


def of_tool(file: Path, name: str, agent: str | None) -> JSON:
    """Of one agent, or of all. Statistics that cannot be read are told by health, not here."""
    try:
        used = usage_of(file, name, agent)
    except (ToolError, OSError):
        used = Usage(0, 0)
    told: JSON = {"calls": used.calls, "errors": used.errors, "p50Ms": used.p50_ms}
    if used.last_at is not None:
        told["lastCalledAt"] = in_utc(used.last_at, "milliseconds")
    if used.last_error is not None:
        kind, at = used.last_error
        told["lastError"] = {"type": kind, "at": in_utc(at, "milliseconds")}
    return told
