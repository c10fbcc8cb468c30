"""Show usage statistics and savings of all servers that share a data directory."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.app_runner import run_with_settings
from onetool.cli.options import add_json
from onetool.cli.terminal import format_table
from onetool.core.render import render
from onetool.errors import ToolError
from onetool.util.text import pluralize
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.stats.summary import StatsSummary

SPENDING_HEADINGS = ("month", "token", "agent", "runs", "calls", "failed", "answer tokens", "result tokens", "cost")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--period", choices=("day", "week", "month", "all"), default="all", help="period to report on (default: all)"
    )
    parser.add_argument("--tool", default="", metavar="NAME", help="name of the tool to report on")
    parser.add_argument("--by", choices=("token",), help="show what each token used per month, instead of the summary")
    parser.add_argument("--month", metavar="MONTH", help="with --by token: month to report on, such as 2027-01")
    parser.add_argument("--html", type=Path, metavar="FILE", help="file for an HTML report")
    add_json(parser)


def main(options: Namespace) -> int:
    if options.month is not None and options.by is None:
        options.usage_error("--month needs --by token")

    async def show(app: "OneTool") -> int:
        if options.by is not None:
            _show_spending(app, options)
            return 0
        from onetool.stats import report

        summary = _summary(app, options)
        if options.html:
            try:
                report.write(options.html.resolve(), summary)  # FILE may be a symbolic link
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", "") or error
                raise ToolError(f"cannot write to {options.html}: {reason}") from None
        shown = {key: value for key, value in summary.items() if key != "series"}
        print(render(shown, "json") if options.json else _text(shown))
        if options.html and not options.json:
            print(f"\nReport: {options.html}")
        return 0

    return run_with_settings(options, show)


def _summary(app: "OneTool", options: Namespace) -> "StatsSummary":
    """Read the statistics directly, because a call of `ot.stats` would be counted and its file access restricted."""
    from onetool.stats.summary import summarize

    settings = app.settings.stats
    if not settings.enabled:
        raise ToolError("statistics are disabled", hint="set `stats: {enabled: true}` in onetool.yaml")
    statistics = app.state.recorder.database
    return summarize(statistics, options.period, options.tool or None, round_trip_ms=settings.round_trip_ms)


def _show_spending(app: "OneTool", options: Namespace) -> None:
    from onetool.stats.history import list_spending

    rows = list_spending(app.state.recorder.database, options.month)
    if options.json:
        print(render({"spending": [{**row._asdict(), "last": in_utc(row.last, "seconds")} for row in rows]}, "json"))
        return
    if not rows:
        print(f"No runs recorded{f' in {options.month}' if options.month else ''}.")
        return
    lines = [
        (row.month, row.actor or "(no token)", row.agent, *(f"{count:,}" for count in row[3:8]), f"{row.cost:g}")
        for row in rows
    ]
    print("\n".join(format_table([SPENDING_HEADINGS, *lines], right=range(3, 9))))


def _text(summary: JsonMapping) -> str:
    runs = summary["runs"]
    savings = summary["savings"]
    if not summary["total_calls"] and not runs["total"]:
        tool = summary["tool"]
        period = summary["period"]
        if tool is None and period == "all":
            return "No calls recorded. Try: onetool run 'machine.disk()'"
        what = f"calls of {tool}" if tool else "calls"
        when = "" if period == "all" else f" in the last {period}"
        return f"No {what} recorded{when}. Run `onetool stats` to see all calls."
    saved = pluralize(summary["context_saved"], "token")
    sessions = pluralize(savings["sessions"], "session")
    seconds = summary["time_saved_ms"] / 1000
    trips = pluralize(round(savings["round_trips"]), "round trip")
    head = [
        f"calls          {summary['total_calls']:,} ({_rate(summary['success_rate'])} success)",
        f"runs           {runs['total']:,} ({_rate(runs['success_rate'])} success)",
        f"context saved  {saved} (estimated) in {sessions}",
        f"time saved     {seconds:,.0f} s ({trips} avoided)",
    ]
    rows = [("tool", "calls", "success", "p50 ms", "p95 ms"), *map(_row, summary["tools"])]
    return "\n".join([*head, "", *format_table(rows, right=range(1, 5))])


def _row(tool: JsonMapping) -> tuple[str, ...]:
    return tool["name"], f"{tool['calls']:,}", _rate(tool["success_rate"]), f"{tool['p50_ms']}", f"{tool['p95_ms']}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.4g}%"
