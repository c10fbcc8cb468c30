"""How often each stored tool was called and when last: read from the statistics, and never part of a tool's file."""

import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from onetool.bundles.model import timestamp
from onetool.errors import ToolError
from onetool.stats.record import Damaged, opened, version_of

QUERY: Final = "SELECT calls, last FROM usage WHERE tool = ?"


class Usage(NamedTuple):
    calls: int = 0
    last: str | None = None


class UsageCounts:
    def __init__(self, file: Path) -> None:
        self._file = file
        self.problem: str | None = None

    def of(self, tool_ids: Iterable[str]) -> dict[str, Usage]:
        """Return what has been written so far; a tool that was never called is missing."""
        self.problem = None
        if not self._file.exists():
            return {}
        try:
            with opened(self._file) as database:
                if version_of(database, self._file) <= 1:  # the next process that records a call brings it up to date
                    return {}
                rows = ((tool_id, database.execute(QUERY, (tool_id,)).fetchone()) for tool_id in tool_ids)
                return {
                    tool_id: Usage(row[0], timestamp(datetime.fromtimestamp(row[1], UTC)))
                    for tool_id, row in rows
                    if row
                }
        except (OSError, sqlite3.Error, ToolError, Damaged) as error:
            self.problem = f"calls of stored tools cannot be read from {self._file}: {error}"
            return {}
