"""The journal of runs, recorded calls, and the replay of a run from its journal.

Nothing is stored before a run has an effect or asks a person. All writes use one thread, in order.

A run that continues repeats its calls with the same bound arguments (`RecordedCalls`), then makes
further ones. A replay (`ReplayGate`) runs the code again in a cell and calls no tool: a call is
matched by the tool and the arguments that the code passes; the recorded arguments also have
defaults and values from settings. The code sees the same random numbers and times as before.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import anyio.to_thread

from onetool.core.bus.bind import expand_name
from onetool.core.names import python_name
from onetool.core.policy.effects import CHANGING, get_effects
from onetool.core.tool import Tool
from onetool.errors import ToolError, describe
from onetool.state.run_records import CallState, DurableCall, Grant, RunOutcome, RunRecord, RunState
from onetool.state.run_store import RunTables
from onetool.util.context import Result
from onetool.util.large_data import RawJson, is_large
from onetool.util.tasks import BackgroundTasks
from onetool_child.data import as_data
from onetool_child.errors import TIMEOUT_HINT, restore
from onetool_child.json_types import JsonMapping, JsonObject

REPLAY_SECONDS = 2.0  # for replayed code to repeat the calls that it made before
UNSENT_SECONDS = 0.5  # the same for calls that were not sent
MAX_RESULT_BYTES = 8 << 20  # of one call; a run with a larger result cannot be replayed
LARGE_ARGUMENT_CHARS = 100_000  # encoded in a thread
SETTLED = frozenset({CallState.DONE, CallState.FAILED})
UNSENT = frozenset({CallState.PENDING, CallState.APPROVED})
NOT_RECORDED = "its results were not recorded"
SAVE_SECONDS = (
    0.005  # after a call with an effect, for the next one, which is written in the same transaction
)
END_SECONDS = 0.005  # for other runs to end, which are written in the same transaction
P = ParamSpec("P")
T = TypeVar("T")


class RecordedCalls:
    """Calls that an ended process has made. The code repeats them when it is replayed."""

    def __init__(self, calls: Iterable[DurableCall] = ()) -> None:
        self._calls = {(call.key, call.occurrence): call for call in calls}
        self.history = [
            call for call in self._calls.values() if call.state in SETTLED and has_acted(call)
        ]
        self.last_number = max((call.number for call in self._calls.values()), default=0)
        self.arguments_bytes = sum(len(call.arguments) for call in self._calls.values())
        self.results_bytes = sum(len(call.result or "") for call in self._calls.values())
        self._effects = {call.number for call in self.history}  # that were not repeated yet
        self._repeated = asyncio.Event()
        self._occurrences: Counter[str] = Counter()

    @property
    def settled(self) -> int:
        """The number of unrepeated calls with a result."""
        return sum(call.state in SETTLED for call in self._calls.values())

    @property
    def unrepeated(self) -> int:
        """The number of effects that are not repeated yet."""
        return len(self._effects)

    def take(self, key: str) -> tuple[int, DurableCall | None]:
        """Return how often the code has made this call before, and the recorded call that it
        repeats.
        """
        occurrence = self._occurrences[key]
        self._occurrences[key] += 1
        call = self._calls.pop((key, occurrence), None)
        if call is not None:
            self._effects.discard(call.number)
            self._repeated.set()
        return occurrence, call

    async def wait_for_effects(self) -> bool:
        """Wait until all effects were repeated.

        Return False if the code seems to have taken another path.
        """
        await self._wait_while(lambda: self._effects, REPLAY_SECONDS)
        return not self._effects

    async def take_unsent(self, tool: str) -> DurableCall | None:
        """Return an unsent call to this tool that no thread has repeated so far."""

        def find_unsent() -> DurableCall | None:
            calls = self._calls.values()
            return next(
                (call for call in calls if call.tool == tool and call.state in UNSENT), None
            )

        await self._wait_while(find_unsent, UNSENT_SECONDS)
        call = find_unsent()
        if call is not None:
            del self._calls[call.key, call.occurrence]
        return call

    async def _wait_while(self, is_left: Callable[[], object], seconds: float) -> None:
        """Wait while recorded calls are left and the replayed code repeats one in time."""
        while is_left():
            self._repeated.clear()
            try:
                await asyncio.wait_for(self._repeated.wait(), seconds)
            except TimeoutError:
                return


def has_acted(call: DurableCall) -> bool:
    """Return whether repeating the call may do harm: it changes something, or a person approved it."""
    return bool(call.by) or not CHANGING.isdisjoint(call.effects)


async def encode_in_thread(args: JsonMapping) -> str:
    """Return the bound arguments as canonical JSON; long ones are encoded in a thread."""
    if is_large(args, LARGE_ARGUMENT_CHARS):
        return await anyio.to_thread.run_sync(encode_arguments, args)
    return encode_arguments(args)


def encode_arguments(args: JsonMapping) -> str:
    """Return the bound arguments as canonical JSON."""
    return json.dumps(
        as_data(dict(args)), ensure_ascii=False, sort_keys=True, separators=(",", ":")
    )


async def order_in_thread(arguments: str, tool: Tool) -> tuple[int, str]:
    """Count the arguments and return them as people read them; long ones in a thread."""
    if len(arguments) > LARGE_ARGUMENT_CHARS:
        return await anyio.to_thread.run_sync(_order_arguments, arguments, tool)
    return _order_arguments(arguments, tool)


def _order_arguments(arguments: str, tool: Tool) -> tuple[int, str]:
    """Put the arguments that the tool declares first, in the order of its schema."""
    args = json.loads(arguments)
    declared = [name for name in tool.input.json.get("properties", {}) if name in args]
    ordered = {name: args[name] for name in dict.fromkeys([*declared, *args])}
    return len(args), json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))


def digest_call(tool: str, arguments: str) -> str:
    return hashlib.sha256(f"{tool}\0{arguments}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def digest_definition(tool: Tool) -> str:
    """Return a digest of the tool and what its calls do, which a person approves."""
    parts = [
        tool.name,
        tool.source,
        tool.file,
        tool.input.json,
        sorted(get_effects(tool)),
        tool.identify(),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


async def record_result(result: Result) -> str | None:
    """Return the result as JSON, or None if it is too large or not data.

    A large one is encoded in a thread.
    """
    value = result.value
    if isinstance(value, RawJson) or (isinstance(value, str) and len(value) > LARGE_ARGUMENT_CHARS):
        return await anyio.to_thread.run_sync(encode_result, result)
    return encode_result(result)


def encode_result(result: Result) -> str | None:
    """Return the result as JSON, or None if it is too large or not data."""
    try:
        if result.error is not None:
            text = json.dumps({"error": as_data(describe(result.error))}, ensure_ascii=False)
        elif isinstance(result.value, RawJson):
            if result.value.size > MAX_RESULT_BYTES:
                return None
            text = json.dumps(
                {"raw": b"".join(result.value.pieces).decode(), "or_text": result.value.or_text}
            )
        else:
            text = json.dumps({"value": as_data(result.value)}, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= MAX_RESULT_BYTES else None


def read_result(call: DurableCall) -> Result:
    """Return the recorded result of a call."""
    data = json.loads(call.result or '{"value": null}')
    if "error" in data:
        return Result(ok=False, error=restore(data["error"]), clock=call.clock, is_replayed=True)
    value = RawJson((data["raw"].encode(),), data["or_text"]) if "raw" in data else data["value"]
    return Result(ok=True, value=value, clock=call.clock, is_replayed=True)


@dataclass(slots=True)
class ReplayGate:
    """The recorded calls that the code has not repeated yet."""

    is_replayable: ClassVar[bool] = True
    labels: ClassVar[None] = None
    seed: str
    started: float
    calls: list[DurableCall] = field(default_factory=list)

    @property
    def cell_params(self) -> JsonObject:
        return {"replay": {"seed": self.seed, "clock": self.started, "until": len(self.calls)}}

    def answer(self, name: str, positional: Sequence[Any], keywords: JsonMapping) -> Result:
        """Return the recorded result of this call."""
        for call in self.calls:
            if python_name(call.tool) == python_name(name) and _matches(
                json.loads(call.arguments), positional, keywords
            ):
                self.calls.remove(call)
                return read_result(call)
        return Result(
            ok=False,
            error=ToolError(f"the replayed code called {name}, and no recorded call matches it"),
        )

    async def decide(self, *_: Any) -> None:
        """Reject calls of tools: in a replay, no tool runs."""
        raise ToolError("a replay calls no tools")


def list_answered(calls: Iterable[DurableCall]) -> list[DurableCall]:
    """Return the calls whose result or error the code has received."""
    return [call for call in calls if call.state in SETTLED or call.result is not None]


def not_replayable(run_id: str, reason: str = NOT_RECORDED) -> ToolError:
    """Return the error of a run that was not recorded, with the setting that records runs."""
    hint = "set `approvals: {record: true}` in ~/.onetool/onetool.yaml, then run the code again"
    return ToolError(
        f"cannot replay {run_id}: {reason}", hint=hint if reason == NOT_RECORDED else ""
    )


def check_replayable(run: RunRecord, calls: Iterable[DurableCall]) -> None:
    """Raise if a run cannot be replayed from its journal."""
    reason = ""
    if run.kind != "run":
        reason = "it is a single call"
    elif run.state not in {RunState.DONE, RunState.FAILED}:
        reason = f"it is {run.state}"
    elif (
        run.outcome is None
        or not run.is_replayable
        or any(call.result is None for call in calls if call.state in SETTLED)
    ):
        reason = NOT_RECORDED
    else:
        outcome = RunOutcome.read(run)
        if outcome.is_cut:
            reason = "its value is too large"
        elif outcome.error and outcome.error.get("hint") == TIMEOUT_HINT:
            reason = "it timed out"
    if reason:
        raise not_replayable(run.id, reason)


def _matches(recorded: JsonMapping, positional: Sequence[Any], keywords: JsonMapping) -> bool:
    """Return whether the arguments of a call are among the recorded ones. Names may be abbreviated."""
    left = dict(recorded)
    for name, value in keywords.items():
        full_name = expand_name(name, left)
        if full_name not in left or not _is_same(left.pop(full_name), value):
            return False
    for value in positional:
        names = [name for name, argument in left.items() if _is_same(argument, value)]
        if not names:
            return False
        del left[names[0]]
    return True


def _is_same(recorded: Any, value: Any) -> bool:
    """Return whether a value is the recorded one, which validation may have converted to a number."""
    return bool(recorded == as_data(value)) or str(recorded) == str(value)


# --- journal --------------------------------------------------------------------------------------


class Journal:
    """The stored runs. `active` has the IDs that this process executes."""

    def __init__(self) -> None:
        self.active: set[str] = set()
        self.saving = BackgroundTasks()  # finished before the application is closed
        self._ending: list[tuple[str, list[DurableCall], RunState]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onetool-journal")

    def configure(self, store: RunTables, seconds: float) -> None:
        """Use this store; runs that wait expire after these seconds."""
        self.store = store
        self._seconds = seconds

    async def close(self) -> None:
        await self.saving.wait()
        self._thread.shutdown(wait=True)

    async def call(
        self, method: Callable[Concatenate[RunTables, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a method of the store in the thread."""
        bound_method = getattr(self.store, method.__name__)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(bound_method, *args, **kwargs))

    @property
    def next_expiry(self) -> float:
        return self.store.now() + self._seconds

    def end_later(self, run_id: str, calls: list[DurableCall], state: RunState) -> None:
        """Record the last calls and the final state, in one transaction with other runs."""
        self._ending.append((run_id, calls, state))
        if len(self._ending) == 1:
            self.saving.start(self._end_all())

    async def _end_all(self) -> None:
        await asyncio.sleep(END_SECONDS)
        ended = self._ending
        self._ending = []
        try:
            await self.call(RunTables.end_runs, ended)
        finally:
            self.active.difference_update(run_id for run_id, _, _ in ended)


class JournalEntry:
    """One run in the journal: its record, and the calls that are not written yet."""

    def __init__(self, journal: Journal, record: RunRecord) -> None:
        self.record = record
        self.is_stored = bool(record.owner)
        self._journal = journal
        self._unsaved: dict[int, DurableCall] = {}
        self._saving = asyncio.Lock()
        self._is_saving_soon = False

    # --- calls ------------------------------------------------------------------------------------

    def add(self, call: DurableCall) -> None:
        """Write the call with the next one that is saved, or when the run ends."""
        self._unsaved[call.number] = call

    def save_soon(self) -> None:
        """Write what was added, unless the next call with an effect does so first."""
        if not self._is_saving_soon:
            self._is_saving_soon = True
            self._journal.saving.start(self._save_soon())

    async def _save_soon(self) -> None:
        await asyncio.sleep(SAVE_SECONDS)
        self._is_saving_soon = False
        await self.save()

    async def save(
        self, *calls: DurableCall, grant: str | None = None, survives_power_loss: bool = False
    ) -> None:
        """Write these calls and those that were added, in one transaction.

        They use the grant with this ID.
        """
        async with self._saving:
            written = {**self._unsaved, **{call.number: call for call in calls}}
            if not written:
                return
            self._unsaved = {}
            try:
                await self._write(list(written.values()), grant, survives_power_loss)
            except BaseException:
                self._unsaved = {**written, **self._unsaved}
                for call in calls:
                    self._unsaved.pop(call.number, None)
                raise

    async def _write(
        self, calls: list[DurableCall], grant: str | None, survives_power_loss: bool
    ) -> None:
        if not (self.is_stored or grant or survives_power_loss):
            await self.store(calls)  # one transaction, for the first write under `allow`
            return
        await self.store()
        await self._journal.call(
            RunTables.write_calls,
            self.record.id,
            calls,
            grant=grant,
            survives_power_loss=survives_power_loss,
        )

    def take_unsaved(self) -> list[DurableCall]:
        """Return the calls that are not written yet. The caller writes them."""
        calls = list(self._unsaved.values())
        self._unsaved = {}
        return calls

    async def list_grants(self) -> list[Grant]:
        return await self._journal.call(RunTables.list_grants, self.record.agent, self.record.id)

    # --- the run ----------------------------------------------------------------------------------

    async def store(self, calls: Iterable[DurableCall] = (), *, again: bool = False) -> None:
        """Store the run before its first call or with it. `again` lets it expire later."""
        if self.is_stored and not again:
            return
        journal = self._journal
        self.record = replace(self.record, owner=journal.store.owner, expires=journal.next_expiry)
        journal.active.add(self.record.id)
        await journal.call(RunTables.put_run, self.record, calls)
        self.is_stored = True

    async def update(self, **changes: Any) -> None:
        """Change the record, also where it is stored."""
        self.record = replace(self.record, **changes)
        if self.is_stored:
            await self._journal.call(RunTables.put_run, self.record)

    async def set_state(
        self, state: RunState, *, reason: str = "", outcome: str | None = None
    ) -> None:
        if self.record.state is not state:
            self.record = replace(self.record, state=state)
            await self._journal.call(
                RunTables.set_state, self.record.id, state, reason=reason, outcome=outcome
            )

    def end_later(self, error: str | None) -> None:
        """Record how a call, or a run that cannot be replayed, has ended."""
        if self.is_stored:
            state = RunState.FAILED
            if error is None:
                state = RunState.DONE
            elif error == "cancelled":
                state = RunState.CANCELLED
            self._journal.end_later(self.record.id, self.take_unsaved(), state)
