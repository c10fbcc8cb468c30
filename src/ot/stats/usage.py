"""How one tool has been used, read from the statistics. What all tools add up to is `ot.stats.summary`."""

import sqlite3
from pathlib import Path
from typing import Any, Final

from ot.errors import ToolError
from ot.moments import in_utc
from ot.schema import JSON
from ot.stats.record import Damaged, opened, stored, version_of

OF_TOOL: Final = "FROM calls WHERE name = :name AND (:agent IS NULL OR agent = :agent)"
COUNTS: Final = f"SELECT count(*), count(error_type), max(at) {OF_TOOL}"
MIDDLE: Final = f"SELECT seconds {OF_TOOL} ORDER BY seconds LIMIT 1 OFFSET :place"
LAST_ERROR: Final = f"SELECT error_type, at {OF_TOOL} AND error_type IS NOT NULL ORDER BY at DESC LIMIT 1"
NEVER: Final[JSON] = {"calls": 0, "errors": 0, "p50_ms": None}


def usage_of(file: Path, name: str, agent: str | None) -> JSON:
    """Of one agent, or of all. Statistics that cannot be read are told by health, not here."""
    try:
        with opened(file) as database:
            return _read(database, {"name": stored(name), "agent": stored(agent)}, file)
    except (sqlite3.Error, Damaged, ToolError, OSError):
        return NEVER


def _read(database: sqlite3.Connection, filters: dict[str, Any], file: Path) -> JSON:
    if version_of(database, file) == 0:
        return NEVER
    calls, errors, last = database.execute(COUNTS, filters).fetchone()
    if not calls:
        return NEVER
    (middle,) = database.execute(MIDDLE, {**filters, "place": (calls - 1) // 2}).fetchone()
    failed = database.execute(LAST_ERROR, filters).fetchone()
    told = {"last_error": {"type": failed[0], "at": in_utc(failed[1], "milliseconds")}} if failed else {}
    return {
        "calls": calls,
        "errors": errors,
        "p50_ms": round(middle * 1000, 2),
        "last_called_at": in_utc(last, "milliseconds"),
        **told,
    }
