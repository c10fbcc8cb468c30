"""`/metrics` for Prometheus, in its text format 0.0.4: what was called since the server started, and what there is now.

Counted are the events of the bus and the HTTP responses. A token's agent sees its own figures, the owner those of all.
The number of series is bounded: the first tools that are called have their own, all others are one together.
"""

from collections.abc import Iterator
from typing import Final

import anyio.to_thread
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from onetool.app import OneTool
from onetool.bus.events import CallFinished, RunFinished, RunStarted
from onetool.faces.http import callers
from onetool.version import __version__
from onetool_child.errors import TREE

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
MOST_TOOLS: Final = 200
OTHER: Final = "other"
OUTCOMES: Final = frozenset(error.type for error in TREE.values())
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REQUESTS: Final = "onetool_http_requests"


class Metrics(Collector):
    def __init__(self, app: OneTool) -> None:
        self._app = app
        self._tools: set[str] = set()
        self._begun: set[int] = set()  # runs that began before anybody counted are not counted when they end
        self._registry = registry = CollectorRegistry()
        tool_labels, by_agent = ("agent", "tool", "outcome"), ("agent",)
        self._calls = Counter("onetool_tool_calls", "Calls of tools, by how they ended", tool_labels, registry=registry)
        self._runs = Counter("onetool_runs", "Runs, by how they ended", ("agent", "outcome"), registry=registry)
        self._in_flight = Gauge("onetool_runs_in_flight", "Runs that are under way", by_agent, registry=registry)
        self._call_seconds = Histogram(
            "onetool_tool_call_seconds", "How long calls of tools took", by_agent, registry=registry, buckets=BUCKETS
        )
        self._run_seconds = Histogram(
            "onetool_run_seconds", "How long runs took", by_agent, registry=registry, buckets=BUCKETS
        )
        self._requests = Counter(REQUESTS, "Answers over HTTP", ("method", "route", "status"), registry=registry)
        registry.register(self)
        ProcessCollector(registry=registry)
        self._tool_count = 0  # when it was last asked: stored tools are counted on disk
        self.close = app.bus.events.subscribe(self._hear, CallFinished, RunStarted, RunFinished)

    async def answer(self, request: Request) -> Response:
        self._tool_count = await anyio.to_thread.run_sync(len, self._app.registry)
        return Response(self.text(callers.seen_agent(request)), media_type=MEDIA_TYPE)

    def text(self, agent: str | None = None) -> str:
        """Of one agent, or of all."""
        return generate_latest(_View(self._registry, agent)).decode()

    def count_answer(self, scope: Scope, status: int) -> None:
        """Count by the route and not by the path, of which there is no end."""
        method, route = scope["method"], getattr(scope.get("route"), "path", OTHER)
        self._requests.labels(method if method in METHODS else OTHER, route, status).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield what there is now."""
        app = self._app
        workers, servers = app.extensions.states, app.settings.servers
        up = sum(app.servers.upstream(name).state == "connected" for name in servers)
        running = sum(state == "running" for state in workers.values())
        yield GaugeMetricFamily("onetool_cells", "Processes for runs, waiting and running", app.cells.count)
        yield GaugeMetricFamily("onetool_workers", "Processes of extension packs", running)
        yield GaugeMetricFamily("onetool_servers_up", "Proxied servers that are connected", up)
        yield GaugeMetricFamily("onetool_servers", "Proxied servers that are configured", len(servers))
        yield GaugeMetricFamily("onetool_tools", "Tools that are known", self._tool_count)
        info = GaugeMetricFamily("onetool_info", "The version", labels=["version"])
        info.add_metric([__version__], 1)
        yield info

    def _hear(self, event: CallFinished | RunStarted | RunFinished) -> None:
        agent = event.context.agent_id
        outcome = "ok" if event.error is None else event.error if event.error in OUTCOMES else OTHER
        if isinstance(event, CallFinished):
            self._calls.labels(agent, self._tool(event.name), outcome).inc()
            self._call_seconds.labels(agent).observe(event.seconds)
            return
        in_flight = self._in_flight.labels(agent)
        if isinstance(event, RunStarted):
            self._begun.add(event.call_id)
            in_flight.inc()
        elif event.call_id in self._begun:
            self._begun.remove(event.call_id)
            in_flight.dec()
            self._runs.labels(agent, outcome).inc()
            self._run_seconds.labels(agent).observe(event.seconds)

    def _tool(self, name: str) -> str:
        """The tool that was meant. Names that are none are code's, and there is no end to those."""
        plain = name.partition("@")[0]
        tool = self._app.registry.peek(plain)
        real = tool.name if tool is not None else None
        if real is None or (real not in self._tools and len(self._tools) >= MOST_TOOLS):
            return OTHER
        self._tools.add(real)
        return real.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent


class _View(Collector):
    """What one agent may see. Whose requests were answered is not kept, so that only the owner is shown them."""

    def __init__(self, registry: CollectorRegistry, agent: str | None) -> None:
        self._registry, self._agent = registry, agent

    def collect(self) -> Iterator[Metric]:
        agent = self._agent
        for family in self._registry.collect():
            if agent is not None and family.name == REQUESTS:
                continue
            family.samples = [
                sample
                for sample in family.samples
                if agent in {None, sample.labels.get("agent", agent)} and not sample.name.endswith("_created")
            ]
            yield family
