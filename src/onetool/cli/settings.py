"""Show the last changes of the settings, made by commands and in the admin UI, and undo them.

Changes of other projects are not shown.
"""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.app_runner import check_settings
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_actions, add_json, choose_stream
from onetool.cli.settings_edits import add_edit_options, print_edit, read_query
from onetool.cli.terminal import CommandOutput
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible

if TYPE_CHECKING:
    from onetool.admin.settings import SettingsChange
    from onetool.app import OneTool

LOCAL = True  # it asks in the terminal


def add_arguments(parser: ArgumentParser) -> None:
    history, undo = add_actions(
        parser,
        {"history": "Show the last changes, newest first", "undo": "Undo a change, by default the last one"},
    )
    add_json(history)
    undo.add_argument("change", nargs="?", default="", metavar="ID", help="ID of the change, as `history` shows it")
    undo.add_argument("--yes", action="store_true", help="undo it without a question")
    add_edit_options(undo)


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    from onetool.admin.settings import list_changes

    check_settings(app, output)
    changes = (await list_changes(app, identify_owner())).changes
    if options.action == "undo":
        await _undo(app, changes, options, output)
    elif options.json:
        output.write_json({"changes": [{"undoes": "", **change.model_dump()} for change in changes]})
    elif changes:
        output.write(escape_invisible("".join(map(_render, changes))))
    else:
        output.write("No changes yet. `onetool servers add` and `onetool agents set` are changes.\n")
    return 0


def _render(change: "SettingsChange") -> str:
    files = f" in {', '.join(change.paths)}" if change.paths else ""
    heading = f"{change.id}  {change.at}  {change.action} {', '.join(change.names)}  by {change.actor}{files}"
    return "\n".join([heading, *(f"    {line}" for line in change.difference.splitlines()), ""])


async def _undo(app: "OneTool", changes: "list[SettingsChange]", options: Namespace, output: CommandOutput) -> None:
    """Undo a change, after a question that shows it and names its files."""
    from onetool.admin.settings import undo_change
    from onetool.cli.trust import confirm

    if not changes:
        raise ToolError("no change to undo: the history is empty")
    last = next((change for change in changes if change.can_undo), changes[0])
    change_id = options.change or last.id
    selected = [change for change in changes if change.id == change_id and change.can_undo]
    if selected and not (options.yes or options.dry_run):
        stream = choose_stream(options)
        stream.write(escape_invisible(_render(selected[0])))
        if not confirm(f"Undo this change of {', '.join(selected[0].paths)}? [y/N] ", stream):
            raise ToolError("nothing was undone: not confirmed", hint="use --yes to undo it without a question")
    edited = await undo_change(app, identify_owner(), change_id, read_query(options))
    print_edit(app, options, output, edited)
