"""All kinds of state in files and SQLite databases of this machine. `State` of `onetool.state.storage` describes it."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onetool.backends.http_tool.rate_limit import RateLimiter
from onetool.errors import AuditUnavailable, ConfigError, ToolError
from onetool.logging import Log
from onetool.oauth.credential_store import DIRECTORY as CREDENTIALS, CredentialStore
from onetool.paths import Directories
from onetool.proxy.definitions import ToolLists
from onetool.results import Quota, ResultStore
from onetool.results.blobs import Media, open_media
from onetool.search import Search
from onetool.snippets.saved_snippets import SavedSnippets
from onetool.state.counters import CounterFile, CounterTables
from onetool.state.disabled_tools import DisabledTools
from onetool.state.documents import DocumentCache, DocumentFile, Documents
from onetool.state.kinds import MODEL_USAGE, LastUses
from onetool.state.memory import EndedSessions, MemoryCounters
from onetool.state.notices import NoticeFiles
from onetool.state.run_store import RunStore
from onetool.state.sealing import KEY_BYTES, PageKey, load_key
from onetool.state.session_store import SessionStore
from onetool.state.storage import (
    NOTHING_STORED,
    JobRequest,
    JobStatus,
    QueueStatus,
    State,
    StateDescription,
    StoredSettings,
)
from onetool.stats.database import StatisticsFile
from onetool.stats.record import Recorder
from onetool.stats.shapes import Shapes
from onetool.util.problem import Problem
from onetool.util.storage_errors import storage_error

if TYPE_CHECKING:
    from onetool.bundles import BundleStore
    from onetool.config.contents import SettingsContents
    from onetool.config.model import Output
    from onetool.core.bus.budget import BudgetGuard, Limits
    from onetool.editing.edit_history import EditHistory
    from onetool.editing.planned_edit import PlannedEdit
    from onetool.editing.settings_editor import SettingsEditor
    from onetool.state.token_file import TokenFile


class AuditFile(Log):
    """Records as JSON lines. Outcomes of calls are written in the background."""

    device = "disk"
    is_slow = False
    write_seconds = 5.0

    def __init__(self, file: Path, redact: Callable[[str], str]) -> None:
        super().__init__(file, "INFO", redact, gathers=False, name=f"the audit log {file}")
        self._directory = file.parent
        self.place = str(file)

    def make_refusal(self, message: str) -> ToolError:
        hint = "free disk space, make the file writable, or set audit.file in onetool.yaml"
        return AuditUnavailable(message, hint=hint, file=self.place)

    def make_error(self, error: OSError) -> ToolError:
        return storage_error(self._directory, error)


class SettingsFiles:
    """The settings files of a user and of a project."""

    when_effective: Final = "Running servers apply it within 2 seconds."
    secrets_place: Final = "secrets.yaml"

    def __init__(self, directories: Directories) -> None:
        self._directories = directories

    @property
    def history(self) -> "EditHistory":
        from onetool.editing.edit_history import EditHistory

        return EditHistory(self._directories.user)

    def version(self) -> object:
        return self.history.stamp

    def get(self) -> StoredSettings:
        return NOTHING_STORED

    def refresh(self) -> StoredSettings:
        return NOTHING_STORED

    def open_editor(
        self, directories: Directories, env: Mapping[str, str], files: "SettingsContents | None" = None
    ) -> "SettingsEditor":
        from onetool.editing.settings_editor import SettingsEditor

        return SettingsEditor(directories, env, files)

    def choose_directory(self, directory: Path) -> Path:
        return directory

    def finish_edit(self, edit: "PlannedEdit") -> Iterator[str]:
        from onetool.clients import text_files

        for file in edit.files:
            backup = text_files.back_up(file.before)
            note = f" (backup: {backup.name})" if backup else ""
            yield f"Wrote {file.before.path}{note}"


class NoJobs:
    """Queues need a database, which workers on other machines can reach."""

    def find_problems(self, queues: Mapping[str, str], /) -> Iterator[Problem]:
        return (Problem.of(make_store_error(pack)) for pack in queues)

    def watch(self, _job: str, _listener: Callable[[], object], /) -> AbstractContextManager[None]:
        return nullcontext()

    def add(self, request: JobRequest, /) -> None:
        raise make_store_error(request.pack)

    def read(self, _job: str, _after: int, /) -> JobStatus:
        return JobStatus("lost")

    def cancel(self, job: str, /) -> None:
        """Do nothing: there is no job."""

    def recover(self, job: str, is_repeatable: bool, /) -> None:
        """Do nothing: there is no job."""

    def delete(self, job: str, /) -> None:
        """Do nothing: there is no job."""

    def list_queues(self, _names: Collection[str] = (), /) -> list[QueueStatus]:
        return []


def make_store_error(pack: str) -> ConfigError:
    message = f"tools.{pack}.queue needs a database: workers of queues get their calls from it"
    hint = "set store in ~/.onetool/onetool.yaml, or ONETOOL_STORE, to a postgresql:// URL, or remove the queue"
    return ConfigError(message, hint=hint)


class FileState(State):
    """The state in these directories. Opening it touches no disk; each kind creates its files when it first writes."""

    problem: str | None = None
    backup_note = ""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories
        self._data = directories.data
        self.place = str(self._data)
        statistics = StatisticsFile(self._data / "stats" / "stats.db")
        self.recorder = Recorder(statistics)
        self.shapes = Shapes(statistics)
        self.search = Search(self._data / "cache")
        self.runs = RunStore(directories.private)
        sessions = SessionStore(directories.private)
        self.sessions = sessions
        places = (directories.data, directories.private, directories.user)
        self._files = {place: DocumentFile(place) for place in places}  # often the same place
        self._cache = DocumentCache(self._data / "cache")
        self._databases = [*self._files.values(), self._cache, sessions.database]
        data, private, user = (self._files[place] for place in places)
        self.snippets = SavedSnippets(private, private)
        self.disabled_tools = DisabledTools(data, data)
        self.pins = Documents(private, "pins")
        self.token_usage = Documents(user, MODEL_USAGE, is_announced=False)
        self.credentials = CredentialStore(directories.user / CREDENTIALS)
        self.token_use = LastUses(user, time.time)
        self.settings = SettingsFiles(directories)
        self.counters = MemoryCounters()
        self.ended_sessions = EndedSessions()
        self.jobs = NoJobs()

    def describe(self) -> StateDescription:
        return StateDescription({"store": "files", "directory": self.place}, [f"files in {self.place}"])

    def start(self) -> None:
        """Do nothing: each kind looks for changes when it is read."""

    def close(self) -> None:
        super().close()
        for database in self._databases:
            database.close()

    def wait(self, _seconds: float) -> bool:
        return True

    def subscribe(self, kind: str, listener: Callable[[], object]) -> None:
        """Do nothing: files have no replicas."""

    @cached_property
    def tokens(self) -> "TokenFile":
        from onetool.state.token_file import TokenFile

        return TokenFile(self._directories)

    @cached_property
    def _keys(self) -> dict[str, Callable[[], bytes]]:
        session_key = os.urandom(KEY_BYTES)  # the sessions of browsers end with this process
        return {
            "request state": partial(load_key, self._directories.private / "runs" / "request-state.key"),
            "pages": PageKey(self._data / "cache" / "pages.key").load,
            "browser sessions": lambda: session_key,
        }

    def load_key(self, name: str) -> bytes:
        return self._keys[name]()

    def results(self, output: "Output") -> ResultStore:
        quota = Quota(output.max_stored_bytes, output.max_stored_bytes_per_agent)
        return ResultStore(self._data / "tmp", output.result_ttl, output.preview_lines, quota=quota)

    def media(self, output: "Output") -> Media:
        return open_media(self._data / "tmp", output.result_ttl, max_bytes=output.max_stored_bytes)

    def notices(self, max_file_bytes: int) -> NoticeFiles:
        return NoticeFiles(self._data, max_file_bytes)

    def audit(self, file: Path, redact: Callable[[str], str]) -> AuditFile:
        return AuditFile(file, redact)

    def tool_lists(self, redact: Callable[[str], str]) -> ToolLists:
        return ToolLists(self._cache, redact)

    def bundles(self, directory: Path, max_tools: int, builtin: Path | None) -> "BundleStore":
        from onetool.bundles import BundleStore
        from onetool.bundles.reader import UsageCounts

        usage = UsageCounts(self.recorder.database)
        return BundleStore(directory, max_tools=max_tools, builtin=builtin, usage=usage)

    def call_rates(self, directory: Path) -> RateLimiter:
        file = CounterFile(directory / ".usage" / "rates.db")
        return RateLimiter(CounterTables(file), fallback=MemoryCounters())

    def guard_budget(self, limits: "Limits", **options: Any) -> "BudgetGuard":
        from onetool.core.bus.budget import BudgetGuard

        return BudgetGuard(limits, **options)
