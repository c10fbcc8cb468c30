"""Secrets: their names, what uses them, and which bundles may send them where.

Values are never returned.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import Person, action
from onetool.admin.model import AdminError, ApiModel
from onetool.admin.settings_edits import EditQuery, EditResult, check_editable, edit, open_editor
from onetool.app import OneTool
from onetool.errors import BundleError, ToolError
from onetool.settings.layers import format_path
from onetool.settings.planned_edit import ItemChange, PlannedEdit, check_secret_name
from onetool.settings.sections import Loc
from onetool.settings.settings_editor import SettingsEditor
from onetool.sources.bundles.rules import check_slug
from onetool.sources.bundles.stored_tools import (
    SECTION,
    SecretUse,
    change_bindings,
    normalize_origin,
)
from onetool.util.token_ids import ADMIN, OWNER

MAX_VALUE_CHARS = 1_000_000
Kind = Literal["server", "pack", "bundle", "setting"]


SecretUser = tuple[Kind, str]


class SecretUserInfo(ApiModel):
    kind: Kind
    name: str = Field(description="Name, or the path of the setting")


async def map_secret_users(app: OneTool) -> dict[str, list[SecretUserInfo]]:
    """Return what uses each secret, by the name of the secret."""
    await app.extensions.refresh()
    uses = {*_list_settings(app), *_list_packs(app), *await _list_bundles(app)}
    users: dict[str, list[SecretUserInfo]] = {}
    for secret, (kind, name) in sorted(uses):
        users.setdefault(secret, []).append(SecretUserInfo(kind=kind, name=name))
    return users


async def _list_bundles(app: OneTool) -> list[tuple[str, SecretUser]]:
    try:
        await app.bundles.refresh()
        uses = await run_in_thread(app.bundles.list_secret_uses)
    except BundleError:  # the store cannot be read; the health check reports that
        return []
    return [(use.name, ("bundle", use.bundle)) for use in uses]


def _list_settings(app: OneTool) -> Iterator[tuple[str, SecretUser]]:
    for name, places in app.live_settings.loaded.references.items():
        yield from ((name, _describe_setting(place)) for place in places)


def _describe_setting(place: Loc) -> SecretUser:
    match place:
        case ("servers", name, *_):
            return "server", str(name)
        case ("tools", name, *_):
            return "pack", str(name)
    return "setting", format_path(place)


def _list_packs(app: OneTool) -> Iterator[tuple[str, SecretUser]]:
    configured = {pack: settings.secrets for pack, settings in app.settings.tools.items()}
    for pack, names in (*configured.items(), *app.extensions.declared_secrets.items()):
        yield from ((name, ("pack", pack)) for name in names)


class SecretInfo(ApiModel):
    name: str
    files: list[str]
    used_by: list[SecretUserInfo]


class SecretUseKey(ApiModel):
    """A secret that tools of a bundle send to an origin."""

    bundle: str
    name: str
    origin: str = Field(description="Such as `https://api.example.com`")

    def to_use(self) -> SecretUse:
        return SecretUse(self.bundle, self.name, normalize_origin(self.origin))


class SecretUseInfo(SecretUseKey):
    is_allowed: bool = Field(
        description="Whether an owner allowed it; if not, calls of these tools fail"
    )


class SecretList(ApiModel):
    """Names of secrets. Values are never returned."""

    secrets: list[SecretInfo]
    uses: list[SecretUseInfo] = Field(
        description="Secrets that stored tools send, whether they are set or not"
    )


class SecretValue(ApiModel):
    value: Annotated[str, Field(min_length=1, max_length=MAX_VALUE_CHARS)]


@action(
    "GET /api/secrets",
    "Names of secrets",
    needs=ADMIN,
    purpose="reading names of secrets",
    errors=("read_only",),
)
async def list_secrets(app: OneTool, person: Person) -> SecretList:
    """List the names of secrets."""
    check_editable(app)
    files = await run_in_thread(lambda: open_editor(app).list_secrets())
    users = await map_secret_users(app)
    uses = await run_in_thread(app.bundles.list_secret_uses)
    return SecretList(
        secrets=[
            SecretInfo(name=name, files=paths, used_by=users.get(name, []))
            for name, paths in files.items()
        ],
        uses=[
            SecretUseInfo(**use._asdict(), is_allowed=use.is_allowed(app.settings)) for use in uses
        ],
    )


@action("PUT /api/secrets/{name}", "The change", needs=ADMIN, purpose="setting secrets")
async def set_secret(
    app: OneTool,
    person: Person,
    name: str,
    query: EditQuery,
    body: SecretValue,
    *,
    directory: Path | None = None,
) -> EditResult:
    """Set a secret."""
    check_secret_name(name)
    secrets = {name: body.value}
    edited = await edit(
        app,
        person,
        lambda editor: editor.plan("secrets.set", [], secrets=secrets, directory=directory),
        query,
    )
    notes = [
        f"Tools of bundle {bundle} may send it to {', '.join(origins[name])}"
        for bundle, origins in app.settings.bundle_secrets.items()
        if name in origins
    ]
    return edited.model_copy(update={"notes": notes})


@action("PUT /api/secret-uses", "The change", needs=OWNER, purpose="allowing tools to send secrets")
async def set_secret_use(
    app: OneTool, person: Person, query: EditQuery, body: SecretUseInfo
) -> EditResult:
    """Allow or disallow tools of a bundle to send a secret to an origin; needs scope `owner`."""
    return await change_secret_uses(app, person, query, [body.to_use()], is_allowed=body.is_allowed)


async def change_secret_uses(
    app: OneTool, person: Person, query: EditQuery, uses: list[SecretUse], *, is_allowed: bool
) -> EditResult:
    """Allow or disallow these uses in one edit."""
    kind = "secrets.allow" if is_allowed else "secrets.disallow"
    names = dict.fromkeys([*(use.name for use in uses), *(use.bundle for use in uses)])

    def plan(editor: SettingsEditor) -> PlannedEdit:
        return editor.plan(kind, plan_secret_uses(editor, uses, is_allowed=is_allowed), names=names)

    return await edit(app, person, plan, query)


def plan_secret_uses(
    editor: SettingsEditor, uses: Iterable[SecretUse], *, is_allowed: bool
) -> list[ItemChange]:
    """Return the changed entries of the setting `bundle_secrets`."""
    entries: dict[str, Any] = {}
    for use in uses:
        check_slug(use.bundle)
        check_secret_name(use.name)
        if use.bundle not in entries:
            entries[use.bundle] = editor.find(SECTION, use.bundle).value
        entries[use.bundle] = change_bindings(entries[use.bundle], use, is_allowed=is_allowed)
    return [ItemChange(SECTION, bundle, entry) for bundle, entry in entries.items()]


@action("DELETE /api/secrets/{name}", "The change", needs=ADMIN, purpose="deleting secrets")
async def delete_secret(
    app: OneTool, person: Person, name: str, query: EditQuery, *, directory: Path | None = None
) -> EditResult:
    """Delete a secret."""

    def plan(editor: SettingsEditor) -> PlannedEdit:
        try:
            return editor.plan("secrets.delete", [], secrets={name: None}, directory=directory)
        except ToolError as error:
            if name in editor.list_secrets():
                raise
            raise AdminError("not_found", error.message, {"name": name}, hint=error.hint) from None

    return await edit(app, person, plan, query)
