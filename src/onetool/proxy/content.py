"""What a server answered, as data that a program can use. What cannot be text is kept, and known by a handle.

Structured content is taken as it is; text that is JSON becomes data; one block is that block, several are a list.
"""

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any

from onetool.errors import OutputInvalid, ToolError
from onetool.proxy.definitions import Definition
from onetool.util.raw_json import RawJson
from onetool_child.messages import has_few_values

Keep = Callable[[bytes, str], str]  # content and its type; gives a handle
LARGE = 1 << 15  # characters: better looked at by a thread


def value_of(result: Any, definition: Definition, keep: Keep) -> Any:
    """`keep` stores bytes of a kind and gives a handle. Raises what the server says has failed."""
    if result.is_error:
        text = "\n".join(block.text for block in result.content if block.type == "text").strip()
        raise ToolError(text or f"{definition.name} failed and did not say why")
    if (value := result.structured_content) is not None:
        if definition.is_wrapped and isinstance(value, dict) and value.keys() == {"result"}:
            value = value["result"]
        if definition.output_schema is not None:
            return value  # what else there is has no place in what the tool promises
        media = [part(block, keep) for block in result.content if block.type != "text"]
        return [value, *media] if media else value
    if definition.output_schema is not None:
        raise OutputInvalid(f"{definition.name} promises structured content and gave none")
    if len(result.content) == 1 and result.content[0].type == "text":
        text = result.content[0].text  # data with many values is parsed where it is used
        return RawJson.from_text(text) if _looks_like_json(text) and not has_few_values(text) else _parsed(text)
    parts = [part(block, keep) for block in result.content]
    return parts[0] if len(parts) == 1 else parts or None


def is_work(result: Any) -> bool:
    """Whether making data of it would hold up everybody else."""
    return any(block.type != "text" or len(block.text) > LARGE for block in result.content)


def left_out(result: Any, definition: Definition, keep: Keep) -> list[Any]:
    """What `value_of` has no place for: pictures and the like beside data that is promised to have a certain form."""
    if result.structured_content is None or definition.output_schema is None:
        return []
    return [part(block, keep) for block in result.content if block.type != "text"]


def part(block: Any, keep: Keep) -> Any:
    match block.type:
        case "text":
            return _parsed(block.text)
        case "image" | "audio":
            return _media(block.type, block.data, block.mime_type, keep)
        case "resource":
            return resource(block.resource, keep)
    return plain(block)


def plain(model: Any) -> dict[str, Any]:
    data: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return data


def prompt(result: Any, keep: Keep) -> dict[str, Any]:
    """The messages of a prompt: texts as they are, all else as it is in results."""
    messages = [
        {"role": each.role, "content": each.content.text if each.content.type == "text" else part(each.content, keep)}
        for each in result.messages
    ]
    return {**({"description": result.description} if result.description else {}), "messages": messages}


def resource(content: Any, keep: Keep) -> dict[str, Any]:
    about = {"uri": str(content.uri), "mimeType": content.mime_type or ""}
    if hasattr(content, "text"):
        return {**about, "text": content.text}
    return {**about, **_media("blob", content.blob, content.mime_type or "application/octet-stream", keep)}


def _media(kind: str, data: str, mime_type: str, keep: Keep) -> dict[str, Any]:
    try:
        content = base64.b64decode(data)
    except (binascii.Error, ValueError):
        raise OutputInvalid(f"the server sent {kind} that is no base64") from None
    return {"type": kind, "mimeType": mime_type, "size": len(content), "media": keep(content, mime_type)}


def _parsed(text: str) -> Any:
    """Only objects and lists: a text that happens to be a number is still a text."""
    if not _looks_like_json(text) or not has_few_values(text):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _looks_like_json(text: str) -> bool:
    return text.lstrip()[:1] in {"{", "["}
