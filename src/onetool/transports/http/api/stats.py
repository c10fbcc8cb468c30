"""`/api/stats`, `/api/health` and `/readyz`: statistics, health and readiness."""

from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from onetool.errors import ToolError
from onetool.runner.cells import FULL_SANDBOX, NOT_ANSWERING, NOT_STARTED
from onetool.stats.summary import summarize
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.errors import ApiError, camel_case
from onetool.transports.http.models import ApiModel, Health, Statistics, StatisticsQuery
from onetool.transports.http.routing import TEXT, Operation, ResponseSpec

PROBE_SECONDS: Final = 5.0


class StatsHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        stats = {200: ResponseSpec("Statistics", Statistics)}
        yield Operation("GET", "/api/stats", self.stats, "Get statistics", stats, StatisticsQuery)
        health = {200: ResponseSpec("Current health", Health)}
        yield Operation("GET", "/api/health", self.health, "Get the health of all components", health)
        ready = {200: ResponseSpec("The server can run code", media={"text/plain": TEXT})}
        yield Operation("GET", "/readyz", self.ready, "Check that the server can run code", ready)

    async def stats(self, request: Request) -> Response:
        query, agent = StatisticsQuery.of(request), identity.visible_agent(request)
        try:
            return await self._api.run_in_thread(lambda: self._api.respond(self._summary(query, agent)))
        except ToolError as error:
            raise ApiError("busy", error.message) from None

    def _summary(self, query: StatisticsQuery, agent: str | None) -> ApiModel:
        app = self._api.app
        app.stores.recorder.flush()  # include calls that just ended
        name = app.registry.aliases.get(query.tool, query.tool) or None
        round_trip_ms = app.settings.stats.round_trip_ms
        values = summarize(app.stores.statistics, query.period, name, agent=agent, round_trip_ms=round_trip_ms)
        enabled, problem = app.settings.stats.enabled, app.stores.recorder.problem or ""
        return Statistics.model_validate({**values, "is_enabled": enabled, "problem": problem})

    async def health(self, _request: Request) -> Response:
        values = await self._api.app.health()
        return self._api.respond(Health.model_validate({camel_case(name): value for name, value in values.items()}))

    async def ready(self, _request: Request) -> Response:
        """Report readiness. This route is public: the reasons contain no private data."""
        app, reasons = self._api.app, []
        if app.config_error is not None:
            reasons.append("invalid configuration (see GET /api/health)")
        if (remote := app.stores.remote) is not None and remote.problem is not None:
            reasons.append("the database of the store does not answer")
        sandbox = (await app.cells.probe(PROBE_SECONDS))["sandbox"]
        missing = [layer for layer in FULL_SANDBOX if layer not in sandbox.split("+")]
        if sandbox in {NOT_STARTED, NOT_ANSWERING}:
            reasons.append("cannot start a cell")
        elif missing and app.settings.execution.isolation == "require":
            reasons.append(f"execution.isolation is 'require', but this machine lacks {' and '.join(missing)}")
        if reasons:
            raise ApiError("busy", f"not ready: {'; '.join(reasons)}", {"reasons": reasons})
        return PlainTextResponse("ready\n")
