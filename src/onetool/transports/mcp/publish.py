"""Names, definitions and results of exposed tools, for clients that call them directly.

A tool keeps its name if it is unique; otherwise the name is `pack_tool`. Texts of upstream servers that a model reads
are sanitized; the rest of a definition is passed through unchanged.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import mcp_types as types
from pydantic import BaseModel

from onetool._tool import Tool
from onetool.errors import ToolError, describe
from onetool.proxy.upstream import Upstream
from onetool.redact import Redactor
from onetool.render import render
from onetool.runner.explain import indent_trace
from onetool.sanitize import clean, clean_schema
from onetool.schema import ANY_OBJECT
from onetool.util.invisible import replace_in_name
from onetool_child.data import NotData, as_data
from onetool_child.errors import get_message

RUN = "run"  # reserved
INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")
MAX_NAME_CHARS = 128
Model = TypeVar("Model", bound=BaseModel)


def assign_names(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return the tools by their published names, which are the same for all clients."""
    found = {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}
    originals = {name: _original_name(tool) for name, tool in found.items()}
    counted = Counter([*originals.values(), RUN])
    published: dict[str, Tool] = {}
    for name, tool in found.items():
        candidate = (
            originals[name] if counted[originals[name]] == 1 else _sanitize_name(f"{tool.pack}_{originals[name]}")
        )
        published[_make_unique(candidate, published)] = tool
    return published


def _original_name(tool: Tool) -> str:
    """Return the name that the upstream server uses, with invalid characters replaced."""
    offered = tool.backend.offered.get(tool.name) if isinstance(tool.backend, Upstream) else None
    return _sanitize_name(offered.name if offered is not None else tool.short_name)


def _sanitize_name(name: str) -> str:
    return INVALID_CHARACTERS.sub("_", name)[:MAX_NAME_CHARS] or "_"


def _make_unique(name: str, taken: Iterable[str]) -> str:
    known, number, free = {*taken, RUN}, 1, name
    while free in known:
        number += 1
        free = f"{name[: MAX_NAME_CHARS - 8]}_{number}"
    return free


def build_definition(name: str, tool: Tool) -> types.Tool:
    if isinstance(tool.backend, Upstream) and (offered := tool.backend.offered.get(tool.name)) is not None:
        definition = tool.backend.raw_tools.get(offered.name)
        if definition is not None:
            output = clean_schema(offered.output_schema) if offered.output_schema is not None else None
            changes = {"name": name, "input_schema": _object_schema(tool), "output_schema": output, "execution": None}
            published: types.Tool = definition.model_copy(update=changes)
            return clean_texts(published)
    output = tool.output.json if tool.output is not None else {}
    return types.Tool(
        name=name,
        description=tool.description or None,
        input_schema=_object_schema(tool),
        output_schema=output if output.get("type") == "object" else None,
    )


def _object_schema(tool: Tool) -> dict[str, Any]:
    schema = tool.input.json
    return schema if schema.get("type") == "object" else {**schema, **ANY_OBJECT}


def clean_texts(model: Model) -> Model:
    """Return a copy with sanitized title and description."""
    changes: dict[str, Any] = {
        key: clean(text) for key in ("title", "description") if (text := getattr(model, key, None))
    }
    if isinstance(hints := getattr(model, "annotations", None), types.ToolAnnotations):
        changes["annotations"] = clean_texts(hints)
    if isinstance(model, types.Resource | types.ResourceTemplate):  # only a label: clients send the URI back
        changes["name"] = replace_in_name(model.name)
    return model.model_copy(update=changes)


# --- results -------------------------------------------------------------------------------------------------------


def to_wire(model: BaseModel, redact: Redactor) -> dict[str, Any]:
    data: dict[str, Any] = redact.redact_data(model.model_dump(by_alias=True, mode="json", exclude_none=True))
    return data


def map_texts(answer: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the result with `change` applied to the texts that a model reads."""

    def apply(block: dict[str, Any]) -> dict[str, Any]:
        inner = {key: apply(block[key]) for key in ("resource", "content") if isinstance(block.get(key), dict)}
        text = {"text": change(block["text"])} if isinstance(block.get("text"), str) else {}
        return {**block, **inner, **text}

    lists = {key: answer[key] for key in ("content", "contents", "messages") if isinstance(answer.get(key), list)}
    return {**answer, **{key: [apply(block) for block in blocks] for key, blocks in lists.items()}}


def render_value(value: Any, *, is_media: bool = False) -> types.CallToolResult:
    """Return the result for a value of a tool that does not belong to an upstream server.

    With `is_media`, the caller adds the content of media to it. A value that is nothing else has no text.
    """
    if is_media and isinstance(value, dict) and isinstance(value.get("media"), str):
        return types.CallToolResult(content=[])
    try:
        data = as_data(value)
        text = render(data, "json")
    except (NotData, RecursionError):
        return render_error(ToolError("cannot serialize the value: it is nested too deeply or refers to itself"))
    except ToolError as error:
        return render_error(error)
    block = types.TextContent(type="text", text=text)
    return types.CallToolResult(content=[block], structured_content=data if isinstance(data, dict) else None)


def render_error(error: BaseException) -> types.CallToolResult:
    trace = indent_trace(describe(error).get("trace"))
    text = "\n".join([f"{type(error).__name__}: {get_message(error)}", *trace])
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
