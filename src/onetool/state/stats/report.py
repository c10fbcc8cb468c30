"""The statistics as a self-contained HTML page without scripts, light and dark, for screen and
print.

The template `report.html.j2` escapes all values; this module formats numbers and computes
positions. The page has a content security policy that allows only its own style.
"""

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from onetool.state.stats.rollup import DAY, HOUR
from onetool.state.stats.summary import Series, StatsSummary
from onetool.util.text import pluralize
from onetool.util.version import __version__
from onetool_child.json_types import JsonObject

PERIODS = {
    "day": "Last 24 hours",
    "week": "Last 7 days",
    "month": "Last 30 days",
    "all": "All time",
}
NOTHING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
UNITS = ((DAY, "d", HOUR, "h"), (HOUR, "h", 60, "min"), (60, "min", 1, "s"))
ROUND = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 30, 40, 50, 60, 80, 100)
INTERVALS = (HOUR, 3 * HOUR, 6 * HOUR)
MAX_LABELS = 9
LAST_LABEL = 0.96  # a label further right would be cut off
MIN_BAR_PERCENT = 1.5  # percent of the chart's height
WHOLE_MS = 100  # above this, fractions are noise
SPARKLINE_HEIGHT = 24
ROUNDS_UP = 0.9995  # above this, three digits round up to the next unit


def render_html(summary: StatsSummary) -> str:
    """Return the HTML page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    page = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_replace_invisible,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    page.filters |= {
        "number": "{:,}".format,
        "plain": _format_decimal,
        "pluralize": pluralize,
        "compact": _format_compact,
        "signed": lambda count: f"{MINUS if count < 0 else '+'} {abs(count):,}" if count else "0",
        "percent": lambda rate: NOTHING if rate is None else f"{_format_decimal(rate)}%",
        "duration": _format_duration,
        "width": _format_unit,
        "date": _format_date,
        "spark": _make_sparkline,
    }
    directory = Path(__file__).parent
    series = summary["series"]
    highest = max(series["calls"])
    size = int("1" + "0" * (len(str(highest)) - 2))
    top = next(
        step * size for step in ROUND if step * size >= highest
    )  # its half is an integer too
    return page.from_string((directory / "report.html.j2").read_text(encoding="utf-8")).render(
        summary=summary,
        style=Markup((directory / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - it is ours
        periods=PERIODS,
        moment=datetime.fromisoformat(summary["generated_at"]),
        bars=_make_bars(series, top),
        ticks=(top, top // 2, 0) if top > 1 else (top, 0),
        labels=_make_labels(series),
        errors=sorted(summary["errors"].items(), key=lambda error: -error[1]),
        version=__version__,
    )


def write(path: Path, summary: StatsSummary) -> None:
    """Replace the file with the page.

    Links are not followed, and a pipe does not block. Raises OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags | getattr(os, "O_BINARY", 0), 0o644), "wb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a regular file")
        file.truncate()
        file.write(render_html(summary).encode("utf-8", "backslashreplace"))


def _replace_invisible(value: object) -> object:
    """Replace characters that are invisible or change the writing direction."""
    if type(value) is str and not value.isprintable():
        return "".join(char if char.isprintable() else "\ufffd" for char in value)
    return value


# --- charts ---------------------------------------------------------------------------------------


def _bar_times(series: Series) -> list[datetime]:
    start = datetime.fromisoformat(series["start"])
    width = timedelta(seconds=series["width_seconds"])
    return [start + place * width for place in range(len(series["calls"]))]


def _make_bars(series: Series, top: int) -> list[JsonObject]:
    """Return the bars with their heights in percent of the chart; none if there are no calls."""
    bars = []
    for moment, calls, errors in zip(
        _bar_times(series), series["calls"], series["errors"], strict=True
    ):
        whole = 100 * calls / top
        failed = min(whole, max(MIN_BAR_PERCENT, 100 * errors / top)) if errors else 0.0
        bars.append(
            {"moment": moment, "calls": calls, "errors": errors, "whole": whole, "failed": failed}
        )
    return bars if any(series["calls"]) else []


def _make_labels(series: Series) -> list[tuple[str, str]]:
    moments = _bar_times(series)
    width = series["width_seconds"]
    if width <= HOUR:
        label: Callable[[datetime], str] = "{:%H:%M}".format
    else:
        label = "{:%b %Y}".format if width >= 28 * DAY else _format_date
    places = (
        place for place in _choose_labels(moments, width) if place < LAST_LABEL * len(moments)
    )
    return [(f"{100 * place / len(moments):.2f}", label(moments[place])) for place in places]


def _choose_labels(moments: Sequence[datetime], width: int) -> Iterable[int]:
    """Return the bars with a label: hourly bars that contain a round time, other bars at equal
    distances.
    """
    if width >= DAY:
        return range(0, len(moments), -(-len(moments) // MAX_LABELS))
    every = next((size for size in INTERVALS if len(moments) * width <= MAX_LABELS * size), DAY)
    seconds_of_day = [moment.hour * HOUR + moment.minute * 60 for moment in moments]
    return [place for place, seconds in enumerate(seconds_of_day) if seconds % every < HOUR]


def _make_sparkline(counts: Sequence[int]) -> JsonObject | None:
    """Return a sparkline of a tool's calls over time, at its own scale."""
    top = max(counts, default=0) or 1
    points = (
        f"{place} {SPARKLINE_HEIGHT - 1 - count / top * (SPARKLINE_HEIGHT - 3):.1f}"
        for place, count in enumerate(counts)
    )
    return {"line": "L".join(points), "last": max(len(counts) - 1, 1)} if counts else None


# --- formatting -----------------------------------------------------------------------------------


def _format_decimal(number: float) -> str:
    """Format a number with at most two decimals."""
    return f"{number:,.2f}".rstrip("0").rstrip(".")


def _format_compact(count: int) -> str:
    """Format a number with three digits and a unit: 12,345 is 12.3k."""
    sign = MINUS if count < 0 else ""
    size = abs(count)
    for limit, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if size >= limit * ROUNDS_UP:
            scaled = size / limit
            return f"{sign}{scaled:.{max(0, 3 - len(str(int(scaled))))}f}{letter}"
    return f"{sign}{size}"


def _format_duration(ms: float | None) -> str:
    """Format a duration with at most two units: 921 ms, 1.25 s, 2 h 36 min."""
    if ms is None:
        return NOTHING
    seconds = ms / 1000
    for size, unit, part, smaller in UNITS:
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            return f"{whole:,} {unit}" + (f" {rest // part} {smaller}" if rest >= part else "")
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{ms:.0f} ms" if ms >= WHOLE_MS else f"{ms:.3g} ms"


def _format_unit(seconds: int) -> str:
    size, unit = (DAY, "day") if seconds % DAY == 0 else (HOUR, "hour")
    count = seconds // size
    return unit if count == 1 else f"{count} {unit}s"


def _format_date(moment: datetime) -> str:
    return f"{moment.day} {moment:%b}"
