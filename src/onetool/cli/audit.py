"""Show who changed or called what, newest first."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.app_runner import check_settings
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_json
from onetool.cli.terminal import CommandOutput, format_table
from onetool.util.invisible import escape_invisible

if TYPE_CHECKING:
    from onetool.admin.audit import AuditPageQuery, AuditRecord
    from onetool.app import OneTool

DEFAULT_LIMIT = 20
HEADINGS = ("time", "kind", "who", "agent", "what", "outcome")
FILTERS = {
    "actor": "only records of this token or person",
    "agent": "only records of this agent",
    "name": "only records of this tool or action",
    "outcome": "only records with this outcome, such as ok",
    "text": "only records that contain this text",
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--kind", choices=("call", "change", "decision", "started"), default="", help="kind of records")
    for name, text in FILTERS.items():
        parser.add_argument(f"--{name}", default="", metavar=name.upper(), help=text)
    text = f"maximum number of records (default: {DEFAULT_LIMIT})"
    parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help=text)
    parser.add_argument("--json-lines", action="store_true", help="print all matching records as they are stored")
    add_json(parser)


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    from onetool.admin.audit import AuditPageQuery, export_records
    from onetool_child.data import text

    check_settings(app, output)
    filters = {name: getattr(options, name) for name in ("kind", *FILTERS)}
    query = AuditPageQuery().model_copy(update=filters)
    if options.json_lines:
        async for batch in await export_records(app, identify_owner(), query):
            output.write("".join(f"{text(app.redact.redact_data(record))}\n" for record in batch))
        return 0
    records = await _list(app, query, options.limit)
    if options.json:
        output.write_json(app.redact.redact_data({"records": [record.model_dump() for record in records]}))
    elif not records:
        output.write("No records match.\n")
    else:
        output.write_lines(map(app.redact, format_table([HEADINGS, *map(_format_row, records)])))
    return 0


async def _list(app: "OneTool", query: "AuditPageQuery", limit: int) -> "list[AuditRecord]":
    from onetool.admin.audit import list_records

    records: list[AuditRecord] = []
    position: str | None = ""
    while position is not None and len(records) < limit:
        update = {"page_size": limit - len(records), "page_token": position}
        page = await list_records(app, identify_owner(), query.model_copy(update=update))
        records += page.records
        position = page.next_page_token
    return records


def _format_row(record: "AuditRecord") -> tuple[str, ...]:
    columns = (record.time, record.kind, record.actor, record.agent, record.name, record.outcome)
    return tuple(escape_invisible(text) or "-" for text in columns)
