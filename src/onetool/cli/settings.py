"""Show the last changes of the settings, made by commands and in the admin UI, and undo them.

Changes of other projects are not shown.
"""

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from onetool.cli.invocation import Invocation
from onetool.cli.options import Actions, add_edit_options, choose_stream
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible

if TYPE_CHECKING:
    from onetool.admin.settings import SettingsChange

LOCAL = frozenset({"undo"})  # it asks


def add_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add("history", _list, "Show the last changes, newest first")
    undo = actions.add("undo", _undo, "Undo a change, by default the last one")
    undo.add_argument(
        "change",
        nargs="?",
        default="",
        metavar="ID",
        help="ID of the change, as `history` shows it",
    )
    undo.add_argument("--yes", action="store_true", help="undo it without a question")
    add_edit_options(undo)


async def _list(command: Invocation) -> None:
    from onetool.admin.settings import list_changes

    changes = (await command.do(list_changes)).changes
    data = {"changes": [{"undoes": "", **change.model_dump()} for change in changes]}
    empty = "No changes yet. `onetool servers add` and `onetool agents set` are changes."
    command.show(data, map(_render, changes), empty)


def _render(change: "SettingsChange") -> str:
    files = f" in {', '.join(change.paths)}" if change.paths else ""
    heading = (
        f"{change.id}  {change.at}  {change.action} {', '.join(change.names)}  by"
        f" {change.actor}{files}"
    )
    return "\n".join([heading, *(f"    {line}" for line in change.difference.splitlines())])


async def _undo(command: Invocation) -> None:
    """Undo a change, after a question that shows it and names its files."""
    from onetool.admin.settings import list_changes, undo_change
    from onetool.cli.trust import confirm

    options = command.options
    changes = (await command.do(list_changes)).changes
    if not changes:
        raise ToolError("no change to undo: the history is empty")
    last = next((change for change in changes if change.can_undo), changes[0])
    change_id = options.change or last.id
    selected = [change for change in changes if change.id == change_id and change.can_undo]
    if selected and not (options.yes or options.dry_run):
        stream = choose_stream(options)
        stream.write(escape_invisible(f"{_render(selected[0])}\n"))
        if not confirm(f"Undo this change of {', '.join(selected[0].paths)}? [y/N] ", stream):
            raise ToolError(
                "nothing was undone: not confirmed", hint="use --yes to undo it without a question"
            )
    edited = await command.do(undo_change, change_id, command.edit_query)
    command.show_edit(edited)
