"""Options and output of commands that change settings."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.cli.options import add_json
from onetool.cli.terminal import CommandOutput
from onetool.util.invisible import escape_invisible

if TYPE_CHECKING:
    from onetool.admin.settings_edits import EditQuery, EditResult
    from onetool.app import OneTool


def add_edit_options(*parsers: ArgumentParser, chooses_file: bool = False) -> None:
    for parser in parsers:
        if chooses_file:
            parser.add_argument("--user", action="store_true", help="write to ~/.onetool, for all directories")
        parser.add_argument("--dry-run", action="store_true", help="show the change without writing it")
        add_json(parser)


def read_query(options: Namespace) -> "EditQuery":
    from onetool.admin.settings_edits import EditQuery

    return EditQuery.model_construct(dry_run=options.dry_run)


def choose_directory(app: "OneTool", options: Namespace) -> Path | None:
    """Return the directory of new entries; None for the usual one."""
    return app.directories.user if options.user else None


def print_edit(app: "OneTool", options: Namespace, output: CommandOutput, edited: "EditResult", **more: Any) -> None:
    """Print the difference of an edit, and when it takes effect."""
    notes = [*edited.notes, *(f"Missing secret: onetool secret set {name}" for name in edited.missing)]
    if options.json:
        output.write_json({"id": edited.id, "difference": edited.difference, "notes": notes, **more})
        return
    ending = "Nothing was written (--dry-run)." if edited.difference else "Nothing to change."
    if edited.id is not None:
        undo = f" Undo it with `onetool settings undo {edited.id}`." if edited.can_undo else ""
        ending = f"{app.state.settings.when_effective}{undo}"
    output.write(escape_invisible("\n".join([*filter(None, [edited.difference, *notes]), ending, ""])))
