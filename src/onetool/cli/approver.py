"""The journal of runs for commands, and the proof that a person decides: a terminal, or a token of scope `approve`.

An assistant can start commands, but it cannot answer in the terminal of the person who started it.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.cli.identity import user_name
from onetool.cli.terminal import CommandOutput, print_notices
from onetool.errors import ToolError
from onetool.paths import find_directories
from onetool.util.invisible import escape_invisible
from onetool.util.text import pluralize

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.config.load import Loaded
    from onetool.config.model import Token
    from onetool.runs.questions import Approver
    from onetool.runs.views import Waiting, WaitingCall
    from onetool.state.run_records import DurableRunRecord
    from onetool.state.run_store import RunTables
    from onetool.state.storage import State
    from onetool.stats.database import StatisticsDatabase
    from onetool.util.redact import Redactor

TERMINAL = Path("CON" if sys.platform == "win32" else "/dev/tty")
TOKEN_VARIABLE = "ONETOOL_TOKEN"  # noqa: S105 - the name of a variable
# ONETOOL_STORE chooses the runs as well as the tokens, so it approves nothing in another store.
VARIABLES = frozenset({"ONETOOL_CONFIG", "ONETOOL_DEBUG", "ONETOOL_KEY", "ONETOOL_STORE", "ONETOOL_TRUST"})
YES = frozenset({"y", "yes"})
SHORT_ID_CHARS = 10


@dataclass(frozen=True, slots=True)
class RunJournal:
    """The stored runs, with the settings."""

    loaded: "Loaded"
    state: "State"
    redact: "Redactor"

    @property
    def store(self) -> "RunTables":
        return self.state.runs

    @property
    def statistics(self) -> "StatisticsDatabase":
        return self.state.recorder.database

    def list_tokens(self) -> "Iterable[Token]":
        """Return the tokens of the settings and of the store, without those that were revoked."""
        return self.state.tokens.apply(self.loaded.settings.auth.tokens)

    def find_waiting(self, run_id: str) -> "tuple[DurableRunRecord, Waiting]":
        """Return the run with this id or prefix, and its waiting calls. Raise if none waits."""
        from onetool.runs.views import describe_waiting, find_run

        run = find_run(self.store, run_id)
        waiting = describe_waiting(self.store, run, self.redact)
        if waiting is None and run.state == "waiting":
            raise ToolError(f"all calls of run {run.id} were answered. {describe_after(self, run)}")
        if waiting is None:
            raise ToolError(f"no call of run {run.id} waits (the run is {run.state})")
        return run, waiting

    def record(self, run: "DurableRunRecord", decision: str, calls: Sequence[int], by: str, **facts: Any) -> None:
        """Write the decision to the audit log, before it is applied. Raise if that fails."""
        from onetool.state.audit import open_audit_log

        audit = open_audit_log(self.loaded, self.state)
        try:
            decided = {"run": run.id, "agent": run.agent, "decision": decision, "calls": list(calls), **facts}
            audit.write_decision(by=by, via="cli", transport="cli", **decided)
        finally:
            audit.close()


@contextmanager
def open_journal(options: argparse.Namespace) -> Iterator[RunJournal]:
    """Open the journal that servers in this directory use."""
    from onetool.config.load import load
    from onetool.state.opening import open_state
    from onetool.util.redact import Redactor

    # The caller sets the environment of the command: settings there must not decide who may approve.
    given = {name: value for name, value in os.environ.items() if name in VARIABLES or not name.startswith("ONETOOL_")}
    loaded = load(find_directories(given, Path.cwd(), options.config, Path.home()), given)
    print_notices(loaded.problems)
    with open_state(loaded) as state:
        yield RunJournal(loaded, state, Redactor(loaded.secret_values))


def add_decision_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help=f"token of scope approve, instead of a confirmation in the terminal (default: ${TOKEN_VARIABLE})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def identify_person(journal: RunJournal, run: "DurableRunRecord", token: str | None, lines: Iterable[str]) -> str:
    """Return who decides about a run, for the records; see `confirm_person`."""
    check_place(journal, run)
    return confirm_person(journal, token, lines)


def confirm_person(journal: RunJournal, token: str | None, lines: Iterable[str]) -> str:
    """Return who decides, for the records. Without a token, ask in the terminal whether to do what `lines` say."""
    needs_token = journal.loaded.settings.approvals.by == "token"
    given = token or os.environ.get(TOKEN_VARIABLE)
    if given:
        try:
            return _check_token(journal, given)
        except ToolError:
            if token or needs_token:  # the variable may have a token for another purpose
                raise
    if needs_token:
        raise ToolError(
            "a token of scope approve is required: approvals.by is token",
            hint=f"use --token TOKEN, or set {TOKEN_VARIABLE}",
        )
    _confirm(lines)
    return user_name()


def can_confirm(token: str | None) -> bool:
    """Return whether a person can confirm something: there is a terminal or a token."""
    return bool(token or os.environ.get(TOKEN_VARIABLE)) or _has_terminal()


def _has_terminal() -> bool:
    try:
        TERMINAL.open(encoding="utf-8").close()
    except OSError:
        return False
    return True


def check_place(journal: RunJournal, run: "DurableRunRecord") -> None:
    """Raise if calls of the run's agent cannot be approved on the command line."""
    agent = journal.loaded.settings.agents.get(run.agent)
    if agent is None:
        raise ToolError(f"unknown agent {run.agent!r}", hint=f"run the command in {run.directory}")
    if "cli" not in agent.approvals.via:
        allowed = ", ".join(agent.approvals.via) or "nowhere"
        raise ToolError(
            f"calls of agent {run.agent} cannot be approved on the command line: "
            f"agents.{run.agent}.approvals.via is [{allowed}]"
        )


def check_starter(journal: RunJournal, run: "DurableRunRecord") -> None:
    """Raise if the token that started the run was revoked: its calls can only be rejected."""
    from onetool.runs.decisions import is_revoked

    if is_revoked(run, journal.list_tokens(), journal.loaded.settings.auth.issuers):
        hint = f"reject its calls with `onetool reject {run.id[:SHORT_ID_CHARS]}`"
        raise ToolError(f"run {run.id} cannot continue: {run.actor or 'its token'} was revoked", hint=hint)


def _check_token(journal: RunJournal, given: str) -> str:
    from onetool.config.access_tokens import TokenSet
    from onetool.util.token_ids import hash_token, includes_scope

    # Tokens in environment variables prove nothing: the caller of the command sets them.
    tokens, token_hash = TokenSet(journal.list_tokens(), {}), hash_token(given)
    token = tokens.find(token_hash)
    if token is None and tokens.is_expired(token_hash):
        raise ToolError("the token has expired", hint="create one with `onetool token create NAME --scope approve`")
    if token is None:
        raise ToolError("unknown token", hint="create one with `onetool token create NAME --scope approve`")
    if not includes_scope(token.scope, "approve"):
        raise ToolError(f"token {token.name} has the scope {token.scope}: expected approve, admin or owner")
    return f"token {token.name}"


def find_terminal_approver(app: "OneTool", agent: str, output: CommandOutput) -> "Approver | None":
    """Return the person at the terminal, if the policy of the agent asks. The shared server has no terminal."""
    if app.config_error is not None or agent not in app.settings.agents:
        return None  # the command says what is wrong
    policy, _ = app.agents.get_policy(agent)
    if not policy.can_ask:
        return None
    if output.is_remote:
        from onetool.cli.remote import NotRemote

        raise NotRemote
    return _make_terminal_approver(app)


def _make_terminal_approver(app: "OneTool") -> "Approver | None":
    """Return the person at the controlling terminal, who is asked about calls of a run; None if nobody can be asked."""
    import anyio.to_thread

    from onetool.runs.questions import APPROVE, Approver, Question
    from onetool.runs.views import describe_waiting, find_run

    def ask(question: Question) -> dict[str, str] | None:
        run = find_run(app.state.runs, question.run_id)
        waiting = describe_waiting(app.state.runs, run, app.redact)
        numbers = [call.number for call in question.calls]
        lines = [f"Approve {count_calls(numbers)} of run {run.id} (agent {run.agent}):"]
        for call in waiting["calls"] if waiting is not None else ():
            if call["number"] in numbers:
                lines += describe_call(call)
        return {"decision": APPROVE} if _ask(lines) else None

    async def ask_in_thread(question: Question) -> dict[str, str] | None:
        return await anyio.to_thread.run_sync(ask, question, abandon_on_cancel=True)

    needs_token = app.settings.approvals.by == "token"
    if needs_token or not _has_terminal():
        return None
    return Approver(ask_in_thread, user_name(), "cli", "cli")


def _confirm(lines: Iterable[str]) -> None:
    """Ask in the controlling terminal. Raise unless confirmed."""
    if not _ask(lines):
        raise ToolError("not confirmed; nothing was changed")


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
            hint=f"run the command in a terminal, or use --token TOKEN (or {TOKEN_VARIABLE}) of scope approve",
        ) from None
    return answer.strip().lower() in YES


# --- text ------------------------------------------------------------------------------------------------------------


def describe_call(call: "WaitingCall") -> Iterator[str]:
    """Yield the lines of a call: its number, tool and effects, why it waits, and its arguments."""
    yield f"  {call['number']}. {call['tool']} ({', '.join(call['effects']) or 'no effects declared'})"
    if call["state"] == "unknown":
        yield "     It was sent, but nobody knows whether it happened."
    elif call["reason"]:
        yield f"     {call['reason']}"
    yield from (f"     {name}: {json.dumps(value, ensure_ascii=False)}" for name, value in call["arguments"].items())


def describe_after(journal: RunJournal, run: "DurableRunRecord") -> str:
    """Return what happens to the run next."""
    if journal.store.is_alive(run.owner):
        return "The run continues."
    command = f"onetool run 'ot.run_result(\"{run.id}\")'"
    return f"The run continues when a server runs in {run.directory or 'its directory'}. To continue it now: {command}"


def print_decision(options: argparse.Namespace, run_id: str, decision: str, calls: Sequence[int], text: str) -> None:
    """Print what was decided."""
    print(json.dumps({"run": run_id, "decision": decision, "calls": list(calls)}) if options.json else text)


def count_calls(numbers: Sequence[int]) -> str:
    return pluralize(len(numbers), "call")
