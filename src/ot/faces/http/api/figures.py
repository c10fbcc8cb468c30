"""`/api/stats` and `/api/health`: what was called and how it went, and how the parts are doing now."""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from ot.errors import ToolError
from ot.faces.http import callers
from ot.faces.http.api.common import Api
from ot.faces.http.errors import ApiError, camel_case
from ot.faces.http.models import Health, Statistics, StatisticsQuery
from ot.faces.http.routing import Answer, Operation
from ot.stats.summary import summarise


class Figures:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        stats = {200: Answer("Figures, all by the same filters", Statistics)}
        yield Operation("GET", "/api/stats", self.stats, "Get the statistics", stats, StatisticsQuery)
        health = {200: Answer("How everything is at this moment", Health)}
        yield Operation("GET", "/api/health", self.health, "Get the state of all parts", health)

    async def stats(self, request: Request) -> Response:
        query, agent = StatisticsQuery.of(request), callers.seen_agent(request)
        try:
            return await self._api.in_thread(lambda: self._api.answer(self._summary(query, agent)))
        except ToolError as error:
            raise ApiError("busy", error.message) from None

    def _summary(self, query: StatisticsQuery, agent: str | None) -> Statistics:
        app = self._api.app
        app.stores.recorder.flush()  # the calls of this very moment count too
        name = app.registry.aliases.get(query.tool, query.tool) or None
        round_trip_ms = app.settings.stats.round_trip_ms
        found = summarise(app.stores.stats_file, query.period, name, agent=agent, round_trip_ms=round_trip_ms)
        enabled, problem = app.settings.stats.enabled, app.stores.recorder.problem or ""
        return Statistics.model_validate({**found, "is_enabled": enabled, "problem": problem})

    async def health(self, _request: Request) -> Response:
        found = await self._api.app.health()
        return self._api.answer(Health.model_validate({camel_case(name): value for name, value in found.items()}))
