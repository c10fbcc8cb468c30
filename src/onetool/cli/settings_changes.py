"""Changes of settings by commands: with the difference on the screen, in the audit log and in the history."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio

from onetool.cli.identity import user_name
from onetool.cli.options import add_json, find_command_directories, print_json
from onetool.cli.signals import blocked_signals
from onetool.cli.terminal import print_notices
from onetool.util.invisible import escape_invisible

if TYPE_CHECKING:
    from onetool.clients.server_import import ServerImport
    from onetool.config.load import Loaded
    from onetool.editing.attempts import MadeEdit, Plan
    from onetool.editing.planned_edit import PlannedEdit
    from onetool.editing.settings_editor import SettingsEditor


def add_edit_options(parser: ArgumentParser, *, chooses_file: bool = False) -> None:
    if chooses_file:
        parser.add_argument("--user", action="store_true", help="write to ~/.onetool, for all directories")
    parser.add_argument("--dry-run", action="store_true", help="show the change without writing it")
    add_json(parser)


class SettingsCommand:
    """The settings that a command reads and changes, until it is left. The person at the command line is the owner."""

    def __init__(self, options: Namespace) -> None:
        from onetool.config.contents import SettingsContents
        from onetool.config.load import examine
        from onetool.config.settings_reader import apply_stored
        from onetool.state.opening import open_state

        self._options = options
        self._files: SettingsContents | None = SettingsContents()  # as the command has read them, for its first attempt
        loaded = examine(find_command_directories(options), os.environ, files=self._files).require()
        print_notices(loaded.problems)
        with ExitStack() as stack:
            self._state = stack.enter_context(open_state(loaded))
            examined = apply_stored(loaded, self._state.settings.refresh(), self._files)
            print_notices(examined.errors)  # the command may be the one that corrects them
            self.loaded: Loaded = examined.loaded
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open_editor(self) -> "SettingsEditor":
        """Return an editor for the settings files, or for the settings in the store."""
        files = self._files
        self._files = None
        return self._state.settings.open_editor(self.loaded.directories, os.environ, files)

    @property
    def directory(self) -> Path | None:
        """The directory of new entries; None for the usual one."""
        return self.loaded.directories.user if getattr(self._options, "user", False) else None

    def edit(self, plan: "Plan", get_notes: Callable[[], Sequence[str]] = tuple, **more: Any) -> int:
        """Make an edit unless it is a dry run, and print the difference. `get_notes` is called after `plan`."""
        planned, entry, _ = self.make_edit(plan)
        change_id = None if entry is None else entry.id
        notes = list(get_notes())
        if self._options.json:
            print_json({"id": change_id, "difference": planned.difference, "notes": notes, **more})
            return 0
        ending = "Nothing was written (--dry-run)." if planned.changes_anything else "Nothing to change."
        if entry is not None:
            undo = f" Undo it with `onetool settings undo {change_id}`." if entry.can_undo else ""
            ending = f"{self._state.settings.when_effective}{undo}"
        print(escape_invisible("\n".join(filter(None, [planned.difference, *notes, ending]))))
        return 0

    def make_edit(self, plan: "Plan") -> "MadeEdit":
        """Make an edit unless it is a dry run, and print nothing."""
        with blocked_signals():
            return anyio.run(self._make_edit, plan)

    async def _make_edit(self, plan: "Plan") -> "MadeEdit":
        from onetool.editing.attempts import make_edit
        from onetool.state.audit import open_audit_log

        is_dry_run = getattr(self._options, "dry_run", False)
        with closing(open_audit_log(self.loaded, self._state)) as audit:
            return await make_edit(
                self.open_editor, plan, audit, actor=user_name(), transport="cli", is_dry_run=is_dry_run
            )

    def finish_edit(self, edit: "PlannedEdit") -> Iterable[str]:
        """Keep backups of the settings files that an edit changed, and return messages about them."""
        return self._state.settings.finish_edit(edit)

    def describe_servers(self, result: "ServerImport") -> list[str]:
        """Return notes about servers that were added."""
        place = self._state.settings.secrets_place
        moved = [f"Moved secrets to {place}: {', '.join(result.secrets)}"] if result.secrets else []
        return [*result.notes, *moved, *(f"Missing secret: onetool secret set {name}" for name in result.missing)]
