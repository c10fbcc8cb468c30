"""Import of OpenAPI documents and archives, what bundles still need, and export of archives.

A bundle is imported completely or not at all.
"""

import re
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Annotated, ClassVar

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import READ, WRITE, Person, action
from onetool.admin.model import AdminError, ApiModel, Count, Flag, Query, raising
from onetool.admin.precondition import NO_CONDITION, Precondition, compute_etag
from onetool.admin.secrets import SecretUseInfo, SecretUseKey, plan_secret_uses
from onetool.admin.settings import HostChanges, plan_hosts
from onetool.admin.settings_edits import EditQuery, edit
from onetool.admin.stored_tools import may_see
from onetool.app import OneTool
from onetool.errors import NetworkError, ToolTimeout
from onetool.net import HostRules
from onetool.net.client import Request
from onetool.settings.planned_edit import PlannedEdit, check_secret_name
from onetool.settings.settings_editor import SettingsEditor
from onetool.sources.bundles import BundleStore, archive, importer
from onetool.sources.bundles.imported import BundleImport, keep_disabled, list_missing_hosts
from onetool.sources.bundles.importer import BundleDifference, ImportResult, UpdateOptions
from onetool.sources.bundles.model import Bundle
from onetool.util.context import Permission
from onetool.util.token_ids import ADMIN
from onetool_child.json_types import JsonObject

MAX_BYTES = 64 << 20
FETCH_SECONDS = 30.0
HOST = re.compile(r"[\w.:\[\]-]+")  # no references such as ${NAME}


class ImportQuery(Query):
    LISTS: ClassVar = frozenset({"header", "replace"})
    name: str = Field(default="", description="Slug for the bundle")
    server: str = Field(
        default="", description="Base URL of the API; overrides the one in the document"
    )
    auth: str = Field(
        default="",
        description=(
            "Authentication of operations that declare none: bearer, basic, header:NAME or"
            " query:NAME"
        ),
    )
    header: list[str] = Field(
        default=[], description="Header that all tools send, like X-Version: 2; repeatable"
    )
    update: Flag = Field(
        default=False, description="Add new versions to an existing bundle with this slug"
    )
    dry_run: Flag = Field(
        default=False, description="Return the difference without storing anything"
    )
    replace: list[str] = Field(
        default=[], description="Tool whose local edits the update replaces; repeatable"
    )
    disable_removed: Flag = Field(
        default=False, description="Disable imported tools that the document lacks"
    )
    url: str = Field(
        default="", description="URL of the document, instead of a body. The host must be allowed"
    )


class ImportedBundle(ApiModel):
    bundle: Bundle | None = Field(description="null for a new bundle that is not stored yet")
    slug: str
    display_name: str
    is_new: bool
    tool_count: Count = Field(description="Number of new versions")
    difference: BundleDifference
    kept: list[str] = Field(description="Tools that were not updated, because of local edits")
    disabled: list[str] = Field(description="Tools that the update disables")
    hosts: list[str] = Field(description="Hosts to add to http.allowedHosts")
    secrets: list[str] = Field(description="Secrets to add to secrets.yaml")
    missing_hosts: list[str] = Field(description="Hosts that the settings do not allow")
    missing_secrets: list[str] = Field(description="Secrets that have no value")
    secret_uses: list[SecretUseInfo] = Field(
        description="Where the tools send secrets, and whether they may"
    )
    problems: list[str]
    warnings: list[str] = Field(description="Literal credentials in the tools")
    added: list[str] = Field(exclude=True)  # the names of the new versions
    etag: str = Field(exclude=True)  # of the versions of the bundle; empty if it does not exist


@action(
    "POST /api/import",
    "The updated bundle, or the difference, and the remaining steps",
    needs=WRITE,
    errors=("slug_taken",),
    created="The new bundle and the remaining steps",
)
async def import_bundle(
    app: OneTool,
    person: Person,
    query: ImportQuery,
    content: bytes,
    precondition: Precondition = NO_CONDITION,
    *,
    document: BundleImport | None = None,
    update: UpdateOptions | None = None,
) -> tuple[ImportedBundle, bool]:
    """Import an OpenAPI 2 or 3 document, or an exported bundle (ZIP)."""
    # A command has read the document, to choose where it goes, and may import into an existing
    # bundle.
    may_exist = query.update or query.dry_run or update is not None
    if update is None:
        replaced = frozenset(query.replace)
        update = UpdateOptions(
            renames_versions=True, replaced_edits=replaced, disables_removed=query.disable_removed
        )
    if query.url:
        content = await _fetch(app, person, query.url)
    if document is None:
        server = query.server or None
        auth = query.auth or None
        read = partial(
            importer.read, content, name=query.name, server=server, auth=auth, headers=query.header
        )
        document = await run_in_thread(read)
    document = keep_disabled(document, app.state.disabled_tools.list_owner_marks())
    slug = document.bundle["slug"]

    def work(store: BundleStore) -> ImportedBundle:
        if not may_exist:
            _check_slug_is_free(store, slug)
        precondition.check(_find_basis(store, slug))
        result = importer.import_bundle(store, document, update, dry=query.dry_run)
        return _describe(app, store, document, result, dry=query.dry_run)

    if query.dry_run:
        return await app.bundles.read(work), False
    async with person.changing(app, "bundle.imported", []) as facts:
        imported = await app.bundles.write(work)
        facts["names"] = [imported.slug, *imported.added]
    await app.bundles.refresh()
    return imported, imported.is_new


async def _fetch(app: OneTool, person: Person, url: str) -> bytes:
    """Fetch a document with the client of the tools, which reaches allowed hosts only."""
    context = person.open_context(app)
    if person.agent is not None and Permission.NETWORK not in context.permissions:
        message = (
            f"agent '{context.agent_id}' may not fetch documents: it lacks the permission 'network'"
        )
        raise AdminError("permission_denied", message)
    try:
        rules = HostRules.for_agent(context) if person.agent is not None else ()
        response = await app.net.send(
            Request("GET", url), timeout=FETCH_SECONDS, max_bytes=MAX_BYTES, rules=rules
        )
    except (NetworkError, ToolTimeout) as error:
        details = {key: value for key, value in error.fields.items() if key in {"reason", "host"}}
        raise AdminError(
            "invalid", app.redact(f"cannot fetch the document: {error.message}"), details
        ) from None
    if response.status != HTTPStatus.OK:
        raise AdminError(
            "invalid", f"cannot fetch the document: the server returned status {response.status}"
        )
    return response.body


def _describe(
    app: OneTool, store: BundleStore, document: BundleImport, result: ImportResult, *, dry: bool
) -> ImportedBundle:
    slug = result.bundle.slug
    basis = _find_basis(store, slug)
    return ImportedBundle(
        bundle=None if dry and result.is_new else result.bundle,
        slug=slug,
        display_name=result.bundle.display_name,
        is_new=result.is_new,
        tool_count=len(result.added),
        difference=result.difference,
        kept=result.kept,
        disabled=result.disabled,
        hosts=document.hosts,
        secrets=document.secrets,
        missing_hosts=list_missing_hosts(document.hosts, app.settings.http.allowed_hosts),
        missing_secrets=app.bundles.list_missing_secrets(document.secrets),
        secret_uses=[
            SecretUseInfo(**use._asdict(), is_allowed=use.is_allowed(app.settings))
            for use in document.secret_uses
        ],
        problems=document.problems,
        warnings=document.warnings,
        added=[f"{slug}.{tool}@{version}" for tool, version, _ in result.added],
        etag="" if basis is None else compute_etag(basis),
    )


class ExportedBundle(ApiModel):
    """The archive of a bundle. `secrets` are the references that replace literal credentials."""

    slug: str
    content: bytes
    tool_count: int
    secrets: list[str]


@action("GET /api/bundles/{bundleID}/export", "ZIP archive", needs=READ)
async def export_bundle(app: OneTool, person: Person, bundle_id: str) -> ExportedBundle:
    """Export a bundle as a ZIP archive."""
    context = person.open_context(app)
    await app.bundles.refresh()

    def export(store: BundleStore) -> ExportedBundle:
        bundle = store.get_bundle(bundle_id)
        tools = [
            tool.as_stored()
            for tool in store.list_bundle_tools(bundle_id)
            if may_see(context, tool)
        ]
        _, secrets = archive.strip_credentials(bundle.slug, tools)
        content = archive.pack(bundle.as_json(), tools)
        return ExportedBundle(
            slug=bundle.slug, content=content, tool_count=len(tools), secrets=secrets
        )

    return await app.bundles.read(export)


def _find_basis(store: BundleStore, slug: str) -> JsonObject | None:
    """Return what the difference depends on; None if the bundle does not exist."""
    existing = store.bundle_by_slug(slug)
    if existing is None or existing.slug != slug:
        return None
    return {"basis": importer.compute_basis(store, existing)}


def _check_slug_is_free(store: BundleStore, slug: str) -> None:
    """Raise if the slug exists: without `update`, an import never changes an existing bundle."""
    existing = store.bundle_by_slug(slug)
    if existing is not None and existing.slug == slug:
        free = importer.find_free_slug(store, slug)
        details = {"slug": slug, "bundleID": existing.id, "suggestion": free}
        hint = f"add new versions to it with ?update=true, or use another slug: ?name={free}"
        raise AdminError("slug_taken", f"bundle '{slug}' already exists", details, hint=hint)


# --- requirements ---------------------------------------------------------------------------------


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
    needs=ADMIN,
    purpose="allowing hosts and storing secrets",
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
