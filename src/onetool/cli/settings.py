"""Show the last changes of the settings, made by commands and in the admin UI, and undo them."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.options import add_actions, add_json, print_json
from onetool.cli.settings_changes import SettingsCommand, add_edit_options
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.editing.edit_history import HistoryEntry
    from onetool.editing.settings_editor import SettingsEditor


def add_arguments(parser: ArgumentParser) -> None:
    history, undo = add_actions(
        parser,
        {"history": "Show the last changes, newest first", "undo": "Undo a change, by default the last one"},
    )
    add_json(history)
    undo.add_argument("change", nargs="?", default="", metavar="ID", help="ID of the change, as `history` shows it")
    add_edit_options(undo)


def main(options: Namespace) -> int:
    with SettingsCommand(options) as command:
        if options.action == "history":
            return _show(command.open_editor().history.list_entries(), as_json=options.json)
        return command.edit(lambda editor: editor.plan_undo(options.change or _find_last(editor)))


def _find_last(editor: "SettingsEditor") -> str:
    entries = editor.history.list_entries()
    if not entries:
        raise ToolError("no change to undo: the history is empty")
    return next((entry.id for entry in entries if entry.can_undo), entries[0].id)


def _show(entries: "list[HistoryEntry]", *, as_json: bool) -> int:
    if as_json:
        print_json({"changes": [_describe(entry) for entry in entries]})
    elif not entries:
        print("No changes yet. `onetool servers add` and `onetool agents set` are changes.")
    for entry in [] if as_json else entries:
        heading = f"{entry.id}  {entry.at}  {entry.action} {', '.join(entry.names)}  by {entry.actor}"
        lines = (f"    {line}" for line in entry.difference.splitlines())
        print(escape_invisible("\n".join([heading, *lines])))
    return 0


def _describe(entry: "HistoryEntry") -> JsonObject:
    """Return an entry without the old texts of files, which may contain secrets."""
    fields = ("id", "at", "actor", "transport", "action", "names", "difference", "can_undo", "undoes")
    return {name: getattr(entry, name) for name in fields}
