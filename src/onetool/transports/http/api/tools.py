"""`/api/tools`: list, search, get, call, enable and disable tools of every kind."""

import hashlib
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from onetool._tool import Tool
from onetool.bundles.model import StoredTool, Switch
from onetool.bundles.paging import PageTokens
from onetool.bus.authorize import sort_permissions
from onetool.context import ToolContext
from onetool.errors import ToolError
from onetool.registry import python_name
from onetool.schema import JSON
from onetool.signature import signature
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
from onetool.transports.http.routing import Operation, ResponseSpec
from onetool.util.time_format import in_utc

if TYPE_CHECKING:
    from pathlib import Path

ROOT: Final = "/api/tools"
TOOL: Final = f"{ROOT}/{{name}}"
CHANGE: Final = ("not_found", "permission_denied", "bundle_disabled")
CALL: Final = (*CHANGE, "tool_disabled", "audit_unavailable")
MAX_PREFIX_CHARS: Final = 40  # characters of a name in a page token, which must stay short


class ToolHandlers:
    def __init__(self, api: Api, catalog: ToolCatalog) -> None:
        self._api, self._catalog = api, catalog
        self._tokens: dict[Path, PageTokens] = {}  # by key file

    def operations(self) -> Iterator[Operation]:
        page = {200: ResponseSpec("A page of tools; with q, best matches first", ToolPage)}
        words, errors = "List or search tools of every kind", ("permission_denied",)
        yield Operation("GET", ROOT, self.list_tools, words, page, ToolsQuery, errors=errors)
        details = {200: ResponseSpec("The tool with all details", ToolDetails)}
        words, codes = "Get a tool with all details", ("not_found", *errors)
        yield Operation("GET", TOOL, self.get_tool, words, details, errors=codes, is_tagged=True)
        line, words = {200: ResponseSpec("The tool", ToolLine)}, "Enable or disable a tool of any kind"
        yield Operation("PATCH", TOOL, self.patch_tool, words, line, body=Switch, errors=CHANGE, is_conditional=True)
        path, words = f"{TOOL}/call", "Call a tool of any kind"
        yield Operation("POST", path, self.call, words, {200: OUTCOME}, body=Call, errors=CALL)

    # --- a list ------------------------------------------------------------------------------------------------

    async def list_tools(self, request: Request) -> Response:
        query = ToolsQuery.of(request)
        context = identity.build_context(request, self._api.app)
        await self._catalog.refresh()
        found = await self._catalog.search(query.q, context) if query.q.strip() else None
        return await self._api.in_thread(lambda: self._api.answer(self._page(query, context, found)))

    def _page(self, query: ToolsQuery, context: ToolContext, found: list[Tool] | None) -> ToolPage:
        key_file = self._api.app.folders.data / "cache" / "pages.key"
        tokens = self._tokens.setdefault(key_file, PageTokens(key_file))
        pinned = ["api", query.q, query.pack, query.kind, query.is_enabled, list(context.tools or ())]
        place, size = tokens.read(query.page_token or None, pinned), query.page_size
        fits = CatalogFilter(query.pack, query.kind, query.is_enabled)
        if found is not None:
            tools = list(filter(fits.tool, found))
            start = 0
            if place is not None:  # if the tool is gone, continue at the same position
                beginning, digest, number = place
                ranks = (rank for rank, tool in enumerate(tools, 1) if tool.name.startswith(beginning))
                start = next((rank for rank in ranks if _digest(tools[rank - 1].name) == digest), number)
            chosen, total = tools[start : start + size + 1], len(tools)
        else:
            chosen, start, total = self._page_by_name(context, fits, place, size)
        shown = ToolPage(tools=[*map(_summarize, chosen[:size])], total=total, unlisted=self._unlisted(context))
        if len(chosen) > size:
            last = chosen[size - 1].name
            shown.next_page_token = tokens.make(pinned, [last[:MAX_PREFIX_CHARS], _digest(last), start + size])
        return shown

    def _page_by_name(
        self, context: ToolContext, fits: CatalogFilter, place: list[Any] | None, size: int
    ) -> tuple[list[Tool], int, int]:
        """Return a page sorted by name plus one tool, the index of its first tool, and the total."""
        beginning, digest, start = place or ("", "", 0)
        names = _after_name(self._catalog.names(context, fits, beginning), beginning, digest)
        tools = filter(None, map(self._catalog.tool, names))
        return list(islice(tools, size + 1)), start, self._catalog.count(context, fits)

    def _unlisted(self, context: ToolContext) -> list[UnlistedServer]:
        """Return the servers, and the bundle store, whose tools are not loaded yet."""
        app = self._api.app
        missing = [UnlistedServer(**each._asdict()) for each in app.servers.list_unlisted(context)]
        if app.bundles.is_building:
            reason = "building the index"
            missing.append(UnlistedServer(server="bundles", state="discovering", reason=reason))
        return missing

    # --- one -----------------------------------------------------------------------------------------------------

    async def get_tool(self, request: Request) -> Response:
        tool = await self._catalog.find(_name(request), identity.build_context(request, self._api.app))
        return await self._api.in_thread(lambda: conditional_response(self._details(request, tool), request.headers))

    def _details(self, request: Request, tool: Tool) -> JSON:
        stores, agent = self._api.app.stores, identity.visible_agent(request)
        stores.recorder.flush()  # include calls that just ended
        details = ToolDetails(
            **_common_fields(tool),
            description=tool.description,
            input_schema=tool.input.json,
            output_schema=tool.output.json if tool.output else None,
            example=tool.example,
            returns=tool.returns,
            observed_shape=stores.shapes.text(tool.name),
            file=tool.file,
            timeout_seconds=tool.timeout,
            usage=_usage(stores.stats_file, tool.name, agent),
            versions=[*map(ToolVersion.model_validate, self._stored(tool))],
        )
        return self._api.show(details)

    def _stored(self, tool: Tool) -> list[StoredTool]:
        """Return all versions of a stored tool, oldest first."""
        if get_kind(tool) != "bundle":
            return []
        source = self._api.app.bundles
        bundle = source.store.bundle_by_slug(tool.pack)
        found = source.store.list_bundle_tools(bundle.id, tool.short_name) if bundle is not None else []
        return sorted(map(source.apply_state, found), key=attrgetter("modified_at"))

    async def call(self, request: Request) -> Response:
        self._api.check_settings()

        async def check() -> None:
            tool = await self._catalog.find(_name(request), identity.build_context(request, self._api.app))
            if not tool.enabled:
                message = f"cannot call {tool.name}: {tool.disabled_reason or 'it is disabled'}"
                raise ApiError(tool.disabled_code or "tool_disabled", message, {"name": tool.name})

        return await invoke(self._api, request, _name(request), check)

    # --- enabling and disabling ------------------------------------------------------------------------------------

    async def patch_tool(self, request: Request) -> Response:
        sent, app = await RequestBody.from_request(request), self._api.app
        async with self._api.changing(request, "tool.patch") as facts, self._api.switching:
            context, name = identity.build_context(request, app), _name(request)
            tool = await self._catalog.find(name, context)
            on = (await self._api.read(sent, Switch.of)).is_enabled
            if tool.pack in app.disabled_names:
                message = f"pack '{tool.pack}' is disabled: enable it first"
                raise ApiError("bundle_disabled", message, {"pack": tool.pack})
            build_precondition(request.headers)(await self._api.in_thread(lambda: self._details(request, tool)))
            facts["action"] = f"tool.{'enabled' if on else 'disabled'}"
            if get_kind(tool) == "bundle":
                await self._api.in_thread(partial(self._switch_stored, tool, name, on=on))
                await app.bundles.refresh()
            if get_kind(tool) != "bundle" or on:
                await app.switch(tool.name, on=on)
        now = await self._catalog.find(name, context)
        tag = compute_etag(await self._api.in_thread(lambda: self._details(request, now)))
        return json_response(self._api.show(_summarize(now)), headers={"etag": tag})

    def _switch_stored(self, tool: Tool, name: str, *, on: bool) -> None:
        """Enable or disable the version in the name, or all versions, so that no other version takes over."""
        version = name.partition("@")[2]
        for stored in self._stored(tool):
            if version in {"", stored.version}:
                self._api.app.bundles.store.set_tool_enabled(stored.bundle_id, stored.slug, stored.version, on)


def _name(request: Request) -> str:
    return str(request.path_params["name"])


def _usage(file: "Path", name: str, agent: str | None) -> ToolUsage:
    """Return the usage by one agent or by all. Unreadable statistics count as zero; the health check reports them."""
    try:
        used = summary.get_usage(file, name, agent)
    except (ToolError, OSError):
        used = summary.ToolCounts(0, 0)
    shown = ToolUsage(calls=used.calls, errors=used.errors, p50_ms=used.p50_ms)
    if used.last_at is not None:
        shown.last_called_at = in_utc(used.last_at, "milliseconds")
    if used.last_error is not None:
        kind, at = used.last_error
        shown.last_error = LastError(type=kind, at=in_utc(at, "milliseconds"))
    return shown


def _summarize(tool: Tool) -> ToolLine:
    return ToolLine(**_common_fields(tool), description=tool.summary)


def _common_fields(tool: Tool) -> JSON:
    """Return all fields except the description, which is shorter in lists."""
    return {
        "name": tool.name,
        "python_name": python_name(tool.name),
        "pack": tool.pack,
        "kind": get_kind(tool),
        "source": tool.source,
        "signature": signature(tool),
        "permissions": sort_permissions(tool.permissions),
        "is_enabled": tool.enabled,
        "disabled_reason": tool.disabled_reason,
    }


# --- pagination ------------------------------------------------------------------------------------------------------


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _after_name(names: Iterator[str], beginning: str, digest: str) -> Iterator[str]:
    """Return the names after the last one of the previous page, even if that tool is gone."""
    if len(beginning) < MAX_PREFIX_CHARS:  # the prefix is the whole name
        return names
    before = []
    for name in names:
        if _digest(name) == digest:
            return names
        before.append(name)
        if not name.startswith(beginning):
            break
    return chain(before, names)
