"""The table of all operations of REST, and what may stand in their paths."""

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ot.app import OneTool
from ot.bundles.model import Id, Slug, Version
from ot.faces.activity import Activity
from ot.faces.http.api.bundles import Bundles
from ot.faces.http.api.catalogue import Catalogue
from ot.faces.http.api.common import Api
from ot.faces.http.api.figures import Figures
from ot.faces.http.api.imports import Imports
from ot.faces.http.api.packs import PackHandlers
from ot.faces.http.api.results import Results
from ot.faces.http.api.runs import RunHandlers
from ot.faces.http.api.tools import Tools
from ot.faces.http.metrics import Metrics
from ot.faces.http.routing import TEXT, Answer, Operation
from ot.schema import JSON

SEGMENT: Final[JSON] = {**TEXT, "minLength": 1, "pattern": r"^[^\u0000-\u001f/]+$"}
PLAIN: Final = {"text/plain": TEXT}


def path_schemas() -> Mapping[str, JSON]:
    """Return the schemas of the parameters in paths."""
    return {
        "bundleID": TypeAdapter(Id).json_schema(),
        "toolSlug": TypeAdapter(Slug).json_schema(),
        "version": TypeAdapter(Version).json_schema(),
        "name": {**SEGMENT, "description": "A name, as it is or as code writes it"},
        "handle": {**TEXT, "pattern": "^[0-9a-f]{32}$"},
        "runID": SEGMENT,
    }


def operations(app: OneTool, metrics: Metrics) -> Iterator[Operation]:
    api, catalogue = Api(app, Activity(app.bus.events)), Catalogue(app)
    yield from Bundles(api).operations()
    yield from Tools(api, catalogue).operations()
    yield from PackHandlers(api, catalogue).operations()
    yield from RunHandlers(api).operations()
    yield from Results(api).operations()
    yield from Figures(api).operations()
    yield from Imports(api).operations()
    yield Operation("GET", "/metrics", metrics.answer, "Figures for Prometheus", {200: Answer("They", media=PLAIN)})
    words, healthy = "Whether the server answers at all", {200: Answer("It does", media=PLAIN)}

    async def answer(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    yield Operation("GET", "/healthz", answer, words, healthy)
