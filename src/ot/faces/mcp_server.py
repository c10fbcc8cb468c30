"""The MCP door: a server with exactly one tool, `run(command)`. Sessions and transports are the SDK's.

A run that fails is an answer with `isError`, never a protocol error. Cells are got ready once the client has seen the
tool list, so that nothing stands between a client and its first answer.
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from ot.app import OneTool
from ot.errors import ToolError
from ot.faces.mcp_resources import Prompts, Resources
from ot.faces.stdio import protocol_streams
from ot.runner.answer import Journal
from ot.stats.tokens import tokens_of, tokens_of_text
from ot.version import __version__

PROGRESS_SECONDS = 1.0
BEGIN_SECONDS = 0.5  # after the list of tools, so that a client is not kept waiting by what can be done later
IDLE_WARM_UP_SECONDS = 3.0  # for clients that never list tools

OURS, PROTOCOL = {"progress_token", "progressToken"}, "io.modelcontextprotocol/"

DESCRIPTION = """\
Run Python code that can call every tool there is. Tools are functions in packs: pack.tool(argument=value).

Find tools: ot.tools(pattern="..."), ot.packs(), ot.help(query="name or words").
The value of the last expression (or of `return`) is the answer, printed text comes before it. Example:

rows = machine.disk()
{"free": rows["free"], "memory": machine.memory(unit="GiB")["available"]}

The code is full Python with the standard library, in a fresh process without network, programs or files: tools act, \
code computes. Make several calls in one run, filter in code, return only what you need.\
"""
INSTRUCTIONS = """\
OneTool puts all tools behind one tool, `run`, which executes Python. Start with run("ot.help()") to see how to find \
tools, or run("ot.tools()") to list them. An error says what was wrong and what to write instead.\
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


def build_server(app: OneTool) -> Server[Any]:
    resources, prompts = Resources(app), Prompts(app)
    instructions = _instructions(app)
    begun: list[asyncio.Task[None]] = []

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        loop = asyncio.get_running_loop()
        loop.call_soon(app.warm_up)
        loop.call_later(BEGIN_SECONDS, begin_session)
        return types.ListToolsResult(tools=[RUN])

    def begin_session() -> None:
        if not begun:
            begun.append(asyncio.ensure_future(app.begin_session(_own_tokens(instructions))))

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name != RUN.name:
            return _text(
                f"There is no tool {params.name!r}. The one tool is `run`: run(command='ot.tools()')",
                is_error=True,
            )
        arguments = params.arguments or {}
        unknown = [name for name in arguments if name != "command"]
        if unknown or "command" not in arguments:
            wrong = f"run() has no argument {unknown[0]!r}" if unknown else "run() needs the argument 'command'"
            return _text(f"{wrong}. Send Python code: run(command='ot.tools()')", is_error=True)
        journal = Journal()
        async with _progress(context, journal):
            answer = await app.run(arguments["command"], journal=journal, meta=_request_meta(context))
        shown = _text(*answer.blocks, is_error=answer.is_error)
        shown.content += [block for handle in answer.media for block in await _media(app, handle)]
        shown.meta = journal.meta or None
        return shown

    return Server(
        "onetool",
        version=__version__,
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=resources.listed,
        on_list_resource_templates=resources.templates,
        on_read_resource=resources.read,
        on_list_prompts=prompts.listed,
        on_get_prompt=prompts.got,
    )


def _own_tokens(instructions: str) -> int:
    """What OneTool itself costs in a model's context."""
    return tokens_of(RUN.model_dump(by_alias=True, exclude_none=True)) + tokens_of_text(instructions)


async def serve_stdio(app: OneTool) -> None:
    server = build_server(app)
    asyncio.get_running_loop().call_later(IDLE_WARM_UP_SECONDS, app.warm_up)
    async with protocol_streams() as streams, stdio_server(*streams) as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


def _instructions(app: OneTool) -> str:
    own = app.settings.prompts.instructions.strip()
    return f"{INSTRUCTIONS}\n\n{own}" if own else INSTRUCTIONS


def _text(*blocks: str, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=block) for block in blocks], is_error=is_error
    )


def _request_meta(context: Any) -> dict[str, Any]:
    """What the client says about its request to those who answer it; not what is between it and us."""
    said = dict(context.meta or {})
    return {key: value for key, value in said.items() if key not in OURS and not key.startswith(PROTOCOL)}


async def _media(app: OneTool, handle: str) -> list[types.ContentBlock]:
    """The thing itself; nothing where the code made the handle up."""
    try:
        data, mime_type = await anyio.to_thread.run_sync(app.media.read, handle, "default")
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


@contextlib.asynccontextmanager
async def _progress(context: Any, journal: Journal) -> AsyncIterator[None]:
    """Tell the client every second that the run is alive, and what it has called; only where the client asked."""
    if not (context.meta and context.meta.get("progress_token") is not None):
        yield
        return
    ticker = asyncio.ensure_future(_tick(context.session, journal))
    try:
        yield
    finally:
        ticker.cancel()


async def _tick(session: Any, journal: Journal) -> None:
    seconds = 0.0
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        seconds += PROGRESS_SECONDS
        last = f", last {journal.calls[-1][0]}" if journal.calls else ""
        last += f"; {journal.doing}" if journal.doing else ""
        await session.report_progress(
            seconds, None, f"running for {seconds:g} s, {len(journal.calls)} tool calls{last}"
        )
