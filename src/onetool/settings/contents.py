"""Contents of settings files, their stamp, and the settings that replicas share in a database.

Each file is read once. The stamp tells whether the files have changed since.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from onetool.settings import paths
from onetool.settings.paths import Directories
from onetool.util import yaml_loader

TRUST_FILE = "trust.json"
FileStamp = tuple[int, int, int, int]
Stamp = Mapping[Path, FileStamp | None]  # None for a missing file


class SettingsContents:
    """The content of settings files. Each file is read when it is first needed, and only then.

    `contents` take the place of what is on the disk, to check an edit before it is written.
    """

    def __init__(
        self, contents: Mapping[Path, bytes | str | None] | None = None, stamp: Stamp | None = None
    ) -> None:
        self.contents = dict(contents or {})  # None for a missing file
        self._stamp = stamp

    def take_stamp(self, directories: Directories) -> Stamp:
        """Return the stamp of the files before the first one was read."""
        if self._stamp is None:
            self._stamp = stamp_files(directories)
        return self._stamp

    def replacing(self, texts: Mapping[Path, str]) -> Self:
        """Return the same files with other texts for some of them."""
        return type(self)({**self.contents, **texts}, self._stamp)

    def read(self, path: Path, *, typed: bool = True) -> yaml_loader.YamlDocument:
        """Parse a file.

        Raise FileNotFoundError if it is missing, and ConfigError for any other problem.
        """
        if path not in self.contents:
            try:
                self.contents[path] = yaml_loader.load_bytes(path)
            except FileNotFoundError:
                self.contents[path] = None
        content = self.contents[path]
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if isinstance(content, bytes):
            return yaml_loader.read_bytes(content, str(path), typed=typed)
        return yaml_loader.read(content, str(path), typed=typed)


def stamp_files(directories: Directories) -> Stamp:
    """Return times and sizes of the settings files, which change with their content."""
    return stamp_paths(list_files(directories))


def stamp_paths(files: Iterable[Path]) -> Stamp:
    return {path: _get_stamp(path) for path in files}


def list_files(directories: Directories) -> Iterator[Path]:
    """Yield the settings files that may exist, and those of agents that do."""
    yield directories.user / TRUST_FILE
    for directory in directories.layers:
        yield from (
            directories.config_path(directory),
            directory / paths.PROMPTS,
            directory / paths.SECRETS,
        )
        yield from paths.agent_files(directory)


def _get_stamp(path: Path) -> FileStamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


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
