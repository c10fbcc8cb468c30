"""The allowed hosts of tools, and the history of all changes of the settings."""

import hashlib
from pathlib import Path

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import Person, action
from onetool.admin.model import AdminError, ApiModel, Time, absent
from onetool.admin.precondition import NO_CONDITION, Precondition
from onetool.admin.settings_edits import (
    EditQuery,
    EditResult,
    check_editable,
    edit,
    edit_entry,
    open_editor,
)
from onetool.app import OneTool
from onetool.settings.contents import stamp_files
from onetool.settings.planned_edit import ItemChange, PlannedEdit
from onetool.settings.settings_editor import SettingsEditor
from onetool.util.text import quote
from onetool.util.token_ids import ADMIN, APPROVE

HOSTS = ("http", "allowedHosts")


class SettingsChange(ApiModel):
    id: str
    at: Time
    actor: str
    transport: str
    action: str
    names: list[str]
    paths: list[str] = Field(description="Files that it changed; empty for tokens")
    difference: str
    can_undo: bool
    undoes: str = absent(description="The change that this one undid")


class SettingsHistory(ApiModel):
    version: str = Field(description="Changes with every change of the settings files, by anybody")
    changes: list[SettingsChange]


class AllowedHosts(ApiModel):
    hosts: list[str] = Field(description="Hosts that tools may call, as in `http.allowedHosts`")


class HostChanges(ApiModel):
    add: list[str] = Field(default=[], description="Hosts to allow")
    remove: list[str] = Field(default=[], description="Hosts that are no longer allowed")


class AllowedHostsEntry(AllowedHosts):
    etag: str | None = Field(description="For If-Match; null if the settings have no list")


@action(
    "GET /api/settings/history",
    "The last changes, newest first",
    needs=APPROVE,
    purpose="reading changes of settings",
    watches="settings",
)
async def list_changes(app: OneTool, person: Person) -> SettingsHistory:
    """List changes of the settings."""
    return await run_in_thread(_read_history, app)


def _read_history(app: OneTool) -> SettingsHistory:
    editor = app.state.settings.open_editor(app.directories, app.environment)
    changes = [SettingsChange.model_validate(entry) for entry in editor.list_changes()]
    edited = app.state.settings.version()  # an edit is recorded after its files are written
    facts = stamp_files(app.directories), edited, app.live_settings.times_applied
    version = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return SettingsHistory(version=version, changes=changes)


@action(
    "POST /api/settings/history/{changeID}/undo",
    "The change",
    needs=ADMIN,
    purpose="undoing changes of settings",
)
async def undo_change(app: OneTool, person: Person, change_id: str, query: EditQuery) -> EditResult:
    """Undo a change of the settings."""

    def plan(editor: SettingsEditor) -> PlannedEdit:
        if all(entry.id != change_id for entry in editor.list_changes()):
            message = f"no change {change_id!r} in the history"
            raise AdminError(
                "not_found", message, {"change_id": change_id}, hint="onetool settings history"
            )
        return editor.plan_undo(change_id)

    return await edit(app, person, plan, query)


@action(
    "GET /api/settings/hosts",
    "The hosts",
    needs=ADMIN,
    purpose="reading settings",
    errors=("read_only",),
)
async def list_hosts(app: OneTool, person: Person) -> AllowedHostsEntry:
    """Get the hosts that tools may call."""
    check_editable(app)
    item = await run_in_thread(lambda: open_editor(app).find(*HOSTS))
    return AllowedHostsEntry(hosts=list(app.settings.http.allowed_hosts), etag=item.etag)


@action("PUT /api/settings/hosts", "The change", needs=ADMIN, purpose="changing hosts")
async def set_hosts(
    app: OneTool,
    person: Person,
    query: EditQuery,
    body: AllowedHosts,
    precondition: Precondition = NO_CONDITION,
) -> EditResult:
    """Change the hosts that tools may call."""
    change = ItemChange(*HOSTS, body.hosts)
    names = [".".join(HOSTS)]
    return await edit_entry(
        app, person, "hosts.change", change, query, precondition=precondition, names=names
    )


@action("PATCH /api/settings/hosts", "The change", needs=ADMIN, purpose="changing hosts")
async def change_hosts(
    app: OneTool,
    person: Person,
    query: EditQuery,
    body: HostChanges,
    *,
    directory: Path | None = None,
) -> EditResult:
    """Add and remove hosts that tools may call."""

    def plan(editor: SettingsEditor) -> PlannedEdit:
        changes = [plan_hosts(app, editor, body, directory)]
        return editor.plan(
            "hosts.change", changes, directory=directory, names=[*body.add, *body.remove]
        )

    return await edit(app, person, plan, query, keeps_backups=directory is not None)


def plan_hosts(
    app: OneTool, editor: SettingsEditor, body: HostChanges, directory: Path | None = None
) -> ItemChange:
    """Return the changed list.

    A list in a project replaces that of the user, whose hosts must stay allowed.
    """
    item = editor.find(*HOSTS, directory)
    hosts = list(item.value or app.settings.http.allowed_hosts)
    for host in body.remove:
        if host not in hosts:
            hint = f"allowed hosts: {', '.join(hosts) or 'none'}"
            raise AdminError(
                "not_found", f"{quote(host)} is not an allowed host", {"host": host}, hint=hint
            )
        hosts.remove(host)
    return ItemChange(*HOSTS, list(dict.fromkeys([*hosts, *body.add])))
