"""Approve calls of a run that wait.

The command shows the calls and asks for confirmation in the terminal. Without a terminal, it needs a token of scope
approve.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onetool.cli.approver import (
    RunJournal,
    add_decision_arguments,
    check_starter,
    count_calls,
    describe_after,
    describe_call,
    identify_person,
    open_journal,
    print_decision,
)
from onetool.errors import ToolError
from onetool.util.text import pluralize

if TYPE_CHECKING:
    from onetool.runs.views import Waiting, WaitingCall
    from onetool.state.run_records import DurableRunRecord, Grant

MAX_EXAMPLES = 3


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
        help="also allow further calls with the same arguments, except for patterns and for those that may be anything "
        "(...), such as 'gh.create_issue(repo=\"me/*\", title=...)'",
    )
    parser.add_argument("--count", type=int, metavar="N", help="number of further calls (default: 1)")
    parser.add_argument(
        "--for",
        dest="duration",
        metavar="DURATION",
        help="allow them in all runs of the agent for this time, such as 30m, 2h or 1d (default: in this run only)",
    )
    outcomes = parser.add_mutually_exclusive_group()
    for outcome, text in (
        ("happened", "the call happened, although its process was interrupted; its value is None"),
        ("not-happened", "the call did not happen; the code gets an error"),
        ("repeat", "make the call again"),
    ):
        outcomes.add_argument(f"--{outcome}", dest="outcome", action="store_const", const=outcome, help=text)
    add_decision_arguments(parser)


def main(options: argparse.Namespace) -> int:
    if (options.count is not None or options.duration is not None) and options.grant is None:
        options.usage_error("--count and --for require --grant")
    if options.outcome and not options.call:
        options.usage_error(f"--{options.outcome} requires --call")
    with open_journal(options) as journal:
        run, waiting = journal.find_waiting(options.run)
        check_starter(journal, run)
        state = "unknown" if options.outcome else "pending"
        calls = _select_calls(waiting, options.call, state)
        return _resolve(journal, run, calls, options) if options.outcome else _approve(journal, run, calls, options)


def _select_calls(waiting: "Waiting", numbers: Sequence[int], state: str) -> "list[WaitingCall]":
    known = {call["number"]: call for call in waiting["calls"] if call["state"] == state}
    if missing := [str(number) for number in numbers if number not in known]:
        expected = f"expected {', '.join(map(str, known))}" if known else "none waits"
        raise ToolError(f"call {', '.join(missing)} of run {waiting['run']} does not wait for this: {expected}")
    if not known:
        first = waiting["calls"][0]["number"]
        raise ToolError(
            f"call {first} of run {waiting['run']} was sent, but nobody knows whether it happened",
            hint=f"find out, then use --call {first} with --happened, --not-happened or --repeat",
        )
    return [known[number] for number in dict.fromkeys(numbers)] or list(known.values())


def _approve(
    journal: RunJournal, run: "DurableRunRecord", calls: "list[WaitingCall]", options: argparse.Namespace
) -> int:
    from dataclasses import replace

    from onetool.runs.decisions import complete
    from onetool.state.run_records import Decision

    numbers = tuple(call["number"] for call in calls)
    asked = Decision(True, "", numbers, grants=_make_grants(journal, run, numbers, options))
    grants = complete(asked, run, run.expires).grants
    head = f"Approve {count_calls(numbers)} of run {run.id} (agent {run.agent}):"
    lines = [head, *(line for call in calls for line in describe_call(call))]
    by = identify_person(journal, run, options.token, [*lines, *_describe_grants(journal, run, grants)])
    decision = complete(replace(asked, by=by), run, run.expires)
    patterns = [{"id": grant.id, "pattern": options.grant, "count": grant.left} for grant in grants]
    journal.record(run, "approve", numbers, by, grants=patterns)
    approved = journal.store.decide(run.id, decision)
    if not approved:
        raise ToolError(f"no call of run {run.id} waits any more: somebody else has answered")
    text = f"Approved {count_calls(approved)} of run {run.id}. {describe_after(journal, run)}"
    print_decision(options, run.id, "approve", approved, text)
    return 0


def _make_grants(
    journal: RunJournal, run: "DurableRunRecord", numbers: Sequence[int], options: argparse.Namespace
) -> "tuple[Grant, ...]":
    from onetool.runs.decisions import MAX_DAYS, parse_pattern
    from onetool.runs.grants import make_grants
    from onetool.util.time_format import parse_duration

    if options.grant is None:
        return ()
    tool, patterns, varying = parse_pattern(options.grant)
    expires = 0.0 if options.duration is None else time.time() + parse_duration(options.duration, MAX_DAYS)
    calls = [call for call in journal.store.list_calls(run.id) if call.number in numbers]
    count = 1 if options.count is None else options.count
    return make_grants(calls, tool, patterns, varying, count=count, expires=expires)


def _describe_grants(journal: RunJournal, run: "DurableRunRecord", grants: "Sequence[Grant]") -> Iterator[str]:
    """Yield what the grants allow, with examples among the waiting calls."""
    from onetool.runs.grants import covers, describe_grant
    from onetool.runs.views import WAITING_STATES
    from onetool.util.time_format import in_utc

    for grant in grants:
        place = (
            "in this run"
            if grant.run
            else f"in all runs of agent {grant.agent}, until {in_utc(grant.expires, 'seconds')}"
        )
        yield f"Also allow {describe_grant(grant)}, {place}."
        calls = journal.store.list_calls(run.id, WAITING_STATES)
        covered = [call for call in calls if covers(grant, call.tool, json.loads(call.arguments), call.definition)]
        listed = ", ".join(str(call.number) for call in covered[:MAX_EXAMPLES])
        more = f" and {len(covered) - MAX_EXAMPLES} more" if len(covered) > MAX_EXAMPLES else ""
        others = len(calls) - len(covered)
        rest = f"; it does not cover {pluralize(others, 'other call')}" if others else ""
        yield f"  It covers calls like {listed}{more}{rest}." if covered else "  It covers none of the waiting calls."


def _resolve(
    journal: RunJournal, run: "DurableRunRecord", calls: "list[WaitingCall]", options: argparse.Namespace
) -> int:
    from onetool.runs.decisions import resolve_call

    numbers = tuple(call["number"] for call in calls)
    head = f"Record as {options.outcome}: {count_calls(numbers)} of run {run.id} (agent {run.agent}):"
    lines = [head, *(line for call in calls for line in describe_call(call))]
    by = identify_person(journal, run, options.token, lines)
    journal.record(run, options.outcome, numbers, by)
    for number in numbers:
        resolve_call(journal.store, run.id, number, options.outcome, by)
    text = f"Recorded {count_calls(numbers)} of run {run.id} as {options.outcome}. {describe_after(journal, run)}"
    print_decision(options, run.id, options.outcome, numbers, text)
    return 0
