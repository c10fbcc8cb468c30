"""The REST routes of actions: method, path and response of each.

A route has no code of its own: the parameters of the action are those of the path, the query and the body.
"""

from functools import partial
from urllib.parse import quote

from starlette.responses import Response

from onetool.admin import (
    agents,
    approvals,
    audit,
    clients,
    completions,
    health,
    imports,
    packs,
    request_preview,
    requirements,
    results,
    runs,
    secrets,
    servers,
    settings,
    sign_ins,
    statistics,
    stored_tools,
    tokens,
    tools,
)
from onetool.admin.imports import ExportedBundle
from onetool.admin.results import StoredMedium
from onetool.transports.http.action_route import ActionRoute
from onetool.transports.http.routing import BYTES, JSON_MEDIA_TYPE, TEXT

BUNDLE = "/tools/bundles/{bundleID}"
STORED_TOOL = f"{BUNDLE}/tools/{{toolSlug}}/version/{{version}}"
BUNDLE_ERRORS = ("not_found", "permission_denied", "builtin_read_only")
DENIED = ("permission_denied",)
PATCH_ERRORS = ("not_found", "permission_denied", "bundle_disabled")
ZIP = "application/zip"
DOCUMENT = {JSON_MEDIA_TYPE: {"type": "object"}, "application/yaml": TEXT, ZIP: BYTES}
# Types that browsers display without running scripts; SVG can contain scripts.
IMAGES = ("png", "jpeg", "gif", "webp", "avif", "bmp")
AUDIO = ("mpeg", "wav", "x-wav", "ogg", "aac", "flac", "mp4", "webm")
INLINE_TYPES = frozenset({*(f"image/{kind}" for kind in IMAGES), *(f"audio/{kind}" for kind in AUDIO)})
OTHER = "application/octet-stream"
REPLACED_HEADER = "onetool-replaced-credentials"  # header with the names of secrets


def respond_archive(bundle: ExportedBundle) -> Response:
    name = f"attachment; filename=\"bundle.zip\"; filename*=UTF-8''{quote(bundle.slug, safe='')}.zip"
    replaced = {REPLACED_HEADER: ", ".join(bundle.secrets)} if bundle.secrets else {}
    return Response(bundle.content, media_type=ZIP, headers={"content-disposition": name, **replaced})


def respond_medium(medium: StoredMedium) -> Response:
    if medium.mime_type in INLINE_TYPES:
        return Response(medium.content, media_type=medium.mime_type)
    return Response(medium.content, media_type=OTHER, headers={"content-disposition": "attachment"})


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
MISSING = ("not_found",)
EDITED = "The change"
EDIT_ERRORS = ("not_found", "duplicate", "precondition_failed", "read_only")
SERVER = "/api/servers/{name}"
AGENT = "/api/agents/{name}"
AGENT_TOOLS = f"{AGENT}/tools"
VERDICTS = "The tools and the decisions about them"
SECRET = "/api/secrets/{name}"  # noqa: S105 - not a secret
HISTORY = "/api/settings/history"
HOSTS = "/api/settings/hosts"

ROUTES = (
    ActionRoute("GET", "/api/servers", servers.list_servers, "The configured servers"),
    ActionRoute("GET", SERVER, servers.get_server, "The server", errors=MISSING),
    ActionRoute("POST", "/api/servers", servers.add_servers, EDITED, errors=EDIT_ERRORS),
    ActionRoute("PATCH", SERVER, servers.change_server, EDITED, errors=EDIT_ERRORS),
    ActionRoute("DELETE", SERVER, servers.remove_server, EDITED, errors=EDIT_ERRORS),
    ActionRoute("POST", f"{SERVER}/start", servers.start_server, "The server", errors=MISSING),
    ActionRoute("POST", f"{SERVER}/stop", servers.stop_server, "The server", errors=MISSING),
    ActionRoute(
        *("POST", f"{SERVER}/accept", servers.accept_tools, "The accepted differences"),
        errors=("not_found", "definitions_changed"),
    ),
    ActionRoute("GET", "/api/agents", agents.list_agents, "The agents that the caller may see"),
    ActionRoute("GET", AGENT, agents.get_agent, "The agent", errors=MISSING),
    ActionRoute("PATCH", AGENT, agents.change_agent, EDITED, errors=EDIT_ERRORS),
    ActionRoute("DELETE", AGENT, agents.remove_agent, EDITED, errors=EDIT_ERRORS),
    ActionRoute("GET", AGENT_TOOLS, agents.list_agent_tools, VERDICTS, errors=MISSING),
    ActionRoute("POST", AGENT_TOOLS, agents.preview_agent_tools, VERDICTS, errors=MISSING),
    ActionRoute("POST", f"{AGENT}/check", agents.check_call, "The decision", errors=MISSING),
    ActionRoute("GET", HISTORY, settings.list_changes, "The last changes, newest first", watches="settings"),
    ActionRoute("POST", f"{HISTORY}/{{changeID}}/undo", settings.undo_change, EDITED, errors=EDIT_ERRORS),
    ActionRoute("GET", HOSTS, settings.list_hosts, "The hosts", errors=("read_only",)),
    ActionRoute("PUT", HOSTS, settings.set_hosts, EDITED, errors=EDIT_ERRORS),
    ActionRoute("PATCH", HOSTS, settings.change_hosts, EDITED, errors=EDIT_ERRORS),
    ActionRoute("GET", "/api/secrets", secrets.list_secrets, "Names of secrets", errors=("read_only",)),
    ActionRoute("PUT", SECRET, secrets.set_secret, EDITED, errors=EDIT_ERRORS),
    ActionRoute("PUT", "/api/secret-uses", secrets.set_secret_use, EDITED, errors=EDIT_ERRORS),
    ActionRoute("DELETE", SECRET, secrets.delete_secret, EDITED, errors=EDIT_ERRORS),
    ActionRoute(
        *("POST", "/api/requirements", requirements.add_requirements, "What was added"),
        errors=("read_only", "duplicate"),
    ),
    ActionRoute("GET", "/api/sign-ins", sign_ins.list_sign_ins, "The servers that can be signed in to"),
    ActionRoute("DELETE", "/api/sign-ins/{name}", sign_ins.sign_out, "Whether there was a sign-in", errors=MISSING),
    ActionRoute(
        *("GET", "/api/results/{handle}", results.read_result, "Part of the result"),
        errors=("not_found",),
        is_redacted=False,
    ),
    ActionRoute(
        *("GET", "/api/media/{handle}", results.read_medium, "File content"),
        errors=("not_found",),
        media=dict.fromkeys(("image/*", "audio/*", OTHER), BYTES),
        render=respond_medium,
    ),
    ActionRoute("GET", "/api/stats", statistics.show_statistics, "Statistics"),
    ActionRoute("GET", "/api/spending", statistics.list_spending, "What each token used"),
    ActionRoute("GET", "/api/errors", statistics.list_errors, "Failures in groups, the latest first"),
    ActionRoute("GET", "/api/health", health.show_health, "Current health"),
    ActionRoute("POST", "/api/health/fixes", health.make_fix, "What was done", errors=("not_found",)),
    ActionRoute("GET", "/api/clients", clients.list_clients, "Connected clients"),
    ActionRoute(
        *("DELETE", "/api/clients/{clientID}", clients.disconnect_client, "The client was disconnected"),
        errors=("not_found", "not_connected"),
    ),
    ActionRoute("GET", "/api/audit", audit.list_records, "Records, newest first"),
    ActionRoute("GET", "/api/audit/export", audit.export_records, "Records, newest first, one per line"),
    ActionRoute("GET", "/api/approvals", approvals.list_approvals, "Runs whose calls wait", watches="runs"),
    ActionRoute(
        *("POST", "/api/approvals/{runID}", approvals.decide_calls, "The decided calls"),
        errors=("not_found", "not_waiting"),
    ),
    ActionRoute("GET", "/api/runs", runs.list_runs, "Runs"),
    ActionRoute("GET", "/api/runs/export", runs.export_runs, "Runs with their calls and values, one per line"),
    ActionRoute(
        *("GET", "/api/runs/{runID}", runs.show_run, "The run with its calls and values"), errors=("not_found",)
    ),
    ActionRoute("GET", "/api/tokens", tokens.list_tokens, "Tokens"),
    ActionRoute(
        *("POST", "/api/tokens", tokens.create_token, "The token, which is not shown again"),
        status=201,
        errors=("duplicate",),
    ),
    ActionRoute("DELETE", "/api/tokens/{name}", tokens.revoke_token, "The token was revoked", errors=MISSING),
)
