"""Commands for decisions of a person: approvals, approve, reject and snippets."""

import argparse
import json
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onetool.cli.approver import (
    add_decision_arguments,
    confirm_person,
    decide,
    describe_call,
    find_waiting,
)
from onetool.cli.command import Actions, Command
from onetool.cli.invocation import Invocation
from onetool.errors import ToolError
from onetool.state.run_records import SHORT_ID_CHARS
from onetool.util.text import pluralize
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.admin.approvals import DecisionRequest, SavedSnippetInfo
    from onetool.admin.recorded_calls import Approval, ApprovalCall
    from onetool.app import OneTool
    from onetool.state.run_records import RunRecord

MAX_EXAMPLES = 3


# --- approvals ------------------------------------------------------------------------------------


async def _list_approvals(command: Invocation) -> None:
    from onetool.admin.approvals import list_approvals

    waiting = await command.do(list_approvals)
    lines = (line for approval in waiting.approvals for line in _describe_approval(approval))
    command.show(waiting.model_dump(), lines, "No calls wait for approval.")


def _describe_approval(approval: "Approval") -> Iterator[str]:
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


# --- approve --------------------------------------------------------------------------------------


def _add_approve_arguments(parser: argparse.ArgumentParser) -> None:
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


def _check_approve(options: argparse.Namespace) -> None:
    if (options.count is not None or options.duration is not None) and options.grant is None:
        options.usage_error("--count and --for require --grant")
    if options.outcome and not options.call:
        options.usage_error(f"--{options.outcome} requires --call")


async def _approve(command: Invocation) -> None:
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
        if covered:
            yield f"  It covers calls like {listed}{more}{rest}."
        else:
            yield "  It covers none of the waiting calls."


# --- reject ---------------------------------------------------------------------------------------


def _add_reject_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="id of the run, or its first characters")
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="reason, which the code and the model see"
    )
    parser.add_argument("--stop", action="store_true", help="also end the run")
    add_decision_arguments(parser)


async def _reject(command: Invocation) -> None:
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


# --- snippets -------------------------------------------------------------------------------------


def _add_snippets_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add("list", _list, "List saved snippets with their code")
    accept = actions.add("accept", _accept, "Let all agents use a saved snippet")
    delete = actions.add("delete", _delete, "Delete a saved snippet")
    accept.add_argument(
        "--token", metavar="TOKEN", help="token of scope approve, instead of a confirmation"
    )
    for action in (accept, delete):
        action.add_argument("name", metavar="NAME", help="name of the snippet")
        action.add_argument(
            "--agent",
            default="default",
            metavar="AGENT",
            help="agent that saved it (default: default)",
        )


async def _list(command: Invocation) -> None:
    from onetool.admin.approvals import list_snippets

    snippets = (await command.do(list_snippets)).snippets
    data = {"snippets": [snippet.model_dump(exclude={"digest"}) for snippet in snippets]}
    lines = (line for snippet in snippets for line in _describe_snippet(snippet))
    command.show(data, lines, "No snippets are saved. An agent saves one with ot.save_snippet.")


async def _accept(command: Invocation) -> None:
    """Show the code to a person, and accept it if the person confirms."""
    from onetool.admin.approvals import SnippetAcceptance, accept_snippet, describe, find_snippet

    app = command.app
    snippet = describe(find_snippet(app, command.options.agent, command.options.name))
    lines = [f"All agents will be able to run ${snippet.name}:", *_list_code(snippet)]
    person = await confirm_person(app, command.options.token, lines)
    await accept_snippet(
        app, person, snippet.agent, snippet.name, SnippetAcceptance(digest=snippet.digest)
    )
    command.show({"snippet": snippet.name, "accepted": True}, [f"{snippet.name}: accepted"])


async def _delete(command: Invocation) -> None:
    from onetool.admin.approvals import delete_snippet

    name = command.options.name.removeprefix("$")
    await command.do(delete_snippet, command.options.agent, name)
    command.show({"snippet": name, "deleted": True}, [f"{name}: deleted"])


def _describe_snippet(snippet: "SavedSnippetInfo") -> Iterator[str]:
    state = "not accepted for other agents"
    if snippet.accepted_by:
        state = f"accepted by {snippet.accepted_by}"
    yield f"${snippet.name}  agent {snippet.agent}, {snippet.saved}, {state}"
    yield f"  {snippet.description}"
    yield from _list_code(snippet)


def _list_code(snippet: "SavedSnippetInfo") -> Iterator[str]:
    """Yield the code with the defaults of its parameters, which are a part of what it does."""
    yield from (f"    {line}" for line in snippet.body.splitlines())
    if snippet.params:
        yield "  by default, with"
    yield from (
        f"    {name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in snippet.params.items()
    )


APPROVE_HELP = """\
Approve calls of a run that wait.

The command shows the calls and asks for confirmation in the terminal. Without a terminal, it needs
a token of scope approve.
"""
REJECT_HELP = """\
Reject the calls of a run that wait.

The code of the run gets an error that it can catch. The command asks for confirmation in the
terminal. Without a terminal, it needs a token of scope approve.
"""
COMMANDS = {
    "approvals": Command("List calls that wait for approval.", execute=_list_approvals),
    "approve": Command(
        APPROVE_HELP,
        _add_approve_arguments,
        check=_check_approve,
        execute=_approve,
        is_guarded=True,
    ),
    "reject": Command(REJECT_HELP, _add_reject_arguments, execute=_reject, is_guarded=True),
    "snippets": Command(
        "Manage snippets that agents saved. Snippets of the settings are not listed.",
        _add_snippets_arguments,
        is_guarded=True,
    ),
}
