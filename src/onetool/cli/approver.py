"""The proof that a person decides: a terminal, or a token of scope `approve`.

An assistant can start commands, but it cannot answer in the terminal of the person who started it.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.invocation import Invocation, identify_owner, user_name
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible
from onetool.util.text import pluralize

if TYPE_CHECKING:
    from onetool.admin.action import Person
    from onetool.admin.approvals import DecisionRequest
    from onetool.admin.recorded_calls import Approval, ApprovalCall
    from onetool.app import OneTool
    from onetool.runs.questions import Approver
    from onetool.state.run_records import RunRecord

TERMINAL = Path("CON" if sys.platform == "win32" else "/dev/tty")
TOKEN_VARIABLE = "ONETOOL_TOKEN"  # noqa: S105 - the name of a variable
YES = frozenset({"y", "yes"})


def find_waiting(app: "OneTool", run_id: str) -> "tuple[RunRecord, Approval]":
    """Return the run with this id or prefix, and its waiting calls.

    Raise if none waits, or if it waits elsewhere.
    """
    from onetool.admin.recorded_calls import describe_waiting, find_run

    run = find_run(app.state.runs, run_id)
    waiting = describe_waiting(app.state.runs, run, app.redact)
    if waiting is None and run.state == "waiting":
        raise ToolError(f"all calls of run {run.id} were answered. {describe_after(app, run.id)}")
    if waiting is None:
        raise ToolError(f"no call of run {run.id} waits (the run is {run.state})")
    app.runs.check_place(run, "cli")
    return run, waiting


def add_decision_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help=(
            "token of scope approve, instead of a confirmation in the terminal (default:"
            f" ${TOKEN_VARIABLE})"
        ),
    )


async def decide(
    command: Invocation,
    waiting: "Approval",
    calls: "Sequence[ApprovalCall]",
    request: "DecisionRequest",
    *,
    todo: str,
    done: str,
    more: Iterable[str] = (),
) -> None:
    """Let a person confirm a decision about calls, then apply and print it.

    `todo` and `done` are sentences with `{}` for the calls. `more` are lines that a person reads
    after the calls.
    """
    from onetool.admin.approvals import decide_calls

    app = command.app
    head = todo.format(
        f"{pluralize(len(calls), 'call')} of run {waiting.run} (agent {waiting.agent})"
    )
    lines = [f"{head}:", *(line for call in calls for line in describe_call(call)), *more]
    person = await confirm_person(app, command.options.token, lines)
    numbers = (await decide_calls(app, person, waiting.run, request)).calls
    text = done.format(f"{pluralize(len(numbers), 'call')} of run {waiting.run}")
    after = "The run was stopped." if request.stop else describe_after(app, waiting.run)
    decision = "stop" if request.stop else request.decision
    command.show({"run": waiting.run, "decision": decision, "calls": numbers}, [f"{text}. {after}"])


async def confirm_person(app: "OneTool", token: str | None, lines: Iterable[str]) -> "Person":
    """Return who decides. Without a token, ask in the terminal whether to do what `lines` say."""
    proof = token or os.environ.get(TOKEN_VARIABLE)
    needs_token = app.settings.approvals.by == "token"
    if proof:
        try:
            return _check_token(app, proof)
        except ToolError:
            if token or needs_token:  # the variable may have a token for another purpose
                raise
    if needs_token:
        raise ToolError(
            "a token of scope approve is required: approvals.by is token",
            hint=f"use --token TOKEN, or set {TOKEN_VARIABLE}",
        )
    if not await _ask_in_thread(lines):
        raise ToolError("not confirmed; nothing was changed")
    return identify_owner()


def can_confirm(token: str | None) -> bool:
    """Return whether a person can confirm something: there is a terminal or a token."""
    return bool(token or os.environ.get(TOKEN_VARIABLE)) or _has_terminal()


def _has_terminal() -> bool:
    try:
        TERMINAL.open(encoding="utf-8").close()
    except OSError:
        return False
    return True


def _check_token(app: "OneTool", text: str) -> "Person":
    from onetool.admin.action import Person
    from onetool.settings.access import TokenSet
    from onetool.util.token_ids import hash_token, includes_scope

    # Tokens in environment variables prove nothing: the caller of the command sets them.
    tokens = TokenSet(app.state.tokens.apply(app.settings.auth.tokens), {})
    token_hash = hash_token(text)
    token = tokens.find(token_hash)
    if token is None and tokens.is_expired(token_hash):
        raise ToolError(
            "the token has expired",
            hint="create one with `onetool token create NAME --scope approve`",
        )
    if token is None:
        raise ToolError(
            "unknown token", hint="create one with `onetool token create NAME --scope approve`"
        )
    if not includes_scope(token.scope, "approve"):
        raise ToolError(
            f"token {token.name} has the scope {token.scope}: expected approve, admin or owner"
        )
    return Person(f"token {token.name}", token.scope, transport="cli")


def find_terminal_approver(command: Invocation) -> "Approver | None":
    """Return the person at the terminal, if the policy of the agent asks.

    The shared server has no terminal.
    """
    app = command.app
    agent = command.options.agent
    if app.config_error is not None or agent not in app.settings.agents:
        return None  # the command says what is wrong
    policy, _ = app.agents.get_policy(agent)
    if not policy.can_ask:
        return None
    if command.output.is_remote:
        from onetool.cli.remote import NotRemote

        raise NotRemote
    return _make_terminal_approver(app)


def _make_terminal_approver(app: "OneTool") -> "Approver | None":
    """Return the person at the terminal, who is asked about calls; None without one."""
    from onetool.admin.recorded_calls import describe_waiting, find_run
    from onetool.runs.questions import APPROVE, Approver, Question

    async def ask(question: Question) -> dict[str, str] | None:
        run = find_run(app.state.runs, question.run_id)
        waiting = describe_waiting(app.state.runs, run, app.redact)
        numbers = [call.number for call in question.calls]
        lines = [f"Approve {pluralize(len(numbers), 'call')} of run {run.id} (agent {run.agent}):"]
        for call in waiting.calls if waiting is not None else ():
            if call.number in numbers:
                lines += describe_call(call)
        return {"decision": APPROVE} if await _ask_in_thread(lines) else None

    needs_token = app.settings.approvals.by == "token"
    if needs_token or not _has_terminal():
        return None
    return Approver(ask, user_name(), "cli", "cli")


async def _ask_in_thread(lines: Iterable[str]) -> bool:
    from anyio.to_thread import run_sync as run_in_thread

    return await run_in_thread(_ask, lines, abandon_on_cancel=True)


def _ask(lines: Iterable[str]) -> bool:
    """Ask in the controlling terminal, never on standard input, which a program may write."""
    try:
        with (
            TERMINAL.open("w", encoding="utf-8", errors="replace") as output,
            TERMINAL.open(encoding="utf-8", errors="replace") as answers,
        ):
            for line in lines:
                print(escape_invisible(line), file=output)
            print("Continue? [y/N] ", end="", file=output, flush=True)
            answer = answers.readline()
    except OSError:
        raise ToolError(
            "no terminal to confirm in",
            hint=(
                f"run the command in a terminal, or use --token TOKEN (or {TOKEN_VARIABLE}) of"
                " scope approve"
            ),
        ) from None
    return answer.strip().lower() in YES


# --- text -----------------------------------------------------------------------------------------


def describe_call(call: "ApprovalCall") -> Iterator[str]:
    """Yield the lines of a call: its number, tool and effects, why it waits, and its arguments."""
    yield f"  {call.number}. {call.tool} ({', '.join(call.effects) or 'no effects declared'})"
    if call.state == "unknown":
        yield "     It was sent, but nobody knows whether it happened."
    elif call.reason:
        yield f"     {call.reason}"
    yield from (
        f"     {name}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in call.arguments.items()
    )


def describe_after(app: "OneTool", run_id: str) -> str:
    """Return what happens to the run next."""
    run = app.state.runs.get_run(run_id)
    if run is None or app.state.runs.is_alive(run.owner):
        return "The run continues."
    command = f"onetool run 'ot.run_result(\"{run.id}\")'"
    return (
        f"The run continues when a server runs in {run.directory or 'its directory'}. To continue"
        f" it now: {command}"
    )
