"""Convert results of upstream servers to values. Binary content is stored and replaced by a handle.

Structured content is used as it is, text that is JSON is parsed, and several blocks become a list.
"""

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any

from onetool.errors import OutputInvalid, ToolError
from onetool.sources.upstream.definitions import Definition
from onetool.util.large_data import RawJson
from onetool_child.json_types import JsonObject
from onetool_child.messages import has_few_values

StoreMedia = Callable[[bytes, str], str]  # content and MIME type -> handle
LARGE_CHARS = 1 << 15  # characters: converted in a thread


def convert_result(result: Any, definition: Definition, store_media: StoreMedia) -> Any:
    """Return the value of a result; raise the error that the server reports."""
    if result.is_error:
        text = "\n".join(block.text for block in result.content if block.type == "text").strip()
        raise ToolError(text or f"{definition.name} failed without an error message")
    value = result.structured_content
    if value is None:
        if definition.output_schema is not None:
            raise OutputInvalid(
                f"{definition.name} returned no structured content, which its output schema"
                " requires"
            )
        parts = [convert_block(block, store_media) for block in result.content]
        if len(parts) != 1:
            return parts or None
        value = parts[0]
        is_unparsed = (
            isinstance(value, str) and _looks_like_json(value) and not has_few_values(value)
        )
        return (
            RawJson.from_text(value) if is_unparsed else value
        )  # large data is parsed where it is used
    if definition.is_wrapped and isinstance(value, dict) and value.keys() == {"result"}:
        value = value["result"]
    media = [] if definition.output_schema is not None else _convert_media(result, store_media)
    return [value, *media] if media else value


def find_omitted(result: Any, definition: Definition, store_media: StoreMedia) -> list[Any]:
    """Return the content that the value does not include, because it does not fit the output
    schema.
    """
    if result.structured_content is None or definition.output_schema is None:
        return []
    return _convert_media(result, store_media)


def _convert_media(result: Any, store_media: StoreMedia) -> list[Any]:
    return [convert_block(block, store_media) for block in result.content if block.type != "text"]


def is_expensive(result: Any) -> bool:
    """Return whether converting the result would block the event loop."""
    return any(block.type != "text" or len(block.text) > LARGE_CHARS for block in result.content)


def convert_block(block: Any, store_media: StoreMedia) -> Any:
    match block.type:
        case "text":
            return _parse(block.text)
        case "image" | "audio":
            return _store_media(block.type, block.data, block.mime_type, store_media)
        case "resource":
            return convert_resource(block.resource, store_media)
    return to_plain(block)


def to_plain(model: Any) -> JsonObject:
    data: JsonObject = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return data


def convert_prompt(result: Any, store_media: StoreMedia) -> JsonObject:
    """Return the messages of a prompt: text as it is, other content as in results."""
    messages = []
    for message in result.messages:
        block = message.content
        content = block.text if block.type == "text" else convert_block(block, store_media)
        messages.append({"role": message.role, "content": content})
    description = {"description": result.description} if result.description else {}
    return {**description, "messages": messages}


def convert_resources(result: Any, store_media: StoreMedia) -> Any:
    """Return the content of a resource, or a list if it has several parts."""
    parts = [convert_resource(content, store_media) for content in result.contents]
    return parts[0] if len(parts) == 1 else parts


def convert_resource(content: Any, store_media: StoreMedia) -> JsonObject:
    details = {"uri": str(content.uri), "mimeType": content.mime_type or ""}
    if hasattr(content, "text"):
        return {**details, "text": content.text}
    mime_type = content.mime_type or "application/octet-stream"
    return {**details, **_store_media("blob", content.blob, mime_type, store_media)}


def _store_media(kind: str, data: str, mime_type: str, store_media: StoreMedia) -> JsonObject:
    try:
        content = base64.b64decode(data)
    except (binascii.Error, ValueError):
        raise OutputInvalid(f"the server sent {kind} content that is not valid base64") from None
    return {
        "type": kind,
        "mimeType": mime_type,
        "size": len(content),
        "media": store_media(content, mime_type),
    }


def _parse(text: str) -> Any:
    """Parse JSON objects and lists; other text stays text, even if it is a number."""
    if not _looks_like_json(text) or not has_few_values(text):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _looks_like_json(text: str) -> bool:
    return text.lstrip()[:1] in {"{", "["}
