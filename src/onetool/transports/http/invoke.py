"""Tool calls over HTTP, for all routes: through `bus.call_tool`, answered as JSON or as server-sent events.

The bus resolves the tool and checks its state, arguments and permissions. A call that the bus rejects is an HTTP error.
A call that ran gives an outcome with status 200, whether it succeeded or failed.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from onetool.core.tool import Result
from onetool.errors import BundleError, SignInRequired, ToolError, describe
from onetool.runner.run_output import ClientChannel, RunOutput
from onetool.transports.fair_queue import turn
from onetool.transports.http import identity
from onetool.transports.http.api import events
from onetool.transports.http.api.common import Api
from onetool.transports.http.api.events import EventStream, Feed
from onetool.transports.http.errors import CODES, ApiError
from onetool.transports.http.json_body import RequestBody
from onetool.transports.http.models import Call, CallOutcome, FailedCall, Success
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import ResponseSpec
from onetool.util.redact import Redactor
from onetool_child.data import NotData, as_data
from onetool_child.errors import get_message
from onetool_child.json_types import JsonObject

Check = Callable[[], Awaitable[None]]
OUTCOME = ResponseSpec("The tool ran", CallOutcome, events.describe_stream("progress, then result with the outcome"))


async def invoke(api: Api, request: Request, name: str, check: Check) -> Response:
    """Call the tool with the arguments in the body.

    `check` raises if the tool is unknown or disabled. It runs only when a call is rejected, because its errors take
    precedence over those of the body and the arguments.
    """
    body = await RequestBody.from_request(request)
    try:
        args = (await api.read(body, Call.parse)).args
    except (ApiError, ToolError):
        await check()
        raise

    async def call(output: RunOutput) -> Result:
        context = identity.build_context(request, api.app, output)
        async with turn(request.scope, context.agent_id, is_run=False):
            result = await api.app.bus.call_tool(name, args, context, exact=True)
        if result.error is not None and not result.ran and not isinstance(result.error, SignInRequired):
            await check()
        return result

    async def work(feed: Feed) -> None:
        def report(event: str, text: str) -> None:
            feed.put(event, {"message": api.app.redact(text)})

        result = await call(RunOutput(ClientChannel(listener=report)))
        feed.put("result", await api.run_in_thread(lambda: build_outcome(result, api.app.redact)))

    if events.wants_events(request):
        return EventStream(work)
    result = await events.while_connected(request, call(RunOutput()))
    return await api.run_in_thread(lambda: json_response(build_outcome(result, api.app.redact)))


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
            found = ApiError.from_error(error)
            raise ApiError(
                found.code, redact(found.message), redact.redact_data(_as_data(found.details)), found.headers
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
