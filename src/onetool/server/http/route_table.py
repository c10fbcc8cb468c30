"""The REST routes of all actions.

A route has no code of its own: `onetool.admin.action` describes it.
"""

from collections.abc import Callable, Mapping
from urllib.parse import quote

from starlette.responses import Response
from starlette.routing import Router

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
    snippets,
    statistics,
    stored_tools,
    tokens,
    tools,
)
from onetool.admin.action import Action
from onetool.admin.imports import ExportedBundle
from onetool.admin.results import StoredMedium
from onetool.app import OneTool
from onetool.server.http.action_route import ActionRoute
from onetool.server.http.api.common import Api
from onetool.server.http.errors import ErrorBoundary
from onetool.server.http.routing import BYTES, JSON_MEDIA_TYPE, TEXT
from onetool_child.json_types import JsonMapping

ZIP = "application/zip"
# Types that browsers display without running scripts; SVG can contain scripts.
IMAGES = ("png", "jpeg", "gif", "webp", "avif", "bmp")
AUDIO = ("mpeg", "wav", "x-wav", "ogg", "aac", "flac", "mp4", "webm")
INLINE_TYPES = frozenset(
    {*(f"image/{kind}" for kind in IMAGES), *(f"audio/{kind}" for kind in AUDIO)}
)
OTHER = "application/octet-stream"
REPLACED_HEADER = "onetool-replaced-credentials"  # header with the names of secrets


def respond_archive(bundle: ExportedBundle) -> Response:
    name = (
        f"attachment; filename=\"bundle.zip\"; filename*=UTF-8''{quote(bundle.slug, safe='')}.zip"
    )
    replaced = {REPLACED_HEADER: ", ".join(bundle.secrets)} if bundle.secrets else {}
    return Response(
        bundle.content, media_type=ZIP, headers={"content-disposition": name, **replaced}
    )


def respond_medium(medium: StoredMedium) -> Response:
    if medium.mime_type in INLINE_TYPES:
        return Response(medium.content, media_type=medium.mime_type)
    return Response(medium.content, media_type=OTHER, headers={"content-disposition": "attachment"})


MODULES = (
    *(
        stored_tools,
        tools,
        packs,
        completions,
        imports,
        request_preview,
        servers,
        agents,
        settings,
        secrets,
    ),
    *(
        requirements,
        sign_ins,
        results,
        statistics,
        health,
        clients,
        audit,
        approvals,
        runs,
        snippets,
        tokens,
    ),
)
# Other media types than JSON, and the functions that make such responses.
MEDIA: Mapping[object, JsonMapping] = {
    imports.import_bundle: {
        JSON_MEDIA_TYPE: {"type": "object"},
        "application/yaml": TEXT,
        ZIP: BYTES,
    },
    imports.export_bundle: {ZIP: BYTES},
    results.read_medium: dict.fromkeys(("image/*", "audio/*", OTHER), BYTES),
}
RENDERERS: Mapping[object, Callable[..., Response]] = {
    imports.export_bundle: respond_archive,
    results.read_medium: respond_medium,
}


def list_routes() -> list[ActionRoute]:
    """Return the routes of all actions, sorted by path, so that a fixed path precedes one with
    parameters.
    """
    routes = []
    for module in MODULES:
        for action in vars(module).values():
            if isinstance(action, Action) and action.function.__module__ == module.__name__:
                method, *paths = action.route.split()
                media = MEDIA.get(action)
                routes += [
                    ActionRoute(method, path, action, media, RENDERERS.get(action))
                    for path in paths
                ]
    return sorted(routes, key=lambda route: route.path)


ACTION_ROUTES = list_routes()


def build_actions(app: OneTool) -> ErrorBoundary:
    """Return an ASGI application with the routes of all actions, without authentication: for the
    command line.
    """
    api = Api(app)
    routes = [route.make_operation(api).route for route in ACTION_ROUTES]
    return ErrorBoundary(
        Router(routes, redirect_slashes=False), app.log, lambda _scope, _status: None
    )
