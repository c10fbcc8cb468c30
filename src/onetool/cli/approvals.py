"""List calls that wait for approval."""

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import TYPE_CHECKING

from onetool.cli.approver import describe_call
from onetool.cli.invocation import Invocation
from onetool.state.run_records import SHORT_ID_CHARS
from onetool.util.text import pluralize

if TYPE_CHECKING:
    from onetool.admin.recorded_calls import Approval


def add_arguments(parser: ArgumentParser) -> None:
    pass


async def execute(command: Invocation) -> None:
    from onetool.admin.approvals import list_approvals

    waiting = await command.do(list_approvals)
    lines = (line for approval in waiting.approvals for line in _describe(approval))
    command.show(waiting.model_dump(), lines, "No calls wait for approval.")


def _describe(approval: "Approval") -> Iterator[str]:
    client = f" ({approval.client})" if approval.client else ""
    calls = pluralize(len(approval.calls), "call")
    yield f"{approval.run}  agent {approval.agent}{client}, {calls}, asked {approval.asked}"
    for call in approval.calls:
        yield from describe_call(call)
    short = approval.run[:SHORT_ID_CHARS]
    if approval.state == "halted":
        unknown = next(call.number for call in approval.calls if call.state == "unknown")
        yield (
            f"  To answer: onetool approve {short} --call {unknown} --happened | --not-happened |"
            " --repeat\n"
        )
    else:
        expires = f" It expires at {approval.expires}." if approval.expires else ""
        yield f"  To answer: onetool approve {short}, or onetool reject {short}.{expires}\n"
