"""Edits of settings: who may make them, the audit log, and the reload that makes an edit effective.

Every change of settings by a person goes through `edit`. `onetool.settings.planned_edit` plans edits and
writes them.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import Person, check_settings
from onetool.admin.model import AdminError, ApiModel, Flag, Query
from onetool.admin.precondition import NO_CONDITION, Precondition
from onetool.admin.rights import check_rights
from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.settings.planned_edit import (
    EditConflict,
    ItemChange,
    PlannedEdit,
    SettingsItem,
)
from onetool.settings.settings_editor import SettingsEditor
from onetool.util.redact import Redactor
from onetool.util.secret_finder import find_secrets
from onetool_child.json_types import JsonMapping, JsonObject

MAX_ATTEMPTS = 30  # each one that fails is an edit of somebody else that succeeded
MAX_WAIT_SECONDS = 0.1
Plan = Callable[[SettingsEditor], PlannedEdit]
SettingsValues = JsonObject


class EditQuery(Query):
    dry_run: Flag = Field(default=False, description="Return the difference without writing it")


class EditResult(ApiModel):
    """A change of settings. Without `id`, nothing was written."""

    id: str | None = Field(default=None, description="Identifies the change in the history")
    action: str
    names: list[str]
    difference: str = Field(
        description="The change of the files as a unified diff, without secrets"
    )
    notes: list[str] = Field(default=[], description="Messages for the person")
    missing: dict[str, str] = Field(
        default={}, description="Secrets to set, with their descriptions"
    )
    can_undo: bool = Field(default=False, description="Whether it was written and can be undone")


class SettingsEntry(ApiModel):
    """An entry of the settings as its file has it, without secrets."""

    file: str
    etag: str | None
    values: SettingsValues


class SettingsPatch(ApiModel):
    """A JSON merge patch: null removes a key."""

    settings: SettingsValues


async def edit(
    app: OneTool, person: Person, plan: Plan, query: EditQuery, *, keeps_backups: bool = False
) -> EditResult:
    """Make an edit, unless it changes nothing or the person wants the difference only.

    `plan` is called again if the settings have changed meanwhile. What it raises is raised. With
    `keeps_backups`, the notes name the files and their backups.
    """
    check_editable(app)
    try:
        async with app.live_settings.editing:
            return await _edit(app, person, plan, query, keeps_backups=keeps_backups)
    except EditConflict as error:
        raise _describe_conflict(app, error) from None


async def _edit(
    app: OneTool, person: Person, plan: Plan, query: EditQuery, *, keeps_backups: bool
) -> EditResult:
    for attempts_left in reversed(range(MAX_ATTEMPTS)):
        editor = await run_in_thread(open_editor, app)
        planned = await run_in_thread(plan, editor)
        await run_in_thread(check_rights, planned, person.scope, person.agent)
        result = EditResult(
            action=planned.action, names=list(planned.names), difference=planned.difference
        )
        if query.dry_run or not planned.changes_anything:
            return result
        write = partial(editor.apply, planned, actor=person.name, transport=person.transport)
        try:
            async with person.changing(
                app, planned.action, planned.names, difference=planned.difference
            ):
                entry = await run_in_thread(write)
        except EditConflict:
            if not attempts_left:
                raise
            await anyio.sleep(random.uniform(0, MAX_WAIT_SECONDS))  # noqa: S311 - not for security
            continue
        assert editor.after is not None
        await app.live_settings.apply_edit(editor.after, planned.contents)
        notes = list(app.state.settings.finish_edit(planned)) if keeps_backups else []
        return result.model_copy(
            update={"id": entry.id, "can_undo": entry.can_undo, "notes": notes}
        )
    raise AssertionError


async def edit_entry(
    app: OneTool,
    person: Person,
    action: str,
    change: ItemChange,
    query: EditQuery,
    *,
    precondition: Precondition = NO_CONDITION,
    names: Collection[str] = (),
    directory: Path | None = None,
) -> EditResult:
    """Make an edit of one entry.

    A mapping as its value is a JSON merge patch of the entry as it is then.
    """

    def plan(editor: SettingsEditor) -> PlannedEdit:
        item = editor.find(change.section, change.name, directory)
        check_precondition(precondition, item)
        value = merge_patch(item.value, change.value)
        if value is None and item.value is None:
            raise ToolError(
                f"{change.section}.{change.name} is built in: no settings file defines it"
            )
        changes = [ItemChange(change.section, change.name, value)]
        return editor.plan(action, changes, directory=directory, names=names)

    return await edit(app, person, plan, query)


def check_editable(app: OneTool) -> None:
    """Raise if the settings cannot be edited here."""
    check_settings(app)
    if not app.live_settings.reader.has_files:
        raise AdminError(
            "read_only", "a program passed the settings, so they cannot be edited here"
        )


def open_editor(app: OneTool) -> SettingsEditor:
    """Return an editor of the current settings. Blocks with a store."""
    settings = app.state.settings
    settings.refresh()
    files = app.live_settings.reader.take_first_files(app.directories)
    return settings.open_editor(app.directories, app.environment, files)


def check_precondition(precondition: Precondition, item: SettingsItem) -> None:
    """Raise EditConflict if the condition of the person does not hold for the entry."""
    match precondition.find_failed(item.etag):
        case "If-Match":
            state = "it was removed" if item.etag is None else "it has changed"
            raise EditConflict(f"{item.section}.{item.name}: {state} since you read it", item)
        case "If-None-Match":
            raise EditConflict(f"{item.section}.{item.name} exists", item)


def _describe_conflict(app: OneTool, error: EditConflict) -> AdminError:
    details: JsonObject = {"etag": None}
    if error.item is not None:
        value = error.item.value
        current = mask(app, value) if isinstance(value, Mapping) else value
        details = {"etag": error.item.etag, "current": current}
    return AdminError("precondition_failed", error.message, details, hint=error.hint)


def merge_patch(old: Any, patch: Any) -> Any:
    """Return the value changed by a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


# --- reading --------------------------------------------------------------------------------------


async def find_entries(
    app: OneTool, section: str, names: Iterable[str]
) -> dict[str, SettingsEntry]:
    """Return settings entries; without values if a program passed them."""
    return await run_in_thread(_find_entries, app, section, tuple(names))


def _find_entries(app: OneTool, section: str, names: tuple[str, ...]) -> dict[str, SettingsEntry]:
    reader = app.live_settings.reader
    stored = reader.get_stored()
    if not reader.has_files or stored is None or stored.problem:
        entry = SettingsEntry(file=str(app.directories.data), etag=None, values={})
        return dict.fromkeys(names, entry)
    editor = app.state.settings.open_editor(app.directories, app.environment)
    items = [editor.find(section, name) for name in names]
    return {
        item.name: SettingsEntry(
            file=str(item.file), etag=item.etag, values=mask(app, item.value or {})
        )
        for item in items
    }


def mask(app: OneTool, values: JsonMapping) -> JsonObject:
    """Return the values of a settings file without what looks like a secret."""
    data: JsonObject = Redactor(find_secrets(values)).redact_data(
        app.redact.redact_data(dict(values))
    )
    return data
