"""Bundles and stored tools: list, search, get, create, enable, disable and delete them.

The store validates.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self

from anyio.to_thread import run_sync as run_in_thread
from pydantic import AliasChoices, ConfigDict, Field, WithJsonSchema

from onetool.admin.action import READ, WRITE, Person, action
from onetool.admin.model import (
    BUNDLE_IDS,
    DEFAULT_PAGE_SIZE,
    LIST_DESCRIPTION,
    MAX_PAGE_SIZE,
    SIZE_DESCRIPTION,
    AdminError,
    Flag,
    Ids,
    PageQuery,
    PageResponse,
    Size,
    Tags,
)
from onetool.admin.precondition import NO_CONDITION, Precondition
from onetool.app import OneTool
from onetool.core.names import python_name
from onetool.core.tool import RegistryEntry
from onetool.sources.bundles import BundleStore
from onetool.sources.bundles.imported import list_marks, list_names
from onetool.sources.bundles.model import (
    Bundle,
    BundleDraft,
    FoundTool,
    Page,
    PythonImpl,
    StoredTool,
    StoredToolView,
    Switch,
    ToolDraft,
)
from onetool.sources.bundles.reader import tool_not_found
from onetool.sources.http.definition import HttpImpl
from onetool.util.context import ToolContext
from onetool_child.json_types import JsonMapping

# Bodies that are read late, because other errors take precedence over theirs.
BundleBody = Annotated[JsonMapping, BundleDraft]
SwitchBody = Annotated[JsonMapping, Switch]


class StoredQuery(PageQuery):
    include_disabled: Flag = Field(default=False, description="Include disabled items")


class BundlesQuery(StoredQuery):
    LISTS: ClassVar = frozenset({"bundleIDs"})
    bundle_ids: Ids | None = BUNDLE_IDS


class StoredToolsQuery(StoredQuery):
    tags: Tags | None = Field(
        default=None, description=f"Only tools with any of these tags; {LIST_DESCRIPTION}"
    )
    bundle_ids: Ids | None = BUNDLE_IDS
    page_size: Size = Field(
        default=DEFAULT_PAGE_SIZE,
        validation_alias=AliasChoices("recommendedPageSize", "pageSize"),
        description=f"{SIZE_DESCRIPTION}. pageSize is an alias; send only one",
    )

    ALIASES: ClassVar = ("pageSize",)
    LISTS: ClassVar = frozenset({"bundleIDs", "tags"})

    @classmethod
    def read(cls, values: Mapping[str, list[str]]) -> Self:
        if {"pageSize", "recommendedPageSize"} <= values.keys():
            message = "pageSize and recommendedPageSize are aliases: send only one"
            raise AdminError("invalid", message, {"parameter": "pageSize"})
        return super().read(values)


class StoredSearchQuery(StoredQuery):
    q: Annotated[str, WithJsonSchema({"type": "string", "pattern": r"\S"})] = Field(
        description="Search text; ignores case and accents and has no special characters"
    )


class ToolBody(ToolDraft):
    """A tool to store, with the implementation of its type."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {
                    "properties": {"type": {"const": "http"}, "pythonImpl": {"type": "null"}},
                    "required": ["httpImpl"],
                },
                {
                    "properties": {
                        "type": {"enum": ["python", "go"]},
                        "httpImpl": {"type": "null"},
                    },
                    "required": ["pythonImpl"],
                },
            ]
        },
    )
    http_impl: HttpImpl | None = None  # type: ignore[assignment]
    python_impl: PythonImpl | None = None


class BundlePage(PageResponse):
    bundles: Annotated[list[Bundle], Field(max_length=MAX_PAGE_SIZE)]


class StoredToolPage(PageResponse):
    tools: Annotated[list[StoredToolView], Field(max_length=MAX_PAGE_SIZE)]


class FoundToolPage(PageResponse):
    tools: Annotated[list[FoundTool], Field(max_length=MAX_PAGE_SIZE)]


# --- bundles --------------------------------------------------------------------------------------


@action("GET /tools/bundles", "A page of bundles", needs=READ)
async def list_bundles(app: OneTool, _person: Person, query: BundlesQuery) -> BundlePage:
    """List bundles."""
    page = await app.bundles.read(
        lambda store: store.list_bundles(
            ids=query.bundle_ids,
            include_disabled=query.include_disabled,
            size=query.page_size,
            token=query.page_token or None,
        )
    )
    return BundlePage(bundles=page.items, next_page_token=page.next_token or "")


@action("GET /tools/bundles/{bundleID}", "The bundle", needs=READ)
async def get_bundle(app: OneTool, _person: Person, bundle_id: str) -> Bundle:
    """Get a bundle."""
    return await app.bundles.read(lambda store: store.get_bundle(bundle_id))


@action(
    "PUT /tools/bundles/{bundleID}",
    "The bundle was replaced",
    needs=WRITE,
    errors=("builtin_read_only", "slug_taken", "duplicate"),
    created="The bundle was created",
)
async def put_bundle(
    app: OneTool,
    person: Person,
    bundle_id: str,
    draft: BundleBody,
    precondition: Precondition = NO_CONDITION,
) -> tuple[Bundle, bool]:
    """Create or replace a bundle."""

    def check(current: Bundle | StoredTool | None) -> None:
        precondition.check(current)
        slug = str(draft["slug"])
        if draft.get("isEnabled") is True:
            person.require_enabling(app, [bundle_id, slug, *_list_names(current)])
        if current is not None and current.slug != slug:  # its tools would get other names
            marks = app.state.disabled_tools.list_owner_marks()
            person.require_enabling(app, [name for name in marks if name.startswith(f"{slug}.")])

    def put(store: BundleStore) -> tuple[Bundle, bool]:
        bundle, is_new = store.put_bundle(bundle_id, draft, check)
        person.mark_disabled(app, _list_names(bundle), on=bundle.is_enabled)
        return bundle, is_new

    async with person.changing(app, "bundle.put", [bundle_id]) as facts:
        bundle, is_new = await app.bundles.write(put)
        facts.update(action="bundle.created" if is_new else "bundle.updated", names=[bundle.slug])
    return bundle, is_new


@action("PATCH /tools/bundles/{bundleID}", "The bundle", needs=WRITE, errors=("builtin_read_only",))
async def set_bundle_enabled(
    app: OneTool,
    person: Person,
    bundle_id: str,
    switch: SwitchBody,
    precondition: Precondition = NO_CONDITION,
) -> Bundle:
    """Enable or disable a bundle."""

    def change(store: BundleStore) -> Bundle:
        bundle = store.set_bundle_enabled(
            bundle_id, switch, _make_check(app, person, switch, precondition)
        )
        person.mark_disabled(app, _list_names(bundle), on=bundle.is_enabled)
        return bundle

    async with person.changing(app, "bundle.patch", [bundle_id]) as facts:
        bundle = await app.bundles.write(change)
        facts.update(
            action=f"bundle.{'enabled' if bundle.is_enabled else 'disabled'}", names=[bundle.slug]
        )
    return bundle


@action(
    "DELETE /tools/bundles/{bundleID}",
    "Deleted",
    needs=WRITE,
    errors=("builtin_read_only", "bundle_not_empty"),
)
async def delete_bundle(
    app: OneTool, person: Person, bundle_id: str, precondition: Precondition = NO_CONDITION
) -> None:
    """Delete an empty bundle; a PUT within two days restores it."""
    async with person.changing(app, "bundle.deleted", [bundle_id], frees_space=True) as facts:
        bundle = await app.bundles.read(lambda store: store.get_bundle(bundle_id))
        facts["names"] = [bundle.slug]
        await app.bundles.write(lambda store: store.delete_bundle(bundle_id, precondition.check))


@action(needs=WRITE)
async def delete_bundle_with_tools(app: OneTool, person: Person, bundle_id: str) -> list[str]:
    """Delete a bundle with all its tools, and return what was deleted."""
    async with person.changing(app, "bundle.deleted", [bundle_id], frees_space=True) as facts:
        bundle = await app.bundles.read(lambda store: store.get_bundle(bundle_id))
        tools = await app.bundles.read(lambda store: store.list_bundle_tools(bundle_id))
        names = facts["names"] = [*map(app.bundles.tool_name, tools), bundle.slug]

        def delete(store: BundleStore) -> None:
            for tool in tools:
                store.delete_tool(bundle_id, tool.slug, tool.version)
            store.delete_bundle(bundle_id)

        await app.bundles.write(delete)
    return names


# --- tools ----------------------------------------------------------------------------------------


@action("GET /tools/bundles/{bundleID}/tools/{toolSlug}/version/{version}", "The tool", needs=READ)
async def get_tool(
    app: OneTool, person: Person, bundle_id: str, tool_slug: str, version: str
) -> StoredToolView:
    """Get a tool."""
    tool = await find_tool(app, bundle_id, tool_slug, version)
    if not may_see(person.open_context(app), tool):
        raise tool_not_found(bundle_id, tool_slug, version)
    return tool.to_view()


async def find_tool(app: OneTool, bundle_id: str, tool_slug: str, version: str) -> StoredTool:
    """Return a version of a tool with its current state."""
    return await _refresh(
        app, await app.bundles.read(lambda store: store.get_tool(bundle_id, tool_slug, version))
    )


@action(
    "PUT /tools/bundles/{bundleID}/tools/{toolSlug}/version/{version}",
    "The tool was created",
    needs=WRITE,
    status=201,
    errors=("builtin_read_only", "bundle_disabled", "duplicate"),
)
async def put_tool(
    app: OneTool,
    person: Person,
    bundle_id: str,
    tool_slug: str,
    version: str,
    *,
    draft: Annotated[JsonMapping, ToolBody],
    precondition: Precondition = NO_CONDITION,
) -> StoredToolView:
    """Create a tool version; versions are never replaced."""

    def put(store: BundleStore) -> StoredTool:
        def check(current: Bundle | StoredTool | None) -> None:
            precondition.check(current)
            if current is None and draft.get("isEnabled") is True:
                person.require_enabling(
                    app, list_names(store.get_bundle(bundle_id).slug, tool_slug, version)
                )

        tool = store.put_tool(bundle_id, tool_slug, version, draft, check)
        if tool.is_enabled:
            person.mark_disabled(app, _list_names(tool), on=True)
        return tool

    async with person.changing(app, "tool.created", [bundle_id, tool_slug, version]) as facts:
        tool = await app.bundles.write(put)
        facts["names"] = [app.bundles.tool_name(tool)]
    return (await _refresh(app, tool)).to_view()


@action(
    "PATCH /tools/bundles/{bundleID}/tools/{toolSlug}/version/{version}",
    "The tool",
    needs=WRITE,
    errors=("builtin_read_only", "bundle_disabled"),
)
async def set_version_enabled(
    app: OneTool,
    person: Person,
    bundle_id: str,
    tool_slug: str,
    version: str,
    *,
    switch: SwitchBody,
    precondition: Precondition = NO_CONDITION,
) -> StoredToolView:
    """Enable or disable a tool."""

    def change(store: BundleStore) -> StoredTool:
        check = _make_check(app, person, switch, precondition)
        tool = store.set_tool_enabled(bundle_id, tool_slug, version, switch, check)
        person.mark_disabled(app, list_marks(store, [tool], on=tool.is_enabled), on=tool.is_enabled)
        return tool

    async with person.changing(app, "tool.patch", [bundle_id, tool_slug, version]) as facts:
        tool = await app.bundles.write(change)
        action_name = f"tool.{'enabled' if tool.is_enabled else 'disabled'}"
        facts.update(action=action_name, names=[app.bundles.tool_name(tool)])
    return (await _refresh(app, tool)).to_view()


@action(
    "DELETE /tools/bundles/{bundleID}/tools/{toolSlug}/version/{version}",
    "Deleted",
    needs=WRITE,
    errors=("builtin_read_only",),
)
async def delete_tool(
    app: OneTool,
    person: Person,
    bundle_id: str,
    tool_slug: str,
    version: str,
    *,
    precondition: Precondition = NO_CONDITION,
) -> None:
    """Permanently delete a tool."""
    path = bundle_id, tool_slug, version
    async with person.changing(app, "tool.deleted", path, frees_space=True) as facts:
        tool = await app.bundles.read(lambda store: store.get_tool(*path))
        facts["names"] = [app.bundles.tool_name(tool)]
        await app.bundles.write(lambda store: store.delete_tool(*path, precondition.check))


# --- all bundles ----------------------------------------------------------------------------------


@action("GET /tools/tools /tools", "A page of tools", needs=READ)
async def list_tools(app: OneTool, person: Person, query: StoredToolsQuery) -> StoredToolPage:
    """List the tools of all bundles."""

    def fetch(store: BundleStore, size: int, token: str | None) -> Page[Any]:
        return store.list_tools(
            tags=query.tags,
            bundle_ids=query.bundle_ids,
            include_disabled=query.include_disabled,
            size=size,
            token=token,
        )

    tools, token = await _fill_page(app, person, query, fetch)
    return StoredToolPage(tools=tools, next_page_token=token)


@action("GET /tools/tools/search /tools/search", "Matching tools, best first", needs=READ)
async def search_tools(app: OneTool, person: Person, query: StoredSearchQuery) -> FoundToolPage:
    """Search the tools of all bundles."""

    def fetch(store: BundleStore, size: int, token: str | None) -> Page[Any]:
        return store.search(
            query.q, include_disabled=query.include_disabled, size=size, token=token
        )

    tools, token = await _fill_page(app, person, query, fetch)
    return FoundToolPage(tools=tools, next_page_token=token)


async def _fill_page(
    app: OneTool,
    person: Person,
    query: StoredQuery,
    fetch: Callable[[BundleStore, int, str | None], Page[Any]],
) -> tuple[list[Any], str]:
    """Return a full page of visible tools, from several pages if needed, and the next token."""
    context = person.open_context(app)
    await app.discover(set())  # loads functions without waiting for upstream servers

    def read(store: BundleStore) -> tuple[list[Any], str]:
        items: list[Any] = []
        token = query.page_token or None
        while True:
            page = fetch(store, query.page_size - len(items), token)
            tools = [app.bundles.apply_state(item.to_view()) for item in page.items]
            items += [
                tool
                for tool in tools
                if (query.include_disabled or tool.in_use) and may_see(context, tool)
            ]
            token = page.next_token
            if token is None or len(items) == query.page_size:
                return items, token or ""

    return await app.bundles.read(read)


# --- helpers --------------------------------------------------------------------------------------


def may_see(context: ToolContext, stored: StoredTool) -> bool:
    """Return whether the agent may call a stored tool, by its list of tools."""
    return context.admits(RegistryEntry(f"{stored.bundle_slug}.{stored.slug}", "", enabled=True))


def _make_check(
    app: OneTool, person: Person, switch: JsonMapping, precondition: Precondition
) -> Callable[[Bundle | StoredTool | None], None]:
    """Return a function that raises if a bundle or tool must not be changed or enabled."""

    def check(current: Bundle | StoredTool | None) -> None:
        precondition.check(current)
        if switch.get("isEnabled") is True:
            person.require_enabling(app, _list_names(current))

    return check


async def _refresh(app: OneTool, tool: StoredTool) -> StoredTool:
    """Return the tool with its current state: its function may have changed."""
    if tool.python_impl:
        await app.discover({python_name(tool.python_impl.function).partition(".")[0]})
    return await run_in_thread(lambda: app.bundles.add_problems(app.bundles.apply_state(tool)))


def _list_names(stored: Bundle | StoredTool | None) -> list[str]:
    """Return the ID of a bundle or tool, and the names under which an owner disables it."""
    if stored is None:
        return []
    if isinstance(stored, Bundle):
        return [stored.id, stored.slug]
    return [stored.id, *list_names(stored.bundle_slug, stored.slug, stored.version)]
