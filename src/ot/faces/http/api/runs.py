"""`POST /api/run`: one run as an MCP client would have it, with its output as it comes for who wants that."""

import asyncio
import base64
from collections.abc import Iterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ot.errors import ToolError
from ot.faces.http import callers
from ot.faces.http.answers import answer
from ot.faces.http.api import events
from ot.faces.http.api.common import Api
from ot.faces.http.api.events import EventStream, Feed
from ot.faces.http.bodies import Sent
from ot.faces.http.errors import ApiError
from ot.faces.http.gate import agent_of, token_id_of
from ot.faces.http.models import Medium, RunAnswer, RunRequest, Runs, Timeline
from ot.faces.http.routing import TEXT, Answer, Operation
from ot.faces.queue import turn
from ot.runner.answer import Journal
from ot.schema import JSON

ROOT: Final = "/api"
GATHER_SECONDS: Final = 0.05  # that what follows at once is sent together, which is far cheaper


class RunHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        ran = Answer("It ran", RunAnswer, events.described("start, output, call, progress, then result"))
        errors = ("permission_denied",)
        yield Operation("POST", f"{ROOT}/run", self.run, "Run code", {200: ran}, body=RunRequest, errors=errors)
        yield Operation("GET", f"{ROOT}/runs", self.listed, "List the last runs", {200: Answer("The last runs", Runs)})
        path, timeline = f"{ROOT}/runs/{{runID}}", {200: Answer("The run, call by call", Timeline)}
        yield Operation("GET", path, self.timeline, "Get a run", timeline, errors=("not_found",))
        words = "start with the last runs, then called, completed and failed of runs and calls; without an end"
        stream = {200: Answer(words, media={events.MEDIA_TYPE: TEXT})}
        yield Operation("GET", f"{ROOT}/activity", self.activity, "Watch what happens", stream)

    async def run(self, request: Request) -> Response:
        sent = await Sent.with_request(request)
        callers.context_of(request, self._api.app)  # an agent that is none is refused here
        asked, watch = await self._api.read(sent, RunRequest.parse), _Watch(self._api)
        work = self._ended(asked, request, watch)
        if not events.are_wanted(request):
            body = await events.while_heard(request, work)
            return await self._api.in_thread(lambda: answer(body))

        async def told(feed: Feed) -> None:
            watch.feed = feed
            feed.put("result", await work)

        return EventStream(told)

    async def _ended(self, asked: RunRequest, request: Request, watch: "_Watch") -> JSON:
        agent, token_id = agent_of(request.scope), token_id_of(request.scope)
        journal = Journal(listener=watch.hear, request_id=callers.request_id_of(request))
        async with turn(request.scope, agent, is_run=True):
            owner = callers.seen_agent(request) is None
            found = await self._api.app.run(
                asked.command,
                agent=agent,
                journal=journal,
                preset_format=asked.format,
                is_owner=owner,
                token_id=token_id,
            )
        media = [shown for handle in found.media for shown in await self._media(handle, agent, token_id)]
        shown = RunAnswer(
            run_id=watch.run_id,
            blocks=list(found.blocks),
            is_error=found.is_error,
            error=found.error or "",
            media=media,
        )
        return shown.as_json()

    async def _media(self, handle: str, agent: str, token_id: str) -> list[Medium]:
        """The thing itself; nothing where the code made the handle up."""
        try:
            data, mime_type = await self._api.in_thread(lambda: self._api.app.media.get(handle, agent, token_id))
        except ToolError:
            return []
        encoded = await self._api.in_thread(lambda: base64.b64encode(data).decode("ascii"))
        return [Medium(handle=handle, mime_type=mime_type, data=encoded)]

    # --- what has happened -----------------------------------------------------------------------------------------

    async def listed(self, request: Request) -> Response:
        found = self._api.activity.runs(callers.seen_agent(request))
        return answer(Runs.model_validate({"runs": found}).as_json())

    async def timeline(self, request: Request) -> Response:
        run_id = str(request.path_params["runID"])
        found = self._api.activity.run(run_id, callers.seen_agent(request))
        if found is None:
            message = "there is no such run, or it was too long ago; GET /api/runs lists the last ones"
            raise ApiError("not_found", message, {"runID": run_id})
        return answer(Timeline.model_validate(found).as_json())

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
