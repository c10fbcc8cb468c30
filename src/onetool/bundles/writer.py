"""Writes of the store: files are replaced atomically, and a journal records the files of an interrupted write.

Slow operations, writing and syncing, happen before and after the lock is held. Methods with a `WriteJournal` parameter
require the lock.
"""

import os
from collections.abc import Sequence
from contextlib import suppress

from onetool.bundles import store_errors
from onetool.bundles.bundle_storage import BundleDirectory
from onetool.bundles.filenames import BUNDLE_FILE, directory_names, parse_id, tool_file_names
from onetool.bundles.filesystem import NewFile, sync_directory
from onetool.bundles.listing import BundleRow, get_bundle
from onetool.bundles.records import BundleFile, ToolFile
from onetool.bundles.store_lock import WriteJournal
from onetool.bundles.sync import is_directory


class BundleWriter:
    def __init__(self, directory: BundleDirectory) -> None:
        self._directory = directory

    # --- without the lock --------------------------------------------------------------------------------------

    def write(self, contents: Sequence[bytes]) -> list[NewFile]:
        """Write new files to the scratch directory, all or none."""
        if not self._directory.scratch.is_open:
            with self._directory.writing():
                self._directory.open_scratch()
        written: list[NewFile] = []
        try:
            with self._directory.converting_errors():
                for content in contents:
                    written.append(self._directory.scratch.write(content))  # noqa: PERF401 - for cleanup after an error
        except BaseException:
            self.drop(written)
            raise
        return written

    def drop(self, files: Sequence[NewFile]) -> None:
        self._directory.scratch.drop(files)

    def sync_directories(self, *directories: str) -> None:
        """Sync these directories; `.` is the root of the store."""
        for directory in directories:
            sync_directory(self._directory.root / directory)

    # --- tools -------------------------------------------------------------------------------------------------

    def add_tools(
        self, journal: WriteJournal, directory: str, files: Sequence[ToolFile], written: Sequence[NewFile]
    ) -> None:
        self._reject_link(directory)
        names = [tool_file_names(file.slug, file.version) for file in files]
        paths = [f"{directory}/{name}" for several in names for name in several]
        for path in paths:
            if os.path.lexists(self._directory.root / path):
                raise store_errors.unreadable_file(path)
        journal.begin(paths)
        moved: list[str] = []
        try:
            for new, several in zip(written, names, strict=True):
                moved.append(new.move(self._directory.root / directory, several))
        except OSError:
            for name in moved:
                with suppress(OSError):
                    (self._directory.root / directory / name).unlink()
            raise
        finally:
            self._directory.sync(journal, paths)

    def replace(self, journal: WriteJournal, path: str, content: bytes) -> None:
        self._reject_link(path.partition("/")[0])
        new = self._directory.new_file(content)
        journal.begin([path])
        try:
            new.move(self._directory.root, [path])
        finally:
            self._directory.sync(journal, [path])
            self.drop([new])

    def delete(self, journal: WriteJournal, path: str) -> None:
        self._reject_link(path.partition("/")[0])
        journal.begin([path])
        try:
            (self._directory.root / path).unlink(missing_ok=True)
        finally:
            self._directory.sync(journal, [path])

    # --- bundles -----------------------------------------------------------------------------------------------

    def find_directory(self, journal: WriteJournal, bundle_id: str) -> str | None:
        """Return the directory of a bundle, even of one that was just added by hand."""
        known = self._row(bundle_id)
        if known is not None:
            return known.directory
        for place in self._directory.root.iterdir():
            if parse_id(place.name) == bundle_id:
                if not is_directory(place):
                    raise store_errors.unreadable_file(place.name)
                self._directory.sync(journal, [f"{place.name}/{BUNDLE_FILE}"])
                if self._row(bundle_id) is None and any(place.iterdir()):
                    raise store_errors.unreadable_file(f"{place.name}/{BUNDLE_FILE}")
                return place.name
        return None

    def put_bundle(self, journal: WriteJournal, directory: str | None, file: BundleFile) -> str:
        """Write a bundle and return its directory, which is created if necessary."""
        if directory:
            self._reject_link(directory)
        new = self._directory.new_file(file.text())
        names = (directory,) if directory else directory_names(file.slug, file.id)
        paths = [f"{name}/{BUNDLE_FILE}" for name in names]
        journal.begin(paths)
        try:
            made = self._make_directory(names)
            new.move(self._directory.root / made, [BUNDLE_FILE])
        finally:
            self._directory.sync(journal, paths)
            self.drop([new])
        return made

    def _make_directory(self, names: Sequence[str]) -> str:
        """Create a directory with the first of the names that the file system accepts."""
        *better, last = names
        for name in better:
            with suppress(OSError):
                (self._directory.root / name).mkdir(mode=0o700, exist_ok=True)
                return name
        (self._directory.root / last).mkdir(mode=0o700, exist_ok=True)
        return last

    def remove_bundle(self, journal: WriteJournal, directory: str) -> None:
        """Remove a bundle, unless its directory contains other files."""
        place = self._directory.root / directory
        if [entry.name for entry in place.iterdir()] != [BUNDLE_FILE]:
            return
        journal.begin([f"{directory}/{BUNDLE_FILE}"])
        try:
            (place / BUNDLE_FILE).unlink()
            with suppress(OSError):  # another file was just added
                place.rmdir()
        finally:
            self._directory.sync(journal, [f"{directory}/{BUNDLE_FILE}"])

    def _reject_link(self, directory: str) -> None:
        """Reject a symbolic link, which may just have replaced the directory."""
        if (self._directory.root / directory).is_symlink():
            raise store_errors.unreadable_file(directory)

    def _row(self, bundle_id: str) -> BundleRow | None:
        return self._directory.read(lambda database: get_bundle(database, bundle_id))
