"""Reads of the store: stored and built-in bundles and tools, with their call counts from the statistics.

Lists are read from the index alone. For a single bundle or tool, the file is checked first, because it may have been
changed by hand.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar

from onetool.bundles import listing, rules, store_errors
from onetool.bundles.builtins import BuiltIns
from onetool.bundles.bundle_index import microseconds
from onetool.bundles.bundle_search import ToolQuery, find_ranked
from onetool.bundles.bundle_storage import BundleDirectory
from onetool.bundles.filenames import BUNDLE_FILE, tool_file_names
from onetool.bundles.filesystem import read_stamp
from onetool.bundles.listing import BundleRow, StoredPack, ToolRow
from onetool.bundles.model import StoredTool, timestamp
from onetool.bundles.records import parse_tool
from onetool.errors import ToolError
from onetool.stats.database import StatisticsDatabase

T = TypeVar("T")
RESTORE_PERIOD = timedelta(days=2)


MAX_NAMES = 500  # in one statement


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


class BundleReader:
    def __init__(
        self, directory: BundleDirectory, builtins: BuiltIns, usage: UsageCounts, clock: Callable[[], datetime]
    ) -> None:
        self._directory = directory
        self._builtins = builtins
        self._usage = usage
        self._clock = clock

    # --- one bundle --------------------------------------------------------------------------------------------

    def bundle(self, bundle_id: str) -> BundleRow:
        """Return a bundle that is not deleted."""
        bundle_id = rules.check_id(bundle_id)
        row = self.any_bundle(bundle_id)
        if row is None or row.deleted_at is not None:
            raise store_errors.bundle_not_found(bundle_id)
        return row

    def any_bundle(self, bundle_id: str) -> BundleRow | None:
        """Return a bundle, even if it is deleted."""
        find = partial(listing.get_bundle, bundle_id=bundle_id)
        if (row := self._builtins.read(find)) is not None:
            return row
        row = self._directory.read(find)
        if changed := self._find_changed_files(bundle_id, row):
            self._directory.refresh(changed)
            row = self._directory.read(find)
        return row

    def _find_changed_files(self, bundle_id: str, row: BundleRow | None) -> list[str]:
        """Return the files that differ from the index, or could not be read before."""
        if row is None:
            ending = f"-{bundle_id}/{BUNDLE_FILE}"
            return self._directory.read(lambda database: listing.list_problem_paths(database, ending))
        is_same = read_stamp(self._directory.root / row.directory / BUNDLE_FILE) == row.stamp
        return [] if is_same else [f"{row.directory}/{BUNDLE_FILE}"]

    def bundle_by_slug(self, slug: str, *, exactly: bool) -> BundleRow | None:
        rows = self.read_all(lambda db: listing.get_bundle_by_slug(db, slug, exactly=exactly))
        return next(filter(None, rows), None)

    def is_expired(self, row: BundleRow) -> bool:
        """Return whether a bundle was deleted too long ago to be restored."""
        return row.deleted_at is not None and row.deleted_at <= self.expiry_limit()

    def expiry_limit(self) -> int:
        return microseconds(self._clock() - RESTORE_PERIOD)

    # --- one tool ----------------------------------------------------------------------------------------------

    def tool(self, bundle_id: str, slug: str, version: str) -> tuple[BundleRow, ToolRow]:
        bundle_id = rules.check_id(bundle_id)
        slug = rules.check_slug(slug)
        version = rules.check_version_label(version)
        bundle = self.bundle(bundle_id)
        find = partial(listing.get_tool, bundle_id=bundle_id, slug=slug, version=version)
        row = self.read(find, bundle)
        if not bundle.built_in and self._refresh_tool(bundle.directory, row, tool_file_names(slug, version)):
            row = self._directory.read(find)
        if row is None:
            raise store_errors.tool_not_found(bundle_id, slug, version)
        return bundle, row

    def _refresh_tool(self, directory: str, row: ToolRow | None, names: Sequence[str]) -> bool:
        """Update the index if the file differs from it, and return whether it did."""
        stamp = None if row is None else row.stamp
        candidates = names if row is None else [row.file]
        changed = [name for name in candidates if read_stamp(self._directory.root / directory / name) != stamp]
        if changed:
            self._directory.refresh([f"{directory}/{name}" for name in changed])
        return bool(changed)

    # --- several -----------------------------------------------------------------------------------------------

    def read(self, work: Callable[[sqlite3.Connection], T], bundle: BundleRow | StoredPack) -> T:
        """Return what `work` finds in the index that has this bundle."""
        return self._builtins.read(work) if bundle.built_in else self._directory.read(work)

    def read_all(self, work: Callable[[sqlite3.Connection], T]) -> Iterator[T]:
        """Yield what `work` finds in the store, and then in the built-in bundles."""
        yield self._directory.read(work)
        yield self._builtins.read(work)

    def list_bundle_tools(self, bundle: BundleRow, slug: str | None = None) -> list[StoredTool]:
        return self.to_tools(self.read(partial(listing.list_bundle_tools, bundle_id=bundle.id, slug=slug), bundle))

    def search(
        self, query: ToolQuery, after: Sequence[int] | None, *, include_disabled: bool, limit: int
    ) -> list[tuple[list[int], StoredTool]]:
        """Return hits with their positions, from which the next page continues: rank, key, and number of the index."""
        hits: list[tuple[list[int], StoredTool]] = []
        for number, read in enumerate((self._directory.read, self._builtins.read)):
            start = None if after is None else (after[0], after[1] + (number > after[2]))
            ranked = read(
                partial(find_ranked, query=query, after=start, include_disabled=include_disabled, limit=limit)
            )
            tools = self.to_tools([row for _, row in ranked])
            hits += [([rank, row.key, number], tool) for (rank, row), tool in zip(ranked, tools, strict=True)]
        return sorted(hits, key=lambda hit: (hit[0][0], -hit[0][1], hit[0][2]))

    def to_tools(self, rows: Sequence[ToolRow]) -> list[StoredTool]:
        usage = self._usage.of(row.id for row in rows) if rows else {}
        return [to_stored_tool(row, usage.get(row.id, StoredToolUsage())) for row in rows]


def to_stored_tool(row: ToolRow, usage: StoredToolUsage) -> StoredTool:
    extra = {
        "bundleID": row.bundle,
        "bundleSlug": row.bundle_slug,
        "bundleEnabled": bool(row.bundle_enabled),
        "isBuiltIn": bool(row.built_in),
        "callCount": usage.calls,
        "lastCalledAt": usage.last,
    }
    return parse_tool(row.body, extra)
