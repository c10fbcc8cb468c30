"""Show usage statistics and savings of all servers that share a data directory."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from onetool.cli.app_runner import check_settings
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_json
from onetool.cli.terminal import CommandOutput, format_table
from onetool.core.render import render
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible
from onetool.util.text import pluralize, shorten
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.admin.statistics import SpendingRow
    from onetool.app import OneTool
    from onetool.stats.summary import StatsSummary

ERROR_HEADINGS = ("count", "last", "tool", "type", "message")
MAX_MESSAGE_CHARS = 100
SPENDING_HEADINGS = ("month", "token", "agent", "runs", "calls", "failed", "answer tokens", "result tokens", "cost")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--period", choices=("day", "week", "month", "all"), default="all", help="period to report on (default: all)"
    )
    parser.add_argument("--tool", default="", metavar="NAME", help="name of the tool to report on")
    text = "show what each token used per month, or failures in groups, instead of the summary"
    parser.add_argument("--by", choices=("token", "error"), help=text)
    parser.add_argument("--month", metavar="MONTH", help="with --by token: month to report on, such as 2027-01")
    parser.add_argument("--html", type=Path, metavar="FILE", help="file for an HTML report")
    add_json(parser)


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    if options.month is not None and options.by != "token":
        options.usage_error("--month needs --by token")
    check_settings(app, output)
    if options.by == "token":
        await _show_spending(app, options, output)
    elif options.by == "error":
        await _show_errors(app, options, output)
    else:
        await _show_summary(app, options, output)
    return 0


async def _show_summary(app: "OneTool", options: Namespace, output: CommandOutput) -> None:
    from onetool.admin.statistics import StatisticsQuery, show_statistics
    from onetool.stats import report

    query = StatisticsQuery().model_copy(update={"period": options.period, "tool": options.tool})
    statistics = (await show_statistics(app, identify_owner(), query)).model_dump()
    if not statistics.pop("is_enabled"):
        raise ToolError("statistics are disabled", hint="set `stats: {enabled: true}` in onetool.yaml")
    statistics.pop("problem", None)
    if options.html:
        try:
            file = (app.directories.working_dir / options.html).resolve()  # FILE may be a symbolic link
            report.write(file, cast("StatsSummary", statistics))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", "") or error
            raise ToolError(f"cannot write to {options.html}: {reason}") from None
    del statistics["series"]
    output.write(f"{render(statistics, 'json') if options.json else _text(statistics)}\n")
    if options.html and not options.json:
        output.write(f"\nReport: {options.html}\n")


async def _show_spending(app: "OneTool", options: Namespace, output: CommandOutput) -> None:
    from onetool.admin.statistics import SpendingQuery, list_spending

    query = SpendingQuery().model_copy(update={"month": options.month or ""})
    rows = (await list_spending(app, identify_owner(), query)).spending
    if options.json:
        spending = [{**row.model_dump(exclude={"last_used"}), "last": row.last_used} for row in rows]
        output.write(f"{render({'spending': spending}, 'json')}\n")
    elif not rows:
        output.write(f"No runs recorded{f' in {options.month}' if options.month else ''}.\n")
    else:
        output.write_lines(format_table([SPENDING_HEADINGS, *map(_format_spending, rows)], right=range(3, 9)))


def _format_spending(row: "SpendingRow") -> tuple[str, ...]:
    counts = (row.runs, row.calls, row.failed, row.answer_tokens, row.result_tokens)
    return row.month, row.actor or "(no token)", row.agent, *(f"{count:,}" for count in counts), f"{row.cost:g}"


async def _show_errors(app: "OneTool", options: Namespace, output: CommandOutput) -> None:
    from onetool.admin.statistics import list_errors

    groups = (await list_errors(app, identify_owner())).errors
    if options.json:
        output.write(f"{render({'errors': [group.model_dump() for group in groups]}, 'json')}\n")
    elif not groups:
        output.write("No failures recorded.\n")
    else:
        rows = [(str(group.count), group.last_at, group.name, group.type, _shorten(group.message)) for group in groups]
        output.write_lines(map(app.redact, format_table([ERROR_HEADINGS, *rows], right=(0,))))


def _shorten(message: str) -> str:
    return shorten(escape_invisible(" ".join(message.split())), MAX_MESSAGE_CHARS)


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
