"""`/api/completions`: names of packs and tools that begin with a prefix, for editors. The answer is always small."""

from collections.abc import Iterator
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response

from onetool.core.context import ToolContext
from onetool.core.names import python_name
from onetool.core.signature import signature
from onetool.core.tool import Tool
from onetool.transports.http import identity
from onetool.transports.http.api.catalog import CatalogFilter, ToolCatalog
from onetool.transports.http.api.common import Api
from onetool.transports.http.models import CompletionList, CompletionsQuery, NameCompletion
from onetool.transports.http.routing import Operation, ResponseSpec, read_query

PATH = "/api/completions"
MAX_NAMES = 50
MAX_SIGNATURE_CHARS = 400


class CompletionHandlers:
    def __init__(self, api: Api, catalog: ToolCatalog) -> None:
        self._api = api
        self._catalog = catalog

    def operations(self) -> Iterator[Operation]:
        found = {200: ResponseSpec(f"Up to {MAX_NAMES} names, sorted", CompletionList)}
        summary = "Complete the name of a pack or a tool"
        errors = ("permission_denied",)
        yield Operation("GET", PATH, self.complete, summary, found, CompletionsQuery, errors=errors)

    async def complete(self, request: Request) -> Response:
        prefix = read_query(CompletionsQuery, request).prefix
        context = identity.build_context(request, self._api.app)
        await self._catalog.refresh()
        return await self._api.run_in_thread(lambda: self._api.respond(self._find(prefix, context)))

    def _find(self, prefix: str, context: ToolContext) -> CompletionList:
        pack, dot, start = prefix.partition(".")
        found = self._find_tools(pack, start.casefold(), context) if dot else self._find_packs(pack, context)
        completions = list(islice(found, MAX_NAMES + 1))
        return CompletionList(completions=completions[:MAX_NAMES], is_complete=len(completions) <= MAX_NAMES)

    def _find_packs(self, prefix: str, context: ToolContext) -> Iterator[NameCompletion]:
        app = self._api.app
        start = prefix.casefold()
        names = {python_name(tool.pack) for tool in self._catalog.list_registered(context) if tool.enabled}
        names |= set(app.bundles.pack_names)
        for name in sorted(names):
            if name.casefold().startswith(start) and self._is_visible(name, context):
                yield NameCompletion(text=name, kind="pack", description=app.registry.describe(name))

    def _is_visible(self, pack: str, context: ToolContext) -> bool:
        """Return whether the agent may call a tool of the pack."""
        if not pack or context.tools is None:
            return bool(pack)
        return next(self._catalog.iter_names(context, CatalogFilter(pack, None, True), ""), None) is not None

    def _find_tools(self, pack: str, start: str, context: ToolContext) -> Iterator[NameCompletion]:
        if not pack:
            return
        for name in self._catalog.iter_names(context, CatalogFilter(pack, None, True), ""):
            short = python_name(name.partition(".")[2])
            if short.casefold().startswith(start) and (tool := self._catalog.get_tool(name)) is not None:
                yield _describe_tool(short, tool)


def _describe_tool(short: str, tool: Tool) -> NameCompletion:
    shown = signature(tool)
    shown = shown if len(shown) <= MAX_SIGNATURE_CHARS else f"{shown[:MAX_SIGNATURE_CHARS]}…"
    return NameCompletion(text=short, kind="tool", signature=shown, description=tool.summary)
