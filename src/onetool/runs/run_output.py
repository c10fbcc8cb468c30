"""The output of a run while it is executed, the channel to its client, and notices beside its
answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onetool.runs.questions import Approver
from onetool.util.bounded_dict import BoundedDict
from onetool.util.context import AskClient, Foreign, OnAsk, OnLog
from onetool_child.json_types import JsonObject

MadeCalls = list[tuple[str, str]]  # the names of tools with the outcomes of their calls
MAX_META = 20
MAX_NOTICES = 10
MAX_INFORMED = 1000  # sessions that are known to have seen the general notices


@dataclass(slots=True)
class ClientChannel:
    """Messages between a run and its client. A client that supports none of them has the default."""

    request_id: str = ""  # of the request that started the run, if it has one
    hidden: frozenset[str] = frozenset()  # packs that the client calls directly, and code cannot
    listener: Callable[[str, Any], None] | None = (
        None  # called immediately, from any thread; only `output` is redacted
    )
    log: OnLog | None = None  # sends a log message, if the client wants any
    ask: OnAsk | None = None  # asks the person at the client
    ask_client: AskClient | None = None  # sends a request to the client
    approve: Approver | None = None  # asks the person at the client to approve calls

    def emit(self, event: str, data: Any) -> None:
        if self.listener is not None:
            self.listener(event, data)


class FailedToolCall(NamedTuple):
    """The call of a run that failed last."""

    position: int  # in the list of calls
    message: str


@dataclass(slots=True)
class RunOutput:
    """The calls, printed text, value and notices of a run so far."""

    channel: ClientChannel = field(default_factory=ClientChannel)
    calls: MadeCalls = field(default_factory=list)
    failed_call: FailedToolCall | None = None
    printed: list[str] = field(default_factory=list)
    printed_bytes: int = 0
    value: list[str] = field(default_factory=list)
    value_bytes: int = 0
    media: bytearray = field(
        default_factory=bytearray
    )  # an image or audio in the value, received so far
    media_bytes: int = 0
    media_count: int = 0
    sources: set[str] = field(default_factory=set)
    doing: str = ""  # what the run waits for
    meta: JsonObject = field(default_factory=dict)  # metadata of upstream responses, by tool
    is_untrusted: bool = False  # whether a value came from an untrusted server
    keeps_value: bool = (
        False  # whether the answer has the value even if it is too large for one message
    )
    notices: list[str] = field(default_factory=list)  # shown beside the value

    def report_progress(
        self, text: str, _done: float | None = None, _total: float | None = None
    ) -> None:
        self.doing = text
        self.channel.emit("progress", text)

    def notify(self, text: str) -> None:
        """Show a notice beside the value, once."""
        if text not in self.notices and len(self.notices) < MAX_NOTICES:
            self.notices.append(text)

    def record_foreign(self, foreign: Foreign) -> None:
        self.is_untrusted |= foreign.is_untrusted
        if foreign.meta and (foreign.source in self.meta or len(self.meta) < MAX_META):
            self.meta[foreign.source] = dict(foreign.meta)


class Notices:
    """Notices for the next response: each session sees general ones once; those for an agent only
    that agent sees.
    """

    def __init__(self) -> None:
        self.general: tuple[object, ...] = ()
        self._informed: BoundedDict[str, None] = BoundedDict(MAX_INFORMED)  # sessions
        self._by_agent: dict[str, list[str]] = {}

    def add_general(self, notice: object) -> None:
        if notice is not None and notice not in self.general:
            self.general = (*self.general, notice)

    def add(self, agent: str, text: str) -> None:
        self._by_agent.setdefault(agent, []).append(text)

    def take(self, agent: str, session: str) -> list[str]:
        general = () if session in self._informed else self.general
        if general:
            self._informed[session] = None
        return [f"Note: {notice}" for notice in (*general, *self._by_agent.pop(agent, ()))]
