"""Open the state: in files, or in a database that replicas share. Without a database, nothing for it is imported."""

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.config.load import Loaded
from onetool.errors import ToolError
from onetool.paths import Directories
from onetool.state.file_state import FileState
from onetool.state.storage import State

if TYPE_CHECKING:
    from onetool.state.postgres_state import PostgresState

NO_STORE = "set store in ~/.onetool/onetool.yaml, or ONETOOL_STORE, to a postgresql:// URL"


def open_state(loaded: Loaded) -> State:
    """Return the state that the settings name. The caller starts and closes it."""
    if not loaded.settings.store:
        return open_files(loaded.directories)
    directories = loaded.directories
    name = sha256(loaded.settings.store.encode()).hexdigest()[:16]
    return open_postgres(
        loaded.settings.store,
        loaded.store_key,
        directories.user / "cache" / f"store-{name}",
        scope=str(directories.working_dir),
        keep_job_seconds=loaded.settings.workers.job_ttl,
        search_directory=directories.data / "cache",
    )


def open_files(directories: Directories) -> FileState:
    return FileState(directories)


def open_postgres(url: str, key: str, cache: Path, **options: Any) -> "PostgresState":
    """Return the state in a database; `key` seals it, and `cache` is a directory of this machine."""
    from onetool.state.postgres_state import PostgresState

    return PostgresState(url, key, cache, **options)


def require_store(loaded: Loaded, reason: str = "the state is in files") -> str:
    """Return the URL of the database. Raise if there is none."""
    if not loaded.settings.store:
        raise ToolError(reason, hint=NO_STORE)
    return loaded.settings.store
