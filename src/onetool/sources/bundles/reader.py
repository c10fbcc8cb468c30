"""Reads of the store: stored and built-in bundles and tools, with their call counts.

Lists are read from the index alone. For a single bundle or tool, the file is checked first, because
it may have been changed by hand.
"""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from onetool.core.names import python_name
from onetool.core.tool import RegistryEntry
from onetool.errors import BundleError, ToolError
from onetool.sources.bundles import rules
from onetool.sources.bundles.bundle_index import microseconds, read_meta
from onetool.sources.bundles.bundle_storage import BundleDirectory
from onetool.sources.bundles.filesystem import Stamp, read_stamp
from onetool.sources.bundles.model import Bundle, Page, StoredTool, ToolHit, timestamp
from onetool.sources.bundles.queries import (
    BODIES_WITH,
    BUNDLE,
    COUNTS,
    DEFINITION_SIZES,
    NAMED_TOOL,
    NAMES,
    PACKS,
    RANKS,
    TOOL,
    BundleRow,
    Filters,
    PageTokens,
    StoredPack,
    ToolQuery,
    ToolRow,
    check_page_size,
    find_ranked,
    list_bundles,
    list_tools,
    open_reader,
    score,
)
from onetool.sources.bundles.rules import BUNDLE_FILE, tool_file_names
from onetool.sources.bundles.sync import BuiltIns
from onetool.state.stats.database import StatisticsDatabase

if TYPE_CHECKING:
    from onetool.sources.search.index_reader import IndexReader

T = TypeVar("T")
RESTORE_PERIOD = timedelta(days=2)
MAX_NAMES = 500  # in one statement
NAMES_PER_PAGE = 2_000


class StoredToolUsage(NamedTuple):
    calls: int = 0
    last: str | None = None


NEVER_USED = StoredToolUsage()


class UsageCounts:
    def __init__(self, statistics: StatisticsDatabase) -> None:
        self._statistics = statistics
        self.problem: str | None = None

    def of(self, tool_ids: Iterable[str]) -> dict[str, StoredToolUsage]:
        """Return the usage of these tools as written so far, without tools that were never called."""
        self.problem = None
        usage: dict[str, StoredToolUsage] = {}
        names = list(tool_ids)
        try:
            with self._statistics.reading() as tables:
                for start in range(0, len(names), MAX_NAMES):
                    batch = names[start : start + MAX_NAMES]
                    marks = ", ".join("?" * len(batch))
                    query = f"SELECT tool, calls, last FROM usage WHERE tool IN ({marks})"  # noqa: S608 - only marks
                    for tool, calls, last in tables.execute(query, batch):
                        usage[tool] = StoredToolUsage(
                            calls, timestamp(datetime.fromtimestamp(last, UTC))
                        )
        except (OSError, ToolError) as error:
            self.problem = f"cannot read call counts of stored tools: {error}"
        return usage


class BundleReader:
    """The bundles and tools of a directory and the built-in ones. Methods block on disk access."""

    _directory: BundleDirectory
    _builtins: BuiltIns
    _usage: UsageCounts
    _tokens: PageTokens
    _clock: Callable[[], datetime]

    # --- one bundle -------------------------------------------------------------------------------

    def get_bundle(self, bundle_id: str) -> Bundle:
        return self._get_bundle(bundle_id).to_bundle()

    def _get_bundle(self, bundle_id: str) -> BundleRow:
        """Return a bundle that is not deleted."""
        bundle_id = rules.check_id(bundle_id)
        row = self._find_bundle(bundle_id)
        if row is None or row.deleted_at is not None:
            raise BundleError(
                f"bundle {bundle_id} not found", code="not_found", details={"bundle_id": bundle_id}
            )
        return row

    def _find_bundle(self, bundle_id: str) -> BundleRow | None:
        """Return a bundle, even if it is deleted."""
        row = self._read_bundle(bundle_id)
        if row is not None and row.built_in:
            return row
        if row is None:
            ending = f"-{bundle_id}/{BUNDLE_FILE}"
            problems = self._select(str, "select path from problems")
            changed = [path for path in problems if path.endswith(ending)]
        else:
            changed = self._list_changed([f"{row.directory}/{BUNDLE_FILE}"], row.stamp)
        if changed:
            self._directory.refresh(changed)
            row = self._read_bundle(bundle_id)
        return row

    def _read_bundle(self, bundle_id: str) -> BundleRow | None:
        """Return a bundle by its row. A built-in bundle comes before a directory with its ID."""
        return next(reversed(self._select(BundleRow, f"{BUNDLE} where id = ?", bundle_id)), None)

    def bundle_by_slug(self, slug: str) -> Bundle | None:
        """Return the bundle with this slug, else the first by ID with this Python name."""
        row = self._find_bundle_by("slug", slug) or self._find_bundle_by(
            "python_name", python_name(slug)
        )
        return row.to_bundle() if row else None

    def _find_bundle_by(self, column: str, value: str) -> BundleRow | None:
        """Return the first bundle by ID with this slug or Python name."""
        query = f"{BUNDLE} where {column} = ? and deleted_at is null order by id limit 1"
        return next(iter(self._select(BundleRow, query, value)), None)

    def _is_expired(self, row: BundleRow) -> bool:
        """Return whether a bundle was deleted too long ago to be restored."""
        return row.deleted_at is not None and row.deleted_at <= self._expiry_limit()

    def _expiry_limit(self) -> int:
        return microseconds(self._clock() - RESTORE_PERIOD)

    # --- one tool ---------------------------------------------------------------------------------

    def get_tool(self, bundle_id: str, slug: str, version: str) -> StoredTool:
        _, row = self._get_tool(bundle_id, slug, version)
        return self._to_tools([row])[0]

    def _get_tool(self, bundle_id: str, slug: str, version: str) -> tuple[BundleRow, ToolRow]:
        bundle_id = rules.check_id(bundle_id)
        slug = rules.check_slug(slug)
        version = rules.check_version_label(version)
        bundle = self._get_bundle(bundle_id)
        row = self._find_version(bundle_id, slug, version)
        if not bundle.built_in:
            names = tool_file_names(slug, version) if row is None else [row.file]
            paths = [f"{bundle.directory}/{name}" for name in names]
            if changed := self._list_changed(paths, None if row is None else row.stamp):
                self._directory.refresh(changed)
                row = self._find_version(bundle_id, slug, version)
        if row is None:
            raise tool_not_found(bundle_id, slug, version)
        return bundle, row

    def _find_version(self, bundle_id: str, slug: str, version: str) -> ToolRow | None:
        query = f"{TOOL} t.bundle = ? and t.slug = ? and t.version = ?"
        return next(iter(self._select(ToolRow, query, bundle_id, slug, version)), None)

    def _list_changed(self, paths: Sequence[str], stamp: Stamp | None) -> list[str]:
        """Return the files that differ from the index."""
        return [path for path in paths if read_stamp(self._directory.root / path) != stamp]

    # --- lists ------------------------------------------------------------------------------------

    def list_bundles(
        self,
        *,
        ids: Iterable[str] | None = None,
        include_disabled: bool = False,
        size: int = 25,
        token: str | None = None,
    ) -> Page[Bundle]:
        filters = _make_filters(None, ids, include_disabled=include_disabled)
        return self._list_page(
            ["bundles", *filters],
            size,
            token,
            partial(list_bundles, filters=filters),
            lambda rows: [row.to_bundle() for row in rows],
        )

    def list_tools(
        self,
        *,
        tags: Iterable[str] | None = None,
        bundle_ids: Iterable[str] | None = None,
        include_disabled: bool = False,
        size: int = 25,
        token: str | None = None,
    ) -> Page[StoredTool]:
        filters = _make_filters(tags, bundle_ids, include_disabled=include_disabled)
        return self._list_page(
            ["tools", *filters], size, token, partial(list_tools, filters=filters), self._to_tools
        )

    def _list_page(
        self,
        scope: Sequence[object],
        size: int,
        token: str | None,
        list_rows: Callable[..., list[Any]],
        convert: Callable[..., list[T]],
    ) -> Page[T]:
        """Return a page ordered by ID.

        `list_rows` gets the ID after which the page begins, and the number of rows.
        """
        size = check_page_size(size)
        (after,) = self._tokens.read(token, scope) or [""]
        rows = self._read_all(partial(list_rows, after=after, limit=size + 1))
        rows.sort(key=attrgetter("id"))
        items = [([row.id], item) for row, item in zip(rows, convert(rows), strict=True)]
        return self._tokens.make_page(scope, size, items)

    def search(
        self, q: str, *, include_disabled: bool = False, size: int = 25, token: str | None = None
    ) -> Page[ToolHit]:
        """Return the best hits first, and the newest first in each rank (see `queries`).

        The position of a hit is its rank, its key, and the number of its index.
        """
        query = ToolQuery.of(q)
        size = check_page_size(size)
        scope = ["search", query.text, bool(include_disabled)]
        after = self._tokens.read(token, scope)
        hits: list[tuple[tuple[int, int, int], ToolRow]] = []
        for number, read in enumerate((self._directory.read, self._builtins.read)):
            start = None if after is None else (after[0], after[1] + (number > after[2]))
            find = partial(
                find_ranked,
                query=query,
                after=start,
                include_disabled=include_disabled,
                limit=size + 1,
            )
            hits += [((rank, row.key, number), row) for rank, row in read(find)]
        hits.sort(key=lambda hit: (hit[0][0], -hit[0][1], hit[0][2]))
        tools = self._to_tools([row for _, row in hits])
        ranked = [
            (position, ToolHit(tool, score(position[0]), RANKS[position[0]]))
            for (position, _), tool in zip(hits, tools, strict=True)
        ]
        return self._tokens.make_page(scope, size, ranked)

    def list_bundle_tools(self, bundle_id: str, slug: str | None = None) -> list[StoredTool]:
        """Return all versions of all tools of a bundle, or of one tool, including disabled ones."""
        query = f"{TOOL} t.bundle = ? and (?2 is null or t.slug = ?2) order by t.id"
        return self._to_tools(self._select(ToolRow, query, self._get_bundle(bundle_id).id, slug))

    def list_tools_with(self, text: str) -> list[tuple[str, str]]:
        """Return the JSON of all tools that contains a text, each with the slug of its bundle.

        This reads all tools.
        """
        return self._select(lambda slug, body: (slug, body), BODIES_WITH, text)

    # --- by name in code --------------------------------------------------------------------------

    @property
    def is_indexed(self) -> bool:
        """Whether reads do not wait for the index to be built."""
        return self._directory.is_ready

    def find_slugs(self, words: Collection[str]) -> set[str]:
        """Return the bundles whose names are among these words.

        They are read from the files, without the index.
        """
        built_in = self._builtins.read(
            lambda database: database.execute("select slug from bundles").fetchall()
        )
        slugs = self._directory.read_slugs() | {slug for (slug,) in built_in}
        names = set(map(python_name, words))
        return {slug for slug in slugs if python_name(slug) in names}

    def packs(self) -> list[StoredPack]:
        """Return all bundles, including disabled ones."""
        return self._select(StoredPack, PACKS)

    def find_tool(self, slug: str, tool_slug: str, version: str | None) -> ToolRow | None:
        """Return a tool. Without a version, it is the newest that is enabled."""
        return next(
            iter(self._select(ToolRow, f"{NAMED_TOOL} limit 1", slug, tool_slug, version)), None
        )

    def list_names(
        self, pack: StoredPack, after: str, limit: int | None = None
    ) -> list[RegistryEntry]:
        """Return tools of a bundle after this slug, ordered by slug, at most `limit`."""
        return self._select(
            lambda name, summary, enabled: RegistryEntry(name, summary, bool(enabled)),
            *(NAMES, pack.id, after, limit or NAMES_PER_PAGE),
        )

    def count_tools(self) -> dict[str, tuple[int, int]]:
        """Return the number of tools of each bundle by ID, and how many can be called.

        Versions count once.
        """
        return dict(self._select(lambda bundle, total, enabled: (bundle, (total, enabled)), COUNTS))

    def definition_sizes(self, pack: StoredPack) -> list[tuple[str, int]]:
        """Return a bundle's enabled tools with their approximate definition sizes in bytes."""
        return self._select(lambda name, size: (name, size), DEFINITION_SIZES, pack.id)

    def readers(self) -> "list[IndexReader]":
        """Return the indexes of stored tools for `ot.search`, without an index that is being built."""
        directory = [self._directory.read] if self.is_indexed else []
        return [open_reader(read) for read in (*directory, self._builtins.read)]

    def version(self) -> int:
        """Return a number that changes with every change by any process."""
        if not self._directory.root.is_dir():
            return 0
        return self._directory.read(lambda database: read_meta(database, "version"))

    # --- both indexes -----------------------------------------------------------------------------

    def _select(self, make: Callable[..., T], query: str, *values: object) -> list[T]:
        """Return the rows of the store, then of the built-in bundles, converted by `make`."""
        rows = self._read_all(lambda database: database.execute(query, values).fetchall())
        return [make(*row) for row in rows]

    def _read_all(self, work: Callable[[sqlite3.Connection], list[T]]) -> list[T]:
        return [*self._directory.read(work), *self._builtins.read(work)]

    def _to_tools(self, rows: Sequence[ToolRow]) -> list[StoredTool]:
        usage = self._usage.of(row.id for row in rows) if rows else {}
        return [to_stored_tool(row, usage.get(row.id, NEVER_USED)) for row in rows]


def _make_filters(
    tags: Iterable[str] | None, bundles: Iterable[str] | None, *, include_disabled: bool
) -> Filters:
    return Filters(
        None if tags is None else sorted(set(tags)),
        None if bundles is None else sorted(set(map(rules.check_id, bundles))),
        bool(include_disabled),
    )


def tool_not_found(bundle_id: str, slug: str, version: str) -> BundleError:
    details = {"bundle_id": bundle_id, "slug": slug, "version": version}
    return BundleError(
        f"tool {slug}@{version} not found in bundle {bundle_id}", code="not_found", details=details
    )


def to_stored_tool(row: ToolRow, usage: StoredToolUsage = NEVER_USED) -> StoredTool:
    """Return the tool of a row. Its file was read before, so only the structure is checked."""
    body = json.loads(row.body)
    body.pop("schemaVersion")
    fields = {
        "bundleID": row.bundle,
        "bundleSlug": row.bundle_slug,
        "bundleEnabled": bool(row.bundle_enabled),
        "isBuiltIn": bool(row.built_in),
        "callCount": usage.calls,
        "lastCalledAt": usage.last,
    }
    return StoredTool.model_validate({**body, **fields})
