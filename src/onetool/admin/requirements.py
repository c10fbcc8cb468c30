"""Hosts and secrets that imported tools need: they are added in one edit of the settings.

No secret is replaced, because other tools may use it.
"""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from onetool.admin.action import action
from onetool.admin.errors import AdminError, raising
from onetool.admin.model import ApiModel
from onetool.admin.person import Person
from onetool.admin.secrets import SecretUseKey, plan_secret_uses
from onetool.admin.settings import HostChanges, plan_hosts
from onetool.admin.settings_edits import EditQuery, edit
from onetool.app import OneTool
from onetool.settings.planned_edit import PlannedEdit, check_secret_name
from onetool.settings.settings_editor import SettingsEditor
from onetool.util.token_ids import ADMIN

HOST = re.compile(r"[\w.:\[\]-]+")  # no references such as ${NAME}


class RequirementsBody(ApiModel):
    """Hosts and secrets that imported tools need. Values of secrets are stored and never shown."""

    hosts: Annotated[
        list[str], Field(max_length=100, description="Hosts to add to http.allowedHosts")
    ] = Field(default=[])
    secrets: Annotated[
        dict[str, Annotated[str, Field(min_length=1, max_length=20_000)]],
        Field(max_length=100, description="Values by the names of secrets"),
    ] = Field(default={})
    secret_uses: Annotated[
        list[SecretUseKey],
        Field(max_length=100, description="Secrets that tools may send; needs scope `owner`"),
    ] = Field(default=[])


class RequirementsResult(ApiModel):
    hosts: list[str] = Field(description="Hosts that were added")
    secrets: list[str] = Field(description="Names of secrets that were stored")
    difference: str = Field(description="Difference of the settings file")


@action(
    "POST /api/requirements",
    "What was added",
    ADMIN,
    "allowing hosts and storing secrets",
    errors=("read_only", "duplicate"),
)
async def add_requirements(
    app: OneTool, person: Person, body: RequirementsBody
) -> RequirementsResult:
    """Allow hosts and store secrets of imported tools."""
    _check_names(body)
    uses = [use.to_use() for use in body.secret_uses]

    def plan(editor: SettingsEditor) -> PlannedEdit:
        _reject_known(app, body.secrets, editor)
        changes = plan_secret_uses(editor, uses, is_allowed=True)
        if body.hosts:
            changes.append(plan_hosts(app, editor, HostChanges(add=body.hosts)))
        names = dict.fromkeys([*body.hosts, *body.secrets, *(use.name for use in uses)])
        return editor.plan("requirements.add", changes, secrets=body.secrets, names=names)

    edited = await edit(app, person, plan, EditQuery())
    return RequirementsResult(
        hosts=body.hosts, secrets=list(body.secrets), difference=edited.difference
    )


def _reject_known(app: OneTool, secrets: Mapping[str, str], editor: SettingsEditor) -> None:
    missing = app.bundles.list_missing_secrets(secrets)
    stored = editor.list_secrets()
    for name in secrets:
        if name in stored or name not in missing:
            hint = f"onetool secret set {name}"
            raise AdminError(
                "duplicate",
                f"the secret {name} exists and is not replaced",
                {"name": name},
                hint=hint,
            )


def _check_names(body: RequirementsBody) -> None:
    for name in body.secrets:
        with raising("invalid", name=name):
            check_secret_name(name)
    for host in body.hosts:
        if not HOST.fullmatch(host):
            raise AdminError(
                "invalid",
                f"invalid host {host!r}",
                {"host": host},
                hint="use a host without wildcards",
            )
