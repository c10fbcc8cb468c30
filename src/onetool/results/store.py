"""The store of large results: put, read a part, load.

A result is text in a file of its own, an index of where its pages begin, and a meta file that is written last: what
has none does not exist. The parts of the work stand in the modules beside this one.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from onetool.errors import StorageError, ToolError
from onetool.results import hits, matches, meta as facts, similar, window
from onetool.results.content import START, Content, encoded, packed
from onetool.results.files import Files, is_handle, new_handle
from onetool.results.hits import Deadline
from onetool.results.meta import Meta
from onetool.results.quota import Quota, Stored
from onetool.results.summary import description, preview, summary
from onetool.results.window import Unit

_SEARCH_SECONDS = 30.0
_PART = 1 << 20  # characters of one transferred part
_SHOWN = 200  # characters of an invalid handle in messages


class ResultStore:
    def __init__(
        self,
        folder: Path,
        ttl: float,
        preview_lines: int,
        clock: Callable[[], float] = time.time,
        search_seconds: float = _SEARCH_SECONDS,
        *,
        quota: Quota | None = None,
    ) -> None:
        self._folder = folder
        self._files = Files(folder, clock)
        self._ttl = ttl
        self._preview_lines = preview_lines
        self._clock = clock
        self._search_seconds = search_seconds
        self._quota = quota or Quota()
        self._agents: dict[str, str] = {}  # by handle

    def put(
        self,
        text: str | Iterable[str],
        *,
        tool: str,
        agent: str = "default",
        token_id: str = "",
        is_json: bool = False,
        about: str = "",
        beside: str | None = None,
        is_untrusted: bool = False,
    ) -> dict[str, Any]:
        """Store the text, or its pieces, and return the summary that replaces it.

        `about` says in a few words what it is. `beside` is the data as JSON, where the text shows it in another way;
        `load` gives that.
        """
        handle = new_handle()
        with self._whole_or_not_at_all(handle, tool):
            self._files.prepare()
            self._files.clean(self._ttl)
            value = None if beside is None else beside.encode("utf-8", "backslashreplace")
            marks, pieces = [START], [text] if isinstance(text, str) else text
            self._files.publish(handle, "txt", self._bounded(encoded(pieces, marks), len(value or b"")))
            self._files.publish(handle, "idx", packed(marks))
            if value is not None:
                self._files.publish(handle, "json", [value])
            with self._content(handle) as content:
                meta = Meta(
                    handle=handle,
                    total_lines=content.count_lines(),
                    size_bytes=content.end.size,
                    created_at=facts.as_written(self._clock()),
                    tool=tool,
                    agent=agent,
                    kind="text" if not is_json and beside is None else "json",
                    total_chars=content.end.chars,
                    value_beside=beside is not None,
                    token_id=token_id,
                    is_untrusted=is_untrusted,
                )
                first_lines = preview(content.texts(), self._preview_lines)
            self._files.publish(handle, "meta.json", [facts.written(meta)])
            removed = self._make_room(meta)
        return description(meta, summary(meta, about), first_lines, removed)

    def window(
        self,
        handle: str,
        offset: int = 1,
        limit: int = 100,
        search: str = "",
        fuzzy: bool = False,
        *,
        unit: Unit = "auto",
        ignore_case: bool = False,
        agent: str = "default",
        token_id: str = "",
    ) -> dict[str, Any]:
        """Return part of a result: `limit` lines or characters, starting at `offset`.

        `lines` joined by line breaks are the text of the window. By characters, `returned` and `offset` count
        characters, and `unit` and `total_chars` are added.

        A search returns the lines that match and, by characters, the text around each match; `offset` and `limit`
        count these. `matched_lines` is how many there are, and `positions` are their offsets in the whole.
        """
        window.check(offset, limit, unit)
        with self._opened(handle, agent, token_id) as (meta, content):
            in_chars = meta.has_long_lines if unit == "auto" else unit == "chars"
            if search and fuzzy:
                similar.check_needle(search)
                cut = (
                    similar.of_pages(content.texts(), search) if in_chars else similar.of_lines(content.lines(), search)
                )
                found = similar.similar(cut, search, ignore_case, Deadline(self._search_seconds))
                part = window.of_hits(*hits.best(found, offset, limit))
            elif search:
                find = matches.matching_parts if in_chars else matches.matching_lines
                pattern = matches.compiled(search, ignore_case)
                found = find(content.pages(), pattern, Deadline(self._search_seconds))
                part = window.of_hits(*hits.first(found, offset, limit))
            elif in_chars:
                part = window.by_chars(content, meta.total_chars, offset, limit)
            else:
                part = window.by_lines(content, meta.total_lines, offset, limit)
        return window.answer(meta, part, offset, in_chars=in_chars)

    def origin(self, handle: str, agent: str = "default", token_id: str = "") -> tuple[str, bool]:
        """Return the tool that produced the result, and whether it is untrusted."""
        meta = self._meta(handle, agent, token_id)
        return meta.tool, meta.is_untrusted

    def load(self, handle: str, agent: str = "default", token_id: str = "") -> Any:
        """Return the complete value: data if it was stored as data, else the text."""
        with self._opened(handle, agent, token_id) as (meta, content):
            if meta.kind == "text":
                return content.whole()
            text = self._value_beside(meta) if meta.value_beside else content.whole()
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ToolError(f"cannot load the result {handle} as data; use ot.result()") from None

    def part(self, handle: str, number: int, agent: str = "default", token_id: str = "") -> dict[str, Any]:
        """Return one part of the text and the number of the next part, for results that are too large to transfer."""
        if number < 0:
            raise ValueError(f"part must be >= 0, got {number}")
        with self._opened(handle, agent, token_id) as (meta, content):
            if meta.value_beside:
                return {"text": self._value_beside(meta).decode(), "next": None, "is_json": True}
            start = 1 + number * _PART
            text = "".join(content.chars(start, _PART)) if start <= meta.total_chars else ""
            following = number + 1 if start + _PART <= meta.total_chars else None
            return {"text": text, "next": following, "is_json": meta.kind == "json"}

    @contextmanager
    def _whole_or_not_at_all(self, handle: str, tool: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._files.remove(handle)
            raise StorageError(
                f"the result of {tool} is too large to show and cannot be stored in {self._folder}: "
                f"{error.strerror or error}",
                hint="free space on that disk, or return a smaller part of the result",
                folder=str(self._folder),
            ) from None
        except BaseException:
            self._files.remove(handle)
            raise

    def _bounded(self, chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
        for chunk in chunks:
            size += len(chunk)
            self._quota.check_size(size)
            yield chunk

    def _make_room(self, meta: Meta) -> int:
        """Remove the oldest results beyond the quota, of which this one is the newest. Return how many.

        The lock and a fresh list make sure that of several results stored at the same time each one counts.
        """
        with self._files.locked():
            found, now = self._files.clean(self._ttl), self._clock()
            unfinished = sum(each.size for each in found.values() if each.is_being_written(now))
            whole = {handle: each for handle, each in found.items() if not each.is_being_written(now)}
            self._agents = {handle: self._agents.get(handle) or self._find_agent(handle) for handle in whole}
            stored = [Stored(each.written, handle, self._agents[handle], each.size) for handle, each in whole.items()]
            size = whole[meta.handle].size if meta.handle in whole else 0
            new = Stored(meta.created, meta.handle, meta.agent, size)
            surplus = self._quota.find_surplus(stored, new, unfinished)
            for result in surplus:
                self._files.evict(result.handle)
            return len(surplus)

    def _find_agent(self, handle: str) -> str:
        """Return the agent of a result; empty if the result is incomplete."""
        try:
            with self._files.reading(handle, "meta.json") as file:
                return facts.read(file).agent
        except (OSError, ValueError, TypeError, AttributeError, RecursionError, ToolError):
            return ""

    @contextmanager
    def _content(self, handle: str) -> Iterator[Content]:
        with self._files.reading(handle, "txt") as file, self._files.reading(handle, "idx") as index:
            yield Content(file, index)

    @contextmanager
    def _opened(self, handle: str, agent: str, token_id: str) -> Iterator[tuple[Meta, Content]]:
        meta = self._meta(handle, agent, token_id)
        with ExitStack() as stack:
            try:
                content = stack.enter_context(self._content(handle))
            except OSError:
                raise self._gone(meta) from None
            if not content.holds(meta.size_bytes):
                raise _not_found(handle)
            yield meta, content

    def _meta(self, handle: object, agent: str, token_id: str) -> Meta:
        """Return the metadata of a result. Without a token, an agent reads the results of all its tokens."""
        if not is_handle(handle):
            raise _not_found(handle)
        try:
            with self._files.reading(handle, "meta.json") as file:
                meta = facts.read(file)
            age = self._clock() - meta.created
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            raise _not_found(handle) from None
        if meta.agent != agent or token_id not in {"", meta.token_id}:
            raise _not_found(handle)
        if age > self._ttl:
            raise _expired(handle)
        return meta

    def _value_beside(self, meta: Meta) -> bytes:
        try:
            with self._files.reading(meta.handle, "json") as file:
                return file.read()
        except OSError:
            raise self._gone(meta) from None

    def _gone(self, meta: Meta) -> ToolError:
        """Return the error for a result without content: it was evicted or has expired."""
        return _expired(meta.handle) if self._clock() - meta.created > self._ttl else _evicted(meta.handle)


def _not_found(handle: object) -> ToolError:
    shown = repr(handle[:_SHOWN]) if isinstance(handle, str) else f"expected a string, not {type(handle).__name__}"
    advice = "Use the handle from the summary, or run the call again."
    return ToolError(f"Result not found: {shown}. {advice}", reason="not_found")


def _evicted(handle: str) -> ToolError:
    return ToolError(
        f"the result {handle} was removed to make room for newer ones",
        hint="run the call again, and use each result before storing many more",
        reason="evicted",
    )


def _expired(handle: str) -> ToolError:
    return ToolError(f"the result {handle} has expired", hint="run the call again", reason="expired")
