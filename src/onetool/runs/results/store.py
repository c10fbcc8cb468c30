"""The store of large results: put, read a part, load.

A result consists of a text file, an index of its pages, and a meta file, which is written last:
without one, the result does not exist. A summary replaces the result in the answer of the run. Data
is summarized by `onetool_child.summary`, because large data is parsed only in the process that
created it.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from onetool.errors import StorageError, ToolError
from onetool.runs.results import matches, window
from onetool.runs.results.blobs import Quota, Stored
from onetool.runs.results.window import (
    START,
    Deadline,
    Meta,
    ResultContent,
    Unit,
    encode_pages,
    pack_marks,
)
from onetool.state.result_parts import ResultFiles, is_handle, new_handle
from onetool.util.clock_watch import Clock
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.summary import pluralize

if TYPE_CHECKING:
    from onetool.settings.model import Output
    from onetool.state.storage import State

_SEARCH_SECONDS = 30.0
_CLEAN_SECONDS = 1.0  # between two looks for expired results, which read the whole directory
_PART_CHARS = 1 << 20  # of one transferred part
_MAX_QUOTED_CHARS = 200  # of an invalid handle in messages
_PREVIEW_CHARS = 500


class StoredResults:
    """Results in parts."""

    def __init__(
        self,
        files: ResultFiles,
        ttl: float,
        preview_lines: int,
        *,
        clock: Clock = time.time,
        search_seconds: float = _SEARCH_SECONDS,
        quota: Quota | None = None,
    ) -> None:
        self._files = files
        self._place = files.place
        self._ttl = ttl
        self._preview_lines = preview_lines
        self._clock = clock
        self._search_seconds = search_seconds
        self._quota = quota or Quota()
        self._agents: dict[str, str] = {}  # by handle
        self._cleaned_at = 0.0

    @classmethod
    def open(cls, state: "State", output: "Output") -> Self:
        """Open the stored results with limits from the settings."""
        return cls(
            state.open_parts("result"),
            output.result_ttl,
            output.preview_lines,
            clock=state.clock_watch.clock,
            quota=Quota(output.max_stored_bytes, output.max_stored_bytes_per_agent),
        )

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
        labels: JsonMapping | None = None,
    ) -> JsonObject:
        """Store the text, or its pieces, and return the summary that replaces it.

        `about` describes it in a few words. `beside` is the data as JSON if the text renders it in
        another format; `load` returns it.
        """
        handle = new_handle()
        with self._removed_on_error(handle, tool):
            self._files.prepare()
            self._clean_sometimes()
            value = None if beside is None else beside.encode("utf-8", "backslashreplace")
            marks = [START]
            pieces = [text] if isinstance(text, str) else text
            self._files.publish(
                handle, "txt", self._check_size(encode_pages(pieces, marks), len(value or b""))
            )
            self._files.publish(handle, "idx", pack_marks(marks))
            if value is not None:
                self._files.publish(handle, "json", [value])
            with self._content(handle) as content:
                meta = Meta(
                    handle=handle,
                    total_lines=content.count_lines(),
                    size_bytes=content.end.size,
                    created_at=window.format_time(self._clock()),
                    tool=tool,
                    agent=agent,
                    kind="text" if not is_json and beside is None else "json",
                    total_chars=content.end.chars,
                    value_beside=beside is not None,
                    token_id=token_id,
                    is_untrusted=is_untrusted,
                    labels=labels,
                )
                first_lines = _preview(content.texts(), self._preview_lines)
            self._files.publish(handle, "meta.json", [window.encode_meta(meta)], agent)
            removed = self._make_room(meta)
        return _describe(meta, _summarize(meta, about), first_lines, removed)

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
    ) -> JsonObject:
        """Return part of a result: `limit` lines or characters, starting at `offset`.

        `lines` joined by line breaks are the text of the window. By characters, `returned` and
        `offset` count characters, and `unit` and `total_chars` are added.

        A search returns the matching lines or, by characters, the text around each match; `offset`
        and `limit` count these. `matched_lines` is their number, and `positions` are their offsets
        in the result.
        """
        window.check(offset, limit, unit)
        with self._open(handle, agent, token_id) as (meta, content):
            in_chars = meta.has_long_lines if unit == "auto" else unit == "chars"
            if search and fuzzy:
                matches.check_needle(search)
                pieces = (
                    matches.split_pages(content.texts(), search)
                    if in_chars
                    else matches.split_lines(content.lines(), search)
                )
                similar_hits = matches.find_similar(
                    pieces, search, ignore_case, Deadline(self._search_seconds)
                )
                part = window.from_hits(*window.select_best(similar_hits, offset, limit))
            elif search:
                find = matches.find_parts if in_chars else matches.find_lines
                pattern = matches.compile_pattern(search, ignore_case)
                exact_hits = find(content.pages(), pattern, Deadline(self._search_seconds))
                part = window.from_hits(*window.select_first(exact_hits, offset, limit))
            elif in_chars:
                part = window.read_chars(content, meta.total_chars, offset, limit)
            else:
                part = window.read_lines(content, meta.total_lines, offset, limit)
        return window.build_answer(meta, part, offset, in_chars=in_chars)

    def origin(
        self, handle: str, agent: str = "default", token_id: str = ""
    ) -> tuple[str, bool, JsonMapping | None]:
        """Return the tool of the result, whether it is untrusted, and its session's labels."""
        meta = self._meta(handle, agent, token_id)
        return meta.tool, meta.is_untrusted, meta.labels

    def load(self, handle: str, agent: str = "default", token_id: str = "") -> Any:
        """Return the complete value: data if it was stored as data, else the text."""
        with self._open(handle, agent, token_id) as (meta, content):
            if meta.kind == "text":
                return content.read_all()
            text = self._value_beside(meta) if meta.value_beside else content.read_all()
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ToolError(f"cannot load the result {handle} as data; use ot.result()") from None

    def part(
        self, handle: str, number: int, agent: str = "default", token_id: str = ""
    ) -> JsonObject:
        """Return one part of a large text and the number of the next part."""
        if number < 0:
            raise ValueError(f"part must be >= 0, got {number}")
        with self._open(handle, agent, token_id) as (meta, content):
            if meta.value_beside:
                return {"text": self._value_beside(meta).decode(), "next": None, "is_json": True}
            start = 1 + number * _PART_CHARS
            text = "".join(content.chars(start, _PART_CHARS)) if start <= meta.total_chars else ""
            following = number + 1 if start + _PART_CHARS <= meta.total_chars else None
            return {"text": text, "next": following, "is_json": meta.kind == "json"}

    @contextmanager
    def _removed_on_error(self, handle: str, tool: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._files.remove(handle)
            raise StorageError(
                f"the result of {tool} is too large to show and cannot be stored in {self._place}: "
                f"{error.strerror or error}",
                hint="free space on that disk, or return a smaller part of the result",
                folder=self._place,
            ) from None
        except BaseException:
            self._files.remove(handle)
            raise

    def _check_size(self, chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
        for chunk in chunks:
            size += len(chunk)
            self._quota.check_size(size)
            yield chunk

    def _make_room(self, meta: Meta) -> int:
        """Remove the oldest results beyond the quota, of which this one is the newest.

        Return how many.

        The lock and a fresh list make sure that concurrently stored results are all counted.
        """
        if self._files.has_room(
            self._quota.max_bytes, self._quota.max_agent_bytes, meta.agent, meta.handle
        ):
            return 0
        with self._files.locked():
            stored = self._files.clean(self._ttl)
            now = self._clock()
            unfinished = 0
            results: list[Stored] = []
            for handle, files in stored.items():
                if files.is_being_written(now):
                    unfinished += files.size
                else:
                    agent = files.agent or self._agents.get(handle) or self._find_agent(handle)
                    results.append(Stored(files.modified_at, handle, agent, files.size))
            self._agents = {result.handle: result.agent for result in results}
            size = stored[meta.handle].size if meta.handle in self._agents else 0
            new = Stored(meta.created, meta.handle, meta.agent, size)
            surplus = self._quota.find_surplus(results, new, unfinished)
            for result in surplus:
                self._files.evict(result.handle)
            sizes: Counter[str] = Counter()
            for result in set(results).difference(surplus):
                sizes[result.agent] += result.size
            self._files.record_usage(sizes)
            return len(surplus)

    def _clean_sometimes(self) -> None:
        """Remove expired results, but not with each of many new ones."""
        now = self._clock()
        if abs(now - self._cleaned_at) >= _CLEAN_SECONDS:
            self._cleaned_at = now
            self._files.clean(self._ttl)

    def _find_agent(self, handle: str) -> str:
        """Return the agent of a result; empty if the result is incomplete."""
        try:
            with self._files.reading(handle, "meta.json") as file:
                return window.read_meta(file).agent
        except (OSError, ValueError, TypeError, AttributeError, RecursionError, ToolError):
            return ""

    @contextmanager
    def _content(self, handle: str) -> Iterator[ResultContent]:
        with (
            self._files.reading(handle, "txt") as file,
            self._files.reading(handle, "idx") as index,
        ):
            yield ResultContent(file, index)

    @contextmanager
    def _open(self, handle: str, agent: str, token_id: str) -> Iterator[tuple[Meta, ResultContent]]:
        meta = self._meta(handle, agent, token_id)
        with ExitStack() as stack:
            try:
                content = stack.enter_context(self._content(handle))
            except OSError:
                raise self._missing_error(meta) from None
            if not content.is_complete(meta.size_bytes):
                raise _not_found_error(handle)
            try:
                yield meta, content
            except UnicodeDecodeError:  # somebody has changed the file
                raise _not_found_error(handle) from None

    def _meta(self, handle: object, agent: str, token_id: str) -> Meta:
        """Return the metadata of a result.

        Without a token, an agent reads the results of all its tokens.
        """
        if not is_handle(handle):
            raise _not_found_error(handle)
        try:
            with self._files.reading(handle, "meta.json") as file:
                meta = window.read_meta(file)
            age = self._clock() - meta.created
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            raise _not_found_error(handle) from None
        if meta.agent != agent or token_id not in {"", meta.token_id}:
            raise _not_found_error(handle)
        if age > self._ttl:
            raise _expired_error(handle)
        return meta

    def _value_beside(self, meta: Meta) -> bytes:
        try:
            with self._files.reading(meta.handle, "json") as file:
                return file.read()
        except OSError:
            raise self._missing_error(meta) from None

    def _missing_error(self, meta: Meta) -> ToolError:
        """Return the error for a result without content: it was evicted or has expired."""
        if self._clock() - meta.created > self._ttl:
            return _expired_error(meta.handle)
        return ToolError(
            f"the result {meta.handle} was removed to make room for newer ones",
            hint="run the call again, and use each result before storing many more",
            reason="evicted",
        )


def _not_found_error(handle: object) -> ToolError:
    quoted = (
        repr(handle[:_MAX_QUOTED_CHARS])
        if isinstance(handle, str)
        else f"expected a string, not {type(handle).__name__}"
    )
    advice = "Use the handle from the summary, or run the call again."
    return ToolError(f"Result not found: {quoted}. {advice}", reason="not_found")


def _expired_error(handle: str) -> ToolError:
    return ToolError(
        f"the result {handle} has expired", hint="run the call again", reason="expired"
    )


# --- summary --------------------------------------------------------------------------------------


def _describe(meta: Meta, summary: str, preview: list[str], removed: int = 0) -> JsonObject:
    """Return the object that replaces a stored result.

    `removed` is the number of older results that it evicted.
    """
    window = "offset=1, limit=5000, unit='chars'" if meta.has_long_lines else "offset=1, limit=50"
    return {
        "handle": meta.handle,
        "total_lines": meta.total_lines,
        "size_bytes": meta.size_bytes,
        "summary": summary,
        "preview": preview,
        "query": f"ot.result(handle='{meta.handle}', {window})",
        **(
            {"note": f"{pluralize(removed, 'older result')} removed to make room"}
            if removed
            else {}
        ),
    }


def _summarize(meta: Meta, about: str) -> str:
    """Return a one-line summary. `about` is the caller's description of the result; empty for text."""
    extent = f"{pluralize(meta.total_lines, 'line')}, {pluralize(meta.size_bytes, 'byte')}"
    return f"{about or ('JSON' if meta.kind == 'json' else 'text')}, {extent}"


def _preview(pages: Iterable[str], count: int) -> list[str]:
    return list(islice(_clip_lines(pages), count))


def _clip_lines(pages: Iterable[str]) -> Iterator[str]:
    partial = ""
    length = 0
    for page in pages:
        *complete, rest = page.split("\n")
        for line in complete:
            text = line.removesuffix("\r")
            yield _clip(partial + text[:_PREVIEW_CHARS], length + len(text))
            partial = ""
            length = 0
        partial = (partial + rest[:_PREVIEW_CHARS])[:_PREVIEW_CHARS]
        length = length + len(rest)
    if length:
        yield _clip(partial, length)


def _clip(start: str, length: int) -> str:
    rest = length - _PREVIEW_CHARS
    # A carriage return remains if the page ended between it and its line feed.
    return (
        f"{start[:_PREVIEW_CHARS]}… [{pluralize(rest, 'more character')}]"
        if rest > 0
        else start.removesuffix("\r")
    )
