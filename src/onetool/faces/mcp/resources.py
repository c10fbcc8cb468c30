"""What an MCP client can read beside calling `run`: the tools as resources, and a prompt for each snippet.

Both say what `ot.tools`, `ot.help` and the snippets say, through the same bus. After our own come those of the servers
that are published (`exposed`).
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import anyio.to_thread
import mcp_types as types
from mcp import MCPError

from onetool.app import OneTool
from onetool.context import ToolContext
from onetool.errors import ToolError
from onetool.faces.mcp.callers import caller_of
from onetool.faces.mcp.exposed import Exposed
from onetool.render import render
from onetool.snippets import expand_call

OURS, TOOLS, TOOL = "ot://", "ot://tools", "ot://tool/"
MARKDOWN, YAML = "text/markdown", "application/yaml"
PAGE = 500
LONGEST_SHOWN = 200
PROMPT = """\
Call the tool `run` with this command, and tell me what it gives:

{fence}python
{code}
{fence}"""
BACKTICKS = re.compile("`{3,}")
MOST_COMPLETIONS = 100  # as the protocol has it
Item = TypeVar("Item")


class Resources:
    def __init__(self, app: OneTool, exposed: Exposed) -> None:
        self._app, self._exposed = app, exposed

    async def listed(self, context: Any, params: Any) -> types.ListResourcesResult:
        """The list of all tools first, then each tool, a page at a time; the last page has what servers publish."""
        names, more = page_of(await anyio.to_thread.run_sync(self._names, caller_of(self._app, context)), params)
        page = [types.Resource(name=name, uri=_address(name), mime_type=MARKDOWN) for name in names]
        if _start(params) == 0:
            about = "All tools with a line each"
            page.insert(0, types.Resource(name="tools", uri=TOOLS, description=about, mime_type=YAML))
        if more is None:
            page += (await self._exposed.resources(context))[0]
        return types.ListResourcesResult(resources=page, next_cursor=more)

    async def templates(self, context: Any, _params: Any) -> types.ListResourceTemplatesResult:
        about = "All about one tool: signature, arguments, what it returns"
        template = types.ResourceTemplate(
            name="tool", uri_template=f"{TOOL}{{name}}", description=about, mime_type=MARKDOWN
        )
        _, theirs = await self._exposed.resources(context)
        return types.ListResourceTemplatesResult(resource_templates=[template, *theirs])

    async def read(self, context: Any, params: types.ReadResourceRequestParams) -> Any:
        if not params.uri.startswith(OURS) and (answer := await self._exposed.read(context, params)) is not None:
            return answer
        text, kind = await self._content(params.uri, caller_of(self._app, context))
        content = types.TextResourceContents(uri=params.uri, mime_type=kind, text=text)
        return types.ReadResourceResult(contents=[content])

    async def watch(self, context: Any, uri: str) -> Callable[[], Awaitable[None]] | None:
        """What takes it back; None where there is no such resource for this client."""
        if not uri.startswith(OURS):
            return await self._exposed.watch(context, uri)
        name = unquote(uri.removeprefix(TOOL)) if uri.startswith(TOOL) else ""
        return _nothing if uri == TOOLS or await self._is_known(name, caller_of(self._app, context)) else None

    async def completed(self, context: Any, params: types.CompleteRequestParams) -> list[str]:
        """Names of tools that begin like this."""
        if getattr(params.ref, "uri", None) != f"{TOOL}{{name}}":
            return []
        names = await anyio.to_thread.run_sync(self._names, caller_of(self._app, context))
        return [name for name in names if name.startswith(params.argument.value)]

    async def _content(self, uri: str, caller: ToolContext) -> tuple[str, str]:
        if uri == TOOLS:
            tools = render(await caller.call("ot.tools"), flow=True)
            note = self._app.redact(self._app.registry.note_unlisted(caller))
            return f"{tools}\n# Note: {note}" if note else tools, YAML
        name = unquote(uri.removeprefix(TOOL)) if uri.startswith(TOOL) else ""
        if not await self._is_known(name, caller):
            text = await anyio.to_thread.run_sync(self._no_resource, uri, name, caller)
            raise MCPError(types.INVALID_PARAMS, text, {"uri": uri})
        return str(await caller.call("ot.help", query=name, info="full")), MARKDOWN

    async def _is_known(self, name: str, caller: ToolContext) -> bool:
        tool = await anyio.to_thread.run_sync(self._app.registry.known, name)
        return tool is not None and tool.name == name and caller.admits(tool)

    def _names(self, caller: ToolContext) -> list[str]:
        return [entry.name for entry in self._app.registry.entries() if caller.admits(entry)]

    def _no_resource(self, uri: str, name: str, caller: ToolContext) -> str:
        near = [_address(tool) for tool in self._app.registry.only(caller.admits).nearest(name)] if name else []
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        return f"There is no resource {uri[:LONGEST_SHOWN]}.{guess} Read {TOOLS} for all tools."


class Prompts:
    def __init__(self, app: OneTool, exposed: Exposed) -> None:
        self._app, self._exposed = app, exposed

    async def listed(self, context: Any, params: Any) -> types.ListPromptsResult:
        snippets = self._app.settings.snippets
        theirs = [
            prompt.model_copy(update={"name": name})
            for name, (_, prompt) in (await self._exposed.prompts(context)).items()
        ]
        prompts, more = page_of([*(_prompt(name, snippets[name]) for name in sorted(snippets)), *theirs], params)
        return types.ListPromptsResult(prompts=prompts, next_cursor=more)

    async def got(self, context: Any, params: types.GetPromptRequestParams) -> Any:
        if (answer := await self._exposed.prompt(context, params)) is not None:
            return answer
        snippets, name = self._app.settings.snippets, params.name.removeprefix("$")
        try:
            code = await anyio.to_thread.run_sync(expand_call, name, dict(params.arguments or {}), snippets)
        except ToolError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        fence = "`" * (1 + max(map(len, BACKTICKS.findall(code)), default=2))  # longer than any in the code
        message = types.TextContent(type="text", text=PROMPT.format(code=code, fence=fence))
        return types.GetPromptResult(
            description=snippets[name].description, messages=[types.PromptMessage(role="user", content=message)]
        )


def page_of(items: Sequence[Item], params: Any) -> tuple[list[Item], str | None]:
    """A page of a list, and where the next begins."""
    start = _start(params)
    return list(items[start : start + PAGE]), str(start + PAGE) if start + PAGE < len(items) else None


async def _nothing() -> None:
    """Our own resources need no watching."""


def _start(params: Any) -> int:
    cursor = params.cursor if params is not None else None
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):  # noqa: PLR2004 - no list is that long
        raise MCPError(types.INVALID_PARAMS, f"{cursor[:50]!r} is no cursor of this list. Leave it out to start anew.")
    return int(cursor)


def _address(name: str) -> str:
    return f"{TOOL}{quote(name, safe='')}"


def _prompt(name: str, snippet: Any) -> types.Prompt:
    arguments = [
        types.PromptArgument(name=key, description=param.description or None, required=param.required)
        for key, param in snippet.params.items()
    ]
    return types.Prompt(name=name, description=snippet.description or None, arguments=arguments)
