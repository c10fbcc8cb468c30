"""Tools of every kind: list, search, get, enable and disable them, and complete their names."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import WRITE, Person, action
from onetool.admin.catalog import (
    CatalogFilter,
    Kind,
    ToolCatalog,
    get_kind,
    get_version,
    refresh_tools,
)
from onetool.admin.model import (
    MAX_PAGE_SIZE,
    AdminError,
    ApiModel,
    Count,
    Flag,
    PageQuery,
    PageResponse,
    Query,
    Time,
    absent,
)
from onetool.admin.precondition import NO_CONDITION, Precondition, compute_etag
from onetool.admin.stored_tools import SwitchBody
from onetool.app import OneTool
from onetool.core.names import python_name
from onetool.core.policy.effects import get_effects, get_labels, sort_effects
from onetool.core.signature import signature
from onetool.core.tool import Tool
from onetool.errors import ToolError
from onetool.sources.bundles import BundleStore
from onetool.sources.bundles.imported import list_marks, list_names
from onetool.sources.bundles.model import Id, Moment, StoredTool, Switch
from onetool.sources.bundles.queries import PageTokens
from onetool.state.stats import summary
from onetool.util.context import ToolContext, sort_permissions
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.state.stats.database import StatisticsDatabase

Permissions = list[Literal["read", "write", "exec", "network"]]
MAX_NAMES = 50
MAX_SIGNATURE_CHARS = 400


class ToolsQuery(PageQuery):
    q: str = Field(default="", description="Search text")
    pack: str = Field(default="", description="Only tools of this pack")
    kind: Kind | None = Field(default=None, description="Only tools of this kind")
    is_enabled: Flag | None = Field(
        default=None, description="true: only enabled tools; false: only disabled tools"
    )


class ToolLine(ApiModel):
    name: str
    python_name: str = Field(description="Name as written in code; also accepted in paths")
    pack: str
    kind: Kind
    source: str
    description: str
    signature: str
    permissions: Permissions
    effects: list[Literal["read", "write", "exec", "external"]]
    is_idempotent: bool = Field(description="Whether a call may be repeated without harm")
    labels: list[Literal["private", "untrusted"]] = Field(
        description="Labels of results, for the policy `guarded`"
    )
    is_enabled: bool
    disabled_reason: str = absent()
    etag: str = Field(default="", exclude=True)  # of the details, after a change


class LastError(ApiModel):
    type: str
    at: Time


class ToolUsage(ApiModel):
    calls: Count
    errors: Count
    p50_ms: float | None
    last_called_at: Time = absent()
    last_error: LastError | None = absent(None)


class ToolVersion(ApiModel):
    id: Id
    bundle_id: Id
    version: str
    is_enabled: bool
    disabled_reason: str | None = absent(None)
    modified_at: Moment
    call_count: Count
    last_called_at: Moment | None


class ToolDetails(ToolLine):
    input_schema: JsonObject
    output_schema: Any
    example: str
    returns: str
    observed_shape: str | None
    file: str
    timeout_seconds: float | None
    usage: ToolUsage
    versions: list[ToolVersion] = absent([])


class UnlistedServer(ApiModel):
    server: str
    state: str
    reason: str


class ToolPage(PageResponse):
    tools: Annotated[list[ToolLine], Field(max_length=MAX_PAGE_SIZE)]
    total: Count
    version: str = Field(description="Changes with the tools; `/api/changes` sends it")
    unlisted: list[UnlistedServer] = absent([], "Servers whose tools are not loaded yet")


# --- a list ---------------------------------------------------------------------------------------


@action(
    "GET /api/tools", "A page of tools; with q, best matches first", errors=("permission_denied",)
)
async def list_tools(app: OneTool, person: Person, query: ToolsQuery) -> ToolPage:
    """List or search tools of every kind."""
    context = person.open_context(app)
    await refresh_tools(app)
    version = get_version(app)
    hits = await ToolCatalog(app, context).search(query.q) if query.q.strip() else None
    return await run_in_thread(_make_page, app, query, context, hits, version)


def _make_page(
    app: OneTool, query: ToolsQuery, context: ToolContext, hits: list[Tool] | None, version: str
) -> ToolPage:
    """Return a page sorted by name, or of the hits.

    The position of a tool is its name and its number.
    """
    tokens = PageTokens(partial(app.state.load_key, "pages"))
    filters = ["api", query.q, query.pack, query.kind, query.is_enabled, list(context.tools or ())]
    last, start = tokens.read(query.page_token or None, filters) or ("", 0)
    size = query.page_size
    criteria = CatalogFilter(query.pack, query.kind, query.is_enabled)
    if hits is None:
        catalog = ToolCatalog(app, context)
        tools = list(
            islice(
                filter(None, map(catalog.get_tool, catalog.iter_names(criteria, last))), size + 1
            )
        )
        total = catalog.count(criteria)
    else:
        matching = list(filter(criteria.matches_tool, hits))
        numbers = (number for number, tool in enumerate(matching, 1) if tool.name == last)
        start = next(numbers, start)  # if the tool is gone, continue at the same position
        tools = matching[start : start + size + 1]
        total = len(matching)
    items = [
        ([tool.name, number], _summarize(tool)) for number, tool in enumerate(tools, start + 1)
    ]
    page = tokens.make_page(filters, size, items)
    unlisted = _list_unlisted(app, context)
    return ToolPage(
        tools=page.items,
        total=total,
        version=version,
        unlisted=unlisted,
        next_page_token=page.next_token or "",
    )


def _list_unlisted(app: OneTool, context: ToolContext) -> list[UnlistedServer]:
    """Return the servers, and the bundle store, whose tools are not loaded yet."""
    missing = [UnlistedServer(**server._asdict()) for server in app.servers.list_unlisted(context)]
    if app.bundles.is_building:
        missing.append(
            UnlistedServer(server="bundles", state="discovering", reason="building the index")
        )
    return missing


# --- one ------------------------------------------------------------------------------------------


@action(
    "GET /api/tools/{name}",
    "The tool with all details",
    errors=("permission_denied",),
    has_etag=True,
)
async def get_tool(app: OneTool, person: Person, name: str) -> ToolDetails:
    """Get a tool with all details."""
    tool = await ToolCatalog(app, person.open_context(app)).find(name)
    return await run_in_thread(_describe, app, person, tool)


def _describe(app: OneTool, person: Person, tool: Tool) -> ToolDetails:
    app.state.recorder.flush()  # include calls that just ended
    return ToolDetails(
        **_common_fields(tool),
        description=tool.description,
        input_schema=tool.input.json,
        output_schema=tool.output.json if tool.output else None,
        example=tool.example,
        returns=tool.returns,
        observed_shape=app.state.shapes.text(tool.name),
        file=tool.file,
        timeout_seconds=tool.timeout,
        usage=_get_usage(app.state.recorder.database, tool.name, person.visible_agent),
        versions=[*map(ToolVersion.model_validate, _list_versions(app, tool))],
    )


def _list_versions(app: OneTool, tool: Tool) -> list[StoredTool]:
    """Return all versions of a stored tool, oldest first."""
    if get_kind(tool) != "bundle":
        return []
    source = app.bundles
    bundle = source.store.bundle_by_slug(tool.pack)
    versions = (
        source.store.list_bundle_tools(bundle.id, tool.short_name) if bundle is not None else []
    )
    return sorted(map(source.apply_state, versions), key=attrgetter("modified_at"))


@action("PATCH /api/tools/{name}", "The tool", needs=WRITE, errors=("bundle_disabled",))
async def set_tool_enabled(
    app: OneTool,
    person: Person,
    name: str,
    switch: SwitchBody,
    precondition: Precondition = NO_CONDITION,
) -> ToolLine:
    """Enable or disable a tool of any kind."""
    catalog = ToolCatalog(app, person.open_context(app))

    def render(tool: Tool) -> JsonObject:
        details: JsonObject = app.redact.redact_data(_describe(app, person, tool).as_json())
        return details

    async with person.changing(app, "tool.patch", [name]) as facts, app.registry.switch_lock:
        tool = await catalog.find(name)
        on = (await run_in_thread(Switch.of, switch)).is_enabled  # the body may be large
        if tool.pack in app.state.disabled_tools.list_names():
            message = f"pack '{tool.pack}' is disabled: enable it first"
            raise AdminError("bundle_disabled", message, {"pack": tool.pack})
        precondition.check(await run_in_thread(render, tool))
        version = name.partition("@")[2]
        # All versions, so that no other one takes over, or the one in the name.
        versions = [
            one
            for one in await run_in_thread(_list_versions, app, tool)
            if version in {"", one.version}
        ]
        if on:
            names = [
                name
                for one in versions
                for name in (one.id, *list_names(tool.pack, one.slug, one.version))
            ]
            person.require_enabling(app, names or [tool.name])
        facts["action"] = f"tool.{'enabled' if on else 'disabled'}"
        if get_kind(tool) == "bundle":
            await app.bundles.write(lambda store: _switch_versions(store, versions, on=on))
            await app.bundles.refresh()
        if get_kind(tool) != "bundle" or on:
            await app.registry.switch(tool.name, on=on)
        await run_in_thread(_mark, app, person, tool, versions, on)
    updated = await catalog.find(name)
    line = _summarize(updated)
    line.etag = compute_etag(await run_in_thread(render, updated))
    return line


def _mark(app: OneTool, person: Person, tool: Tool, versions: list[StoredTool], on: bool) -> None:
    marks = list_marks(app.bundles.store, versions, on=on) if versions else [tool.name]
    person.mark_disabled(app, marks, on=on)


def _switch_versions(store: BundleStore, versions: list[StoredTool], *, on: bool) -> None:
    for version in versions:
        store.set_tool_enabled(version.bundle_id, version.slug, version.version, on)


def _get_usage(statistics: "StatisticsDatabase", name: str, agent: str | None) -> ToolUsage:
    """Return the usage by one agent or by all.

    Unreadable statistics count as zero; the health check reports them.
    """
    try:
        counts = summary.get_usage(statistics, name, agent)
    except (ToolError, OSError):
        counts = summary.ToolCounts(0, 0)
    usage = ToolUsage(calls=counts.calls, errors=counts.errors, p50_ms=counts.p50_ms)
    if counts.last_at is not None:
        usage.last_called_at = in_utc(counts.last_at, "milliseconds")
    if counts.last_error is not None:
        kind, at = counts.last_error
        usage.last_error = LastError(type=kind, at=in_utc(at, "milliseconds"))
    return usage


def _summarize(tool: Tool) -> ToolLine:
    return ToolLine(**_common_fields(tool), description=tool.summary)


def _common_fields(tool: Tool) -> JsonObject:
    """Return all fields except the description, which is shorter in lists."""
    return {
        "name": tool.name,
        "python_name": python_name(tool.name),
        "pack": tool.pack,
        "kind": get_kind(tool),
        "source": tool.source,
        "signature": signature(tool),
        "permissions": sort_permissions(tool.permissions),
        "effects": sort_effects(get_effects(tool)),
        "is_idempotent": tool.is_idempotent,
        "labels": sorted(get_labels(tool)),
        "is_enabled": tool.enabled,
        "disabled_reason": tool.disabled_reason,
    }


# --- completions ----------------------------------------------------------------------------------


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
    names = _iter_packs(app, catalog, context, pack)
    if dot:
        names = _iter_tools(catalog, pack, start.casefold())
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
