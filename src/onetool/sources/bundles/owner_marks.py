"""The names under which an owner disables stored tools and bundles. They outlive what they name.

A tool or bundle that is deleted and stored again, by any request or import, stays disabled until an
owner enables it.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from onetool.sources.bundles import BundleStore
from onetool.sources.bundles.imported import BundleImport
from onetool.sources.bundles.model import StoredTool
from onetool.state.document_kinds import EVERYTHING


def list_names(slug: str, tool: str, version: str) -> list[str]:
    """Return the names that cover a version of a tool, whether it exists or not."""
    return [f"{slug}.{tool}", f"{slug}.{tool}@{version}"]


def list_marks(store: BundleStore, tools: Sequence[StoredTool], *, on: bool) -> list[str]:
    """Return what to mark after these versions of a tool were enabled or disabled.

    The name without a version is marked if no version is left, so that no new one takes over.
    Blocks on disk access.
    """
    marks = []
    for tool in tools:
        name, with_version = list_names(tool.bundle_slug, tool.slug, tool.version)
        marks += [tool.id, with_version]
        if on or not any(
            other.is_enabled for other in store.list_bundle_tools(tool.bundle_id, tool.slug)
        ):
            marks.append(name)
    return marks


def keep_disabled(found: BundleImport, marks: Collection[str]) -> BundleImport:
    """Return the import with what an owner disabled stored as disabled."""
    slug = found.bundle["slug"]
    problems = [*found.problems]

    def is_marked(*names: str) -> bool:
        return not {EVERYTHING, *names}.isdisjoint(marks)

    bundle = found.bundle
    if is_marked(slug):
        bundle = {**bundle, "isEnabled": False}
    tools = []
    for tool, version, body in found.tools:
        is_kept = is_marked(*list_names(slug, tool, version))
        tools.append((tool, version, {**body, "isEnabled": False} if is_kept else body))
        if is_kept:
            problems.append(f"{slug}.{tool}: stored as disabled, because an owner disabled it")
    return replace(found, bundle=bundle, tools=tools, problems=problems)
