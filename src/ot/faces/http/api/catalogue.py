"""All tools there are, in the order of their names, as one caller sees them.

The order is made anew only when the registry has changed, so that a page of ten thousand costs what the page costs.
"""

import asyncio
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, Literal, get_args

import anyio.to_thread

from ot.app import OneTool
from ot.context import ToolContext
from ot.errors import BundleError, ToolNotFound
from ot.faces.http.errors import ApiError
from ot.registry import python_name
from ot.search import Hit
from ot.tool import Tool

Kind = Literal["built-in", "extension", "proxy", "bundle"]
KINDS: Final[tuple[str, ...]] = get_args(Kind)
MOST_SEARCHED: Final = 1000
PATIENCE_SECONDS: Final = 2.0  # for servers that were never asked what they have


def kind_of(tool: Tool) -> Kind:
    if tool.source.startswith("proxy:"):
        return "proxy"
    if tool.source.startswith("bundle:"):
        return "bundle"
    return "extension" if tool.file else "built-in"


class Catalogue:
    def __init__(self, app: OneTool) -> None:
        self._app = app
        self._made_of: object = None
        self._seen: dict[tuple[str, ...] | None, list[Tool]] = {}  # by what an agent may call
        self._looking: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """Have in the registry what is there now; a server that takes long is left to answer later."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._app.discover())
        done, _ = await asyncio.wait((self._looking,), timeout=PATIENCE_SECONDS)
        for task in done:
            task.result()
        if not done:
            await self._app.bundles.discover()  # which would have come after the servers

    def tools(self, context: ToolContext) -> list[Tool]:
        """Those that the agent may call, and those that it could if they were switched on. It waits for the disk."""
        now = (self._app.registry.version, self._version_of_store())
        if now != self._made_of:
            self._seen, self._made_of = {}, now
        if context.tools not in self._seen:
            admitted = [
                tool for tool in (*self._app.registry, *self._in_bundles_that_are_off()) if context.admits(tool)
            ]
            self._seen[context.tools] = sorted(admitted, key=attrgetter("name"))
        return self._seen[context.tools]

    def _version_of_store(self) -> int:
        try:
            return self._app.bundles.store.version()
        except BundleError:  # it cannot be read, which health tells
            return -1

    def _in_bundles_that_are_off(self) -> list[Tool]:
        """The registry has them by name@version only; of each tool the newest is shown."""
        source, registry = self._app.bundles, self._app.registry
        try:
            off = [bundle for bundle in source.all_bundles() if not bundle.is_enabled]
            stored = [tool for bundle in off for tool in source.store.tools_of(bundle.id)]
        except BundleError:
            return []
        known = (registry.get(source.tool_name(each)) for each in sorted(stored, key=attrgetter("modified_at")))
        newest = {tool.name: tool for tool in known if tool is not None and tool.name not in registry}
        return list(newest.values())

    async def find(self, name: str, context: ToolContext) -> Tool:
        """The tool of this name, or of `name@version`, as its source is now."""
        try:
            tool = await self._as_it_is_now(name)
        except ToolNotFound as error:
            off = await anyio.to_thread.run_sync(self._that_is_off, name, context)
            if off is None:
                raise _unknown(name, error.message if context.tools is None else "") from None
            tool = off
        if not context.admits(tool):
            raise _unknown(name)
        return tool

    def _that_is_off(self, name: str, context: ToolContext) -> Tool | None:
        return next((tool for tool in self.tools(context) if name in {tool.name, python_name(tool.name)}), None)

    async def _as_it_is_now(self, name: str) -> Tool:
        registry = self._app.registry
        found = registry.get(name)
        if found is None:
            await self._app.discover({python_name(name).partition(".")[0]})
        elif found.refresh is not None:
            await found.refresh()
        return await self._app.bus.find_tool(name)

    async def search(self, query: str, tools: Iterable[Tool]) -> list[Tool]:
        """Those that fit, the best first; and behind them those that are switched off and have all the words."""
        hits = await self._app.search(query, MOST_SEARCHED)
        return await anyio.to_thread.run_sync(_matching, query, hits, tools)


def _matching(query: str, hits: Iterable[Hit], tools: Iterable[Tool]) -> list[Tool]:
    by_name = {tool.name: tool for tool in tools}
    found = [by_name[hit.name] for hit in hits if hit.kind == "tool" and hit.name in by_name]
    words = query.casefold().split()
    return found + [tool for tool in by_name.values() if not tool.enabled and _has(words, tool)]


def _has(words: list[str], tool: Tool) -> bool:
    text = f"{tool.name} {tool.description}".casefold()
    return all(word in text for word in words)


def _unknown(name: str, message: str = "") -> ApiError:
    """An agent that sees some tools is not told the names of others."""
    return ApiError("not_found", message or f"there is no tool {name!r}", {"name": name})
