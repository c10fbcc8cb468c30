"""What an MCP client can read beside calling `run`: the tools as resources, and a prompt for each snippet.

Both say what `ot.tools`, `ot.help` and the snippets say, through the same bus. The server is in `mcp_server`.
"""

import re
from typing import Any
from urllib.parse import quote, unquote

import anyio.to_thread
import mcp_types as types
from mcp import MCPError

from ot.app import OneTool
from ot.errors import ToolError
from ot.registry import nearest
from ot.render import render
from ot.snippets import expand_call

TOOLS, TOOL = "ot://tools", "ot://tool/"
MARKDOWN, YAML = "text/markdown", "application/yaml"
PAGE = 500
LONGEST_SHOWN = 200
PROMPT = """\
Call the tool `run` with this command, and tell me what it gives:

{fence}python
{code}
{fence}"""
BACKTICKS = re.compile("`{3,}")


class Resources:
    def __init__(self, app: OneTool) -> None:
        self._app = app

    async def listed(self, _context: Any, params: Any) -> types.ListResourcesResult:
        """The list of all tools first, then each tool, a page at a time."""
        names, start = self._app.registry.names(), _start(params)
        page = [_resource(name) for name in names[start : start + PAGE]]
        whole = types.Resource(name="tools", uri=TOOLS, description="All tools with a line each", mime_type=YAML)
        more = str(start + PAGE) if start + PAGE < len(names) else None
        return types.ListResourcesResult(resources=page if start else [whole, *page], next_cursor=more)

    async def templates(self, _context: Any, _params: Any) -> types.ListResourceTemplatesResult:
        about = "All about one tool: signature, arguments, what it returns"
        template = types.ResourceTemplate(
            name="tool", uri_template=f"{TOOL}{{name}}", description=about, mime_type=MARKDOWN
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read(self, _context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        text, kind = await self._content(params.uri)
        content = types.TextResourceContents(uri=params.uri, mime_type=kind, text=text)
        return types.ReadResourceResult(contents=[content])

    async def _content(self, uri: str) -> tuple[str, str]:
        if uri == TOOLS:
            return render(await self._asked("ot.tools", {}), flow=True), YAML
        name = unquote(uri.removeprefix(TOOL)) if uri.startswith(TOOL) else ""
        if name not in self._app.registry:
            raise MCPError(types.INVALID_PARAMS, self._no_resource(uri, name))
        return str(await self._asked("ot.help", {"query": name, "info": "full"})), MARKDOWN

    def _no_resource(self, uri: str, name: str) -> str:
        near = [_address(tool) for tool in nearest(name, self._app.registry.names())] if name else []
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        return f"There is no resource {uri[:LONGEST_SHOWN]}.{guess} Read {TOOLS} for all tools."

    async def _asked(self, name: str, arguments: dict[str, Any]) -> Any:
        return (await self._app.bus.call_tool(name, arguments, self._app.context())).unwrap()


class Prompts:
    def __init__(self, app: OneTool) -> None:
        self._app = app

    async def listed(self, _context: Any, params: Any) -> types.ListPromptsResult:
        snippets, start = self._app.settings.snippets, _start(params)
        prompts = [_prompt(name, snippets[name]) for name in sorted(snippets)[start : start + PAGE]]
        more = str(start + PAGE) if start + PAGE < len(snippets) else None
        return types.ListPromptsResult(prompts=prompts, next_cursor=more)

    async def got(self, _context: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        snippets, name = self._app.settings.snippets, params.name.removeprefix("$")
        try:
            code = await anyio.to_thread.run_sync(expand_call, name, dict(params.arguments or {}), snippets)
        except ToolError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        message = types.TextContent(type="text", text=PROMPT.format(code=code, fence=_fence(code)))
        return types.GetPromptResult(
            description=snippets[name].description, messages=[types.PromptMessage(role="user", content=message)]
        )


def _fence(code: str) -> str:
    """Longer than any in the code."""
    return "`" * (1 + max(map(len, BACKTICKS.findall(code)), default=2))


def _start(params: Any) -> int:
    cursor = params.cursor if params is not None else None
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):  # noqa: PLR2004 - no list is that long
        raise MCPError(types.INVALID_PARAMS, f"{cursor[:50]!r} is no cursor of this list. Leave it out to start anew.")
    return int(cursor)


def _resource(name: str) -> types.Resource:
    return types.Resource(name=name, uri=_address(name), mime_type=MARKDOWN)


def _address(name: str) -> str:
    return f"{TOOL}{quote(name, safe='')}"


def _prompt(name: str, snippet: Any) -> types.Prompt:
    arguments = [
        types.PromptArgument(name=key, description=param.description or None, required=param.required)
        for key, param in snippet.params.items()
    ]
    return types.Prompt(name=name, description=snippet.description or None, arguments=arguments)
