"""MCP resources for tools, MCP prompts for snippets, and notifications when a list changes.

Resources have the content of `ot.tools` and `ot.help`, read through the bus. The resources and
prompts of exposed servers follow OneTool's own (`exposed_tools`).
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

import mcp_types as types
from anyio.to_thread import run_sync as run_in_thread
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.subscriptions import event_to_notification

from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.runs.snippets import expand_call
from onetool.server.mcp.client_identity import build_context, get_session, on_session_end
from onetool.server.mcp.exposed_tools import ExposedTools
from onetool.server.mcp.publish import RESULT, read_result
from onetool.util.context import ToolContext
from onetool.util.render import render
from onetool.util.tasks import BackgroundTasks
from onetool.util.text import did_you_mean

if TYPE_CHECKING:
    from onetool_child.json_types import JsonObject

SCHEME = "ot://"
TOOLS = "ot://tools"
TOOL = "ot://tool/"
MARKDOWN = "text/markdown"
YAML = "application/yaml"
TEXT = "text/plain"
PAGE_SIZE = 500
MAX_URI_CHARS = 200
PROMPT = """\
Call the tool `run` with this command and show me the result:

{fence}python
{code}
{fence}"""
BACKTICKS = re.compile("`{3,}")
MAX_COMPLETIONS = 100  # limit of the protocol
Item = TypeVar("Item")
EVENTS = {
    "tools": ToolsListChanged,
    "prompts": PromptsListChanged,
    "resources": ResourcesListChanged,
}
SUBSCRIPTIONS = "onetool/watched"  # key in the state of a session
MAX_SUBSCRIPTIONS = 1000  # per client
Unsubscribe = Callable[[], Awaitable[None]]
# (request, URI) -> unsubscribe function, or None.
Watch = Callable[[Any, str], Awaitable[Unsubscribe | None]]


class ToolResources:
    def __init__(self, app: OneTool, exposed: ExposedTools) -> None:
        self._app = app
        self._exposed = exposed

    async def list_all(self, context: Any, params: Any) -> types.ListResourcesResult:
        """List the tool list, then each tool, page by page.

        The last page has the resources of exposed servers.
        """
        names, more = paginate(
            await run_in_thread(self._names, build_context(self._app, context)), params
        )
        page = [
            types.Resource(name=name, uri=_tool_uri(name), mime_type=MARKDOWN) for name in names
        ]
        if parse_cursor(params) == 0:
            description = "All tools, one line each"
            page.insert(
                0, types.Resource(name="tools", uri=TOOLS, description=description, mime_type=YAML)
            )
        if more is None:
            page += (await self._exposed.resources(context))[0]
        return types.ListResourcesResult(resources=page, next_cursor=more)

    async def list_templates(self, context: Any, _params: Any) -> types.ListResourceTemplatesResult:
        description = "One tool: signature, arguments and result"
        template = types.ResourceTemplate(
            name="tool", uri_template=f"{TOOL}{{name}}", description=description, mime_type=MARKDOWN
        )
        _, exposed = await self._exposed.resources(context)
        return types.ListResourceTemplatesResult(resource_templates=[template, *exposed])

    async def read(self, context: Any, params: types.ReadResourceRequestParams) -> Any:
        if (
            not params.uri.startswith(SCHEME)
            and (answer := await self._exposed.read(context, params)) is not None
        ):
            return answer
        text, kind = await self._content(params.uri, build_context(self._app, context))
        content = types.TextResourceContents(uri=params.uri, mime_type=kind, text=text)
        return types.ReadResourceResult(contents=[content])

    async def watch(self, context: Any, uri: str) -> Callable[[], Awaitable[None]] | None:
        """Subscribe to a resource.

        Return the function that unsubscribes, or None if it is not available.
        """
        if not uri.startswith(SCHEME):
            return await self._exposed.watch(context, uri)
        name = unquote(uri.removeprefix(TOOL)) if uri.startswith(TOOL) else ""
        if uri == TOOLS or await self._is_known(name, build_context(self._app, context)):
            return _do_nothing
        return None

    async def complete(self, context: Any, params: types.CompleteRequestParams) -> list[str]:
        """Return the names of tools that start with the argument's value."""
        if getattr(params.ref, "uri", None) != f"{TOOL}{{name}}":
            return []
        names = await run_in_thread(self._names, build_context(self._app, context))
        return [name for name in names if name.startswith(params.argument.value)]

    async def _content(self, uri: str, caller: ToolContext) -> tuple[str, str]:
        if uri == TOOLS:
            listed = await caller.call("ot.tools")
            tools = await run_in_thread(partial(render, listed, flow=True))
            note = self._app.redact(self._app.registry.note_unlisted(caller))
            return f"{tools}\n# Note: {note}" if note else tools, YAML
        if uri.startswith(RESULT):
            try:
                return await read_result(self._app, uri, caller), TEXT
            except ToolError as error:
                raise MCPError(types.INVALID_PARAMS, error.message, {"uri": uri}) from None
        name = unquote(uri.removeprefix(TOOL)) if uri.startswith(TOOL) else ""
        if not await self._is_known(name, caller):
            text = await run_in_thread(self._unknown_resource_message, uri, name, caller)
            raise MCPError(types.INVALID_PARAMS, text, {"uri": uri})
        return str(await caller.call("ot.help", query=name, info="full")), MARKDOWN

    async def _is_known(self, name: str, caller: ToolContext) -> bool:
        tool = await run_in_thread(self._app.registry.find_exact, name)
        return tool is not None and tool.name == name and caller.admits(tool)

    def _names(self, caller: ToolContext) -> list[str]:
        return [entry.name for entry in self._app.registry.entries() if caller.admits(entry)]

    def _unknown_resource_message(self, uri: str, name: str, caller: ToolContext) -> str:
        guess = ""
        visible_tools = self._app.registry.only(caller.admits)
        if name and (near := visible_tools.nearest(name)):
            guess = f".{did_you_mean([_tool_uri(tool) for tool in near])}"
        return f"no resource {uri[:MAX_URI_CHARS]!r}{guess}\nHint: read {TOOLS} for all tools"


class SnippetPrompts:
    def __init__(self, app: OneTool, exposed: ExposedTools) -> None:
        self._app = app
        self._exposed = exposed

    async def list_all(self, context: Any, params: Any) -> types.ListPromptsResult:
        snippets = self._app.settings.snippets
        exposed = [
            prompt.model_copy(update={"name": name})
            for name, (_, prompt) in (await self._exposed.prompts(context)).items()
        ]
        prompts, more = paginate(
            [*(_prompt(name, snippets[name]) for name in sorted(snippets)), *exposed], params
        )
        return types.ListPromptsResult(prompts=prompts, next_cursor=more)

    async def get(self, context: Any, params: types.GetPromptRequestParams) -> Any:
        if (answer := await self._exposed.prompt(context, params)) is not None:
            return answer
        snippets = self._app.settings.snippets
        name = params.name.removeprefix("$")
        try:
            code = await run_in_thread(expand_call, name, dict(params.arguments or {}), snippets)
        except ToolError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        # Longer than any fence in the code.
        fence = "`" * (1 + max(map(len, BACKTICKS.findall(code)), default=2))
        message = types.TextContent(type="text", text=PROMPT.format(code=code, fence=fence))
        return types.GetPromptResult(
            description=snippets[name].description,
            messages=[types.PromptMessage(role="user", content=message)],
        )


def paginate(items: Sequence[Item], params: Any) -> tuple[list[Item], str | None]:
    """Return a page of a list and the cursor of the next page."""
    start = parse_cursor(params)
    return list(items[start : start + PAGE_SIZE]), (
        str(start + PAGE_SIZE) if start + PAGE_SIZE < len(items) else None
    )


async def _do_nothing() -> None:
    """Do nothing: OneTool's own resources need no unsubscribing."""


def parse_cursor(params: Any) -> int:
    cursor = params.cursor if params is not None else None
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):  # noqa: PLR2004 - no list is that long
        raise MCPError(
            types.INVALID_PARAMS,
            f"invalid cursor {cursor[:50]!r}: omit it to start at the first page",
        )
    return int(cursor)


def _tool_uri(name: str) -> str:
    return f"{TOOL}{quote(name, safe='')}"


def _prompt(name: str, snippet: Any) -> types.Prompt:
    arguments = [
        types.PromptArgument(
            name=key, description=param.description or None, required=param.required
        )
        for key, param in snippet.params.items()
    ]
    return types.Prompt(name=name, description=snippet.description or None, arguments=arguments)


# --- list changes ---------------------------------------------------------------------------------


class ChangeNotifier:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._bus = InMemorySubscriptionBus()
        self._listen_handler = ListenHandler(self._bus)
        self._sessions: set[Connection] = set()
        self._tasks = BackgroundTasks(lambda _: None)  # errors of disconnected clients are ignored

    def publish(self, what: str, uri: str = "") -> None:
        """Notify listening clients.

        `what` is the changed list (tools, prompts, resources) or "resource".
        """
        self._tasks.start(self._bus.publish(_event(what, uri)))

    def notify_all(self, what: str, uri: str = "") -> None:
        """Notify listening clients and the sessions of older protocols."""
        self.publish(what, uri)
        method = event_to_notification(_event(what, uri), {}).method
        params = {"uri": uri} if uri else None
        for session in self._sessions:
            if what != "resource" or uri in session.state[SUBSCRIPTIONS]:
                self._tasks.start(session.notify(method, params))

    # --- protocols before 2026 --------------------------------------------------------------------

    def register_session(self, session: Connection) -> None:
        """Register a new session."""
        if session not in self._sessions:
            self._sessions.add(session)
            session.state[SUBSCRIPTIONS] = {}
            on_session_end(session, lambda: self._remove_session(session))

    def _remove_session(self, session: Connection) -> None:
        self._sessions.discard(session)
        for unsubscribe in session.state.pop(SUBSCRIPTIONS).values():
            self._tasks.start(unsubscribe())

    async def subscribe(
        self, context: Any, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        session = get_session(context)
        self.register_session(session)
        subscriptions: JsonObject = session.state[SUBSCRIPTIONS]
        if params.uri not in subscriptions and len(subscriptions) < MAX_SUBSCRIPTIONS:
            unsubscribe = await self._watch(context, params.uri)
            if unsubscribe is None:
                raise MCPError(types.INVALID_PARAMS, f"no resource {params.uri[:MAX_URI_CHARS]!r}")
            subscriptions[params.uri] = unsubscribe
        return types.EmptyResult()

    async def unsubscribe(
        self, context: Any, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        unsubscribe = get_session(context).state.get(SUBSCRIPTIONS, {}).pop(params.uri, None)
        if unsubscribe is not None:
            await unsubscribe()
        return types.EmptyResult()

    # --- protocol of 2026 -------------------------------------------------------------------------

    async def listen(
        self, context: Any, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Subscribe to changes.

        The acknowledgment lists only the resources that the client may read.
        """
        uris = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))[
            :MAX_SUBSCRIPTIONS
        ]
        subscribed = {uri: await self._watch(context, uri) for uri in uris}
        unsubscribers = {
            uri: unsubscribe for uri, unsubscribe in subscribed.items() if unsubscribe is not None
        }
        notifications = params.notifications.model_copy(
            update={"resource_subscriptions": list(unsubscribers)}
        )
        try:
            return await self._listen_handler(
                context, params.model_copy(update={"notifications": notifications})
            )
        finally:
            for unsubscribe in unsubscribers.values():
                self._tasks.start(unsubscribe())

    def close(self) -> None:
        """End the streams of listening clients."""
        self._listen_handler.close()


def _event(what: str, uri: str) -> Any:
    return ResourceUpdated(uri) if what == "resource" else EVENTS[what]()
