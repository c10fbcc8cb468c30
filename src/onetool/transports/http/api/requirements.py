"""`POST /api/requirements`: allow hosts and store secrets that imported tools need, in one edit of the settings.

It never replaces a secret, because other tools may use it.
"""

import re
from collections.abc import Iterator, Mapping

from starlette.requests import Request
from starlette.responses import Response

from onetool.editing.planned_edit import ItemChange, PlannedEdit, check_secret_name
from onetool.editing.secret_changes import change_secret_uses
from onetool.editing.settings_editor import SettingsEditor
from onetool.errors import ToolError
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.api.settings import HOSTS_KEY
from onetool.transports.http.api.settings_edits import SettingsEdits
from onetool.transports.http.errors import ApiError
from onetool.transports.http.models import RequirementsBody, RequirementsResult
from onetool.transports.http.routing import Operation, ResponseSpec

PATH = "/api/requirements"
HOST = re.compile(r"[\w.:\[\]-]+")  # no references such as ${NAME}


class RequirementHandlers:
    def __init__(self, api: Api, edits: SettingsEdits) -> None:
        self._api = api
        self._edits = edits

    def operations(self) -> Iterator[Operation]:
        result = {200: ResponseSpec("What was added", RequirementsResult)}
        errors = ("read_only", "duplicate")
        summary = "Allow hosts and store secrets of imported tools"
        yield Operation("POST", PATH, self.add, summary, result, body=RequirementsBody, errors=errors)

    async def add(self, request: Request) -> Response:
        identity.get_person(request).require("admin", "allowing hosts and storing secrets")
        body = await self._api.parse(request, RequirementsBody.parse)
        _check_names(body)
        uses = [use.to_use() for use in body.secret_uses]

        def plan(editor: SettingsEditor) -> PlannedEdit:
            self._reject_known(body.secrets, editor)
            # A list in a project replaces that of the user, whose hosts must stay allowed.
            allowed = editor.find(*HOSTS_KEY).value or list(self._api.app.settings.http.allowed_hosts)
            changes = [ItemChange(*HOSTS_KEY, list(dict.fromkeys([*allowed, *body.hosts])))] if body.hosts else []
            changes += change_secret_uses(editor, uses, is_allowed=True)
            names = dict.fromkeys([*body.hosts, *body.secrets, *(use.name for use in uses)])
            return editor.plan("requirements.add", changes, secrets=body.secrets, names=names)

        edited = await self._edits.edit(request, plan)
        result = RequirementsResult(hosts=body.hosts, secrets=list(body.secrets), difference=edited.difference)
        return self._api.respond(result)

    def _reject_known(self, secrets: Mapping[str, str], editor: SettingsEditor) -> None:
        missing = self._api.app.bundles.list_missing_secrets(secrets)
        stored = editor.list_secrets()
        for name in secrets:
            if name in stored or name not in missing:
                hint = f"onetool secret set {name}"
                raise ApiError("duplicate", f"the secret {name} exists and is not replaced", {"name": name}, hint=hint)


def _check_names(body: RequirementsBody) -> None:
    for name in body.secrets:
        try:
            check_secret_name(name)
        except ToolError as error:
            raise ApiError("invalid", error.message, {"name": name}, hint=error.hint) from None
    for host in body.hosts:
        if not HOST.fullmatch(host):
            raise ApiError("invalid", f"invalid host {host!r}", {"host": host}, hint="use a host without wildcards")
