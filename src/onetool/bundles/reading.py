"""What is there: bundles and tools as their files are at this moment, the store's own and those of the program.

A list is read from the index alone. One bundle or one tool is given only after a look at its file: somebody may have
changed it by hand.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from onetool.bundles import listing, refusals, rules
from onetool.bundles.builtins import BuiltIns
from onetool.bundles.disk import stamp_of
from onetool.bundles.filenames import BUNDLE_FILE, tool_files
from onetool.bundles.index import microseconds
from onetool.bundles.listing import BundleRow, ToolRow
from onetool.bundles.model import Bundle, StoredTool
from onetool.bundles.ranking import Question
from onetool.bundles.records import shown
from onetool.bundles.searching import Finder, Hit
from onetool.bundles.usage import Usage, UsageCounts
from onetool.bundles.vault import Vault

T = TypeVar("T")
LIFE_AFTER_DELETION: Final = timedelta(days=2)


class Placed(NamedTuple):
    """A bundle, and where it was found."""

    row: BundleRow
    built_in: bool

    def shown(self) -> Bundle:
        return self.row.file().shown(built_in=self.built_in)


class Reader:
    def __init__(self, vault: Vault, builtins: BuiltIns, usage: UsageCounts, clock: Callable[[], datetime]) -> None:
        self._vault, self._builtins, self._usage, self._clock = vault, builtins, usage, clock

    # --- one bundle --------------------------------------------------------------------------------------------

    def bundle(self, bundle_id: str) -> Placed:
        """The live bundle."""
        bundle_id = rules.an_id(bundle_id)
        placed = self.any_bundle(bundle_id)
        if placed is None or placed.row.deleted_at is not None:
            raise refusals.no_bundle(bundle_id)
        return placed

    def bundle_around(self, bundle_id: str) -> Placed:
        """The same for what is inside of it: that the bundle is deleted is a state then."""
        placed = self.any_bundle(bundle_id)
        if placed is not None and placed.row.deleted_at is not None and not self.is_over(placed.row):
            raise refusals.deleted(bundle_id)
        if placed is None or placed.row.deleted_at is not None:
            raise refusals.no_bundle(bundle_id)
        return placed

    def any_bundle(self, bundle_id: str) -> Placed | None:
        """Deleted ones too."""
        row = self._builtins.read(lambda database: listing.bundle(database, bundle_id))
        if row is not None:
            return Placed(row, built_in=True)
        row = self._vault.read(lambda database: listing.bundle(database, bundle_id))
        if changed := self._changed_files(bundle_id, row):
            self._vault.refresh(changed)
            row = self._vault.read(lambda database: listing.bundle(database, bundle_id))
        return Placed(row, built_in=False) if row else None

    def _changed_files(self, bundle_id: str, row: BundleRow | None) -> list[str]:
        """Those that are not what the index knows, or could not be read when they were looked at last."""
        if row is None:
            ending = f"-{bundle_id}/{BUNDLE_FILE}"
            return self._vault.read(lambda database: listing.problems_at(database, ending))
        is_same = stamp_of(self._vault.root / row.folder / BUNDLE_FILE) == row.stamp
        return [] if is_same else [f"{row.folder}/{BUNDLE_FILE}"]

    def bundle_by_slug(self, slug: str, *, exactly: bool) -> Placed | None:
        for built_in, read in ((False, self._vault.read), (True, self._builtins.read)):
            row = read(lambda database: listing.bundle_by_slug(database, slug, exactly=exactly))
            if row is not None:
                return Placed(row, built_in)
        return None

    def is_over(self, row: BundleRow) -> bool:
        """Whether it was deleted so long ago that nothing brings it back."""
        return row.deleted_at is not None and row.deleted_at <= self.end_of_life()

    def end_of_life(self) -> int:
        return microseconds(self._clock() - LIFE_AFTER_DELETION)

    # --- one tool ----------------------------------------------------------------------------------------------

    def tool(self, bundle_id: str, slug: str, version: str) -> tuple[Placed, ToolRow]:
        bundle_id, slug, version = rules.an_id(bundle_id), rules.a_slug(slug), rules.a_version(version)
        placed = self.bundle_around(bundle_id)

        def look(database: sqlite3.Connection) -> ToolRow | None:
            return listing.tool(database, bundle_id, slug, version)

        row = self._builtins.read(look) if placed.built_in else self._vault.read(look)
        if not placed.built_in and self._was_changed(placed.row.folder, row, tool_files(slug, version)):
            row = self._vault.read(look)
        if row is None:
            raise refusals.no_tool(bundle_id, slug, version)
        return placed, row

    def _was_changed(self, folder: str, row: ToolRow | None, names: Sequence[str]) -> bool:
        """Whether the file is not what the index knows; it knows it then."""
        known = None if row is None else row.stamp
        looked_at = names if row is None else [row.file]
        changed = [name for name in looked_at if stamp_of(self._vault.root / folder / name) != known]
        if changed:
            self._vault.refresh([f"{folder}/{name}" for name in changed])
        return bool(changed)

    # --- several -----------------------------------------------------------------------------------------------

    def on_shelves(self, work: Callable[[sqlite3.Connection], T]) -> Iterator[tuple[bool, T]]:
        """What the work finds in the store, and in what comes with the program."""
        yield False, self._vault.read(work)
        yield True, self._builtins.read(work)

    def tools_of(self, placed: Placed, slug: str | None = None) -> list[StoredTool]:
        read = self._builtins.read if placed.built_in else self._vault.read
        rows = read(lambda database: listing.tools_of(database, placed.row.id, slug))
        return self.shown(rows, built_in=placed.built_in)

    def search(
        self, question: Question, after: Sequence[int] | None, *, include_disabled: bool, limit: int
    ) -> list[tuple[list[int], StoredTool]]:
        """Hits with their places, which say where a next page begins: rank, key, and shelf where keys are equal."""
        found: list[tuple[list[int], StoredTool]] = []
        for number, read in enumerate((self._vault.read, self._builtins.read)):
            start = None if after is None else Hit(after[0], after[1] + (number > after[2]))

            def look(database: sqlite3.Connection, start: Hit | None = start) -> list[tuple[Hit, ToolRow]]:
                hits = list(islice(Finder(database, question, include_disabled=include_disabled).hits(start), limit))
                return list(zip(hits, listing.tools_with_keys(database, [hit.key for hit in hits]), strict=True))

            pairs = read(look)
            tools = self.shown([row for _, row in pairs], built_in=number == 1)
            found += [([hit.place, hit.key, number], tool) for (hit, _), tool in zip(pairs, tools, strict=True)]
        return sorted(found, key=lambda one: (one[0][0], -one[0][1], one[0][2]))

    def shown(self, rows: Sequence[ToolRow], *, built_in: bool) -> list[StoredTool]:
        usage = self._usage.of(row.id for row in rows) if rows else {}
        return [shown_tool(row, usage.get(row.id, Usage()), built_in=built_in) for row in rows]


def shown_tool(row: ToolRow, usage: Usage, *, built_in: bool) -> StoredTool:
    around = {
        "bundleID": row.bundle,
        "bundleSlug": row.bundle_slug,
        "bundleEnabled": bool(row.bundle_enabled),
        "isBuiltIn": built_in,
        "callCount": usage.calls,
        "lastCalledAt": usage.last,
    }
    return shown(row.body, around)
