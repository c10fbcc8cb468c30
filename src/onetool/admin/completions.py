"""`/api/completions`: names of packs and tools that begin with a prefix, for editors.

The answer is always small.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Literal

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import action
from onetool.admin.catalog import CatalogFilter, ToolCatalog
from onetool.admin.model import ApiModel, Query, absent
from onetool.admin.person import Person
from onetool.admin.tool_refresh import refresh_tools
from onetool.app import OneTool
from onetool.core.names import python_name
from onetool.core.signature import signature
from onetool.core.tool import Tool
from onetool.util.context import ToolContext

MAX_NAMES = 50
MAX_SIGNATURE_CHARS = 400


class CompletionsQuery(Query):
    prefix: str = Field(
        default="", description="Start of a pack's name, or a pack, a dot and the start of a tool's"
    )


class NameCompletion(ApiModel):
    text: str = Field(description="The name as written in code; for a tool without its pack")
    kind: Literal["pack", "tool"]
    signature: str = absent()
    description: str = absent()


class CompletionList(ApiModel):
    completions: list[NameCompletion]
    is_complete: bool = Field(description="Whether these are all names with this prefix")


@action("GET /api/completions", f"Up to {MAX_NAMES} names, sorted", errors=("permission_denied",))
async def complete_name(app: OneTool, person: Person, query: CompletionsQuery) -> CompletionList:
    """Complete the name of a pack or a tool."""
    context = person.open_context(app)
    await refresh_tools(app)
    return await run_in_thread(_complete, app, context, query.prefix)


def _complete(app: OneTool, context: ToolContext, prefix: str) -> CompletionList:
    pack, dot, start = prefix.partition(".")
    catalog = ToolCatalog(app, context)
    names = (
        _iter_tools(catalog, pack, start.casefold())
        if dot
        else _iter_packs(app, catalog, context, pack)
    )
    completions = list(islice(names, MAX_NAMES + 1))
    return CompletionList(
        completions=completions[:MAX_NAMES], is_complete=len(completions) <= MAX_NAMES
    )


def _iter_packs(
    app: OneTool, catalog: ToolCatalog, context: ToolContext, prefix: str
) -> Iterator[NameCompletion]:
    """Yield the packs of which the agent may call a tool."""
    names = {python_name(tool.pack) for tool in catalog.list_registered() if tool.enabled}
    for name in sorted((names | set(app.bundles.pack_names)) - {""}):
        is_visible = context.tools is None or _has_tools(catalog, name)
        if is_visible and name.casefold().startswith(prefix.casefold()):
            yield NameCompletion(text=name, kind="pack", description=app.registry.describe(name))


def _has_tools(catalog: ToolCatalog, pack: str) -> bool:
    return next(catalog.iter_names(CatalogFilter(pack, None, True)), None) is not None


def _iter_tools(catalog: ToolCatalog, pack: str, start: str) -> Iterator[NameCompletion]:
    if not pack:
        return
    for name in catalog.iter_names(CatalogFilter(pack, None, True)):
        short = python_name(name.partition(".")[2])
        if short.casefold().startswith(start) and (tool := catalog.get_tool(name)) is not None:
            yield _describe_tool(short, tool)


def _describe_tool(short: str, tool: Tool) -> NameCompletion:
    shown = signature(tool)
    shown = shown if len(shown) <= MAX_SIGNATURE_CHARS else f"{shown[:MAX_SIGNATURE_CHARS]}…"
    return NameCompletion(text=short, kind="tool", signature=shown, description=tool.summary)
