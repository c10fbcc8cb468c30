"""What the routes of bundles do: from a request to the store or the bus, and back.

They only translate: the store checks and refuses, in its order. Its calls wait for the disk, so they run in threads,
of which there are some for this alone.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from ot.app import OneTool
from ot.bundles.model import Found, Page, StoredTool
from ot.bundles.store import BundleStore
from ot.faces.http import callers, paging
from ot.faces.http.answers import answer, precondition, stored, tagged
from ot.faces.http.api.events import while_heard
from ot.faces.http.bodies import Sent
from ot.faces.http.gate import agent_of, token_id_of
from ot.faces.http.invoking import arguments_in, check_in_use, outcome_of
from ot.faces.http.queue import CALLS, turn
from ot.faces.http.refusals import Refusal
from ot.registry import python_name
from ot.schema import JSON
from ot.tool import Result

T = TypeVar("T")
READERS, WRITERS = 16, 8  # apart, because writers may wait for another process and readers never do


class BundleHandlers:
    def __init__(self, app: OneTool) -> None:
        self._app = app
        self._readers, self._writers = anyio.CapacityLimiter(READERS), anyio.CapacityLimiter(WRITERS)

    # --- bundles -----------------------------------------------------------------------------------------------

    async def list_bundles(self, request: Request) -> Response:
        query = request.query_params
        size, token, disabled = _paging(request, "pageSize")
        ids = paging.many(query, "bundleIDs")

        def read(store: BundleStore) -> Response:
            page = store.list_bundles(ids=ids, include_disabled=disabled, size=size, token=token)
            return tagged(_listed("bundles", [bundle.as_json() for bundle in page.items], page), request.headers)

        return await self._reading(read)

    async def get_bundle(self, request: Request) -> Response:
        return await self._reading(
            lambda store: tagged(store.get_bundle(_bundle_id(request)).as_json(), request.headers)
        )

    async def put_bundle(self, request: Request) -> Response:
        sent = await Sent.with_request(request)

        def put(store: BundleStore) -> Response:
            bundle, is_new = store.put_bundle(_bundle_id(request), sent.data(), precondition(request.headers))
            self._record(request, "bundle.created" if is_new else "bundle.updated", bundle.slug)
            return stored(bundle, 201 if is_new else 200)

        return await self._writing(request, put)

    async def patch_bundle(self, request: Request) -> Response:
        sent = await Sent.with_request(request)

        def patch(store: BundleStore) -> Response:
            bundle = store.set_bundle_enabled(_bundle_id(request), sent.data(), precondition(request.headers))
            self._record(request, _switched("bundle", on=bundle.is_enabled), bundle.slug)
            return stored(bundle)

        return await self._writing(request, patch)

    async def delete_bundle(self, request: Request) -> Response:
        def delete(store: BundleStore) -> Response:
            bundle = store.get_bundle(_bundle_id(request))
            store.delete_bundle(bundle.id, precondition(request.headers))
            self._record(request, "bundle.deleted", bundle.slug)
            return Response(status_code=204)

        return await self._writing(request, delete)

    # --- tools -------------------------------------------------------------------------------------------------

    async def get_tool(self, request: Request) -> Response:
        tool = await self._stored(request)
        return await self._in_thread(lambda: tagged(tool.as_json(), request.headers))

    async def put_tool(self, request: Request) -> Response:
        sent = await Sent.with_request(request)

        def put(store: BundleStore) -> StoredTool:
            tool = store.put_tool(*_tool_path(request), sent.data(), precondition(request.headers))
            self._record(request, "tool.created", self._app.bundles.tool_name(tool))
            return tool

        tool = await self._writing(request, put)
        return stored((await self._shown([tool]))[0], 201)

    async def patch_tool(self, request: Request) -> Response:
        sent = await Sent.with_request(request)

        def patch(store: BundleStore) -> StoredTool:
            tool = store.set_tool_enabled(*_tool_path(request), sent.data(), precondition(request.headers))
            self._record(request, _switched("tool", on=tool.is_enabled), self._app.bundles.tool_name(tool))
            return tool

        tool = await self._writing(request, patch)
        return stored((await self._shown([tool]))[0])

    async def delete_tool(self, request: Request) -> Response:
        def delete(store: BundleStore) -> Response:
            tool = store.get_tool(*_tool_path(request))
            store.delete_tool(*_tool_path(request), precondition(request.headers))
            self._record(request, "tool.deleted", self._app.bundles.tool_name(tool))
            return Response(status_code=204)

        return await self._writing(request, delete)

    async def invoke(self, request: Request) -> Response:
        sent = await Sent.with_request(request)
        tool = await self._stored(request)
        check_in_use(tool)
        args = arguments_in(await self._in_thread(sent.data))
        result = await while_heard(request, self._called(request, tool, args))
        return await self._in_thread(lambda: answer(outcome_of(result, self._app.redact)))

    async def _called(self, request: Request, tool: StoredTool, args: JSON) -> Result:
        context = self._app.context(agent_of(request.scope), token_id=token_id_of(request.scope))
        async with turn(request.scope, context.agent_id, CALLS):
            return await self._app.bus.call_tool(self._app.bundles.tool_name(tool), args, context)

    # --- over all bundles --------------------------------------------------------------------------------------

    async def list_tools(self, request: Request) -> Response:
        size, token, disabled = _paging(request, "recommendedPageSize", "pageSize")
        tags, ids = paging.tags_of(request.query_params), paging.many(request.query_params, "bundleIDs")
        await self._know_functions()

        def read(store: BundleStore) -> Response:
            def some(size: int, token: str | None) -> Page[StoredTool]:
                page = store.list_tools(tags=tags, bundle_ids=ids, include_disabled=disabled, size=size, token=token)
                return Page([*map(self._app.bundles.shown, page.items)], page.next_token)

            page = paging.filled(some, lambda tool: disabled or tool.in_use, size, token)
            return tagged(_listed("tools", [tool.as_json() for tool in page.items], page), request.headers)

        return await self._reading(read)

    async def search(self, request: Request) -> Response:
        size, token, disabled = _paging(request, "pageSize")
        q = paging.single(request.query_params, "q")
        if q is None:
            raise Refusal("invalid", "q is missing: say what to search for, like ?q=weather", {"parameter": "q"})
        await self._know_functions()

        def read(store: BundleStore) -> Response:
            def some(size: int, token: str | None) -> Page[Found]:
                page = store.search(q, include_disabled=disabled, size=size, token=token)
                return Page([*map(self._shown_hit, page.items)], page.next_token)

            page = paging.filled(some, lambda found: disabled or found.tool.in_use, size, token)
            return tagged(_listed("tools", [found.as_json() for found in page.items], page), request.headers)

        return await self._reading(read)

    # --- around ------------------------------------------------------------------------------------------------

    async def _stored(self, request: Request) -> StoredTool:
        tool = await self._reading(lambda store: store.get_tool(*_tool_path(request)))
        return (await self._shown([tool]))[0]

    async def _shown(self, tools: list[StoredTool]) -> list[StoredTool]:
        """As they are now; a function may have been written or removed a moment ago."""
        functions = {tool.python_impl.function for tool in tools if tool.python_impl}
        if functions:
            await self._app.discover({python_name(function).partition(".")[0] for function in functions})
        return await self._in_thread(lambda: [*map(self._app.bundles.shown, tools)])

    async def _know_functions(self) -> None:
        """For a list nobody waits for somebody else's server."""
        await self._app.discover(set())

    def _shown_hit(self, found: Found) -> Found:
        return Found(self._app.bundles.shown(found.tool), found.score, found.match)

    async def _reading(self, work: Callable[[BundleStore], T]) -> T:
        self._refuse_without_settings()
        return await self._in_thread(lambda: work(self._app.bundles.store))

    async def _writing(self, request: Request, work: Callable[[BundleStore], T]) -> T:
        callers.may_change(request, self._app)
        self._refuse_without_settings()
        return await anyio.to_thread.run_sync(lambda: work(self._app.bundles.store), limiter=self._writers)

    def _record(self, request: Request, action: str, name: str) -> None:
        callers.record_change(request, self._app, action, name)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._readers)

    def _refuse_without_settings(self) -> None:
        """Where they are wrong, the store would be another one."""
        error = self._app.config_error
        if error is not None:
            raise Refusal("busy", f"the configuration is wrong, so nothing works until it is right:\n{error}")


def _switched(what: str, *, on: bool) -> str:
    return f"{what}.{'enabled' if on else 'disabled'}"


def _bundle_id(request: Request) -> str:
    return str(request.path_params["bundleID"])


def _tool_path(request: Request) -> tuple[str, str, str]:
    return _bundle_id(request), str(request.path_params["toolSlug"]), str(request.path_params["version"])


def _paging(request: Request, *size_names: str) -> tuple[int, str | None, bool]:
    query = request.query_params
    return paging.size_of(query, *size_names), paging.token_of(query), paging.includes_disabled(query)


def _listed(name: str, items: list[JSON], page: Page[Any]) -> JSON:
    return {name: items, **({"nextPageToken": page.next_token} if page.next_token is not None else {})}
