"""Call counts and last call times of stored tools. They are read from the statistics, not from the tool files."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from onetool.bundles.model import timestamp
from onetool.errors import ToolError
from onetool.stats.database import StatisticsDatabase

MAX_NAMES: Final = 500  # in one statement


class StoredToolUsage(NamedTuple):
    calls: int = 0
    last: str | None = None


class UsageCounts:
    def __init__(self, statistics: StatisticsDatabase) -> None:
        self._statistics = statistics
        self.problem: str | None = None

    def of(self, tool_ids: Iterable[str]) -> dict[str, StoredToolUsage]:
        """Return the usage of these tools as written so far, without tools that were never called."""
        self.problem = None
        usage: dict[str, StoredToolUsage] = {}
        if not self._statistics.exists():
            return usage
        names = list(tool_ids)
        try:
            with self._statistics.reading() as tables:
                for start in range(0, len(names), MAX_NAMES):
                    batch = names[start : start + MAX_NAMES]
                    marks = ", ".join("?" * len(batch))
                    query = f"SELECT tool, calls, last FROM usage WHERE tool IN ({marks})"  # noqa: S608 - only marks
                    for tool, calls, last in tables.execute(query, batch):
                        usage[tool] = StoredToolUsage(calls, timestamp(datetime.fromtimestamp(last, UTC)))
        except (OSError, ToolError) as error:
            self.problem = f"cannot read call counts of stored tools: {error}"
        return usage
