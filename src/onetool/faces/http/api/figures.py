"""`/api/stats`, `/api/health`, `/readyz`: what was called, how all parts are doing, whether a run would work now."""

from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from onetool.errors import ToolError
from onetool.faces.http import callers
from onetool.faces.http.api.common import Api
from onetool.faces.http.errors import ApiError, camel_case
from onetool.faces.http.models import ApiModel, Health, Statistics, StatisticsQuery
from onetool.faces.http.routing import TEXT, Answer, Operation
from onetool.runner.cells import FULL_SANDBOX, NOT_ANSWERING, NOT_STARTED
from onetool.stats.summary import summarise

PROBE_SECONDS: Final = 5.0


class Figures:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        stats = {200: Answer("Figures, all by the same filters", Statistics)}
        yield Operation("GET", "/api/stats", self.stats, "Get the statistics", stats, StatisticsQuery)
        health = {200: Answer("How everything is at this moment", Health)}
        yield Operation("GET", "/api/health", self.health, "Get the state of all parts", health)
        ready = {200: Answer("A run would work", media={"text/plain": TEXT})}
        yield Operation("GET", "/readyz", self.ready, "Whether a run would work now", ready)

    async def stats(self, request: Request) -> Response:
        query, agent = StatisticsQuery.of(request), callers.seen_agent(request)
        try:
            return await self._api.in_thread(lambda: self._api.answer(self._summary(query, agent)))
        except ToolError as error:
            raise ApiError("busy", error.message) from None

    def _summary(self, query: StatisticsQuery, agent: str | None) -> ApiModel:
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

    async def ready(self, _request: Request) -> Response:
        """Strangers may ask: reasons are told without anything that is somebody's."""
        app, reasons = self._api.app, []
        if app.config_error is not None:
            reasons.append("the configuration is wrong; GET /api/health tells what is")
        sandbox = (await app.cells.probe(PROBE_SECONDS))["sandbox"]
        missing = [layer for layer in FULL_SANDBOX if layer not in sandbox.split("+")]
        if sandbox in {NOT_STARTED, NOT_ANSWERING}:
            reasons.append("no process for a run could be started")
        elif missing and app.settings.execution.isolation == "require":
            reasons.append(f"execution.isolation is 'require', and this machine has no {' and '.join(missing)}")
        if reasons:
            raise ApiError("busy", f"not ready: {'; '.join(reasons)}", {"reasons": reasons})
        return PlainTextResponse("ready\n")
