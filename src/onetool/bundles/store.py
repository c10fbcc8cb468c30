"""`BundleStore`: all that can be done with bundles and stored tools, and in which order it is refused.

Methods wait for the disk, so callers on an event loop use threads; any number of threads and of processes may use one
folder at once. Where several refusals apply: malformed id, unknown, built-in, state, body, duplicate.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onetool.backends.http_tool import credentials
from onetool.bundles import listing, refusals, rules
from onetool.bundles.builtins import SWITCHES, BuiltIns
from onetool.bundles.filenames import BUNDLE_FILE
from onetool.bundles.index import meta
from onetool.bundles.listing import BundleRow, Filters, NameRow, StoredPack, ToolRow
from onetool.bundles.mirror import problems_in
from onetool.bundles.model import Bundle, BundleDraft, Found, Page, StoredTool, Switch, ToolDraft, now
from onetool.bundles.paging import Tokens, page_of, page_size
from onetool.bundles.ranking import PLACES, Question, score
from onetool.bundles.reading import Placed, Reader, shown_tool
from onetool.bundles.records import BundleFile, ToolFile
from onetool.bundles.usage import Usage, UsageCounts
from onetool.bundles.vault import Vault
from onetool.bundles.writing import Writer
from onetool.errors import BundleError
from onetool.problem import Problem
from onetool.registry import python_name
from onetool.util.storage_errors import is_full

if TYPE_CHECKING:
    from onetool.search.index import Shelf

NAMES_AT_ONCE: Final = 2_000
Body = Mapping[str, Any]
Pair = tuple[str, str]
Check = Callable[[Bundle | StoredTool | None], None]  # is given what is stored now, and raises to prevent a change


def unconditionally(_current: Bundle | StoredTool | None) -> None:
    """Prevent no change."""


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
        """Touches no disk. `builtin` is a folder like the store's own, read and never written; so are statistics."""
        self._root, self._max_tools, self._clock = folder, max_tools, clock
        self._vault = Vault(folder, afterwards=self.reap)
        self._builtins = BuiltIns(builtin, folder / SWITCHES)
        self._usage = UsageCounts(stats_file or folder.parent / "stats" / "stats.db")
        self._tokens = Tokens(folder / ".key")
        self._reader = Reader(self._vault, self._builtins, self._usage, clock)
        self._writer = Writer(self._vault)

    # --- bundles -----------------------------------------------------------------------------------------------

    def put_bundle(
        self, bundle_id: str, draft: BundleDraft | Body, check: Check = unconditionally
    ) -> tuple[Bundle, bool]:
        """The bundle, and whether it is new."""
        bundle_id = rules.an_id(bundle_id)
        self._refuse_built_in(self._reader.any_bundle(bundle_id))
        checked = BundleDraft.of(draft)
        with self._vault.writing() as journal:
            folder = self._writer.folder_of(journal, bundle_id)
            known = self._reader.any_bundle(bundle_id)
            check(known.shown() if known is not None and known.row.deleted_at is None else None)
            other = self._reader.bundle_by_slug(checked.slug, exactly=True)
            if other is not None and other.row.id != bundle_id:
                raise refusals.slug_taken(checked.slug, other.row.id)
            if known is None or self._reader.is_over(known.row):
                file, is_new = BundleFile.new(bundle_id, checked, self._clock()), True
            else:
                file, is_new = known.row.file().replaced(checked, self._clock()), False
            folder = self._writer.put_bundle(journal, folder, file)
        self._writer.settle(folder, ".")
        return file.shown(built_in=False), is_new

    def set_bundle_enabled(
        self, bundle_id: str, switch: bool | Switch | Body, check: Check = unconditionally
    ) -> Bundle:
        """`switch` may be the raw body of a PATCH, which is then checked at its turn."""
        placed = self._reader.bundle(bundle_id)
        on = refusals.checked_switch(switch, bundle_id=bundle_id, is_built_in=placed.built_in)
        if placed.built_in:
            check(placed.shown())
            self._switch_built_in("bundles", placed.row.id, on=on)
        else:
            self._change_bundle(bundle_id, {"is_enabled": on}, check)
        return self.get_bundle(bundle_id)

    def delete_bundle(self, bundle_id: str, check: Check = unconditionally) -> None:
        """It can be brought back for a while, unless the disk is too full to note that it is deleted."""
        self._refuse_built_in(self._reader.bundle(bundle_id))
        try:
            self._change_bundle(bundle_id, {"soft_deleted_at": self._clock()}, check, self._refuse_full)
        except BundleError as error:
            if not is_full(error):
                raise
            self._remove_bundle(bundle_id, check)

    def _remove_bundle(self, bundle_id: str, check: Check) -> None:
        with self._vault.writing() as journal:
            placed = self._reader.bundle(bundle_id)
            check(placed.shown())
            self._refuse_full(placed.row)
            self._writer.remove_bundle(journal, placed.row.folder)
        self._writer.settle(".")

    def _change_bundle(
        self,
        bundle_id: str,
        change: Mapping[str, Any],
        check: Check,
        refuse: Callable[[BundleRow], None] = lambda _: None,
    ) -> None:
        with self._vault.writing() as journal:
            placed = self._reader.bundle(bundle_id)
            row = placed.row
            check(placed.shown())
            refuse(row)
            file = row.file()
            changed = file.model_copy(update=dict(change))
            if changed != file:
                self._writer.put_bundle(journal, row.folder, changed)
        self._writer.settle(row.folder)

    def get_bundle(self, bundle_id: str) -> Bundle:
        return self._reader.bundle(bundle_id).shown()

    def bundle_by_slug(self, slug: str) -> Bundle | None:
        """The bundle of this slug, else the first by id that Python code would call so; None where there is none."""
        exact = self._reader.bundle_by_slug(slug, exactly=True)
        placed = exact or self._reader.bundle_by_slug(slug, exactly=False)
        return placed.shown() if placed else None

    @property
    def is_indexed(self) -> bool:
        """Whether reading waits for nobody who builds the index."""
        return self._vault.is_ready

    def may_have(self, slugs: Collection[str]) -> bool:
        """Whether a bundle may be called so in code. Without an index, which takes long to build, ask the files."""
        if self.is_indexed:
            return True
        names = {python_name(slug) for slug in slugs}
        if self._builtins.read(lambda db: any(listing.bundle_by_slug(db, name, exactly=False) for name in names)):
            return True
        return not names.isdisjoint(map(python_name, self._vault.slugs_on_disk()))

    def list_bundles(
        self,
        *,
        ids: Iterable[str] | None = None,
        include_disabled: bool = False,
        size: int = 25,
        token: str | None = None,
    ) -> Page[Bundle]:
        wanted = None if ids is None else [rules.an_id(one) for one in ids]
        filters, size = Filters.of(None, wanted, include_disabled=include_disabled), page_size(size)
        pinned = ["bundles", *filters]
        (after,) = self._tokens.read(token, pinned) or [""]
        found = [
            ([row.id], Placed(row, built_in).shown())
            for built_in, rows in self._reader.on_shelves(lambda db: listing.bundles(db, filters, after, size + 1))
            for row in rows
        ]
        found.sort(key=lambda one: one[0])
        return page_of(found, size, lambda place: self._tokens.make(pinned, place))

    # --- tools -------------------------------------------------------------------------------------------------

    def put_tool(
        self, bundle_id: str, slug: str, version: str, draft: ToolDraft | Body, check: Check = unconditionally
    ) -> StoredTool:
        return self.put_many(bundle_id, [(slug, version, draft)], check)[0]

    def put_many(
        self, bundle_id: str, tools: Iterable[tuple[str, str, ToolDraft | Body]], check: Check = unconditionally
    ) -> list[StoredTool]:
        """All of them, or none where one is refused; details of the refusal say which (`index`, `slug`, `version`)."""
        given = list(tools)
        bundle_id = rules.an_id(bundle_id)
        pairs = [refusals.checked_pair(number, slug, version) for number, (slug, version, _) in enumerate(given)]
        self._open_bundle(bundle_id)
        restore = partial(self._with_credentials, bundle_id)
        drafts = [refusals.checked_draft(number, *one, restore) for number, one in enumerate(given)]
        self._refuse_duplicates(bundle_id, pairs, check)
        start = self._clock()  # each a microsecond newer than the one before it, so that there is always a newest one
        files = [
            ToolFile.new(new_id(), *pair, draft, start + timedelta(microseconds=number))
            for number, (pair, draft) in enumerate(zip(pairs, drafts, strict=True))
        ]
        return self._store_new(bundle_id, files, check) if given else []

    def _with_credentials(self, bundle_id: str, slug: str, body: Body) -> Body:
        """The body of a new version, with the credentials of the newest one where it has masks for them."""
        impl = body.get("httpImpl") if hasattr(body, "get") else None
        if not isinstance(impl, Mapping) or credentials.mask_problem(impl) is None:
            return body
        newest = max(self.tools_of(bundle_id, slug), key=attrgetter("modified_at"), default=None)
        return {**body, "httpImpl": credentials.restore(impl, newest.http_impl if newest else None)}

    def _store_new(self, bundle_id: str, files: Sequence[ToolFile], check: Check) -> list[StoredTool]:
        contents = [refusals.checked_content(number, file) for number, file in enumerate(files)]
        written = self._writer.write(contents)
        try:
            with self._vault.writing() as journal:
                bundle = self._open_bundle(bundle_id).row
                self._refuse_duplicates(bundle_id, [(file.slug, file.version) for file in files], check)
                held = self._vault.read(lambda database: meta(database, "tools"))
                if held + len(files) > self._max_tools:
                    raise refusals.too_many(held, self._max_tools)
                self._writer.add_tools(journal, bundle.folder, files, written)
        finally:
            self._writer.drop(written)
        self._writer.settle(bundle.folder)
        bodies = ((file.id, file.model_dump_json(by_alias=True)) for file in files)
        rows = (ToolRow(0, ident, bundle.id, bundle.slug, True, "", body, 0, 0) for ident, body in bodies)
        return [shown_tool(row, Usage(), built_in=False) for row in rows]

    def set_tool_enabled(
        self, bundle_id: str, slug: str, version: str, switch: bool | Switch | Body, check: Check = unconditionally
    ) -> StoredTool:
        placed, row = self._reader.tool(bundle_id, slug, version)
        if not placed.built_in:
            self._refuse_disabled(placed)
        on = refusals.checked_switch(switch, bundle_id=bundle_id, is_built_in=placed.built_in)
        if placed.built_in:
            check(self._reader.shown([row], built_in=True)[0])
            self._switch_built_in("tools", row.id, on=on)
        else:
            self._switch_tool(bundle_id, slug, version, check, on=on)
        return self.get_tool(bundle_id, slug, version)

    def _switch_tool(self, bundle_id: str, slug: str, version: str, check: Check, *, on: bool) -> None:
        with self._vault.writing() as journal:
            placed, row = self._reader.tool(bundle_id, slug, version)
            self._refuse_disabled(placed)
            check(self._reader.shown([row], built_in=False)[0])
            file = row.content()
            if file.is_enabled != on:
                changed = file.model_copy(update={"is_enabled": on})
                self._writer.replace(journal, f"{placed.row.folder}/{row.file}", changed.text())
        self._writer.settle(placed.row.folder)

    def delete_tool(self, bundle_id: str, slug: str, version: str, check: Check = unconditionally) -> None:
        self._refuse_built_in(self._reader.tool(bundle_id, slug, version)[0])
        with self._vault.writing() as journal:
            placed, row = self._reader.tool(bundle_id, slug, version)
            check(self._reader.shown([row], built_in=False)[0])
            self._writer.delete(journal, f"{placed.row.folder}/{row.file}")
        self._writer.settle(placed.row.folder)

    def get_tool(self, bundle_id: str, slug: str, version: str) -> StoredTool:
        placed, row = self._reader.tool(bundle_id, slug, version)
        return self._reader.shown([row], built_in=placed.built_in)[0]

    def tools_of(self, bundle_id: str, slug: str | None = None) -> list[StoredTool]:
        """All versions of all tools of a bundle, or of one, disabled ones too."""
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
        wanted = None if bundle_ids is None else [rules.an_id(one) for one in bundle_ids]
        filters, size = Filters.of(tags, wanted, include_disabled=include_disabled), page_size(size)
        pinned = ["tools", *filters]
        (after,) = self._tokens.read(token, pinned) or [""]
        found = [
            ([tool.id], tool)
            for built_in, rows in self._reader.on_shelves(lambda db: listing.tools(db, filters, after, size + 1))
            for tool in self._reader.shown(rows, built_in=built_in)
        ]
        found.sort(key=lambda one: one[0])
        return page_of(found, size, lambda place: self._tokens.make(pinned, place))

    def search(
        self, q: str, *, include_disabled: bool = False, size: int = 25, token: str | None = None
    ) -> Page[Found]:
        """The best first; in each place, as `onetool.bundles.ranking` calls it, the newest first."""
        question, size = Question.of(q), page_size(size)
        pinned = ["search", question.text, bool(include_disabled)]
        after = self._tokens.read(token, pinned)
        hits = self._reader.search(question, after, include_disabled=include_disabled, limit=size + 1)
        found = [(place, Found(tool, score(place[0]), PLACES[place[0]])) for place, tool in hits]
        return page_of(found, size, lambda place: self._tokens.make(pinned, place))

    # --- by the names that code calls them by ---------------------------------------------------------------------

    def packs(self) -> list[StoredPack]:
        """All bundles, disabled ones too."""
        own = self._vault.read(partial(listing.packs, built_in=False))
        return own + self._builtins.read(partial(listing.packs, built_in=True))

    def find_tool(self, slug: str, tool_slug: str, version: str | None) -> tuple[ToolRow | None, bool]:
        """The tool of a bundle and whether it is built in: the version that is asked for, or the one that answers."""
        for built_in, row in self._reader.on_shelves(lambda db: listing.tool_by_name(db, slug, tool_slug, version)):
            if row is not None:
                return row, built_in
        return None, False

    def list_names(
        self, pack: StoredPack, after: str, limit: int | None = None, *, described: bool = False
    ) -> list[NameRow]:
        """The tools of a bundle after this slug, as many as are read at once."""
        read = self._builtins.read if pack.built_in else self._vault.read
        return read(lambda db: listing.names(db, pack.id, after, limit or NAMES_AT_ONCE, described=described))

    def count_tools(self) -> dict[str, tuple[int, int]]:
        """By the ids of bundles, and how many of them are enabled; versions are not counted."""
        return {bundle: count for _, some in self._reader.on_shelves(listing.counts) for bundle, count in some.items()}

    def definition_sizes(self, pack: StoredPack) -> list[tuple[str, int]]:
        """The tools of a bundle that are in use, with about the bytes of their definitions."""
        read = self._builtins.read if pack.built_in else self._vault.read
        return read(lambda db: listing.definition_sizes(db, pack.id))

    def shelves(self) -> "list[Shelf]":
        """The stored tools, for the search over everything; an index that is being built is left out."""
        from onetool.bundles.searching import shelf

        vault = [self._vault.read] if self.is_indexed else []
        return [shelf(read) for read in (*vault, self._builtins.read)]

    # --- around ------------------------------------------------------------------------------------------------

    def new_id(self) -> str:
        return new_id()

    def version(self) -> int:
        """Another number whenever anything has been changed by any process."""
        return self._vault.read(lambda database: meta(database, "version")) if self._root.is_dir() else 0

    def rescan(self) -> None:
        """See what was changed by hand. It is done once by itself, in the background."""
        self._vault.rescan()

    @property
    def problems(self) -> list[Problem]:
        """What is wrong with files of the store, each with its file."""
        found = self._vault.read(lambda database: problems_in(database, self._root))
        unwritten = [self._vault.problem] if self._vault.problem else []
        uncounted = [Problem(self._usage.problem)] if self._usage.problem else []
        return [*found, *unwritten, *self._builtins.problems, *uncounted]

    def reap(self) -> None:
        """Remove what was deleted two days ago and is still empty."""
        before = self._reader.end_of_life()
        for row in self._vault.read(lambda database: listing.deleted_before(database, before)):
            with self._vault.writing() as journal:
                placed = self._reader.any_bundle(row.id)
                if placed is not None and self._reader.is_over(placed.row):
                    self._writer.remove_bundle(journal, placed.row.folder)
            self._writer.settle(".")

    def close(self) -> None:
        self._vault.close()
        self._builtins.close()

    # --- refusals ----------------------------------------------------------------------------------------------

    def _open_bundle(self, bundle_id: str) -> Placed:
        """A bundle in which something may be changed."""
        placed = self._reader.bundle_around(bundle_id)
        self._refuse_built_in(placed)
        self._refuse_disabled(placed)
        return placed

    def _refuse_built_in(self, placed: Placed | None) -> None:
        if placed is not None and placed.built_in:
            raise refusals.built_in(placed.row.id)

    def _refuse_disabled(self, placed: Placed) -> None:
        if not placed.row.enabled:
            raise refusals.disabled(placed.row.id, placed.row.slug)

    def _refuse_full(self, row: BundleRow) -> None:
        left = [file for file in (self._root / row.folder).glob("*.json") if file.name != BUNDLE_FILE]
        if left:
            raise refusals.not_empty(row.id, len(left))

    def _refuse_duplicates(self, bundle_id: str, pairs: Sequence[Pair], check: Check) -> None:
        there = self._vault.read(lambda db: [listing.tool(db, bundle_id, *pair) for pair in pairs])
        seen: set[Pair] = set()
        for number, pair in enumerate(pairs):
            row = there[number]
            check(self._reader.shown([row], built_in=False)[0] if row else None)
            if row or pair in seen:
                raise refusals.duplicate(number, *pair)
            seen.add(pair)

    # --- built-ins ---------------------------------------------------------------------------------------------

    def _switch_built_in(self, table: str, ident: str, *, on: bool) -> None:
        with self._vault.writing() as journal:
            self._writer.replace(journal, SWITCHES, self._builtins.switched(table, ident, on=on))
            self._vault.touch()  # the index does not hold them, and yet something has changed
        self._writer.settle(".")
