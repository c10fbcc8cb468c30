"""The MCP server with one tool, `run(command)`, and the tools that `--expose` and `expose` publish.

The SDK manages sessions and transports. A failed run is a result with `isError`, never a protocol
error. Cells are started after the client has received the tool list, so that they do not delay the
first response.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    closing,
)
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from anyio.to_thread import run_sync as run_in_thread
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    RequestStateBoundary,
    RequestStateSecurity,
)
from mcp.server.stdio import stdio_server

from onetool.app import OneTool
from onetool.core.tool import Tool
from onetool.errors import ToolError
from onetool.runs.questions import Question
from onetool.runs.run_output import ClientChannel, RunOutput
from onetool.server.fair_queue import FairQueue, QueueFull, turn
from onetool.server.logging_bridge import EventLog, forward_logging
from onetool.server.mcp.client_identity import (
    MAX_NAME_CHARS,
    HttpClients,
    LocalClient,
    client_name,
    get_agent,
    get_caller,
    get_progress,
    get_request_id,
    get_session,
    get_token_id,
    make_approver,
    note_client,
    request_meta,
    session_key,
)
from onetool.server.mcp.exposed_tools import ExposedTools
from onetool.server.mcp.publish import build_definition, load_media
from onetool.server.mcp.relay import (
    LEVEL,
    ClientMessages,
    ClientRelay,
    can_ask,
    create_relay,
    read_form,
    report_progress,
    supports_sampling,
    wants_log,
)
from onetool.server.mcp.resources import (
    MAX_COMPLETIONS,
    TOOLS,
    ChangeNotifier,
    SnippetPrompts,
    ToolResources,
    paginate,
    parse_cursor,
)
from onetool.server.settings_watcher import watching
from onetool.server.stdio import protocol_streams
from onetool.sources.upstream.relay import Relay
from onetool.state.stats.details import count_tokens
from onetool.util.bounded_dict import BoundedDict
from onetool.util.large_data import run_in_thread_if
from onetool.util.tasks import BackgroundTasks
from onetool.util.version import __version__
from onetool_child.json_types import JsonMapping

MAX_SESSIONS = 10_000
SESSION_DELAY_SECONDS = (
    0.5  # delay after the tool list, so that bookkeeping does not slow down the client
)
MAX_PAGE_CHARS = 4_000_000  # of the published definitions in one answer
REQUEST_STATE_SECONDS = 600.0  # for which a client may repeat a request
MAX_PENDING_RUNS = 16  # that wait for the client, each with a cell
IDLE_WARM_UP_SECONDS = 3.0  # for clients that never list tools

# How long clients may cache lists unless notified of a change. Lists depend on the agent.
LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
CACHE_HINTS: Any = {
    **dict.fromkeys(LISTS, CacheHint(ttl_ms=60_000)),
    "resources/read": CacheHint(),
    "server/discover": CacheHint(ttl_ms=300_000),
}

DESCRIPTION = """\
Run Python code that can call all connected tools. Tools are functions in packs: pack.tool(argument=value).

Find a tool: ot.search(query="what it is for"); ot.tools() and ot.packs() list all.
See its signature: ot.help(query="pack.tool").
The value of the last expression (or of `return`) is the result, after any printed text. Example:

rows = machine.disk()
{"free": rows["free"], "memory": machine.memory(unit="GiB")["available"]}

A large value is stored and returned as a handle: ot.result(handle="...", search="...") returns matching lines, \
ot.load(handle="...") loads all of it in code, to return a part.

The code is Python with the standard library, in a sandbox without network, processes or files; side effects go \
through tools. Make several calls in one run, filter in code, return only what you need.\
"""
INSTRUCTIONS = """\
OneTool puts all tools behind one tool, `run`, which executes Python. Start with \
run('ot.search(query="what you want to do")') to find a tool, then run('ot.help(query="pack.tool")') to see its \
signature. Errors say what is wrong and how to fix it.\
"""
RUN = types.Tool(
    name="run",
    title="Run Python that calls tools",
    description=DESCRIPTION,
    input_schema={
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "Python code, e.g. ot.tools()"}
        },
        "required": ["command"],
        "additionalProperties": False,
    },
)


def forward_sdk_logging(log: EventLog) -> AbstractContextManager[None]:
    """Forward warnings of the SDK to the log."""
    return forward_logging(log, "mcp.server", "mcp.server", "mcp.shared", level=logging.WARNING)


class KeptKeyCodec:
    """Seals request states with a key that outlives the process and is read when needed."""

    def __init__(self, app: OneTool) -> None:
        self._app = app
        self._codec: AESGCMRequestStateCodec | None = None

    def _load(self) -> AESGCMRequestStateCodec:
        if self._codec is None:
            self._codec = AESGCMRequestStateCodec([self._app.state.load_key("request state")])
        return self._codec

    def seal(self, payload: bytes) -> str:
        return self._load().seal(payload)

    def unseal(self, token: str) -> bytes:
        return self._load().unseal(token)


class OneToolServer(Server[Any]):
    """The SDK's server with OneTool's handlers. The caller of the constructor must close it."""

    def __init__(
        self, app: OneTool, *, forwards_logging: bool = True, queue: FairQueue | None = None
    ) -> None:
        self._app = app
        self._queue = queue
        self._counted_sessions: BoundedDict[str, None] = BoundedDict(MAX_SESSIONS)
        self.http_clients = HttpClients()
        self._session_tasks = BackgroundTasks()
        self._exposed = ExposedTools(app, self._on_server_change)
        self._client_relay = ClientRelay(MAX_PENDING_RUNS, self._answer_question)
        self._resources, self._prompts = (
            ToolResources(app, self._exposed),
            SnippetPrompts(app, self._exposed),
        )
        self._changes = ChangeNotifier(self._resources.watch)
        self._known = self._get_state()
        self._open = ExitStack()
        if forwards_logging:
            self._open.enter_context(forward_sdk_logging(app.log))
        self._open.callback(self._exposed.close)
        self._open.callback(self._client_relay.close)
        self._open.callback(self.end_streams)
        self._open.callback(app.bus.subscribe(lambda _event: self._check_changes()))
        super().__init__(
            "onetool",
            version=__version__,
            instructions=self._build_instructions(),
            cache_hints=CACHE_HINTS,
            get_tool_input_schema=self._exposed.schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._resources.list_all,
            on_list_resource_templates=self._resources.list_templates,
            on_read_resource=self._resources.read,
            on_list_prompts=self._prompts.list_all,
            on_get_prompt=self._prompts.get,
            on_completion=self._complete,
            on_subscriptions_listen=self._changes.listen,
        )
        seconds = max(REQUEST_STATE_SECONDS, app.settings.approvals.ttl)
        security = RequestStateSecurity(codec=KeptKeyCodec(app), ttl=seconds)
        security.bind_principal = lambda context: (
            f"{get_agent(app, context)}:{get_token_id(context)}"
        )
        self.middleware.append(RequestStateBoundary(security, default_audience=self.name))
        self.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _set_log_level)
        if self._exposed:
            self._publish()

    def _publish(self) -> None:
        """Register the handlers that only servers with exposed tools need."""

        async def register_session(context: Any, _params: Any) -> None:
            self._changes.register_session(get_session(context))

        self.add_request_handler(
            "resources/subscribe", types.SubscribeRequestParams, self._changes.subscribe
        )
        self.add_request_handler(
            "resources/unsubscribe", types.UnsubscribeRequestParams, self._changes.unsubscribe
        )
        self.add_notification_handler(
            "notifications/initialized", types.NotificationParams, register_session
        )

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *rest: Any, **named: Any
    ) -> InitializationOptions:
        """Enable change notifications if tools are exposed, and use the current instructions."""
        self.instructions = self._build_instructions()
        is_exposed = bool(self._exposed)
        options = notification_options or NotificationOptions(is_exposed, is_exposed, is_exposed)
        return super().create_initialization_options(options, *rest, **named)

    def _build_instructions(self) -> str:
        return "\n\n".join(
            filter(None, (INSTRUCTIONS, self._app.settings.prompts.instructions.strip()))
        )

    def end_streams(self) -> None:
        """End the streams of listening clients. Active requests continue."""
        self._changes.close()

    @property
    def own_tokens(self) -> int:
        """Number of tokens that OneTool's definition takes in a model's context."""
        return count_tokens(RUN.model_dump(by_alias=True, exclude_none=True)) + count_tokens(
            self.instructions or ""
        )

    def close(self) -> None:
        self._open.close()

    # --- tools ------------------------------------------------------------------------------------

    async def _list_tools(self, context: Any, params: Any) -> types.ListToolsResult:
        loop = asyncio.get_running_loop()
        loop.call_soon(self._app.cells.warm_up)
        self._note(context)
        identity = session_key(self._app, context), get_agent(self._app, context)
        loop.call_later(SESSION_DELAY_SECONDS, self._begin_session, *identity)
        page, more = paginate([None, *await self._exposed.list_tools(context)], params)
        tools = await run_in_thread_if(len(page) > 1, partial(_build_definitions, page))
        if len(tools) < len(page):
            more = str(parse_cursor(params) + len(tools))
        return types.ListToolsResult(tools=tools, next_cursor=more)

    def _note(self, context: Any) -> LocalClient | None:
        """Record who made this request: a client of the daemon, which is returned, or of HTTP."""
        if context.request is not None:
            self.http_clients.note(
                context.request,
                client_name(context)[:MAX_NAME_CHARS],
                get_agent(self._app, context),
            )
        return note_client(self._app, context)

    def _begin_session(self, session: str, agent: str) -> None:
        if session in self._counted_sessions:
            return
        self._counted_sessions[session] = None  # the oldest are forgotten, and may be counted again
        self._session_tasks.start(record_session(self._app, self.own_tokens, agent, session))

    async def _call_tool(self, context: Any, params: types.CallToolRequestParams) -> Any:
        try:
            async with self._take_turn(context, is_run=params.name == RUN.name):
                return await self._dispatch(context, params)
        except QueueFull as error:
            return _text(error.message, is_error=True)

    def _take_turn(self, context: Any, *, is_run: bool) -> AbstractAsyncContextManager[None]:
        """Wait for a turn among all agents or, in the daemon, among the runs of all clients."""
        client = self._note(context)
        if client is not None and self._queue is not None and is_run:
            return self._queue.turn(str(id(client)))
        scope = context.request.scope if context.request is not None else None
        return turn(scope, get_agent(self._app, context), is_run=is_run)

    async def _dispatch(self, context: Any, params: types.CallToolRequestParams) -> Any:
        if params.name != RUN.name:
            return await self._call_exposed(context, params)
        arguments = params.arguments or {}
        unknown = [name for name in arguments if name != "command"]
        if unknown or "command" not in arguments:
            problem = (
                f"unknown argument {unknown[0]!r}" if unknown else "missing argument 'command'"
            )
            hint = "send Python code, for example run(command='ot.tools()')"
            return _text(f"invalid call of run: {problem}\nHint: {hint}", is_error=True)
        run = partial(self._run, context, arguments["command"])
        can_sample = self._app.settings.llm.sampling and supports_sampling(context)
        if not (can_ask(context) or can_sample or params.request_state):
            return await run()
        outcome = await self._client_relay.run(context, params, run)
        return outcome if isinstance(outcome, types.InputRequiredResult) else outcome[1]

    async def _run(
        self, context: Any, command: Any, relay: Relay | None = None
    ) -> types.CallToolResult:
        """Run a command; `relay` sends requests of its tools to the client."""
        app = self._app
        caller = get_caller(app, context)
        channel = ClientChannel(get_request_id(context), self._exposed.exposure.hidden)
        output = RunOutput(channel)
        client = None
        if relay is not None or wants_log(context):
            client = ClientMessages(relay or create_relay(context), app.redact, RUN.name)
            channel.log = client.log if wants_log(context) else None
            if relay is not None:
                channel.ask = client.ask
                channel.ask_client = relay.ask
                channel.approve = make_approver(app, context, client.approve)
        progress = relay.progress if relay else get_progress(context)
        async with report_progress(progress, output):
            answer = await app.runs.run(command, caller, output, meta=request_meta(context))
        if client is not None:
            await client.flush()
        result = _text(*answer.blocks, is_error=answer.is_error)
        result.content += await load_media(app, answer.media, caller.agent, caller.token_id)
        result.meta = output.meta or None
        return result

    async def _answer_question(
        self, context: Any, state: str, answers: JsonMapping
    ) -> types.CallToolResult:
        """Apply the answer to a question that another process asked, and continue its run."""
        caller = get_caller(self._app, context)
        identity = caller.agent, caller.token_id
        forms = (answer for answer in answers.values() if isinstance(answer, types.ElicitResult))
        response = next(forms, None)

        async def get_answer(question: Question) -> JsonMapping | None:
            return read_form(response, question.form)

        approver = make_approver(self._app, context, get_answer)
        if approver is None:
            return _text(
                "answers of this client do not count: see approvals.via of its agent", is_error=True
            )
        try:
            outcome = await self._app.runs.answer_question(state, *identity, approver)
        except ToolError as error:
            return _text(self._app.redact(f"{type(error).__name__}: {error}"), is_error=True)
        if isinstance(outcome, str):
            return _text(outcome)
        result = _text(*outcome.blocks, is_error=outcome.error is not None)
        result.content += await load_media(self._app, outcome.media, *identity)
        return result

    async def _call_exposed(self, context: Any, params: types.CallToolRequestParams) -> Any:
        tool = await self._exposed.find(context, params.name)
        if tool is None:
            return _text(
                f"no tool {params.name!r}\nHint: list all tools with run(command='ot.tools()')",
                is_error=True,
            )
        return await self._exposed.call(context, tool, params)

    async def _complete(
        self, context: Any, params: types.CompleteRequestParams
    ) -> types.CompleteResult:
        completion = await self._exposed.complete(context, params)
        if completion is not None:
            return completion
        values = await self._resources.complete(context, params)
        page = values[:MAX_COMPLETIONS]
        result = types.Completion(values=page, total=len(values), has_more=len(page) < len(values))
        return types.CompleteResult(completion=result)

    # --- changes ----------------------------------------------------------------------------------

    def _on_server_change(self, what: str, uri: str) -> None:
        """Notify clients of a change of an exposed server."""
        if what == "tools":
            self._known = self._get_state()
            self._changes.publish("resources")
        self._changes.notify_all(what, uri)

    def _check_changes(self) -> None:
        """Notify clients if a call changed the tools or snippets."""
        before = self._known
        self._known = self._get_state()
        if before[0] != self._known[0]:
            self._changes.publish("resources")
            self._changes.publish("resource", TOOLS)
        if before[1] is not self._known[1]:
            self._changes.publish("prompts")

    def _get_state(self) -> tuple[int, object]:
        return self._app.registry.version, self._app.settings.snippets


async def _set_log_level(context: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
    get_session(context).state[LEVEL] = params.level
    return types.EmptyResult()


def _build_definitions(tools: Iterable[tuple[str, Tool] | None]) -> list[types.Tool]:
    """Return as many published definitions as fit, at least one; None stands for `run`."""
    definitions: list[types.Tool] = []
    chars_left = MAX_PAGE_CHARS
    for entry in tools:
        definition = RUN if entry is None else build_definition(*entry)
        chars_left -= len(str(definition))
        if definitions and chars_left < 0:
            break
        definitions.append(definition)
    return definitions


async def record_session(
    app: OneTool, own_tokens: int, agent: str = "default", session: str = ""
) -> None:
    """Discover all tools, and record the tokens of the definitions that a client saves."""
    app.servers.keeps_running = True
    app.bundles.keeps_running = True
    await app.discover()
    stored = app.bundles.definition_tokens()
    await run_in_thread(
        app.telemetry.begin_session, app.registry, stored, own_tokens, agent, session
    )


async def serve_stdio(app: OneTool) -> None:
    with closing(OneToolServer(app)) as server:
        app.runs.continue_paused()
        async with watching(app):
            await serve_connection(app, server, protocol_streams)


async def serve_connection(
    app: OneTool, server: OneToolServer, connect: Callable[..., Any]
) -> None:
    """Serve one client.

    `connect` takes a function to call at the end of input and yields the streams.
    """
    warming_up = asyncio.get_running_loop().call_later(IDLE_WARM_UP_SECONDS, app.cells.warm_up)
    try:
        with anyio.CancelScope() as serving:  # active requests end with the input
            async with (
                connect(serving.cancel) as streams,
                stdio_server(*streams) as (reader, writer),
            ):
                await server.run(reader, writer, server.create_initialization_options())
    finally:
        warming_up.cancel()


def _text(*blocks: str, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=block) for block in blocks], is_error=is_error
    )
