"""`/metrics` in the Prometheus text format 0.0.4, and the readiness of the server.

The counters since the server started come from the events of the bus and the HTTP responses. An
agent sees its own values, the owner sees all. The number of series is limited: tools beyond
MAX_TOOLS share the series `other`.
"""

from collections.abc import Iterator

from anyio.to_thread import run_sync as run_in_thread
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from onetool.app import OneTool
from onetool.core.bus.events import CallFinished, RunFinished, RunStarted
from onetool.runs.cells import FULL_SANDBOX, NOT_ANSWERING, NOT_STARTED, is_isolated
from onetool.server.http.api.common import get_person
from onetool.server.http.errors import ApiError
from onetool.server.http.routing import TEXT, Operation, ResponseSpec
from onetool.util.version import __version__
from onetool_child.errors import TREE

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
MAX_TOOLS = 200
OTHER = "other"
OUTCOMES = frozenset(error.type for error in TREE.values())
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REQUESTS = "onetool_http_requests"
PROBE_SECONDS = 5.0


class Metrics(Collector):
    def __init__(self, app: OneTool) -> None:
        self._app = app
        self._tools: set[str] = set()
        # Runs that started before this object existed are not counted.
        self._counted: set[int] = set()
        self._registry = registry = CollectorRegistry()
        tool_labels = ("agent", "tool", "outcome")
        by_agent = ("agent",)
        self._calls = Counter(
            "onetool_tool_calls", "Tool calls by outcome", tool_labels, registry=registry
        )
        self._runs = Counter(
            "onetool_runs", "Runs by outcome", ("agent", "outcome"), registry=registry
        )
        self._in_flight = Gauge(
            "onetool_runs_in_flight", "Active runs", by_agent, registry=registry
        )
        self._call_seconds = Histogram(
            "onetool_tool_call_seconds",
            "Duration of tool calls",
            by_agent,
            registry=registry,
            buckets=BUCKETS,
        )
        self._run_seconds = Histogram(
            "onetool_run_seconds", "Duration of runs", by_agent, registry=registry, buckets=BUCKETS
        )
        self._requests = Counter(
            REQUESTS, "HTTP responses", ("method", "route", "status"), registry=registry
        )
        registry.register(self)
        ProcessCollector(registry=registry)
        self._tool_count = 0  # updated on each request: stored tools are counted on disk
        self.close = app.bus.events.subscribe(self._on_event, CallFinished, RunStarted, RunFinished)

    async def respond(self, request: Request) -> Response:
        self._tool_count = await run_in_thread(len, self._app.registry)
        return Response(self.text(get_person(request).visible_agent), media_type=MEDIA_TYPE)

    def text(self, agent: str | None = None) -> str:
        """Return the metrics of one agent or of all."""
        return generate_latest(_AgentView(self._registry, agent)).decode()

    def count_response(self, scope: Scope, status: int) -> None:
        """Count a response by route. Paths would make an unlimited number of series."""
        method = scope["method"]
        route = getattr(scope.get("route"), "path", OTHER)
        self._requests.labels(method if method in METHODS else OTHER, route, status).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield the current gauges."""
        app = self._app
        workers = app.extensions.states
        servers = app.settings.servers
        up = sum(app.servers.upstream(name).main.state == "connected" for name in servers)
        running = sum(state == "running" for state in workers.values())
        yield GaugeMetricFamily("onetool_cells", "Cells, idle and running", app.cells.count)
        yield GaugeMetricFamily("onetool_workers", "Running workers of extensions", running)
        yield GaugeMetricFamily("onetool_servers_up", "Connected upstream servers", up)
        yield GaugeMetricFamily("onetool_servers", "Configured upstream servers", len(servers))
        yield GaugeMetricFamily("onetool_tools", "Registered tools", self._tool_count)
        info = GaugeMetricFamily("onetool_info", "OneTool version", labels=["version"])
        info.add_metric([__version__], 1)
        yield info

    def _on_event(self, event: CallFinished | RunStarted | RunFinished) -> None:
        agent = event.context.agent_id
        outcome = "ok" if event.error is None else event.error if event.error in OUTCOMES else OTHER
        if isinstance(event, CallFinished):
            self._calls.labels(agent, self._get_tool_label(event.name), outcome).inc()
            self._call_seconds.labels(agent).observe(event.seconds)
            return
        in_flight = self._in_flight.labels(agent)
        if isinstance(event, RunStarted):
            self._counted.add(event.call_id)
            in_flight.inc()
        elif event.call_id in self._counted:
            self._counted.remove(event.call_id)
            in_flight.dec()
            self._runs.labels(agent, outcome).inc()
            self._run_seconds.labels(agent).observe(event.seconds)

    def _get_tool_label(self, name: str) -> str:
        """Return the label for a tool. Unknown names come from code and share one label."""
        plain = name.partition("@")[0]
        tool = self._app.registry.peek(plain)
        registered_name = tool.name if tool is not None else None
        if registered_name is None or (
            registered_name not in self._tools and len(self._tools) >= MAX_TOOLS
        ):
            return OTHER
        self._tools.add(registered_name)
        return registered_name.encode(
            "utf-8", "replace"
        ).decode()  # a lone surrogate cannot be sent


class _AgentView(Collector):
    """The metrics that one agent may see.

    HTTP responses are not counted per agent, so only the owner sees them.
    """

    def __init__(self, registry: CollectorRegistry, agent: str | None) -> None:
        self._registry = registry
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        agent = self._agent
        for family in self._registry.collect():
            if agent is not None and family.name == REQUESTS:
                continue
            family.samples = [
                sample
                for sample in family.samples
                if agent in {None, sample.labels.get("agent", agent)}
                and not sample.name.endswith("_created")
            ]
            yield family


# --- readiness ------------------------------------------------------------------------------------


def make_readiness_operation(app: OneTool) -> Operation:
    async def check(_request: Request) -> Response:
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
            reasons.append(
                f"execution.isolation is 'require', but this machine lacks {' and '.join(missing)}"
            )
        if reasons:
            raise ApiError("busy", f"not ready: {'; '.join(reasons)}", {"reasons": reasons})
        return PlainTextResponse("ready\n")

    ready = {200: ResponseSpec("The server can run code", media={"text/plain": TEXT})}
    return Operation("GET", "/readyz", check, "Check that the server can run code", ready)
