"""`/api/tools`: list, search, get, call, enable and disable tools of every kind."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.person import check_settings
from onetool.bundles.model import StoredTool, Switch
from onetool.bundles.owner_marks import list_marks, list_names
from onetool.bundles.paging import PageTokens
from onetool.core.bus.authorize import describe_disabled
from onetool.core.context import ToolContext, sort_permissions
from onetool.core.names import python_name
from onetool.core.policy.effects import get_effects, sort_effects
from onetool.core.policy.labels import get_labels
from onetool.core.signature import signature
from onetool.core.tool import Tool
from onetool.errors import ToolError
from onetool.stats import summary
from onetool.transports.http import identity
from onetool.transports.http.api.catalog import CatalogFilter, ToolCatalog, get_kind
from onetool.transports.http.api.common import Api
from onetool.transports.http.errors import ApiError
from onetool.transports.http.invoke import OUTCOME, invoke
from onetool.transports.http.json_body import RequestBody
from onetool.transports.http.models import (
    Call,
    LastError,
    ToolDetails,
    ToolLine,
    ToolPage,
    ToolsQuery,
    ToolUsage,
    ToolVersion,
    UnlistedServer,
)
from onetool.transports.http.responses import build_precondition, compute_etag, conditional_response, json_response
from onetool.transports.http.routing import Operation, ResponseSpec, read_query
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.stats.database import StatisticsDatabase

ROOT = "/api/tools"
TOOL = f"{ROOT}/{{name}}"
PATCH_ERRORS = ("not_found", "permission_denied", "bundle_disabled")
CALL_ERRORS = (*PATCH_ERRORS, "tool_disabled", "audit_unavailable")


class ToolHandlers:
    def __init__(self, api: Api, catalog: ToolCatalog) -> None:
        self._api = api
        self._catalog = catalog

    def operations(self) -> Iterator[Operation]:
        page = {200: ResponseSpec("A page of tools; with q, best matches first", ToolPage)}
        summary = "List or search tools of every kind"
        errors = ("permission_denied",)
        yield Operation("GET", ROOT, self.list_tools, summary, page, ToolsQuery, errors=errors)
        details = {200: ResponseSpec("The tool with all details", ToolDetails)}
        summary = "Get a tool with all details"
        codes = ("not_found", *errors)
        yield Operation("GET", TOOL, self.get_tool, summary, details, errors=codes, has_etag=True)
        line = {200: ResponseSpec("The tool", ToolLine)}
        summary = "Enable or disable a tool of any kind"
        yield Operation(
            "PATCH", TOOL, self.patch_tool, summary, line, body=Switch, errors=PATCH_ERRORS, is_conditional=True
        )
        path = f"{TOOL}/call"
        summary = "Call a tool of any kind"
        yield Operation("POST", path, self.call, summary, {200: OUTCOME}, body=Call, errors=CALL_ERRORS)

    # --- a list ------------------------------------------------------------------------------------------------

    async def list_tools(self, request: Request) -> Response:
        query = read_query(ToolsQuery, request)
        context = identity.build_context(request, self._api.app)
        await self._catalog.refresh()
        version = self._catalog.version
        hits = await self._catalog.search(query.q, context) if query.q.strip() else None
        return await self._api.run_in_thread(lambda: self._api.respond(self._page(query, context, hits, version)))

    def _page(self, query: ToolsQuery, context: ToolContext, hits: list[Tool] | None, version: str) -> ToolPage:
        """Return a page sorted by name, or of the hits. The position of a tool is its name and its number."""
        tokens = PageTokens(partial(self._api.app.state.load_key, "pages"))
        filters = ["api", query.q, query.pack, query.kind, query.is_enabled, list(context.tools or ())]
        last, start = tokens.read(query.page_token or None, filters) or ("", 0)
        size = query.page_size
        criteria = CatalogFilter(query.pack, query.kind, query.is_enabled)
        if hits is None:
            names = self._catalog.iter_names(context, criteria, last)
            tools = list(islice(filter(None, map(self._catalog.get_tool, names)), size + 1))
            total = self._catalog.count(context, criteria)
        else:
            matching = list(filter(criteria.matches_tool, hits))
            numbers = (number for number, tool in enumerate(matching, 1) if tool.name == last)
            start = next(numbers, start)  # if the tool is gone, continue at the same position
            tools = matching[start : start + size + 1]
            total = len(matching)
        items = [([tool.name, number], _summarize(tool)) for number, tool in enumerate(tools, start + 1)]
        page = tokens.make_page(filters, size, items)
        unlisted = self._list_unlisted(context)
        return ToolPage(
            tools=page.items, total=total, version=version, unlisted=unlisted, next_page_token=page.next_token or ""
        )

    def _list_unlisted(self, context: ToolContext) -> list[UnlistedServer]:
        """Return the servers, and the bundle store, whose tools are not loaded yet."""
        app = self._api.app
        missing = [UnlistedServer(**server._asdict()) for server in app.servers.list_unlisted(context)]
        if app.bundles.is_building:
            reason = "building the index"
            missing.append(UnlistedServer(server="bundles", state="discovering", reason=reason))
        return missing

    # --- one -----------------------------------------------------------------------------------------------------

    async def get_tool(self, request: Request) -> Response:
        tool = await self._catalog.find(_get_name(request), identity.build_context(request, self._api.app))
        return await self._api.run_in_thread(
            lambda: conditional_response(self._details(request, tool), request.headers)
        )

    def _details(self, request: Request, tool: Tool) -> JsonObject:
        state = self._api.app.state
        agent = identity.get_person(request).visible_agent
        state.recorder.flush()  # include calls that just ended
        details = ToolDetails(
            **_common_fields(tool),
            description=tool.description,
            input_schema=tool.input.json,
            output_schema=tool.output.json if tool.output else None,
            example=tool.example,
            returns=tool.returns,
            observed_shape=state.shapes.text(tool.name),
            file=tool.file,
            timeout_seconds=tool.timeout,
            usage=_get_usage(state.recorder.database, tool.name, agent),
            versions=[*map(ToolVersion.model_validate, self._list_versions(tool))],
        )
        return self._api.to_json(details)

    def _list_versions(self, tool: Tool) -> list[StoredTool]:
        """Return all versions of a stored tool, oldest first."""
        if get_kind(tool) != "bundle":
            return []
        source = self._api.app.bundles
        bundle = source.store.bundle_by_slug(tool.pack)
        versions = source.store.list_bundle_tools(bundle.id, tool.short_name) if bundle is not None else []
        return sorted(map(source.apply_state, versions), key=attrgetter("modified_at"))

    async def call(self, request: Request) -> Response:
        check_settings(self._api.app)

        async def check() -> None:
            tool = await self._catalog.find(_get_name(request), identity.build_context(request, self._api.app))
            if not tool.enabled:
                message = describe_disabled(tool.name, tool.disabled_reason)
                raise ApiError(tool.disabled_code or "tool_disabled", message, {"name": tool.name})

        return await invoke(self._api, request, _get_name(request), check)

    # --- enabling and disabling ------------------------------------------------------------------------------------

    async def patch_tool(self, request: Request) -> Response:
        body = await RequestBody.from_request(request)
        app = self._api.app
        async with self._api.changing(request, "tool.patch") as facts, self._api.switch_lock:
            context = identity.build_context(request, app)
            name = _get_name(request)
            tool = await self._catalog.find(name, context)
            on = (await self._api.read(body, Switch.of)).is_enabled
            if tool.pack in app.state.disabled_tools.list_names():
                message = f"pack '{tool.pack}' is disabled: enable it first"
                raise ApiError("bundle_disabled", message, {"pack": tool.pack})
            build_precondition(request.headers)(await self._api.run_in_thread(lambda: self._details(request, tool)))
            stored = await self._api.run_in_thread(lambda: self._select_versions(tool, name))
            if on:
                names = [name for each in stored for name in (each.id, *list_names(tool.pack, each.slug, each.version))]
                identity.require_enabling(request, app, names or [tool.name])
            facts["action"] = f"tool.{'enabled' if on else 'disabled'}"
            if get_kind(tool) == "bundle":
                await self._api.run_in_thread(partial(self._switch_stored, stored, on=on))
                await app.bundles.refresh()
            if get_kind(tool) != "bundle" or on:
                await app.registry.switch(tool.name, on=on)
            await self._api.run_in_thread(lambda: self._mark(request, tool, stored, on=on))
        updated = await self._catalog.find(name, context)
        tag = compute_etag(await self._api.run_in_thread(lambda: self._details(request, updated)))
        return json_response(self._api.to_json(_summarize(updated)), headers={"etag": tag})

    def _select_versions(self, tool: Tool, name: str) -> list[StoredTool]:
        """Return the version in the name, or all versions, so that no other version takes over; none if not stored."""
        version = name.partition("@")[2]
        return [stored for stored in self._list_versions(tool) if version in {"", stored.version}]

    def _mark(self, request: Request, tool: Tool, stored: list[StoredTool], *, on: bool) -> None:
        marks = list_marks(self._api.app.bundles.store, stored, on=on) if stored else [tool.name]
        identity.mark_disabled(request, self._api.app, marks, on=on)

    def _switch_stored(self, versions: list[StoredTool], *, on: bool) -> None:
        for stored in versions:
            self._api.app.bundles.store.set_tool_enabled(stored.bundle_id, stored.slug, stored.version, on)


def _get_name(request: Request) -> str:
    return str(request.path_params["name"])


def _get_usage(statistics: "StatisticsDatabase", name: str, agent: str | None) -> ToolUsage:
    """Return the usage by one agent or by all. Unreadable statistics count as zero; the health check reports them."""
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
