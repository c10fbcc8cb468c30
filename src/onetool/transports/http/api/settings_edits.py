"""Edits of settings over REST: rights, preconditions, the audit log and the reload that makes an edit effective."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from onetool.admin.person import check_settings
from onetool.editing.attempts import Plan, make_edit
from onetool.editing.edit_history import HistoryEntry
from onetool.editing.planned_edit import EditConflict, PlannedEdit, SettingsItem
from onetool.editing.rights import ADMIN, check_rights
from onetool.editing.settings_editor import SettingsEditor
from onetool.transports.http import identity
from onetool.transports.http.admin_models import EditQuery, EditResult, SettingsEntry
from onetool.transports.http.api.common import Api
from onetool.transports.http.auth import SCOPE
from onetool.transports.http.errors import ApiError
from onetool.transports.http.responses import read_precondition
from onetool.transports.http.routing import read_query
from onetool.util.redact import Redactor
from onetool.util.secret_finder import find_secrets
from onetool_child.json_types import JsonMapping, JsonObject

TRANSPORT = "http"
EDIT_ERRORS = ("not_found", "duplicate", "precondition_failed")


@dataclass(frozen=True, slots=True)
class SettingsEdits:
    """The edits of one server. All handlers of settings share it."""

    api: Api

    def open_editor(self) -> SettingsEditor:
        """Return an editor of the current settings. Blocks with a store. Raise if they cannot be edited here."""
        self._check_editable()
        self.api.app.state.settings.refresh()
        return self.open_reader()

    def open_reader(self) -> SettingsEditor:
        """Return an editor of the settings as they are known here."""
        app = self.api.app
        return app.state.settings.open_editor(app.directories, app.environment)

    def find(self, section: str, name: str) -> SettingsItem:
        """Return an entry of the settings, without a value if a program passed them, or if they cannot be read."""
        app = self.api.app
        stored = self.api.app.live_settings.reader.get_stored()
        if not app.live_settings.reader.has_files or stored is None or stored.problem:
            return SettingsItem(section, name, app.directories.data, None)
        return self.open_reader().find(section, name)

    def _check_editable(self) -> None:
        check_settings(self.api.app)
        if not self.api.app.live_settings.reader.has_files:
            raise ApiError("read_only", "a program passed the settings, so they cannot be edited here")

    async def edit(self, request: Request, plan: Plan) -> EditResult:
        """Plan an edit, check the caller's rights, and write it unless the caller asks for the difference only."""
        actor = identity.get_person(request).require(ADMIN, "changing settings")
        state = request.scope["state"]
        self._check_editable()

        def check(planned: PlannedEdit) -> None:
            check_rights(planned, str(state.get(SCOPE, "")), state["agent"])

        async with self.api.app.live_settings.editing:
            try:
                made = await make_edit(
                    self.open_editor,
                    plan,
                    self.api.app.audit,
                    actor=actor,
                    transport=TRANSPORT,
                    is_dry_run=read_query(EditQuery, request).dry_run,
                    check=check,
                    limiter=self.api.readers,
                )
            except EditConflict as error:
                raise self._to_error(error) from None
            if made.after is not None:
                await self.api.app.live_settings.apply_edit(made.after, made.planned.contents)
        return _to_result(made.planned, made.entry)

    def _to_error(self, error: EditConflict) -> ApiError:
        details: JsonObject = {"etag": None}
        if error.item is not None:
            value = error.item.value
            details = {"etag": error.item.etag, "current": self.mask(value) if isinstance(value, Mapping) else value}
        return ApiError("precondition_failed", error.message, details, hint=error.hint)

    def describe(self, item: SettingsItem) -> SettingsEntry:
        return SettingsEntry(file=str(item.file), etag=item.etag, values=self.mask(item.value or {}))

    def mask(self, value: JsonMapping) -> JsonObject:
        """Return the values of a settings file without what looks like a secret."""
        data: JsonObject = Redactor(find_secrets(value)).redact_data(self.api.app.redact.redact_data(dict(value)))
        return data


def check_precondition(request: Request, item: SettingsItem) -> None:
    """Raise EditConflict if `If-Match` or `If-None-Match` of the request does not hold for the entry."""
    match read_precondition(request.headers).find_failed(item.etag):
        case "If-Match":
            state = "it was removed" if item.etag is None else "it has changed"
            raise EditConflict(f"{item.section}.{item.name}: {state} since you read it", item)
        case "If-None-Match":
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
