"""Approve calls of a run that wait.

The command shows the calls and asks for confirmation in the terminal. Without a terminal, it needs
a token of scope approve.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onetool.cli.approver import add_decision_arguments, decide, find_waiting
from onetool.cli.invocation import Invocation
from onetool.errors import ToolError
from onetool.util.text import pluralize
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.admin.approvals import DecisionRequest
    from onetool.admin.recorded_calls import Approval, ApprovalCall
    from onetool.app import OneTool
    from onetool.state.run_records import RunRecord

MAX_EXAMPLES = 3
IS_GUARDED = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="id of the run, or its first characters")
    parser.add_argument(
        "--call",
        type=int,
        nargs="+",
        action="extend",
        default=[],
        metavar="N",
        help="numbers of the calls (default: all that wait)",
    )
    parser.add_argument(
        "--grant",
        metavar="PATTERN",
        help=(
            "also allow further calls with the same arguments, except for patterns and for those"
            " that may be anything (...), such as 'gh.create_issue(repo=\"me/*\", title=...)'"
        ),
    )
    parser.add_argument(
        "--count", type=int, metavar="N", help="number of further calls (default: 1)"
    )
    parser.add_argument(
        "--for",
        dest="duration",
        metavar="DURATION",
        help=(
            "allow them in all runs of the agent for this time, such as 30m, 2h or 1d (default: in"
            " this run only)"
        ),
    )
    outcomes = parser.add_mutually_exclusive_group()
    for outcome, text in (
        ("happened", "the call happened, although its process was interrupted; its value is None"),
        ("not-happened", "the call did not happen; the code gets an error"),
        ("repeat", "make the call again"),
    ):
        outcomes.add_argument(
            f"--{outcome}", dest="outcome", action="store_const", const=outcome, help=text
        )
    add_decision_arguments(parser)


def check(options: argparse.Namespace) -> None:
    if (options.count is not None or options.duration is not None) and options.grant is None:
        options.usage_error("--count and --for require --grant")
    if options.outcome and not options.call:
        options.usage_error(f"--{options.outcome} requires --call")


async def execute(command: Invocation) -> None:
    from onetool.admin.approvals import DecisionRequest

    app = command.app
    options = command.options
    run, waiting = find_waiting(app, options.run)
    app.runs.check_starter(run)
    calls = _select_calls(waiting, options.call, "unknown" if options.outcome else "pending")
    numbers = [call.number for call in calls]
    choice = options.outcome or "approve"
    request = DecisionRequest.parse(
        {"decision": choice, "calls": numbers, "grants": _read_grants(options)}
    )
    todo = f"Record as {options.outcome}: {{}}" if options.outcome else "Approve {}"
    done = f"Recorded {{}} as {options.outcome}" if options.outcome else "Approved {}"
    grants = _describe_grants(app, run, request)
    await decide(command, waiting, calls, request, todo=todo, done=done, more=grants)


def _select_calls(waiting: "Approval", numbers: Sequence[int], state: str) -> "list[ApprovalCall]":
    calls = {call.number: call for call in waiting.calls if call.state == state}
    if missing := [str(number) for number in numbers if number not in calls]:
        expected = f"expected {', '.join(map(str, calls))}" if calls else "none waits"
        raise ToolError(
            f"call {', '.join(missing)} of run {waiting.run} does not wait for this: {expected}"
        )
    if not calls:
        first = waiting.calls[0].number
        raise ToolError(
            f"call {first} of run {waiting.run} was sent, but nobody knows whether it happened",
            hint=f"find out, then use --call {first} with --happened, --not-happened or --repeat",
        )
    return [calls[number] for number in dict.fromkeys(numbers)] or list(calls.values())


def _read_grants(options: argparse.Namespace) -> list[JsonObject]:
    from onetool.runs.questions import MAX_DAYS, parse_pattern
    from onetool.util.time_format import parse_duration

    if options.grant is None:
        return []
    tool, patterns, varying = parse_pattern(options.grant)
    seconds = None if options.duration is None else parse_duration(options.duration, MAX_DAYS)
    count = 1 if options.count is None else options.count
    return [
        {
            "tool": tool,
            "arguments": patterns,
            "varying": list(varying),
            "count": count,
            "seconds": seconds,
        }
    ]


def _describe_grants(app: "OneTool", run: "RunRecord", request: "DecisionRequest") -> Iterator[str]:
    """Yield what the grants allow, with examples among the waiting calls."""
    from onetool.admin.approvals import plan_grants
    from onetool.admin.recorded_calls import WAITING_STATES
    from onetool.runs.questions import covers, describe_grant
    from onetool.util.time_format import in_utc

    for grant in plan_grants(app, run.id, request):
        place = "in this run"
        if grant.expires:
            place = f"in all runs of agent {run.agent}, until {in_utc(grant.expires, 'seconds')}"
        yield f"Also allow {describe_grant(grant)}, {place}."
        calls = app.state.runs.list_calls(run.id, WAITING_STATES)
        covered = [
            call
            for call in calls
            if covers(grant, call.tool, json.loads(call.arguments), call.definition)
        ]
        listed = ", ".join(str(call.number) for call in covered[:MAX_EXAMPLES])
        more = f" and {len(covered) - MAX_EXAMPLES} more" if len(covered) > MAX_EXAMPLES else ""
        others = len(calls) - len(covered)
        rest = f"; it does not cover {pluralize(others, 'other call')}" if others else ""
        yield (
            f"  It covers calls like {listed}{more}{rest}."
            if covered
            else "  It covers none of the waiting calls."
        )
