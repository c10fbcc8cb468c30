"""Changes of settings by commands: with the difference on the screen, in the audit log and in the history."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from onetool.cli.identity import user_name
from onetool.cli.signals import blocked_signals
from onetool.cli.terminal import print_notices
from onetool.paths import find_directories
from onetool.util.invisible import escape_invisible

if TYPE_CHECKING:
    from onetool.config.load import Loaded
    from onetool.editing.settings_editor import PlannedEdit

EFFECTIVE = "Running servers apply it within 2 seconds."


def add_edit_options(parser: argparse.ArgumentParser, *, chooses_file: bool = False) -> None:
    if chooses_file:
        parser.add_argument("--user", action="store_true", help="write to ~/.onetool, for all directories")
    parser.add_argument("--dry-run", action="store_true", help="show the change without writing it")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


class SettingsCommand:
    """The settings that a command reads and changes. The person at the command line is the owner."""

    def __init__(self, options: argparse.Namespace) -> None:
        from onetool.config.load import load
        from onetool.editing.settings_editor import SettingsEditor

        self._options, self._as_json = options, getattr(options, "json", False)
        self.loaded: Loaded = load(find_directories(os.environ, Path.cwd(), options.config, Path.home()), os.environ)
        print_notices(self.loaded.problems)
        self.editor: SettingsEditor = SettingsEditor(self.loaded.directories, os.environ)

    @property
    def directory(self) -> Path | None:
        """The directory of new entries; None for the usual one."""
        return self.loaded.directories.user if getattr(self._options, "user", False) else None

    def apply(self, planned: "PlannedEdit", notes: Sequence[str] = (), **more: Any) -> int:
        """Write an edit unless it is a dry run, and print the difference."""
        if self.loaded.settings.store:
            notes = [*notes, "Other replicas read their own settings files."]
        is_written = planned.changes_anything and not getattr(self._options, "dry_run", False)
        with blocked_signals():
            change_id = anyio.run(self._write, planned) if is_written else None
        if self._as_json:
            self.print_json({"id": change_id, "difference": planned.difference, "notes": list(notes), **more})
            return 0
        ending = "Nothing was written (--dry-run)." if planned.changes_anything else "Nothing to change."
        if is_written:
            undo = "" if planned.action.startswith("secrets") else f" Undo it with `onetool settings undo {change_id}`."
            ending = f"{EFFECTIVE}{undo}"
        print(escape_invisible("\n".join(filter(None, [planned.difference, *notes, ending]))))
        return 0

    async def _write(self, planned: "PlannedEdit") -> str:
        from onetool.audit import open_audit_log
        from onetool.postgres.opening import opened_state

        actor, transport, difference = user_name(), "cli", planned.difference
        with opened_state(self.loaded) as remote, closing(open_audit_log(self.loaded, remote)) as audit:
            facts = audit.changing(
                planned.action, planned.names, actor=actor, transport=transport, difference=difference
            )
            async with facts:
                return self.editor.apply(planned, actor=actor, transport=transport).id

    @staticmethod
    def print_json(data: Mapping[str, Any]) -> None:
        print(json.dumps(data, indent=2, ensure_ascii=False, default=str))
