"""The statistics as one HTML page: no script, nothing from elsewhere, light and dark, for screen and paper.

It shows what `summary` found and works nothing out but how to draw it. All that is not ours is escaped in `_text`,
and a policy in the page itself forbids everything but its own style.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from pathlib import Path

from ot.stats.rollup import DAY, HOUR
from ot.stats.summary import Runs, Savings, Series, Summary, ToolSummary
from ot.version import __version__

PERIODS = {"day": "Last 24 hours", "week": "Last 7 days", "month": "Last 30 days", "all": "All time"}
NOTHING, MINUS = "&ndash;", "&minus;"
UNITS = ((DAY, "d", HOUR, "h"), (HOUR, "h", 60, "min"), (60, "min", 1, "s"))
ROUND = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 30, 40, 50, 60, 80, 100)
INTERVALS = (300, 900, 1800, HOUR, 3 * HOUR, 6 * HOUR)
LABELS = 9
LAST_LABEL = 0.96  # one further right would be cut off
LEAST_SEEN = 1.5  # percent of the chart's height
BAD_RATE, PERFECT_RATE = 95, 100
WHOLE_MS = 100  # from here on fractions are noise
MOST_ERRORS, MOST_TAGS = 12, 3
SPARK_HEIGHT = 24
FIGURES = ("Calls", "Success", "p50", "p95", "Result tokens")  # the columns of a tool
ROUNDS_UP = 0.9995  # of a thousand: from here on three figures make it a whole one
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def html(summary: Summary) -> str:
    """The whole page."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>OneTool statistics</title>
<style>
{_style()}</style>
</head>
<body>
{_header(summary)}
<main>
{_cards(summary)}
{_chart(summary["series"])}
<div class="halves">
{_saved(summary)}
<div>{_runs(summary["runs"])}
{_errors(summary["errors"])}</div>
</div>
{_tools(summary["tools"], summary["series"])}
</main>
{_footer()}
</body>
</html>
"""


def _style() -> str:
    return Path(__file__).with_name("report.css").read_text(encoding="utf-8")


# --- the parts of the page ----------------------------------------------------------------------------------------


def _header(summary: Summary) -> str:
    moment = datetime.fromisoformat(summary["generated_at"])
    filters = (("tool", summary["tool"]), ("agent", summary["agent"]))
    only = "".join(_chip(f"{what} <code>{_text(name)}</code>") for what, name in filters if name is not None)
    when = f"{_date(moment)} {moment.year}, {moment:%H:%M}"
    return f"""<header><h1>OneTool <span>statistics</span></h1>
<p>{only}{_chip(PERIODS[summary["period"]])}
<time datetime="{summary["generated_at"]}">{when}</time></p></header>"""


def _chip(text: str) -> str:
    return f'<span class="chip">{text}</span>'


def _cards(summary: Summary) -> str:
    runs, savings = summary["runs"], summary["savings"]
    failed = sum(summary["errors"].values())
    net = savings["definition_tokens"] - savings["own_tokens"]
    cards = (
        _card("Tool calls", _number(summary["total_calls"]), f"in {_counted(runs['total'], 'run')}"),
        _card("Successful", _percent(summary["success_rate"]), _counted(failed, "failed call")),
        _card(
            "Context saved",
            f"{_compact(summary['context_saved'])} <small>tokens</small>",
            f"definitions {_compact(net)}, results {_compact(savings['result_tokens'])}",
            "saved",
        ),
        _card(
            "Time saved",
            _duration(summary["time_saved_ms"]),
            f"{_counted(round(savings['round_trips']), 'model round trip')} avoided",
            "time",
        ),
    )
    return f'<section class="cards" aria-label="Totals">{"".join(cards)}</section>'


def _card(label: str, figure: str, note: str, kind: str = "") -> str:
    return f"""<article class="card {kind}"><h2>{label}</h2><p class="figure">{figure}</p>
<p class="note">{note}</p></article>"""


def _chart(series: Series) -> str:
    total, failed, top = sum(series["calls"]), sum(series["errors"]), _nice(max(series["calls"]))
    if not total:
        return BLANK
    ticks = "".join(f"<span>{_number(tick)}</span>" for tick in ((top, top // 2, 0) if top > 1 else (top, 0)))
    return f"""<section class="panel"><div class="head"><h2>Calls over time</h2>
<p class="note">a bar for every {_width(series["width_seconds"])}</p>
<p class="note keys"><i class="key calls"></i>succeeded <i class="key failed"></i>failed</p></div>
<figure class="chart"><div class="axis" aria-hidden="true">{ticks}</div>
<svg viewBox="0 0 {len(series["calls"])} 100" preserveAspectRatio="none" role="img"
aria-label="{_counted(total, "call")} over time, {failed} failed">{_grid(series)}{_bars(series, top)}</svg>
<div class="times" aria-hidden="true">{_times(series)}</div></figure>
{_as_table(series)}</section>"""


BLANK = """<section class="panel blank"><h2>No calls here</h2>
<p class="note">Nothing was recorded, or nothing that these filters let through. Make a call with
<code>run("ot.tools()")</code> and write this report again.</p></section>"""


def _grid(series: Series) -> str:
    return "".join(f'<line x1="0" x2="{len(series["calls"])}" y1="{y}" y2="{y}"/>' for y in (0, 50, 100))


def _bars(series: Series, top: int) -> str:
    bars = zip(_moments(series), series["calls"], series["errors"], strict=True)
    return "".join(_bar(place, *bar, top) for place, bar in enumerate(bars))


def _bar(place: int, moment: datetime, calls: int, errors: int, top: int) -> str:
    whole = 100 * calls / top
    failed = min(whole, max(LEAST_SEEN, 100 * errors / top)) if errors else 0.0
    shown = _block("calls", place, 100 - whole, whole - failed) + _block("failed", place, 100 - failed, failed)
    label = f"{_date(moment)}, {moment:%H:%M}: {_counted(calls, 'call')}, {errors} failed"
    return f'<g><title>{label}</title><rect class="reach" x="{place}" y="0" width="1" height="100"/>{shown}</g>'


def _block(kind: str, place: int, y: float, height: float) -> str:
    where = f'x="{place + 0.14:g}" y="{y:.2f}" width=".72" height="{height:.2f}"'
    return f'<rect class="{kind}" {where} rx=".09" ry="1"/>' if height > 0 else ""


def _times(series: Series) -> str:
    moments, width = list(_moments(series)), series["width_seconds"]
    places = (place for place in _labelled(moments, width) if place < LAST_LABEL * len(moments))
    return "".join(
        f'<span style="left:{100 * place / len(moments):.2f}%">{_label(moments[place], width)}</span>'
        for place in places
    )


def _labelled(moments: Sequence[datetime], width: int) -> Iterable[int]:
    """The bars that get a label: those that begin at a round time where bars are hours, else every so many."""
    if width >= DAY:
        return range(0, len(moments), -(-len(moments) // LABELS))
    every = next((size for size in INTERVALS if len(moments) * width <= LABELS * size), DAY)
    of_day = [moment.hour * HOUR + moment.minute * 60 for moment in moments]
    return [place for place, seconds in enumerate(of_day) if seconds % every == 0]


def _as_table(series: Series) -> str:
    bars = zip(_moments(series), series["calls"], series["errors"], strict=True)
    rows = "".join(
        f'<tr><th scope="row">{_date(moment)} {moment:%Y, %H:%M}</th>{_cells(_number(calls), _number(errors))}</tr>'
        for moment, calls, errors in bars
        if calls
    )
    head = f'<tr><th scope="col">From</th>{_heads("Calls", "Failed")}</tr>'
    return f"""<details><summary>As a table</summary><table><thead>{head}</thead>
<tbody>{rows}</tbody></table></details>"""


def _saved(summary: Summary) -> str:
    savings = summary["savings"]
    trips = f"{_plain(savings['round_trips'])} &times; {_duration(savings['round_trip_ms'])}"
    share = "" if summary["tool"] is None else f'<p class="note">{SHARE}</p>'
    return f"""<section class="panel"><div class="head"><h2>What was saved, and how it is counted</h2></div>
{_split(savings)}
<table class="ledger"><tbody>{"".join(_line(text, _signed(count)) for text, count in _tokens(summary))}
{_line("Context saved, in tokens", _signed(summary["context_saved"]), "sum")}</tbody></table>
<table class="ledger"><tbody>{_line(ROUND_TRIPS, trips)}
{_line("Time saved", _duration(summary["time_saved_ms"]), "sum")}</tbody></table>{share}</section>"""


def _tokens(summary: Summary) -> Iterator[tuple[str, int]]:
    """The formula in words, with what it gave."""
    savings = summary["savings"]
    of_what = "Definitions of all tools" if summary["tool"] is None else "The definition of this tool"
    sessions = _counted(savings["sessions"], "client session")
    yield (
        f"{of_what}, as a client connected directly would have loaded once a session ({sessions})",
        savings["definition_tokens"],
    )
    yield OWN, -savings["own_tokens"]
    yield RESULTS, savings["result_tokens"]


def _line(text: str, figure: str, kind: str = "") -> str:
    return f'<tr class="{kind}"><td>{text}</td><td class="n">{figure}</td></tr>'


OWN = "OneTool&rsquo;s own definition, which was loaded instead"
RESULTS = "Results of calls that stayed inside their run, less the run&rsquo;s answer (never below 0 for a run)"
ROUND_TRIPS = "Round trips to the model avoided (calls of a run &minus; 1, never below 0) &times; the time of one"
SHARE = """Only this tool&rsquo;s share: of definitions its own, less the same fraction of OneTool&rsquo;s; of a run the
fraction of its result tokens, and for time of its calls, that are this tool&rsquo;s."""


def _split(savings: Savings) -> str:
    """How the savings divide, where there are savings to divide."""
    net, results = savings["definition_tokens"] - savings["own_tokens"], savings["result_tokens"]
    if net < 0 or net + results == 0:
        return ""
    parts = (
        f'<i class="{kind}" style="flex:{part}"></i>' for kind, part in (("calls", net), ("second", results)) if part
    )
    return f"""<div class="split" aria-hidden="true">{"".join(parts)}</div>
<p class="note keys"><i class="key calls"></i>definitions {_share(net, net + results)}
<i class="key second"></i>results {_share(results, net + results)}</p>"""


def _runs(runs: Runs) -> str:
    facts = (
        ("Made", _number(runs["total"])),
        ("Successful", _percent(runs["success_rate"])),
        ("Half took at most", _duration(runs["p50_ms"])),
        ("95 % took at most", _duration(runs["p95_ms"])),
    )
    lines = "".join(_line(text, figure) for text, figure in facts)
    return f"""<section class="panel"><div class="head"><h2>Runs</h2></div>
<table class="ledger"><tbody>{lines}</tbody></table></section>"""


def _errors(errors: Mapping[str, int]) -> str:
    most = max(errors.values(), default=0)
    shown = sorted(errors.items(), key=lambda error: -error[1])[:MOST_ERRORS]
    rows = "".join(
        f"<li><div><code>{_text(kind)}</code><span>{_number(count)}</span></div>{_meter(count, most, 'failed')}</li>"
        for kind, count in shown
    )
    left = len(errors) - len(shown)
    more = f'<p class="note">and {_counted(left, "other kind")}</p>' if left else ""
    body = f'<ul class="errors">{rows}</ul>{more}' if rows else '<p class="fine">✓ No call has failed.</p>'
    return f'<section class="panel"><div class="head"><h2>Errors</h2></div>{body}</section>'


def _tools(tools: Sequence[ToolSummary], series: Series) -> str:
    if not tools:
        return ""
    rows = "".join(_tool(tool, series["tools"].get(tool["name"], ()), tools[0]["calls"]) for tool in tools)
    return f"""<section class="panel"><div class="head"><h2>Tools</h2>
<p class="note">{_counted(len(tools), "tool")}, most called first</p></div>
<div class="scroll" role="region" aria-label="Tools" tabindex="0"><table class="tools">
<thead><tr><th scope="col">Tool</th><th scope="col">Activity</th>
{_heads(*FIGURES)}<th scope="col">Errors</th></tr></thead>
<tbody>{rows}</tbody></table></div></section>"""


def _tool(tool: ToolSummary, counts: Sequence[int], most: int) -> str:
    figures = (
        f"{_number(tool['calls'])}{_meter(tool['calls'], most, 'calls')}",
        f'<span class="{_mood(tool["success_rate"])}">{_percent(tool["success_rate"])}</span>',
        _duration(tool["p50_ms"]),
        _duration(tool["p95_ms"]),
        _compact(tool["result_tokens"]),
    )
    return f"""<tr><th scope="row"><code>{_text(tool["name"])}</code></th><td>{_spark(counts)}</td>
{_labelled_cells(figures)}<td>{_tags(tool["errors"])}</td></tr>"""


def _tags(errors: Mapping[str, int]) -> str:
    shown = "".join(
        f'<span class="tag">{_text(kind)} {_number(count)}</span>' for kind, count in list(errors.items())[:MOST_TAGS]
    )
    left = len(errors) - MOST_TAGS
    return shown + (f'<span class="note">+ {left} more</span>' if left > 0 else "")


def _heads(*names: str) -> str:
    return "".join(f'<th class="n" scope="col">{name}</th>' for name in names)


def _cells(*figures: str) -> str:
    return "".join(f'<td class="n">{figure}</td>' for figure in figures)


def _labelled_cells(figures: Iterable[str]) -> str:
    """Cells that carry their headings, for screens too narrow for a table."""
    pairs = zip(FIGURES, figures, strict=True)
    return "".join(f'<td class="n" data-label="{label}">{figure}</td>' for label, figure in pairs)


def _mood(success_rate: float | None) -> str:
    if success_rate is None or BAD_RATE <= success_rate < PERFECT_RATE:
        return ""
    return "good" if success_rate == PERFECT_RATE else "bad"


def _spark(counts: Sequence[int]) -> str:
    """The calls of a tool over time, to its own scale."""
    top, last = max(counts, default=0) or 1, max(len(counts) - 1, 1)
    line = "L".join(
        f"{place} {SPARK_HEIGHT - 1 - count / top * (SPARK_HEIGHT - 3):.1f}" for place, count in enumerate(counts)
    )
    area = f"M0 {SPARK_HEIGHT}L{line}L{last} {SPARK_HEIGHT}Z"
    box = f'viewBox="0 0 {last} {SPARK_HEIGHT}" preserveAspectRatio="none" aria-hidden="true"'
    return f'<svg class="spark" {box}><path d="M{line}"/><path d="{area}"/></svg>' if counts else ""


def _meter(part: float, whole: float, kind: str) -> str:
    width = f"{100 * part / (whole or 1):.1f}%"
    return f'<span class="bar" aria-hidden="true"><i class="{kind}" style="width:{width}"></i></span>'


def _footer() -> str:
    return f"""<footer><p>Tokens are an estimate: bytes of UTF-8 divided by four. p50 and p95 are the times that 50 %
and 95 % of calls did not exceed, failed ones included. A session counts when it began, a run when it ended.</p>
<p>OneTool {__version__}</p></footer>"""


# --- words and numbers --------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    """Text from elsewhere, made harmless: no markup, nothing invisible, nothing that turns the line around."""
    return escape("".join(sign if sign.isprintable() else "\ufffd" for sign in text))


def _number(count: int) -> str:
    return f"{count:,}"


def _plain(number: float) -> str:
    """As many digits after the point as there are, two at most."""
    return f"{number:,.2f}".rstrip("0").rstrip(".")


def _counted(count: int, thing: str) -> str:
    return f"{_number(count)} {thing}{'' if count == 1 else 's'}"


def _compact(count: int) -> str:
    """Three figures and a letter: 12,345 is 12.3k."""
    sign, size = MINUS if count < 0 else "", abs(count)
    for limit, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if size >= limit * ROUNDS_UP:
            return f"{sign}{_three_figures(size / limit)}{letter}"
    return f"{sign}{size}"


def _three_figures(number: float) -> str:
    return f"{number:.{max(0, 3 - len(str(int(number))))}f}"


def _signed(count: int) -> str:
    return f"{MINUS if count < 0 else '+'} {abs(count):,}" if count else "0"


def _percent(rate: float | None) -> str:
    return NOTHING if rate is None else f"{_plain(rate)} %"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


def _duration(ms: float | None) -> str:
    """Two units at most: 921 ms, 1.25 s, 2 h 36 min."""
    if ms is None:
        return NOTHING
    seconds = ms / 1000
    for size, unit, part, smaller in UNITS:
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            return f"{_number(whole)} {unit}" + (f" {rest // part} {smaller}" if rest >= part else "")
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{ms:.0f} ms" if ms >= WHOLE_MS else f"{ms:.3g} ms"


def _nice(most: int) -> int:
    """The first round number that is not below, such that its half is a whole number too."""
    size = int("1" + "0" * (len(str(most)) - 2))
    return next(step * size for step in ROUND if step * size >= most)


def _width(seconds: int) -> str:
    for size, unit in ((DAY, "day"), (HOUR, "hour"), (60, "minute")):
        if seconds % size == 0:
            count = seconds // size
            return unit if count == 1 else f"{count} {unit}s"
    return _counted(seconds, "second")


def _moments(series: Series) -> Iterator[datetime]:
    start, width = datetime.fromisoformat(series["start"]), timedelta(seconds=series["width_seconds"])
    return (start + place * width for place in range(len(series["calls"])))


def _label(moment: datetime, width: int) -> str:
    if width <= HOUR:
        return f"{moment:%H:%M}"
    return f"{moment:%b %Y}" if width >= 28 * DAY else _date(moment)


def _date(moment: datetime) -> str:
    return f"{moment.day} {moment:%b}"
