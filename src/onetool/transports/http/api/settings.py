"""`/api/settings` and `/api/secrets`: the history of edits, undoing them, and names of secrets."""

import hashlib
from collections.abc import Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.imports import SecretUseInfo
from onetool.admin.secret_users import map_secret_users
from onetool.config.contents import stamp_files
from onetool.editing.planned_edit import ItemChange, PlannedEdit, check_secret_name
from onetool.editing.secret_changes import plan_secret_use
from onetool.editing.settings_editor import SettingsEditor
from onetool.errors import ToolError
from onetool.transports.http import identity
from onetool.transports.http.admin_models import (
    AllowedHosts,
    AllowedHostsEntry,
    EditQuery,
    EditResult,
    SecretInfo,
    SecretList,
    SecretUserInfo,
    SecretValue,
    SettingsChange,
    SettingsHistory,
)
from onetool.transports.http.api import events
from onetool.transports.http.api.common import Api
from onetool.transports.http.api.events import EventStream, Feed
from onetool.transports.http.api.settings_edits import EDIT_ERRORS, SettingsEdits, check_precondition
from onetool.transports.http.errors import ApiError
from onetool.transports.http.json_body import RequestBody
from onetool.transports.http.routing import Operation, ResponseSpec

HISTORY = "/api/settings/history"
SECRETS = "/api/secrets"
HOSTS = "/api/settings/hosts"
USES = "/api/secret-uses"
HOSTS_KEY = ("http", "allowedHosts")
READ = "approve"
MANAGE = "admin"


class SettingsHandlers:
    def __init__(self, api: Api, edits: SettingsEdits) -> None:
        self._api = api
        self._edits = edits

    def operations(self) -> Iterator[Operation]:
        media = events.describe_stream("history, at first and after each change of the settings; endless")
        listed = {200: ResponseSpec("The last changes, newest first", SettingsHistory, media)}
        yield Operation("GET", HISTORY, self.list_history, "List changes of the settings", listed)
        edited = {200: ResponseSpec("The change", EditResult)}
        errors = (*EDIT_ERRORS, "read_only")
        path = f"{HISTORY}/{{changeID}}/undo"
        yield Operation("POST", path, self.undo, "Undo a change of the settings", edited, EditQuery, errors=errors)
        hosts = {200: ResponseSpec("The hosts", AllowedHostsEntry)}
        yield Operation(
            "GET", HOSTS, self.show_hosts, "Get the hosts that tools may call", hosts, errors=("read_only",)
        )
        summary = "Change the hosts that tools may call"
        options = {"errors": errors, "is_conditional": True}
        yield Operation("PUT", HOSTS, self.set_hosts, summary, edited, EditQuery, AllowedHosts, **options)  # type: ignore[arg-type]
        names = {200: ResponseSpec("Names of secrets", SecretList)}
        one = f"{SECRETS}/{{name}}"
        yield Operation("GET", SECRETS, self.list_secrets, "List the names of secrets", names, errors=("read_only",))
        yield Operation("PUT", one, self.set_secret, "Set a secret", edited, EditQuery, SecretValue, errors)
        summary = "Allow or disallow tools of a bundle to send a secret to an origin; needs scope `owner`"
        yield Operation("PUT", USES, self.set_use, summary, edited, EditQuery, SecretUseInfo, errors)
        yield Operation("DELETE", one, self.delete_secret, "Delete a secret", edited, EditQuery, errors=errors)

    # --- history --------------------------------------------------------------------------------------------------

    async def list_history(self, request: Request) -> Response:
        identity.get_person(request).require(READ, "reading changes of settings")
        if events.wants_events(request):
            return EventStream(self._stream, ends_with_server=True)
        return await self._api.run_in_thread(lambda: self._api.respond(self._read_history()))

    def _read_history(self) -> SettingsHistory:
        entries = self._edits.open_reader().history.list_entries()
        changes = [
            SettingsChange(**{name: getattr(entry, name) for name in SettingsChange.model_fields}) for entry in entries
        ]
        return SettingsHistory(version=self._read_version(), changes=changes)

    def _read_version(self) -> str:
        app = self._api.app
        edited = app.state.settings.version()  # an edit is recorded after its files are written
        facts = stamp_files(app.directories), edited, app.live_settings.times_applied
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    async def _stream(self, feed: Feed) -> None:
        """Send the history at first, when a settings file has changed, and when the change is in effect."""
        sent = ""
        async for _ in self._api.app.changes.watch("settings"):
            version = await self._api.run_in_thread(self._read_version)
            if version != sent:
                sent = version
                read = lambda: self._api.to_json(self._read_history())  # noqa: E731
                feed.put("history", await self._api.run_in_thread(read))
                await feed.wait_until_sent()

    async def undo(self, request: Request) -> Response:
        identity.get_person(request).require(MANAGE, "undoing changes of settings")
        change_id = str(request.path_params["changeID"])

        def plan(editor: SettingsEditor) -> PlannedEdit:
            if all(entry.id != change_id for entry in editor.history.list_entries()):
                raise ApiError("not_found", f"no change {change_id!r} in the history", {"changeID": change_id})
            return editor.plan_undo(change_id)

        return self._api.respond(await self._edits.edit(request, plan))

    # --- hosts ----------------------------------------------------------------------------------------------------

    async def show_hosts(self, request: Request) -> Response:
        identity.get_person(request).require(MANAGE, "reading settings")
        item = await self._api.run_in_thread(lambda: self._edits.open_editor().find(*HOSTS_KEY))
        hosts = list(self._api.app.settings.http.allowed_hosts)
        return self._api.respond(AllowedHostsEntry(hosts=hosts, etag=item.etag))

    async def set_hosts(self, request: Request) -> Response:
        identity.get_person(request).require(MANAGE, "changing hosts")
        body = await self._api.read(await RequestBody.from_request(request), AllowedHosts.parse)

        def plan(editor: SettingsEditor) -> PlannedEdit:
            check_precondition(request, editor.find(*HOSTS_KEY))
            return editor.plan("hosts.change", [ItemChange(*HOSTS_KEY, body.hosts)], names=["http.allowedHosts"])

        return self._api.respond(await self._edits.edit(request, plan))

    # --- secrets --------------------------------------------------------------------------------------------------

    async def list_secrets(self, request: Request) -> Response:
        identity.get_person(request).require(MANAGE, "reading names of secrets")
        found = await self._api.run_in_thread(lambda: self._edits.open_editor().list_secrets())
        users = await map_secret_users(self._api.app)
        secrets = [
            SecretInfo(
                name=name,
                files=files,
                used_by=[SecretUserInfo(kind=user.kind, name=user.name) for user in users.get(name, ())],
            )
            for name, files in found.items()
        ]
        app = self._api.app
        uses = [
            SecretUseInfo(**use._asdict(), is_allowed=use.is_allowed(app.settings))
            for use in await self._api.run_in_thread(app.bundles.list_secret_uses)
        ]
        return self._api.respond(SecretList(secrets=secrets, uses=uses))

    async def set_secret(self, request: Request) -> Response:
        identity.get_person(request).require(MANAGE, "setting secrets")
        body = await self._api.read(await RequestBody.from_request(request), SecretValue.parse)
        name = str(request.path_params["name"])
        check_secret_name(name)
        secrets = {name: body.value}
        result = await self._edits.edit(request, lambda editor: editor.plan("secrets.set", [], secrets=secrets))
        return self._api.respond(result)

    async def set_use(self, request: Request) -> Response:
        identity.get_person(request).require("owner", "allowing tools to send secrets")
        body = await self._api.read(await RequestBody.from_request(request), SecretUseInfo.parse)
        plan = partial(plan_secret_use, use=body.to_use(), is_allowed=body.is_allowed)
        return self._api.respond(await self._edits.edit(request, plan))

    async def delete_secret(self, request: Request) -> Response:
        identity.get_person(request).require(MANAGE, "deleting secrets")
        name = str(request.path_params["name"])

        def plan(editor: SettingsEditor) -> PlannedEdit:
            try:
                return editor.plan("secrets.delete", [], secrets={name: None})
            except ToolError as error:
                if name in editor.list_secrets():
                    raise
                raise ApiError("not_found", error.message, {"name": name}) from None

        return self._api.respond(await self._edits.edit(request, plan))
