"""Names, definitions and results of exposed tools, for clients that call them directly.

A tool keeps its name if it is unique; otherwise the name is `pack_tool`. Texts of upstream servers
that a model reads are sanitized; the rest of a definition is passed through unchanged.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

import mcp_types as types
from pydantic import BaseModel

from onetool.core.schema import ANY_OBJECT
from onetool.core.tool import Tool
from onetool.errors import ToolError, describe
from onetool.runs.explain import indent_trace
from onetool.sources.upstream.upstream import Upstream
from onetool.util.invisible import replace_in_name
from onetool.util.redact import Redactor
from onetool.util.render import render
from onetool.util.sanitize import clean, clean_schema, defuse_data, make_tag, sanitize_text
from onetool_child.data import as_data
from onetool_child.errors import get_message
from onetool_child.json_types import JsonObject

RUN = "run"  # reserved
INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")
MAX_NAME_CHARS = 128
Model = TypeVar("Model", bound=BaseModel)


def assign_names(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return the tools by their published names, which are the same for all clients."""
    sorted_tools = {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}
    originals = {name: _original_name(tool) for name, tool in sorted_tools.items()}
    prefixed = {
        name: _sanitize_name(f"{tool.pack}_{originals[name]}")
        for name, tool in sorted_tools.items()
    }
    # A server cannot take the name that a tool of another server has after a collision.
    counted = Counter([*originals.values(), *prefixed.values(), RUN])
    published: dict[str, Tool] = {}
    numbers: Counter[str] = Counter()  # of the last duplicate
    for name, tool in sorted_tools.items():
        unique = originals[name] if counted[originals[name]] == 1 else prefixed[name]
        start = unique[: MAX_NAME_CHARS - 8]
        while unique in published or unique == RUN:
            numbers[start] += 1
            unique = f"{start}_{numbers[start] + 1}"
        published[unique] = tool
    return published


def _original_name(tool: Tool) -> str:
    """Return the name that the upstream server uses, with invalid characters replaced."""
    offered = (
        tool.backend.tools.offered.get(tool.name) if isinstance(tool.backend, Upstream) else None
    )
    return _sanitize_name(offered.name if offered is not None else tool.short_name)


def _sanitize_name(name: str) -> str:
    return INVALID_CHARACTERS.sub("_", name)[:MAX_NAME_CHARS] or "_"


def build_definition(name: str, tool: Tool) -> types.Tool:
    if (
        isinstance(tool.backend, Upstream)
        and (offered := tool.backend.tools.offered.get(tool.name)) is not None
    ):
        definition = tool.backend.main.raw_tools.get(offered.name)
        if definition is not None:
            output = (
                clean_schema(offered.output_schema) if offered.output_schema is not None else None
            )
            changes = {
                "name": name,
                "input_schema": _object_schema(tool),
                "output_schema": output,
                "execution": None,
            }
            if tool.backend.server.pin == "strict":
                changes |= {"icons": None, "meta": None}  # not part of pins
            published: types.Tool = definition.model_copy(update=changes)
            return clean_texts(published)
    output = tool.output.json if tool.output is not None else {}
    return types.Tool(
        name=name,
        description=tool.description or None,
        input_schema=_object_schema(tool),
        output_schema=output if output.get("type") == "object" else None,
    )


def _object_schema(tool: Tool) -> JsonObject:
    schema = tool.input.json
    return schema if schema.get("type") == "object" else {**schema, **ANY_OBJECT}


def clean_texts(model: Model) -> Model:
    """Return a copy with sanitized title and description."""
    changes: JsonObject = {
        key: clean(text) for key in ("title", "description") if (text := getattr(model, key, None))
    }
    if isinstance(hints := getattr(model, "annotations", None), types.ToolAnnotations):
        changes["annotations"] = clean_texts(hints)
    if isinstance(model, types.Prompt):
        changes["arguments"] = model.arguments and [*map(clean_texts, model.arguments)]
    if isinstance(
        model, types.Resource | types.ResourceTemplate
    ):  # only a label: clients send the URI back
        changes["name"] = replace_in_name(model.name)
    return model.model_copy(update=changes)


# --- results --------------------------------------------------------------------------------------


def dump(model: BaseModel) -> JsonObject:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def to_wire(model: BaseModel, redact: Redactor) -> JsonObject:
    data: JsonObject = redact.redact_data(dump(model))
    return data


def mark_result(answer: JsonObject, source: str, *, keeps_data: bool) -> JsonObject:
    """Return a result of an untrusted server with its texts for models marked and defused.

    Data is replaced by marked text, or only defused if `keeps_data`: clients require it if the tool
    declares a schema.
    """
    tag = make_tag()

    def mark(block: JsonObject) -> JsonObject:
        inner = {
            key: mark(block[key])
            for key in ("resource", "content")
            if isinstance(block.get(key), dict)
        }
        text = (
            {"text": sanitize_text(block["text"], source, tag)}
            if isinstance(block.get("text"), str)
            else {}
        )
        return {**block, **_clean_labels(block), **inner, **text}

    marked = {**answer, **_clean_labels(answer)}
    data = marked.pop("structuredContent", None)
    if data is not None and keeps_data:
        marked["structuredContent"] = defuse_data(data)
    elif data is not None and not any(
        block.get("type") == "text" for block in marked.get("content") or ()
    ):
        marked["content"] = [
            *(marked.get("content") or ()),
            {"type": "text", "text": render(data, "json")},
        ]
    lists = {
        key: marked[key]
        for key in ("content", "contents", "messages")
        if isinstance(marked.get(key), list)
    }
    return {**marked, **{key: [mark(block) for block in blocks] for key, blocks in lists.items()}}


def _clean_labels(block: JsonObject) -> dict[str, str]:
    return {
        key: clean(block[key])
        for key in ("name", "title", "description")
        if isinstance(block.get(key), str)
    }


def render_value(value: Any, *, is_media: bool = False) -> types.CallToolResult:
    """Return the result for a value of a tool that does not belong to an upstream server.

    With `is_media`, the caller adds the content of media to it. A value that is nothing else has no
    text.
    """
    if is_media and isinstance(value, dict) and isinstance(value.get("media"), str):
        return types.CallToolResult(content=[])
    try:
        data = as_data(value)
        text = render(data, "json")
    except ToolError as error:
        return render_error(error)
    except Exception as error:  # noqa: BLE001 - objects of tools may raise anything
        return render_error(ToolError(f"cannot serialize the value: {get_message(error)}"))
    block = types.TextContent(type="text", text=text)
    return types.CallToolResult(
        content=[block], structured_content=data if isinstance(data, dict) else None
    )


def render_error(error: BaseException) -> types.CallToolResult:
    trace = indent_trace(describe(error).get("trace"))
    text = "\n".join([f"{type(error).__name__}: {get_message(error)}", *trace])
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
