"""`/api/packs`: list, get, enable and disable packs of every kind."""

from collections.abc import Iterable, Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from onetool.bundles.model import Bundle, Switch
from onetool.core.context import ToolContext
from onetool.core.names import python_name
from onetool.errors import BundleError
from onetool.state.disabled_tools import EVERYTHING
from onetool.transports.http import identity
from onetool.transports.http.api.catalog import CatalogFilter, ToolCatalog, get_kind
from onetool.transports.http.api.common import Api
from onetool.transports.http.errors import ApiError
from onetool.transports.http.json_body import RequestBody
from onetool.transports.http.models import Finding, PackInfo, PackList
from onetool.transports.http.responses import build_precondition, compute_etag, conditional_response, json_response
from onetool.transports.http.routing import Operation, ResponseSpec
from onetool.util.problem import Problem

ROOT = "/api/packs"
ERRORS = ("not_found", "permission_denied", "bundle_disabled")
OWN_PACK = "ot"


class PackHandlers:
    def __init__(self, api: Api, catalog: ToolCatalog) -> None:
        self._api = api
        self._catalog = catalog

    def operations(self) -> Iterator[Operation]:
        packs = {200: ResponseSpec("All packs", PackList)}
        pack = {200: ResponseSpec("The pack", PackInfo)}
        yield Operation("GET", ROOT, self.list_packs, "List all packs", packs, errors=("permission_denied",))
        path = f"{ROOT}/{{name}}"
        errors = ("not_found", "permission_denied")
        yield Operation("GET", path, self.get_pack, "Get a pack", pack, errors=errors, has_etag=True)
        summary = "Enable or disable a pack"
        yield Operation("PATCH", path, self.patch_pack, summary, pack, body=Switch, errors=ERRORS, is_conditional=True)

    async def list_packs(self, request: Request) -> Response:
        packs = await self._visible_packs(identity.build_context(request, self._api.app))
        return self._api.respond(PackList(packs=[packs[name] for name in sorted(packs)]))

    async def get_pack(self, request: Request) -> Response:
        return conditional_response(self._api.to_json(await self._find_pack(request)), request.headers)

    async def patch_pack(self, request: Request) -> Response:
        body = await RequestBody.from_request(request)
        app = self._api.app
        async with self._api.changing(request, "pack.patch") as facts, self._api.switch_lock:
            pack = await self._find_pack(request)
            on = (await self._api.read(body, Switch.of)).is_enabled
            server = app.settings.servers.get(pack.name)
            if on and pack.kind == "proxy" and server is not None and not server.enabled:
                message = f"server '{pack.name}' is disabled in onetool.yaml"
                hint = f"set servers.{pack.name}.enabled to true"
                raise ApiError("bundle_disabled", message, {"pack": pack.name}, hint=hint)
            build_precondition(request.headers)(self._api.to_json(pack))
            keys = [pack.bundle_id, pack.name] if pack.bundle_id else [pack.name]
            if on:
                identity.require_enabling(request, app, keys)
            facts.update(action=f"pack.{'enabled' if on else 'disabled'}", names=[pack.name])
            if pack.bundle_id:
                store = app.bundles.store
                await self._api.run_in_thread(partial(store.set_bundle_enabled, pack.bundle_id, on))
            if not pack.bundle_id or on:
                await app.registry.switch(pack.name, on=on)
            await self._api.run_in_thread(partial(identity.mark_disabled, request, app, keys, on=on))
        updated = self._api.to_json(await self._find_pack(request))
        return json_response(updated, headers={"etag": compute_etag(updated)})

    # --- reading packs --------------------------------------------------------------------------------------------

    async def _find_pack(self, request: Request) -> PackInfo:
        """Return the pack with this name or Python name."""
        name = str(request.path_params["name"])
        packs = await self._visible_packs(identity.build_context(request, self._api.app))
        found = packs.get(name) or next((pack for pack in packs.values() if python_name(pack.name) == name), None)
        if found is None:
            raise ApiError("not_found", f"no pack {name!r}", {"name": name}, hint="list packs with GET /api/packs")
        return found

    async def _visible_packs(self, context: ToolContext) -> dict[str, PackInfo]:
        """Return the visible packs by name. An agent limited to some tools sees only their packs."""
        await self._catalog.refresh()
        packs = await self._api.run_in_thread(lambda: self._packs_with_tools(context))
        for bundle in await self._api.run_in_thread(self._list_bundles):
            self._add_bundle(packs, bundle, sees_all=context.tools is None)
        if context.tools is None:
            self._add_without_tools(packs)
        off = self._api.app.state.disabled_tools.list_names()
        await self._api.run_in_thread(lambda: self._add_details(packs.values()))
        for pack in packs.values():
            is_disabled = pack.name in off or (EVERYTHING in off and pack.name != OWN_PACK)
            pack.is_enabled = pack.is_enabled and not is_disabled
        return packs

    def _add_without_tools(self, packs: dict[str, PackInfo]) -> None:
        for name in self._api.app.settings.servers:
            packs.setdefault(name, PackInfo(name=name, kind="proxy", source=f"proxy:{name}"))
        known = {python_name(name) for name in packs}
        for name, problem in self._api.app.registry.problems().items():
            if name not in known:
                packs[name] = PackInfo(
                    name=name, kind="extension", source="local", state="broken", problem=_to_finding(problem)
                )

    def _list_bundles(self) -> list[Bundle]:
        try:
            return self._api.app.bundles.list_bundles()
        except BundleError:  # the store cannot be read; the health check reports that
            return []

    def _add_bundle(self, packs: dict[str, PackInfo], bundle: Bundle, *, sees_all: bool) -> None:
        """Add a bundle, unless a pack of another kind has its name. /tools/bundles can still change such a bundle."""
        if bundle.slug not in packs and sees_all:
            packs[bundle.slug] = PackInfo(name=bundle.slug, kind="bundle", source=f"bundle:{bundle.slug}")
        pack = packs.get(bundle.slug)
        if pack is not None and pack.kind == "bundle":
            pack.bundle_id = bundle.id
            pack.is_enabled = bundle.is_enabled
            pack.description = bundle.description

    def _packs_with_tools(self, context: ToolContext) -> dict[str, PackInfo]:
        """Return the packs of the tools that the agent may call, with their tool counts."""
        packs: dict[str, PackInfo] = {}
        for tool in self._catalog.list_registered(context):
            pack = PackInfo(name=tool.pack, kind=get_kind(tool), source=tool.file or tool.source)
            packs.setdefault(tool.pack, pack).tool_count += 1
        for name, stored in self._api.app.bundles.packs.items():
            if count := self._catalog.count_stored(context, CatalogFilter(name, "bundle", None)):
                pack = PackInfo(name=stored.slug, kind="bundle", source=f"bundle:{stored.slug}")
                packs.setdefault(stored.slug, pack).tool_count += count
        packs.pop("", None)  # tools without a pack are enabled one by one
        return packs

    def _add_details(self, packs: Iterable[PackInfo]) -> None:
        app = self._api.app
        for pack in packs:
            description = app.settings.prompts.packs.get(pack.name, "")
            pack.description = pack.description or app.registry.describe(python_name(pack.name)) or description
            if pack.kind == "proxy" and pack.name in app.settings.servers:
                session = app.servers.upstream(pack.name).main
                pack.state = session.state
                pack.is_enabled = session.server.enabled
                pack.problem = _to_finding(session.problem) if session.failure else None
            elif pack.kind == "extension" and not pack.state:
                problem = app.extensions.failures.get(pack.name)
                pack.state = app.extensions.states.get(pack.name) or ""
                pack.problem = _to_finding(problem) if problem else None


def _to_finding(problem: Problem) -> Finding:
    return Finding.model_validate(problem.to_json())
