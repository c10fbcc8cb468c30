"""`POST /api/import` and `GET /api/bundles/{id}/export`: OpenAPI documents and archives in, archives out.

A bundle is taken over whole or not at all. What is read of a document or an archive is `ot.bundles`'s business.
"""

from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ot.bundles import archive, taking
from ot.bundles.model import StoredTool
from ot.bundles.store import BundleStore
from ot.bundles.taking import Taken
from ot.context import ToolContext
from ot.faces.http import callers, paging
from ot.faces.http.answers import answer
from ot.faces.http.api import common
from ot.faces.http.api.common import Api
from ot.faces.http.refusals import Refusal
from ot.schema import JSON

ZIP: Final = "application/zip"
REPLACED: Final = "onetool-replaced-credentials"  # a header: names of secrets


class Imports:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def take(self, request: Request) -> Response:
        callers.may_change(request, self._api.app)
        self._api.refuse_without_settings()
        content = await request.body()
        name, server = (paging.single(request.query_params, key) or "" for key in ("name", "server"))
        is_update = common.switch(request.query_params, "update") or False

        def take() -> tuple[Taken, JSON]:
            return self._taken(content, name, server, is_update=is_update)

        taken, shown = await self._api.in_thread(take)
        names = [f"{taken.bundle.slug}.{slug}@{version}" for slug, version, _ in taken.added]
        callers.record_change(request, self._api.app, "bundle.imported", taken.bundle.slug, *names)
        await self._api.app.bundles.discover()
        return answer(shown, 201 if taken.is_new else 200)

    def _taken(self, content: bytes, name: str, server: str, *, is_update: bool) -> tuple[Taken, JSON]:
        store, found = self._api.app.bundles.store, taking.read(content, name=name, server=server or None)
        if not is_update:
            _refuse_taken(store, found.bundle["slug"])
        taken = taking.take_over(store, found)
        left = {"hosts": found.hosts, "secrets": found.secrets, "problems": found.problems, "warnings": found.warnings}
        shown: JSON = self._api.app.redact.in_data(left)
        return taken, {"bundle": taken.bundle.as_json(), "toolCount": len(taken.added), **shown}

    async def give(self, request: Request) -> Response:
        self._api.refuse_without_settings()
        bundle_id, context = str(request.path_params["bundleID"]), callers.context_of(request, self._api.app)
        await self._api.app.bundles.discover()
        slug, packed, secrets = await self._api.in_thread(lambda: self._packed(bundle_id, context))
        name = f"attachment; filename=\"bundle.zip\"; filename*=UTF-8''{quote(slug, safe='')}.zip"
        replaced = {REPLACED: ", ".join(secrets)} if secrets else {}
        return Response(packed, media_type=ZIP, headers={"content-disposition": name, **replaced})

    def _packed(self, bundle_id: str, context: ToolContext) -> tuple[str, bytes, list[str]]:
        store = self._api.app.bundles.store
        bundle = store.get_bundle(bundle_id)
        tools = [tool.as_stored() for tool in store.tools_of(bundle_id) if self._is_seen(tool, context)]
        _, secrets = archive.without_credentials(bundle.slug, tools)
        return bundle.slug, archive.pack(bundle.as_json(), tools), secrets

    def _is_seen(self, stored: StoredTool, context: ToolContext) -> bool:
        if context.tools is None:
            return True
        tool = self._api.app.registry.get(self._api.app.bundles.tool_name(stored))
        return tool is not None and context.admits(tool)


def _refuse_taken(store: BundleStore, slug: str) -> None:
    """Without `update`, an import makes a bundle; it adds nothing to one that somebody else may have made."""
    there = store.bundle_by_slug(slug)
    if there is not None and there.slug == slug:
        free = taking.free_slug(store, slug)
        details = {"slug": slug, "bundleID": there.id, "suggestion": free}
        message = f"there is a bundle {slug} already; ?update=true adds new versions to it, ?name={free} is free"
        raise Refusal("slug_taken", message, details)
