"""The plan of an import into an existing bundle: versions to add, tools to keep or to disable, and the difference."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count

from onetool.bundles import difference
from onetool.bundles.difference import BundleDifference, ToolChange, ToolOutline
from onetool.bundles.imported import BundleImport, ToolEntry
from onetool.bundles.model import StoredTool, ToolDraft

MAX_VERSION_STEM = 58  # of the 64 characters of a version, to leave room for a numeric suffix


class VersionConflict(Exception):
    """Raised if a version exists with other content."""


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """Options of an import into an existing bundle.

    `renames_versions` stores a changed tool whose version exists under a new version. `replaced_edits` are the tools
    whose local edits the import replaces (None means all). `disables_removed` disables tools that the document lacks.
    """

    renames_versions: bool = False
    replaced_edits: frozenset[str] | None = frozenset()
    disables_removed: bool = False


class UpdatePlan:
    """The plan of an update. `kept` are the tools whose local edits stay in use; they are not updated."""

    def __init__(self, found: BundleImport, stored: Iterable[StoredTool], options: UpdateOptions) -> None:
        self._options = options
        self._stored: dict[str, list[StoredTool]] = {}
        for tool in stored:
            self._stored.setdefault(tool.slug, []).append(tool)
        self.added: list[ToolEntry] = []
        self.kept: list[str] = []
        self.difference = BundleDifference()
        for entry in found.tools:
            self._add(entry)
        self.difference.removed.extend(self._find_removed(found))
        self.disabled = [tool.slug for tool in self.difference.removed if options.disables_removed]

    def _add(self, entry: ToolEntry) -> None:
        slug, version, body = entry
        new = ToolDraft.of(body)
        versions = {tool.version: tool for tool in self._stored.get(slug, ())}
        same = versions.get(version)
        if not versions:
            self.difference.added.append(difference.outline_tool(slug, version, new))
            self.added.append(entry)
        elif same is not None and difference.has_same_content(same, new):
            self._count_unchanged()
        elif same is not None and not self._options.renames_versions:
            raise VersionConflict(f"already has a different {slug}@{version}; a stored version never changes")
        else:
            self._change(entry, new, versions)

    def _change(self, entry: ToolEntry, new: ToolDraft, versions: dict[str, StoredTool]) -> None:
        slug, version, body = entry
        current = difference.find_current(versions.values())
        free = _find_free_version(version, versions)
        if difference.has_same_content(current, new):
            self._count_unchanged()
            self.added.extend([entry] if free == version else [])
            return
        is_edited = new.origin is not None and current.origin is None
        changes = difference.list_changes(current, new)
        self.difference.changed.append(
            ToolChange(slug=slug, version=current.version, new_version=free, is_edited=is_edited, changes=changes)
        )
        replaced = self._options.replaced_edits
        if is_edited and replaced is not None and slug not in replaced:
            self.kept.append(slug)
        else:
            self.added.append((slug, free, body))

    def _count_unchanged(self) -> None:
        self.difference = self.difference.model_copy(update={"unchanged": self.difference.unchanged + 1})

    def _find_removed(self, found: BundleImport) -> Iterator[ToolOutline]:
        """Yield the imported tools that a document lacks. An archive removes nothing."""
        if not any(body.get("origin") for _, _, body in found.tools):
            return
        known = {slug for slug, _, _ in found.tools}
        for slug, versions in self._stored.items():
            current = difference.find_current(versions)
            if slug not in known and current.origin is not None and current.is_enabled:
                yield difference.outline_tool(slug, current.version, current)


def _find_free_version(version: str, versions: Collection[str]) -> str:
    candidates = chain([version], (f"{version[:MAX_VERSION_STEM]}-{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in versions)
