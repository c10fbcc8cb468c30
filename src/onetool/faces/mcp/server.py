"""The MCP door: a server with one tool, `run(command)`, and what `--expose` publishes beside it.

Sessions and transports are the SDK's. A run that fails is an answer with `isError`, never a protocol error. Cells are
got ready once the client has seen the tool list, so that nothing stands between a client and its first answer.
"""

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server

from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.faces.log import forwarded
from onetool.faces.mcp.callers import (
    agent_of,
    counted_as,
    facts_of,
    request_id_of,
    session_of,
    token_id_of,
    wants_progress,
)
from onetool.faces.mcp.changes import Changes
from onetool.faces.mcp.exposed import Exposed
from onetool.faces.mcp.relaying import LEVEL
from onetool.faces.mcp.resources import MOST_COMPLETIONS, TOOLS, Prompts, Resources, page_of
from onetool.faces.queue import QueueFull, turn
from onetool.faces.settings_watcher import watching
from onetool.faces.stdio import protocol_streams
from onetool.runner.answer import Journal
from onetool.stats.tokens import tokens_of, tokens_of_text
from onetool.version import __version__
from onetool_child.summary import number

MOST_REMEMBERED = 10_000
BEGIN_SECONDS = 0.5  # after the list of tools, so that a client is not kept waiting by what can be done later
IDLE_SECONDS = 1.0  # without anything printed, after which a client hears that its run is alive
OUTPUT_SECONDS = 0.05  # between two messages of progress
MAX_MESSAGE_CHARS = 4000
IDLE_WARM_UP_SECONDS = 3.0  # for clients that never list tools

# For how long a client need not ask again, unless it is told of a change. What one agent may see is not for another.
LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
CACHE_HINTS: Any = {
    **dict.fromkeys(LISTS, CacheHint(ttl_ms=60_000)),
    "resources/read": CacheHint(),
    "server/discover": CacheHint(ttl_ms=300_000),
}

DESCRIPTION = """\
Run Python code that can call every tool there is. Tools are functions in packs: pack.tool(argument=value).

Find a tool: ot.search(query="what it is for"); ot.tools() and ot.packs() list all.
See how it is called: ot.help(query="pack.tool").
The value of the last expression (or of `return`) is the answer, printed text comes before it. Example:

rows = machine.disk()
{"free": rows["free"], "memory": machine.memory(unit="GiB")["available"]}

A large value is kept, and the answer has its handle: ot.result(handle="...", search="...") gives lines that match, \
ot.load(handle="...") gives all of it to code, which returns a part.

The code is full Python with the standard library, in a fresh process without network, programs or files: tools act, \
code computes. Make several calls in one run, filter in code, return only what you need.\
"""
INSTRUCTIONS = """\
OneTool puts all tools behind one tool, `run`, which executes Python. Start with \
run('ot.search(query="what you want to do")') to find a tool, then run('ot.help(query="pack.tool")') to see how it is \
called. An error says what was wrong and what to write instead.\
"""
RUN = types.Tool(
    name="run",
    title="Run Python that calls tools",
    description=DESCRIPTION,
    input_schema={
        "type": "object",
        "properties": {"command": {"type": "string", "description": "Python code, e.g. ot.tools()"}},
        "required": ["command"],
        "additionalProperties": False,
    },
)


class OneToolServer(Server[Any]):
    """The SDK's server with our handlers. It is closed by whoever built it."""

    def __init__(self, app: OneTool) -> None:
        self._app = app
        self._begun: set[str] = set()  # sessions that are counted
        self._beginning: set[asyncio.Task[None]] = set()
        self._exposed = Exposed(app, self._heard)
        self._resources, self._prompts = Resources(app, self._exposed), Prompts(app, self._exposed)
        self._changes = Changes(self._resources.watch)
        self._known = self._state()
        self._open = contextlib.ExitStack()
        self._open.enter_context(forwarded(app.log, "mcp.server", "mcp.server", "mcp.shared", level=logging.WARNING))
        self._open.callback(self._exposed.close)
        self._open.callback(self.end_streams)
        self._open.callback(app.bus.subscribe(lambda _event: self._notice()))
        super().__init__(
            "onetool",
            version=__version__,
            instructions="\n\n".join(filter(None, (INSTRUCTIONS, app.settings.prompts.instructions.strip()))),
            cache_hints=CACHE_HINTS,
            get_tool_input_schema=self._exposed.schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._resources.listed,
            on_list_resource_templates=self._resources.templates,
            on_read_resource=self._resources.read,
            on_list_prompts=self._prompts.listed,
            on_get_prompt=self._prompts.got,
            on_completion=self._complete,
            on_subscriptions_listen=self._changes.listen,
        )
        if self._exposed:
            self._publish()

    def _publish(self) -> None:
        """What only a server that publishes others' things has a use for."""

        async def meet(context: Any, _params: Any) -> None:
            self._changes.meet(session_of(context))

        async def set_level(context: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
            session_of(context).state[LEVEL] = params.level
            return types.EmptyResult()

        self.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._changes.subscribe)
        self.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._changes.unsubscribe)
        self.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
        self.add_notification_handler("notifications/initialized", types.NotificationParams, meet)
        sealing = RequestStateSecurity.ephemeral()
        sealing.bind_principal = lambda context: f"{agent_of(self._app, context)}:{token_id_of(context)}"
        self.middleware.append(RequestStateBoundary(sealing, default_audience=self.name))

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *rest: Any, **named: Any
    ) -> InitializationOptions:
        """Changes are told to sessions where there is anything but our own."""
        every = bool(self._exposed)
        options = notification_options or NotificationOptions(every, every, every)
        return super().create_initialization_options(options, *rest, **named)

    def end_streams(self) -> None:
        """Those who listen are told that there is nothing more to come; what is under way goes on."""
        self._changes.close()

    @property
    def own_tokens(self) -> int:
        """What OneTool itself costs in a model's context."""
        return tokens_of(RUN.model_dump(by_alias=True, exclude_none=True)) + tokens_of_text(self.instructions or "")

    def close(self) -> None:
        self._open.close()

    # --- tools ------------------------------------------------------------------------------------------------------

    async def _list_tools(self, context: Any, params: Any) -> types.ListToolsResult:
        loop = asyncio.get_running_loop()
        loop.call_soon(self._app.warm_up)
        who = counted_as(self._app, context), agent_of(self._app, context)
        loop.call_later(BEGIN_SECONDS, self._begin_session, *who)
        tools, more = page_of([RUN, *await self._exposed.listed(context)], params)
        return types.ListToolsResult(tools=tools, next_cursor=more)

    def _begin_session(self, session: str, agent: str) -> None:
        if session in self._begun:
            return
        if len(self._begun) >= MOST_REMEMBERED:
            self._begun.clear()  # who is counted again is still one
        self._begun.add(session)
        task = asyncio.ensure_future(self._app.begin_session(self.own_tokens, agent=agent, client=session))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _call_tool(self, context: Any, params: types.CallToolRequestParams) -> Any:
        scope = context.request.scope if context.request is not None else None
        try:
            async with turn(scope, agent_of(self._app, context), is_run=params.name == RUN.name):
                return await self._called(context, params)
        except QueueFull as error:
            return _text(error.message, is_error=True)

    async def _called(self, context: Any, params: types.CallToolRequestParams) -> Any:
        if params.name != RUN.name:
            return await self._call_exposed(context, params)
        arguments = params.arguments or {}
        unknown = [name for name in arguments if name != "command"]
        if unknown or "command" not in arguments:
            wrong = f"run() has no argument {unknown[0]!r}" if unknown else "run() needs the argument 'command'"
            return _text(f"{wrong}. Send Python code: run(command='ot.tools()')", is_error=True)
        return await self._run(context, arguments["command"])

    async def _run(self, context: Any, command: Any) -> types.CallToolResult:
        app, facts = self._app, facts_of(self._app, context)
        journal = Journal(request_id=request_id_of(context))
        async with _reporting(context, journal):
            answer = await app.run(command, journal=journal, **facts)
        shown = _text(*answer.blocks, is_error=answer.is_error)
        for handle in answer.media:
            shown.content += await _media(app, handle, facts["agent"], facts["token_id"])
        shown.meta = journal.meta or None
        return shown

    async def _call_exposed(self, context: Any, params: types.CallToolRequestParams) -> Any:
        tool = await self._exposed.find(context, params.name)
        if tool is None:
            only = "There is also" if self._exposed else "The one tool is"
            return _text(f"There is no tool {params.name!r}. {only} `run`: run(command='ot.tools()')", is_error=True)
        return await self._exposed.call(context, tool, params)

    async def _complete(self, context: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
        theirs = await self._exposed.complete(context, params)
        if theirs is not None:
            return theirs
        values = await self._resources.completed(context, params)
        shown = values[:MOST_COMPLETIONS]
        completion = types.Completion(values=shown, total=len(values), has_more=len(shown) < len(values))
        return types.CompleteResult(completion=completion)

    # --- changes ----------------------------------------------------------------------------------------------------

    def _heard(self, what: str, uri: str) -> None:
        """A server that is published has something new."""
        if what == "tools":
            self._known = self._state()
            self._changes.publish("resources")
        self._changes.tell(what, uri)

    def _notice(self) -> None:
        """Whatever is called may have changed what there is."""
        before, self._known = self._known, self._state()
        if before[0] != self._known[0]:
            self._changes.publish("resources")
            self._changes.publish("resource", TOOLS)
        if before[1] is not self._known[1]:
            self._changes.publish("prompts")

    def _state(self) -> tuple[int, object]:
        return self._app.registry.version, self._app.settings.snippets


@contextlib.asynccontextmanager
async def _reporting(context: Any, journal: Journal) -> AsyncIterator[None]:
    """While the block runs, tell a client that wants it what the run prints, within 100 ms, and that it is alive.

    Messages are limited in number and length; the answer has all of the text.
    """
    if not wants_progress(context):
        yield
        return
    started, news, printed = time.perf_counter(), asyncio.Event(), ""

    def hear(event: str, what: Any) -> None:
        nonlocal printed
        if event == "output":
            printed = (printed + what)[-MAX_MESSAGE_CHARS:]
            news.set()

    async def report() -> None:
        nonlocal printed
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):
                    await news.wait()
            news.clear()
            seconds, message = time.perf_counter() - started, printed
            printed = ""
            await context.session.report_progress(round(seconds, 3), None, message or _describe(journal, seconds))
            await asyncio.sleep(OUTPUT_SECONDS)

    journal.listener = hear
    task = asyncio.ensure_future(report())
    try:
        yield
    finally:
        task.cancel()


def _describe(journal: Journal, seconds: float) -> str:
    last = f", last {journal.calls[-1][0]}" if journal.calls else ""
    doing = f"; {journal.doing}" if journal.doing else ""
    return f"running for {seconds:.0f} s, {number(len(journal.calls), 'tool call')}{last}{doing}"


async def serve_stdio(app: OneTool) -> None:
    server = OneToolServer(app)
    asyncio.get_running_loop().call_later(IDLE_WARM_UP_SECONDS, app.warm_up)
    with contextlib.closing(server), anyio.CancelScope() as serving:  # what is in flight ends with the input
        connected = protocol_streams(serving.cancel)
        async with watching(app), connected as streams, stdio_server(*streams) as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())


def _text(*blocks: str, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=block) for block in blocks], is_error=is_error
    )


async def _media(app: OneTool, handle: str, agent: str, token_id: str) -> list[types.ContentBlock]:
    """The thing itself; nothing where the code made the handle up."""
    try:
        data, mime_type = await anyio.to_thread.run_sync(app.media.get, handle, agent, token_id)
    except ToolError:
        return []
    text = base64.b64encode(data).decode("ascii")
    match mime_type.partition("/")[0]:
        case "image":
            return [types.ImageContent(type="image", data=text, mime_type=mime_type)]
        case "audio":
            return [types.AudioContent(type="audio", data=text, mime_type=mime_type)]
    blob = types.BlobResourceContents(uri=f"ot://media/{handle}", mime_type=mime_type, blob=text)
    return [types.EmbeddedResource(type="resource", resource=blob)]
