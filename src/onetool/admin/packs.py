"""Packs of every kind: list, get, enable and disable them."""

from collections.abc import Iterable
from functools import partial

from anyio.to_thread import run_sync as run_in_thread

from onetool.admin.action import WRITE, Person, action
from onetool.admin.catalog import CatalogFilter, Kind, ToolCatalog, get_kind, refresh_tools
from onetool.admin.model import AdminError, ApiModel, Count, Finding, absent
from onetool.admin.precondition import NO_CONDITION, Precondition
from onetool.admin.stored_tools import SwitchBody
from onetool.app import OneTool
from onetool.core.names import python_name
from onetool.errors import BundleError
from onetool.sources.bundles.model import Bundle, Id, Switch
from onetool.state.document_kinds import EVERYTHING
from onetool.util.context import ToolContext
from onetool.util.problem import Problem

OWN_PACK = "ot"


class PackInfo(ApiModel):
    name: str
    kind: Kind
    source: str
    description: str = ""
    tool_count: Count = 0
    is_enabled: bool = True
    state: str = absent()
    problem: Finding | None = absent(None)
    bundle_id: Id = absent()


class PackList(ApiModel):
    packs: list[PackInfo]


@action("GET /api/packs", "All packs", errors=("permission_denied",))
async def list_packs(app: OneTool, person: Person) -> PackList:
    """List all packs."""
    packs = await _list_visible(app, person)
    return PackList(packs=[packs[name] for name in sorted(packs)])


@action("GET /api/packs/{name}", "The pack", errors=("permission_denied",), has_etag=True)
async def get_pack(app: OneTool, person: Person, name: str) -> PackInfo:
    """Get a pack."""
    packs = await _list_visible(app, person)
    pack = packs.get(name) or next(
        (pack for pack in packs.values() if python_name(pack.name) == name), None
    )
    if pack is None:
        raise AdminError(
            "not_found", f"no pack {name!r}", {"name": name}, hint="list packs with GET /api/packs"
        )
    return pack


@action(
    "PATCH /api/packs/{name}", "The pack", needs=WRITE, errors=("bundle_disabled",), sends_etag=True
)
async def set_pack_enabled(
    app: OneTool,
    person: Person,
    name: str,
    switch: SwitchBody,
    precondition: Precondition = NO_CONDITION,
) -> PackInfo:
    """Enable or disable a pack."""
    async with person.changing(app, "pack.patch", [name]) as facts, app.registry.switch_lock:
        pack = await get_pack(app, person, name)
        on = (await run_in_thread(Switch.of, switch)).is_enabled  # the body may be large
        server = app.settings.servers.get(pack.name)
        if on and pack.kind == "proxy" and server is not None and not server.enabled:
            message = f"server '{pack.name}' is disabled in onetool.yaml"
            hint = f"set servers.{pack.name}.enabled to true"
            raise AdminError("bundle_disabled", message, {"pack": pack.name}, hint=hint)
        precondition.check(app.redact.redact_data(pack.as_json()))
        keys = [pack.bundle_id, pack.name] if pack.bundle_id else [pack.name]
        if on:
            person.require_enabling(app, keys)
        facts.update(action=f"pack.{'enabled' if on else 'disabled'}", names=[pack.name])
        if pack.bundle_id:
            await app.bundles.write(lambda store: store.set_bundle_enabled(pack.bundle_id, on))
        if not pack.bundle_id or on:
            await app.registry.switch(pack.name, on=on)
        await run_in_thread(partial(person.mark_disabled, app, keys, on=on))
    return await get_pack(app, person, name)


# --- reading packs --------------------------------------------------------------------------------


async def _list_visible(app: OneTool, person: Person) -> dict[str, PackInfo]:
    """Return the visible packs by name. An agent limited to some tools sees only their packs."""
    context = person.open_context(app)
    await refresh_tools(app)
    packs = await run_in_thread(_list_packs_with_tools, app, context)
    for bundle in await run_in_thread(_list_bundles, app):
        _add_bundle(packs, bundle, sees_all=context.tools is None)
    if context.tools is None:
        _add_without_tools(app, packs)
    off = app.state.disabled_tools.list_names()
    await run_in_thread(_add_details, app, packs.values())
    for pack in packs.values():
        is_disabled = pack.name in off or (EVERYTHING in off and pack.name != OWN_PACK)
        pack.is_enabled = pack.is_enabled and not is_disabled
    return packs


def _add_without_tools(app: OneTool, packs: dict[str, PackInfo]) -> None:
    for name in app.settings.servers:
        packs.setdefault(name, PackInfo(name=name, kind="proxy", source=f"proxy:{name}"))
    python_names = {python_name(name) for name in packs}
    for name, problem in app.registry.problems().items():
        if name not in python_names:
            packs[name] = PackInfo(
                name=name,
                kind="extension",
                source="local",
                state="broken",
                problem=_to_finding(problem),
            )


def _list_bundles(app: OneTool) -> list[Bundle]:
    try:
        return app.bundles.list_bundles()
    except BundleError:  # the store cannot be read; the health check reports that
        return []


def _add_bundle(packs: dict[str, PackInfo], bundle: Bundle, *, sees_all: bool) -> None:
    """Add a bundle, unless a pack of another kind already has its name."""
    if bundle.slug not in packs and sees_all:
        packs[bundle.slug] = PackInfo(
            name=bundle.slug, kind="bundle", source=f"bundle:{bundle.slug}"
        )
    pack = packs.get(bundle.slug)
    if pack is not None and pack.kind == "bundle":
        pack.bundle_id = bundle.id
        pack.is_enabled = bundle.is_enabled
        pack.description = bundle.description


def _list_packs_with_tools(app: OneTool, context: ToolContext) -> dict[str, PackInfo]:
    """Return the packs of the tools that the agent may call, with their tool counts."""
    catalog = ToolCatalog(app, context)
    packs: dict[str, PackInfo] = {}
    for tool in catalog.list_registered():
        pack = PackInfo(name=tool.pack, kind=get_kind(tool), source=tool.file or tool.source)
        packs.setdefault(tool.pack, pack).tool_count += 1
    for name, stored in app.bundles.packs.items():
        if count := catalog.count_stored(CatalogFilter(name, "bundle", None)):
            pack = PackInfo(name=stored.slug, kind="bundle", source=f"bundle:{stored.slug}")
            packs.setdefault(stored.slug, pack).tool_count += count
    packs.pop("", None)  # tools without a pack are enabled one by one
    return packs


def _add_details(app: OneTool, packs: Iterable[PackInfo]) -> None:
    for pack in packs:
        description = app.settings.prompts.packs.get(pack.name, "")
        pack.description = (
            pack.description or app.registry.describe(python_name(pack.name)) or description
        )
        if pack.kind == "proxy" and pack.name in app.settings.servers:
            session = app.servers.upstream(pack.name).main
            pack.state = session.state
            pack.is_enabled = session.server.enabled
            pack.problem = _to_finding(session.problem) if session.failure else None
        elif pack.kind == "extension" and not pack.state:
            problem = app.extensions.failures.get(pack.name)
            pack.state = app.extensions.states.get(pack.name) or ""
            pack.problem = _to_finding(problem) if problem else None


def _to_finding(problem: Problem) -> Finding:
    return Finding.model_validate(problem.to_json())
