"""`/api/packs`: what stands before the dot, whether it is a module, a file, a server or a bundle, and its switch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from ot.bundles.model import Bundle, Switch
from ot.context import ToolContext
from ot.errors import BundleError
from ot.faces.http import callers
from ot.faces.http.answers import answer
from ot.faces.http.api.catalogue import Catalogue, Fits, Kind, kind_of
from ot.faces.http.api.common import Api
from ot.faces.http.bodies import Sent
from ot.faces.http.refusals import Refusal
from ot.registry import python_name
from ot.schema import JSON
from ot.switches import EVERYTHING

OWN_PACK = "ot"


@dataclass(slots=True)
class _Pack:
    name: str
    kind: Kind
    source: str
    tools: int = 0
    is_enabled: bool = True
    state: str | None = None
    description: str = ""
    bundle_id: str | None = None

    def shown(self) -> JSON:
        state = {"state": self.state} if self.state is not None else {}
        bundle = {"bundleID": self.bundle_id} if self.bundle_id is not None else {}
        return {
            "name": self.name,
            "kind": self.kind,
            "source": self.source,
            "description": self.description,
            "toolCount": self.tools,
            "isEnabled": self.is_enabled,
            **state,
            **bundle,
        }


class Packs:
    def __init__(self, api: Api, catalogue: Catalogue) -> None:
        self._api, self._catalogue = api, catalogue

    async def listed(self, request: Request) -> Response:
        packs = await self._seen(callers.context_of(request, self._api.app))
        return answer(self._api.app.redact.in_data({"packs": [packs[name].shown() for name in sorted(packs)]}))

    async def switched(self, request: Request) -> Response:
        sent, app = await Sent.with_request(request), self._api.app
        callers.may_change(request, app)
        self._api.refuse_without_settings()
        context = callers.context_of(request, app)
        pack = _named(str(request.path_params["name"]), await self._seen(context))
        on = Switch.of(await self._api.in_thread(sent.data)).is_enabled
        self._refuse_what_settings_say(pack, on=on)
        if pack.bundle_id is not None:
            store = app.bundles.store
            await self._api.in_thread(partial(store.set_bundle_enabled, pack.bundle_id, on))
        if pack.bundle_id is None or on:
            await app.switch(pack.name, on=on)
        callers.record_change(request, app, f"pack.{'enabled' if on else 'disabled'}", pack.name)
        return answer(self._api.app.redact.in_data(_named(pack.name, await self._seen(context)).shown()))

    def _refuse_what_settings_say(self, pack: _Pack, *, on: bool) -> None:
        server = self._api.app.settings.servers.get(pack.name)
        if on and pack.kind == "proxy" and server is not None and not server.enabled:
            message = f"the server {pack.name} is disabled in onetool.yaml; set servers.{pack.name}.enabled to true"
            raise Refusal("bundle_disabled", message, {"pack": pack.name})

    # --- what there is -------------------------------------------------------------------------------------------

    async def _seen(self, context: ToolContext) -> dict[str, _Pack]:
        """By their names. Who may call some tools only sees the packs of those."""
        await self._catalogue.look()
        packs = await self._api.in_thread(lambda: self._of_tools(context))
        for bundle in await self._api.in_thread(self._bundles):
            self._add_bundle(packs, bundle, is_all_seen=context.tools is None)
        if context.tools is None:
            self._add_without_tools(packs)
        off = self._api.app.switched_off
        await self._api.in_thread(lambda: self._complete(packs.values()))
        for pack in packs.values():
            is_off = pack.name in off or (EVERYTHING in off and pack.name != OWN_PACK)
            pack.is_enabled = pack.is_enabled and not is_off
        return packs

    def _add_without_tools(self, packs: dict[str, _Pack]) -> None:
        for name in self._api.app.settings.servers:
            packs.setdefault(name, _Pack(name, "proxy", f"proxy:{name}"))
        known = {python_name(name) for name in packs}
        for name, reason in self._api.app.registry.broken.items():
            if name not in known:
                packs[name] = _Pack(name, "extension", "local", state=f"broken: {reason}")

    def _bundles(self) -> list[Bundle]:
        try:
            return self._api.app.bundles.all_bundles()
        except BundleError:  # the store cannot be read, which health tells
            return []

    def _add_bundle(self, packs: dict[str, _Pack], bundle: Bundle, *, is_all_seen: bool) -> None:
        """One whose name another kind of pack has taken is switched as a bundle, at /tools/bundles."""
        if bundle.slug not in packs and is_all_seen:
            packs[bundle.slug] = _Pack(bundle.slug, "bundle", f"bundle:{bundle.slug}")
        pack = packs.get(bundle.slug)
        if pack is not None and pack.kind == "bundle":
            pack.bundle_id, pack.is_enabled, pack.description = bundle.id, bundle.is_enabled, bundle.description

    def _of_tools(self, context: ToolContext) -> dict[str, _Pack]:
        """The packs of the tools that the agent may call, and how many each has."""
        packs: dict[str, _Pack] = {}
        for tool in self._catalogue.held(context):
            pack = packs.setdefault(tool.pack, _Pack(tool.pack, kind_of(tool), tool.file or tool.source))
            pack.tools += 1
        for name, stored in self._api.app.bundles.packs.items():
            if count := self._catalogue.count_stored(context, Fits(name, "bundle", None)):
                pack = packs.setdefault(stored.slug, _Pack(stored.slug, "bundle", f"bundle:{stored.slug}"))
                pack.tools += count
        packs.pop("", None)  # tools without a pack have no switch but their own
        return packs

    def _complete(self, packs: Iterable[_Pack]) -> None:
        app = self._api.app
        for pack in packs:
            said = app.settings.prompts.packs.get(pack.name, "")
            pack.description = pack.description or app.describe(python_name(pack.name)) or said
            if pack.kind == "proxy" and pack.name in app.settings.servers:
                server = app.servers.find(pack.name)
                pack.state, pack.is_enabled = server.state, server.server.enabled
            elif pack.kind == "extension" and pack.state is None:
                pack.state = app.workers.get(pack.name)


def _named(name: str, packs: Mapping[str, _Pack]) -> _Pack:
    """By its name, or by the one that code has to write."""
    found = packs.get(name) or next((pack for pack in packs.values() if python_name(pack.name) == name), None)
    if found is None:
        raise Refusal("not_found", f"there is no pack {name!r}; GET /api/packs lists them", {"name": name})
    return found
