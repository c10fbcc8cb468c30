"""Changing the configuration that is in force: one process at a time, and a folder that was trusted stays trusted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onetool.cli.signals import undisturbed
from onetool.clients import files
from onetool.config.trust import is_trusted, trust
from onetool.errors import StorageError
from onetool.paths import Folders
from onetool.util.locks import locked

LOCK = "onetool.yaml.lock"


@contextmanager
def configuration(folders: Folders) -> Iterator[files.Read]:
    """The configuration file of the folder where things are kept, as it is now; nobody else changes it meanwhile."""
    try:
        folders.user.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(folders.user / LOCK), undisturbed():
            yield files.read(folders.config_of(folders.data))
    except OSError as error:
        raise StorageError(f"{folders.user} cannot be written: {error.strerror or error}") from None


def write(folders: Folders, before: files.Read, text: str, *, keep: bool) -> Path | None:
    """Put the text in its place; the backup, where one is kept. A file that is new is for its owner only."""
    project = folders.project if folders.config_file is None else None
    # What a variable says of trust holds for one process, and must not be remembered.
    was_trusted = project is not None and is_trusted(project, folders.user, {})
    backup = files.write(before, text, mode=files.OWNER_ONLY if before.raw is None else None, keep=keep)
    if was_trusted and project is not None:
        trust(project, folders.user)
    return backup
