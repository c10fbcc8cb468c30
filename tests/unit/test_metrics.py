"""`/metrics`: counts, the Prometheus format and the limit of series."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support import App, give, open_app

from onetool import tool
from onetool.core.bus.events import CallFinished, RunFinished
from onetool.server.http.metrics import BUCKETS, MAX_TOOLS, OTHER, Metrics

SAMPLE = re.compile(
    r'(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\})?'
    r" (?P<value>\S+)"
)
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\[\\"n])*)"')


def parse_samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the samples of the text. Raise if the text does not follow the format."""
    assert text.endswith("\n")
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == family
            assert line.split(" ")[3] in {"counter", "gauge", "histogram"}
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert (
                match["name"].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
                == family
            )
            key = match["name"], frozenset(LABEL.findall(match["labels"] or ""))
            assert key not in found
            found[key] = float(match["value"])
    return found


@pytest.fixture
def app() -> Iterator[App]:
    agents: dict[str, Any] = {"default": {}, 'odd"\\\n': {}}
    with open_app({"agents": agents}, [give]) as app:
        yield app


def get_value(metrics: Metrics, name: str, **labels: str) -> float:
    return parse_samples(metrics.text())[name, frozenset(labels.items())]


def test_calls_and_runs_are_counted_by_outcome(app: App) -> None:
    app.call("sample.give")
    metrics = Metrics(app.onetool)
    app.call("sample.give")
    app.call("sample.give", {"wrong": 1})
    app.call("sample.none")
    app.run("sample.give()")
    app.run("1/0")
    calls, by = "onetool_tool_calls_total", {"agent": "default"}
    assert get_value(metrics, calls, tool="sample.give", outcome="ok", **by) == 2
    assert get_value(metrics, calls, tool="sample.give", outcome="validation_error", **by) == 1
    assert get_value(metrics, calls, tool=OTHER, outcome="not_found", **by) == 1
    assert get_value(metrics, "onetool_runs_total", outcome="ok", **by) == 1
    assert get_value(metrics, "onetool_runs_total", outcome="execution_error", **by) == 1
    assert get_value(metrics, "onetool_runs_in_flight", **by) == 0
    assert get_value(metrics, "onetool_run_seconds_count", **by) == 2
    assert get_value(metrics, "onetool_tool_call_seconds_bucket", le="+Inf", **by) == 4
    assert get_value(metrics, "onetool_cells") >= 1
    assert get_value(metrics, "process_resident_memory_bytes") > 1 << 20
    metrics.close()
    app.call("sample.give")
    assert get_value(metrics, calls, tool="sample.give", outcome="ok", **by) == 2


def test_histogram_buckets_are_cumulative(app: App) -> None:
    metrics = Metrics(app.onetool)
    context = app.onetool.context()
    for seconds in (0.0, 0.005, 0.0051, 3, 1e9):
        app.onetool.bus.events.emit(CallFinished(1, "sample.give", context, seconds, None))
    bounds = [*map(str, BUCKETS), "+Inf"]
    counts = [
        get_value(metrics, "onetool_tool_call_seconds_bucket", agent="default", le=bound)
        for bound in bounds
    ]
    assert counts == sorted(counts)
    assert (counts[0], counts[1], counts[-1]) == (2, 3, 5)


def test_labels_are_escaped_and_agents_are_separate(app: App) -> None:
    metrics = Metrics(app.onetool)
    app.call("sample.give", agent='odd"\\\n')
    app.call("sample.give")
    assert (
        get_value(
            metrics,
            "onetool_tool_calls_total",
            agent=r"odd\"\\\n",
            tool="sample.give",
            outcome="ok",
        )
        == 1
    )
    assert 'agent="default"' not in metrics.text('odd"\\\n')
    assert "onetool_http_requests_total" not in metrics.text("default")


@pytest.mark.slow
def test_the_number_of_series_is_bounded(app: App) -> None:
    metrics = Metrics(app.onetool)
    for number in range(MAX_TOOLS + 50):
        app.onetool.bus.register_tool(tool(f"many.tool{number}")(lambda: None))
        app.call(f"many.tool{number}")
        app.call(f"none.tool{number}")
    context = app.onetool.context()
    app.onetool.bus.events.emit(
        CallFinished(1, "sample.give", context, 0.1, "an error of somebody's own")
    )
    names = {
        dict(labels)["tool"]
        for name, labels in parse_samples(metrics.text())
        if name == "onetool_tool_calls_total"
    }
    assert len(names) == MAX_TOOLS + 1
    outcomes = {dict(labels).get("outcome") for _, labels in parse_samples(metrics.text())}
    assert outcomes <= {None, "ok", "not_found", OTHER}


def test_aliases_and_python_names_count_for_the_tool() -> None:
    with open_app({"aliases": {"g": "sample.give"}}, [give]) as app:
        metrics = Metrics(app.onetool)
        app.call("g")
        assert (
            get_value(
                metrics,
                "onetool_tool_calls_total",
                agent="default",
                tool="sample.give",
                outcome="ok",
            )
            == 1
        )


def test_runs_that_started_earlier_are_not_counted(app: App) -> None:
    metrics = Metrics(app.onetool)
    app.onetool.bus.events.emit(RunFinished(77, app.onetool.context(), 1.0, None))
    assert get_value(metrics, "onetool_runs_in_flight", agent="default") == 0
    assert (
        "onetool_runs_total",
        frozenset({("agent", "default"), ("outcome", "ok")}),
    ) not in parse_samples(metrics.text())
