"""What a server answered, as data that a program can use. What cannot be text is kept, and known by a handle.

Structured content is taken as it is; text that is JSON becomes data; one block is that block, several are a list.
"""

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any

from ot.errors import OutputInvalid, ToolError
from ot.proxy.definitions import Definition

Keep = Callable[[bytes, str], str]  # content and its type; gives a handle
LARGEST_JSON = 8 << 20


def value_of(result: Any, definition: Definition, keep: Keep) -> Any:
    """`keep` stores bytes of a kind and gives a handle. Raises what the server says has failed."""
    if result.is_error:
        raise ToolError(_text_of(result.content) or f"{definition.name} failed and did not say why")
    if result.structured_content is not None:
        return _unwrapped(result.structured_content, definition)
    if definition.output_schema is not None:
        raise OutputInvalid(f"{definition.name} promises structured content and gave none")
    parts = [part(block, keep) for block in result.content]
    return parts[0] if len(parts) == 1 else parts or None


def _unwrapped(content: Any, definition: Definition) -> Any:
    is_wrapper = definition.is_wrapped and isinstance(content, dict) and content.keys() == {"result"}
    return content["result"] if is_wrapper else content


def _text_of(blocks: list[Any]) -> str:
    return "\n".join(block.text for block in blocks if block.type == "text").strip()


def part(block: Any, keep: Keep) -> Any:
    match block.type:
        case "text":
            return _parsed(block.text)
        case "image" | "audio":
            return _media(block.type, block.data, block.mime_type, keep)
        case "resource":
            return resource(block.resource, keep)
        case "resource_link":
            return block.model_dump(mode="json", by_alias=True, exclude_none=True)
    return block.model_dump(mode="json", by_alias=True, exclude_none=True)


def resource(content: Any, keep: Keep) -> dict[str, Any]:
    about = {"uri": str(content.uri), "mimeType": content.mime_type or ""}
    if hasattr(content, "text"):
        return {**about, "text": content.text}
    return {**about, **_media("blob", content.blob, content.mime_type or "application/octet-stream", keep)}


def _media(kind: str, data: str, mime_type: str, keep: Keep) -> dict[str, Any]:
    try:
        content = base64.b64decode(data, validate=False)
    except binascii.Error:
        raise OutputInvalid(f"the server sent {kind} that is no base64") from None
    return {"type": kind, "mimeType": mime_type, "size": len(content), "media": keep(content, mime_type)}


def _parsed(text: str) -> Any:
    """Only objects and lists: a text that happens to be a number is still a text."""
    start = text.lstrip()[:1]
    if start not in {"{", "["} or len(text) > LARGEST_JSON:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
