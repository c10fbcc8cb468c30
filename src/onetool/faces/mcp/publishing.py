"""How a tool looks to a client that calls it directly: its name, its definition, and its answers.

A name is the tool's own where no other has it, else `pack_tool`. What somebody else wrote for a model to read is
cleaned; all else of a definition is passed on as it is.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import mcp_types as types
from pydantic import BaseModel

from onetool._tool import Tool
from onetool.errors import ToolError
from onetool.proxy.upstream import Upstream
from onetool.redact import Redactor
from onetool.render import render
from onetool.sanitise import clean, clean_schema
from onetool.schema import ANY_OBJECT
from onetool.util.invisible import replace_in_name
from onetool_child.data import NotData, as_data
from onetool_child.errors import message_of

RUN = "run"  # is taken
UNFIT = re.compile(r"[^A-Za-z0-9_.-]")
LONGEST_NAME = 128
Model = TypeVar("Model", bound=BaseModel)


def named(tools: Iterable[Tool]) -> dict[str, Tool]:
    """The tools by the names that clients use; the same for all clients."""
    found = {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}
    own = {name: _own_name(tool) for name, tool in found.items()}
    counted = Counter([*own.values(), RUN])
    published: dict[str, Tool] = {}
    for name, tool in found.items():
        wanted = own[name] if counted[own[name]] == 1 else _fitting(f"{tool.pack}_{own[name]}")
        published[_free(wanted, published)] = tool
    return published


def _own_name(tool: Tool) -> str:
    """As its server calls it, where that can be."""
    offered = tool.backend.offered.get(tool.name) if isinstance(tool.backend, Upstream) else None
    return _fitting(offered.name if offered is not None else tool.short_name)


def _fitting(name: str) -> str:
    return UNFIT.sub("_", name)[:LONGEST_NAME] or "_"


def _free(name: str, taken: Iterable[str]) -> str:
    known, number, free = {*taken, RUN}, 1, name
    while free in known:
        number += 1
        free = f"{name[: LONGEST_NAME - 8]}_{number}"
    return free


def definition(name: str, tool: Tool) -> types.Tool:
    if isinstance(tool.backend, Upstream) and (offered := tool.backend.offered.get(tool.name)) is not None:
        told = tool.backend.raw_tools.get(offered.name)
        if told is not None:
            output = clean_schema(offered.output_schema) if offered.output_schema is not None else None
            changes = {"name": name, "input_schema": _object(tool), "output_schema": output, "execution": None}
            published: types.Tool = told.model_copy(update=changes)
            return cleaned(published)
    output = tool.output.json if tool.output is not None else {}
    return types.Tool(
        name=name,
        description=tool.description or None,
        input_schema=_object(tool),
        output_schema=output if output.get("type") == "object" else None,
    )


def _object(tool: Tool) -> dict[str, Any]:
    schema = tool.input.json
    return schema if schema.get("type") == "object" else {**schema, **ANY_OBJECT}


def cleaned(model: Model) -> Model:
    """With the words that a model reads free of traps."""
    words: dict[str, Any] = {
        key: clean(text) for key in ("title", "description") if (text := getattr(model, key, None))
    }
    if isinstance(hints := getattr(model, "annotations", None), types.ToolAnnotations):
        words["annotations"] = cleaned(hints)
    if isinstance(model, types.Resource | types.ResourceTemplate):  # a label: the URI is what clients send back
        words["name"] = replace_in_name(model.name)
    return model.model_copy(update=words)


# --- answers -------------------------------------------------------------------------------------------------------


def as_wire(model: BaseModel, redact: Redactor) -> dict[str, Any]:
    data: dict[str, Any] = redact.in_data(model.model_dump(by_alias=True, mode="json", exclude_none=True))
    return data


def with_texts(answer: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """The answer with the texts in it that a model reads changed: those of tools, resources and prompts."""

    def changed(block: dict[str, Any]) -> dict[str, Any]:
        inner = {key: changed(block[key]) for key in ("resource", "content") if isinstance(block.get(key), dict)}
        text = {"text": change(block["text"])} if isinstance(block.get("text"), str) else {}
        return {**block, **inner, **text}

    lists = {key: answer[key] for key in ("content", "contents", "messages") if isinstance(answer.get(key), list)}
    return {**answer, **{key: [changed(block) for block in blocks] for key, blocks in lists.items()}}


def of_value(value: Any) -> types.CallToolResult:
    """The answer of a tool that is no server's."""
    try:
        data = as_data(value)
        text = render(data, "json")
    except (NotData, RecursionError):
        return of_error(ToolError("the value is nested too deeply, or refers to itself, and cannot be sent"))
    except ToolError as error:
        return of_error(error)
    block = types.TextContent(type="text", text=text)
    return types.CallToolResult(content=[block], structured_content=data if isinstance(data, dict) else None)


def of_error(error: BaseException) -> types.CallToolResult:
    block = types.TextContent(type="text", text=f"{type(error).__name__}: {message_of(error)}")
    return types.CallToolResult(content=[block], is_error=True)
