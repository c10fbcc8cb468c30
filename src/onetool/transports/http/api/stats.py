"""`/api/stats`, `/api/spending`, `/api/errors`, `/api/health` and `/readyz`: statistics, health and readiness."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from onetool.admin.model import ApiModel, camel_case
from onetool.checks.fixes import apply_fix
from onetool.errors import StorageError, ToolError
from onetool.runner.cells import FULL_SANDBOX, NOT_ANSWERING, NOT_STARTED, is_isolated
from onetool.stats import history
from onetool.stats.details import FailureGroup
from onetool.stats.spending import Spending
from onetool.stats.summary import summarize
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.api.runs import list_states, read
from onetool.transports.http.errors import ApiError
from onetool.transports.http.models import Health, Statistics, StatisticsQuery
from onetool.transports.http.record_models import (
    ErrorGroup,
    ErrorGroupList,
    FixRequest,
    FixResponse,
    SpendingList,
    SpendingQuery,
    SpendingRow,
)
from onetool.transports.http.routing import TEXT, Operation, ResponseSpec, read_query
from onetool.util.time_format import in_utc

if TYPE_CHECKING:
    from onetool_child.json_types import JsonObject

MONTH = re.compile(r"[0-9]{4}-[0-9]{2}", re.ASCII)
PROBE_SECONDS = 5.0


class StatsHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        stats = {200: ResponseSpec("Statistics", Statistics)}
        yield Operation("GET", "/api/stats", self.stats, "Get statistics", stats, StatisticsQuery)
        spending = {200: ResponseSpec("What each token used", SpendingList)}
        summary = "Get the use of each token per month"
        yield Operation("GET", "/api/spending", self.spending, summary, spending, SpendingQuery)
        errors = {200: ResponseSpec("Failures in groups, the latest first", ErrorGroupList)}
        yield Operation("GET", "/api/errors", self.errors, "List failures in groups", errors)
        health = {200: ResponseSpec("Current health", Health)}
        yield Operation("GET", "/api/health", self.health, "Get the health of all components", health)
        fixed = {200: ResponseSpec("What was done", FixResponse)}
        summary = "Make a fix that a finding of the health offers"
        codes = ("not_found",)
        yield Operation("POST", "/api/health/fixes", self.fix, summary, fixed, body=FixRequest, errors=codes)
        ready = {200: ResponseSpec("The server can run code", media={"text/plain": TEXT})}
        yield Operation("GET", "/readyz", self.ready, "Check that the server can run code", ready)

    async def stats(self, request: Request) -> Response:
        query = read_query(StatisticsQuery, request)
        agent = identity.get_person(request).visible_agent
        try:
            return await self._api.run_in_thread(lambda: self._api.respond(self._summary(query, agent)))
        except StorageError:  # written by a newer OneTool
            raise
        except ToolError as error:
            raise ApiError("busy", error.message) from None

    def _summary(self, query: StatisticsQuery, agent: str | None) -> ApiModel:
        app = self._api.app
        app.state.recorder.flush()  # include calls that just ended
        name = app.registry.aliases.get(query.tool, query.tool) or None
        round_trip_ms = app.settings.stats.round_trip_ms
        values = summarize(app.state.recorder.database, query.period, name, agent=agent, round_trip_ms=round_trip_ms)
        enabled = app.settings.stats.enabled
        problem = app.state.recorder.problem or ""
        return Statistics.model_validate({**values, "is_enabled": enabled, "problem": problem})

    async def spending(self, request: Request) -> Response:
        query = read_query(SpendingQuery, request)
        visible = identity.get_person(request).visible_runs
        if query.month and not MONTH.fullmatch(query.month):
            raise ApiError("invalid", f"month: {query.month!r} is not a month, such as 2027-01", {"parameter": "month"})
        rows = list[Spending]()
        for states in list_states(self._api, sees_all=visible["agent"] is None):
            rows += await read(self._api, states, history.list_spending, query.month or None, *visible.values()) or ()
        return self._api.respond(SpendingList(spending=[_build_spending(row) for row in rows]))

    async def errors(self, request: Request) -> Response:
        visible = identity.get_person(request).visible_runs
        groups = list[FailureGroup]()
        for states in list_states(self._api, sees_all=visible["agent"] is None):
            groups += await read(self._api, states, history.list_failures, *visible.values()) or ()
        found = sorted(groups, key=lambda group: -group.last)
        return self._api.respond(ErrorGroupList(errors=[_build_group(group) for group in found]))

    async def health(self, _request: Request) -> Response:
        values = await self._api.app.health()
        return self._api.respond(Health.model_validate({camel_case(name): value for name, value in values.items()}))

    async def fix(self, request: Request) -> Response:
        by = identity.get_person(request).require("admin", "making fixes")
        wanted = (await self._api.parse(request, FixRequest.parse)).fix
        findings = (await self._api.app.health())["findings"]
        if wanted not in {finding.get("fix") for finding in findings}:
            raise ApiError("not_found", "no finding offers this fix; it may have been made already")
        async with self._api.app.audit.changing("health.fix", [wanted], actor=by, transport="http"):
            try:
                done = await self._api.run_in_thread(lambda: apply_fix(wanted))
            except ToolError as error:
                raise ApiError("storage_unavailable", error.message) from None
        self._api.app.health_reports.forget()
        return self._api.respond(FixResponse(done=done))

    async def ready(self, _request: Request) -> Response:
        """Report readiness. This route is public: the reasons contain no private data."""
        app = self._api.app
        reasons = []
        if app.config_error is not None:
            reasons.append("invalid configuration (see GET /api/health)")
        if app.state.problem is not None:
            reasons.append("the database of the store does not answer")
        sandbox = (await app.cells.probe(PROBE_SECONDS))["sandbox"]
        missing = [layer for layer in FULL_SANDBOX if layer not in sandbox.split("+")]
        if sandbox in {NOT_STARTED, NOT_ANSWERING}:
            reasons.append("cannot start a cell")
        elif not is_isolated(sandbox.split("+")) and app.settings.execution.isolation == "require":
            reasons.append(f"execution.isolation is 'require', but this machine lacks {' and '.join(missing)}")
        if reasons:
            raise ApiError("busy", f"not ready: {'; '.join(reasons)}", {"reasons": reasons})
        return PlainTextResponse("ready\n")


def _build_spending(row: Spending) -> SpendingRow:
    fields: JsonObject = {name: value for name, value in row._asdict().items() if name != "last"}
    return SpendingRow(**fields, last_used=in_utc(row.last, "seconds"))


def _build_group(group: FailureGroup) -> ErrorGroup:
    return ErrorGroup(
        name=group.name,
        type=group.error_type,
        message=group.message,
        count=group.total,
        agent=group.agent,
        actor=group.actor,
        first_at=in_utc(group.first, "seconds"),
        last_at=in_utc(group.last, "seconds"),
        run_id=group.run_id,
    )
