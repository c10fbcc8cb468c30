"""`BundleStore`: all operations on bundles and stored tools.

Methods block on disk access, so callers on an event loop use threads. Any number of threads and processes may use one
directory at once. If several errors apply, the first of these is raised: malformed ID, not found, built-in, state,
body, duplicate.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onetool.backends.http_tool import credentials
from onetool.bundles import listing, rules, store_errors
from onetool.bundles.builtins import STATES_FILE, BuiltIns
from onetool.bundles.bundle_index import read_meta
from onetool.bundles.bundle_storage import BundleDirectory
from onetool.bundles.filenames import BUNDLE_FILE
from onetool.bundles.listing import BundleRow, Filters, NameRow, StoredPack, ToolRow
from onetool.bundles.model import Bundle, BundleDraft, Page, StoredTool, Switch, ToolDraft, ToolHit, now
from onetool.bundles.paging import PageTokens, check_page_size, make_page
from onetool.bundles.ranking import RANKS, ToolQuery, score
from onetool.bundles.reader import BundleReader, LocatedBundle, to_stored_tool
from onetool.bundles.records import BundleFile, ToolFile
from onetool.bundles.sync import list_problems
from onetool.bundles.usage import StoredToolUsage, UsageCounts
from onetool.bundles.writer import BundleWriter
from onetool.errors import BundleError
from onetool.problem import Problem
from onetool.registry import python_name
from onetool.util.storage_errors import is_full

if TYPE_CHECKING:
    from onetool.search.index import Shelf

NAMES_AT_ONCE: Final = 2_000
Body = Mapping[str, Any]
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
        folder: Path,
        *,
        max_tools: int = 100_000,
        clock: Callable[[], datetime] = now,
        builtin: Path | None = None,
        stats_file: Path | None = None,
    ) -> None:
        """Touch no disk. `builtin` is a directory with the layout of the store; it and the statistics are only read."""
        self._root, self._max_tools, self._clock = folder, max_tools, clock
        self._directory = BundleDirectory(folder, on_scanned=self.remove_expired)
        self._builtins = BuiltIns(builtin, folder / STATES_FILE)
        self._usage = UsageCounts(stats_file or folder.parent / "stats" / "stats.db")
        self._tokens = PageTokens(folder / ".key")
        self._reader = BundleReader(self._directory, self._builtins, self._usage, clock)
        self._writer = BundleWriter(self._directory)

    # --- bundles -----------------------------------------------------------------------------------------------

    def put_bundle(self, bundle_id: str, draft: BundleDraft | Body, check: Check = allow_any) -> tuple[Bundle, bool]:
        """Create or replace a bundle. Return it, and whether it is new."""
        bundle_id = rules.check_id(bundle_id)
        self._reject_built_in(self._reader.any_bundle(bundle_id))
        checked = BundleDraft.of(draft)
        with self._directory.writing() as journal:
            folder = self._writer.folder_of(journal, bundle_id)
            known = self._reader.any_bundle(bundle_id)
            check(known.shown() if known is not None and known.row.deleted_at is None else None)
            other = self._reader.bundle_by_slug(checked.slug, exactly=True)
            if other is not None and other.row.id != bundle_id:
                raise store_errors.slug_taken(checked.slug, other.row.id)
            if known is None or self._reader.is_expired(known.row):
                file, is_new = BundleFile.new(bundle_id, checked, self._clock()), True
            else:
                file, is_new = known.row.file().replace_with(checked, self._clock()), False
            folder = self._writer.put_bundle(journal, folder, file)
        self._writer.sync_directories(folder, ".")
        return file.shown(built_in=False), is_new

    def set_bundle_enabled(self, bundle_id: str, switch: bool | Switch | Body, check: Check = allow_any) -> Bundle:
        """Enable or disable a bundle. `switch` may be the raw body of a PATCH request, which is validated."""
        placed = self._reader.bundle(bundle_id)
        on = store_errors.check_switch(switch, bundle_id=bundle_id, is_built_in=placed.built_in)
        if placed.built_in:
            check(placed.shown())
            self._switch_built_in("bundles", placed.row.id, on=on)
        else:
            self._change_bundle(bundle_id, {"is_enabled": on}, check)
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
            placed = self._reader.bundle(bundle_id)
            check(placed.shown())
            self._reject_non_empty(placed.row)
            self._writer.remove_bundle(journal, placed.row.folder)
        self._writer.sync_directories(".")

    def _change_bundle(
        self,
        bundle_id: str,
        change: Mapping[str, Any],
        check: Check,
        refuse: Callable[[BundleRow], None] = lambda _: None,
    ) -> None:
        with self._directory.writing() as journal:
            placed = self._reader.bundle(bundle_id)
            row = placed.row
            check(placed.shown())
            refuse(row)
            file = row.file()
            changed = file.model_copy(update=dict(change))
            if changed != file:
                self._writer.put_bundle(journal, row.folder, changed)
        self._writer.sync_directories(row.folder)

    def get_bundle(self, bundle_id: str) -> Bundle:
        return self._reader.bundle(bundle_id).shown()

    def bundle_by_slug(self, slug: str) -> Bundle | None:
        """Return the bundle with this slug, else the first by ID with this name in Python code, else None."""
        exact = self._reader.bundle_by_slug(slug, exactly=True)
        placed = exact or self._reader.bundle_by_slug(slug, exactly=False)
        return placed.shown() if placed else None

    @property
    def is_indexed(self) -> bool:
        """Whether reads do not wait for the index to be built."""
        return self._directory.is_ready

    def may_have(self, slugs: Collection[str]) -> bool:
        """Return whether a bundle may have one of these names in code. Without an index, the files are checked."""
        if self.is_indexed:
            return True
        names = {python_name(slug) for slug in slugs}
        if self._builtins.read(lambda db: any(listing.bundle_by_slug(db, name, exactly=False) for name in names)):
            return True
        return not names.isdisjoint(map(python_name, self._directory.slugs_on_disk()))

    def list_bundles(
        self,
        *,
        ids: Iterable[str] | None = None,
        include_disabled: bool = False,
        size: int = 25,
        token: str | None = None,
    ) -> Page[Bundle]:
        wanted = None if ids is None else [rules.check_id(one) for one in ids]
        filters, size = Filters.of(None, wanted, include_disabled=include_disabled), check_page_size(size)
        pinned = ["bundles", *filters]
        (after,) = self._tokens.read(token, pinned) or [""]
        found = [
            ([row.id], LocatedBundle(row, built_in).shown())
            for built_in, rows in self._reader.read_all(lambda db: listing.bundles(db, filters, after, size + 1))
            for row in rows
        ]
        found.sort(key=lambda one: one[0])
        return make_page(found, size, lambda place: self._tokens.make(pinned, place))

    # --- tools -------------------------------------------------------------------------------------------------

    def put_tool(
        self, bundle_id: str, slug: str, version: str, draft: ToolDraft | Body, check: Check = allow_any
    ) -> StoredTool:
        return self.put_many(bundle_id, [(slug, version, draft)], check)[0]

    def put_many(
        self, bundle_id: str, tools: Iterable[tuple[str, str, ToolDraft | Body]], check: Check = allow_any
    ) -> list[StoredTool]:
        """Store all tools, or none if one is rejected. The error details name it (`index`, `slug`, `version`)."""
        given = list(tools)
        bundle_id = rules.check_id(bundle_id)
        pairs = [store_errors.check_pair(number, slug, version) for number, (slug, version, _) in enumerate(given)]
        self._get_writable_bundle(bundle_id)
        restore = partial(self._restore_credentials, bundle_id)
        drafts = [store_errors.check_draft(number, *one, restore) for number, one in enumerate(given)]
        self._reject_duplicates(bundle_id, pairs, check)
        start = self._clock()  # each is a microsecond newer than the previous one, so that there is always a newest
        files = [
            ToolFile.new(new_id(), *pair, draft, start + timedelta(microseconds=number))
            for number, (pair, draft) in enumerate(zip(pairs, drafts, strict=True))
        ]
        return self._store_new(bundle_id, files, check) if given else []

    def _restore_credentials(self, bundle_id: str, slug: str, body: Body) -> Body:
        """Return the body with each mask replaced with the credential of the newest version."""
        impl = body.get("httpImpl") if hasattr(body, "get") else None
        if not isinstance(impl, Mapping) or credentials.find_mask_problem(impl) is None:
            return body
        newest = max(self.tools_of(bundle_id, slug), key=attrgetter("modified_at"), default=None)
        return {**body, "httpImpl": credentials.restore(impl, newest.http_impl if newest else None)}

    def _store_new(self, bundle_id: str, files: Sequence[ToolFile], check: Check) -> list[StoredTool]:
        contents = [store_errors.check_content(number, file) for number, file in enumerate(files)]
        written = self._writer.write(contents)
        try:
            with self._directory.writing() as journal:
                bundle = self._get_writable_bundle(bundle_id).row
                self._reject_duplicates(bundle_id, [(file.slug, file.version) for file in files], check)
                held = self._directory.read(lambda database: read_meta(database, "tools"))
                if held + len(files) > self._max_tools:
                    raise store_errors.too_many(held, self._max_tools)
                self._writer.add_tools(journal, bundle.folder, files, written)
        finally:
            self._writer.drop(written)
        self._writer.sync_directories(bundle.folder)
        bodies = ((file.id, file.model_dump_json(by_alias=True)) for file in files)
        rows = (ToolRow(0, ident, bundle.id, bundle.slug, True, "", body, 0, 0) for ident, body in bodies)
        return [to_stored_tool(row, StoredToolUsage(), built_in=False) for row in rows]

    def set_tool_enabled(
        self, bundle_id: str, slug: str, version: str, switch: bool | Switch | Body, check: Check = allow_any
    ) -> StoredTool:
        placed, row = self._reader.tool(bundle_id, slug, version)
        if not placed.built_in:
            self._reject_disabled(placed)
        on = store_errors.check_switch(switch, bundle_id=bundle_id, is_built_in=placed.built_in)
        if placed.built_in:
            check(self._reader.shown([row], built_in=True)[0])
            self._switch_built_in("tools", row.id, on=on)
        else:
            self._switch_tool(bundle_id, slug, version, check, on=on)
        return self.get_tool(bundle_id, slug, version)

    def _switch_tool(self, bundle_id: str, slug: str, version: str, check: Check, *, on: bool) -> None:
        with self._directory.writing() as journal:
            placed, row = self._reader.tool(bundle_id, slug, version)
            self._reject_disabled(placed)
            check(self._reader.shown([row], built_in=False)[0])
            file = row.content()
            if file.is_enabled != on:
                changed = file.model_copy(update={"is_enabled": on})
                self._writer.replace(journal, f"{placed.row.folder}/{row.file}", changed.text())
        self._writer.sync_directories(placed.row.folder)

    def delete_tool(self, bundle_id: str, slug: str, version: str, check: Check = allow_any) -> None:
        self._reject_built_in(self._reader.tool(bundle_id, slug, version)[0])
        with self._directory.writing() as journal:
            placed, row = self._reader.tool(bundle_id, slug, version)
            check(self._reader.shown([row], built_in=False)[0])
            self._writer.delete(journal, f"{placed.row.folder}/{row.file}")
        self._writer.sync_directories(placed.row.folder)

    def get_tool(self, bundle_id: str, slug: str, version: str) -> StoredTool:
        placed, row = self._reader.tool(bundle_id, slug, version)
        return self._reader.shown([row], built_in=placed.built_in)[0]

    def tools_of(self, bundle_id: str, slug: str | None = None) -> list[StoredTool]:
        """Return all versions of all tools of a bundle, or of one tool, including disabled ones."""
        return self._reader.tools_of(self._reader.bundle(bundle_id), slug)

    def list_tools(
        self,
        *,
        tags: Iterable[str] | None = None,
        bundle_ids: Iterable[str] | None = None,
        include_disabled: bool = False,
        size: int = 25,
        token: str | None = None,
    ) -> Page[StoredTool]:
        wanted = None if bundle_ids is None else [rules.check_id(one) for one in bundle_ids]
        filters, size = Filters.of(tags, wanted, include_disabled=include_disabled), check_page_size(size)
        pinned = ["tools", *filters]
        (after,) = self._tokens.read(token, pinned) or [""]
        found = [
            ([tool.id], tool)
            for built_in, rows in self._reader.read_all(lambda db: listing.tools(db, filters, after, size + 1))
            for tool in self._reader.shown(rows, built_in=built_in)
        ]
        found.sort(key=lambda one: one[0])
        return make_page(found, size, lambda place: self._tokens.make(pinned, place))

    def search(
        self, q: str, *, include_disabled: bool = False, size: int = 25, token: str | None = None
    ) -> Page[ToolHit]:
        """Return the best hits first, and the newest first in each rank (see `onetool.bundles.ranking`)."""
        query, size = ToolQuery.of(q), check_page_size(size)
        pinned = ["search", query.text, bool(include_disabled)]
        after = self._tokens.read(token, pinned)
        hits = self._reader.search(query, after, include_disabled=include_disabled, limit=size + 1)
        found = [(place, ToolHit(tool, score(place[0]), RANKS[place[0]])) for place, tool in hits]
        return make_page(found, size, lambda place: self._tokens.make(pinned, place))

    # --- by name in code ------------------------------------------------------------------------------------------

    def packs(self) -> list[StoredPack]:
        """Return all bundles, including disabled ones."""
        own = self._directory.read(partial(listing.packs, built_in=False))
        return own + self._builtins.read(partial(listing.packs, built_in=True))

    def find_tool(self, slug: str, tool_slug: str, version: str | None) -> tuple[ToolRow | None, bool]:
        """Return a tool and whether it is built in. Without a version, it is the newest that is enabled."""
        for built_in, row in self._reader.read_all(lambda db: listing.tool_by_name(db, slug, tool_slug, version)):
            if row is not None:
                return row, built_in
        return None, False

    def list_names(
        self, pack: StoredPack, after: str, limit: int | None = None, *, described: bool = False
    ) -> list[NameRow]:
        """Return tools of a bundle after this slug, at most `limit`."""
        read = self._builtins.read if pack.built_in else self._directory.read
        return read(lambda db: listing.names(db, pack.id, after, limit or NAMES_AT_ONCE, described=described))

    def count_tools(self) -> dict[str, tuple[int, int]]:
        """Return the number of tools of each bundle by ID, and how many are enabled. Versions count once."""
        return {bundle: count for _, some in self._reader.read_all(listing.counts) for bundle, count in some.items()}

    def definition_sizes(self, pack: StoredPack) -> list[tuple[str, int]]:
        """Return the enabled tools of a bundle with the approximate size of their definitions in bytes."""
        read = self._builtins.read if pack.built_in else self._directory.read
        return read(lambda db: listing.definition_sizes(db, pack.id))

    def shelves(self) -> "list[Shelf]":
        """Return the indexes of stored tools for `ot.search`, without an index that is being built."""
        from onetool.bundles.bundle_search import shelf

        directory = [self._directory.read] if self.is_indexed else []
        return [shelf(read) for read in (*directory, self._builtins.read)]

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
        found = self._directory.read(lambda database: list_problems(database, self._root))
        unwritten = [self._directory.problem] if self._directory.problem else []
        uncounted = [Problem(self._usage.problem)] if self._usage.problem else []
        return [*found, *unwritten, *self._builtins.problems, *uncounted]

    def remove_expired(self) -> None:
        """Remove bundles that were deleted two days ago and are still empty."""
        before = self._reader.expiry_limit()
        for row in self._directory.read(lambda database: listing.deleted_before(database, before)):
            with self._directory.writing() as journal:
                placed = self._reader.any_bundle(row.id)
                if placed is not None and self._reader.is_expired(placed.row):
                    self._writer.remove_bundle(journal, placed.row.folder)
            self._writer.sync_directories(".")

    def close(self) -> None:
        self._directory.close()
        self._builtins.close()

    # --- checks ------------------------------------------------------------------------------------------------

    def _get_writable_bundle(self, bundle_id: str) -> LocatedBundle:
        """Return a bundle whose tools may be changed."""
        placed = self._reader.bundle_for_tool(bundle_id)
        self._reject_built_in(placed)
        self._reject_disabled(placed)
        return placed

    def _reject_built_in(self, placed: LocatedBundle | None) -> None:
        if placed is not None and placed.built_in:
            raise store_errors.built_in(placed.row.id)

    def _reject_disabled(self, placed: LocatedBundle) -> None:
        if not placed.row.enabled:
            raise store_errors.disabled(placed.row.id, placed.row.slug)

    def _reject_non_empty(self, row: BundleRow) -> None:
        left = [file for file in (self._root / row.folder).glob("*.json") if file.name != BUNDLE_FILE]
        if left:
            raise store_errors.not_empty(row.id, len(left))

    def _reject_duplicates(self, bundle_id: str, pairs: Sequence[Pair], check: Check) -> None:
        there = self._directory.read(lambda db: [listing.tool(db, bundle_id, *pair) for pair in pairs])
        seen: set[Pair] = set()
        for number, pair in enumerate(pairs):
            row = there[number]
            check(self._reader.shown([row], built_in=False)[0] if row else None)
            if row or pair in seen:
                raise store_errors.duplicate(number, *pair)
            seen.add(pair)

    # --- built-ins ---------------------------------------------------------------------------------------------

    def _switch_built_in(self, table: str, ident: str, *, on: bool) -> None:
        with self._directory.writing() as journal:
            self._writer.replace(journal, STATES_FILE, self._builtins.render_states(table, ident, on=on))
            self._directory.increment_version()  # the index does not contain the enabled states of built-in bundles
        self._writer.sync_directories(".")
