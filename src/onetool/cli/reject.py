"""Reject the calls of a run that wait.

The code of the run gets an error that it can catch. The command asks for confirmation in the terminal. Without a
terminal, it needs a token of scope approve.
"""

import argparse

from onetool.cli.approver import (
    add_decision_arguments,
    count_calls,
    describe_after,
    describe_call,
    identify_person,
    open_journal,
    print_decision,
)
from onetool.errors import ToolError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="id of the run, or its first characters")
    parser.add_argument("--reason", default="", metavar="TEXT", help="reason, which the code and the model see")
    parser.add_argument("--stop", action="store_true", help="also end the run")
    add_decision_arguments(parser)


def main(options: argparse.Namespace) -> int:
    from onetool.state.run_records import Decision

    with open_journal(options) as journal:
        run, waiting = journal.find_waiting(options.run)
        calls = [call for call in waiting["calls"] if call["state"] == "pending" or options.stop]
        if not calls:
            raise ToolError(
                f"run {run.id} waits for the outcome of a call, which cannot be rejected",
                hint="use `onetool approve` with --happened, --not-happened or --repeat, or end the run with --stop",
            )
        numbers = tuple(call["number"] for call in calls)
        head = f"Reject {count_calls(numbers)} of run {run.id} (agent {run.agent})"
        lines = [f"{head}{', and end the run' if options.stop else ''}:"]
        by = identify_person(
            journal, run, options.token, [*lines, *(line for call in calls for line in describe_call(call))]
        )
        what = "stop" if options.stop else "reject"
        journal.record(run, what, numbers, by, reason=options.reason)
        decision = Decision(is_approved=False, by=by, calls=None, reason=options.reason, stops_run=options.stop)
        rejected = journal.store.decide(run.id, decision)
        if not rejected and not options.stop:
            raise ToolError(f"no call of run {run.id} waits any more: somebody else has answered")
        after = "The run was stopped." if options.stop else describe_after(journal, run)
        print_decision(options, run.id, what, rejected, f"Rejected {count_calls(rejected)} of run {run.id}. {after}")
    return 0
