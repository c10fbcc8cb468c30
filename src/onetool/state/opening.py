"""Open the state in the database of the settings. Without one, nothing of this package is imported."""

from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

from onetool.config.load import Loaded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onetool.state.postgres_state import PostgresState


def open_state(loaded: Loaded) -> "PostgresState | None":
    """Return the state in the database of the settings; None if it is in files. The caller starts and closes it."""
    settings = loaded.settings
    if not settings.store:
        return None
    from onetool.state.postgres_state import PostgresState

    name = sha256(settings.store.encode()).hexdigest()[:16]
    return PostgresState(
        settings.store,
        loaded.store_key,
        loaded.directories.user / "cache" / f"store-{name}",
        keep_job_seconds=settings.workers.job_ttl,
    )


@contextmanager
def opened_state(loaded: Loaded) -> "Iterator[PostgresState | None]":
    """Open the state of the settings for one command."""
    state = open_state(loaded)
    try:
        yield state
    finally:
        if state is not None:
            state.runs.close()
            state.close()
