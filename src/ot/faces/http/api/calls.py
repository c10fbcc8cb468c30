"""`POST /api/tools/{name}/call`: one call on the one path, with progress for who wants it, cancelled by going away."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ot.faces.http import callers
from ot.faces.http.answers import answer
from ot.faces.http.api import events
from ot.faces.http.api.catalogue import Catalogue, kind_of
from ot.faces.http.api.common import Api
from ot.faces.http.api.events import EventStream, Feed
from ot.faces.http.bodies import Sent
from ot.faces.http.invoking import arguments_in, outcome_of
from ot.faces.http.queue import CALLS, turn
from ot.faces.http.refusals import Refusal
from ot.runner.answer import Journal
from ot.schema import JSON
from ot.tool import Tool


class Calls:
    def __init__(self, api: Api, catalogue: Catalogue) -> None:
        self._api, self._catalogue = api, catalogue

    async def call(self, request: Request) -> Response:
        sent = await Sent.with_request(request)
        self._api.refuse_without_settings()
        name = str(request.path_params["name"])
        tool = await self._catalogue.find(name, callers.context_of(request, self._api.app))
        _check_enabled(tool)
        args = arguments_in(await self._api.in_thread(sent.data))
        if not events.are_wanted(request):
            outcome = await events.while_heard(request, self._outcome(request, name, args, Journal()))
            return await self._api.in_thread(lambda: answer(outcome))

        async def work(feed: Feed) -> None:
            journal = Journal(listener=lambda event, text: feed.put(event, {"message": self._api.app.redact(text)}))
            feed.put("result", await self._outcome(request, name, args, journal))

        return EventStream(work)

    async def _outcome(self, request: Request, name: str, args: Mapping[str, Any], journal: Journal) -> JSON:
        context = callers.context_of(request, self._api.app, journal)
        async with turn(request.scope, context.agent_id, CALLS):
            result = await self._api.app.bus.call_tool(name, args, context)
        return await self._api.in_thread(lambda: outcome_of(result, self._api.app.redact))


def _check_enabled(tool: Tool) -> None:
    if tool.enabled:
        return
    reason = tool.disabled_reason or "it is switched off"
    is_bundle = kind_of(tool) == "bundle" and reason.startswith("the bundle")
    code = "bundle_disabled" if is_bundle else "tool_disabled"
    raise Refusal(code, f"{tool.name} cannot be called: {reason}", {"name": tool.name})
