"""All tools that a caller may see, sorted by name.

Registered tools are in memory. Stored tools are read from the index of the bundle store, page by
page.
"""

import os
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import attrgetter
from typing import Literal, get_args

from anyio.to_thread import run_sync as run_in_thread

from onetool.admin.model import AdminError
from onetool.app import OneTool
from onetool.core.names import python_name
from onetool.core.tool import RegistryEntry, Tool
from onetool.errors import BundleError, ToolNotFound
from onetool.sources.search import SearchHit
from onetool.util.context import ToolContext

Kind = Literal["built-in", "extension", "proxy", "bundle"]
KINDS: tuple[str, ...] = get_args(Kind)
MAX_SEARCHED = 1000
MAX_SEARCHES = (
    3  # of one query, because a tool that is enabled or disabled meanwhile may be missing
)
PROCESS = os.urandom(4).hex()  # other replicas do not have the versions of this process
REFRESH_SECONDS = 2.0  # for servers whose tools were never listed


def get_kind(tool: Tool) -> Kind:
    if tool.source.startswith("proxy:"):
        return "proxy"
    if tool.source.startswith("bundle:"):
        return "bundle"
    return "extension" if tool.file else "built-in"


async def read_version(app: OneTool) -> str:
    """Return the version of the tools after reading what any process has changed."""
    await app.bundles.refresh()
    app.registry.apply_switches()
    return get_version(app)


def get_version(app: OneTool) -> str:
    """Return a text that changes whenever tools change or are enabled or disabled."""
    return f"{PROCESS}-{app.registry.version}"


class ToolCatalog:
    """The tools that a caller may see."""

    def __init__(self, app: OneTool, context: ToolContext) -> None:
        self._app = app
        self._context = context

    # --- lists; these functions read the disk -----------------------------------------------------

    def list_registered(self) -> list[Tool]:
        """Return the tools in memory that the agent may call, sorted by name."""
        return sorted(filter(self._context.admits, self._app.registry), key=attrgetter("name"))

    def iter_stored(self, pack: str | None = None, after: str = "") -> Iterator[RegistryEntry]:
        """Yield the stored tools after this name that the agent may call, including disabled ones."""
        registry = self._app.registry
        try:
            for entry in self._app.bundles.names(pack, after, include_disabled=True):
                if entry.name not in registry and self._context.admits(entry):
                    yield entry._replace(enabled=entry.enabled and not registry.is_disabled(entry))
        except BundleError:  # the store cannot be read; the health check reports that
            return

    def iter_names(self, criteria: "CatalogFilter", after: str = "") -> Iterator[str]:
        """Return an iterator over the names of matching tools after this name, sorted."""
        registered = (
            tool.name
            for tool in self.list_registered()
            if criteria.matches_tool(tool) and tool.name > after
        )
        entries = self.iter_stored(criteria.pack, after) if criteria.includes_stored else ()
        return merge(registered, (entry.name for entry in entries if criteria.matches_entry(entry)))

    def get_tool(self, name: str) -> Tool | None:
        """Return the tool with this name, also from a disabled bundle."""
        registry = self._app.registry
        tool = registry.get(name) or self._app.bundles.find(name, include_disabled=True)
        return None if tool is None else registry.mark_disabled(tool)

    def count(self, criteria: "CatalogFilter") -> int:
        """Return the number of matching tools."""
        count = sum(map(criteria.matches_tool, self.list_registered()))
        return count + (self.count_stored(criteria) if criteria.includes_stored else 0)

    def count_stored(self, criteria: "CatalogFilter") -> int:
        """Return the number of matching stored tools.

        Checks each one if a filter may exclude part of a pack.
        """
        bundles = self._app.bundles
        packs = bundles.packs if criteria.pack is None else [criteria.pack]
        sources = [source for pack in packs for source in self._app.registry.find_sources(pack)]
        is_unfiltered = self._context.tools is None and criteria.is_enabled is None
        if is_unfiltered and all(source is bundles for source in sources):
            return sum(map(bundles.count, packs))
        return sum(map(criteria.matches_entry, self.iter_stored(criteria.pack)))

    def merge_hits(self, query: str, hits: Iterable[SearchHit]) -> list[Tool]:
        """Return the hits, best first, then the disabled tools that contain all words."""
        names = [hit.name for hit in hits if hit.kind == "tool"]
        words = query.casefold().split()
        disabled = [tool.name for tool in self.list_registered() if not tool.enabled]
        disabled += [entry.name for entry in self.iter_stored() if not entry.enabled]
        tools = {
            name: tool for name in (*names, *disabled) if (tool := self.get_tool(name)) is not None
        }
        hit_names = set(names)
        return [
            tool
            for name, tool in tools.items()
            if self._context.admits(tool) and (name in hit_names or _contains_all(words, tool))
        ]

    # --- one --------------------------------------------------------------------------------------

    async def find(self, name: str) -> Tool:
        """Return the tool `name` or `name@version`, refreshed from its source."""
        try:
            tool = await self._app.bus.resolve(name)
        except ToolNotFound as error:
            disabled = await run_in_thread(self.get_tool, name)
            if disabled is None:
                raise _unknown_tool_error(
                    name, error.message if self._context.tools is None else ""
                ) from None
            tool = disabled
        if not self._context.admits(tool):
            raise _unknown_tool_error(name)
        return tool

    async def search(self, query: str) -> list[Tool]:
        for _ in range(MAX_SEARCHES):
            version = self._app.registry.version
            hits = await self._app.catalog.search(query, MAX_SEARCHED)
            tools = await run_in_thread(self.merge_hits, query, hits)
            if self._app.registry.version == version:
                break
        return tools


class CatalogFilter:
    """A filter for tools. None matches everything."""

    def __init__(self, pack: str | None, kind: str | None, is_enabled: bool | None) -> None:
        self.pack = python_name(pack) if pack else None
        self.kind = kind
        self.is_enabled = is_enabled
        self.includes_stored = kind in {None, "bundle"}

    def matches_entry(self, tool: Tool | RegistryEntry) -> bool:
        return self.pack in {None, python_name(tool.pack)} and self.is_enabled in {
            None,
            tool.enabled,
        }

    def matches_tool(self, tool: Tool) -> bool:
        return self.matches_entry(tool) and self.kind in {None, get_kind(tool)}


def _contains_all(words: list[str], tool: Tool) -> bool:
    text = f"{tool.name} {tool.description}".casefold()
    return all(word in text for word in words)


def _unknown_tool_error(name: str, message: str = "") -> AdminError:
    """Return the error for an unknown tool.

    It reveals no other names to agents limited to some tools.
    """
    return AdminError("not_found", message or f"no tool {name!r}", {"name": name})


# --- refresh --------------------------------------------------------------------------------------


async def refresh_tools(app: OneTool) -> None:
    """Update the set of tools. Slow servers finish in the background."""
    if not await app.registry.refresh_within(REFRESH_SECONDS):
        await app.bundles.refresh()  # it follows the servers
