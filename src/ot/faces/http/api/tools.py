"""`/api/tools`: every tool of every kind: listed, searched, shown, called, and switched on and off."""

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from ot.bundles.model import StoredTool, Switch
from ot.bundles.paging import Tokens
from ot.bus.authorise import in_order
from ot.context import ToolContext
from ot.faces.http import callers
from ot.faces.http.api.catalogue import Catalogue, kind_of
from ot.faces.http.api.common import Api
from ot.faces.http.bodies import Sent
from ot.faces.http.errors import ApiError
from ot.faces.http.invoke import OUTCOME, invoke
from ot.faces.http.models import Call, ToolDetails, ToolLine, ToolPage, ToolsQuery, ToolVersion, UnlistedServer, Usage
from ot.faces.http.routing import Answer, Operation
from ot.registry import python_name
from ot.schema import JSON
from ot.signature import signature
from ot.stats.usage import usage_of
from ot.tool import Tool

if TYPE_CHECKING:
    from pathlib import Path

ROOT: Final = "/api/tools"
TOOL: Final = f"{ROOT}/{{name}}"
CHANGE: Final = ("not_found", "permission_denied", "bundle_disabled")
CALL: Final = (*CHANGE, "tool_disabled", "audit_unavailable")
LONGEST_KEPT: Final = 40  # characters of a name in a token; a token is short, and names may not be


class Tools:
    def __init__(self, api: Api, catalogue: Catalogue) -> None:
        self._api, self._catalogue = api, catalogue
        self._tokens: dict[Path, Tokens] = {}  # by the file of their key

    def operations(self) -> Iterator[Operation]:
        page = {200: Answer("Some tools; with q the best hits first", ToolPage)}
        words, errors = "List or search all tools, of every kind", ("permission_denied",)
        yield Operation("GET", ROOT, self.listed, words, page, ToolsQuery, errors=errors)
        details = {200: Answer("All about the tool", ToolDetails)}
        yield Operation("GET", TOOL, self.shown, "Get all about a tool", details, errors=("not_found", *errors))
        line, words = {200: Answer("The tool", ToolLine)}, "Switch a tool of any kind on or off"
        yield Operation("PATCH", TOOL, self.switched, words, line, body=Switch, errors=CHANGE)
        path, words = f"{TOOL}/call", "Call a tool of any kind"
        yield Operation("POST", path, self.call, words, {200: OUTCOME}, body=Call, errors=CALL)

    # --- a list ------------------------------------------------------------------------------------------------

    async def listed(self, request: Request) -> Response:
        query = ToolsQuery.of(request)
        context = callers.context_of(request, self._api.app)
        await self._catalogue.look()
        tools = await self._api.in_thread(partial(self._catalogue.tools, context))
        if query.q.strip():
            tools = await self._catalogue.search(query.q, tools)
        fits = partial(_fits, query)
        return await self._api.in_thread(lambda: self._page([*filter(fits, tools)], query, context))

    def _page(self, tools: list[Tool], query: ToolsQuery, context: ToolContext) -> Response:
        key_file = self._api.app.folders.data / "cache" / "pages.key"
        tokens = self._tokens.setdefault(key_file, Tokens(key_file))
        pinned = ["api", query.q, query.pack, query.kind, query.is_enabled, list(context.tools or ())]
        place = tokens.read(query.page_token or None, pinned)
        after = _after_rank if query.q.strip() else _after_name
        start = 0 if place is None else after(tools, *place)
        end = start + query.page_size
        shown = ToolPage(
            tools=[*map(_line, tools[start:end])],
            total=len(tools),
            unlisted=[UnlistedServer(**each._asdict()) for each in self._api.app.servers.unlisted(context)],
        )
        if end < len(tools):
            shown.next_page_token = tokens.make(
                pinned, [tools[end - 1].name[:LONGEST_KEPT], _digest(tools[end - 1].name), end]
            )
        return self._api.answer(shown)

    # --- one -----------------------------------------------------------------------------------------------------

    async def shown(self, request: Request) -> Response:
        tool = await self._catalogue.find(_name(request), callers.context_of(request, self._api.app))
        agent = callers.seen_agent(request)
        return await self._api.in_thread(lambda: self._api.answer(self._details(tool, agent)))

    def _details(self, tool: Tool, agent: str | None) -> ToolDetails:
        stores = self._api.app.stores
        stores.recorder.flush()  # the calls of this very moment count too
        return ToolDetails(
            **_line_of(tool),
            description=tool.description,
            input_schema=tool.input.json,
            output_schema=tool.output.json if tool.output else None,
            example=tool.example,
            returns=tool.returns,
            observed_shape=stores.shapes.text(tool.name),
            file=tool.file,
            timeout_seconds=tool.timeout,
            usage=Usage.model_validate(usage_of(stores.stats_file, tool.name, agent)),
            versions=[*map(ToolVersion.model_validate, self._stored(tool))],
        )

    def _stored(self, tool: Tool) -> list[StoredTool]:
        """All versions of a tool that is kept in the store, the newest last."""
        if kind_of(tool) != "bundle":
            return []
        source = self._api.app.bundles
        bundle = source.store.bundle_by_slug(tool.pack)
        found = source.store.tools_of(bundle.id) if bundle is not None else []
        same = (source.shown(stored) for stored in found if stored.slug == tool.short_name)
        return sorted(same, key=attrgetter("modified_at"))

    async def call(self, request: Request) -> Response:
        self._api.check_settings()

        async def check() -> None:
            tool = await self._catalogue.find(_name(request), callers.context_of(request, self._api.app))
            if not tool.enabled:
                raise await self._disabled(tool)

        return await invoke(self._api, request, _name(request), check)

    async def _disabled(self, tool: Tool) -> ApiError:
        is_bundle_off = False
        if kind_of(tool) == "bundle":
            store = self._api.app.bundles.store
            bundle = await self._api.in_thread(partial(store.bundle_by_slug, tool.pack))
            is_bundle_off = bundle is not None and not bundle.is_enabled
        message = f"{tool.name} cannot be called: {tool.disabled_reason or 'it is switched off'}"
        return ApiError("bundle_disabled" if is_bundle_off else "tool_disabled", message, {"name": tool.name})

    # --- on and off ------------------------------------------------------------------------------------------------

    async def switched(self, request: Request) -> Response:
        sent, app = await Sent.with_request(request), self._api.app
        self._api.check_change(request)
        context, name = callers.context_of(request, app), _name(request)
        tool = await self._catalogue.find(name, context)
        on = (await self._api.read(sent, Switch.of)).is_enabled
        if tool.pack in app.switched_off:
            message = f"the pack {tool.pack} is switched off, and all its tools with it; switch it on first"
            raise ApiError("bundle_disabled", message, {"pack": tool.pack})
        if kind_of(tool) == "bundle":
            await self._api.in_thread(partial(self._switch_stored, tool, name, on=on))
            await app.bundles.discover()
        if kind_of(tool) != "bundle" or on:
            await app.switch(tool.name, on=on)
        callers.record_change(request, app, f"tool.{'enabled' if on else 'disabled'}", name)
        return self._api.answer(_line(await self._catalogue.find(name, context)))

    def _switch_stored(self, tool: Tool, name: str, *, on: bool) -> None:
        """One version where the name says which, else all: one that is off would leave the tool to another."""
        version = name.partition("@")[2]
        for stored in self._stored(tool):
            if version in {"", stored.version}:
                self._api.app.bundles.store.set_tool_enabled(stored.bundle_id, stored.slug, stored.version, on)


def _name(request: Request) -> str:
    return str(request.path_params["name"])


def _fits(query: ToolsQuery, tool: Tool) -> bool:
    return (
        (not query.pack or query.pack in {tool.pack, python_name(tool.pack)})
        and query.kind in {None, kind_of(tool)}
        and query.is_enabled in {None, tool.enabled}
    )


def _line(tool: Tool) -> ToolLine:
    return ToolLine(**_line_of(tool), description=tool.summary)


def _line_of(tool: Tool) -> JSON:
    """All fields but the description, which is shorter in lists."""
    return {
        "name": tool.name,
        "python_name": python_name(tool.name),
        "pack": tool.pack,
        "kind": kind_of(tool),
        "source": tool.source,
        "signature": signature(tool),
        "permissions": in_order(tool.permissions),
        "is_enabled": tool.enabled,
        "disabled_reason": tool.disabled_reason,
    }


# --- where a page goes on --------------------------------------------------------------------------------------------


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _after_name(tools: Sequence[Tool], beginning: str, digest: str, _number: int) -> int:
    """Behind the tool of that name, or where it would be if it were still there."""
    start = place = bisect_left(tools, beginning, key=attrgetter("name"))
    while place < len(tools) and tools[place].name.startswith(beginning):
        place += 1
        if _digest(tools[place - 1].name) == digest:
            return place
    return start


def _after_rank(tools: Sequence[Tool], beginning: str, digest: str, number: int) -> int:
    """The same in an order that is not that of names; where the tool is gone, behind as many as before."""
    places = (place for place, tool in enumerate(tools, 1) if tool.name.startswith(beginning))
    return next((place for place in places if _digest(tools[place - 1].name) == digest), number)
