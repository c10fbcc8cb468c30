"""The table of `/api`, of `/readyz` and of `/metrics`: every route, what does it, and what the document says of it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from fastapi import FastAPI
from fastapi.routing import APIRoute

from ot.activity import Activity
from ot.app import OneTool
from ot.faces.http import document as doc
from ot.faces.http.answers import MEDIA_TYPE as IN_JSON
from ot.faces.http.api import events, shapes
from ot.faces.http.api.calls import Calls
from ot.faces.http.api.catalogue import Catalogue
from ot.faces.http.api.common import Api
from ot.faces.http.api.figures import ALL_TIME, Figures
from ot.faces.http.api.imports import ZIP, Imports
from ot.faces.http.api.packs import Packs
from ot.faces.http.api.results import DEFAULT_LINES, Results
from ot.faces.http.api.runs import Runs
from ot.faces.http.api.shapes import BYTES, TEXT, YES_OR_NO
from ot.faces.http.api.tools import Tools
from ot.faces.http.metrics import Counting, Metrics
from ot.faces.http.ready import Readiness
from ot.faces.http.routing import Operation, add
from ot.schema import JSON
from ot.stats.summary import PERIODS

ROOT: Final = "/api"
IN_A_PATH: Final[JSON] = {**TEXT, "minLength": 1, "pattern": r"^[^\u0000-\u001f/]+$"}
NAME: Final = doc.in_path("name", {**IN_A_PATH, "description": "A name, as it is or as code writes it"})
HANDLE: Final = doc.in_path("handle", {**TEXT, "pattern": "^[0-9a-f]{32}$"})
RUN_ID: Final = doc.in_path("runID", IN_A_PATH)
CHANGE: Final = ("not_found", "permission_denied", "bundle_disabled")
CALL: Final = ("not_found", "permission_denied", "bundle_disabled", "tool_disabled", "audit_unavailable")
FROM_ONE: Final[JSON] = {"type": "integer", "minimum": 1}
DOCUMENT: Final[JSON] = {
    "required": True,
    "description": "An OpenAPI document of version 2 or 3, or the ZIP archive that an export gives",
    "content": {
        IN_JSON: {"schema": {"type": "object"}},
        "application/yaml": {"schema": TEXT},
        ZIP: {"schema": BYTES},
    },
}


def add_routes(web: FastAPI, app: OneTool) -> None:
    api = Api(app, Activity(app.bus))
    catalogue, metrics = Catalogue(app), Metrics(app)
    tools, packs, runs = Tools(api, catalogue), Packs(api, catalogue), Runs(api)
    table = (*_of_tools(tools, packs), *_of_runs(runs, Calls(api, catalogue)), *_of_results(Results(api)))
    for operation in (*table, *_of_figures(Figures(api)), *_of_the_server(Readiness(app), metrics)):
        add(web, operation)
    _add_imports(web, Imports(api))
    web.add_middleware(Counting, metrics=metrics)


def _of_tools(tools: Tools, packs: Packs) -> Iterator[Operation]:
    page = {200: doc.given("AnyTools", "Some tools; with q the best hits first")}
    line, pack = {200: doc.given("AnyTool", "The tool")}, {200: doc.given("Pack", "The pack")}
    filters = (
        doc.in_query("q", TEXT, "What to look for, in any words"),
        doc.in_query("pack", TEXT, "Only tools of this pack"),
        doc.in_query("kind", shapes.KIND, "Only tools of this kind"),
        doc.in_query("isEnabled", YES_OR_NO, "Only tools that are switched on, or only those that are not"),
        doc.in_query("pageSize", doc.SIZE, doc.SIZE_WORDS),
        next(parameter for parameter in doc.PAGING if parameter["name"] == "pageToken"),
    )
    whole = {200: doc.given("AnyToolWhole", "All about the tool")}
    there, gone = (NAME,), ("not_found", "permission_denied")
    listed = "List or search all tools, of every kind"
    yield Operation("GET", f"{ROOT}/tools", tools.listed, listed, page, filters, refusals=gone[1:])
    one = f"{ROOT}/tools/{{name}}"
    yield Operation("GET", one, tools.shown, "Get all about a tool", whole, there, refusals=gone)
    words = "Switch a tool of any kind on or off"
    yield Operation("PATCH", one, tools.switched, words, line, there, body="Switch", refusals=CHANGE)
    packs_given = {200: doc.given("Packs", "All packs")}
    yield Operation("GET", f"{ROOT}/packs", packs.listed, "List all packs", packs_given, refusals=gone[1:])
    path, words = f"{ROOT}/packs/{{name}}", "Switch a pack of any kind on or off"
    yield Operation("PATCH", path, packs.switched, words, pack, there, body="Switch", refusals=CHANGE)


def _of_runs(runs: Runs, calls: Calls) -> Iterator[Operation]:
    outcome = {200: _or_events(doc.given("Outcome", "The tool ran"), "progress, then result with the outcome")}
    answered = {200: _or_events(doc.given("RunAnswer", "It ran"), "start, output, call, progress, then result")}
    refused = ("permission_denied",)
    path = f"{ROOT}/tools/{{name}}/call"
    yield Operation("POST", path, calls.call, "Call a tool of any kind", outcome, (NAME,), body="Call", refusals=CALL)
    yield Operation("POST", f"{ROOT}/run", runs.run, "Run code", answered, body="RunDraft", refusals=refused)
    listed, timeline = {200: doc.given("Runs", "The last runs")}, {200: doc.given("Timeline", "The run, call by call")}
    yield Operation("GET", f"{ROOT}/runs", runs.listed, "List the last runs", listed)
    path, gone = f"{ROOT}/runs/{{runID}}", ("not_found",)
    yield Operation("GET", path, runs.timeline, "Get a run", timeline, (RUN_ID,), refusals=gone)
    words = "start with the last runs, then called, completed and failed of runs and calls; without an end"
    stream = {200: {"description": words, "content": {events.MEDIA_TYPE: {"schema": TEXT}}}}
    yield Operation("GET", f"{ROOT}/activity", runs.activity, "Watch what happens", stream)


def _of_results(results: Results) -> Iterator[Operation]:
    window = {200: doc.given("ResultWindow", "A part of the result")}
    query = (
        doc.in_query("offset", FROM_ONE, "From which line, character or hit on"),
        doc.in_query("limit", {**FROM_ONE, "default": DEFAULT_LINES}, "How many at most"),
        doc.in_query("search", TEXT, "A regular expression, or with fuzzy some words"),
        doc.in_query("fuzzy", YES_OR_NO, "Rank lines by how near they come"),
        doc.in_query("ignoreCase", YES_OR_NO, "Upper and lower case are the same"),
        doc.in_query("unit", {"type": "string", "enum": ["auto", "lines", "chars"]}, "What is counted"),
    )
    path, gone = f"{ROOT}/results/{{handle}}", ("not_found",)
    yield Operation(
        "GET", path, results.window, "Get a part of a large result", window, (HANDLE, *query), refusals=gone
    )
    content = {kind: {"schema": BYTES} for kind in ("image/*", "audio/*", "application/octet-stream")}
    raw = {200: {"description": "The bytes", "content": content}}
    yield Operation("GET", f"{ROOT}/media/{{handle}}", results.media, "Get a picture", raw, (HANDLE,), refusals=gone)


def _of_figures(figures: Figures) -> Iterator[Operation]:
    period = {"type": "string", "enum": [*PERIODS, ALL_TIME], "default": ALL_TIME}
    query = (doc.in_query("period", period, "How far back"), doc.in_query("tool", TEXT, "Only this tool"))
    stats = {200: doc.given("Statistics", "Figures, all by the same filters")}
    health = {200: doc.given("Health", "How everything is at this moment")}
    yield Operation("GET", f"{ROOT}/stats", figures.stats, "Get the statistics", stats, query)
    yield Operation("GET", f"{ROOT}/health", figures.health, "Get the state of all parts", health)


def _of_the_server(readiness: Readiness, metrics: Metrics) -> Iterator[Operation]:
    plain = {"content": {"text/plain": {"schema": TEXT}}}
    ready = {200: {"description": "A run would work", **plain}}
    yield Operation("GET", "/readyz", readiness.answer, "Whether a run would work now", ready)
    yield Operation(
        "GET", "/metrics", metrics.answer, "Figures for Prometheus", {200: {"description": "They", **plain}}
    )


def _add_imports(web: FastAPI, imports: Imports) -> None:
    """What comes in is no JSON of ours: its kinds are told in the document beside the operation."""
    query = (
        doc.in_query("name", TEXT, "The slug that the bundle is to have"),
        doc.in_query("server", TEXT, "The base URL of the API, instead of that in the document"),
        doc.in_query("update", YES_OR_NO, "Add new versions to the bundle of this slug, if there is one"),
    )
    taken = {
        200: doc.given("ImportedBundle", "The bundle that was updated, and what is left to do"),
        201: doc.given("ImportedBundle", "The new bundle, and what is left to do"),
    }
    refused = ("permission_denied", "slug_taken")
    add(web, Operation("POST", f"{ROOT}/import", imports.take, "Import a bundle", taken, query, refusals=refused))
    route = web.routes[-1]
    assert isinstance(route, APIRoute)
    route.openapi_extra = {**(route.openapi_extra or {}), "requestBody": DOCUMENT}
    packed = {200: {"description": "The archive", "content": {ZIP: {"schema": BYTES}}}}
    given = Operation("GET", f"{ROOT}/bundles/{{bundleID}}/export", imports.give, "Export a bundle", packed)
    add(web, replace(given, parameters=(doc.BUNDLE_ID,), refusals=("not_found",)))


def _or_events(given: JSON, words: str) -> JSON:
    """The same, or bit by bit for who accepts events."""
    content = {**given["content"], events.MEDIA_TYPE: {"schema": {**TEXT, "description": f"Events: {words}"}}}
    return {**given, "content": content}
