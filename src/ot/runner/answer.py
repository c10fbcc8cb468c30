"""From what a run printed and gave to what its client sees: text in blocks, redacted, and never too much of it.

What is over `output.max_inline_size` goes to the result store, and a summary with a handle stands in its place. What
the code of the run is, and how it failed, is decided elsewhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio.to_thread

from ot.config.model import Output
from ot.errors import ToolError
from ot.redact import Redactor
from ot.render import render
from ot.results import ResultStore
from ot.sanitise import sanitise
from ot_child.summary import summary

NO_VALUE = "Done: the code ran and has no value. End it with an expression, or use return, to see one."
LARGE_ANSWER, LARGEST_YAML = 1 << 16, 1 << 21  # bytes; YAML takes a second a megabyte
JSON_FORMATS = {None, "json", "json_h"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client sees: the printed text where there is any, then the value or the error."""

    blocks: tuple[str, ...]
    is_error: bool = False
    error: str | None = None

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
    result_tokens: int = 0
    sources: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Block:
    """A text in pieces, and what else is known about it. Pieces are let go of as they are stored."""

    pieces: list[str]
    size: int
    about: str = ""
    is_json: bool = False
    format: str | None = None
    beside: Callable[[], str] | None = None  # the data as JSON, where the text shows it in another way


class Presenter:
    """How answers look, by the settings of `output:`."""

    def __init__(self, output: Output, store: ResultStore, redact: Redactor) -> None:
        self._output, self._store, self._redact = output, store, redact

    async def success(self, journal: Journal, result: dict[str, Any], agent: str) -> Answer:
        """The code may have forged the result: nothing in it is certain but its size."""
        if journal.printed_bytes + journal.value_bytes + result["bytes"] > LARGE_ANSWER:
            return await anyio.to_thread.run_sync(self._success, journal, result, agent)
        return self._success(journal, result, agent)

    async def failure(self, journal: Journal, text: str, kind: str, agent: str, *, sanitize: object) -> Answer:
        blocks = [*_printed(journal), _Block([text], len(text))]
        try:
            if journal.printed_bytes > LARGE_ANSWER:
                shown = await anyio.to_thread.run_sync(self._shown, blocks, journal, agent, sanitize)
            else:
                shown = self._shown(blocks, journal, agent, sanitize)
        except ToolError as not_kept:
            shown = (self._redact(text), self._redact(not_kept.message))
        return Answer(shown, is_error=True, error=kind)

    def _success(self, journal: Journal, result: dict[str, Any], agent: str) -> Answer:
        blocks = [*_printed(journal), *_value(journal, result)]
        return Answer(self._shown(blocks, journal, agent, result.get("sanitize")) or (NO_VALUE,))

    def _shown(self, blocks: list[_Block], journal: Journal, agent: str, sanitize: object) -> tuple[str, ...]:
        self._store_what_is_too_much(blocks, journal, agent)
        texts = (self._redact("".join(block.pieces)) for block in blocks)
        if not (sanitize if isinstance(sanitize, bool) else self._output.sanitize):
            return tuple(texts)
        source = ", ".join(sorted(journal.sources)) or "run"
        return tuple(sanitise(text, source) for text in texts)

    def _store_what_is_too_much(self, blocks: list[_Block], journal: Journal, agent: str) -> None:
        """The largest block first: a short value beside a long printout stays where it is."""
        limit = self._output.max_inline_size
        for block in sorted(blocks, key=lambda block: block.size, reverse=True):
            if limit and sum(each.size for each in blocks) > limit:
                self._put_away(block, _tool(journal), agent)

    def _put_away(self, block: _Block, tool: str, agent: str) -> None:
        kept = self._redact.pieces(_consumed(block.pieces))
        beside = None if block.beside is None else self._redact(block.beside())
        standing_for_it = self._store.store(
            kept, tool=tool, agent=agent, about=block.about, is_json=block.is_json, beside=beside
        )
        text = render(standing_for_it, block.format)
        block.pieces, block.size = [text], len(text.encode())


def _printed(journal: Journal) -> list[_Block]:
    return [_Block(journal.printed, journal.printed_bytes)] if journal.printed_bytes else []


def _value(journal: Journal, result: dict[str, Any]) -> list[_Block]:
    chosen = result.get("format")
    chosen = chosen if isinstance(chosen, str) else None
    if journal.value:
        is_json, about = result.get("is_json") is True, str(result.get("about") or "")
        return [_Block(journal.value, journal.value_bytes, about, is_json=is_json, format=chosen)]
    if not result.get("has_value"):
        return []
    value, flow = result.get("value"), bool(result.get("from_ot"))
    if result["bytes"] > LARGEST_YAML:
        chosen, flow = "json", False
    text = render(value, chosen, flow=flow)
    if not isinstance(value, dict | list):
        return [_Block([text], len(text.encode()), format=chosen)]
    is_json = chosen in JSON_FORMATS and not flow
    beside = None if is_json else partial(render, value, "json")
    return [_Block([text], len(text.encode()), summary(value), is_json, chosen, beside)]


def _consumed(pieces: list[str]) -> Iterator[str]:
    """The pieces, each forgotten as soon as the next is asked for, so that nothing is held twice."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()


def _tool(journal: Journal) -> str:
    """What the stored text came from, as far as that is one tool."""
    return next(iter(journal.sources)) if len(journal.sources) == 1 else "run"
