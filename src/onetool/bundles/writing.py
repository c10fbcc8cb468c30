"""Changing files of the store: each is replaced whole, and whoever dies at it leaves a mark that says where to look.

What takes long, writing and syncing, happens before the lock is held and after. Everything that takes a `Journal` is
for who holds it.
"""

import os
from collections.abc import Sequence
from contextlib import suppress

from onetool.bundles import refusals
from onetool.bundles.disk import NewFile, sync_folder
from onetool.bundles.filenames import BUNDLE_FILE, folders, id_in, tool_files
from onetool.bundles.listing import BundleRow, bundle
from onetool.bundles.locking import Journal
from onetool.bundles.mirror import is_folder
from onetool.bundles.records import BundleFile, ToolFile
from onetool.bundles.vault import Vault


class Writer:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    # --- without the lock --------------------------------------------------------------------------------------

    def write(self, contents: Sequence[bytes]) -> list[NewFile]:
        """New files that have no place yet; all or none."""
        if not self._vault.scratch.is_open:
            with self._vault.writing():
                self._vault.open_scratch()
        written: list[NewFile] = []
        try:
            with self._vault.disk_trouble():
                for content in contents:
                    written.append(self._vault.scratch.write(content))  # noqa: PERF401 - what is written must be known
        except BaseException:
            self.drop(written)
            raise
        return written

    def drop(self, files: Sequence[NewFile]) -> None:
        self._vault.scratch.drop(files)

    def settle(self, *folders: str) -> None:
        """Wait until the names in these folders are on the disk; `.` is the store's own."""
        for folder in folders:
            sync_folder(self._vault.root / folder)

    # --- tools -------------------------------------------------------------------------------------------------

    def add_tools(self, journal: Journal, folder: str, files: Sequence[ToolFile], written: Sequence[NewFile]) -> None:
        self._refuse_link(folder)
        names = [tool_files(file.slug, file.version) for file in files]
        paths = [f"{folder}/{name}" for several in names for name in several]
        for path in paths:
            if os.path.lexists(self._vault.root / path):
                raise refusals.in_the_way(path)
        journal.begin(paths)
        moved: list[str] = []
        try:
            for new, several in zip(written, names, strict=True):
                moved.append(new.move(self._vault.root / folder, several))
        except OSError:
            for name in moved:
                with suppress(OSError):
                    (self._vault.root / folder / name).unlink()
            raise
        finally:
            self._vault.sync(journal, paths)

    def replace(self, journal: Journal, path: str, content: bytes) -> None:
        self._refuse_link(path.partition("/")[0])
        new = self._vault.new_file(content)
        journal.begin([path])
        try:
            new.move(self._vault.root, [path])
        finally:
            self._vault.sync(journal, [path])
            self.drop([new])

    def delete(self, journal: Journal, path: str) -> None:
        self._refuse_link(path.partition("/")[0])
        journal.begin([path])
        try:
            (self._vault.root / path).unlink(missing_ok=True)
        finally:
            self._vault.sync(journal, [path])

    # --- bundles -----------------------------------------------------------------------------------------------

    def folder_of(self, journal: Journal, bundle_id: str) -> str | None:
        """The folder of a bundle, also of one that was put there by hand a moment ago."""
        known = self._row(bundle_id)
        if known is not None:
            return known.folder
        for place in self._vault.root.iterdir():
            if id_in(place.name) == bundle_id:
                if not is_folder(place):
                    raise refusals.in_the_way(place.name)
                self._vault.sync(journal, [f"{place.name}/{BUNDLE_FILE}"])
                if self._row(bundle_id) is None and any(place.iterdir()):
                    raise refusals.in_the_way(f"{place.name}/{BUNDLE_FILE}")
                return place.name
        return None

    def put_bundle(self, journal: Journal, folder: str | None, file: BundleFile) -> str:
        """The folder in which it now stands, made where there is none."""
        if folder:
            self._refuse_link(folder)
        new = self._vault.new_file(file.text())
        names = (folder,) if folder else folders(file.slug, file.id)
        paths = [f"{name}/{BUNDLE_FILE}" for name in names]
        journal.begin(paths)
        try:
            made = self._made(names)
            new.move(self._vault.root / made, [BUNDLE_FILE])
        finally:
            self._vault.sync(journal, paths)
            self.drop([new])
        return made

    def _made(self, names: Sequence[str]) -> str:
        """The first of the folders that the file system takes."""
        *better, last = names
        for name in better:
            with suppress(OSError):
                (self._vault.root / name).mkdir(mode=0o700, exist_ok=True)
                return name
        (self._vault.root / last).mkdir(mode=0o700, exist_ok=True)
        return last

    def remove_bundle(self, journal: Journal, folder: str) -> None:
        """Unless there is anything else in its folder."""
        place = self._vault.root / folder
        if [entry.name for entry in place.iterdir()] != [BUNDLE_FILE]:
            return
        journal.begin([f"{folder}/{BUNDLE_FILE}"])
        try:
            (place / BUNDLE_FILE).unlink()
            with suppress(OSError):  # somebody has put something there in this very moment
                place.rmdir()
        finally:
            self._vault.sync(journal, [f"{folder}/{BUNDLE_FILE}"])

    def _refuse_link(self, folder: str) -> None:
        """Somebody may have moved the folder away a moment ago and left a link to it."""
        if (self._vault.root / folder).is_symlink():
            raise refusals.in_the_way(folder)

    def _row(self, bundle_id: str) -> BundleRow | None:
        return self._vault.read(lambda database: bundle(database, bundle_id))
