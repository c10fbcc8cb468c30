"""All kinds of state in one database. `State` of `onetool.state.storage` describes it."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.backends.http_tool.rate_limit import RateLimiter
from onetool.core.bus.budget import Limits, SharedBudgetGuard
from onetool.errors import ToolError
from onetool.proxy.definitions import ToolLists
from onetool.results import Quota
from onetool.results.blobs import Media
from onetool.results.store import StoredResults
from onetool.search import Search
from onetool.snippets.saved_snippets import SavedSnippets
from onetool.state.audit_rows import AuditRows
from onetool.state.bundle_mirror import BundleMirror
from onetool.state.changes import Changes
from onetool.state.counters import CounterTables
from onetool.state.disabled_tools import DisabledTools
from onetool.state.documents import Documents
from onetool.state.jobs import JobRows
from onetool.state.keys import load_key
from onetool.state.kinds import MODEL_USAGE, LastUses
from onetool.state.leases import Leases
from onetool.state.postgres_database import Database
from onetool.state.replica_kinds import EndedSessionRows, NoticeRows, SharedCredentials, StoredTokenSet
from onetool.state.result_rows import PartRows
from onetool.state.run_store import RunTables
from onetool.state.session_store import SessionTables
from onetool.state.settings_rows import SettingsRows
from onetool.state.statistics_rows import StatisticsSchema
from onetool.state.status import describe_status
from onetool.state.storage import State, StateDescription
from onetool.stats.record import Recorder
from onetool.stats.shapes import Shapes
from onetool.util.problem import Problem

if TYPE_CHECKING:
    from onetool.bundles import BundleStore
    from onetool.config.model import Output

LOADED_KEYS = ("request state", "browser sessions")  # those that an event loop needs


class PostgresState(State):
    """State that replicas share. `cache` is a directory of this machine. Nothing is opened before it is needed.

    `scope` is the working directory, which shares results with the same one on other replicas.
    """

    backup_note = "state in the database of `store` is not included: back it up with pg_dump"

    def __init__(
        self,
        url: str,
        key: str,
        cache: Path,
        *,
        scope: str = "",
        keep_job_seconds: float = 86_400,
        search_directory: Path | None = None,
    ) -> None:
        self.database = Database(url, key)
        self._cache = cache
        self._scope = scope
        self.search = Search(search_directory or cache)
        self.place = self.database.place
        self._keys: dict[str, bytes] = {}
        self._leases = Leases(self.database, os.urandom(16).hex())
        self.changes = Changes(self.database, self._leases)
        self.jobs = JobRows(self.database, self.changes, keep_job_seconds)
        statistics = StatisticsSchema(self.database)
        self.recorder = Recorder(statistics)
        self.shapes = Shapes(statistics)
        self.runs = RunTables(self.database, self._leases, self.changes, clock=self.database.now)
        self.sessions = SessionTables(self.database, clock=self.database.now)
        self.disabled_tools = DisabledTools(self.database, self.changes)
        self.pins = Documents(self.database, "pins")
        self.token_usage = Documents(self.database, MODEL_USAGE, is_announced=False)
        self._tokens = StoredTokenSet(self.database, self.changes)
        self.settings = SettingsRows(self.database, self.changes)
        self.ended_sessions = EndedSessionRows(self.database, self.changes)
        self.counters = CounterTables(self.database, self.database.now)
        self.credentials = SharedCredentials(self.database, self.changes)
        self.snippets = SavedSnippets(self.database, self.changes)
        self.token_use = LastUses(self.database, self.database.now)

    @property
    def tokens(self) -> StoredTokenSet:
        return self._tokens

    @property
    def problem(self) -> str | None:
        if self.changes.is_current:
            return None
        return self.changes.away().message

    @property
    def problems(self) -> list[Problem]:
        if self.problem:
            return [Problem(self.problem)]
        ended = self.ended_sessions.problem
        return [*super().problems, *([ended] if ended else [])]

    def describe(self) -> StateDescription:
        return describe_status(self.database)

    def start(self) -> None:
        self.changes.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the first values. Afterwards nothing that an event loop reads blocks."""
        is_known = self.changes.wait(seconds)
        if is_known:
            self.shapes.text("")
            with suppress(ToolError):  # what needs the key reports that it is missing
                for name in LOADED_KEYS:
                    self.load_key(name)
        return is_known

    def subscribe(self, kind: str, listener: Callable[[], object]) -> None:
        """Call the listener, in another thread, when a replica has changed this kind of state."""
        self.changes.subscribe(kind, listener)

    def close(self) -> None:
        super().close()
        self.jobs.close()
        self.changes.close()
        self.database.close()

    def load_key(self, name: str) -> bytes:
        """Return a key that all replicas have. It is read once."""
        if name not in self._keys:
            self._keys[name] = load_key(self.database, name)
        return self._keys[name]

    def results(self, output: "Output") -> StoredResults:
        quota = Quota(output.max_stored_bytes, output.max_stored_bytes_per_agent)
        clock = self.database.now
        parts = PartRows(self.database, self._scope, clock)
        return StoredResults(parts, self.place, output.result_ttl, output.preview_lines, clock=clock, quota=quota)

    def media(self, output: "Output") -> Media:
        clock = self.database.now
        parts = PartRows(self.database, self._scope, clock, kind="media")
        return Media(parts, self.place, output.result_ttl, clock, output.max_stored_bytes)

    def notices(self, max_file_bytes: int) -> NoticeRows:
        return NoticeRows(self.database, max_file_bytes)

    def audit(self, _file: Path, redact: Callable[[str], str]) -> AuditRows:
        return AuditRows(self.database, redact)

    def tool_lists(self, redact: Callable[[str], str]) -> ToolLists:
        return ToolLists(self.database, redact)

    def call_rates(self, _directory: Path) -> RateLimiter:
        return RateLimiter(self.counters)

    def guard_budget(self, limits: Limits, **options: Any) -> SharedBudgetGuard:
        return SharedBudgetGuard(limits, counters=self.counters, **options)

    def bundles(self, _directory: Path, max_tools: int, builtin: Path | None) -> "BundleStore":
        from onetool.bundles import BundleStore
        from onetool.bundles.reader import UsageCounts

        make_directory = partial(BundleMirror, database=self.database, changes=self.changes)
        return BundleStore(
            self._cache / "bundles",
            max_tools=max_tools,
            builtin=builtin,
            usage=UsageCounts(self.recorder.database),
            make_directory=make_directory,
        )
