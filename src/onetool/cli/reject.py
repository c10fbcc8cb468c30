"""Reject the calls of a run that wait.

The code of the run gets an error that it can catch. The command asks for confirmation in the
terminal. Without a terminal, it needs a token of scope approve.
"""

import argparse

from onetool.cli.approver import add_decision_arguments, decide, find_waiting
from onetool.cli.invocation import Invocation
from onetool.errors import ToolError

IS_GUARDED = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="id of the run, or its first characters")
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="reason, which the code and the model see"
    )
    parser.add_argument("--stop", action="store_true", help="also end the run")
    add_decision_arguments(parser)


async def execute(command: Invocation) -> None:
    from onetool.admin.approvals import DecisionRequest

    options = command.options
    run, waiting = find_waiting(command.app, options.run)
    calls = [call for call in waiting.calls if call.state == "pending" or options.stop]
    if not calls:
        raise ToolError(
            f"run {run.id} waits for the outcome of a call, which cannot be rejected",
            hint=(
                "use `onetool approve` with --happened, --not-happened or --repeat, or end the run"
                " with --stop"
            ),
        )
    request = DecisionRequest.parse(
        {"decision": "reject", "reason": options.reason, "stop": options.stop}
    )
    todo = "Reject {}, and end the run" if options.stop else "Reject {}"
    await decide(command, waiting, calls, request, todo=todo, done="Rejected {}")
