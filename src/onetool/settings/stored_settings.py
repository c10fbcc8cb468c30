"""Settings that replicas share in a database, over their own files."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """Settings that replicas share, over their own files: the texts of a settings file and of a
    file of secrets.
    """

    text: str = ""
    secrets: str = field(default="", repr=False)
    problem: str = ""  # the reason why they cannot be read; empty if they can


NOTHING_STORED = StoredSettings()


class SettingsStorage:
    """The settings over the files that replicas share. Here, there are none."""

    def version(self) -> object:
        """Return a value that changes when anybody has edited the settings. Returns at once."""
        return None

    def get(self) -> StoredSettings:
        """Return the last known settings over the files, at once.

        Raise StorageError if none are known yet.
        """
        return NOTHING_STORED

    def refresh(self) -> StoredSettings:
        """Return the current settings over the files. Blocks."""
        return NOTHING_STORED


class EditableSettings(Protocol):
    """The settings that replicas share, and their history as JSON. Both are encrypted at rest."""

    def get(self) -> StoredSettings: ...
    def read_history(self) -> str: ...
    def update(self, change: Callable[[StoredSettings, str], tuple[StoredSettings, str]]) -> None:
        """Replace the settings and their history, while no other replica can.

        `change` raises to prevent it.
        """
        ...
