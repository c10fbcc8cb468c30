"""`POST /api/run`: one run as an MCP client would have it, with its output as it comes for who wants that."""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ot.bundles.rules import invalid
from ot.errors import ToolError
from ot.faces.http import callers
from ot.faces.http.answers import answer
from ot.faces.http.api import events
from ot.faces.http.api.common import Api, only
from ot.faces.http.api.events import EventStream, Feed
from ot.faces.http.bodies import Sent
from ot.faces.http.gate import agent_of, token_id_of
from ot.faces.http.queue import turn
from ot.faces.http.refusals import Refusal
from ot.runner.answer import Answer, Journal
from ot.schema import JSON
from ot_child.data import FORMATS

GATHER_SECONDS: Final = 0.05  # that what follows at once is sent together, which is far cheaper


class Runs:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def run(self, request: Request) -> Response:
        sent = await Sent.with_request(request)
        callers.context_of(request, self._api.app)  # an agent that is none is refused here
        command, chosen = _asked(await self._api.in_thread(sent.data))
        watch = _Watch(self._api)
        work = self._ended(command, chosen, request, watch)
        if not events.are_wanted(request):
            body = await events.while_heard(request, work)
            return await self._api.in_thread(lambda: answer(body))

        async def told(feed: Feed) -> None:
            watch.feed = feed
            feed.put("result", await work)

        return EventStream(told)

    async def _ended(self, command: str, chosen: str | None, request: Request, watch: "_Watch") -> JSON:
        agent, token_id = agent_of(request.scope), token_id_of(request.scope)
        journal = Journal(listener=watch.hear, request_id=callers.request_id_of(request))
        async with turn(request.scope, agent):
            owner = callers.seen_agent(request) is None
            found = await self._api.app.run(
                command, agent=agent, journal=journal, preset_format=chosen, is_owner=owner, token_id=token_id
            )
        media = [shown for handle in found.media for shown in await self._media(handle, agent, token_id)]
        return _body(found, watch.run_id, media)

    async def _media(self, handle: str, agent: str, token_id: str) -> list[JSON]:
        """The thing itself; nothing where the code made the handle up."""
        try:
            data, mime_type = await self._api.in_thread(lambda: self._api.app.media.read(handle, agent, token_id))
        except ToolError:
            return []
        encoded = await self._api.in_thread(lambda: base64.b64encode(data).decode("ascii"))
        return [{"handle": handle, "mimeType": mime_type, "data": encoded}]

    # --- what has happened -----------------------------------------------------------------------------------------

    async def listed(self, request: Request) -> Response:
        return answer({"runs": self._api.activity.runs(callers.seen_agent(request))})

    async def timeline(self, request: Request) -> Response:
        run_id = str(request.path_params["runID"])
        found = self._api.activity.run(run_id, callers.seen_agent(request))
        if found is None:
            message = "there is no such run, or it was too long ago; GET /api/runs lists the last ones"
            raise Refusal("not_found", message, {"runID": run_id})
        return answer(found)

    async def activity(self, request: Request) -> Response:
        """Everything from now on, and first of all the last runs."""
        agent, activity = callers.seen_agent(request), self._api.activity

        async def work(feed: Feed) -> None:
            with activity.watched(agent) as happening:
                feed.put("start", {"runs": activity.runs(agent)})
                async for some in happening:
                    for event in some:
                        feed.put(event["event"], event)
                    await feed.is_sent()
                    await asyncio.sleep(GATHER_SECONDS)

        return EventStream(work, ends_with_server=True)


class _Watch:
    """Listens to one run: remembers which it is, and tells the feed where there is one."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.run_id: str | None = None
        self.feed: Feed | None = None

    def hear(self, event: str, what: Any) -> None:
        if event == "start":
            self.run_id = what
        if self.feed is not None:
            self.feed.put(event, self._shown(event, what))

    def _shown(self, event: str, what: Any) -> Any:
        match event:
            case "start":
                return {"runID": what}
            case "call":
                return {**what, "name": self._api.app.redact(what["name"])}
            case "progress":
                return {"message": self._api.app.redact(what)}
        return what


def _asked(body: Mapping[str, Any]) -> tuple[str, str | None]:
    only(body, "command", "format")
    command, chosen = body.get("command"), body.get("format")
    if not isinstance(command, str):
        raise invalid('command must be a text of Python code: send {"command": "ot.tools()"}')
    if chosen is not None and chosen not in FORMATS:
        raise invalid(f"format must be one of {', '.join(FORMATS)}, or be left out")
    return command, chosen


def _body(found: Answer, run_id: str | None, media: list[JSON]) -> JSON:
    """The code may have put half a character into the answer; JSON is written so that it does not matter."""
    error = {"error": found.error} if found.error is not None else {}
    return {"runID": run_id, "blocks": list(found.blocks), "isError": found.is_error, **error, "media": media}
