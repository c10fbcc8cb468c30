"""`/api/stats` and `/api/health`: what was called and how it went, and how the parts are doing now."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ot.errors import ToolError
from ot.faces.http import callers, paging
from ot.faces.http.answers import answer
from ot.faces.http.api import common
from ot.faces.http.api.common import Api
from ot.faces.http.refusals import Refusal
from ot.schema import JSON
from ot.stats.summary import PERIODS, Summary, summarise

ALL_TIME = "all"


class Figures:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def stats(self, request: Request) -> Response:
        query = request.query_params
        period = common.choice(query, "period", (*PERIODS, ALL_TIME)) or ALL_TIME
        tool, agent = paging.single(query, "tool") or None, callers.seen_agent(request)
        try:
            return await self._api.in_thread(lambda: answer(self._summary(period, tool, agent)))
        except ToolError as error:
            raise Refusal("busy", error.message) from None

    def _summary(self, period: str, tool: str | None, agent: str | None) -> JSON:
        app = self._api.app
        app.stores.recorder.flush()  # the calls of this very moment count too
        name = app.registry.aliases.get(tool, tool) if tool else None
        round_trip_ms = app.settings.stats.round_trip_ms
        found = summarise(app.stores.stats_file, period, name, agent=agent, round_trip_ms=round_trip_ms)
        problem = app.stores.recorder.problem
        shown: JSON = self._api.app.redact.in_data(_in_camel_case(found))
        return {**shown, "isEnabled": app.settings.stats.enabled, **({"problem": problem} if problem else {})}

    async def health(self, _request: Request) -> Response:
        told = await self._api.app.health()
        return answer(self._api.app.redact.in_data(_health(told)))


def _in_camel_case(found: Summary) -> JSON:
    """Only the names that are ours: those of tools and of errors stay as they are."""
    parts = {"runs": _camel(found["runs"]), "savings": _camel(found["savings"]), "series": _camel(found["series"])}
    return {**_camel(found), **parts, "tools": [_camel(tool) for tool in found["tools"]]}


def _health(told: Mapping[str, Any]) -> JSON:
    shown = _camel(told)
    return {**shown, "registry": _camel(told["registry"]), "proxy": _camel(told["proxy"])}


def _camel(names: Mapping[str, Any]) -> JSON:
    return {_one_word(name): value for name, value in names.items()}


def _one_word(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in others)
