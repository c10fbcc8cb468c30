"""List calls that wait for approval."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.approver import SHORT_ID_CHARS, describe_call, open_journal
from onetool.cli.options import add_json, print_json
from onetool.util.text import pluralize

if TYPE_CHECKING:
    from onetool.runs.views import Waiting


def add_arguments(parser: ArgumentParser) -> None:
    add_json(parser)


def main(options: Namespace) -> int:
    from onetool.runs.views import list_waiting

    with open_journal(options) as journal:
        waiting = list_waiting(journal.store, journal.redact)
    if options.json:
        print_json({"approvals": waiting})
    elif not waiting:
        print("No calls wait for approval.")
    for entry in [] if options.json else waiting:
        _print(entry)
    return 0


def _print(entry: "Waiting") -> None:
    client = f" ({entry['client']})" if entry["client"] else ""
    counted = pluralize(len(entry["calls"]), "call")
    print(f"{entry['run']}  agent {entry['agent']}{client}, {counted}, asked {entry['asked']}")
    for call in entry["calls"]:
        print("\n".join(describe_call(call)))
    short = entry["run"][:SHORT_ID_CHARS]
    if entry["state"] == "halted":
        unknown = next(call["number"] for call in entry["calls"] if call["state"] == "unknown")
        print(f"  To answer: onetool approve {short} --call {unknown} --happened | --not-happened | --repeat\n")
    else:
        expires = f" It expires at {entry['expires']}." if entry["expires"] else ""
        print(f"  To answer: onetool approve {short}, or onetool reject {short}.{expires}\n")
