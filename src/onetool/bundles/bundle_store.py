"""`BundleStore`: all operations on bundles and stored tools.

Methods block on disk access, so callers on an event loop use threads. Any number of threads and processes may use one
directory at once. If several errors apply, the first of these is raised: malformed ID, not found, built-in, state,
body, duplicate.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from onetool.backends.http_tool import credentials
from onetool.bundles import listing, rules, store_errors
from onetool.bundles.builtins import STATES_FILE, BuiltIns
from onetool.bundles.bundle_index import read_meta
from onetool.bundles.bundle_search import RANKS, ToolQuery, open_reader, score
from onetool.bundles.bundle_storage import BundleDirectory
from onetool.bundles.filenames import BUNDLE_FILE
from onetool.bundles.listing import BundleRow, Filters, StoredPack, ToolRow
from onetool.bundles.model import Bundle, BundleDraft, Page, StoredTool, Switch, ToolDraft, ToolHit, now
from onetool.bundles.paging import PageTokens, check_page_size, make_page
from onetool.bundles.reader import BundleReader, StoredToolUsage, UsageCounts, to_stored_tool
from onetool.bundles.records import BundleFile, ToolFile
from onetool.bundles.sync import list_problems
from onetool.core.registry import RegistryEntry, python_name
from onetool.errors import BundleError
from onetool.state.sealing import PageKey
from onetool.stats.database import StatisticsFile
from onetool.util.clock_watch import Clock, ClockWatch, read_steady_clock
from onetool.util.problem import Problem
from onetool.util.storage_errors import is_full
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.search.index_reader import IndexReader

Item = TypeVar("Item", Bundle, StoredTool)
NAMES_PER_PAGE = 2_000
Body = JsonMapping
Pair = tuple[str, str]
Check = Callable[[Bundle | StoredTool | None], None]  # gets the stored value, and raises to prevent the change


def allow_any(_current: Bundle | StoredTool | None) -> None:
    """Allow every change."""


def new_id() -> str:
    import uuid_utils

    return str(uuid_utils.uuid7())


class BundleStore:
    def __init__(
        self,
        directory: Path,
        *,
        max_tools: int = 100_000,
        clock: Callable[[], datetime] = now,
        builtin: Path | None = None,
        usage: UsageCounts | None = None,
        make_directory: Callable[..., BundleDirectory] = BundleDirectory,
        steady: Clock = read_steady_clock,
    ) -> None:
        """Create the store without disk access.

        `builtin` is a directory with the layout of the store. It and the statistics are only read.
        """
        self._root = directory
        self._max_tools = max_tools
        self._clock = clock
        self._clock_watch = ClockWatch(lambda: clock().timestamp(), steady)
        self._directory = make_directory(directory, on_scanned=self.remove_expired)
        self._builtins = BuiltIns(builtin, directory / STATES_FILE)
        self._usage = usage or UsageCounts(StatisticsFile(directory.parent / "stats" / "stats.db"))
        self._tokens = PageTokens(PageKey(directory / ".key").load)
        self._reader = BundleReader(self._directory, self._builtins, self._usage, clock)

    # --- bundles -----------------------------------------------------------------------------------------------

    def put_bundle(self, bundle_id: str, draft: BundleDraft | Body, check: Check = allow_any) -> tuple[Bundle, bool]:
        """Create or replace a bundle. Return it, and whether it is new."""
        bundle_id = rules.check_id(bundle_id)
        self._reject_built_in(self._reader.any_bundle(bundle_id))
        checked = BundleDraft.of(draft)
        with self._directory.writing() as journal:
            directory = self._directory.find_directory(journal, bundle_id)
            current = self._reader.any_bundle(bundle_id)
            check(current.to_bundle() if current is not None and current.deleted_at is None else None)
            other = self._reader.bundle_by_slug(checked.slug, exactly=True)
            if other is not None and other.id != bundle_id:
                raise store_errors.slug_taken(checked.slug, other.id)
            if current is None or self._reader.is_expired(current):
                file = BundleFile.new(bundle_id, checked, self._clock())
                is_new = True
            else:
                file = current.file().replace_with(checked, self._clock())
                is_new = False
            directory = self._directory.put_bundle(journal, directory, file)
        self._directory.sync_directories(directory, ".")
        return file.to_bundle(built_in=False), is_new

    def set_bundle_enabled(self, bundle_id: str, switch: bool | Switch | Body, check: Check = allow_any) -> Bundle:
        """Enable or disable a bundle. `switch` may be the raw body of a PATCH request, which is validated."""
        row = self._reader.bundle(bundle_id)
        enabled = store_errors.check_switch(switch, bundle_id=bundle_id, is_built_in=bool(row.built_in))
        if row.built_in:
            check(row.to_bundle())
            self._set_built_in_enabled("bundles", row.id, enabled=enabled)
        else:
            self._change_bundle(bundle_id, {"is_enabled": enabled}, check)
        return self.get_bundle(bundle_id)

    def delete_bundle(self, bundle_id: str, check: Check = allow_any) -> None:
        """Delete a bundle. It can be restored for two days, unless the disk is too full to record the deletion."""
        self._reject_built_in(self._reader.bundle(bundle_id))
        try:
            self._change_bundle(bundle_id, {"soft_deleted_at": self._clock()}, check, self._reject_non_empty)
        except BundleError as error:
            if not is_full(error):
                raise
            self._remove_bundle(bundle_id, check)

    def _remove_bundle(self, bundle_id: str, check: Check) -> None:
        with self._directory.writing() as journal:
            row = self._reader.bundle(bundle_id)
            check(row.to_bundle())
            self._reject_non_empty(row)
            self._directory.remove_bundle(journal, row.directory)
        self._directory.sync_directories(".")

    def _change_bundle(
        self,
        bundle_id: str,
        change: JsonMapping,
        check: Check,
        reject: Callable[[BundleRow], None] = lambda _: None,
    ) -> None:
        with self._directory.writing() as journal:
            row = self._reader.bundle(bundle_id)
            check(row.to_bundle())
            reject(row)
            file = row.file()
            changed = file.model_copy(update=dict(change))
            if changed != file:
                self._directory.put_bundle(journal, row.directory, changed)
        self._directory.sync_directories(row.directory)

    def get_bundle(self, bundle_id: str) -> Bundle:
        return self._reader.bundle(bundle_id).to_bundle()

    def bundle_by_slug(self, slug: str) -> Bundle | None:
        """Return the bundle with this slug, else the first by ID with this name in Python code, else None."""
        exact = self._reader.bundle_by_slug(slug, exactly=True)
        row = exact or self._reader.bundle_by_slug(slug, exactly=False)
        return row.to_bundle() if row else None

    @property
    def is_indexed(self) -> bool:
        """Whether reads do not wait for the index to be built."""
        return self._directory.is_ready

    def find_slugs(self, words: Collection[str]) -> set[str]:
        """Return the bundles whose names are among these words. They are read from the files, without the index."""
        slugs = self._directory.read_slugs() | {pack.slug for pack in self._builtins.read(listing.list_packs)}
        names = set(map(python_name, words))
        return {slug for slug in slugs if python_name(slug) in names}

    def list_bundles(
        self,
        *,
        ids: Iterable[str] | None = None,
        include_disabled: bool = False,
        size: int = 25,
        token: str | None = None,
    ) -> Page[Bundle]:
        filters = Filters.of(None, ids, include_disabled=include_disabled)

        def read(after: str, limit: int) -> Iterator[Bundle]:
            for rows in self._reader.read_all(lambda db: listing.list_bundles(db, filters, after, limit)):
                yield from map(BundleRow.to_bundle, rows)

        return self._list_page(["bundles", *filters], size, token, read)

    def _list_page(
        self, scope: Sequence[object], size: int, token: str | None, read: Callable[[str, int], Iterable[Item]]
    ) -> Page[Item]:
        """Return a page, ordered by ID. `read` gets the ID after which the page begins, and the number of items."""
        size = check_page_size(size)
        (after,) = self._tokens.read(token, scope) or [""]
        items = sorted(read(after, size + 1), key=attrgetter("id"))
        positions = ([item.id] for item in items)
        return make_page(
            list(zip(positions, items, strict=True)), size, lambda position: self._tokens.make(scope, position)
        )

    # --- tools -------------------------------------------------------------------------------------------------

    def put_tool(
        self, bundle_id: str, slug: str, version: str, draft: ToolDraft | Body, check: Check = allow_any
    ) -> StoredTool:
        return self.put_many(bundle_id, [(slug, version, draft)], check)[0]

    def put_many(
        self,
        bundle_id: str,
        tools: Iterable[tuple[str, str, ToolDraft | Body]],
        check: Check = allow_any,
        *,
        may_be_disabled: bool = False,
    ) -> list[StoredTool]:
        """Store all tools, or none if one is rejected. The error details name it (`index`, `slug`, `version`).

        With `may_be_disabled`, a disabled bundle accepts them.
        """
        items = list(tools)
        bundle_id = rules.check_id(bundle_id)
        pairs = [store_errors.check_pair(number, slug, version) for number, (slug, version, _) in enumerate(items)]
        self._get_writable_bundle(bundle_id, may_be_disabled=may_be_disabled)
        restore = partial(self._restore_credentials, bundle_id)
        drafts = [store_errors.check_draft(number, *item, restore) for number, item in enumerate(items)]
        self._reject_duplicates(bundle_id, pairs, check)
        start = self._clock()  # each is a microsecond newer than the previous one, so that there is always a newest
        files = [
            ToolFile.new(new_id(), *pair, draft, start + timedelta(microseconds=number))
            for number, (pair, draft) in enumerate(zip(pairs, drafts, strict=True))
        ]
        return self._store_new(bundle_id, files, check, may_be_disabled=may_be_disabled) if items else []

    def _restore_credentials(self, bundle_id: str, slug: str, body: Body) -> Body:
        """Return the body with each mask replaced with the credential of the newest version."""
        impl = body.get("httpImpl") if hasattr(body, "get") else None
        if not isinstance(impl, Mapping) or credentials.find_mask_problem(impl) is None:
            return body
        newest = max(self.list_bundle_tools(bundle_id, slug), key=attrgetter("modified_at"), default=None)
        return {**body, "httpImpl": credentials.restore(impl, newest.http_impl if newest else None)}

    def _store_new(
        self, bundle_id: str, files: Sequence[ToolFile], check: Check, *, may_be_disabled: bool
    ) -> list[StoredTool]:
        contents = [store_errors.check_content(number, file) for number, file in enumerate(files)]
        written = self._directory.write(contents)
        try:
            with self._directory.writing() as journal:
                bundle = self._get_writable_bundle(bundle_id, may_be_disabled=may_be_disabled)
                self._reject_duplicates(bundle_id, [(file.slug, file.version) for file in files], check)
                stored = self._directory.read(lambda database: read_meta(database, "tools"))
                if stored + len(files) > self._max_tools:
                    raise store_errors.too_many_tools(stored, self._max_tools)
                self._directory.add_tools(journal, bundle.directory, files, written)
        finally:
            self._directory.scratch.drop(written)
        self._directory.sync_directories(bundle.directory)
        bodies = ((file.id, file.model_dump_json(by_alias=True)) for file in files)
        rows = (ToolRow(0, ident, bundle.id, bundle.slug, True, "", body, 0, 0) for ident, body in bodies)
        return [to_stored_tool(row, StoredToolUsage()) for row in rows]

    def set_tool_enabled(
        self, bundle_id: str, slug: str, version: str, switch: bool | Switch | Body, check: Check = allow_any
    ) -> StoredTool:
        bundle, row = self._reader.tool(bundle_id, slug, version)
        if not bundle.built_in:
            self._reject_disabled(bundle)
        enabled = store_errors.check_switch(switch, bundle_id=bundle_id, is_built_in=bool(bundle.built_in))
        if bundle.built_in:
            self._reject_disabled(bundle)
            check(self._reader.to_tools([row])[0])
            self._set_built_in_enabled("tools", row.id, enabled=enabled)
        else:
            self._change_tool(bundle_id, slug, version, check, enabled=enabled)
        return self.get_tool(bundle_id, slug, version)

    def _change_tool(self, bundle_id: str, slug: str, version: str, check: Check, *, enabled: bool) -> None:
        with self._directory.writing() as journal:
            bundle, row = self._reader.tool(bundle_id, slug, version)
            self._reject_disabled(bundle)
            check(self._reader.to_tools([row])[0])
            file = row.content()
            if file.is_enabled != enabled:
                changed = file.model_copy(update={"is_enabled": enabled})
                self._directory.replace(journal, f"{bundle.directory}/{row.file}", changed.text())
        self._directory.sync_directories(bundle.directory)

    def delete_tool(self, bundle_id: str, slug: str, version: str, check: Check = allow_any) -> None:
        self._reject_built_in(self._reader.tool(bundle_id, slug, version)[0])
        with self._directory.writing() as journal:
            bundle, row = self._reader.tool(bundle_id, slug, version)
            check(self._reader.to_tools([row])[0])
            self._directory.delete(journal, f"{bundle.directory}/{row.file}")
        self._directory.sync_directories(bundle.directory)

    def get_tool(self, bundle_id: str, slug: str, version: str) -> StoredTool:
        _, row = self._reader.tool(bundle_id, slug, version)
        return self._reader.to_tools([row])[0]

    def list_bundle_tools(self, bundle_id: str, slug: str | None = None) -> list[StoredTool]:
        """Return all versions of all tools of a bundle, or of one tool, including disabled ones."""
        return self._reader.list_bundle_tools(self._reader.bundle(bundle_id), slug)

    def list_tools_with(self, text: str) -> list[tuple[str, str]]:
        """Return the JSON of all tools that contains a text, each with the slug of its bundle."""
        return [*chain.from_iterable(self._reader.read_all(lambda db: listing.list_tools_with(db, text)))]

    def list_tools(
        self,
        *,
        tags: Iterable[str] | None = None,
        bundle_ids: Iterable[str] | None = None,
        include_disabled: bool = False,
        size: int = 25,
        token: str | None = None,
    ) -> Page[StoredTool]:
        filters = Filters.of(tags, bundle_ids, include_disabled=include_disabled)

        def read(after: str, limit: int) -> Iterator[StoredTool]:
            for rows in self._reader.read_all(lambda db: listing.list_tools(db, filters, after, limit)):
                yield from self._reader.to_tools(rows)

        return self._list_page(["tools", *filters], size, token, read)

    def search(
        self, q: str, *, include_disabled: bool = False, size: int = 25, token: str | None = None
    ) -> Page[ToolHit]:
        """Return the best hits first, and the newest first in each rank (see `onetool.bundles.bundle_search`)."""
        query = ToolQuery.of(q)
        size = check_page_size(size)
        scope = ["search", query.text, bool(include_disabled)]
        after = self._tokens.read(token, scope)
        hits = self._reader.search(query, after, include_disabled=include_disabled, limit=size + 1)
        ranked = [(position, ToolHit(tool, score(position[0]), RANKS[position[0]])) for position, tool in hits]
        return make_page(ranked, size, lambda position: self._tokens.make(scope, position))

    # --- by name in code ------------------------------------------------------------------------------------------

    def packs(self) -> list[StoredPack]:
        """Return all bundles, including disabled ones."""
        return [*chain.from_iterable(self._reader.read_all(listing.list_packs))]

    def find_tool(self, slug: str, tool_slug: str, version: str | None) -> ToolRow | None:
        """Return a tool. Without a version, it is the newest that is enabled."""
        rows = self._reader.read_all(lambda db: listing.get_tool_by_name(db, slug, tool_slug, version))
        return next(filter(None, rows), None)

    def list_names(self, pack: StoredPack, after: str, limit: int | None = None) -> list[RegistryEntry]:
        """Return tools of a bundle after this slug, at most `limit`."""
        limit = limit or NAMES_PER_PAGE
        return self._reader.read(lambda db: listing.list_names(db, pack.id, after, limit), pack)

    def count_tools(self) -> dict[str, tuple[int, int]]:
        """Return the number of tools of each bundle by ID, and how many are enabled. Versions count once."""
        stored, built_in = self._reader.read_all(listing.count_tools)
        return {**stored, **built_in}

    def definition_sizes(self, pack: StoredPack) -> list[tuple[str, int]]:
        """Return the enabled tools of a bundle with the approximate size of their definitions in bytes."""
        return self._reader.read(lambda db: listing.list_definition_sizes(db, pack.id), pack)

    def readers(self) -> "list[IndexReader]":
        """Return the indexes of stored tools for `ot.search`, without an index that is being built."""
        directory = [self._directory.read] if self.is_indexed else []
        return [open_reader(read) for read in (*directory, self._builtins.read)]

    # --- maintenance -------------------------------------------------------------------------------------------

    def new_id(self) -> str:
        return new_id()

    def version(self) -> int:
        """Return a number that changes with every change by any process."""
        return self._directory.read(lambda database: read_meta(database, "version")) if self._root.is_dir() else 0

    def rescan(self) -> None:
        """Update the index for files that were changed by hand. This also runs once in the background."""
        self._directory.rescan()

    @property
    def problems(self) -> list[Problem]:
        """Problems of the store and its files."""
        problems = self._directory.read(lambda database: list_problems(database, self._root))
        usage = [Problem(self._usage.problem)] if self._usage.problem else []
        return [*problems, *self._directory.problems, *self._builtins.problems, *usage]

    def remove_expired(self) -> None:
        """Remove bundles that were deleted two days ago and are still empty, unless the clock has jumped."""
        if not self._clock_watch.is_reliable():
            return
        before = self._reader.expiry_limit()
        for row in self._directory.read(lambda database: listing.list_deleted_before(database, before)):
            with self._directory.writing() as journal:
                current = self._reader.any_bundle(row.id)
                if current is not None and self._reader.is_expired(current):
                    self._directory.remove_bundle(journal, current.directory)
            self._directory.sync_directories(".")

    def close(self) -> None:
        self._directory.close()
        self._builtins.close()

    # --- checks ------------------------------------------------------------------------------------------------

    def _get_writable_bundle(self, bundle_id: str, *, may_be_disabled: bool) -> BundleRow:
        """Return a bundle whose tools may be changed."""
        row = self._reader.bundle(bundle_id)
        self._reject_built_in(row)
        if not may_be_disabled:
            self._reject_disabled(row)
        return row

    def _reject_built_in(self, row: BundleRow | None) -> None:
        if row is not None and row.built_in:
            raise store_errors.built_in(row.id)

    def _reject_disabled(self, row: BundleRow) -> None:
        if not row.enabled:
            raise store_errors.disabled(row.id, row.slug)

    def _reject_non_empty(self, row: BundleRow) -> None:
        files = [file for file in (self._root / row.directory).glob("*.json") if file.name != BUNDLE_FILE]
        if files:
            raise store_errors.not_empty(row.id, len(files))

    def _reject_duplicates(self, bundle_id: str, pairs: Sequence[Pair], check: Check) -> None:
        existing = self._directory.read(lambda db: [listing.get_tool(db, bundle_id, *pair) for pair in pairs])
        seen: set[Pair] = set()
        for number, pair in enumerate(pairs):
            row = existing[number]
            check(self._reader.to_tools([row])[0] if row else None)
            if row or pair in seen:
                raise store_errors.duplicate(number, *pair)
            seen.add(pair)

    # --- built-ins ---------------------------------------------------------------------------------------------

    def _set_built_in_enabled(self, table: str, item_id: str, *, enabled: bool) -> None:
        with self._directory.writing() as journal:
            self._directory.replace(journal, STATES_FILE, self._builtins.render_states(table, item_id, enabled=enabled))
            self._directory.increment_version()  # the index does not contain the enabled states of built-in bundles
        self._directory.sync_directories(".")
