"""`/api/tools`: every tool of every kind, found, looked at, and switched on and off."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ot.bundles.model import StoredTool, Switch
from ot.bundles.paging import Tokens
from ot.bus.authorise import in_order
from ot.context import ToolContext
from ot.faces.http import callers, paging
from ot.faces.http.answers import answer
from ot.faces.http.api import common, usage
from ot.faces.http.api.catalogue import KINDS, Catalogue, Fits, kind_of
from ot.faces.http.api.common import Api
from ot.faces.http.bodies import Sent
from ot.faces.http.refusals import Refusal
from ot.registry import python_name
from ot.schema import JSON
from ot.signature import signature
from ot.tool import Tool

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_KEPT: Final = 40  # characters of a name in a token; a token is short, and names may not be


class Tools:
    def __init__(self, api: Api, catalogue: Catalogue) -> None:
        self._api, self._catalogue = api, catalogue
        self._tokens: dict[Path, Tokens] = {}  # by the file of their key

    # --- a list ------------------------------------------------------------------------------------------------

    async def listed(self, request: Request) -> Response:
        query = request.query_params
        size, token, q = paging.size_of(query, "pageSize"), paging.token_of(query), paging.single(query, "q")
        pack, is_enabled = paging.single(query, "pack"), common.switch(query, "isEnabled")
        kind = common.choice(query, "kind", KINDS)
        context = callers.context_of(request, self._api.app)
        await self._catalogue.look()
        pinned = ["api", q or "", pack, kind, is_enabled, list(context.tools or ())]
        fits = Fits(pack, kind, is_enabled)
        found = await self._catalogue.search(q, context) if q and q.strip() else None

        def page() -> Response:
            key_file = self._api.app.folders.data / "cache" / "pages.key"
            tokens = self._tokens.setdefault(key_file, Tokens(key_file))
            place = tokens.read(token, pinned)
            if found is not None:
                tools = list(filter(fits.tool, found))
                start = 0 if place is None else _after_rank(tools, *place)
                chosen, total = tools[start : start + size + 1], len(tools)
            else:
                chosen, start, total = self._named(context, fits, place, size)
            shown: JSON = {"tools": self._api.app.redact.in_data([*map(_line, chosen[:size])]), "total": total}
            if len(chosen) > size:
                shown["nextPageToken"] = tokens.make(pinned, _place(chosen[size - 1].name, start + size))
            return answer({**shown, **self._unlisted(context)})

        return await self._api.in_thread(page)

    def _named(
        self, context: ToolContext, fits: Fits, place: list[Any] | None, size: int
    ) -> tuple[list[Tool], int, int]:
        """A page in the order of names and one tool more, the number of its first, and that of all."""
        beginning, digest, start = place or ("", "", 0)
        names = _after_name(self._catalogue.names(context, fits, beginning), beginning, digest)
        tools = filter(None, map(self._catalogue.tool, names))
        return list(islice(tools, size + 1)), start, self._catalogue.count(context, fits)

    def _unlisted(self, context: ToolContext) -> JSON:
        """Return the servers whose tools are missing, and the store if it is; nothing if all are known."""
        app = self._api.app
        missing = [each._asdict() for each in app.servers.unlisted(context)]
        if app.bundles.is_building:
            missing.append({"server": "bundles", "state": "discovering", "reason": "the index is being built"})
        return {"unlisted": self._api.app.redact.in_data(missing)} if missing else {}

    # --- one -----------------------------------------------------------------------------------------------------

    async def shown(self, request: Request) -> Response:
        context = callers.context_of(request, self._api.app)
        tool = await self._catalogue.find(_name(request), context)
        agent = callers.seen_agent(request)
        return await self._api.in_thread(lambda: answer(self._api.app.redact.in_data(self._whole(tool, agent))))

    def _whole(self, tool: Tool, agent: str | None) -> JSON:
        stores = self._api.app.stores
        stores.recorder.flush()  # the calls of this very moment count too
        versions = [_version(stored) for stored in self._stored(tool)]
        return {
            **_line(tool),
            "description": tool.description,
            "inputSchema": tool.input.json,
            "outputSchema": tool.output.json if tool.output else None,
            "example": tool.example,
            "returns": tool.returns,
            "observedShape": stores.shapes.text(tool.name),
            "file": tool.file,
            "timeoutSeconds": tool.timeout,
            "usage": usage.of_tool(stores.stats_file, tool.name, agent),
            **({"versions": versions} if versions else {}),
        }

    def _stored(self, tool: Tool) -> list[StoredTool]:
        """All versions of a tool that is kept in the store, the newest last."""
        if kind_of(tool) != "bundle":
            return []
        source = self._api.app.bundles
        bundle = source.store.bundle_by_slug(tool.pack)
        found = source.store.tools_of(bundle.id, tool.short_name) if bundle is not None else []
        return sorted(map(source.shown, found), key=attrgetter("modified_at"))

    # --- on and off ------------------------------------------------------------------------------------------------

    async def switched(self, request: Request) -> Response:
        sent, app = await Sent.with_request(request), self._api.app
        callers.may_change(request, app)
        self._api.refuse_without_settings()
        context, name = callers.context_of(request, app), _name(request)
        tool = await self._catalogue.find(name, context)
        on = Switch.of(await self._api.in_thread(sent.data)).is_enabled
        self._refuse_where_the_pack_is_off(tool)
        if kind_of(tool) == "bundle":
            await self._api.in_thread(partial(self._switch_stored, tool, name, on=on))
            await app.bundles.discover()
        if kind_of(tool) != "bundle" or on:
            await app.switch(tool.name, on=on)
        callers.record_change(request, app, f"tool.{'enabled' if on else 'disabled'}", name)
        return answer(self._api.app.redact.in_data(_line(await self._catalogue.find(name, context))))

    def _refuse_where_the_pack_is_off(self, tool: Tool) -> None:
        if tool.pack in self._api.app.switched_off:
            message = f"the pack {tool.pack} is switched off, and all its tools with it; switch it on first"
            raise Refusal("bundle_disabled", message, {"pack": tool.pack})

    def _switch_stored(self, tool: Tool, name: str, *, on: bool) -> None:
        """One version where the name says which, else all: one that is off would leave the tool to another."""
        version = name.partition("@")[2]
        for stored in self._stored(tool):
            if version in {"", stored.version}:
                self._api.app.bundles.store.set_tool_enabled(stored.bundle_id, stored.slug, stored.version, on)


def _name(request: Request) -> str:
    return str(request.path_params["name"])


def _line(tool: Tool) -> JSON:
    return {
        "name": tool.name,
        "pythonName": python_name(tool.name),
        "pack": tool.pack,
        "kind": kind_of(tool),
        "source": tool.source,
        "description": tool.summary,
        "signature": signature(tool),
        "permissions": in_order(tool.permissions),
        "isEnabled": tool.enabled,
        **({"disabledReason": tool.disabled_reason} if tool.disabled_reason else {}),
    }


def _version(stored: StoredTool) -> JSON:
    shown = stored.as_json()
    names = ("id", "bundleID", "version", "isEnabled", "disabledReason", "modifiedAt", "callCount", "lastCalledAt")
    return {name: shown[name] for name in names if name in shown}


# --- where a page goes on --------------------------------------------------------------------------------------------


def _place(name: str, number: int) -> list[Any]:
    return [name[:LONGEST_KEPT], _digest(name), number]


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


def _after_rank(tools: Sequence[Tool], beginning: str, digest: str, number: int) -> int:
    """The same in an order that is not that of names; where the tool is gone, behind as many as before."""
    places = (place for place, tool in enumerate(tools, 1) if tool.name.startswith(beginning))
    return next((place for place in places if _digest(tools[place - 1].name) == digest), number)
