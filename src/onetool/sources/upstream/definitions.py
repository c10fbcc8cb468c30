"""Content from upstream servers: cached tool definitions, and call results.

Listing tools reads the cached lists instead of starting servers. A server may send anything: its
descriptions are cleaned before a model sees them, and an invalid schema is ignored.

In results, structured content is used as it is, text that is JSON is parsed, and several blocks
become a list. Binary content is stored and replaced by a handle.
"""

import base64
import binascii
import json
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Self

from onetool.core.foreign_schema import ForeignSchema
from onetool.errors import ArgumentError, OutputInvalid, ToolError
from onetool.state.documents import Documents
from onetool.state.sqlite_database import StateDatabase
from onetool.util.clock_watch import Clock
from onetool.util.large_data import RawJson
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.messages import has_few_values

VERSION = 1
FIRST_RETRY_SECONDS = 30.0
MAX_RETRY_SECONDS = 3600.0
DAMAGED = (
    ToolError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
WRAPPED_KEY = "x-fastmcp-wrap-result"  # marks values that are sent as {"result": value}
StoreMedia = Callable[[bytes, str], str]  # content and MIME type -> handle
LARGE_CHARS = 1 << 15  # characters: converted in a thread


@dataclass(frozen=True, slots=True)
class Definition:
    """A tool definition as its server sent it."""

    name: str
    description: str
    input_schema: JsonMapping
    output_schema: JsonMapping | None = None
    is_sound: bool = True  # whether its input schema is valid
    pattern_problem: str = ""  # which patterns of its input schema are not checked
    title: str = ""
    annotations: JsonMapping | None = None

    @classmethod
    def from_sdk(cls, tool: Any) -> Self:
        title = tool.title or ""
        annotations = None
        if tool.annotations:
            annotations = tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True)
        return cls(
            tool.name,
            tool.description or title,
            tool.input_schema,
            tool.output_schema,
            title=title,
            annotations=annotations,
        )

    @property
    def is_wrapped(self) -> bool:
        """Whether results are wrapped.

        FastMCP marks it; the SDK names the schema after the function.
        """
        schema = self.output_schema or {}
        is_only = schema.get("properties", {}).keys() == {"result"}
        return bool(schema.get(WRAPPED_KEY)) or (
            is_only and schema.get("title") == f"{self.name}Output"
        )


Definitions = tuple[Definition, ...]


class UpstreamSchema(ForeignSchema):
    """An upstream tool's input schema, without defaults: the server fills them in itself."""

    @cached_property
    def defaults(self) -> JsonMapping:
        return {}


def check_schemas(definition: Definition) -> Definition:
    """Return the definition with checked schemas, without an invalid output schema."""
    output = definition.output_schema
    if output is not None and not _is_valid(ForeignSchema.from_json(output)):
        output = None
    schema = ForeignSchema.from_json(definition.input_schema)
    is_sound = _is_valid(schema)
    problem = schema.pattern_problem if is_sound else ""
    return replace(definition, output_schema=output, is_sound=is_sound, pattern_problem=problem)


def _is_valid(schema: ForeignSchema) -> bool:
    try:
        schema.problem({})
    except (ArgumentError, RecursionError):
        return False
    return True


def digest(definitions: Iterable[Definition]) -> str:
    return hash_json([asdict(definition) for definition in definitions])


def hash_json(data: Any) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def cache_key(server: Any) -> str:
    """Return a server's cache key: a hash, because its settings may contain secrets."""
    facts = [
        server.command,
        server.args,
        dict(server.env),
        server.cwd,
        server.url,
        dict(server.headers),
    ]
    return hash_json(facts)[:32]


def identify_origin(server: Any) -> str:
    """Return a digest for a server's program or URL, without its credentials."""
    facts = [server.command, server.args, server.cwd, server.url]
    return hash_json(facts)[:32]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt to list a server. Retries back off exponentially, also across processes."""

    reason: str
    count: int  # failed attempts in a row
    at: float  # seconds since the epoch
    is_interrupted: bool = False  # the process ended before the server answered
    summary: str = ""  # the reason without the output of the server

    @classmethod
    def after(
        cls, before: "Failure | None", reason: str, summary: str, at: float, *, is_interrupted: bool
    ) -> "Failure":
        """Return one more failure. An interruption never hides a failure that has a reason."""
        count = 1 if before is None else before.count + 1
        if before is not None and is_interrupted and not before.is_interrupted:
            return replace(before, count=count, at=at)
        return cls(reason, count, at, is_interrupted, summary)

    @property
    def is_sound(self) -> bool:
        """Whether it can be used after it was read. Raises TypeError if a field has another type."""
        return (
            self.count > 0
            and math.isfinite(self.at)
            and isinstance(self.reason + self.summary, str)
        )

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until the next attempt; a clock that was set back does not block it."""
        exponent = min(self.count - 1, 20)  # a larger power only overflows
        delay = min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0**exponent)
        return max(0.0, self.at + delay - now) if self.at <= now else 0.0


NEVER_FAILED = Failure("", 0, -math.inf, summary="not started yet")


class ToolLists:
    """Cached tools from upstream servers, and failures to list them.

    Errors of the storage are ignored.
    """

    def __init__(
        self,
        database: StateDatabase,
        redact: Callable[[str], str] = str,
        clock: Clock = time.time,
    ) -> None:
        self.clock = clock
        self._lists = Documents(database, "tool list", is_announced=False)
        self._failures = Documents(database, "tool list failure", is_announced=False)
        self._redact = redact

    def get(self, key: str) -> Definitions | None:
        with suppress(*DAMAGED):
            data = self._lists.get(key)
            if data is not None and data["version"] == VERSION:
                definitions = tuple(Definition(**tool) for tool in data["tools"])
                if digest(definitions) == data["hash"]:
                    return definitions
        return None

    def put(self, key: str, definitions: Iterable[Definition]) -> None:
        tools = [asdict(definition) for definition in definitions]
        data = {"version": VERSION, "hash": hash_json(tools), "tools": tools}
        with suppress(ToolError):
            self._lists.update(key, lambda _: data)
            if self._failures.get(key) is not None:
                self._failures.update(key, lambda _: None)

    def get_failure(self, key: str) -> Failure | None:
        with suppress(*DAMAGED):
            document = self._failures.get(key)
            if document is not None and (failure := Failure(**document)).is_sound:
                return failure
        return None

    def put_failure(
        self, key: str, reason: str, summary: str = "", *, is_interrupted: bool = False
    ) -> Failure:
        """Record one more failed attempt and return it."""
        summary = self._redact(summary or reason)
        reason = self._redact(reason)
        failure = Failure.after(
            self.get_failure(key), reason, summary, self.clock(), is_interrupted=is_interrupted
        )
        with suppress(ToolError):
            self._failures.update(key, lambda _: asdict(failure))
        return failure


# --- Results --------------------------------------------------------------------------------------


def convert_result(result: Any, definition: Definition, store_media: StoreMedia) -> Any:
    """Return a result's value; raise the error that the server reports."""
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
    """Return the content that does not fit the output schema."""
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
    """Return a prompt's messages: text as it is, other content as in results."""
    messages = []
    for message in result.messages:
        block = message.content
        content = block.text if block.type == "text" else convert_block(block, store_media)
        messages.append({"role": message.role, "content": content})
    description = {"description": result.description} if result.description else {}
    return {**description, "messages": messages}


def convert_resources(result: Any, store_media: StoreMedia) -> Any:
    """Return a resource's content, or a list if it has several parts."""
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
