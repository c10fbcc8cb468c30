"""`POST /api/import` and `GET /api/bundles/{id}/export`: import OpenAPI documents and archives, export archives.

A bundle is imported completely or not at all. `onetool.bundles` reads documents and archives.
"""

from collections.abc import Callable, Iterator
from http import HTTPStatus
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.person import check_settings
from onetool.bundles import BundleStore, archive, importer
from onetool.bundles.imported import BundleImport, list_missing_hosts
from onetool.bundles.importer import ImportResult
from onetool.bundles.owner_marks import keep_disabled
from onetool.bundles.update_plan import UpdateOptions
from onetool.core.context import Permission, ToolContext
from onetool.errors import NetworkError, ToolTimeout
from onetool.net import HostRules
from onetool.net.messages import Request as OutgoingRequest
from onetool.state.audit import Facts
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.body_limit import MAX_IMPORT_BYTES
from onetool.transports.http.errors import ApiError
from onetool.transports.http.models import DifferenceView, ImportedBundle, ImportQuery, SecretUseInfo
from onetool.transports.http.responses import build_precondition, compute_etag, json_response
from onetool.transports.http.routing import BYTES, JSON_MEDIA_TYPE, TEXT, Operation, ResponseSpec, read_query
from onetool_child.json_types import JsonObject

ZIP = "application/zip"
DOCUMENT = {JSON_MEDIA_TYPE: {"type": "object"}, "application/yaml": TEXT, ZIP: BYTES}
FETCH_SECONDS = 30.0
REPLACED_HEADER = "onetool-replaced-credentials"  # header with the names of secrets

_Imported = tuple[ImportResult, JsonObject, str]  # the last is the ETag of the bundle's versions; empty if it has none


class ImportHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        result = {
            200: ResponseSpec("The updated bundle, or the difference, and the remaining steps", ImportedBundle),
            201: ResponseSpec("The new bundle and the remaining steps", ImportedBundle),
        }
        summary = "Import an OpenAPI 2 or 3 document, or an exported bundle (ZIP)"
        errors = ("permission_denied", "slug_taken")
        path = "/api/import"
        yield Operation(
            "POST",
            path,
            self.import_bundle,
            summary,
            result,
            ImportQuery,
            body=DOCUMENT,
            errors=errors,
            is_conditional=True,
        )
        path = "/api/bundles/{bundleID}/export"
        exported = {200: ResponseSpec("ZIP archive", media={ZIP: BYTES})}
        yield Operation(
            "GET", path, self.export_bundle, "Export a bundle as a ZIP archive", exported, errors=("not_found",)
        )

    async def import_bundle(self, request: Request) -> Response:
        identity.get_person(request).require_change(self._api.app)
        check_settings(self._api.app)
        query = read_query(ImportQuery, request)
        content = await self._fetch(request, query.url) if query.url else await request.body()
        check = build_precondition(request.headers)
        if query.dry_run:
            _, body, etag = await self._api.run_in_thread(lambda: self._import(content, query, check))
            return json_response(body, headers={"etag": etag} if etag else None)

        def import_and_audit(facts: Facts) -> _Imported:
            result, body, etag = self._import(content, query, check)
            slug = result.bundle.slug
            facts["names"] = [slug, *(f"{slug}.{tool}@{version}" for tool, version, _ in result.added)]
            return result, body, etag

        result, body, etag = await self._api.write(request, "bundle.imported", import_and_audit)
        await self._api.app.bundles.refresh()
        return json_response(body, 201 if result.is_new else 200, {"etag": etag})

    async def _fetch(self, request: Request, url: str) -> bytes:
        """Fetch a document with the client of the tools, which reaches allowed hosts only."""
        app = self._api.app
        context = identity.build_context(request, self._api.app)
        is_agent = request.scope["state"]["agent"] is not None
        if is_agent and Permission.NETWORK not in context.permissions:
            message = f"agent '{context.agent_id}' may not fetch documents: it lacks the permission 'network'"
            raise ApiError("permission_denied", message)
        try:
            fetch = OutgoingRequest("GET", url)
            rules = HostRules.for_agent(context) if is_agent else ()
            response = await app.net.send(fetch, timeout=FETCH_SECONDS, max_bytes=MAX_IMPORT_BYTES, rules=rules)
        except (NetworkError, ToolTimeout) as error:
            details = {key: value for key, value in error.fields.items() if key in {"reason", "host"}}
            raise ApiError("invalid", app.redact(f"cannot fetch the document: {error.message}"), details) from None
        if response.status != HTTPStatus.OK:
            raise ApiError("invalid", f"cannot fetch the document: the server returned status {response.status}")
        return response.body

    def _import(self, content: bytes, query: ImportQuery, check: Callable[[JsonObject | None], None]) -> _Imported:
        store = self._api.app.bundles.store
        found = importer.read(
            content, name=query.name, server=query.server or None, auth=query.auth or None, headers=query.header
        )
        found = keep_disabled(found, self._api.app.state.disabled_tools.list_owner_marks())
        if not (query.update or query.dry_run):
            _check_slug_is_free(store, found.bundle["slug"])
        check(_find_basis(store, found.bundle["slug"]))
        options = UpdateOptions(
            renames_versions=True, replaced_edits=frozenset(query.replace), disables_removed=query.disable_removed
        )
        result = importer.import_bundle(store, found, options, dry=query.dry_run)
        basis = _find_basis(store, found.bundle["slug"])
        body = self._describe(found, result, is_stored=not (query.dry_run and result.is_new))
        return result, body, "" if basis is None else compute_etag(basis)

    def _describe(self, found: BundleImport, result: ImportResult, *, is_stored: bool) -> JsonObject:
        app = self._api.app
        response = ImportedBundle(
            bundle=result.bundle if is_stored else None,
            slug=result.bundle.slug,
            display_name=result.bundle.display_name,
            is_new=result.is_new,
            tool_count=len(result.added),
            difference=DifferenceView.model_validate(result.difference),
            kept=result.kept,
            disabled=result.disabled,
            hosts=found.hosts,
            secrets=found.secrets,
            missing_hosts=list_missing_hosts(found.hosts, app.settings.http.allowed_hosts),
            missing_secrets=app.bundles.list_missing_secrets(found.secrets),
            secret_uses=[
                SecretUseInfo(**use._asdict(), is_allowed=use.is_allowed(app.settings)) for use in found.secret_uses
            ],
            problems=found.problems,
            warnings=found.warnings,
        )
        return self._api.to_json(response)

    async def export_bundle(self, request: Request) -> Response:
        check_settings(self._api.app)
        bundle_id = str(request.path_params["bundleID"])
        context = identity.build_context(request, self._api.app)
        await self._api.app.bundles.refresh()
        slug, packed, secrets = await self._api.run_in_thread(lambda: self._export(bundle_id, context))
        name = f"attachment; filename=\"bundle.zip\"; filename*=UTF-8''{quote(slug, safe='')}.zip"
        replaced = {REPLACED_HEADER: ", ".join(secrets)} if secrets else {}
        return Response(packed, media_type=ZIP, headers={"content-disposition": name, **replaced})

    def _export(self, bundle_id: str, context: ToolContext) -> tuple[str, bytes, list[str]]:
        store = self._api.app.bundles.store
        bundle = store.get_bundle(bundle_id)
        tools = [tool.as_stored() for tool in store.list_bundle_tools(bundle_id) if identity.may_see(context, tool)]
        _, secrets = archive.strip_credentials(bundle.slug, tools)
        return bundle.slug, archive.pack(bundle.as_json(), tools), secrets


def _find_basis(store: BundleStore, slug: str) -> JsonObject | None:
    """Return what the difference depends on; None if the bundle does not exist."""
    existing = store.bundle_by_slug(slug)
    if existing is None or existing.slug != slug:
        return None
    return {"basis": importer.compute_basis(store, existing)}


def _check_slug_is_free(store: BundleStore, slug: str) -> None:
    """Raise if the slug exists: without `update`, an import never changes an existing bundle."""
    there = store.bundle_by_slug(slug)
    if there is not None and there.slug == slug:
        free = importer.find_free_slug(store, slug)
        details = {"slug": slug, "bundleID": there.id, "suggestion": free}
        hint = f"add new versions to it with ?update=true, or use another slug: ?name={free}"
        raise ApiError("slug_taken", f"bundle '{slug}' already exists", details, hint=hint)
