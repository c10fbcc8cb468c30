"""MCP content for media handles in the values of runs and tools."""

import base64
from collections.abc import Iterable

import mcp_types as types
from anyio.to_thread import run_sync as run_in_thread

from onetool.app import OneTool
from onetool.errors import ToolError
from onetool_child.media import get_content_kind


async def load_media(
    app: OneTool, handles: Iterable[str], agent: str, token_id: str
) -> list[types.ContentBlock]:
    """Return the content for media handles, without handles that do not exist."""
    return [block for handle in handles for block in await _load(app, handle, agent, token_id)]


async def _load(app: OneTool, handle: str, agent: str, token_id: str) -> list[types.ContentBlock]:
    try:
        data, mime_type = await run_in_thread(app.media.get, handle, agent, token_id)
    except ToolError:
        return []
    text = base64.b64encode(data).decode("ascii")
    match get_content_kind(mime_type):
        case "image":
            return [types.ImageContent(type="image", data=text, mime_type=mime_type)]
        case "audio":
            return [types.AudioContent(type="audio", data=text, mime_type=mime_type)]
    blob = types.BlobResourceContents(uri=f"ot://media/{handle}", mime_type=mime_type, blob=text)
    return [types.EmbeddedResource(type="resource", resource=blob)]
