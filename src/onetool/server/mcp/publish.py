"""Exposed tools as clients see them: which ones, their names, definitions and results.

A tool keeps its name if it is unique; otherwise the name is `pack_tool`. Texts of upstream servers
that a model reads are sanitized; the rest of a definition is passed through unchanged. A large
result is stored, and the client gets a link to it.
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import mcp_types as types
from anyio.to_thread import run_sync as run_in_thread
from pydantic import BaseModel

from onetool.app import OneTool
from onetool.core.names import python_name
from onetool.core.schema import ANY_OBJECT
from onetool.core.tool import Tool
from onetool.errors import ToolError, describe
from onetool.runs.explain import indent_trace
from onetool.settings.model import Expose
from onetool.sources.upstream.upstream import Upstream
from onetool.state.stats.details import count_tokens
from onetool.util.bounded_dict import BoundedDict
from onetool.util.context import ToolContext
from onetool.util.invisible import replace_in_name
from onetool.util.redact import Redactor
from onetool.util.render import render
from onetool.util.sanitize import clean, clean_schema, defuse_data, make_tag, sanitize_text
from onetool_child.data import as_data, record_lines
from onetool_child.errors import get_message
from onetool_child.json_types import JsonObject
from onetool_child.media import get_content_kind

RUN = "run"  # reserved
INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")
MAX_NAME_CHARS = 128
Model = TypeVar("Model", bound=BaseModel)
RESULT = "ot://result/"
MAX_AUTO_TOKENS = 1_500  # of all definitions together
MAX_SESSIONS = 10_000


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
        text = {}
        if isinstance(block.get("text"), str):
            text = {"text": sanitize_text(block["text"], source, tag)}
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


# --- exposure -------------------------------------------------------------------------------------


class Exposure:
    """The published names of an application, and the decisions of `auto` by client session."""

    def __init__(self, app: OneTool) -> None:
        self._app = app
        self._modes = self._list_modes()
        self._chosen: BoundedDict[str, frozenset[str]] = BoundedDict(MAX_SESSIONS)  # by session

    def __bool__(self) -> bool:
        """Return whether any tool may be published."""
        return bool(self._app.exposed) or not {*self._list_modes().values()} <= {"code", None}

    @property
    def published_names(self) -> frozenset[str]:
        """The names of tools, packs and servers that are published to every client."""
        return frozenset(
            form
            for name in (*self._app.exposed, *self._list_packs("direct"), *self._list_packs("both"))
            for form in (name, python_name(name))
        )

    @property
    def hidden(self) -> frozenset[str]:
        """The packs that code cannot call."""
        exposed = {python_name(name).partition(".")[0] for name in self._app.exposed}
        return frozenset(python_name(pack) for pack in self._list_packs("direct")) - exposed

    async def choose(self, session: str, caller: ToolContext) -> frozenset[str]:
        """Return the tools that `auto` publishes in a session.

        Decided once, from cached lists of servers, and again only if a reload changes the setting.
        """
        if self._modes != (modes := self._list_modes()):
            self._modes = modes
            self._chosen.clear()
        if (chosen := self._chosen.get(session)) is not None:
            return chosen
        if not any(self._list_packs("auto")):
            return frozenset()
        await self._app.discover(frozenset())
        chosen = await run_in_thread(self._choose, caller)
        if session not in self._chosen:
            self._chosen[session] = chosen
        return self._chosen[session]

    def _choose(self, caller: ToolContext) -> frozenset[str]:
        names = []
        tokens = 0
        for tool in self._find_tools("auto", caller):
            tokens += count_tokens(dump(build_definition(tool.short_name, tool)))
            names.append(tool.name)
            if tokens >= MAX_AUTO_TOKENS:
                return frozenset()
        return frozenset(names)

    def _find_tools(self, mode: Expose, caller: ToolContext) -> Iterator[Tool]:
        registry = self._app.registry
        for pack in sorted(set(map(python_name, self._list_packs(mode)))):
            for entry in registry.entries(pack):
                tool = (
                    registry.find_exact(entry.name)
                    if entry.enabled and caller.admits(entry)
                    else None
                )
                if tool is not None and self.is_shown(tool, caller):
                    yield tool

    def is_shown(self, tool: Tool, caller: ToolContext) -> bool:
        """Return whether the agent's list and policy let this client see the tool."""
        policy = self._app.agents.get_policy(caller.agent_id)[0]
        return caller.admits(tool) and is_publishable(tool) and not policy.denies_all_calls(tool)

    def _list_modes(self) -> dict[str, Expose | None]:
        """Return the settings by server; those of all others are under an empty name."""
        settings = self._app.settings
        return {
            "": settings.expose,
            **{name: server.expose for name, server in settings.servers.items()},
        }

    def _list_packs(self, mode: Expose) -> Iterator[str]:
        """Yield the servers and connected packs with this mode."""
        settings = self._app.settings
        for name, server in settings.servers.items():
            if (server.expose or settings.expose) == mode and server.enabled:
                yield name
        if settings.expose == mode:
            yield from self._app.extensions.pack_names
            yield from self._app.bundles.custom_pack_names


def is_publishable(tool: Tool) -> bool:
    """Tell whether the tool is enabled and its definition matches its pin."""
    return tool.enabled and not (
        isinstance(tool.backend, Upstream) and tool.name in tool.backend.tools.rejected
    )


# --- media ----------------------------------------------------------------------------------------


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


# --- large results --------------------------------------------------------------------------------


async def cut_large_result(
    app: OneTool, tool: Tool, caller: ToolContext, answer: JsonObject, *, is_untrusted: bool
) -> JsonObject:
    """Return the result with at most `output.max_inline_size` bytes, and a link to all of it.

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
