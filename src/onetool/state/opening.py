"""Open the state: in files, or in a database that replicas share.

Without a database, nothing for it is imported.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync

from onetool.errors import ToolError
from onetool.settings.load import Loaded
from onetool.settings.paths import Directories
from onetool.state.changes import Changes
from onetool.state.counters import (
    BudgetGuard,
    CounterFile,
    Counters,
    CounterTables,
    RateLimiter,
)
from onetool.state.credentials import CredentialFile, CredentialStore
from onetool.state.document_kinds import MODEL_USAGE, DisabledTools, LastUses, SavedSnippets
from onetool.state.documents import DocumentCache, DocumentFile, Documents
from onetool.state.file_kinds import AuditFile, EndedSessions, NoticeFiles, SettingsFiles
from onetool.state.result_parts import ResultFiles
from onetool.state.run_store import RunStore
from onetool.state.sealing import KEY_BYTES, PageKey, load_key
from onetool.state.session_store import SessionStore
from onetool.state.stats.database import StatisticsFile
from onetool.state.stats.record import Recorder
from onetool.state.stats.shapes import Shapes
from onetool.state.storage import BundleFiles, Jobs, State, StateDescription
from onetool.util.clock_watch import ClockWatch

if TYPE_CHECKING:
    from onetool.state.token_file import TokenFile

NO_STORE = "set store in ~/.onetool/onetool.yaml, or ONETOOL_STORE, to a postgresql:// URL"


def open_state(loaded: Loaded, changes: Changes | None = None) -> State:
    """Return the state that the settings name. The caller starts and closes it.

    It reports what others change to `changes`.
    """
    if not loaded.settings.store:
        return open_files(loaded.directories, changes)
    directories = loaded.directories
    name = sha256(loaded.settings.store.encode()).hexdigest()[:16]
    return open_postgres(
        loaded.settings.store,
        loaded.store_key,
        directories.user / "cache" / f"store-{name}",
        scope=str(directories.working_dir),
        keep_job_seconds=loaded.settings.workers.job_ttl,
        search_directory=directories.data / "cache",
        changes=changes,
    )


def open_files(directories: Directories, changes: Changes | None = None) -> State:
    """Return the state in these directories. Each kind creates its files when it first writes."""
    data = directories.data
    files = {
        place: DocumentFile(place) for place in (data, directories.private, directories.user)
    }  # often the same
    cache = DocumentCache(data / "cache")
    private = files[directories.private]
    user = files[directories.user]
    statistics = StatisticsFile(data / "stats" / "stats.db")
    recorder = Recorder(statistics)
    sessions = SessionStore(directories.private)
    clock_watch = ClockWatch(time.time)
    credentials = CredentialFile(directories.user)
    runs = RunStore(directories.private)
    if changes is not None:
        changes.poll("runs", partial(run_sync, runs.version))
    return State(
        place=str(data),
        databases=(*files.values(), cache, sessions.database, credentials),
        describe=lambda: StateDescription(
            {"store": "files", "directory": str(data)}, [f"files in {data}"]
        ),
        clock_watch=clock_watch,
        load_key=_make_key_loader(directories),
        search_directory=data / "cache",
        recorder=recorder,
        shapes=Shapes(statistics),
        runs=runs,
        sessions=sessions,
        counters=Counters(),
        snippets=SavedSnippets(private),
        disabled_tools=DisabledTools(files[data]),
        pins=Documents(private, "pins"),
        token_usage=Documents(user, MODEL_USAGE, is_announced=False),
        token_use=LastUses(user),
        settings=SettingsFiles(directories),
        credentials=CredentialStore(credentials),
        ended_sessions=EndedSessions(),
        jobs=Jobs(),
        cache=cache,
        open_parts=partial(_open_part_files, data / "tmp", clock_watch),
        notices=partial(NoticeFiles, data),
        audit=AuditFile,
        bundle_files=BundleFiles,
        call_rates=_open_rates,
        guard_budget=BudgetGuard,
        open_tokens=partial(_open_token_file, directories),
    )


def open_postgres(url: str, key: str, cache: Path, **options: Any) -> State:
    """Return the state in a database; `key` seals it, and `cache` is a directory of this machine."""
    from onetool.state.postgres_state import open_rows

    return open_rows(url, key, cache, **options)


def require_store(loaded: Loaded, reason: str = "the state is in files") -> str:
    """Return the URL of the database. Raise if there is none."""
    if not loaded.settings.store:
        raise ToolError(reason, hint=NO_STORE)
    return loaded.settings.store


# --- files ----------------------------------------------------------------------------------------


def _open_part_files(directory: Path, clock_watch: ClockWatch, kind: str) -> ResultFiles:
    return ResultFiles(directory, clock_watch, kind=kind)


def _make_key_loader(directories: Directories) -> Callable[[str], bytes]:
    session_key = os.urandom(KEY_BYTES)  # the sessions of browsers end with this process
    keys: dict[str, Callable[[], bytes]] = {
        "request state": partial(load_key, directories.private / "runs" / "request-state.key"),
        "pages": PageKey(directories.data / "cache" / "pages.key").load,
        "browser sessions": lambda: session_key,
    }
    return lambda name: keys[name]()


def _open_rates(directory: Path) -> RateLimiter:
    file = CounterFile(directory / ".usage" / "rates.db")
    return RateLimiter(CounterTables(file), fallback=Counters())


def _open_token_file(directories: Directories) -> "TokenFile":
    from onetool.state.token_file import TokenFile

    return TokenFile(directories)
