"""`POST …/invoke` for stored tools and `POST /api/tools/{name}/call` for tools of every kind."""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.catalog import ToolCatalog
from onetool.admin.person import check_settings
from onetool.admin.stored_tools import find_tool
from onetool.bundles.model import StoredTool
from onetool.core.bus.authorize import describe_disabled
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.errors import ApiError
from onetool.transports.http.invoke import OUTCOME, invoke
from onetool.transports.http.models import Call
from onetool.transports.http.routing import Operation

STORED_TOOL = "/tools/bundles/{bundleID}/tools/{toolSlug}/version/{version}"
ERRORS = ("not_found", "bundle_disabled", "tool_disabled", "permission_denied", "audit_unavailable")


class ToolCallHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._app = api.app

    def operations(self) -> Iterator[Operation]:
        outcome = {200: OUTCOME}
        path = f"{STORED_TOOL}/invoke"
        yield Operation("POST", path, self.invoke, "Call a tool", outcome, body=Call, errors=ERRORS)
        path = "/api/tools/{name}/call"
        yield Operation("POST", path, self.call, "Call a tool of any kind", outcome, body=Call, errors=ERRORS)

    async def invoke(self, request: Request) -> Response:
        check_settings(self._app)
        tool = await self._find(request)
        if tool.disabled_reason is not None:  # its function is missing; the registry cannot detect that
            _check_in_use(tool)

        async def check() -> None:
            _check_in_use(await self._find(request))

        return await invoke(self._api, request, self._app.bundles.tool_name(tool), check)

    async def _find(self, request: Request) -> StoredTool:
        path = request.path_params
        return await find_tool(self._app, path["bundleID"], path["toolSlug"], path["version"])

    async def call(self, request: Request) -> Response:
        check_settings(self._app)
        name = str(request.path_params["name"])

        async def check() -> None:
            tool = await ToolCatalog(self._app, identity.build_context(request, self._app)).find(name)
            if not tool.enabled:
                message = describe_disabled(tool.name, tool.disabled_reason)
                raise ApiError(tool.disabled_code or "tool_disabled", message, {"name": tool.name})

        return await invoke(self._api, request, name, check)


def _check_in_use(tool: StoredTool) -> None:
    if not tool.bundle_enabled:
        message = f"bundle '{tool.bundle_slug}' is disabled: enable it to call its tools"
        raise ApiError("bundle_disabled", message, {"bundleID": tool.bundle_id})
    if not tool.in_use:
        name = f"{tool.bundle_slug}.{tool.slug} {tool.version}"
        raise ApiError("tool_disabled", describe_disabled(name, tool.disabled_reason), {"toolID": tool.id})
