"""Show who changed or called what, newest first."""

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from onetool.cli.invocation import Invocation
from onetool.cli.terminal import format_list
from onetool.util.invisible import escape_invisible

if TYPE_CHECKING:
    from onetool.admin.audit import AuditRecord

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


async def execute(command: Invocation) -> None:
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
