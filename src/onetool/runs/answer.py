"""Rendering of the output and value of a run: redacted blocks of text of limited size.

Values larger than `output.max_inline_size` are put into the result store and replaced by a summary
with a handle.
"""

import asyncio
import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any

from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import ToolError, describe
from onetool.runs import explain
from onetool.runs.results.store import StoredResults
from onetool.runs.results.window import cut_answer
from onetool.runs.run_output import RunOutput
from onetool.settings.model import Output
from onetool.util.context import ToolContext
from onetool.util.invisible import escape_invisible
from onetool.util.large_data import run_in_thread_if
from onetool.util.redact import MAX_PIECE_CHARS, TOO_SLOW, Redactor
from onetool.util.render import render
from onetool.util.sanitize import defuse_data, sanitize_text
from onetool.util.text import pluralize
from onetool_child.data import FORMATS, has_too_much_indentation, record_lines
from onetool_child.errors import restore
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.media import MAX_MEDIA
from onetool_child.messages import split_bytes
from onetool_child.summary import summary

NO_VALUE = "Done: the code has no value. End it with an expression or use return to see one."
LARGE_ANSWER_BYTES = 1 << 13  # processed in a thread
MAX_LIVE_SECONDS = 3.0  # of processor time for the live output of a run
MAX_YAML_BYTES = 1 << 21  # YAML takes a second per megabyte
SLOW_BYTES = 1 << 12  # of data in YAML or indented JSON
MAX_PARTS = 1000  # of a value, in which media are looked for
BASE64_BYTES = 3 << 16  # encoded at a time; without padding, because it is a multiple of 3
MAX_HELP_BYTES = 1 << 18
HELP = "ot.help"
DISCOVERY = {HELP, "ot.search", "ot.tools", "ot.packs", "ot.aliases", "ot.snippets"}
MAX_SUMMARY_CHARS = 1000
MAX_ERROR_CHARS = 20_000
MAX_SOURCES = 10
MAX_LINE = 10_000_000  # a larger number of a line is not valid
JSON_FORMATS = {None, "json", "json_h"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a run for its client: printed text, if any, then the value or the error."""

    blocks: tuple[str, ...]
    is_error: bool = False
    error: str | None = None  # the type of the error, such as `timeout`
    line: int | None = None  # of the code, on which it failed
    media: tuple[str, ...] = ()  # handles of images and other blobs in the value
    is_paused: bool = False  # whether the run waits for a person
    load_value: Callable[[], Any] = field(default=lambda: None, repr=False, compare=False)
    make_exception: Callable[[], Exception] | None = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The answer as the client sees it."""
        return "\n".join(self.blocks)

    @property
    def value(self) -> Any:
        """The value of the run as JSON data, without secrets; None if it has none or failed."""
        return self.load_value()

    def unwrap(self) -> Any:
        """Return the value, or raise the error of the run."""
        if not self.is_error:
            return self.value
        if self.make_exception is not None:
            raise self.make_exception()
        raise ToolError(self.text, type=self.error or ToolError.type)


class LiveOutput:
    """A stream of redacted output to the listener of a run. Untrusted output is never streamed.

    Long pieces are redacted in a thread, and streaming stops after MAX_LIVE_SECONDS of processor
    time there.
    """

    def __init__(self, output: RunOutput, redact: Redactor, *, is_wrapped: bool) -> None:
        self._output = output
        self._stream = redact.stream()
        self._is_streamed = output.channel.listener is not None and not is_wrapped
        self._waiting: list[str] = []
        self._redacting: asyncio.Task[None] | None = None
        self._seconds = 0.0

    def add(self, text: str) -> None:
        if not self._is_streamed:
            return
        if self._redacting is None and self._stream.held_chars + len(text) <= LARGE_ANSWER_BYTES:
            self._emit(self._stream.add(text))
            return
        self._waiting.append(text)
        if self._redacting is None:
            self._redacting = asyncio.ensure_future(self._redact_waiting())

    async def end(self) -> None:
        """Emit the rest. Afterwards, nothing is emitted."""
        if self._redacting is not None:
            await self._redacting
        if self._is_streamed:
            self._is_streamed = False
            self._emit(
                await run_in_thread_if(
                    self._stream.held_chars > LARGE_ANSWER_BYTES, self._stream.end
                )
            )

    async def _redact_waiting(self) -> None:
        while self._waiting and self._is_streamed:
            text = "".join(self._waiting)
            self._waiting.clear()
            self._emit(await run_in_thread(self._redact, text))
        self._redacting = None

    def _redact(self, text: str) -> str:
        started = time.thread_time()
        parts = list[str]()
        for start in range(0, len(text), MAX_PIECE_CHARS):
            parts.append(self._stream.add(text[start : start + MAX_PIECE_CHARS]))
            if self._seconds + time.thread_time() - started > MAX_LIVE_SECONDS:
                self._is_streamed = False
                parts.append(TOO_SLOW)
                break
        self._seconds += time.thread_time() - started
        return "".join(parts)

    def _emit(self, text: str) -> None:
        if text and not self._output.is_untrusted:
            self._output.channel.emit("output", text)


@dataclass(slots=True, eq=False)
class _Block:
    """A text in pieces with its metadata. Pieces are released as they are stored."""

    pieces: list[str]
    size: int
    about: str = ""
    is_json: bool = False
    format: str | None = None
    beside: Callable[[], str] | None = (
        None  # renders the data as JSON, if the text has another format
    )
    is_inline: bool = False  # whether it is shown regardless of its size
    cut: Callable[[int], str] | None = (
        None  # set for part of a stored result, which is not stored again
    )
    error: str | None = None  # the type of the error, if it could not be stored


class Presenter:
    """A renderer of answers, configured by `output:`."""

    def __init__(self, settings: Output, store: StoredResults, redact: Redactor) -> None:
        self._settings = settings
        self._store = store
        self._redact = redact

    def open_stream(self, output: RunOutput) -> LiveOutput:
        return LiveOutput(output, self._redact, is_wrapped=self._settings.sanitize)

    def has_secret(self, data: bytes) -> bool:
        """Return whether binary data contains a secret.

        It is searched as base64, which has no brackets.
        """
        pieces = (
            base64.b64encode(piece).decode("ascii") for piece in split_bytes(data, BASE64_BYTES)
        )
        return any("[" in piece for piece in self._redact.redact_pieces(pieces))

    async def render_success(
        self, output: RunOutput, result: JsonObject, caller: ToolContext
    ) -> Answer:
        """Return the answer of a successful run.

        The code may have forged `result`; only its size is reliable.
        """
        sanitize = result.get("sanitize")
        try:
            value = await run_in_thread_if(
                result["bytes"] > LARGE_ANSWER_BYTES or _is_slow(result),
                partial(
                    _value_blocks,
                    output,
                    result,
                    self._redact,
                    is_sanitized=self._is_sanitized(output, sanitize),
                ),
            )
        except ToolError as error:  # the value cannot be shown
            text = explain.render_error(error, output.calls)
            failure = {**describe(error), "sanitize": sanitize}
            return await self.render_failure(output, text, failure, caller)
        load_value = self._make_loader(output, result)
        printed = _output_blocks(output)
        _mark_blocks(printed, value, output, result)
        blocks = [*printed, *value]
        texts = await self._render_blocks(blocks, output, caller, sanitize)
        kind = next((block.error for block in blocks if block.error), None)
        media = find_media(result.get("value"))
        return Answer(
            texts or (NO_VALUE,), kind is not None, kind, media=media, load_value=load_value
        )

    def store_names(self, caller: ToolContext, names: list[str]) -> str:
        """Store names that are too many for a message.

        Return the call that reads them. Blocks on disk access.
        """
        about = pluralize(len(names), "tool")
        text = self._redact("\n".join(names))
        try:
            stored = self._store.put(
                text, tool="ot.tools", agent=caller.agent_id, token_id=caller.token_id, about=about
            )
        except ToolError:
            return "ot.tools()"
        return f"ot.result(handle={stored['handle']!r})"

    def _make_loader(self, output: RunOutput, result: JsonObject) -> Callable[[], Any]:
        """Return a function that returns the value of the run, which is parsed at the first call."""
        redact = self._redact
        if not output.value:
            return cache(lambda: redact.redact_data(result.get("value")))
        pieces = list(output.value) if output.keeps_value else []

        def parse() -> Any:
            text = "".join(pieces)
            try:
                return redact.redact_data(
                    json.loads(text) if result.get("is_json") is True else text
                )
            except (
                ValueError,
                RecursionError,
            ):  # forged by the code, or an integer with too many digits
                raise ToolError("cannot read the value of the run; return a part of it") from None

        return cache(parse) if pieces else lambda: None

    async def render_failure(
        self, output: RunOutput, text: str, error: JsonMapping, caller: ToolContext
    ) -> Answer:
        """Return the answer of a failed run, whose `error` as data may be forged by the code."""
        message = escape_invisible(explain.truncate(text, MAX_ERROR_CHARS))
        blocks = [
            *_output_blocks(output),
            _Block([message], len(message.encode("utf-8", "replace")), is_inline=True),
        ]
        texts = await self._render_blocks(blocks, output, caller, error.get("sanitize"))
        line = error.get("line")
        known_line = line if type(line) is int and 0 < line <= MAX_LINE else None
        make_exception = partial(_make_exception, error, self._redact)
        return Answer(
            texts,
            is_error=True,
            error=str(error.get("type")),
            line=known_line,
            make_exception=make_exception,
        )

    async def _render_blocks(
        self, blocks: list[_Block], output: RunOutput, caller: ToolContext, sanitize: object
    ) -> tuple[str, ...]:
        size = sum(block.size for block in blocks)
        limit = self._settings.max_inline_size
        needs_thread = size > LARGE_ANSWER_BYTES or bool(
            limit and size > limit
        )  # storing writes to disk
        return await run_in_thread_if(
            needs_thread, partial(self._render_texts, blocks, output, caller, sanitize)
        )

    def _render_texts(
        self, blocks: list[_Block], output: RunOutput, caller: ToolContext, sanitize: object
    ) -> tuple[str, ...]:
        self._store_large_blocks(blocks, output, caller, is_marked=sanitize is True)
        texts = []
        for block in blocks:
            text = "".join(block.pieces)
            if block.is_json and block.format in {None, "json"}:  # it may have one record per line
                text = text.replace("\n", "")
            # An unpaired surrogate, which only hostile code sends, would make the answer impossible
            # to encode.
            texts.append(self._redact(text).encode("utf-8", "backslashreplace").decode())
        if not self._is_sanitized(output, sanitize):
            return tuple(texts)
        source = ", ".join(sorted(output.sources)[:MAX_SOURCES]) or "run"
        return tuple(sanitize_text(text, source) for text in texts)

    def _is_sanitized(self, output: RunOutput, sanitize: object) -> bool:
        is_requested = sanitize if isinstance(sanitize, bool) else self._settings.sanitize
        return is_requested or output.is_untrusted

    def _store_large_blocks(
        self, blocks: list[_Block], output: RunOutput, caller: ToolContext, *, is_marked: bool
    ) -> None:
        """Store the largest blocks until the others fit, so that short values stay inline."""
        total = sum(block.size for block in blocks)
        limit = self._settings.max_inline_size
        for block in sorted(blocks, key=lambda block: block.size, reverse=True):
            if limit and total > limit and not block.is_inline:
                total -= block.size
                if block.cut is not None:
                    text = block.cut(limit - total) or _cut_text(
                        "".join(block.pieces), limit, limit - total
                    )
                    block.pieces = [text]
                    block.is_json = False
                    total += len(text.encode("utf-8", "replace"))
                else:
                    self._store_block(block, output, caller, is_marked=is_marked)

    def _store_block(
        self, block: _Block, output: RunOutput, caller: ToolContext, *, is_marked: bool
    ) -> None:
        """Store a block.

        One that the code marked with `__sanitize__` is sanitized whenever it is read.
        """
        labels = caller.run.labels
        pieces = _split_records(block)
        pieces.reverse()
        # Each piece is released before the next is taken, so that nothing is in memory twice.
        redacted = self._redact.redact_pieces(pieces.pop() for _ in range(len(pieces)))
        try:
            stored_summary = self._store.put(
                redacted,
                tool=next(iter(output.sources)) if len(output.sources) == 1 else "run",
                agent=caller.agent_id,
                token_id=caller.token_id,
                about=block.about,
                is_json=block.is_json,
                beside=None if block.beside is None else self._redact(block.beside()),
                is_untrusted=output.is_untrusted or is_marked,
                labels=None if labels is None else labels.to_json(),
            )
        except ToolError as error:
            block.pieces = [explain.render_error(error, output.calls)]
            block.error = error.type
        else:
            block.pieces = [render(stored_summary, block.format)]


def _make_exception(error: JsonMapping, redact: Redactor) -> Exception:
    data = redact.redact_data(dict(error))
    exception = restore(data)
    if data.get("line"):
        exception.add_note(f"line {data['line']} of the code: {data.get('source')}")
    return exception


def _output_blocks(output: RunOutput) -> list[_Block]:
    return [_Block(output.printed, output.printed_bytes)] if output.printed else []


def _value_blocks(
    output: RunOutput, result: JsonObject, redact: Redactor, *, is_sanitized: bool
) -> list[_Block]:
    chosen = _get_format(result)
    if output.value:
        is_json = result.get("is_json") is True
        about = str(result.get("about") or "")[:MAX_SUMMARY_CHARS]
        return [_Block(output.value, output.value_bytes, about, is_json=is_json, format=chosen)]
    if not result.get("has_value"):
        return []
    value = result.get("value")
    flow = bool(result.get("from_ot"))
    if result["bytes"] > MAX_YAML_BYTES or (_is_slow(result) and has_too_much_indentation(value)):
        chosen = "json"
        flow = False
    if not isinstance(value, dict | list):
        text = render(value, chosen)
        return [_Block([text], len(text.encode()), format=chosen)]
    is_json = chosen in JSON_FORMATS and not (flow and chosen is None)
    if is_json:
        text = render(value, chosen, flow=flow)
        return [_Block([text], len(text.encode()), summary(value), is_json, chosen)]
    value = redact.redact_data(value)  # in YAML, the brackets of a redacted text need quotes
    text = render(defuse_data(value) if is_sanitized else value, chosen, flow=flow)
    beside = partial(render, value, "json")
    return [_Block([text], len(text.encode()), summary(value), is_json, chosen, beside)]


def _mark_blocks(
    printed: list[_Block], value: list[_Block], output: RunOutput, result: JsonObject
) -> None:
    """Keep help inline regardless of its size, and never store part of a stored result again."""
    called = {name for name, _ in output.calls}
    for block in (*printed, *value):
        block.is_inline = HELP in called and called <= DISCOVERY and block.size <= MAX_HELP_BYTES
        if called == {"ot.result"}:
            block.cut = partial(_cut_block, block, result if block in value else {})


def _cut_block(block: _Block, result: JsonObject, room: int) -> str:
    """Return what fits into `room` bytes of a part of a stored result, with a note."""

    def fits(window: JsonObject) -> bool:
        return (
            len(render(window, _get_format(result), flow=True).encode("utf-8", "replace")) <= room
        )

    try:
        window = result.get("value") or json.loads("".join(block.pieces))
        if result.get("from_ot") and (cut := cut_answer(window, block.size, fits)) is not None:
            return render(cut, _get_format(result), flow=True)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ):  # forged by the code
        pass
    return ""


def _cut_text(text: str, limit: int, room: int) -> str:
    note = (
        f"\n[cut: this part of the result is too large, the limit is {limit}"
        " (output.max_inline_size). Use a smaller limit of ot.result, or ot.load(handle) in code]"
    )
    return (
        text.encode("utf-8", "replace")[: max(0, room - len(note))].decode("utf-8", "ignore") + note
    )


def _split_records(block: _Block) -> list[str]:
    """Return the pieces with one record per line if the block is compact JSON in one piece."""
    if not block.is_json or len(block.pieces) != 1 or "\n" in block.pieces[0]:
        return block.pieces
    try:
        return [record_lines(json.loads(block.pieces[0]))]
    except (ValueError, RecursionError):  # integers with too many digits, or nested too deeply
        return block.pieces


def find_media(value: Any) -> tuple[str, ...]:
    """Return the handles of blobs in a value: the value itself, or items of a list or dict."""
    if isinstance(value, dict) and isinstance(value.get("media"), str):
        return (value["media"],)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    media = (part.get("media") for part in islice(parts, MAX_PARTS) if isinstance(part, dict))
    return tuple(islice((handle for handle in media if isinstance(handle, str)), MAX_MEDIA))


def _get_format(result: JsonObject) -> str | None:
    chosen = result.get("format")
    return chosen if isinstance(chosen, str) and chosen in FORMATS else None


def _is_slow(result: JsonObject) -> bool:
    is_compact = _get_format(result) in {None, "json", "raw"} and not result.get("from_ot")
    return not is_compact and result["bytes"] > SLOW_BYTES
