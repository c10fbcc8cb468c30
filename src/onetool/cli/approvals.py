"""List calls that wait for approval."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from onetool.cli.app_runner import check_settings
from onetool.cli.approver import describe_call
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_json
from onetool.cli.terminal import CommandOutput
from onetool.state.run_records import SHORT_ID_CHARS
from onetool.util.text import pluralize

if TYPE_CHECKING:
    from onetool.admin.recorded_calls import Approval
    from onetool.app import OneTool


def add_arguments(parser: ArgumentParser) -> None:
    add_json(parser)


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    from onetool.admin.approvals import list_approvals

    check_settings(app, output)
    waiting = await list_approvals(app, identify_owner())
    if options.json:
        output.write_json(waiting.model_dump())
    elif not waiting.approvals:
        output.write("No calls wait for approval.\n")
    else:
        output.write_lines(line for approval in waiting.approvals for line in _describe(approval))
    return 0


def _describe(approval: "Approval") -> Iterator[str]:
    client = f" ({approval.client})" if approval.client else ""
    calls = pluralize(len(approval.calls), "call")
    yield f"{approval.run}  agent {approval.agent}{client}, {calls}, asked {approval.asked}"
    for call in approval.calls:
        yield from describe_call(call)
    short = approval.run[:SHORT_ID_CHARS]
    if approval.state == "halted":
        unknown = next(call.number for call in approval.calls if call.state == "unknown")
        yield f"  To answer: onetool approve {short} --call {unknown} --happened | --not-happened | --repeat\n"
    else:
        expires = f" It expires at {approval.expires}." if approval.expires else ""
        yield f"  To answer: onetool approve {short}, or onetool reject {short}.{expires}\n"
