"""Edits the active settings file: one process at a time, and without losing trust."""

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from onetool.cli.identity import user_name
from onetool.cli.signals import blocked_signals
from onetool.clients import text_files
from onetool.config.load import examine
from onetool.config.trust import is_trusted, trust
from onetool.editing.edit_history import LOCK, EditedFile, EditedItem, EditHistory, new_entry
from onetool.editing.planned_edit import digest_text
from onetool.errors import StorageError
from onetool.paths import Directories
from onetool.state.audit import open_audit_log
from onetool.state.opening import open_files
from onetool.util.locks import locked


@contextmanager
def open_locked(directories: Directories) -> Iterator[text_files.TextFile]:
    """Lock and read the settings file of the data directory."""
    try:
        directories.user.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(directories.user / LOCK), blocked_signals():
            yield text_files.read(directories.config_path(directories.data))
    except OSError as error:
        raise StorageError(f"cannot write to {directories.user}: {error.strerror or error}") from None


def write(directories: Directories, before: text_files.TextFile, text: str, *, keep: bool) -> Path | None:
    """Write the settings file and return the backup, if one is kept. Only the owner can read a new file."""
    project = directories.project if directories.config_file is None else None
    # Trust through an environment variable is for one process and must not be stored.
    was_trusted = project is not None and is_trusted(project, directories.user, {})
    backup = text_files.write(before, text, mode=text_files.OWNER_ONLY if before.raw is None else None, keep=keep)
    if was_trusted and project is not None:
        trust(project, directories.user)
    return backup


@contextmanager
def recording(
    directories: Directories,
    action: str,
    before: text_files.TextFile,
    text: str,
    items: Iterable[EditedItem],
    *,
    names: Iterable[str],
    difference: str,
    secrets: Iterable[str] = (),
) -> Iterator[None]:
    """Add the edit that the block writes to the audit log, and to the history of the settings.

    The caller has the lock. If the history cannot be read or written, the block does not run.
    """
    loaded = examine(directories, os.environ).loaded
    with open_files(directories) as state, closing(open_audit_log(loaded, state)) as audit:
        audit.change(action, names, actor=user_name(), transport="cli")
    file = EditedFile(str(before.path), None if before.raw is None else before.text, digest_text(text))
    entry = new_entry(
        action,
        names,
        actor=user_name(),
        transport="cli",
        difference=difference,
        files=(file,),
        items=tuple(items),
        secrets=tuple(secrets),
    )
    with EditHistory(directories.user).adding(entry):
        yield
