"""Edits of settings over REST: rights, preconditions, the audit log and the reload that makes an edit effective."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from starlette.requests import Request

from onetool.editing.edit_history import HistoryEntry
from onetool.editing.rights import ADMIN, check_rights
from onetool.editing.settings_editor import EditConflict, PlannedEdit, SettingsEditor, SettingsItem
from onetool.redact import Redactor
from onetool.transports.http import identity
from onetool.transports.http.admin_models import EditQuery, EditResult, SettingsEntry
from onetool.transports.http.api.common import Api
from onetool.transports.http.auth import SCOPE
from onetool.transports.http.errors import ApiError
from onetool.util.secret_finder import find_secrets

MAX_ATTEMPTS: Final = 5
TRANSPORT: Final = "http"
EDIT_ERRORS: Final = ("not_found", "duplicate", "precondition_failed")
Plan = Callable[[SettingsEditor], PlannedEdit]


@dataclass(frozen=True, slots=True)
class SettingsEdits:
    """The edits of one server. All handlers of settings share it."""

    api: Api
    _lock: anyio.Lock = field(default_factory=anyio.Lock)

    def open_editor(self) -> SettingsEditor:
        """Return the editor of the current settings files. Raise if there are none to edit here."""
        app = self.api.app
        self.api.check_settings()
        if not app.has_settings_files:
            raise ApiError("read_only", "a program passed the settings, so they cannot be edited here")
        if app.stores.remote is not None:
            message = "settings cannot be edited here: with `store`, each replica reads its own settings file"
            raise ApiError("read_only", message, hint="edit onetool.yaml where you deploy the replicas")
        return SettingsEditor(app.directories, app.environment)

    async def edit(self, request: Request, plan: Plan) -> EditResult:
        """Plan an edit, check the caller's rights, and write it unless the caller asks for the difference only."""
        actor = identity.require_scope(request, ADMIN, "changing settings")
        editor, is_dry_run = self.open_editor(), EditQuery.of(request).dry_run
        async with self._lock:
            for attempt in range(MAX_ATTEMPTS):
                planned = await self._plan(request, editor, plan)
                if is_dry_run or not planned.changes_anything:
                    return _to_result(planned)
                try:
                    entry = await self._apply(editor, planned, actor)
                    break
                except EditConflict as error:  # another program has just changed the file: plan it again
                    if attempt == MAX_ATTEMPTS - 1:
                        raise self._to_error(error) from None
            await self.api.app.apply_settings()
        return _to_result(planned, entry)

    async def _plan(self, request: Request, editor: SettingsEditor, plan: Plan) -> PlannedEdit:
        state = request.scope["state"]
        try:
            planned = await self.api.run_in_thread(lambda: plan(editor))
        except EditConflict as error:
            raise self._to_error(error) from None
        check_rights(planned, str(state.get(SCOPE, "")), state["agent"])
        return planned

    async def _apply(self, editor: SettingsEditor, planned: PlannedEdit, actor: str) -> HistoryEntry:
        difference, names = planned.difference, planned.names
        recorded = self.api.app.audit.changing(
            planned.action, names, actor=actor, transport=TRANSPORT, difference=difference
        )
        async with recorded:
            return await self.api.run_in_thread(lambda: editor.apply(planned, actor=actor, transport=TRANSPORT))

    def _to_error(self, error: EditConflict) -> ApiError:
        details: dict[str, Any] = {"etag": None}
        if error.item is not None:
            value = error.item.value
            details = {"etag": error.item.etag, "current": self.mask(value) if isinstance(value, Mapping) else value}
        return ApiError("precondition_failed", error.message, details, hint=error.hint)

    def describe(self, item: SettingsItem) -> SettingsEntry:
        return SettingsEntry(file=str(item.file), etag=item.etag, values=self.mask(item.value or {}))

    def mask(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a settings file without what looks like a secret."""
        data: dict[str, Any] = Redactor(find_secrets(value)).redact_data(self.api.app.redact.redact_data(dict(value)))
        return data


def check_precondition(request: Request, item: SettingsItem) -> None:
    """Raise EditConflict if `If-Match` or `If-None-Match` of the request does not hold for the entry."""
    expected, unexpected = (
        [tag.strip() for line in request.headers.getlist(name) for tag in line.split(",") if tag.strip()]
        for name in ("if-match", "if-none-match")
    )
    if expected and (item.etag is None or not {item.etag, "*"} & set(expected)):
        state = "it was removed" if item.etag is None else "it has changed"
        raise EditConflict(f"{item.section}.{item.name}: {state} since you read it", item)
    if unexpected and item.etag is not None and {item.etag, "*"} & set(unexpected):
        raise EditConflict(f"{item.section}.{item.name} exists", item)


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


def _to_result(planned: PlannedEdit, entry: HistoryEntry | None = None) -> EditResult:
    return EditResult(
        id=None if entry is None else entry.id,
        action=planned.action,
        names=list(planned.names),
        difference=planned.difference,
    )
