"""`POST /api/import` and `GET /api/bundles/{id}/export`: OpenAPI documents and archives in, archives out.

A bundle is taken over whole or not at all. What is read of a document or an archive is `onetool.bundles`'s business.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from onetool.audit import Facts
from onetool.bundles import archive, taking
from onetool.bundles.model import StoredTool
from onetool.bundles.taking import Taken
from onetool.context import ToolContext
from onetool.faces.http import callers
from onetool.faces.http.answers import answer
from onetool.faces.http.api.common import Api
from onetool.faces.http.errors import ApiError
from onetool.faces.http.models import ImportedBundle, ImportQuery
from onetool.faces.http.routing import BYTES, IN_JSON, TEXT, Answer, Operation
from onetool.schema import JSON
from onetool.storage import BundleStorage

ZIP: Final = "application/zip"
DOCUMENT: Final = {IN_JSON: {"type": "object"}, "application/yaml": TEXT, ZIP: BYTES}
REPLACED: Final = "onetool-replaced-credentials"  # a header: names of secrets


class Imports:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        taken = {
            200: Answer("The bundle that was updated, and what is left to do", ImportedBundle),
            201: Answer("The new bundle, and what is left to do", ImportedBundle),
        }
        words, errors = (
            "Import an OpenAPI document of version 2 or 3, or an archive",
            ("permission_denied", "slug_taken"),
        )
        path = "/api/import"
        yield Operation("POST", path, self.take, words, taken, ImportQuery, body=DOCUMENT, errors=errors)
        path, packed = "/api/bundles/{bundleID}/export", {200: Answer("The archive", media={ZIP: BYTES})}
        yield Operation("GET", path, self.give, "Export a bundle", packed, errors=("not_found",))

    async def take(self, request: Request) -> Response:
        self._api.check_change(request)
        content, query = await request.body(), ImportQuery.of(request)

        def take(facts: Facts) -> tuple[Taken, JSON]:
            taken, shown = self._taken(content, query)
            slug = taken.bundle.slug
            facts["names"] = [slug, *(f"{slug}.{tool}@{version}" for tool, version, _ in taken.added)]
            return taken, shown

        taken, shown = await self._api.write(request, "bundle.imported", take)
        await self._api.app.bundles.refresh()
        return answer(shown, 201 if taken.is_new else 200)

    def _taken(self, content: bytes, query: ImportQuery) -> tuple[Taken, JSON]:
        store, found = self._api.app.bundles.store, taking.read(content, name=query.name, server=query.server or None)
        if not query.update:
            _refuse_taken(store, found.bundle["slug"])
        taken = taking.take_over(store, found)
        shown = ImportedBundle(
            bundle=taken.bundle,
            tool_count=len(taken.added),
            hosts=found.hosts,
            secrets=found.secrets,
            problems=found.problems,
            warnings=found.warnings,
        )
        return taken, self._api.app.redact.in_data(shown.as_json())

    async def give(self, request: Request) -> Response:
        self._api.check_settings()
        bundle_id, context = str(request.path_params["bundleID"]), callers.context_of(request, self._api.app)
        await self._api.app.bundles.refresh()
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


def _refuse_taken(store: BundleStorage, slug: str) -> None:
    """Without `update`, an import makes a bundle; it adds nothing to one that somebody else may have made."""
    there = store.bundle_by_slug(slug)
    if there is not None and there.slug == slug:
        free = taking.free_slug(store, slug)
        details = {"slug": slug, "bundleID": there.id, "suggestion": free}
        message = f"there is a bundle {slug} already; ?update=true adds new versions to it, ?name={free} is free"
        raise ApiError("slug_taken", message, details)
