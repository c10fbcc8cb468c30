"""Records of durable runs, their calls, and the decisions of people about them."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from onetool.errors import Interrupted, describe
from onetool_child.json_types import JsonMapping

SHORT_ID_CHARS = 10  # of the ID of a run, in commands to type
CANCELLED_ERROR = "cancelled"  # the type of the error
MAX_VALUE_BYTES = 1 << 20  # of the value of a run; a larger one is in the result store


class RunState(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"  # calls wait for a person
    DONE = "done"
    FAILED = "failed"
    HALTED = "halted"  # a person must say whether a call that was sent happened
    DIVERGED = "diverged"  # the replayed code made other calls than before
    INTERRUPTED = "interrupted"  # its process ended and it cannot be replayed
    CANCELLED = "cancelled"  # a person or the client stopped it
    EXPIRED = "expired"  # nobody answered in time


UNANSWERED = (RunState.WAITING, RunState.HALTED)
OPEN = (RunState.RUNNING, *UNANSWERED)
ENDED = frozenset(RunState).difference(OPEN)


def get_end_state(error_type: str | None) -> RunState:
    """Return the state of a run that has ended with this error."""
    if error_type is None:
        return RunState.DONE
    return RunState.CANCELLED if error_type == CANCELLED_ERROR else RunState.FAILED


class CallState(StrEnum):
    PENDING = "pending"  # waits for a person
    APPROVED = "approved"
    SENT = "sent"  # written before the call is made
    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    UNKNOWN = "unknown"  # sent by a process that ended before the result arrived


@dataclass(frozen=True, slots=True)
class DurableCall:
    """One call of a run. `key` and `occurrence` identify it when the run is replayed."""

    number: int
    tool: str
    # JSON of the bound arguments: canonical, or in the order of the schema if people are asked
    arguments: str
    key: str  # digest of the tool and the arguments
    occurrence: int  # of this key in the run, from 0
    state: CallState
    effects: tuple[str, ...] = ()
    is_idempotent: bool = False
    definition: str = ""  # digest of the tool's definition
    by: str = ""  # who approved or rejected it: a person, or `grant g_...`
    reason: str = ""  # why it waits, or was rejected
    result: str | None = None  # JSON: {"value": ...}, or {"error": {...}} as of `describe`
    clock: float = 0.0  # the time that the run saw when the call ended
    at: float = 0.0  # when it was first recorded
    ended: float = 0.0
    attempt: int = 1  # of sending it; more if a person said to repeat it


class StoredValues(NamedTuple):
    """Texts of a run or a call for people: what it printed, received and returned.

    None if there is none any more.
    """

    printed: str | None = None
    arguments: str | None = None
    result: str | None = None
    error: str | None = None  # the message


@dataclass(slots=True)
class RunRecord:
    """A run, or a call outside of a run (`kind` is "call"; `code` is then JSON with `tool` and
    `arguments`).

    The journal stores it sealed, while the run may have to continue. The statistics store what is
    listed and counted.
    """

    id: str  # r_ and 32 hexadecimal digits
    agent: str
    code: str = ""
    kind: str = "run"
    name: str = "run"  # of the tool, if it is a call
    token_id: str = ""  # a new token of the same name has another one
    actor: str = ""  # who started it: the name of a token, or the subject of an issuer
    client: str = ""
    directory: str = ""  # the working directory of the application
    at: float = 0.0  # when it started
    seconds: float | None = None  # how long it took; None while that is not known
    error_type: str | None = None  # if it failed
    # Counted by the statistics, `round_trips` are the calls of the code; `calls` also includes
    # calls that tools made.
    session: str = ""
    round_trips: int = 0
    answer_tokens: int = 0
    result_tokens: int = 0
    calls: int = 0
    failed: int = 0
    cost: float = 0.0  # the sum of `cost_per_call` of its calls
    values: StoredValues | None = None
    state: RunState = RunState.RUNNING
    reason: str = ""  # for its state
    # For the process that continues it.
    python: str = ""  # version of the interpreter
    is_replayable: bool = False
    expires: float = 0.0
    owner: str = ""  # identifies the process that executes it; see `RunTables.is_alive`
    outcome: str | None = None  # JSON of a `RunOutcome`
    format: str | None = None  # the preset output format

    def is_visible(self, agent: str | None, token_id: str | None) -> bool:
        """Return whether somebody may see it who sees runs of this agent and token; None sees all."""
        return agent in {None, self.agent} and token_id in {None, self.token_id}


class RunOutcome(NamedTuple):
    """The end of a run, as data."""

    blocks: tuple[str, ...] = ()
    value: Any = None
    error: JsonMapping | None = None
    media: tuple[str, ...] = ()
    is_cut: bool = False  # whether the value was too large to keep; the blocks have its summary

    def encode(self) -> str:
        text = json.dumps(self._asdict(), ensure_ascii=False, default=str)
        if len(text) <= MAX_VALUE_BYTES:
            return text
        return json.dumps(
            self._replace(value=None, is_cut=True)._asdict(), ensure_ascii=False, default=str
        )

    @classmethod
    def read(cls, run: RunRecord) -> "RunOutcome":
        """Return the outcome of a run that has ended."""
        if run.outcome is not None:
            data = json.loads(run.outcome)
            return cls(
                tuple(data["blocks"]),
                data["value"],
                data["error"],
                tuple(data["media"]),
                data["is_cut"],
            )
        reason = run.reason or "its result was not kept"
        error = Interrupted(f"run {run.id} is {run.state}: {reason}", run=run.id)
        return cls((f"{type(error).__name__}: {error}",), error=describe(error))


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission for further calls.

    Arguments without a pattern must be absent, unless `varying` has their names.
    """

    id: str  # g_ and random digits
    tool: str  # name or pattern
    arguments: JsonMapping = field(
        default_factory=dict
    )  # a string is a pattern, other values must be equal
    varying: tuple[str, ...] = ()  # names of arguments that may be anything; `*` for all others
    definition: str = ""  # of the tool, if it is not a pattern: another one is asked about
    left: int = 1  # calls that it still covers
    run: str | None = None  # None: for every run of the agent
    agent: str = "default"
    expires: float = 0.0
    by: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of a person to the pending calls of a run.

    `calls` are numbers; None for all that are pending.
    """

    is_approved: bool
    by: str
    calls: tuple[int, ...] | None = None
    reason: str = ""
    grants: tuple[Grant, ...] = ()
    stops_run: bool = False  # reject all, and end the run
