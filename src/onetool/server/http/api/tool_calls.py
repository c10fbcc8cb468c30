"""`POST …/invoke` for stored tools and `POST /api/tools/{name}/call` for tools of every kind.

The bus resolves the tool and checks its state, arguments and permissions. A call that the bus
rejects is an HTTP error. A call that ran gives an outcome with status 200, whether it succeeded or
failed.
"""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.action import check_settings
from onetool.admin.catalog import ToolCatalog
from onetool.admin.stored_tools import find_tool
from onetool.core.agents import describe_disabled
from onetool.errors import BundleError, SignInRequired, ToolError, describe
from onetool.runs.run_output import ClientChannel, RunOutput
from onetool.server.fair_queue import turn
from onetool.server.http.api import events
from onetool.server.http.api.common import (
    Api,
    Call,
    CallOutcome,
    FailedCall,
    Success,
    build_context,
)
from onetool.server.http.api.events import EventStream, Feed
from onetool.server.http.errors import CODES, ApiError, json_response
from onetool.server.http.json_body import RequestBody
from onetool.server.http.routing import Operation, ResponseSpec
from onetool.sources.bundles.model import StoredTool
from onetool.util.context import Result
from onetool.util.large_data import is_large
from onetool.util.redact import Redactor
from onetool_child.data import NotData, as_data
from onetool_child.errors import get_message
from onetool_child.json_types import JsonObject

STORED_TOOL = "/tools/bundles/{bundleID}/tools/{toolSlug}/version/{version}"
ERRORS = ("not_found", "bundle_disabled", "tool_disabled", "permission_denied", "audit_unavailable")
Check = Callable[[], Awaitable[None]]
OUTCOME = ResponseSpec(
    "The tool ran", CallOutcome, events.describe_stream("progress, then result with the outcome")
)


async def invoke(api: Api, request: Request, name: str, check: Check) -> Response:
    """Call the tool with the arguments in the body.

    `check` raises if the tool is unknown or disabled. It runs only when a call is rejected, because
    its errors take precedence over those of the body and the arguments.
    """
    body = await RequestBody.from_request(request)
    try:
        args = (await api.read(body, Call.parse)).args
    except (ApiError, ToolError):
        await check()
        raise

    async def call(output: RunOutput) -> Result:
        context = build_context(request, api.app, output)
        async with turn(request.scope, context.agent_id, is_run=False):
            result = await api.app.bus.call_tool(name, args, context, exact=True)
        if (
            result.error is not None
            and not result.ran
            and not isinstance(result.error, SignInRequired)
        ):
            await check()
        return result

    async def work(feed: Feed) -> None:
        def report(event: str, text: str) -> None:
            feed.put(event, {"message": api.app.redact(text)})

        result = await call(RunOutput(ClientChannel(listener=report)))
        build = partial(build_outcome, result, api.app.redact)
        feed.put("result", await api.run_in_thread_if(_is_large(result), build))

    if events.wants_events(request):
        return EventStream(work)
    result = await events.while_connected(request, call(RunOutput()))
    return await api.run_in_thread_if(
        _is_large(result), lambda: json_response(build_outcome(result, api.app.redact))
    )


def _is_large(result: Result) -> bool:
    return result.error is not None or is_large(result.value)


def build_outcome(result: Result, redact: Redactor) -> JsonObject:
    """Return the outcome with secrets redacted. Raise an `ApiError` if the call was rejected."""
    error = result.error
    if error is None:
        try:
            return Success(value=redact.redact_data(as_data(result.value))).as_json()
        except Exception as failure:  # noqa: BLE001 - objects of tools may raise anything
            error = ToolError(f"cannot serialize the value: {get_message(failure)}")
    elif isinstance(error, ToolError):
        is_rejected = not result.ran and (isinstance(error, BundleError) or error.type in CODES)
        if is_rejected or error.fields.get("code") == "rate_limited":
            api_error = ApiError.from_error(error)
            raise ApiError(
                api_error.code,
                redact(api_error.message),
                redact.redact_data(_as_data(api_error.details)),
                api_error.headers,
            )
    fields = {key: value for key, value in describe(error).items() if key != "class"}
    return FailedCall(error=redact.redact_data(_as_data(fields))).as_json()


def _as_data(fields: JsonObject) -> JsonObject:
    """Return the fields as JSON data. Tools may put any object into them."""
    try:
        data: JsonObject = as_data(fields)
    except (NotData, RecursionError):
        return {key: str(value) for key, value in fields.items()}
    return data


class ToolCallHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._app = api.app

    def operations(self) -> Iterator[Operation]:
        outcome = {200: OUTCOME}
        path = f"{STORED_TOOL}/invoke"
        yield Operation("POST", path, self.invoke, "Call a tool", outcome, body=Call, errors=ERRORS)
        path = "/api/tools/{name}/call"
        yield Operation(
            "POST", path, self.call, "Call a tool of any kind", outcome, body=Call, errors=ERRORS
        )

    async def invoke(self, request: Request) -> Response:
        check_settings(self._app)
        tool = await self._find(request)
        if (
            tool.disabled_reason is not None
        ):  # its function is missing; the registry cannot detect that
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
            tool = await ToolCatalog(self._app, build_context(request, self._app)).find(name)
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
        raise ApiError(
            "tool_disabled", describe_disabled(name, tool.disabled_reason), {"toolID": tool.id}
        )
