"""Large results of direct calls: stored like those of runs, cut, and linked as a resource."""

import json

import mcp_types as types
from anyio.to_thread import run_sync as run_in_thread

from onetool.app import OneTool
from onetool.core.tool import Tool
from onetool.errors import ToolError
from onetool.server.mcp.publish import dump
from onetool.util.context import ToolContext
from onetool.util.sanitize import sanitize_text
from onetool_child.data import record_lines
from onetool_child.json_types import JsonObject

RESULT = "ot://result/"


async def cut_large_result(
    app: OneTool, tool: Tool, caller: ToolContext, answer: JsonObject, *, is_untrusted: bool
) -> JsonObject:
    """Return the result with at most `output.max_inline_size` bytes of text, and a link to all of
    it.

    Structured content stays if the tool declares a schema for it, because clients validate it.
    """
    limit = app.settings.output.max_inline_size
    blocks = answer.get("content") or []
    text = "\n".join(block["text"] for block in blocks if block.get("type") == "text")
    data = text.encode("utf-8", "replace")
    if not limit or len(data) <= limit:
        return answer
    note, links = await _store(app, tool, caller, text, is_untrusted=is_untrusted)
    cut = types.TextContent(
        type="text", text=f"{data[:limit].decode('utf-8', 'ignore')}\n\n[cut: {note}]"
    )
    others = [block for block in blocks if block.get("type") != "text"]
    shown = {
        key: value
        for key, value in answer.items()
        if key != "structuredContent" or tool.output is not None
    }
    return {**shown, "content": [dump(cut), *map(dump, links), *others]}


async def _store(
    app: OneTool, tool: Tool, caller: ToolContext, text: str, *, is_untrusted: bool
) -> tuple[str, list[types.ResourceLink]]:
    """Store the text. Return a note on where it is, and a link to it."""
    labels = caller.run.labels

    def put() -> JsonObject:
        stored, is_json = _split_records(text)
        return app.results.put(
            stored,
            tool=tool.name,
            agent=caller.agent_id,
            token_id=caller.token_id,
            is_json=is_json,
            is_untrusted=is_untrusted,
            labels=None if labels is None else labels.to_json(),
        )

    try:
        stored = await run_in_thread(put)
    except ToolError as error:
        return f"the result has {len(text)} characters and cannot be stored: {error.message}", []
    handle = stored["handle"]
    uri = f"{RESULT}{stored['handle']}"
    link = types.ResourceLink(
        type="resource_link",
        name=f"result of {tool.name}",
        uri=uri,
        mime_type="text/plain",
        size=stored["size_bytes"],
    )
    advice = f'run(command=\'ot.result(handle="{handle}", search="...")\') returns matching lines'
    return f"the result has {len(text)} characters; {uri} has all of it, and {advice}", [link]


def _split_records(text: str) -> tuple[str, bool]:
    """Return JSON with one record per line, and whether the text is JSON."""
    try:
        value = json.loads(text)
        return (record_lines(value), True) if isinstance(value, dict | list) else (text, False)
    except (ValueError, RecursionError):
        return text, False


async def read_result(app: OneTool, uri: str, caller: ToolContext) -> str:
    """Return the text of a stored result; raise ToolError if the agent has none with this handle."""
    owner = uri.removeprefix(RESULT), caller.agent_id, caller.token_id
    source, is_untrusted, _labels = await run_in_thread(app.results.origin, *owner)
    value = await run_in_thread(app.results.load, *owner)
    text = value if isinstance(value, str) else await run_in_thread(record_lines, value)
    return await run_in_thread(sanitize_text, text, source) if is_untrusted else text
