"""One call of a tool over HTTP, whichever route named it: straight to `bus.call_tool`, answered as JSON or as events.

The bus finds the tool and checks its state, the arguments and the permissions. A call that it rejects is an error of
REST; one that ran is an outcome, whether it went well or not.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from onetool._tool import Result
from onetool.errors import BundleError, ToolError, describe
from onetool.faces.http import callers
from onetool.faces.http.answers import answer
from onetool.faces.http.api import events
from onetool.faces.http.api.common import Api
from onetool.faces.http.api.events import EventStream, Feed
from onetool.faces.http.bodies import Sent
from onetool.faces.http.errors import CODES, ApiError
from onetool.faces.http.models import Call, Failure, Outcome, Success
from onetool.faces.http.routing import Answer
from onetool.faces.queue import turn
from onetool.redact import Redactor
from onetool.runner.answer import Journal
from onetool.schema import JSON
from onetool_child.data import NotData, as_data

Check = Callable[[], Awaitable[None]]
OUTCOME: Final = Answer("The tool ran", Outcome, events.described("progress, then result with the outcome"))


async def invoke(api: Api, request: Request, name: str, check: Check) -> Response:
    """Call the tool with the arguments in the body.

    `check` raises if the tool is unknown or disabled. It is asked only when a call is rejected, because that comes
    before whatever is wrong with the body or the arguments.
    """
    sent = await Sent.with_request(request)
    try:
        args = (await api.read(sent, Call.parse)).args
    except (ApiError, ToolError):
        await check()
        raise

    async def call(journal: Journal) -> Result:
        context = callers.context_of(request, api.app, journal)
        async with turn(request.scope, context.agent_id, is_run=False):
            result = await api.app.bus.call_tool(name, args, context)
        if result.error is not None and not result.ran:
            await check()
        return result

    async def work(feed: Feed) -> None:
        journal = Journal(listener=lambda event, text: feed.put(event, {"message": api.app.redact(text)}))
        result = await call(journal)
        feed.put("result", await api.in_thread(lambda: outcome_of(result, api.app.redact)))

    if events.are_wanted(request):
        return EventStream(work)
    result = await events.while_heard(request, call(Journal()))
    return await api.in_thread(lambda: answer(outcome_of(result, api.app.redact)))


def outcome_of(result: Result, redact: Redactor) -> JSON:
    """Return what the tool gave, without secrets. Raise an `ApiError` if the call was rejected."""
    error = result.error
    if error is None:
        try:
            return Success(value=redact.in_data(as_data(result.value))).as_json()
        except (NotData, RecursionError):
            error = ToolError("the value is nested too deeply, or refers to itself, and cannot be sent")
    elif isinstance(error, ToolError):
        is_rejected = not result.ran and (isinstance(error, BundleError) or error.type in CODES)
        if is_rejected or error.fields.get("code") == "rate_limited":
            found = ApiError.from_error(error)
            raise ApiError(found.code, redact(found.message), redact.in_data(_as_data(found.details)), found.headers)
    fields = {key: value for key, value in describe(error).items() if key != "class"}
    return Failure(error=redact.in_data(_as_data(fields))).as_json()


def _as_data(fields: JSON) -> JSON:
    """Fields are a tool's own, and may be anything."""
    try:
        data: JSON = as_data(fields)
    except (NotData, RecursionError):
        return {key: str(value) for key, value in fields.items()}
    return data
