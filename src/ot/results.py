"""The store of outputs too large to be shown, and windows into them.

A result is text in a file of its own, an index of where its pages begin, and a meta file that is written last: what
has none does not exist. A window seeks by the index, so that its cost follows the window and not the result; a search
reads page by page. Whether an output is too large, and who may ask for it, others decide.
"""

import json
import os
import re
import secrets
import stat
import struct
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from heapq import heappush, heappushpop
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from ot.errors import ArgumentError, ToolError, ToolTimeout

Unit: TypeAlias = Literal["auto", "lines", "chars"]
_T = TypeVar("_T")

_PAGE = 65_536  # characters between two marks of the index
_LONG_LINE = 1_000  # where lines are longer than this on average, they are no help
_PIECE = 200  # characters that stand for a line in a fuzzy search of text without useful lines, and its longest needle
_STRIP = 4_096  # bytes of such text that are searched at once, and the longest match that is found for certain
_BEFORE, _AFTER = 100, 300  # bytes shown around the start of a match in such text
_REMEMBERED = 86_400.0  # for how long, in seconds, a handle that expired is told from one that never was
_ABANDONED = 600.0  # seconds after which an unfinished file was left by a process that died
_SEARCH_SECONDS = 30.0
_WORST_SCORE = 70.0  # of 100; below it a line has little more than some letters in common
_PREVIEW_WIDTH = 500
_KEYS_SHOWN = 8
_KEY_WIDTH = 40

_HANDLE = re.compile("[0-9a-f]{32}")
_OUR_FILE = re.compile(rf"result-{_HANDLE.pattern}\.(?:txt|idx|json|meta\.json)(?:\.tmp)?")
_FILE_KEYS = ("file", "path", "filename", "file_path")
_LINE_KEYS = {"line", "line_number", "lineno", "match"}
_MARK = struct.Struct("<3Q")
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_ANCHORS = {r"\A": "^", r"\Z": "$", r"\z": "$"}
_BEYOND_RE2 = re.compile(r"invalid perl operator|invalid escape sequence: \\[1-9]")


class ResultStore:
    def __init__(
        self,
        folder: Path,
        ttl: float,
        preview_lines: int,
        clock: Callable[[], float] = time.time,
        search_seconds: float = _SEARCH_SECONDS,
    ) -> None:
        self._folder = folder
        self._ttl = ttl
        self._preview_lines = preview_lines
        self._clock = clock
        self._search_seconds = search_seconds

    def store(
        self, text: str, *, tool: str, value: Any = None, agent: str = "default", is_json: bool = False
    ) -> dict[str, Any]:
        """Keep the text and return what stands for it.

        `value` is the data that the text shows. Unless the text `is_json` of it, it is kept beside it for `load`.
        """
        handle = secrets.token_hex(16)
        try:
            self._prepare_folder()
            self._clean()
            meta = self._write(handle, text, value, tool=tool, agent=agent, is_json=is_json)
        except OSError as error:
            self._remove(handle)
            raise ToolError(
                f"The result of {tool} is too large to be shown and could not be stored in {self._folder}: "
                f"{error.strerror or error}. Return a smaller part of it."
            ) from None
        return self._description(meta, text, value)

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
    ) -> dict[str, Any]:
        """A part of a result: `limit` lines, or characters, from the `offset`-th on.

        `lines` joined by line breaks are the text of the window. By characters, `returned` and `offset` count
        characters, and `unit` and `total_chars` are added.

        A search returns the lines that match and, by characters, the text around each match; `offset` and `limit`
        count these. `matched_lines` is how many there are, and `positions` are their offsets in the whole.
        """
        _check_window(offset, limit, unit)
        with self._opened(handle, agent) as (meta, content):
            by_chars = meta.has_long_lines if unit == "auto" else unit == "chars"
            if search:
                hits = self._hits(content, _finder(search, fuzzy, ignore_case, by_chars))
                part = _found(*(_best if fuzzy else _first)(hits, offset, limit))
            else:
                part = (_chars if by_chars else _lines)(content, meta, offset, limit)
        return _answer(meta, part, offset, by_chars)

    def load(self, handle: str, agent: str = "default") -> Any:
        """The whole value: data where it was data, else the text."""
        with self._opened(handle, agent) as (meta, content):
            if meta.kind == "text":
                return content.whole()
            text = self._value_beside(handle) if meta.value_beside else content.whole()
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ToolError(f"The result {handle} cannot be read back as data. Use ot.result().") from None

    def _clean(self) -> None:
        """Remove what has expired, and what processes that died have left."""
        now = self._clock()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                try:
                    if now - entry.stat(follow_symlinks=False).st_mtime > self._life_of(entry.name):
                        Path(entry.path).unlink()
                except OSError:  # another process was faster
                    continue

    def _life_of(self, name: str) -> float:
        if not _OUR_FILE.fullmatch(name):
            return sys.float_info.max
        if name.endswith(".tmp"):
            return _ABANDONED
        return self._ttl + _REMEMBERED if name.endswith(".meta.json") else self._ttl

    def _prepare_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.is_symlink():
            raise OSError(0, "the folder is a link")
        if self._folder.stat().st_mode & 0o077:
            self._folder.chmod(0o700)

    def _write(self, handle: str, text: str, value: Any, *, tool: str, agent: str, is_json: bool) -> "_Meta":
        marks = [_Mark(0, 0, 0)]
        is_data = isinstance(value, dict | list | tuple)
        self._publish(handle, "txt", _encoded(text, marks))
        self._publish(handle, "idx", (_MARK.pack(*mark) for mark in marks))
        if is_data and not is_json:
            self._publish(handle, "json", [json.dumps(value, default=str).encode()])
        meta = _Meta(
            handle=handle,
            total_lines=marks[-1].breaks + (text[-1:] not in {"", "\n"}),
            size_bytes=marks[-1].size,
            created_at=datetime.fromtimestamp(self._clock(), UTC).isoformat(),
            tool=tool,
            agent=agent,
            kind="json" if is_data else "text",
            total_chars=marks[-1].chars,
            value_beside=is_data and not is_json,
        )
        self._publish(handle, "meta.json", [json.dumps(asdict(meta)).encode()])
        return meta

    def _publish(self, handle: str, part: str, chunks: Iterable[bytes]) -> None:
        """Write a file that is seen whole or not at all. What a machine loses with its power may be lost."""
        path = self._path(handle, part)
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            with open(temporary, "xb", opener=_owner_only) as file:
                file.writelines(chunks)
            now = self._clock()
            os.utime(temporary, (now, now))
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _remove(self, handle: str) -> None:
        for part in ("txt", "idx", "json", "meta.json"):
            try:
                self._path(handle, part).unlink(missing_ok=True)
            except OSError:  # the folder cannot be written to, which is being reported already
                return

    def _path(self, handle: str, part: str) -> Path:
        return self._folder / f"result-{handle}.{part}"

    def _description(self, meta: "_Meta", text: str, value: Any) -> dict[str, Any]:
        window = "offset=1, limit=5000, unit='chars'" if meta.has_long_lines else "offset=1, limit=50"
        return {
            "handle": meta.handle,
            "total_lines": meta.total_lines,
            "size_bytes": meta.size_bytes,
            "summary": _summary(value) or _plain_summary(value, meta),
            "preview": list(islice(_clipped_lines(text), self._preview_lines)),
            "query": f"ot.result(handle='{meta.handle}', {window})",
        }

    @contextmanager
    def _opened(self, handle: str, agent: str) -> "Iterator[tuple[_Meta, _Content]]":
        meta = self._meta(handle, agent)
        with ExitStack() as stack:
            try:
                file, index = [stack.enter_context(_reading(self._path(handle, part))) for part in ("txt", "idx")]
            except OSError:  # another process has cleaned up since the meta file was read
                raise _expired(handle) from None
            content = _Content(file, index)
            if not content.holds(meta.size_bytes):
                raise _not_found(handle)
            yield meta, content

    def _meta(self, handle: str, agent: str) -> "_Meta":
        if not _HANDLE.fullmatch(str(handle)):
            raise _not_found(handle)
        try:
            with _reading(self._path(handle, "meta.json")) as file:
                meta = _Meta(**json.load(file))
            age = self._clock() - datetime.fromisoformat(meta.created_at).timestamp()
        except (OSError, ValueError, TypeError):
            raise _not_found(handle) from None
        if meta.agent != agent:
            raise _not_found(handle)
        if age > self._ttl:
            raise _expired(handle)
        return meta

    def _value_beside(self, handle: str) -> bytes:
        try:
            with _reading(self._path(handle, "json")) as file:
                return file.read()
        except OSError:
            raise _expired(handle) from None

    def _hits(self, content: "_Content", find: "_Find") -> "Iterator[_Hit]":
        deadline = time.monotonic() + self._search_seconds
        return _in_time(find(_in_time(content.pages(), deadline)), deadline)


# --- what is kept ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Meta:
    handle: str
    total_lines: int
    size_bytes: int
    created_at: str
    tool: str
    agent: str
    kind: Literal["json", "text"]
    total_chars: int
    value_beside: bool

    @property
    def has_long_lines(self) -> bool:
        return self.total_chars > _LONG_LINE * self.total_lines


class _Mark(NamedTuple):
    """Where a page begins, as the number of bytes, characters and line breaks before it. The last one is the end."""

    size: int
    chars: int
    breaks: int


def _encoded(text: str, marks: list[_Mark]) -> Iterator[bytes]:
    for start in range(0, len(text), _PAGE):
        # A lone surrogate becomes the escape that Python and JSON both know for it.
        page = text[start : start + _PAGE].encode("utf-8", "backslashreplace")
        size, chars, breaks = marks[-1]
        marks.append(_Mark(size + len(page), chars + len(page.decode()), breaks + page.count(b"\n")))
        yield page


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    with open(path, "rb", opener=_open_itself) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(path)
        yield file


def _open_itself(path: str, flags: int) -> int:
    """Open neither what a link points to nor, for ever, a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _not_found(handle: object) -> ToolError:
    shown = repr(handle)[:_PREVIEW_WIDTH]
    advice = "Take the handle from the answer that named it, or run the call again."
    return ToolError(f"Result not found: {shown}. {advice}", reason="not_found")


def _expired(handle: str) -> ToolError:
    return ToolError(f"The result {handle} has expired. Run the call again to get a new one.", reason="expired")


# --- reading it --------------------------------------------------------------------------------------------


class _Content:
    def __init__(self, file: BinaryIO, index: BinaryIO) -> None:
        self._file = file
        self._index = index
        self._last = os.fstat(index.fileno()).st_size // _MARK.size - 1

    def holds(self, size: int) -> bool:
        """Files are not forced to the disk, so that a loss of power may leave less than the meta file promises."""
        return self._last >= 0 and self._mark(self._last).size == size == os.fstat(self._file.fileno()).st_size

    def pages(self, first: int = 0) -> Iterator[bytes]:
        """The content in parts that begin and end with whole characters."""
        self._file.seek(self._mark(first).size)
        for page in range(first, self._last):
            yield self._file.read(self._mark(page + 1).size - self._mark(page).size)

    def lines(self, first: int) -> Iterator[str]:
        # The first line in a page may have begun before it; so a page is taken that has a line break before the line.
        page = self._last_page_below("breaks", first - 1)
        skipped = first - 1 - self._mark(page).breaks
        blocks = (block.split(b"\n") for block in _blocks(self.pages(page)))
        return map(bytes.decode, islice(chain.from_iterable(blocks), skipped, None))

    def chars(self, first: int, count: int) -> Iterator[str]:
        page = self._last_page_below("chars", first)
        start = first - 1 - self._mark(page).chars
        for text in map(bytes.decode, self.pages(page)):
            part = text[start : start + count]
            yield part
            start, count = 0, count - len(part)
            if not count:
                return

    def whole(self) -> str:
        # Joining a list of pages would hold everything twice; a string with one owner grows in its place.
        text = ""
        for page in self.pages():
            text += page.decode()
        return text

    def _last_page_below(self, column: Literal["chars", "breaks"], count: int) -> int:
        """The last page with less than so many characters or line breaks before it, or else the first."""
        return max(0, bisect_left(range(self._last), count, key=lambda page: getattr(self._mark(page), column)) - 1)

    def _mark(self, page: int) -> _Mark:
        self._index.seek(page * _MARK.size)
        return _Mark._make(_MARK.unpack(self._index.read(_MARK.size)))


def _blocks(pages: Iterable[bytes]) -> Iterator[bytes]:
    """The pages cut anew, into parts of whole lines without the break after the last."""
    begun: list[bytes] = []
    for page in pages:
        ended, line_break, rest = page.rpartition(b"\n")
        if line_break:
            yield _without_returns(b"".join((*begun, ended)))
            begun = []
        begun.append(rest)
    last = b"".join(begun)
    if last:
        yield _without_returns(last)


def _without_returns(block: bytes) -> bytes:
    return block.replace(b"\r\n", b"\n").removesuffix(b"\r")


# --- windows -----------------------------------------------------------------------------------------------


def _check_window(offset: int, limit: int, unit: str) -> None:
    if offset < 1:
        raise ValueError(f"offset must be >= 1 (1-indexed), got {offset}")
    if limit < 1:
        raise ValueError(f"limit must be >= 1, got {limit}")
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be auto, lines or chars, got {unit!r}")


class _Part(NamedTuple):
    lines: list[str]
    returned: int
    total: int
    positions: list[int] | None = None


def _lines(content: _Content, meta: _Meta, offset: int, limit: int) -> _Part:
    total = meta.total_lines
    lines = list(islice(content.lines(offset), min(limit, total))) if offset <= total else []
    return _Part(lines, len(lines), total)


def _chars(content: _Content, meta: _Meta, offset: int, limit: int) -> _Part:
    total = meta.total_chars
    text = "".join(content.chars(offset, min(limit, total))) if offset <= total else ""
    return _Part(text.split("\n") if text else [], len(text), total)


def _found(hits: "list[_Hit]", total: int) -> _Part:
    return _Part([hit.text for hit in hits], len(hits), total, [-hit.back for hit in hits])


def _answer(meta: _Meta, part: _Part, offset: int, by_chars: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "lines": part.lines,
        "total_lines": meta.total_lines,
        "returned": part.returned,
        "offset": offset,
        "has_more": offset - 1 + part.returned < part.total,
    }
    if by_chars:
        answer |= {"unit": "chars", "total_chars": meta.total_chars}
    if part.positions is not None:
        answer |= {"matched_lines": part.total, "positions": part.positions}
    return answer


# --- searching ---------------------------------------------------------------------------------------------


class _Hit(NamedTuple):
    """In the order of rank: `back` is the position with its sign turned, so that of equals the first comes first."""

    score: float
    back: int
    text: str


_Find: TypeAlias = Callable[[Iterable[bytes]], Iterator[_Hit]]


def _finder(search: str, fuzzy: bool, ignore_case: bool, by_chars: bool) -> _Find:
    if fuzzy:
        return partial(_similar, needle=search, ignore_case=ignore_case, by_chars=by_chars)
    return partial(_matching_parts if by_chars else _matching_lines, pattern=_compiled(search, ignore_case))


def _in_time(items: Iterable[_T], deadline: float) -> Iterator[_T]:
    """The items, as long as there is time: RE2 is linear, but there are patterns that cost it 10 µs a byte."""
    for item in items:
        if time.monotonic() > deadline:
            raise ToolTimeout("The search took too long. Search for something simpler.")
        yield item


def _matching_lines(pages: Iterable[bytes], pattern: Any) -> Iterator[_Hit]:
    number = 1
    for block in _blocks(pages):
        at = 0
        while at <= len(block) and (match := pattern.search(block, at)) is not None:
            start = block.rfind(b"\n", at, match.start()) + 1 or at
            end = block.find(b"\n", start) % (len(block) + 1)  # where there is no line break, the end of the block
            number += block.count(b"\n", at, start)
            yield _Hit(0, -number, block[start:end].decode())
            at, number = end + 1, number + 1
        number += block.count(b"\n", at) + (at <= len(block))


def _matching_parts(pages: Iterable[bytes], pattern: Any) -> Iterator[_Hit]:
    position, shown, before = 1, 0, b""
    for strip, following, after in _triples(_strips(pages)):
        text = before + strip + following + after
        at, end, visible = len(before) + shown, len(before) + len(strip), len(text) - len(after)
        while at < end and (match := pattern.search(text, at, visible)) is not None and match.start() < end:
            start, stop = _whole(text, max(at, match.start() - _BEFORE)), _whole(text, match.start() + _AFTER)
            part = text[start:stop].decode()
            position += len(text[at:start].decode())
            yield _Hit(0, -position, part)
            position, at = position + len(part), stop
        position += len(text[at:end].decode())
        shown, before = max(0, at - end), strip[-1:]


def _strips(pages: Iterable[bytes]) -> Iterator[bytes]:
    """Shorter parts of the text, because to find each of many matches RE2 may look at all that follows."""
    text = b""
    for page in pages:
        text, start = text + page, 0
        while start + _STRIP + 3 < len(text):  # so that the character at the end is whole
            end = _whole(text, start + _STRIP)
            yield text[start:end]
            start = end
        text = text[start:]
    if text:
        yield text


def _triples(strips: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Each with the next one, and the byte after that: without it, the end of a part would count as that of a line."""
    for (strip, following), (_, after) in pairwise(pairwise(chain(strips, [b"", b""]))):
        yield strip, following, after[:1]


def _whole(text: bytes, at: int) -> int:
    """The first place from here on where a character begins or the text ends."""
    while at < len(text) and text[at] & 0xC0 == 0x80:  # noqa: PLR2004 - how UTF-8 marks the inside of a character
        at += 1
    return min(at, len(text))


def _compiled(pattern: str, ignore_case: bool) -> Any:
    """The pattern, made to match inside of lines only, so that many lines can be searched at once."""
    import re2

    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.never_capture = options.never_nl = True
    options.log_errors = False
    try:
        return re2.compile("(?m)" + _ESCAPE.sub(lambda found: _ANCHORS.get(found[0], found[0]), pattern), options)
    except re2.error as error:
        raise _bad_pattern(pattern, error.args[0].decode(errors="replace").replace("(?m)", "", 1)) from None
    except UnicodeEncodeError:
        raise _bad_pattern(pattern, "it holds half a character") from None


def _bad_pattern(pattern: str, reason: str) -> ArgumentError:
    shown = repr(pattern[:_PREVIEW_WIDTH])
    if not _BEYOND_RE2.match(reason):
        return ArgumentError(f"{shown} is not a valid regular expression: {reason}", pattern=pattern)
    rule = "searches take linear time (RE2), so lookaround, atomic groups and backreferences are not supported"
    return ArgumentError(f"{shown} cannot be searched for: {reason}; {rule}", pattern=pattern)


def _similar(pages: Iterable[bytes], needle: str, ignore_case: bool, by_chars: bool) -> Iterator[_Hit]:
    from rapidfuzz import fuzz, process

    if len(needle) > _PIECE:
        raise ArgumentError(f"A fuzzy search takes up to {_PIECE} characters, got {len(needle)}")
    for positions, texts in _pieces(pages, len(needle) - 1) if by_chars else _numbered_lines(pages):
        # Filled up, because of two texts the shorter is looked for in the longer: "}" would be found in any needle.
        filled = [text.ljust(len(needle) + 1, "\0") for text in texts]
        cased = (needle.lower(), [text.lower() for text in filled]) if ignore_case else (needle, filled)
        found = process.extract(*cased, scorer=fuzz.partial_ratio, limit=None, score_cutoff=_WORST_SCORE)
        yield from (_Hit(score, -positions[index], texts[index]) for _, score, index in found)


_Batch: TypeAlias = tuple[Sequence[int], list[str]]  # positions, and what stands there


def _numbered_lines(pages: Iterable[bytes]) -> Iterator[_Batch]:
    number = 1
    for block in _blocks(pages):
        lines = block.decode().split("\n")
        yield range(number, number + len(lines)), lines
        number += len(lines)


def _pieces(pages: Iterable[bytes], overlap: int) -> Iterator[_Batch]:
    at = 1
    for page, following in pairwise(chain(map(bytes.decode, pages), [""])):
        text = page + following[:overlap]
        starts = range(0, len(page), _PIECE)
        yield range(at, at + len(page), _PIECE), [text[start : start + _PIECE + overlap] for start in starts]
        at += len(page)


def _first(hits: Iterable[_Hit], offset: int, limit: int) -> tuple[list[_Hit], int]:
    chosen, total = [], 0
    for hit in hits:
        total += 1
        if offset <= total < offset + limit:
            chosen.append(hit)
    return chosen, total


def _best(hits: Iterable[_Hit], offset: int, limit: int) -> tuple[list[_Hit], int]:
    best: list[_Hit] = []
    total = 0
    for hit in hits:
        total += 1
        (heappush if total < offset + limit else heappushpop)(best, hit)
    return sorted(best, reverse=True)[offset - 1 :], total


# --- describing it -----------------------------------------------------------------------------------------


def _clipped_lines(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start) % (len(text) + 1)  # where there is no line break, the end of the text
        shown = text[start : min(end, start + _PREVIEW_WIDTH)].removesuffix("\r")
        rest = end - start - _PREVIEW_WIDTH
        yield shown.encode("utf-8", "backslashreplace").decode() + (f"… [{rest:,} more characters]" if rest > 0 else "")
        start = end + 1


def _summary(value: Any) -> str | None:
    """`847 matches in 42 files`, where the data allows to say so."""
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list)]
        found = _summary(lists[0]) if len(lists) == 1 else None
        return f"{found}, cut short" if found and value.get("truncated") is True else found
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, dict) for item in value):
        return None
    key = next((key for key in _FILE_KEYS if all(isinstance(item.get(key), str) for item in value)), None)
    if key is None:
        return None
    noun = "match" if all(not _LINE_KEYS.isdisjoint(item) for item in value) else "item"
    return f"{_number(len(value), noun)} in {_number(len({item[key] for item in value}), 'file')}"


def _plain_summary(value: Any, meta: _Meta) -> str:
    size = _number(meta.size_bytes, "byte")
    if isinstance(value, dict):
        return f"JSON object with {_keys(value)}, {size}"
    if isinstance(value, list | tuple):
        return f"list of {_items(value)}, {size}"
    return f"text, {_number(meta.total_lines, 'line')}, {size}"


def _items(items: list[Any] | tuple[Any, ...]) -> str:
    if items and all(isinstance(item, dict) for item in items):
        return f"{_number(len(items), 'item')} with {_keys(dict.fromkeys(chain.from_iterable(items)))}"
    return _number(len(items), "string" if all(isinstance(item, str) for item in items) else "item")


def _keys(keys: Iterable[Any]) -> str:
    names = [_name(key) for key in keys]
    rest = f" and {len(names) - _KEYS_SHOWN:,} more" if len(names) > _KEYS_SHOWN else ""
    word = "key" if len(names) == 1 else "keys"
    return f"{word} {', '.join(names[:_KEYS_SHOWN])}{rest}" if names else "no keys"


def _name(key: Any) -> str:
    name = str(key).encode("utf-8", "backslashreplace").decode()
    shown = name if name.isprintable() and name else repr(name)
    return shown if len(shown) <= _KEY_WIDTH else f"{shown[:_KEY_WIDTH]}…"


def _number(count: int, noun: str) -> str:
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{ending}"
