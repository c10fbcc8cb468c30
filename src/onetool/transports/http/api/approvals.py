"""`/api/approvals`: calls that wait for a person, and the person's decisions."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from onetool.errors import ArgumentError, CallRejected, ToolNotFound
from onetool.runs.decisions import OUTCOMES
from onetool.runs.grants import make_grants
from onetool.runs.views import list_waiting
from onetool.state.run_records import CallState, Decision, Grant
from onetool.transports.http import identity
from onetool.transports.http.api import events
from onetool.transports.http.api.common import Api
from onetool.transports.http.api.events import EventStream, Feed
from onetool.transports.http.errors import ApiError
from onetool.transports.http.models import (
    ApprovalList,
    DecisionRequest,
    DecisionResponse,
)
from onetool.transports.http.routing import Operation, ResponseSpec

ROOT = "/api/approvals"
SCOPE = "approve"


class ApprovalHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        media = events.describe_stream("approvals, at first and after each change; endless")
        waiting = {200: ResponseSpec("Runs whose calls wait", ApprovalList, media)}
        yield Operation("GET", ROOT, self.list_approvals, "List calls that wait for approval", waiting)
        path = f"{ROOT}/{{runID}}"
        decided = {200: ResponseSpec("The decided calls", DecisionResponse)}
        summary = "Approve or reject calls of a run"
        errors = ("not_found", "not_waiting")
        yield Operation("POST", path, self.decide, summary, decided, body=DecisionRequest, errors=errors)

    async def list_approvals(self, request: Request) -> Response:
        identity.get_person(request).require(SCOPE, "reading approvals")
        if events.wants_events(request):
            return EventStream(self._stream, ends_with_server=True)
        found = await self._api.run_in_thread(self._list_waiting)
        return self._api.respond(found)

    def _list_waiting(self) -> ApprovalList:
        app = self._api.app
        return ApprovalList.model_validate({"approvals": list_waiting(app.state.runs, app.redact)})

    async def _stream(self, feed: Feed) -> None:
        """Send the list at first and after each change, of this process or of others."""
        sent = None
        async for _ in self._api.app.changes.watch("runs"):
            approvals = await self._api.run_in_thread(self._list_waiting)
            if approvals != sent:
                sent = approvals
                feed.put("approvals", self._api.to_json(approvals))
                await feed.wait_until_sent()

    async def decide(self, request: Request) -> Response:
        by = identity.get_person(request).require(SCOPE, "approving calls")
        body = await self._api.parse(request, DecisionRequest.parse)
        run_id = str(request.path_params["runID"])
        try:
            numbers = await self._apply(run_id, body, by)
        except ToolNotFound as error:
            raise ApiError("not_found", error.message, {"runID": run_id}) from None
        except CallRejected as error:  # somebody else has answered, or the run has ended
            raise ApiError("not_waiting", error.message, {"runID": run_id}) from None
        return self._api.respond(DecisionResponse(run=run_id, calls=numbers))

    async def _apply(self, run_id: str, body: DecisionRequest, by: str) -> list[int]:
        app = self._api.app
        run = await self._api.run_in_thread(lambda: app.state.runs.get_run(run_id))
        if run is None:
            raise ToolNotFound(f"no run {run_id!r}, or it has expired", hint="list approvals with GET /api/approvals")
        agent = app.settings.agents.get(run.agent)
        if agent is None or "ui" not in agent.approvals.via:
            setting = f"agents.{run.agent}.approvals.via"
            raise ApiError("forbidden", f"calls of agent {run.agent} cannot be approved here: see {setting}")
        if body.decision in OUTCOMES:
            if not body.calls:
                raise ApiError("invalid", f"the decision {body.decision!r} needs the numbers of the calls: calls")
            for number in body.calls:
                try:
                    await app.runs.resolve(run_id, number, body.decision, by, via="ui", transport="http")
                except ToolNotFound as error:
                    raise CallRejected(error.message) from None
            return body.calls
        is_approved = body.decision == "approve"
        if is_approved and body.stop:
            raise ApiError("invalid", "stop requires the decision 'reject'")
        numbers = None if body.calls is None else tuple(body.calls)
        decision = Decision(is_approved, by, numbers, body.reason, stops_run=body.stop)
        if is_approved and body.grants:
            decision = replace(decision, grants=await self._api.run_in_thread(lambda: self._make_grants(run_id, body)))
        decided: list[int] = await app.runs.decide(run_id, decision, via="ui", transport="http")
        return decided

    def _make_grants(self, run_id: str, body: DecisionRequest) -> tuple[Grant, ...]:
        """Return the grants. One without an expiry is for the run; `Runs.decide` adds the run and the agent."""
        waiting = self._api.app.state.runs.list_calls(run_id, (CallState.PENDING,))
        calls = [call for call in waiting if body.calls is None or call.number in body.calls]
        grants: list[Grant] = []
        for grant in body.grants:
            expires = 0.0 if grant.seconds is None else time.time() + grant.seconds
            make = partial(make_grants, count=grant.count, expires=expires)
            try:
                grants += make(calls, grant.tool, grant.arguments, grant.varying)
            except ArgumentError as error:
                raise ApiError("invalid", error.message, hint="to allow any arguments, add '*' to varying") from None
        return tuple(grants)
