"""The REST routes of actions: method, path and response of each.

A route has no code of its own: the parameters of the action are those of the path, the query and the body.
"""

from functools import partial
from urllib.parse import quote

from starlette.responses import Response

from onetool.admin import completions, imports, packs, request_preview, stored_tools, tokens, tools
from onetool.admin.imports import ExportedBundle
from onetool.transports.http.action_route import ActionRoute
from onetool.transports.http.routing import BYTES, JSON_MEDIA_TYPE, TEXT

BUNDLE = "/tools/bundles/{bundleID}"
STORED_TOOL = f"{BUNDLE}/tools/{{toolSlug}}/version/{{version}}"
BUNDLE_ERRORS = ("not_found", "permission_denied", "builtin_read_only")
DENIED = ("permission_denied",)
PATCH_ERRORS = ("not_found", "permission_denied", "bundle_disabled")
ZIP = "application/zip"
DOCUMENT = {JSON_MEDIA_TYPE: {"type": "object"}, "application/yaml": TEXT, ZIP: BYTES}
REPLACED_HEADER = "onetool-replaced-credentials"  # header with the names of secrets


def respond_archive(bundle: ExportedBundle) -> Response:
    name = f"attachment; filename=\"bundle.zip\"; filename*=UTF-8''{quote(bundle.slug, safe='')}.zip"
    replaced = {REPLACED_HEADER: ", ".join(bundle.secrets)} if bundle.secrets else {}
    return Response(bundle.content, media_type=ZIP, headers={"content-disposition": name, **replaced})


Stored = partial(ActionRoute, is_redacted=False)

STORED_ROUTES = (
    Stored("GET", "/tools/bundles", stored_tools.list_bundles, "A page of bundles", has_etag=True),
    Stored("GET", BUNDLE, stored_tools.get_bundle, "The bundle", errors=("not_found",), has_etag=True),
    Stored(
        *("PUT", BUNDLE, stored_tools.put_bundle, "The bundle was replaced"),
        created="The bundle was created",
        errors=("permission_denied", "builtin_read_only", "slug_taken", "duplicate"),
        sends_etag=True,
    ),
    Stored(*("PATCH", BUNDLE, stored_tools.set_bundle_enabled, "The bundle"), errors=BUNDLE_ERRORS, sends_etag=True),
    Stored(
        *("DELETE", BUNDLE, stored_tools.delete_bundle, "Deleted"),
        status=204,
        errors=(*BUNDLE_ERRORS, "bundle_not_empty"),
    ),
    Stored("GET", STORED_TOOL, stored_tools.get_tool, "The tool", errors=("not_found",), has_etag=True),
    Stored(
        *("PUT", STORED_TOOL, stored_tools.put_tool, "The tool was created"),
        status=201,
        errors=(*BUNDLE_ERRORS, "bundle_disabled", "duplicate"),
        sends_etag=True,
    ),
    Stored(
        *("PATCH", STORED_TOOL, stored_tools.set_version_enabled, "The tool"),
        errors=(*BUNDLE_ERRORS, "bundle_disabled"),
        sends_etag=True,
    ),
    Stored("DELETE", STORED_TOOL, stored_tools.delete_tool, "Deleted", status=204, errors=BUNDLE_ERRORS),
    *(
        Stored("GET", path, stored_tools.list_tools, "A page of tools", has_etag=True)
        for path in ("/tools/tools", "/tools")
    ),
    *(
        Stored("GET", path, stored_tools.search_tools, "Matching tools, best first", has_etag=True)
        for path in ("/tools/tools/search", "/tools/search")
    ),
)
TOOL_ROUTES = (
    ActionRoute("GET", "/api/tools", tools.list_tools, "A page of tools; with q, best matches first", errors=DENIED),
    ActionRoute(
        *("GET", "/api/tools/{name}", tools.get_tool, "The tool with all details"),
        errors=("not_found", *DENIED),
        has_etag=True,
    ),
    ActionRoute("PATCH", "/api/tools/{name}", tools.set_tool_enabled, "The tool", errors=PATCH_ERRORS),
    ActionRoute("GET", "/api/packs", packs.list_packs, "All packs", errors=DENIED),
    ActionRoute("GET", "/api/packs/{name}", packs.get_pack, "The pack", errors=("not_found", *DENIED), has_etag=True),
    ActionRoute("PATCH", "/api/packs/{name}", packs.set_pack_enabled, "The pack", errors=PATCH_ERRORS, sends_etag=True),
    ActionRoute(
        *("GET", "/api/completions", completions.complete_name),
        f"Up to {completions.MAX_NAMES} names, sorted",
        errors=DENIED,
    ),
)
IMPORT_ROUTES = (
    ActionRoute(
        *(
            "POST",
            "/api/import",
            imports.import_bundle,
            "The updated bundle, or the difference, and the remaining steps",
        ),
        created="The new bundle and the remaining steps",
        errors=("permission_denied", "slug_taken"),
        media=DOCUMENT,
    ),
    ActionRoute(
        *("GET", "/api/bundles/{bundleID}/export", imports.export_bundle, "ZIP archive"),
        errors=("not_found",),
        media={ZIP: BYTES},
        render=respond_archive,
    ),
    ActionRoute(
        *("POST", "/api/request-preview", request_preview.preview_request, "The first request of the call"),
        errors=DENIED,
    ),
)
ROUTES = (
    ActionRoute("GET", "/api/tokens", tokens.list_tokens, "Tokens"),
    ActionRoute(
        *("POST", "/api/tokens", tokens.create_token, "The token, which is not shown again"),
        status=201,
        errors=("duplicate",),
    ),
    ActionRoute("DELETE", "/api/tokens/{name}", tokens.revoke_token, "The token was revoked", errors=("not_found",)),
)
