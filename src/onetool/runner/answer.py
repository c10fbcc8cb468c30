"""From what a run printed and gave to what its client sees: text in blocks, redacted, and never too much of it.

What is over `output.max_inline_size` goes to the result store, and a summary with a handle stands in its place. What
the code of the run is, and how it failed, is decided elsewhere.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread

from onetool.config.model import Output
from onetool.context import Foreign, ToolContext
from onetool.errors import ArgumentError, ToolError, error_type
from onetool.redact import Redactor
from onetool.render import render
from onetool.results.window import find_largest_limit
from onetool.runner import explain
from onetool.sanitise import sanitise
from onetool.storage import ResultStorage
from onetool.util.invisible import escape_invisible
from onetool_child.data import FORMATS, has_too_much_indentation, record_lines
from onetool_child.summary import summary

NO_VALUE = "Done: the code ran and has no value. End it with an expression, or use return, to see one."
LARGE_ANSWER = 1 << 16  # bytes: better looked at by a thread
LARGEST_YAML = 1 << 21  # bytes; it takes a second a megabyte
SLOW = 1 << 12  # bytes of data in YAML or indented
MOST_MEDIA, MOST_META = 20, 20
MAX_NOTICES = 10
MAX_HELP_BYTES = 1 << 18
LONGEST_ABOUT, LONGEST_ERROR, MOST_SOURCES = 1000, 20_000, 10
JSON_FORMATS = {None, "json", "json_h"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client sees: the printed text where there is any, then the value or the error."""

    blocks: tuple[str, ...]
    is_error: bool = False
    error: str | None = None
    media: tuple[str, ...] = ()  # handles of pictures and the like that are part of the value

    @property
    def text(self) -> str:
        return "\n".join(self.blocks)


@dataclass(slots=True)
class Journal:
    """What has happened in a run so far, for whoever shows its progress."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    printed_bytes: int = 0
    value: list[str] = field(default_factory=list)
    value_bytes: int = 0
    sources: set[str] = field(default_factory=set)
    doing: str = ""
    meta: dict[str, Any] = field(default_factory=dict)  # what servers said about their answers, by tool
    request_id: str = ""  # of what asked for the run, where that has one
    is_untrusted: bool = False  # whether anything came from a server whose answers are always to be wrapped
    notices: list[str] = field(default_factory=list)  # shown beside the value
    listener: Callable[[str, Any], None] | None = None  # told at once, by whichever thread; only `output` is redacted

    def tell(self, event: str, what: Any) -> None:
        if self.listener is not None:
            self.listener(event, what)

    def note(self, text: str) -> None:
        """What is being waited for."""
        self.doing = text
        self.tell("progress", text)

    def notify(self, text: str) -> None:
        """Show a notice beside the value, once."""
        if text not in self.notices and len(self.notices) < MAX_NOTICES:
            self.notices.append(text)

    def hear(self, foreign: Foreign) -> None:
        self.is_untrusted |= foreign.is_untrusted
        if foreign.meta and (foreign.source in self.meta or len(self.meta) < MOST_META):
            self.meta[foreign.source] = dict(foreign.meta)


class Live:
    """What is printed, on its way to whoever watches the run: without secrets, and nothing that is to be wrapped."""

    def __init__(self, journal: Journal, redact: Redactor, *, is_wrapped: bool) -> None:
        self._journal, self._stream = journal, redact.stream()
        self._is_seen = journal.listener is not None and not is_wrapped

    def add(self, text: str) -> None:
        if self._is_seen:
            self._tell(self._stream.add(text))

    def end(self) -> None:
        if self._is_seen:
            self._tell(self._stream.end())
        self._is_seen = False

    def _tell(self, shown: str) -> None:
        if shown and not self._journal.is_untrusted:
            self._journal.tell("output", shown)


@dataclass(slots=True)
class _Block:
    """A text in pieces, and what else is known about it. Pieces are let go of as they are stored."""

    pieces: list[str]
    size: int
    about: str = ""
    is_json: bool = False
    format: str | None = None
    beside: Callable[[], str] | None = None  # the data as JSON, where the text shows it in another way
    stays: bool = False  # whether it is shown however long it is
    find_limit: Callable[[int], str] | None = None  # of a part of a stored result, which is not stored again
    error: str | None = None  # the type of the error, if it could not be stored


class Presenter:
    """How answers look, by the settings of `output:`."""

    def __init__(self, output: Output, store: ResultStorage, redact: Redactor) -> None:
        self._output, self._store, self._redact = output, store, redact

    def live(self, journal: Journal) -> Live:
        return Live(journal, self._redact, is_wrapped=self._output.sanitize)

    async def success(self, journal: Journal, result: dict[str, Any], caller: ToolContext) -> Answer:
        """The code may have forged the result: nothing in it is certain but its size."""
        sanitize = result.get("sanitize")
        try:
            value = await in_thread_if(
                result["bytes"] > LARGE_ANSWER or _is_slow(result), partial(_value, journal, result)
            )
        except ToolError as error:  # it cannot be shown
            text = explain.refusal(error, journal.calls)
            return await self.failure(journal, text, error_type(error), caller, sanitize=sanitize)
        _mark(value, journal, result)
        blocks = [*_printed(journal), *value]
        texts = await self._shown(blocks, journal, caller, sanitize)
        kind = next((block.error for block in blocks if block.error), None)
        return Answer(texts or (NO_VALUE,), is_error=kind is not None, error=kind, media=_media(result.get("value")))

    async def failure(self, journal: Journal, text: str, kind: str, caller: ToolContext, *, sanitize: object) -> Answer:
        shown = escape_invisible(explain.shortened(text, LONGEST_ERROR))
        blocks = [*_printed(journal), _Block([shown], len(shown.encode("utf-8", "replace")), stays=True)]
        return Answer(await self._shown(blocks, journal, caller, sanitize), is_error=True, error=kind)

    async def _shown(
        self, blocks: list[_Block], journal: Journal, caller: ToolContext, sanitize: object
    ) -> tuple[str, ...]:
        size, limit = sum(block.size for block in blocks), self._output.max_inline_size
        is_work = size > LARGE_ANSWER or bool(limit and size > limit)  # what is stored waits for the disk
        return await in_thread_if(is_work, partial(self._texts, blocks, journal, caller, sanitize))

    def _texts(self, blocks: list[_Block], journal: Journal, caller: ToolContext, sanitize: object) -> tuple[str, ...]:
        self._store_what_is_too_much(blocks, journal, caller)
        texts = []
        for block in blocks:
            text = "".join(block.pieces)
            if block.is_json and block.format in {None, "json"}:  # it may have crossed with a record on each line
                text = text.replace("\n", "")
            # Half a character, which only hostile code sends, would keep the whole answer from being sent.
            texts.append(self._redact(text).encode("utf-8", "backslashreplace").decode())
        wanted = sanitize if isinstance(sanitize, bool) else self._output.sanitize
        if not (wanted or journal.is_untrusted):
            return tuple(texts)
        source = ", ".join(sorted(journal.sources)[:MOST_SOURCES]) or "run"
        return tuple(sanitise(text, source) for text in texts)

    def _store_what_is_too_much(self, blocks: list[_Block], journal: Journal, caller: ToolContext) -> None:
        """The largest block first: a short value beside a long printout stays where it is."""
        shown, limit = sum(block.size for block in blocks), self._output.max_inline_size
        for block in sorted(blocks, key=lambda block: block.size, reverse=True):
            if limit and shown > limit and not block.stays:
                shown -= block.size
                if block.find_limit is not None:
                    _reject_window(block, limit, block.find_limit(limit - shown))
                else:
                    self._put_away(block, journal, caller)

    def _put_away(self, block: _Block, journal: Journal, caller: ToolContext) -> None:
        pieces = _by_record(block)
        pieces.reverse()
        # Each piece is forgotten as soon as the next is asked for, so that nothing is held twice.
        kept = self._redact.pieces(pieces.pop() for _ in range(len(pieces)))
        try:
            standing_for_it = self._store.put(
                kept,
                tool=next(iter(journal.sources)) if len(journal.sources) == 1 else "run",
                agent=caller.agent_id,
                token_id=caller.token_id,
                about=block.about,
                is_json=block.is_json,
                beside=None if block.beside is None else self._redact(block.beside()),
                is_untrusted=journal.is_untrusted,
            )
        except ToolError as not_stored:
            block.pieces, block.error = [explain.refusal(not_stored, journal.calls)], not_stored.type
        else:
            block.pieces = [render(standing_for_it, block.format)]


async def in_thread_if(is_work: bool, work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work) if is_work else work()


def _printed(journal: Journal) -> list[_Block]:
    return [_Block(journal.printed, journal.printed_bytes)] if journal.printed else []


def _value(journal: Journal, result: dict[str, Any]) -> list[_Block]:
    chosen = _format(result)
    if journal.value:
        is_json, about = result.get("is_json") is True, str(result.get("about") or "")[:LONGEST_ABOUT]
        return [_Block(journal.value, journal.value_bytes, about, is_json=is_json, format=chosen)]
    if not result.get("has_value"):
        return []
    value, flow = result.get("value"), bool(result.get("from_ot"))
    if result["bytes"] > LARGEST_YAML or (_is_slow(result) and has_too_much_indentation(value)):
        chosen, flow = "json", False
    if not isinstance(value, dict | list):
        text = render(value, chosen)
        return [_Block([text], len(text.encode()), format=chosen)]
    is_json = chosen in JSON_FORMATS and not (flow and chosen is None)
    text = render(value, chosen, flow=flow)
    beside = None if is_json else partial(render, value, "json")
    return [_Block([text], len(text.encode()), summary(value), is_json, chosen, beside)]


def _mark(value: list[_Block], journal: Journal, result: dict[str, Any]) -> None:
    """Help is shown however long it is, and a part of a stored result is not stored again."""
    called = {name for name, _ in journal.calls}
    for block in value:
        block.stays = called == {"ot.help"} and block.size <= MAX_HELP_BYTES
        if called == {"ot.result"} and result.get("from_ot"):
            block.find_limit = partial(_find_limit, block, result)


def _reject_window(block: _Block, limit: int, fitting: str) -> None:
    what = f"the part of the result has {block.size} bytes, and output.max_inline_size is {limit}"
    hint = f"Hint: use {fitting or 'a larger output.max_inline_size'}, or ot.load(handle) in code"
    block.pieces = [f"ArgumentError: {what}\n{hint}"]
    block.error = ArgumentError.type


def _find_limit(block: _Block, result: dict[str, Any], room: int) -> str:
    """Return the arguments of ot.result whose answer fits into so many bytes; empty if there are none."""

    def fits(shown: dict[str, Any]) -> bool:
        return len(render(shown, _format(result), flow=True).encode("utf-8", "replace")) <= room

    try:
        return _describe_limit(result.get("value") or json.loads("".join(block.pieces)), block.size, fits)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):  # forged by the code
        return ""


def _describe_limit(shown: dict[str, Any], size: int, fits: Callable[[dict[str, Any]], bool]) -> str:
    shown = {**shown, "returned": min(shown["returned"], size)}
    if limit := find_largest_limit(shown, fits):
        return f"limit={limit}"
    if "positions" in shown or "unit" in shown:
        return ""
    line, total = shown["lines"][0], shown["total_lines"] * size
    by_chars = {"lines": [line], "returned": len(line), "unit": "chars", "total_chars": total}
    limit = find_largest_limit({**shown, **by_chars}, fits)
    return f"limit={limit}, unit='chars'" if limit else ""


def _by_record(block: _Block) -> list[str]:
    """The pieces with a record on each line, where the block is compact JSON in one piece."""
    if not block.is_json or len(block.pieces) != 1 or "\n" in block.pieces[0]:
        return block.pieces
    try:
        return [record_lines(json.loads(block.pieces[0]))]
    except (ValueError, RecursionError):  # integers that Python does not read; too deep
        return block.pieces


def _media(value: Any) -> tuple[str, ...]:
    """Of a value that is such a thing, or a list that has some."""
    parts = value if isinstance(value, list) else [value]
    found = (part.get("media") for part in parts[:MOST_MEDIA] if isinstance(part, dict))
    return tuple(handle for handle in found if isinstance(handle, str))


def _format(result: dict[str, Any]) -> str | None:
    chosen = result.get("format")
    return chosen if isinstance(chosen, str) and chosen in FORMATS else None


def _is_slow(result: dict[str, Any]) -> bool:
    is_compact = _format(result) in {None, "json", "raw"} and not result.get("from_ot")
    return not is_compact and result["bytes"] > SLOW
