"""`BundleStore`: all operations on bundles and stored tools.

Methods block on disk access, so callers on an event loop use threads. Any number of threads and
processes may use one directory at once. If several errors apply, the first of these is raised:
malformed ID, not found, built-in, state, body, duplicate.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path

from onetool.errors import BundleError
from onetool.sources.bundles import rules
from onetool.sources.bundles.bundle_index import read_meta
from onetool.sources.bundles.bundle_storage import BundleDirectory
from onetool.sources.bundles.model import (
    Bundle,
    BundleDraft,
    StoredTool,
    Switch,
    ToolDraft,
    check_depth,
    now,
)
from onetool.sources.bundles.queries import BUNDLE, BundleRow, PageTokens, ToolRow
from onetool.sources.bundles.reader import BundleReader, UsageCounts, to_stored_tool
from onetool.sources.bundles.records import MAX_FILE_BYTES, BundleFile, ToolFile
from onetool.sources.bundles.rules import BUNDLE_FILE
from onetool.sources.bundles.sync import BuiltIns, list_problems
from onetool.sources.http import credentials
from onetool.state.sealing import PageKey
from onetool.state.stats.database import StatisticsFile
from onetool.state.storage import BUILT_IN_STATES
from onetool.util.clock_watch import Clock, ClockWatch, read_steady_clock
from onetool.util.problem import Problem, is_full
from onetool_child.json_types import JsonMapping

Body = JsonMapping
Pair = tuple[str, str]
# Gets the stored value, and raises to prevent the change.
Check = Callable[[Bundle | StoredTool | None], None]


def allow_any(_current: Bundle | StoredTool | None) -> None:
    """Allow every change."""


class BundleStore(BundleReader):
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
        self._directory = make_directory(directory, on_scanned=self.remove_expired)
        self._builtins = BuiltIns(builtin, directory / BUILT_IN_STATES)
        self._usage = usage or UsageCounts(StatisticsFile(directory.parent / "stats" / "stats.db"))
        self._tokens = PageTokens(PageKey(directory / ".key").load)
        self._clock = clock
        self._max_tools = max_tools
        self._clock_watch = ClockWatch(lambda: clock().timestamp(), steady)

    # --- bundles ----------------------------------------------------------------------------------

    def put_bundle(
        self, bundle_id: str, draft: BundleDraft | Body, check: Check = allow_any
    ) -> tuple[Bundle, bool]:
        """Create or replace a bundle. Return it, and whether it is new."""
        bundle_id = rules.check_id(bundle_id)
        self._reject_built_in(self._find_bundle(bundle_id))
        checked = BundleDraft.of(draft)
        with self._directory.writing():
            directory = self._directory.find_directory(bundle_id)
            current = self._find_bundle(bundle_id)
            check(
                current.to_bundle() if current is not None and current.deleted_at is None else None
            )
            other = self._find_bundle_by("slug", checked.slug)
            if other is not None and other.id != bundle_id:
                message = f"slug {checked.slug!r} is already used by bundle {other.id}"
                details = {"slug": checked.slug, "bundle_id": other.id}
                hint = "a slug is the name of a pack, so choose another"
                raise BundleError(f"{message}; {hint}", code="slug_taken", details=details)
            is_new = current is None or self._is_expired(current)
            if current is None or is_new:
                file = BundleFile.new(bundle_id, checked, self._clock())
            else:
                file = current.file().replace_with(checked, self._clock())
            directory = self._directory.put_bundle(directory, file)
        self._directory.sync_directories(directory, ".")
        return file.to_bundle(built_in=False), is_new

    def set_bundle_enabled(
        self, bundle_id: str, switch: bool | Body, check: Check = allow_any
    ) -> Bundle:
        """Enable or disable a bundle.

        `switch` may be the raw body of a PATCH request, which is validated.
        """
        row = self._get_bundle(bundle_id)
        is_enabled = _check_switch(switch, row)
        with self._directory.writing():
            row = self._get_bundle(bundle_id)
            check(row.to_bundle())
            if row.built_in:
                self._set_built_in_enabled("bundles", row.id, is_enabled=is_enabled)
            elif bool(row.enabled) != is_enabled:
                file = row.file().model_copy(update={"is_enabled": is_enabled})
                self._directory.put_bundle(row.directory, file)
        self._directory.sync_directories(row.directory, ".")
        return self.get_bundle(bundle_id)

    def delete_bundle(self, bundle_id: str, check: Check = allow_any) -> None:
        """Delete a bundle.

        It can be restored for two days, unless the disk is too full to record the deletion.
        """
        self._reject_built_in(self._get_bundle(bundle_id))
        with self._directory.writing():
            row = self._get_bundle(bundle_id)
            check(row.to_bundle())
            self._reject_non_empty(row)
            file = row.file().model_copy(update={"soft_deleted_at": self._clock()})
            try:
                with self._directory.converting_errors():
                    self._directory.put_bundle(row.directory, file)
            except BundleError as error:
                if not is_full(error):
                    raise
                self._directory.remove_bundle(row.directory)
        self._directory.sync_directories(row.directory, ".")

    # --- tools ------------------------------------------------------------------------------------

    def put_tool(
        self,
        bundle_id: str,
        slug: str,
        version: str,
        draft: ToolDraft | Body,
        check: Check = allow_any,
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
        """Store all tools, or none if one is rejected.

        The error details name it (`index`, `slug`, `version`).

        With `may_be_disabled`, a disabled bundle accepts them.
        """
        items = list(tools)
        bundle_id = rules.check_id(bundle_id)
        for number, (slug, version, _) in enumerate(items):
            with _naming_item(number, slug, version):
                rules.check_slug(slug)
                rules.check_version_label(version)
        self._get_writable_bundle(bundle_id, may_be_disabled=may_be_disabled)
        start = self._clock()
        files: list[ToolFile] = []
        for number, (slug, version, body) in enumerate(items):
            with _naming_item(number, slug, version):
                draft = ToolDraft.of(self._restore_credentials(bundle_id, slug, body))
            # Later than the previous one, so that there is always a newest.
            moment = start + timedelta(microseconds=number)
            files.append(ToolFile.new(self.new_id(), slug, version, draft, moment))
        self._reject_duplicates(bundle_id, files, check)
        if not files:
            return []
        return self._store_new(bundle_id, files, check, may_be_disabled=may_be_disabled)

    def _restore_credentials(
        self, bundle_id: str, slug: str, body: ToolDraft | Body
    ) -> ToolDraft | Body:
        """Return the body with each mask replaced with the credential of the newest version."""
        if not isinstance(body, Mapping):
            return body
        impl = body.get("httpImpl")
        check_depth(impl)
        if not isinstance(impl, Mapping) or credentials.find_mask_problem(impl) is None:
            return body
        versions = self.list_bundle_tools(bundle_id, slug)
        newest = max(versions, key=attrgetter("modified_at"), default=None)
        return {**body, "httpImpl": credentials.restore(impl, newest.http_impl if newest else None)}

    def _store_new(
        self, bundle_id: str, files: Sequence[ToolFile], check: Check, *, may_be_disabled: bool
    ) -> list[StoredTool]:
        contents = [_check_content(number, file) for number, file in enumerate(files)]
        written = self._directory.write(contents)
        try:
            with self._directory.writing():
                bundle = self._get_writable_bundle(bundle_id, may_be_disabled=may_be_disabled)
                self._reject_duplicates(bundle_id, files, check)
                stored = self._directory.read(lambda database: read_meta(database, "tools"))
                if stored + len(files) > self._max_tools:
                    message = (
                        f"the store holds {stored}, and bundles.maxTools allows {self._max_tools}"
                    )
                    details = {"tools": stored, "max_tools": self._max_tools}
                    raise BundleError(
                        f"too many tools: {message}", code="too_large", details=details
                    )
                self._directory.add_tools(bundle.directory, files, written)
        finally:
            self._directory.scratch.drop(written)
        self._directory.sync_directories(bundle.directory)
        stored_tools = []
        for file in files:
            body = file.model_dump_json(by_alias=True)
            row = ToolRow(0, file.id, bundle.id, bundle.slug, True, "", body, 0, 0)
            stored_tools.append(to_stored_tool(row))
        return stored_tools

    def set_tool_enabled(
        self, bundle_id: str, slug: str, version: str, switch: bool | Body, check: Check = allow_any
    ) -> StoredTool:
        bundle, _ = self._get_tool(bundle_id, slug, version)
        if not bundle.built_in:
            self._reject_disabled(bundle)
        is_enabled = _check_switch(switch, bundle)
        with self._directory.writing():
            bundle, row = self._get_tool(bundle_id, slug, version)
            self._reject_disabled(bundle)
            check(self._to_tools([row])[0])
            file = row.content()
            if bundle.built_in:
                self._set_built_in_enabled("tools", row.id, is_enabled=is_enabled)
            elif file.is_enabled != is_enabled:
                changed = file.model_copy(update={"is_enabled": is_enabled})
                self._directory.replace(f"{bundle.directory}/{row.file}", changed.text())
        self._directory.sync_directories(bundle.directory, ".")
        return self.get_tool(bundle_id, slug, version)

    def delete_tool(
        self, bundle_id: str, slug: str, version: str, check: Check = allow_any
    ) -> None:
        bundle, _ = self._get_tool(bundle_id, slug, version)
        self._reject_built_in(bundle)
        with self._directory.writing():
            bundle, row = self._get_tool(bundle_id, slug, version)
            check(self._to_tools([row])[0])
            self._directory.delete(f"{bundle.directory}/{row.file}")
        self._directory.sync_directories(bundle.directory)

    # --- maintenance ------------------------------------------------------------------------------

    def new_id(self) -> str:
        import uuid_utils

        return str(uuid_utils.uuid7())

    def rescan(self) -> None:
        """Update the index for files that were changed by hand.

        This also runs once in the background.
        """
        self._directory.rescan()

    @property
    def problems(self) -> list[Problem]:
        """Problems of the store and its files."""
        problems = self._directory.read(
            lambda database: list_problems(database, self._directory.root)
        )
        usage = [Problem(self._usage.problem)] if self._usage.problem else []
        return [*problems, *self._directory.problems, *self._builtins.problems, *usage]

    def remove_expired(self) -> None:
        """Remove empty bundles that were deleted two days ago, unless the clock has jumped."""
        if not self._clock_watch.is_reliable():
            return
        for row in self._select(BundleRow, f"{BUNDLE} where deleted_at <= ?", self._expiry_limit()):
            with self._directory.writing():
                current = self._find_bundle(row.id)
                if current is not None and self._is_expired(current):
                    self._directory.remove_bundle(current.directory)
            self._directory.sync_directories(".")

    def close(self) -> None:
        self._directory.close()
        self._builtins.close()

    # --- checks -----------------------------------------------------------------------------------

    def _get_writable_bundle(self, bundle_id: str, *, may_be_disabled: bool) -> BundleRow:
        """Return a bundle whose tools may be changed."""
        row = self._get_bundle(bundle_id)
        self._reject_built_in(row)
        if not may_be_disabled:
            self._reject_disabled(row)
        return row

    def _reject_built_in(self, row: BundleRow | None) -> None:
        if row is not None and row.built_in:
            raise _built_in_error(row.id)

    def _reject_disabled(self, row: BundleRow) -> None:
        if not row.enabled:
            message = f"bundle {row.slug} is disabled; enable it before you change its tools"
            raise BundleError(message, code="bundle_disabled", details={"bundle_id": row.id})

    def _reject_non_empty(self, row: BundleRow) -> None:
        directory = self._directory.root / row.directory
        files = [file for file in directory.glob("*.json") if file.name != BUNDLE_FILE]
        if files:
            message = f"bundle {row.id} is not empty; delete its tools first"
            raise BundleError(
                message, code="bundle_not_empty", details={"bundle_id": row.id, "files": len(files)}
            )

    def _reject_duplicates(self, bundle_id: str, files: Sequence[ToolFile], check: Check) -> None:
        seen: set[Pair] = set()
        for number, file in enumerate(files):
            pair = file.slug, file.version
            row = self._find_version(bundle_id, *pair)
            check(self._to_tools([row])[0] if row else None)
            if row or pair in seen:
                message = f"tool {file.slug}@{file.version} already exists"
                details = {"index": number, "slug": file.slug, "version": file.version}
                hint = "a stored version never changes, so choose another"
                raise BundleError(f"{message}; {hint}", code="duplicate", details=details)
            seen.add(pair)

    def _set_built_in_enabled(self, table: str, item_id: str, *, is_enabled: bool) -> None:
        states = self._builtins.render_states(table, item_id, enabled=is_enabled)
        self._directory.replace(BUILT_IN_STATES, states)
        # the index does not contain the enabled states of built-in bundles
        self._directory.increment_version()


def _built_in_error(bundle_id: str) -> BundleError:
    message = f"bundle {bundle_id} is built in: it can be enabled and disabled, but not changed"
    return BundleError(message, code="builtin_read_only", details={"bundle_id": bundle_id})


@contextmanager
def _naming_item(number: int, slug: str, version: str) -> Iterator[None]:
    """Add the tool to the details of an error: its number in the request, its slug and its version."""
    try:
        yield
    except BundleError as error:
        details = {**error.details, "index": number, "slug": slug, "version": version}
        raise BundleError(error.message, code=error.code, details=details) from None


def _check_content(number: int, file: ToolFile) -> bytes:
    """Return the content of a new file. Raise if it is too large."""
    content = file.text()
    if len(content) > MAX_FILE_BYTES:
        message = (
            f"tool {file.slug}@{file.version} is too large: {len(content)} bytes (at most"
            f" {MAX_FILE_BYTES})"
        )
        details = {"index": number, "slug": file.slug, "version": file.version}
        raise BundleError(message, code="too_large", details=details)
    return content


def _check_switch(switch: bool | JsonMapping, bundle: BundleRow) -> bool:
    """Return whether to enable a bundle or its tool.

    Of a built-in one, any other field is rejected as read-only.
    """
    if isinstance(switch, bool):
        return switch
    if bundle.built_in and set(switch) - {"isEnabled"}:
        raise _built_in_error(bundle.id)
    return Switch.of(switch).is_enabled
