"""The interfaces of stored state, one for each kind. Callers depend on these only.

`tests/contract/test_storage.py` tests what every implementation guarantees:

- other processes read what was written;
- a killed process leaves either the old or the new state;
- concurrent writers lose nothing;
- state that a newer version wrote is rejected and left unchanged.

If the state cannot be written, `put`, `update`, `delete` and `append` raise a ToolError with the
type or code `storage_unavailable`. Storage that is written in the background sets `problem`
instead, and a cache ignores the error. All methods may block, unless they say that they return at
once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from onetool.errors import ConfigError
from onetool.util.problem import STORAGE, WARNING, Problem
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:  # types of values only: storage does not depend on its callers
    from pathlib import Path

    from onetool.state.counters import BudgetGuard, Counters, RateLimiter
    from onetool.state.credentials import CredentialStore
    from onetool.state.document_kinds import DisabledTools, LastUses, SavedSnippets
    from onetool.state.documents import Documents
    from onetool.state.file_kinds import AuditFile, EndedSessions, NoticeFiles, SettingsFiles
    from onetool.state.result_parts import ResultFiles
    from onetool.state.run_store import RunTables
    from onetool.state.session_store import SessionTables
    from onetool.state.sqlite_database import StateDatabase
    from onetool.state.stats.record import Recorder
    from onetool.state.stats.shapes import Shapes
    from onetool.state.token_file import TokenFile
    from onetool.util.clock_watch import ClockWatch
    from onetool.util.context import CallTicket

Pinned = dict[str, JsonObject]  # definitions by the name of the tool


BUILT_IN_STATES = (  # the file of a store that says which built-in bundles and tools are disabled
    "builtins.json"
)


class IndexedDirectory(Protocol):
    """A bundle directory on this machine, with its lock and index."""

    root: "Path"

    def holding(self) -> AbstractContextManager[None]: ...
    def begin_change(self) -> None: ...
    def index_files(self, paths: list[str]) -> None: ...
    def increment_version(self) -> None: ...


class BundleFiles:
    """Bundle files in a directory that all processes read."""

    def __init__(self, root: "Path") -> None:
        self.root = root

    @property
    def problems(self) -> list[Problem]:
        return []

    def follow(self, _directory: IndexedDirectory, /) -> None:
        """Bring the directory up to date with what others have stored."""

    def writing(self, directory: IndexedDirectory, /) -> AbstractContextManager[None]:
        """Keep others from changing the files in this context."""
        return directory.holding()

    def record(self, _directory: IndexedDirectory, _paths: list[str], /) -> None:
        """Store these changed files when `writing` ends."""


MAX_ATTEMPTS = 3  # to execute a job


class JobRequest(NamedTuple):
    """A call that a worker of a queue makes.

    A request with the ID of an earlier one is the same call.
    """

    id: str
    queue: str
    pack: str
    function: str
    arguments: JsonMapping
    options: JsonMapping  # what else the worker needs
    seconds: float  # timeout of the call
    start_seconds: float  # timeout of the start of the pack on the worker
    wait_seconds: float  # for which it may wait for a worker
    is_idempotent: bool
    ticket: "CallTicket | None" = (
        None  # of a call that another process may have made, or may repeat
    )

    @property
    def tool(self) -> str:
        return f"{self.pack}.{self.function}"


class QueueStatus(NamedTuple):
    name: str
    waiting: int
    running: int
    workers: Sequence[str]


class Jobs:
    """Calls that workers on other machines make.

    Without a database, which they can reach, none is made.
    """

    def find_problems(self, queues: Mapping[str, str], /) -> Iterable[Problem]:
        """Yield why calls of packs fail; `queues` are their queues by pack."""
        return (Problem.of(make_store_error(pack)) for pack in queues)

    async def call(self, request: JobRequest, _on_event: Callable[[JsonMapping], object], /) -> Any:
        """Return what the tool returns, or raise its error.

        Call the function with each message of the tool.
        """
        raise make_store_error(request.pack)

    def close(self) -> None:
        """Make no more calls."""


def make_store_error(pack: str) -> ConfigError:
    message = f"tools.{pack}.queue needs a database: workers of queues get their calls from it"
    hint = (
        "set store in ~/.onetool/onetool.yaml, or ONETOOL_STORE, to a postgresql:// URL, or remove"
        " the queue"
    )
    return ConfigError(message, hint=hint)


class StateDescription(NamedTuple):
    """The description for `onetool store status`, as data and as lines."""

    facts: JsonObject
    lines: list[str]


CLOCK_HINT = (
    "check the date of the machine; data expires again when the clock has been steady for ten"
    " minutes"
)


@dataclass(eq=False, kw_only=True)
class State:
    """All kinds of state.

    `onetool.state.opening` opens it, in files or in a database that replicas share.

    Opening it returns at once, and nothing is read before it is needed.
    """

    place: str  # for messages
    backup_note: str = ""  # what a backup of the files does not include; empty if it includes all
    databases: "Collection[StateDatabase]"
    describe: Callable[[], StateDescription]
    clock_watch: "ClockWatch"  # of the clock that expiries are compared with
    load_key: Callable[
        [str], bytes
    ]  # returns a key that all processes with this state have, which is created once
    load_first: Callable[["State"], object] | None = (
        None  # loads what an event loop reads without waiting
    )
    search_directory: "Path"  # the index of the search is a cache in it
    recorder: "Recorder"
    shapes: "Shapes"
    runs: "RunTables"
    sessions: "SessionTables"
    counters: "Counters"
    snippets: "SavedSnippets"
    disabled_tools: "DisabledTools"
    pins: "Documents"
    token_usage: "Documents"
    token_use: "LastUses"
    settings: "SettingsFiles"
    credentials: "CredentialStore"
    ended_sessions: "EndedSessions"
    jobs: Jobs
    cache: "StateDatabase"  # of documents that can be made again
    open_parts: "Callable[[str], ResultFiles]"  # with the kind: `result` or `media`
    notices: "Callable[[int], NoticeFiles]"  # with the maximum bytes of a file
    audit: "Callable[[Path, Callable[[str], str]], AuditFile]"  # with the file of the settings
    bundle_files: "Callable[[Path], BundleFiles]"  # with the directory of the settings
    call_rates: "Callable[[Path], RateLimiter]"  # of the tools in a directory of bundles
    guard_budget: "Callable[..., BudgetGuard]"
    open_tokens: "Callable[[], TokenFile]"

    @cached_property
    def tokens(self) -> "TokenFile":
        return self.open_tokens()

    @property
    def problem(self) -> str | None:
        """The reason why the state cannot be reached; None if it can."""
        return next((database.problem for database in self.databases if database.problem), None)

    @property
    def problems(self) -> list[Problem]:
        """The problems of kinds of state that are written in the background."""
        if self.problem:
            return [Problem(self.problem)]
        place = self.recorder.database.location
        messages = dict.fromkeys(filter(None, (self.recorder.problem, self.shapes.problem)))
        problems = [Problem(message, location=place, code=STORAGE) for message in messages]
        jump = (
            self.clock_watch.problem or self.recorder.clock_watch.problem
        )  # a database has a clock of its own
        if jump:
            problems.insert(0, Problem(jump, CLOCK_HINT, level=WARNING))
        if self.ended_sessions.problem:
            problems.append(self.ended_sessions.problem)
        return problems

    def start(self) -> None:
        """Follow the changes of other processes from now on. Returns at once."""
        for database in self.databases:
            database.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the first values. Afterwards nothing that an event loop reads blocks."""
        is_known = all(database.wait(seconds) for database in self.databases)
        if is_known and self.load_first is not None:
            self.load_first(self)
        return is_known

    def close(self) -> None:
        """Write pending records and close. Blocks."""
        self.recorder.close()
        self.shapes.close()
        self.runs.close()
        self.jobs.close()
        for database in self.databases:
            database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
