"""`/api/packs`: what stands before the dot, whether it is a module, a file, a server or a bundle, and its switch."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from onetool.bundles.model import Bundle, Switch
from onetool.context import ToolContext
from onetool.errors import BundleError
from onetool.faces.http import callers
from onetool.faces.http.answers import answer, precondition, tag_of, tagged
from onetool.faces.http.api.catalogue import Catalogue, Fits, kind_of
from onetool.faces.http.api.common import Api
from onetool.faces.http.bodies import Sent
from onetool.faces.http.errors import ApiError
from onetool.faces.http.models import Finding, Pack, Packs
from onetool.faces.http.routing import Answer, Operation
from onetool.problem import Problem
from onetool.registry import python_name
from onetool.switches import EVERYTHING

ROOT: Final = "/api/packs"
CHANGE: Final = ("not_found", "permission_denied", "bundle_disabled")
OWN_PACK: Final = "ot"


class PackHandlers:
    def __init__(self, api: Api, catalogue: Catalogue) -> None:
        self._api, self._catalogue = api, catalogue

    def operations(self) -> Iterator[Operation]:
        packs, pack = {200: Answer("All packs", Packs)}, {200: Answer("The pack", Pack)}
        yield Operation("GET", ROOT, self.listed, "List all packs", packs, errors=("permission_denied",))
        path, errors = f"{ROOT}/{{name}}", ("not_found", "permission_denied")
        yield Operation("GET", path, self.shown, "Get a pack", pack, errors=errors, is_tagged=True)
        words = "Switch a pack of any kind on or off"
        yield Operation("PATCH", path, self.switched, words, pack, body=Switch, errors=CHANGE, is_conditional=True)

    async def listed(self, request: Request) -> Response:
        packs = await self._seen(callers.context_of(request, self._api.app))
        return self._api.answer(Packs(packs=[packs[name] for name in sorted(packs)]))

    async def shown(self, request: Request) -> Response:
        return tagged(self._api.show(await self._named(request)), request.headers)

    async def switched(self, request: Request) -> Response:
        sent, app = await Sent.with_request(request), self._api.app
        async with self._api.changing(request, "pack.patch") as facts, self._api.switching:
            pack = await self._named(request)
            on = (await self._api.read(sent, Switch.of)).is_enabled
            server = app.settings.servers.get(pack.name)
            if on and pack.kind == "proxy" and server is not None and not server.enabled:
                message = f"the server {pack.name} is disabled in onetool.yaml; set servers.{pack.name}.enabled to true"
                raise ApiError("bundle_disabled", message, {"pack": pack.name})
            precondition(request.headers)(self._api.show(pack))
            facts.update(action=f"pack.{'enabled' if on else 'disabled'}", names=[pack.name])
            if pack.bundle_id:
                store = app.bundles.store
                await self._api.in_thread(partial(store.set_bundle_enabled, pack.bundle_id, on))
            if not pack.bundle_id or on:
                await app.switch(pack.name, on=on)
        now = self._api.show(await self._named(request))
        return answer(now, headers={"etag": tag_of(now)})

    # --- what there is -------------------------------------------------------------------------------------------

    async def _named(self, request: Request) -> Pack:
        """By its name, or by the one that code has to write."""
        name, packs = str(request.path_params["name"]), await self._seen(callers.context_of(request, self._api.app))
        found = packs.get(name) or next((pack for pack in packs.values() if python_name(pack.name) == name), None)
        if found is None:
            raise ApiError("not_found", f"there is no pack {name!r}; GET /api/packs lists them", {"name": name})
        return found

    async def _seen(self, context: ToolContext) -> dict[str, Pack]:
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

    def _add_without_tools(self, packs: dict[str, Pack]) -> None:
        for name in self._api.app.settings.servers:
            packs.setdefault(name, Pack(name=name, kind="proxy", source=f"proxy:{name}"))
        known = {python_name(name) for name in packs}
        for name, problem in self._api.app.registry.problems().items():
            if name not in known:
                packs[name] = Pack(name=name, kind="extension", source="local", state="broken", problem=_shown(problem))

    def _bundles(self) -> list[Bundle]:
        try:
            return self._api.app.bundles.all_bundles()
        except BundleError:  # the store cannot be read, which health tells
            return []

    def _add_bundle(self, packs: dict[str, Pack], bundle: Bundle, *, is_all_seen: bool) -> None:
        """One whose name another kind of pack has taken is switched as a bundle, at /tools/bundles."""
        if bundle.slug not in packs and is_all_seen:
            packs[bundle.slug] = Pack(name=bundle.slug, kind="bundle", source=f"bundle:{bundle.slug}")
        pack = packs.get(bundle.slug)
        if pack is not None and pack.kind == "bundle":
            pack.bundle_id, pack.is_enabled, pack.description = bundle.id, bundle.is_enabled, bundle.description

    def _of_tools(self, context: ToolContext) -> dict[str, Pack]:
        """The packs of the tools that the agent may call, and how many each has."""
        packs: dict[str, Pack] = {}
        for tool in self._catalogue.held(context):
            made = Pack(name=tool.pack, kind=kind_of(tool), source=tool.file or tool.source)
            packs.setdefault(tool.pack, made).tool_count += 1
        for name, stored in self._api.app.bundles.packs.items():
            if count := self._catalogue.count_stored(context, Fits(name, "bundle", None)):
                made = Pack(name=stored.slug, kind="bundle", source=f"bundle:{stored.slug}")
                packs.setdefault(stored.slug, made).tool_count += count
        packs.pop("", None)  # tools without a pack have no switch but their own
        return packs

    def _complete(self, packs: Iterable[Pack]) -> None:
        app = self._api.app
        for pack in packs:
            said = app.settings.prompts.packs.get(pack.name, "")
            pack.description = pack.description or app.registry.describe(python_name(pack.name)) or said
            if pack.kind == "proxy" and pack.name in app.settings.servers:
                server = app.servers.upstream(pack.name)
                pack.state, pack.is_enabled = server.state, server.server.enabled
                pack.problem = _shown(server.problem) if server.failure else None
            elif pack.kind == "extension" and not pack.state:
                problem = app.extensions.failures.get(pack.name)
                pack.state, pack.problem = (
                    app.extensions.states.get(pack.name) or "",
                    _shown(problem) if problem else None,
                )


def _shown(problem: Problem) -> Finding:
    return Finding.model_validate(problem.to_json())
