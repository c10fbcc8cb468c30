"""`/metrics` for Prometheus, in its text format 0.0.4: what was called since the door is open, and what is there now.

Counted are the events of the bus and the answers of this door. A token's agent sees its own figures, the owner those of
all. The number of series is bounded: the first tools that are called have their own, all others are one together.
"""

import math
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ot.app import OneTool
from ot.bus.events import RUN, ToolEvent
from ot.faces.http import callers
from ot.version import __version__
from ot_child.errors import TREE

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
MOST_TOOLS: Final = 200
OTHER: Final = "other"
UNEXPECTED: Final = 500
OUTCOMES: Final = frozenset(error.type for error in TREE.values())
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]


@dataclass(slots=True)
class Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def samples(self, labels: Labels) -> Iterator[Sample]:
        below = 0
        for bound, count in zip((*BUCKETS, math.inf), self.counts, strict=True):
            below += count
            yield "_bucket", (*labels, ("le", _number(bound))), below
        yield "_sum", labels, self.total
        yield "_count", labels, below


@dataclass(slots=True)
class _OfAgent:
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    call_seconds: Histogram = field(default_factory=Histogram)
    run_seconds: Histogram = field(default_factory=Histogram)
    under_way: int = 0


class Metrics:
    def __init__(self, app: OneTool) -> None:
        self._app = app
        self._agents: dict[str, _OfAgent] = {}
        self._tools: set[str] = set()
        self._begun: set[int] = set()  # runs that began before anybody counted are not counted when they end
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self.close = app.bus.events.subscribe(self._hear)

    async def answer(self, request: Request) -> Response:
        return Response(self.text(callers.seen_agent(request)).encode("utf-8", "replace"), media_type=MEDIA_TYPE)

    def text(self, agent: str | None = None) -> str:
        """Of one agent, or of all."""
        chosen = {name: kept for name, kept in sorted(self._agents.items()) if agent in {None, name}}
        families = (*_of_calls(chosen), *self._of_requests(agent), *self._of_now(), *_of_process())
        return "".join(line for family in families for line in family.lines())

    def count_request(self, method: str, route: str, status: int) -> None:
        self._requests[method if method in METHODS else OTHER, route, str(status)] += 1

    # --- what is heard -------------------------------------------------------------------------------------------

    def _hear(self, event: ToolEvent) -> None:
        kept = self._agents.setdefault(event.context.agent_id, _OfAgent())
        outcome = "ok" if event.error is None else event.error if event.error in OUTCOMES else OTHER
        if event.name == RUN:
            self._count_run(kept, event, outcome)
        elif event.kind != "called":
            kept.calls[self._tool(event.name), outcome] += 1
            kept.call_seconds.add(event.seconds)

    def _count_run(self, kept: _OfAgent, event: ToolEvent, outcome: str) -> None:
        if event.kind == "called":
            self._begun.add(event.call_id)
            kept.under_way += 1
        elif event.call_id in self._begun:
            self._begun.remove(event.call_id)
            kept.under_way -= 1
            kept.runs[outcome] += 1
            kept.run_seconds.add(event.seconds)

    def _tool(self, name: str) -> str:
        """The tool that was meant. Names that are none are code's, and there is no end to those."""
        plain = name.partition("@")[0]
        registry = self._app.registry
        real = registry.holder_of(registry.aliases.get(plain, plain))
        if real is None or (real not in self._tools and len(self._tools) >= MOST_TOOLS):
            return OTHER
        self._tools.add(real)
        return real

    # --- what is told --------------------------------------------------------------------------------------------

    def _of_requests(self, agent: str | None) -> Iterator["Family"]:
        """Whose requests they were is not kept, so that only the owner is told."""
        if agent is None:
            samples = [
                ("", (("method", method), ("route", route), ("status", status)), float(count))
                for (method, route, status), count in sorted(self._requests.items())
            ]
            yield Family("onetool_http_requests_total", "counter", "Answers over HTTP", samples)

    def _of_now(self) -> Iterator["Family"]:
        app = self._app
        workers, servers = app.workers, app.settings.servers
        up = sum(app.servers.find(name).state == "connected" for name in servers)
        yield _gauge("onetool_cells", "Processes for runs, waiting and running", app.cells.count)
        running = sum(state == "running" for state in workers.values())
        yield _gauge("onetool_workers", "Processes of extension packs", running)
        yield _gauge("onetool_servers_up", "Proxied servers that are connected", up)
        yield _gauge("onetool_servers", "Proxied servers that are configured", len(servers))
        yield _gauge("onetool_tools", "Tools that are known", len(app.registry))
        yield Family("onetool_info", "gauge", "The version", [("", (("version", __version__),), 1.0)])


class Counting:
    """Around the routes: counts what they answer, by the route and not by the path, of which there is no end."""

    def __init__(self, inner: ASGIApp, metrics: Metrics) -> None:
        self._inner, self._metrics = inner, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return

        has_answered = False

        async def noting(message: Message) -> None:
            nonlocal has_answered
            if message["type"] == "http.response.start":
                has_answered = True
                self._count(scope, message["status"])
            await send(message)

        try:
            await self._inner(scope, receive, noting)
        except ClientDisconnect:
            raise
        except Exception:
            if not has_answered:
                self._count(scope, UNEXPECTED)
            raise

    def _count(self, scope: Scope, status: int) -> None:
        self._metrics.count_request(scope["method"], getattr(scope.get("route"), "path", OTHER), status)


# --- families --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: str
    help: str
    samples: Iterable[Sample]

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {_escaped(self.help)}\n# TYPE {self.name} {self.kind}\n"
        for ending, labels, value in self.samples:
            shown = ",".join(f'{name}="{_quoted(text)}"' for name, text in labels)
            yield (
                f"{self.name}{ending}{{{shown}}} {_number(value)}\n"
                if shown
                else f"{self.name}{ending} {_number(value)}\n"
            )


def _of_calls(agents: Mapping[str, _OfAgent]) -> Iterator[Family]:
    def by(name: str, **more: str) -> Labels:
        return (("agent", name), *more.items())

    yield Family(
        "onetool_tool_calls_total",
        "counter",
        "Calls of tools, by how they ended",
        [
            ("", by(name, tool=tool, outcome=outcome), float(count))
            for name, kept in agents.items()
            for (tool, outcome), count in sorted(kept.calls.items())
        ],
    )
    runs = [
        ("", by(name, outcome=outcome), float(count))
        for name, kept in agents.items()
        for outcome, count in sorted(kept.runs.items())
    ]
    yield Family("onetool_runs_total", "counter", "Runs, by how they ended", runs)
    under_way = [("", by(name), float(kept.under_way)) for name, kept in agents.items()]
    yield Family("onetool_runs_in_flight", "gauge", "Runs that are under way", under_way)
    calls = [sample for name, kept in agents.items() for sample in kept.call_seconds.samples(by(name))]
    yield Family("onetool_tool_call_seconds", "histogram", "How long calls of tools took", calls)
    whole = [sample for name, kept in agents.items() for sample in kept.run_seconds.samples(by(name))]
    yield Family("onetool_run_seconds", "histogram", "How long runs took", whole)


def _gauge(name: str, about: str, value: float) -> Family:
    return Family(name, "gauge", about, [("", (), float(value))])


def _of_process() -> Iterator[Family]:
    """By the names that every exporter uses. What a system does not tell is left out."""
    cpu = [("", (), time.process_time())]
    yield Family("process_cpu_seconds_total", "counter", "CPU time that the server has used", cpu)
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        yield _gauge("process_resident_memory_bytes", "Memory of the server", pages * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError):
        yield _gauge("process_open_fds", "Open files of the server", len(list(Path("/proc/self/fd").iterdir())))
    with suppress(OSError, ValueError, IndexError):
        yield _gauge("process_start_time_seconds", "When the server was started", _start_time())


def _start_time() -> float:
    ticks = int(Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19])
    lines = Path("/proc/stat").read_text(encoding="ascii", errors="replace").splitlines()
    booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted + ticks / os.sysconf("SC_CLK_TCK")


def _number(value: Any) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
