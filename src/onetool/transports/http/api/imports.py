"""`POST /api/import` and `GET /api/bundles/{id}/export`: import OpenAPI documents and archives, export archives.

A bundle is imported completely or not at all. `onetool.bundles` reads documents and archives.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from onetool.audit import Facts
from onetool.bundles import archive, importer
from onetool.bundles.importer import ImportResult
from onetool.bundles.model import StoredTool
from onetool.context import ToolContext
from onetool.schema import JSON
from onetool.storage import BundleStorage
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.errors import ApiError
from onetool.transports.http.models import ImportedBundle, ImportQuery
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import BYTES, JSON_MEDIA_TYPE, TEXT, Operation, ResponseSpec

ZIP: Final = "application/zip"
DOCUMENT: Final = {JSON_MEDIA_TYPE: {"type": "object"}, "application/yaml": TEXT, ZIP: BYTES}
REPLACED_HEADER: Final = "onetool-replaced-credentials"  # header with the names of secrets


class ImportHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        result = {
            200: ResponseSpec("The updated bundle and the remaining steps", ImportedBundle),
            201: ResponseSpec("The new bundle and the remaining steps", ImportedBundle),
        }
        summary, errors = (
            "Import an OpenAPI 2 or 3 document, or an exported bundle (ZIP)",
            ("permission_denied", "slug_taken"),
        )
        path = "/api/import"
        yield Operation("POST", path, self.import_bundle, summary, result, ImportQuery, body=DOCUMENT, errors=errors)
        path, exported = (
            "/api/bundles/{bundleID}/export",
            {200: ResponseSpec("ZIP archive", media={ZIP: BYTES})},
        )
        yield Operation(
            "GET", path, self.export_bundle, "Export a bundle as a ZIP archive", exported, errors=("not_found",)
        )

    async def import_bundle(self, request: Request) -> Response:
        self._api.check_change(request)
        content, query = await request.body(), ImportQuery.of(request)

        def import_and_audit(facts: Facts) -> tuple[ImportResult, JSON]:
            result, body = self._import(content, query)
            slug = result.bundle.slug
            facts["names"] = [slug, *(f"{slug}.{tool}@{version}" for tool, version, _ in result.added)]
            return result, body

        result, body = await self._api.write(request, "bundle.imported", import_and_audit)
        await self._api.app.bundles.refresh()
        return json_response(body, 201 if result.is_new else 200)

    def _import(self, content: bytes, query: ImportQuery) -> tuple[ImportResult, JSON]:
        store = self._api.app.bundles.store
        found = importer.read(
            content, name=query.name, server=query.server or None, auth=query.auth or None, headers=query.header
        )
        if not query.update:
            _check_slug_is_free(store, found.bundle["slug"])
        result = importer.import_bundle(store, found)
        response = ImportedBundle(
            bundle=result.bundle,
            tool_count=len(result.added),
            hosts=found.hosts,
            secrets=found.secrets,
            problems=found.problems,
            warnings=found.warnings,
        )
        return result, self._api.app.redact.redact_data(response.as_json())

    async def export_bundle(self, request: Request) -> Response:
        self._api.check_settings()
        bundle_id, context = str(request.path_params["bundleID"]), identity.build_context(request, self._api.app)
        await self._api.app.bundles.refresh()
        slug, packed, secrets = await self._api.run_in_thread(lambda: self._export(bundle_id, context))
        name = f"attachment; filename=\"bundle.zip\"; filename*=UTF-8''{quote(slug, safe='')}.zip"
        replaced = {REPLACED_HEADER: ", ".join(secrets)} if secrets else {}
        return Response(packed, media_type=ZIP, headers={"content-disposition": name, **replaced})

    def _export(self, bundle_id: str, context: ToolContext) -> tuple[str, bytes, list[str]]:
        store = self._api.app.bundles.store
        bundle = store.get_bundle(bundle_id)
        tools = [tool.as_stored() for tool in store.list_bundle_tools(bundle_id) if self._is_visible(tool, context)]
        _, secrets = archive.strip_credentials(bundle.slug, tools)
        return bundle.slug, archive.pack(bundle.as_json(), tools), secrets

    def _is_visible(self, stored: StoredTool, context: ToolContext) -> bool:
        if context.tools is None:
            return True
        tool = self._api.app.registry.get(self._api.app.bundles.tool_name(stored))
        return tool is not None and context.admits(tool)


def _check_slug_is_free(store: BundleStorage, slug: str) -> None:
    """Raise if the slug exists: without `update`, an import never changes an existing bundle."""
    there = store.bundle_by_slug(slug)
    if there is not None and there.slug == slug:
        free = importer.find_free_slug(store, slug)
        details = {"slug": slug, "bundleID": there.id, "suggestion": free}
        hint = f"add new versions to it with ?update=true, or use another slug: ?name={free}"
        raise ApiError("slug_taken", f"bundle '{slug}' already exists", details, hint=hint)
