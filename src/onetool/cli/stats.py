"""The commands stats and audit."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from onetool.cli.command import Command
from onetool.cli.invocation import Invocation
from onetool.cli.terminal import format_list, format_table
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible
from onetool.util.text import pluralize, shorten
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.admin.audit import AuditRecord
    from onetool.admin.statistics import SpendingRow
    from onetool.state.stats.summary import StatsSummary

ERROR_HEADINGS = ("count", "last", "tool", "type", "message")
MAX_MESSAGE_CHARS = 100
SPENDING_HEADINGS = (
    "month",
    "token",
    "agent",
    "runs",
    "calls",
    "failed",
    "answer tokens",
    "result tokens",
    "cost",
)
DEFAULT_LIMIT = 20
HEADINGS = ("time", "kind", "who", "agent", "what", "outcome")
FILTERS = {
    "actor": "only records of this token or person",
    "agent": "only records of this agent",
    "name": "only records of this tool or action",
    "outcome": "only records with this outcome, such as ok",
    "text": "only records that contain this text",
}


# --- stats ----------------------------------------------------------------------------------------


def _add_stats_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--period",
        choices=("day", "week", "month", "all"),
        default="all",
        help="period to report on (default: all)",
    )
    parser.add_argument("--tool", default="", metavar="NAME", help="name of the tool to report on")
    text = "show what each token used per month, or failures in groups, instead of the summary"
    parser.add_argument("--by", choices=("token", "error"), help=text)
    parser.add_argument(
        "--month", metavar="MONTH", help="with --by token: month to report on, such as 2027-01"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="file for an HTML report")


def _check_stats(options: Namespace) -> None:
    if options.month is not None and options.by != "token":
        options.usage_error("--month needs --by token")


async def _show_stats(command: Invocation) -> None:
    await {"token": _show_spending, "error": _show_errors, None: _show_summary}[command.options.by](
        command
    )


async def _show_summary(command: Invocation) -> None:
    from onetool.admin.statistics import StatisticsQuery, show_statistics
    from onetool.state.stats import report

    options = command.options
    query = StatisticsQuery().model_copy(update={"period": options.period, "tool": options.tool})
    statistics = (await command.do(show_statistics, query)).model_dump()
    if not statistics.pop("is_enabled"):
        raise ToolError(
            "statistics are disabled", hint="set `stats: {enabled: true}` in onetool.yaml"
        )
    statistics.pop("problem", None)
    lines = _describe(statistics)
    if options.html:
        try:
            file = (
                command.app.directories.working_dir / options.html
            ).resolve()  # FILE may be a symbolic link
            report.write(file, cast("StatsSummary", statistics))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", "") or error
            raise ToolError(f"cannot write to {options.html}: {reason}") from None
        lines += ["", f"Report: {options.html}"]
    del statistics["series"]
    command.show(statistics, lines)


async def _show_spending(command: Invocation) -> None:
    from onetool.admin.statistics import SpendingQuery, list_spending

    month = command.options.month or ""
    rows = (
        await command.do(list_spending, SpendingQuery().model_copy(update={"month": month}))
    ).spending
    spending = [{**row.model_dump(exclude={"last_used"}), "last": row.last_used} for row in rows]
    lines = format_list(SPENDING_HEADINGS, map(_format_spending, rows), right=range(3, 9))
    command.show(
        {"spending": spending}, lines, f"No runs recorded{f' in {month}' if month else ''}."
    )


def _format_spending(row: "SpendingRow") -> tuple[str, ...]:
    counts = (row.runs, row.calls, row.failed, row.answer_tokens, row.result_tokens)
    return (
        row.month,
        row.actor or "(no token)",
        row.agent,
        *(f"{count:,}" for count in counts),
        f"{row.cost:g}",
    )


async def _show_errors(command: Invocation) -> None:
    from onetool.admin.statistics import list_errors

    groups = (await command.do(list_errors)).errors
    rows = [
        (str(group.count), group.last_at, group.name, group.type, _shorten(group.message))
        for group in groups
    ]
    lines = format_list(ERROR_HEADINGS, rows, right=(0,))
    command.show(
        {"errors": [group.model_dump() for group in groups]}, lines, "No failures recorded."
    )


def _shorten(message: str) -> str:
    return shorten(escape_invisible(" ".join(message.split())), MAX_MESSAGE_CHARS)


def _describe(summary: JsonMapping) -> list[str]:
    runs = summary["runs"]
    savings = summary["savings"]
    if not summary["total_calls"] and not runs["total"]:
        tool = summary["tool"]
        period = summary["period"]
        if tool is None and period == "all":
            return ["No calls recorded. Try: onetool run 'machine.disk()'"]
        what = f"calls of {tool}" if tool else "calls"
        when = "" if period == "all" else f" in the last {period}"
        return [f"No {what} recorded{when}. Run `onetool stats` to see all calls."]
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
    return [*head, "", *format_table(rows, right=range(1, 5))]


def _row(tool: JsonMapping) -> tuple[str, ...]:
    return (
        tool["name"],
        f"{tool['calls']:,}",
        _rate(tool["success_rate"]),
        f"{tool['p50_ms']}",
        f"{tool['p95_ms']}",
    )


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.4g}%"


# --- audit ----------------------------------------------------------------------------------------


def _add_audit_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--kind",
        choices=("call", "change", "decision", "started"),
        default="",
        help="kind of records",
    )
    for name, text in FILTERS.items():
        parser.add_argument(f"--{name}", default="", metavar=name.upper(), help=text)
    text = f"maximum number of records (default: {DEFAULT_LIMIT})"
    parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help=text)
    parser.add_argument(
        "--json-lines", action="store_true", help="print all matching records as they are stored"
    )


async def _show_audit(command: Invocation) -> None:
    from onetool.admin.audit import AuditPageQuery, export_records, list_records

    query = AuditPageQuery().model_copy(
        update={name: getattr(command.options, name) for name in ("kind", *FILTERS)}
    )
    if command.options.json_lines:
        async for batch in await command.do(export_records, query):
            command.write_json_lines(batch)
        return
    records = await command.list_all(list_records, query, command.options.limit)
    lines = format_list(HEADINGS, map(_format_row, records))
    command.show(
        {"records": [record.model_dump() for record in records]}, lines, "No records match."
    )


def _format_row(record: "AuditRecord") -> tuple[str, ...]:
    columns = (record.time, record.kind, record.actor, record.agent, record.name, record.outcome)
    return tuple(escape_invisible(text) or "-" for text in columns)


COMMANDS = {
    "stats": Command(
        "Show usage statistics and savings of all servers that share a data directory.",
        _add_stats_arguments,
        check=_check_stats,
        execute=_show_stats,
    ),
    "audit": Command(
        "Show who changed or called what, newest first.",
        _add_audit_arguments,
        execute=_show_audit,
    ),
}
