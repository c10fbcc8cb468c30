"""Names that every provider accepts, definitions of tools, and calls whose result is text for a
model.

Providers accept names of letters, digits, `_` and `-`, up to 64 characters. In a name, `-` stands
for a dot and `--` for a hyphen: `github.list-issues` is `github-list--issues`. Any other name is
shortened and ends with `---` and a digest.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.bus.bus import ToolBus
from onetool.core.tool import Tool
from onetool.errors import ToolError
from onetool.util.context import Foreign, ToolContext
from onetool.util.render import render
from onetool.util.sanitize import sanitize_text
from onetool_child.data import NotData, as_data
from onetool_child.errors import get_message
from onetool_child.json_types import JsonMapping, JsonObject

MAX_NAME_CHARS = 64
DIGEST_CHARS = 16
DIGEST_MARK = "---"  # never part of another name
READABLE = re.compile(r"\w+(?:[.-]\w+)*", re.ASCII)
INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_]+")
# Keywords that providers reject at the top level of a schema. The bus checks the arguments against
# the whole schema.
REJECTED_KEYWORDS = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})


class ModelTool(NamedTuple):
    """The definition of a tool for a model."""

    name: str
    description: str
    schema: JsonObject
    tool: Tool


class ModelResult(NamedTuple):
    text: str
    is_error: bool


def list_tools(bus: ToolBus, context: ToolContext | None = None) -> list[ModelTool]:
    """Return the enabled tools, or those that calls with the context may use.

    Stored tools are read from disk.
    """
    return [_describe(tool) for tool in _find_tools(bus, context)]


def _find_tools(bus: ToolBus, context: ToolContext | None) -> Iterator[Tool]:
    for entry in bus.registry.entries():
        if entry.enabled and (context is None or context.admits(entry)):
            tool = bus.registry.find(entry.name)
            if context is None or tool.permissions <= context.permissions:
                yield tool


def _describe(tool: Tool) -> ModelTool:
    schema = {key: part for key, part in tool.input.json.items() if key not in REJECTED_KEYWORDS}
    schema = {**schema, "type": "object", "properties": schema.get("properties", {})}
    return ModelTool(encode_name(tool.name), tool.description, schema, tool)


def encode_name(name: str) -> str:
    """Return the name of a tool for models, the same for all providers."""
    encoded = name.replace("-", "--").replace(".", "-")
    if READABLE.fullmatch(name) and len(encoded) <= MAX_NAME_CHARS:
        return encoded
    start = INVALID_CHARACTERS.sub("_", name)[: MAX_NAME_CHARS - len(DIGEST_MARK) - DIGEST_CHARS]
    return f"{start}{DIGEST_MARK}{sha256(name.encode()).hexdigest()[:DIGEST_CHARS]}"


def decode_name(encoded: str, bus: ToolBus) -> str:
    """Return the name of the tool that a model calls. A name that ends with a digest is looked up."""
    if DIGEST_MARK in encoded:
        found = (
            entry.name for entry in bus.registry.entries() if encode_name(entry.name) == encoded
        )
        return next(found, encoded)
    return "-".join(part.replace("-", ".") for part in encoded.split("--"))


async def call_tool(
    bus: ToolBus, encoded: str, args: JsonMapping, context: ToolContext | None = None
) -> ModelResult:
    """Call a tool by its name for models. Return its value or its error as text, without secrets."""
    is_untrusted = False

    def record(foreign: Foreign) -> None:
        nonlocal is_untrusted
        is_untrusted |= foreign.is_untrusted
        run.record_foreign(foreign)

    context = context or ToolContext()
    run = context.run
    name = await run_in_thread(decode_name, encoded, bus)
    result = await bus.call_tool(
        name, args, replace(context, run=run._replace(record_foreign=record))
    )
    try:
        text = render(as_data(result.unwrap()))
    except NotData as error:
        text = f"cannot serialize the value of {name}: {error}"
        is_error = True
    except Exception as error:  # noqa: BLE001 - a tool may raise anything; the model reads what
        hint = f"\nHint: {error.hint}" if isinstance(error, ToolError) and error.hint else ""
        text = f"{type(error).__name__}: {get_message(error)}{hint}"
        is_error = True
    else:
        is_error = False
    text = bus.events.redact(text)
    return ModelResult(sanitize_text(text, name) if is_untrusted else text, is_error)
