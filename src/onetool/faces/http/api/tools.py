"""`/api/tools`: every tool of every kind: listed, searched, shown, called, and switched on and off."""

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
from onetool.bundles.paging import Tokens
from onetool.bus.authorise import in_order
from onetool.context import ToolContext
from onetool.errors import ToolError
from onetool.faces.http import callers
from onetool.faces.http.answers import answer, precondition, tag_of, tagged
from onetool.faces.http.api.catalogue import Catalogue, Fits, kind_of
from onetool.faces.http.api.common import Api
from onetool.faces.http.bodies import Sent
from onetool.faces.http.errors import ApiError
from onetool.faces.http.invoke import OUTCOME, invoke
from onetool.faces.http.models import (
    Call,
    LastError,
    ToolDetails,
    ToolLine,
    ToolPage,
    ToolsQuery,
    ToolVersion,
    UnlistedServer,
    Usage,
)
from onetool.faces.http.routing import Answer, Operation
from onetool.registry import python_name
from onetool.schema import JSON
from onetool.signature import signature
from onetool.stats import summary
from onetool.util.moments import in_utc

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
        words, codes = "Get all about a tool", ("not_found", *errors)
        yield Operation("GET", TOOL, self.shown, words, details, errors=codes, is_tagged=True)
        line, words = {200: Answer("The tool", ToolLine)}, "Switch a tool of any kind on or off"
        yield Operation("PATCH", TOOL, self.switched, words, line, body=Switch, errors=CHANGE, is_conditional=True)
        path, words = f"{TOOL}/call", "Call a tool of any kind"
        yield Operation("POST", path, self.call, words, {200: OUTCOME}, body=Call, errors=CALL)

    # --- a list ------------------------------------------------------------------------------------------------

    async def listed(self, request: Request) -> Response:
        query = ToolsQuery.of(request)
        context = callers.context_of(request, self._api.app)
        await self._catalogue.look()
        found = await self._catalogue.search(query.q, context) if query.q.strip() else None
        return await self._api.in_thread(lambda: self._api.answer(self._page(query, context, found)))

    def _page(self, query: ToolsQuery, context: ToolContext, found: list[Tool] | None) -> ToolPage:
        key_file = self._api.app.folders.data / "cache" / "pages.key"
        tokens = self._tokens.setdefault(key_file, Tokens(key_file))
        pinned = ["api", query.q, query.pack, query.kind, query.is_enabled, list(context.tools or ())]
        place, size = tokens.read(query.page_token or None, pinned), query.page_size
        fits = Fits(query.pack, query.kind, query.is_enabled)
        if found is not None:
            tools = list(filter(fits.tool, found))
            start = 0
            if place is not None:  # where the tool is gone, behind as many as before
                beginning, digest, number = place
                ranks = (rank for rank, tool in enumerate(tools, 1) if tool.name.startswith(beginning))
                start = next((rank for rank in ranks if _digest(tools[rank - 1].name) == digest), number)
            chosen, total = tools[start : start + size + 1], len(tools)
        else:
            chosen, start, total = self._named(context, fits, place, size)
        shown = ToolPage(tools=[*map(_line, chosen[:size])], total=total, unlisted=self._unlisted(context))
        if len(chosen) > size:
            last = chosen[size - 1].name
            shown.next_page_token = tokens.make(pinned, [last[:LONGEST_KEPT], _digest(last), start + size])
        return shown

    def _named(
        self, context: ToolContext, fits: Fits, place: list[Any] | None, size: int
    ) -> tuple[list[Tool], int, int]:
        """A page in the order of names and one tool more, the number of its first, and that of all."""
        beginning, digest, start = place or ("", "", 0)
        names = _after_name(self._catalogue.names(context, fits, beginning), beginning, digest)
        tools = filter(None, map(self._catalogue.tool, names))
        return list(islice(tools, size + 1)), start, self._catalogue.count(context, fits)

    def _unlisted(self, context: ToolContext) -> list[UnlistedServer]:
        """Return the servers whose tools are missing, and the store if it is; nothing if all are known."""
        app = self._api.app
        missing = [UnlistedServer(**each._asdict()) for each in app.servers.unlisted(context)]
        if app.bundles.is_building:
            reason = "the index is being built"
            missing.append(UnlistedServer(server="bundles", state="discovering", reason=reason))
        return missing

    # --- one -----------------------------------------------------------------------------------------------------

    async def shown(self, request: Request) -> Response:
        tool = await self._catalogue.find(_name(request), callers.context_of(request, self._api.app))
        return await self._api.in_thread(lambda: tagged(self._details(request, tool), request.headers))

    def _details(self, request: Request, tool: Tool) -> JSON:
        stores, agent = self._api.app.stores, callers.seen_agent(request)
        stores.recorder.flush()  # the calls of this very moment count too
        details = ToolDetails(
            **_line_of(tool),
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
        """All versions of a tool that is kept in the store, the newest last."""
        if kind_of(tool) != "bundle":
            return []
        source = self._api.app.bundles
        bundle = source.store.bundle_by_slug(tool.pack)
        found = source.store.tools_of(bundle.id, tool.short_name) if bundle is not None else []
        return sorted(map(source.shown, found), key=attrgetter("modified_at"))

    async def call(self, request: Request) -> Response:
        self._api.check_settings()

        async def check() -> None:
            tool = await self._catalogue.find(_name(request), callers.context_of(request, self._api.app))
            if not tool.enabled:
                message = f"{tool.name} cannot be called: {tool.disabled_reason or 'it is switched off'}"
                raise ApiError(tool.disabled_code or "tool_disabled", message, {"name": tool.name})

        return await invoke(self._api, request, _name(request), check)

    # --- on and off ------------------------------------------------------------------------------------------------

    async def switched(self, request: Request) -> Response:
        sent, app = await Sent.with_request(request), self._api.app
        async with self._api.changing(request, "tool.patch") as facts, self._api.switching:
            context, name = callers.context_of(request, app), _name(request)
            tool = await self._catalogue.find(name, context)
            on = (await self._api.read(sent, Switch.of)).is_enabled
            if tool.pack in app.switched_off:
                message = f"the pack {tool.pack} is switched off, and all its tools with it; switch it on first"
                raise ApiError("bundle_disabled", message, {"pack": tool.pack})
            precondition(request.headers)(await self._api.in_thread(lambda: self._details(request, tool)))
            facts["action"] = f"tool.{'enabled' if on else 'disabled'}"
            if kind_of(tool) == "bundle":
                await self._api.in_thread(partial(self._switch_stored, tool, name, on=on))
                await app.bundles.refresh()
            if kind_of(tool) != "bundle" or on:
                await app.switch(tool.name, on=on)
        now = await self._catalogue.find(name, context)
        tag = tag_of(await self._api.in_thread(lambda: self._details(request, now)))
        return answer(self._api.show(_line(now)), headers={"etag": tag})

    def _switch_stored(self, tool: Tool, name: str, *, on: bool) -> None:
        """One version where the name says which, else all: one that is off would leave the tool to another."""
        version = name.partition("@")[2]
        for stored in self._stored(tool):
            if version in {"", stored.version}:
                self._api.app.bundles.store.set_tool_enabled(stored.bundle_id, stored.slug, stored.version, on)


def _name(request: Request) -> str:
    return str(request.path_params["name"])


def _usage(file: "Path", name: str, agent: str | None) -> Usage:
    """Of one agent, or of all. Statistics that cannot be read are told by health, not here."""
    try:
        used = summary.usage_of(file, name, agent)
    except (ToolError, OSError):
        used = summary.Usage(0, 0)
    shown = Usage(calls=used.calls, errors=used.errors, p50_ms=used.p50_ms)
    if used.last_at is not None:
        shown.last_called_at = in_utc(used.last_at, "milliseconds")
    if used.last_error is not None:
        kind, at = used.last_error
        shown.last_error = LastError(type=kind, at=in_utc(at, "milliseconds"))
    return shown


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


def _after_name(names: Iterator[str], beginning: str, digest: str) -> Iterator[str]:
    """The names behind the one that began so, or behind the place where it would be if it were still there."""
    if len(beginning) < LONGEST_KEPT:  # it was all of the name
        return names
    before = []
    for name in names:
        if _digest(name) == digest:
            return names
        before.append(name)
        if not name.startswith(beginning):
            break
    return chain(before, names)
