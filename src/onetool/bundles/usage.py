"""Call counts and last call times of stored tools. They are read from the statistics, not from the tool files."""

import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from onetool.bundles.model import timestamp
from onetool.errors import ToolError
from onetool.stats.record import Damaged, open_database
from onetool.stats.tables import VERSION
from onetool.util.versioning import check_tables

QUERY: Final = "SELECT calls, last FROM usage WHERE tool = ?"


class StoredToolUsage(NamedTuple):
    calls: int = 0
    last: str | None = None


class ToolUsageSource(Protocol):
    """Call counts of stored tools: the methods of `UsageCounts`."""

    problem: str | None

    def of(self, tool_ids: Iterable[str]) -> dict[str, StoredToolUsage]: ...


class UsageCounts:
    def __init__(self, file: Path) -> None:
        self._file = file
        self.problem: str | None = None

    def of(self, tool_ids: Iterable[str]) -> dict[str, StoredToolUsage]:
        """Return the usage of these tools as written so far, without tools that were never called."""
        self.problem = None
        if not self._file.exists():
            return {}
        try:
            with open_database(self._file) as database:
                check_tables(database, VERSION, self._file)
                rows = ((tool_id, database.execute(QUERY, (tool_id,)).fetchone()) for tool_id in tool_ids)
                return {
                    tool_id: StoredToolUsage(row[0], timestamp(datetime.fromtimestamp(row[1], UTC)))
                    for tool_id, row in rows
                    if row
                }
        except (OSError, sqlite3.Error, ToolError, Damaged) as error:
            self.problem = f"cannot read call counts of stored tools from {self._file}: {error}"
            return {}
