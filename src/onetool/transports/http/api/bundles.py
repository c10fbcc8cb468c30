"""`/tools`: the REST API of the bundle store. The store validates; the handlers only translate."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.person import check_settings
from onetool.bundles import BundleStore
from onetool.bundles.model import Bundle, BundleDraft, Page, StoredTool, Switch, ToolHit
from onetool.bundles.owner_marks import list_marks, list_names
from onetool.bundles.reader import tool_not_found
from onetool.core.bus.authorize import describe_disabled
from onetool.core.context import ToolContext
from onetool.core.names import python_name
from onetool.state.audit import Facts
from onetool.transports.http import identity, models
from onetool.transports.http.api.common import Api
from onetool.transports.http.errors import ApiError
from onetool.transports.http.invoke import OUTCOME, invoke
from onetool.transports.http.json_body import RequestBody
from onetool.transports.http.models import BundlesQuery, StoredSearchQuery, StoredToolsQuery
from onetool.transports.http.responses import build_precondition, conditional_response, stored_response
from onetool.transports.http.routing import Operation, ResponseSpec, read_query
from onetool_child.json_types import JsonObject

T = TypeVar("T")
ROOT = "/tools"
WRITE_METHODS = frozenset({"PUT", "PATCH", "DELETE"})
BUNDLES = f"{ROOT}/bundles"
BUNDLE = f"{BUNDLES}/{{bundleID}}"
TOOL = f"{BUNDLE}/tools/{{toolSlug}}/version/{{version}}"
READ_TOOL_ERRORS = ("not_found",)
BUNDLE_ERRORS = ("not_found", "permission_denied", "builtin_read_only")
TOOL_ERRORS = (*READ_TOOL_ERRORS, "permission_denied", "builtin_read_only")
CALL_ERRORS = (*READ_TOOL_ERRORS, "bundle_disabled", "tool_disabled", "permission_denied", "audit_unavailable")
DELETED = {204: ResponseSpec("Deleted")}


class BundleHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._app = api.app

    def operations(self) -> Iterator[Operation]:
        for operation in (*self._bundle_operations(), *self._tool_operations(), *self._search_operations()):
            yield replace(operation, is_conditional=operation.method in WRITE_METHODS)

    def _bundle_operations(self) -> Iterator[Operation]:
        one = {200: ResponseSpec("The bundle", Bundle)}
        put = {
            200: ResponseSpec("The bundle was replaced", Bundle),
            201: ResponseSpec("The bundle was created", Bundle),
        }
        page = {200: ResponseSpec("A page of bundles", models.BundlePage)}
        yield Operation("GET", BUNDLES, self.list_bundles, "List bundles", page, BundlesQuery)
        yield Operation("GET", BUNDLE, self.get_bundle, "Get a bundle", one, errors=("not_found",), has_etag=True)
        errors = ("permission_denied", "builtin_read_only", "slug_taken", "duplicate")
        summary = "Create or replace a bundle"
        yield Operation("PUT", BUNDLE, self.put_bundle, summary, put, body=BundleDraft, errors=errors)
        summary = "Enable or disable a bundle"
        yield Operation("PATCH", BUNDLE, self.patch_bundle, summary, one, body=Switch, errors=BUNDLE_ERRORS)
        summary = "Delete an empty bundle; a PUT within two days restores it"
        yield Operation(
            "DELETE", BUNDLE, self.delete_bundle, summary, DELETED, errors=(*BUNDLE_ERRORS, "bundle_not_empty")
        )

    def _tool_operations(self) -> Iterator[Operation]:
        one = {200: ResponseSpec("The tool", models.StoredToolView)}
        put = {201: ResponseSpec("The tool was created", models.StoredToolView)}
        yield Operation("GET", TOOL, self.get_tool, "Get a tool", one, errors=READ_TOOL_ERRORS, has_etag=True)
        summary = "Create a tool version; versions are never replaced"
        errors = (*TOOL_ERRORS, "bundle_disabled", "duplicate")
        yield Operation("PUT", TOOL, self.put_tool, summary, put, body=models.ToolBody, errors=errors)
        summary = "Enable or disable a tool"
        yield Operation(
            "PATCH", TOOL, self.patch_tool, summary, one, body=Switch, errors=(*TOOL_ERRORS, "bundle_disabled")
        )
        yield Operation("DELETE", TOOL, self.delete_tool, "Permanently delete a tool", DELETED, errors=TOOL_ERRORS)
        path = f"{TOOL}/invoke"
        outcome = {200: OUTCOME}
        yield Operation("POST", path, self.invoke, "Call a tool", outcome, body=models.Call, errors=CALL_ERRORS)

    def _search_operations(self) -> Iterator[Operation]:
        page = {200: ResponseSpec("A page of tools", models.StoredToolPage)}
        found = {200: ResponseSpec("Matching tools, best first", models.FoundToolPage)}
        for path in (f"{ROOT}/tools", ROOT):
            summary = "List the tools of all bundles"
            yield Operation("GET", path, self.list_tools, summary, page, StoredToolsQuery, has_etag=True)
        for path in (f"{ROOT}/tools/search", f"{ROOT}/search"):
            summary = "Search the tools of all bundles"
            yield Operation("GET", path, self.search, summary, found, StoredSearchQuery, has_etag=True)

    # --- bundles -----------------------------------------------------------------------------------------------

    async def list_bundles(self, request: Request) -> Response:
        query = read_query(BundlesQuery, request)

        def read(store: BundleStore) -> Response:
            page = store.list_bundles(
                ids=query.bundle_ids,
                include_disabled=query.include_disabled,
                size=query.page_size,
                token=query.page_token or None,
            )
            return conditional_response(_render_page("bundles", page), request.headers)

        return await self._read(read)

    async def get_bundle(self, request: Request) -> Response:
        return await self._read(
            lambda store: conditional_response(store.get_bundle(_bundle_id(request)).as_json(), request.headers)
        )

    async def put_bundle(self, request: Request) -> Response:
        body = await RequestBody.from_request(request)

        def put(facts: Facts) -> Response:
            bundle_id = _bundle_id(request)
            draft = body.data()

            def list_bundle_names(current: Bundle | StoredTool | None) -> list[str]:
                return [bundle_id, str(draft["slug"]), *_list_names(current)]

            check_enabling = self._build_check(request, body, list_bundle_names)

            def check(current: Bundle | StoredTool | None) -> None:
                check_enabling(current)
                slug = draft["slug"]
                if current is not None and current.slug != slug:  # its tools would get other names
                    marks = self._app.state.disabled_tools.list_owner_marks()
                    names = [name for name in marks if name.startswith(f"{slug}.")]
                    identity.require_enabling(request, self._app, names)

            bundle, is_new = self._store.put_bundle(bundle_id, draft, check)
            identity.mark_disabled(request, self._app, _list_names(bundle), on=bundle.is_enabled)
            facts.update(action="bundle.created" if is_new else "bundle.updated", names=[bundle.slug])
            return stored_response(bundle, 201 if is_new else 200)

        return await self._api.write(request, "bundle.put", put)

    async def patch_bundle(self, request: Request) -> Response:
        body = await RequestBody.from_request(request)

        def patch(facts: Facts) -> Response:
            switch = body.data()
            check = self._build_check(request, body, _list_names)
            bundle = self._store.set_bundle_enabled(_bundle_id(request), switch, check)
            identity.mark_disabled(request, self._app, _list_names(bundle), on=bundle.is_enabled)
            facts.update(action=f"bundle.{'enabled' if bundle.is_enabled else 'disabled'}", names=[bundle.slug])
            return stored_response(bundle)

        return await self._api.write(request, "bundle.patch", patch)

    async def delete_bundle(self, request: Request) -> Response:
        def delete(facts: Facts) -> Response:
            bundle = self._store.get_bundle(_bundle_id(request))
            facts["names"] = [bundle.slug]
            self._store.delete_bundle(bundle.id, build_precondition(request.headers))
            return Response(status_code=204)

        return await self._api.write(request, "bundle.deleted", delete)

    # --- tools -------------------------------------------------------------------------------------------------

    async def get_tool(self, request: Request) -> Response:
        tool = await self._find_tool(request)
        if not identity.may_see(identity.build_context(request, self._app), tool):
            raise tool_not_found(*_tool_path(request))
        return await self._api.run_in_thread(lambda: conditional_response(tool.as_json(), request.headers))

    async def put_tool(self, request: Request) -> Response:
        body = await RequestBody.from_request(request)

        def put(facts: Facts) -> StoredTool:
            bundle_id, slug, version = _tool_path(request)

            def list_new_names(current: Bundle | StoredTool | None) -> list[str]:
                return [] if current else list_names(self._store.get_bundle(bundle_id).slug, slug, version)

            check = self._build_check(request, body, list_new_names)
            tool = self._store.put_tool(bundle_id, slug, version, body.data(), check)
            if tool.is_enabled:
                identity.mark_disabled(request, self._app, _list_names(tool), on=True)
            facts["names"] = [self._app.bundles.tool_name(tool)]
            return tool

        return stored_response(await self._refresh(await self._api.write(request, "tool.created", put)), 201)

    async def patch_tool(self, request: Request) -> Response:
        body = await RequestBody.from_request(request)

        def patch(facts: Facts) -> StoredTool:
            check = self._build_check(request, body, _list_names)
            tool = self._store.set_tool_enabled(*_tool_path(request), body.data(), check)
            marks = list_marks(self._store, [tool], on=tool.is_enabled)
            identity.mark_disabled(request, self._app, marks, on=tool.is_enabled)
            action = f"tool.{'enabled' if tool.is_enabled else 'disabled'}"
            name = self._app.bundles.tool_name(tool)
            facts.update(action=action, names=[name])
            return tool

        return stored_response(await self._refresh(await self._api.write(request, "tool.patch", patch)))

    async def delete_tool(self, request: Request) -> Response:
        def delete(facts: Facts) -> Response:
            tool = self._store.get_tool(*_tool_path(request))
            facts["names"] = [self._app.bundles.tool_name(tool)]
            self._store.delete_tool(*_tool_path(request), build_precondition(request.headers))
            return Response(status_code=204)

        return await self._api.write(request, "tool.deleted", delete)

    async def invoke(self, request: Request) -> Response:
        tool = await self._find_tool(request)
        if tool.disabled_reason is not None:  # its function is missing; the registry cannot detect that
            _check_in_use(tool)

        async def check() -> None:
            _check_in_use(await self._find_tool(request))

        return await invoke(self._api, request, self._app.bundles.tool_name(tool), check)

    # --- all bundles ------------------------------------------------------------------------------------------

    async def list_tools(self, request: Request) -> Response:
        query = read_query(StoredToolsQuery, request)
        context = identity.build_context(request, self._app)
        await self._app.discover(set())  # loads functions without waiting for upstream servers

        def read(store: BundleStore) -> Response:
            def fetch(size: int, token: str | None) -> Page[StoredTool]:
                page = store.list_tools(
                    tags=query.tags,
                    bundle_ids=query.bundle_ids,
                    include_disabled=query.include_disabled,
                    size=size,
                    token=token,
                )
                return Page([*map(self._app.bundles.apply_state, page.items)], page.next_token)

            page = _fill_page(fetch, lambda tool: _is_listed(tool, query, context), query)
            return conditional_response(_render_page("tools", page), request.headers)

        return await self._read(read)

    async def search(self, request: Request) -> Response:
        query = read_query(StoredSearchQuery, request)
        context = identity.build_context(request, self._app)
        await self._app.discover(set())

        def read(store: BundleStore) -> Response:
            def fetch(size: int, token: str | None) -> Page[ToolHit]:
                page = store.search(query.q, include_disabled=query.include_disabled, size=size, token=token)
                hits = [ToolHit(self._app.bundles.apply_state(hit.tool), hit.score, hit.match) for hit in page.items]
                return Page(hits, page.next_token)

            page = _fill_page(fetch, lambda hit: _is_listed(hit.tool, query, context), query)
            return conditional_response(_render_page("tools", page), request.headers)

        return await self._read(read)

    def _build_check(
        self, request: Request, body: RequestBody, get_names: Callable[[Bundle | StoredTool | None], list[str]]
    ) -> Callable[[Bundle | StoredTool | None], None]:
        """Return a function that raises if a bundle or tool must not be changed, or not be enabled by its names."""
        check_precondition = build_precondition(request.headers)

        def check(current: Bundle | StoredTool | None) -> None:
            check_precondition(current)
            if body.data().get("isEnabled") is True:
                identity.require_enabling(request, self._app, get_names(current))

        return check

    # --- helpers -----------------------------------------------------------------------------------------------

    @property
    def _store(self) -> BundleStore:
        return self._app.bundles.store

    async def _find_tool(self, request: Request) -> StoredTool:
        return await self._refresh(await self._read(lambda store: store.get_tool(*_tool_path(request))))

    async def _refresh(self, tool: StoredTool) -> StoredTool:
        """Return the tool with its current state: its function may have changed."""
        if tool.python_impl:
            await self._app.discover({python_name(tool.python_impl.function).partition(".")[0]})
        source = self._app.bundles
        return await self._api.run_in_thread(lambda: source.add_problems(source.apply_state(tool)))

    async def _read(self, work: Callable[[BundleStore], T]) -> T:
        check_settings(self._api.app)
        return await self._api.run_in_thread(lambda: work(self._store))


def _list_names(stored: Bundle | StoredTool | None) -> list[str]:
    """Return the ID of a bundle or tool, and the names under which an owner disables it."""
    if stored is None:
        return []
    if isinstance(stored, Bundle):
        return [stored.id, stored.slug]
    return [stored.id, *list_names(stored.bundle_slug, stored.slug, stored.version)]


def _check_in_use(tool: StoredTool) -> None:
    if not tool.bundle_enabled:
        message = f"bundle '{tool.bundle_slug}' is disabled: enable it to call its tools"
        raise ApiError("bundle_disabled", message, {"bundleID": tool.bundle_id})
    if not tool.in_use:
        name = f"{tool.bundle_slug}.{tool.slug} {tool.version}"
        message = describe_disabled(name, tool.disabled_reason)
        raise ApiError("tool_disabled", message, {"toolID": tool.id})


def _bundle_id(request: Request) -> str:
    return str(request.path_params["bundleID"])


def _tool_path(request: Request) -> tuple[str, str, str]:
    return _bundle_id(request), str(request.path_params["toolSlug"]), str(request.path_params["version"])


def _fill_page(
    page: Callable[[int, str | None], Page[T]], keep: Callable[[T], bool], query: models.StoredQuery
) -> Page[T]:
    """Return a full page of the items to keep, reading further pages if needed."""
    items: list[T] = []
    token: str | None = query.page_token or None
    while True:
        found = page(query.page_size - len(items), token)
        items += filter(keep, found.items)
        token = found.next_token
        if token is None or len(items) == query.page_size:
            return Page(items, token)


def _is_listed(tool: StoredTool, query: models.StoredQuery, context: ToolContext) -> bool:
    return (query.include_disabled or tool.in_use) and identity.may_see(context, tool)


def _render_page(name: str, page: Page[Any]) -> JsonObject:
    items = [item.as_json() for item in page.items]
    return {name: items, **({"nextPageToken": page.next_token} if page.next_token is not None else {})}
