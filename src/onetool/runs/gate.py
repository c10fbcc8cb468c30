"""The gate of a run: each call passes the policy, is recorded before it is made and, if necessary,
waits for a person.

`ToolBus` calls `decide` for every call of the run, then `Ticket.send` before the call is made and
`Ticket.finish` after it. A run that may ask a person can be replayed after its process has ended:
all of its calls are recorded, and calls that were recorded before are answered from the journal.
Other runs record only calls with effects.
"""

import asyncio
import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from onetool.core.policy.effects import SessionLabels, changes_something, get_effects, sort_effects
from onetool.core.policy.rules import Policy, Ruling, make_denial
from onetool.core.tool import Tool
from onetool.errors import (
    ApprovalRequired,
    CallRejected,
    Interrupted,
    StorageError,
    ToolError,
    error_type,
)
from onetool.runs.questions import (
    ACCOUNT_ARGUMENT,
    MAX_ARGUMENTS,
    Approver,
    Question,
    covers,
    describe_difference,
    summarize,
)
from onetool.runs.replay import (
    SETTLED,
    JournalEntry,
    RecordedCalls,
    digest_call,
    digest_definition,
    encode_arguments,
    encode_in_thread,
    encode_result,
    has_acted,
    order_in_thread,
    read_result,
    record_result,
)
from onetool.state.run_records import ENDED, CallState, DurableCall, RunRecord, RunState
from onetool.util.context import Result, ToolContext
from onetool.util.text import pluralize
from onetool_child.errors import get_message
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.runs.answer import Answer
    from onetool.runs.runs import Runs

BATCH_SECONDS = 0.05  # after the first call that waits, for others to join the question
MAX_RESULTS_BYTES = 16 << 20  # of all results of a run; a run with more cannot be replayed
MAX_JOURNAL_BYTES = 64 << 20  # of all arguments and results of a run; then it sends no more calls
MAX_HISTORY = 20  # calls in the message of a run that ended
CHANGED = "the definition of the tool has changed since the call was approved"
ANSWERED = frozenset({CallState.APPROVED, CallState.REJECTED, *SETTLED})


@dataclass(slots=True)
class Ticket:
    """A call that may be made. `recorded` is its result, if it was made before."""

    gate: "Gate"
    call: DurableCall
    tool: Tool
    args: JsonMapping
    context: ToolContext
    grant: str | None = None
    recorded: Result | None = None
    is_repeated: bool = False  # whether a process that has ended sent the call

    @property
    def call_id(self) -> str:
        """The ID of the call, which a process that continues the run finds again."""
        return f"{self.gate.id}-{self.call.key[:16]}-{self.call.occurrence}"

    @property
    def is_repeatable(self) -> bool:
        """Whether another process may continue the run, and repeat the call."""
        return self.gate.is_replayable

    @property
    def is_detached(self) -> bool:
        """Whether no request waits for the run."""
        return self.gate.hold == math.inf

    @property
    def continues_elsewhere(self) -> bool:
        """Whether the call was cancelled only because this process ends."""
        return self.gate.is_replayable and self.gate.is_closing

    async def send(self) -> None:
        """Record that the call is about to be made. If that fails, it must not be made."""
        await self.gate.send(self)

    async def finish(self, result: Result) -> Result:
        """Record the result of the call, and return it."""
        return await self.gate.finish(self, result)


class Gate:
    """The policy and the journal of one run, or of one call outside of a run."""

    def __init__(
        self,
        runs: "Runs",
        record: RunRecord,
        policy: Policy,
        labels: SessionLabels | None = None,
        *,
        via: Iterable[str] = (),
        ask: Approver | None = None,
        hold: float = 0.0,
        recorded: Iterable[DurableCall] = (),
    ) -> None:
        self.entry = JournalEntry(runs.journal, record)
        self.policy = policy
        self.labels = labels
        self.keeps_outcome = record.is_replayable
        self.via = frozenset(via)
        self.ask = ask
        self.hold = hold
        self.paused = asyncio.Event()  # while calls wait: nobody has answered for `hold` seconds
        self.stopped: ToolError | None = None  # why the run makes no more calls
        self.in_flight = 0
        self.task: asyncio.Task[Answer] | None = None  # that executes the run
        self.timer: asyncio.TimerHandle | None = None  # that ends the process of a paused run
        self.is_background = False
        self._runs = runs
        self.is_separate = False  # whether it belongs to one call of a run that cannot wait
        self.recorded = RecordedCalls(recorded)
        self.history = self.recorded.history  # calls with effects that this run has made
        self._last_number = self.recorded.last_number
        self._results_bytes = self.recorded.results_bytes
        self._arguments_bytes = self.recorded.arguments_bytes
        self._waiting: dict[int, tuple[DurableCall, asyncio.Future[DurableCall]]] = {}
        self._waiting_since = 0.0  # of the monotonic clock
        self._storing: set[int] = set()  # calls among those that wait, which nobody can answer yet
        self._asking: asyncio.Future[None] | None = None

    @property
    def record(self) -> RunRecord:
        return self.entry.record

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def is_replayable(self) -> bool:
        """Whether another process may continue the run, or make its call."""
        return self.record.is_replayable

    @property
    def is_closing(self) -> bool:
        return self._runs.is_closing

    def close(self, error: BaseException | None) -> None:
        """Record the end of a call outside of a run.

        One that waits is left to the process that continues it.
        """
        if isinstance(error, ApprovalRequired):
            self._runs.journal.active.discard(self.id)
        else:
            self.entry.end_later(None if error is None else error_type(error))

    async def end(self, state: RunState, reason: str) -> None:
        """End the run early. It makes no more calls."""
        self.stopped = self.stopped or Interrupted(
            f"run {self.id} has ended: {reason}", run=self.id
        )
        if self.entry.is_stored and self.record.state not in ENDED:
            await self.entry.set_state(state, reason=f"{reason}; {self.describe_history()}")

    @property
    def cell_params(self) -> JsonObject:
        """The parameters of the cell that make a run repeatable."""
        if not self.is_replayable:
            return {}
        replay = {"seed": self.id, "clock": self.record.at, "until": self.recorded.settled}
        return {"pausable": True, "replay": replay}

    # --- the three steps of a call ----------------------------------------------------------------

    async def decide(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Ticket | None:
        """Return a ticket for the call, or None if nothing about it is recorded.

        Raise if it must not be made.
        """
        if self.stopped is not None:
            raise self.stopped
        ruling = self.policy.decide(tool, args, self.labels, context.account)
        if ruling.decision == "deny":
            raise make_denial(tool, ruling, self.record.agent)
        if ruling.decision == "ask" and not self.record.is_replayable and not self.policy.can_ask:
            return await self._decide_separately(tool, args, context)
        is_recorded = self.is_replayable or changes_something(tool, args)
        if ruling.decision == "allow" and not is_recorded:
            self._record_labels(tool, args, context)
            return None
        ticket = Ticket(
            self, await self._identify(tool, args, context.account), tool, args, context
        )
        call = ticket.call = await self._settle(ticket, ruling)
        if call.state is CallState.REJECTED:
            raise self._rejection(call)
        if call.state in SETTLED:
            self._record_labels(tool, args, context)
            ticket.recorded = read_result(call)
        return ticket

    async def _decide_separately(
        self, tool: Tool, args: JsonMapping, context: ToolContext
    ) -> Ticket | None:
        """Ask about a call of a run that cannot be replayed, as a run of its own."""
        gate = self._runs.open_separate_gate(self)
        try:
            return await gate.decide(tool, args, context)
        except BaseException as error:
            gate.close(error)
            raise

    def _record_labels(self, tool: Tool, args: JsonMapping, context: ToolContext) -> None:
        """Remember which private and untrusted data the client may have received."""
        if self.labels is not None:
            self.labels.record(tool, args, context.run.is_untrusted())

    async def _settle(self, ticket: Ticket, ruling: Ruling) -> DurableCall:
        """Return the call after asking people, if necessary."""
        call = ticket.call
        tool = ticket.tool
        if call.state is CallState.PENDING:
            if ruling.decision == "ask":
                return await self._authorize(
                    ticket, replace(call, reason=call.reason or ruling.reason)
                )
            return replace(call, state=CallState.APPROVED)
        if call.state in {CallState.SENT, CallState.UNKNOWN} and has_acted(call):
            if (tool.is_idempotent or tool.is_resumable) and call.is_idempotent:
                return call
            reason = "its process ended after the call was sent: nobody knows whether it happened"
            return await self._wait_for_person(
                ticket, replace(call, state=CallState.UNKNOWN, reason=reason)
            )
        if call.state is CallState.APPROVED and not await self._is_unchanged(ticket, call):
            return await self._wait_for_person(
                ticket, replace(call, state=CallState.PENDING, reason=CHANGED)
            )
        return call

    async def send(self, ticket: Ticket) -> None:
        if self.stopped is not None:
            raise self.stopped
        ticket.is_repeated = ticket.call.state is CallState.SENT
        call = replace(ticket.call, state=CallState.SENT, at=ticket.call.at or time.time())
        if self.is_replayable or has_acted(call):
            self._count_arguments(call)
        if has_acted(call):
            try:
                await self.entry.save(call, grant=ticket.grant, survives_power_loss=bool(call.by))
            except ApprovalRequired:  # others have used up the grant
                call = await self._wait_for_person(
                    ticket, replace(ticket.call, state=CallState.PENDING)
                )
                if call.state is CallState.REJECTED:
                    raise self._rejection(call) from None
                call = replace(call, state=CallState.SENT)
                await self.entry.save(call, survives_power_loss=True)
            self.history.append(call)
        ticket.call = call
        self.in_flight += 1

    def _count_arguments(self, call: DurableCall) -> None:
        """Raise if the journal of the run has no room for another call."""
        self._arguments_bytes += len(call.arguments)
        if self._arguments_bytes + self._results_bytes > MAX_JOURNAL_BYTES:
            raise StorageError(
                f"{call.tool} was not called: the journal of run {self.id} is full"
                f" ({MAX_JOURNAL_BYTES:,} bytes)",
                hint="make the other calls in another run, or with smaller arguments",
                tool=call.tool,
            )

    async def finish(self, ticket: Ticket, result: Result) -> Result:
        """Record a result. It is written with the next effect at the latest."""
        self.in_flight -= 1
        if isinstance(
            result.error, ApprovalRequired
        ):  # of a call that the tool makes; both are repeated later
            return result
        now = time.time()
        state = CallState.DONE if result.ok else CallState.FAILED
        call = replace(ticket.call, state=state, clock=now, ended=now)
        self._record_labels(ticket.tool, ticket.args, ticket.context)
        if self.is_replayable:
            text = await record_result(result)
            if text is None or self._results_bytes + len(text) > MAX_RESULTS_BYTES:
                await self.entry.update(is_replayable=False)
            else:
                self._results_bytes += len(text)
                call = replace(call, result=text)
        if self.is_replayable or has_acted(call):
            self.entry.add(call)
        if has_acted(call):
            self.entry.save_soon()
        if self.is_separate:
            self.close(result.error)
            return result  # its run has another clock
        return replace(result, clock=now) if self.is_replayable else result

    def record_refusal(
        self, name: str, positional: Sequence[Any], keywords: JsonMapping, error: Exception
    ) -> None:
        """Record the error of a call that was not made, for tests of this run.

        A continued run makes the call again.
        """
        if not self.is_replayable or isinstance(error, CallRejected):
            return
        numbered = {f"*{number}": value for number, value in enumerate(positional, 1)}
        self._last_number += 1
        call = DurableCall(
            number=self._last_number,
            tool=name,
            arguments=encode_arguments({**numbered, **keywords}),
            key="",
            occurrence=0,
            state=CallState.REJECTED,
            reason=get_message(error),
            result=encode_result(Result(ok=False, error=error)),
        )
        self._results_bytes += len(call.arguments) + len(call.result or "")
        if self._results_bytes <= MAX_RESULTS_BYTES:
            self.entry.add(call)

    # --- replay -----------------------------------------------------------------------------------

    async def _identify(self, tool: Tool, args: JsonMapping, account: str = "") -> DurableCall:
        """Return the recorded call that this one repeats, or a new one."""
        arguments = await encode_in_thread(args)
        if self.record.kind == "call" and not self.record.code:
            code = f'{{"tool":{json.dumps(tool.name)},"arguments":{arguments},"account":{json.dumps(account)}}}'
            await self.entry.update(name=tool.name, code=code)
        if account:  # people see it as an argument, and a replayed call must have the same
            arguments = encode_arguments({**args, ACCOUNT_ARGUMENT: account})
        key = digest_call(tool.name, arguments)
        occurrence, recorded = self.recorded.take(key)
        if recorded is not None:
            return recorded
        if self.recorded.unrepeated and changes_something(tool, args):
            await self._wait_for_repetition(tool)
        difference = await self._replace_unsent(tool, arguments)
        self._last_number += 1
        return DurableCall(
            number=self._last_number,
            tool=tool.name,
            arguments=arguments,
            key=key,
            occurrence=occurrence,
            state=CallState.PENDING,
            effects=tuple(sort_effects(get_effects(tool, args))),
            is_idempotent=tool.is_idempotent or (tool.is_resumable and self.is_replayable),
            reason=difference,
        )

    async def _replace_unsent(self, tool: Tool, arguments: str) -> str:
        """Withdraw an unsent call that the replayed code makes with other arguments.

        Return the difference, for the person who is asked again.
        """
        earlier = await self.recorded.take_unsent(tool.name)
        if earlier is None:
            return ""
        reason = "after a restart, the code made this call with other arguments"
        await self.entry.save(replace(earlier, state=CallState.REJECTED, by="", reason=reason))
        return (
            f"{reason}: {describe_difference(json.loads(earlier.arguments), json.loads(arguments))}"
        )

    async def _wait_for_repetition(self, tool: Tool) -> None:
        """Wait until all effects of the earlier execution were repeated.

        Otherwise the code took another path.
        """
        if not await self.recorded.wait_for_effects():
            self.stopped = Interrupted(
                "the run was replayed after a restart and made other calls than before;"
                f" {tool.name} was not called",
                run=self.id,
            )
            await self.end(
                RunState.DIVERGED, f"the code called {tool.name}, which it did not call before"
            )
            raise self.stopped

    # --- people -----------------------------------------------------------------------------------

    async def _authorize(self, ticket: Ticket, call: DurableCall) -> DurableCall:
        """Return the call as approved by a grant or by a person."""
        grants = await self.entry.list_grants()
        definition = digest_definition(ticket.tool) if grants else ""
        arguments = json.loads(call.arguments)
        for grant in grants:
            if covers(grant, ticket.tool.name, arguments, definition):
                ticket.grant = grant.id
                by = f"grant {grant.id} of {grant.by}"
                call = replace(call, state=CallState.APPROVED, by=by, definition=definition)
                await self._check_unchanged(ticket, call)
                return call
        return await self._wait_for_person(ticket, call)

    async def _wait_for_person(self, ticket: Ticket, call: DurableCall) -> DurableCall:
        if not self.via or (self.via <= {"client", "app"} and not self._can_ask):
            cause = (
                "its client cannot ask" if self.via else "nobody may approve calls of this agent"
            )
            raise CallRejected(
                f"{call.tool} was not called: a person must approve it, and {cause}", tool=call.tool
            )
        count, text = await order_in_thread(call.arguments, ticket.tool)
        if call.state is CallState.PENDING and count > MAX_ARGUMENTS:
            message = (
                f"{call.tool} was not called: a person must approve it, and can be shown"
                f" {MAX_ARGUMENTS} arguments"
            )
            raise CallRejected(
                f"{message}, not {count}", tool=call.tool, reason="too many arguments"
            )
        definition = digest_definition(ticket.tool)
        call = replace(call, at=call.at or time.time(), arguments=text, definition=definition)
        answered: asyncio.Future[DurableCall] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._waiting_since = asyncio.get_running_loop().time()
        self._waiting[call.number] = call, answered
        self._storing.add(call.number)
        try:
            await self._runs.wait_for_people(self)
            await self.entry.save(call, survives_power_loss=True)
            self._storing.discard(call.number)
            self._runs.announce(self)
            if ticket.context.client.progress is not None:
                ticket.context.client.progress(
                    f"a person must approve {summarize(self.list_waiting())}"
                )
            if self._asking is None or self._asking.done():
                self._asking = self._runs.background.start(self._ask_people())
            with ticket.context.client.waiting():
                answer = await self._hold(answered)
        finally:
            self._storing.discard(call.number)
            self._waiting.pop(call.number, None)
            if not self._waiting:
                self.paused.clear()
                self._runs.stop_waiting(self)
        if not self._waiting and self.stopped is None:
            await self.entry.set_state(RunState.RUNNING)
        if answer.state is CallState.APPROVED:
            await self._check_unchanged(ticket, answer)
        return answer

    async def _is_unchanged(self, ticket: Ticket, call: DurableCall) -> bool:
        """Return whether the call does what was approved.

        Starting what it needs may show that it does not: an upstream server may have other tools
        than before.
        """
        bus = ticket.context.require_bus()
        current = await bus.resolve(call.tool)
        if digest_definition(current) != call.definition:
            return False
        await current.warm_up(ticket.context)
        current = await bus.resolve(call.tool)
        return digest_definition(current) == call.definition and current.enabled

    async def _check_unchanged(self, ticket: Ticket, call: DurableCall) -> None:
        """Raise if the tool was replaced, disabled or deleted while the person was asked."""
        if not await self._is_unchanged(ticket, call):
            raise CallRejected(f"{call.tool} was not called: {CHANGED}", tool=call.tool)

    async def _hold(self, answered: "asyncio.Future[DurableCall]") -> DurableCall:
        """Wait for the answer.

        A call outside of a run waits only until it is paused; it is made later.
        """
        if self.record.kind == "run" or self.hold == math.inf:
            return await answered
        paused = asyncio.ensure_future(self.paused.wait())
        first: set[asyncio.Future[Any]] = {answered, paused}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            paused.cancel()
        if answered.done():
            return answered.result()
        calls = [call for call, _ in self._waiting.values()]
        raise ApprovalRequired(
            f"a person must approve {summarize(calls)}: run {self.id} waits. "
            f'When it is approved, ot.run_result("{self.id}") has the result.',
            run=self.id,
        )

    async def _ask_people(self) -> None:
        """Ask at the client, if possible. Otherwise report the run as paused after `hold` seconds."""
        await asyncio.sleep(BATCH_SECONDS)
        while (approver := self.ask) is not None and self._can_ask:
            calls = self.list_waiting(CallState.PENDING)
            if not calls:
                break
            if self._storing:
                await asyncio.sleep(BATCH_SECONDS)
                continue
            waiting = dict(self._waiting)  # others may answer meanwhile
            question = await anyio.to_thread.run_sync(Question, self.id, self.record.agent, calls)
            asking = asyncio.ensure_future(approver.ask(question))
            answers = [waiting[call.number][1] for call in question.calls]
            elsewhere = asyncio.ensure_future(asyncio.wait(answers))
            await asyncio.wait({asking, elsewhere}, return_when=asyncio.FIRST_COMPLETED)
            elsewhere.cancel()
            if not asking.done():
                asking.cancel()
                continue
            try:
                decision = question.read(asking.result(), approver.name)
                await self._runs.decide(
                    self.id, decision, via=approver.via, transport=approver.transport
                )
            except (
                ToolError
            ):  # the person cannot be asked, has closed the question, or cannot decide here
                self.ask = None
                break
        while self._waiting and not self.paused.is_set():
            left = self._waiting_since + self.hold - asyncio.get_running_loop().time()
            if left <= 0:
                self.paused.set()
            await asyncio.sleep(max(left, 0.0))

    @property
    def _can_ask(self) -> bool:
        """Whether a person can answer where the run was started."""
        return self.ask is not None and self.ask.via in self.via

    def list_waiting(self, state: CallState | None = None) -> list[DurableCall]:
        waiting = (call for call, answered in self._waiting.values() if not answered.done())
        return [call for call in waiting if state in {None, call.state}]

    def apply(self, calls: Iterable[DurableCall]) -> None:
        """Continue the calls that a person has answered."""
        for call in calls:
            waiting = self._waiting.get(call.number)
            if waiting is not None and call.state in ANSWERED and not waiting[1].done():
                waiting[1].set_result(call)

    def _rejection(self, call: DurableCall) -> CallRejected:
        """Return the error for the code, and record it."""
        message = f"{call.tool} was not called: nobody approved it in time"
        fields = {"reason": "expired"}
        if call.by:
            because = f": {call.reason}" if call.reason else ""
            message = f"{call.by} rejected {call.tool}{because}"
            fields = {"by": call.by, "reason": call.reason}
        error = CallRejected(message, tool=call.tool, **fields)
        self.entry.add(replace(call, result=encode_result(Result(ok=False, error=error))))
        return error

    def describe_history(self) -> str:
        """Return what the run has done so far, for the message of a run that ended early."""
        if not self.history:
            return "no call with effects was made"
        made = summarize(self.history[:MAX_HISTORY])
        return f"it has made {pluralize(len(self.history), 'call')} with effects: {made}"
