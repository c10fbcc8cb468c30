"""Queries of the index: rows and their statements, pages, and the search for stored tools.

A page token holds the position after which the next page begins, and a digest of the filters, so
that it continues only its own list. It is signed with a key of the store, so that it is valid after
a restart and in every process.

`/tools/search` sorts the index that `ot.search` uses too. Its ranks, best first:

- the slug, then the display name, starts with the query;
- all query words are words of slug, display name, tags, description and bundle names (five ranks:
  the last field that is needed to find all words);
- all query words are words, parts of words or one typing error away from words in these fields
  (five ranks).

The newest tool is the first in each rank. All this depends on the tool and the query alone, so that
pages never shift.
"""

import base64
import hashlib
import heapq
import hmac
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, product
from sqlite3 import Connection
from typing import Any, NamedTuple, TypeVar

from onetool.sources.bundles import rules
from onetool.sources.bundles.bundle_index import read_meta
from onetool.sources.bundles.filesystem import Stamp
from onetool.sources.bundles.model import Bundle, Match, Page
from onetool.sources.bundles.records import BundleFile, ToolFile, fold_name
from onetool.sources.search import Key
from onetool.sources.search.index import find_similar_words
from onetool.sources.search.index_reader import LAST_CHARACTER, IndexReader, Read
from onetool.sources.search.words import plain

BUILT_IN = "(select value from meta where name = 'built_in')"
BUNDLE = f"select id, folder, slug, enabled, deleted_at, body, mtime, size, {BUILT_IN} from bundles"  # noqa: S608
TOOL = f"""
select t.key, t.id, t.bundle, b.slug, b.enabled, t.file, t.body, t.mtime, t.size, {BUILT_IN}
from tools t join bundles b on b.id = t.bundle where b.deleted_at is null and
"""  # noqa: S608 - texts of ours
BUNDLE_LIST = f"""
{BUNDLE} where deleted_at is null and id > :after and (:all or enabled)
and (:bundles is null or id in (select value from json_each(:bundles))) order by id limit :limit
"""  # noqa: S608 - texts of ours
TOOL_IDS = """
select {row}.id, t.key from {source} join bundles b on b.id = t.bundle
where {condition} and {row}.id > :after and (:all or (t.enabled and b.enabled)) and b.deleted_at is null
order by {row}.id limit :limit
"""
# A name without a version means the newest enabled version.
IS_CURRENT = """
not exists (
    select 1 from tools o where o.bundle = t.bundle and o.slug = t.slug and (o.enabled, o.key) > (t.enabled, t.key)
)
"""
NAMED_TOOL = (
    f"{TOOL} b.slug = ? and t.slug = ? and (?3 is null or t.version = ?3) order by t.enabled desc,"
    " t.key desc"
)
PACKS = f"""
select slug, id, enabled, not exists (select 1 from tools t where t.bundle = b.id),
    coalesce(substr(json_extract(body, '$.description'), 1, 1000), ''), {BUILT_IN}
from bundles b where deleted_at is null
"""  # noqa: S608 - texts of ours
NAMES = f"""
select b.slug || '.' || t.slug, t.summary, t.enabled and t.sound and b.enabled
from tools t join bundles b on b.id = t.bundle
where t.bundle = ? and t.slug > ? and {IS_CURRENT} order by t.slug limit ?
"""  # noqa: S608 - texts of ours
COUNTS = """
select bundle, count(distinct slug), count(distinct case when enabled and sound then slug end)
from tools group by bundle
"""
FRAME_BYTES = len('{"name":".","description":"","inputSchema":}')
DEFINITION_SIZES = f"""
select b.slug || '.' || t.slug, {FRAME_BYTES} + length(b.slug || t.slug) + t.definition
from tools t join bundles b on b.id = t.bundle where t.bundle = ? and t.enabled and b.enabled and {IS_CURRENT}
"""  # noqa: S608 - texts of ours
BODIES_WITH = """
select b.slug, t.body from tools t join bundles b on b.id = t.bundle
where b.deleted_at is null and instr(t.body, ?) order by t.id
"""
CURRENT_NAME = f"""
select t.key, b.slug || '.' || t.slug from tools t join bundles b on b.id = t.bundle
where t.key = ? and t.enabled and t.sound and b.enabled and b.deleted_at is null and {IS_CURRENT}
"""  # noqa: S608 - texts of ours
T = TypeVar("T")
MAX_PAGE_SIZE = 256
KEY_BYTES = 32
SIGNATURE_BYTES = 16
MAX_TOKEN_LENGTH = 8_000  # the position may be the name of a tool
Position = Sequence[Any]
MAX_QUERY_LENGTH = 1_000
MAX_WORDS = 32
MIN_PART_LENGTH = 3  # letters
MAX_STREAMS = 20  # similar words, multiplied by the words of the query, that are read one by one
RANKS: tuple[Match, ...] = ("prefix", "prefix", *("word",) * 5, *("fuzzy",) * 5)
FIELDS = 5
MAX_KEY = (1 << 63) - 1
STARTS = (
    "t.slug_start >= :text and t.slug_start < :end",
    "t.name_start >= :text and t.name_start < :end",
)
FORMS: Mapping[Match, str] = {
    "word": "= :word{}",
    "fuzzy": "in (select value from json_each(:similar{}))",
}
LISTED = """
join bundles b on b.id = t.bundle
where b.deleted_at is null and (:all or (t.enabled and b.enabled)) and
"""


class BundleRow(NamedTuple):
    id: str
    directory: str
    slug: str
    enabled: int
    deleted_at: int | None
    body: str
    mtime: int
    size: int
    built_in: int

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.mtime, self.size)

    def file(self) -> BundleFile:
        return BundleFile.read(self.body.encode())

    def to_bundle(self) -> Bundle:
        return self.file().to_bundle(built_in=bool(self.built_in))


class ToolRow(NamedTuple):
    key: int
    id: str
    bundle: str
    bundle_slug: str
    bundle_enabled: int
    file: str
    body: str
    mtime: int
    size: int
    built_in: int = 0

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.mtime, self.size)

    def content(self) -> ToolFile:
        return ToolFile.read(self.body.encode())


class StoredPack(NamedTuple):
    slug: str
    id: str
    enabled: int
    is_empty: int
    description: str  # the beginning of it, for the search
    built_in: int


class Filters(NamedTuple):
    """The filters of a list, sorted; None means no filter."""

    tags: Sequence[str] | None = None
    bundles: Sequence[str] | None = None
    include_disabled: bool = False


def get_tools(database: Connection, keys: Iterable[int]) -> list[ToolRow]:
    rows = (database.execute(f"{TOOL} t.key = ?", (key,)).fetchone() for key in keys)
    return [ToolRow(*row) for row in rows if row]


def list_bundles(database: Connection, filters: Filters, after: str, limit: int) -> list[BundleRow]:
    """Return bundles ordered by ID, which never changes, so that a list continues where it stopped."""
    bundles = None if filters.bundles is None else json.dumps(filters.bundles)
    values = {"after": after, "all": filters.include_disabled, "bundles": bundles, "limit": limit}
    return [BundleRow(*row) for row in database.execute(BUNDLE_LIST, values)]


def list_tools(database: Connection, filters: Filters, after: str, limit: int) -> list[ToolRow]:
    """Return tools ordered by ID.

    Each tag and each bundle is a sorted list of its own; the lists are merged.
    """
    lists = []
    values = {"after": after, "all": filters.include_disabled, "limit": limit}
    for tag, bundle in product(*([None] if names is None else names for names in filters[:2])):
        row = "t" if tag is None else "g"
        source = "tools t" if tag is None else "tags g join tools t on t.key = g.key"
        in_tag = "true" if tag is None else "g.tag = :tag"
        condition = in_tag if bundle is None else f"{in_tag} and {row}.bundle = :bundle"
        statement = TOOL_IDS.format(row=row, source=source, condition=condition)
        rows = database.execute(statement, {**values, "tag": tag, "bundle": bundle})
        lists.append(rows.fetchall())
    merged = (key for _, key in heapq.merge(*lists))
    keys = (key for key, _ in groupby(merged))  # a tool with two tags appears twice
    return get_tools(database, islice(keys, limit))


# --- pages ----------------------------------------------------------------------------------------


def check_page_size(size: object) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise rules.invalid(f"invalid page size {size!r} (expected 1-{MAX_PAGE_SIZE})")
    return min(size, MAX_PAGE_SIZE)


class PageTokens:
    """Page tokens, signed with the key that `load_key` returns."""

    def __init__(self, load_key: Callable[[], bytes]) -> None:
        self._load_key = load_key

    def make(self, filters: object, position: Position) -> str:
        content = json.dumps([_digest(filters), list(position)], separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._signature(content) + content).decode().rstrip("=")

    def make_page(self, filters: object, size: int, items: Sequence[tuple[Position, T]]) -> Page[T]:
        """Return the first page of these items, with a token if there are more."""
        page = items[:size]
        token = self.make(filters, page[-1][0]) if len(items) > size else None
        return Page([item for _, item in page], token)

    def read(self, token: str | None, filters: object) -> list[Any] | None:
        """Return the position that a token holds; None for the first page."""
        if token is None:
            return None
        content = self._verify(token)
        digest, position = json.loads(content)
        if digest != _digest(filters):
            raise rules.invalid(
                "invalid page token: it was issued for other filters; send the same filters with it"
            )
        return list(position)

    def _verify(self, token: object) -> bytes:
        error = rules.invalid(
            "invalid page token: send nextPageToken unchanged, or none for the first page"
        )
        if (
            not isinstance(token, str)
            or not 0 < len(token) <= MAX_TOKEN_LENGTH
            or not token.isascii()
        ):
            raise error
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise error from None
        signature = data[:SIGNATURE_BYTES]
        content = data[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(content)):
            raise error
        return content

    def _signature(self, content: bytes) -> bytes:
        return hmac.digest(self._load_key(), content, hashlib.sha256)[:SIGNATURE_BYTES]


def _digest(filters: object) -> str:
    return hashlib.blake2b(json.dumps(filters).encode(), digest_size=8).hexdigest()


# --- search ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolQuery:
    text: str
    words: tuple[str, ...]

    @classmethod
    def of(cls, q: object) -> "ToolQuery":
        if not isinstance(q, str) or not q.strip():
            raise rules.invalid("q must not be blank")
        if len(q) > MAX_QUERY_LENGTH:
            raise rules.invalid(f"q is too long: {len(q)} characters (at most {MAX_QUERY_LENGTH})")
        return cls(fold_name(q), tuple(dict.fromkeys(plain(q)))[:MAX_WORDS])


def find_ranked(
    database: Connection,
    query: ToolQuery,
    after: tuple[int, int] | None,
    *,
    include_disabled: bool,
    limit: int,
) -> list[tuple[int, ToolRow]]:
    """Return the hits with their ranks: the first ones, or those after a rank and a key.

    A rank is only read if better ones have too few hits.
    """
    end = query.text + LAST_CHARACTER if query.text else ""
    values: dict[str, object] = {"text": query.text, "end": end, "all": include_disabled}
    # Candidates have the first word: long words are rare.
    words = sorted(query.words, key=len, reverse=True)
    values |= {f"word{number}": word for number, word in enumerate(words)}
    first, before = after or (0, MAX_KEY)
    candidates = ["= :word0"]
    hits: list[tuple[int, ToolRow]] = []
    for rank in range(first, len(RANKS) if words else len(STARTS)):
        if RANKS[rank] == "fuzzy" and "similar0" not in values:
            similar = [find_similar(database, word) for word in words]
            for number, forms in enumerate(similar):
                values[f"similar{number}"] = json.dumps(forms)
            candidates = [FORMS["fuzzy"].format(0)]
            # One form is in the order of keys, several forms together are not.
            if len(similar[0]) * len(words) <= MAX_STREAMS:
                values |= {f"form{number}": form for number, form in enumerate(similar[0])}
                candidates = [f"= :form{number}" for number in range(len(similar[0]))]
        values |= {"before": before if rank == first else MAX_KEY, "limit": limit - len(hits)}
        streams = " union ".join(_select_rank(rank, len(words), candidates))
        statement = f"{streams} order by 1 desc limit :limit"
        keys = [key for (key,) in database.execute(statement, values)]
        hits += [(rank, row) for row in get_tools(database, keys)]
        if len(hits) == limit:
            break
    return hits


def _select_rank(rank: int, count: int, candidates: Sequence[str]) -> list[str]:
    """Return the statements for the tools of one rank, each ordered by an index.

    `count` is the number of words of the query; `candidates` are the conditions for the first one.
    """
    better = [f"not ({start})" for start in STARTS[:rank]]
    if rank < len(STARTS):
        conditions = " and ".join([STARTS[rank], *better])
        return [f"select t.key from tools t {LISTED} +t.key < :before and {conditions}"]  # noqa: S608
    match = RANKS[rank]
    field = rank - RANKS.index(match)
    if match == "fuzzy":
        better.append(f"not ({_has_all('word', count, FIELDS - 1)})")
    in_field = [_has_all(match, count, field), f"not ({_has_all(match, count, field - 1)})"]
    conditions = " and ".join([*better, *in_field])
    words = f"select distinct w.key from words w cross join tools t on t.key = w.key {LISTED} w.key < :before"  # noqa: S608
    starts = [
        f"{words} and w.field = {place} and w.word {form}"
        for place in range(field + 1)
        for form in candidates
    ]
    return [f"{start} and {conditions}" for start in starts]


def _has_all(match: Match, count: int, last_field: int) -> str:
    """Return the condition that fields up to this one have all query words, or similar ones."""
    word = f"select 1 from words x where x.key = t.key and x.field <= {last_field} and x.word"  # noqa: S608
    forms = (FORMS[match].format(number) for number in range(count))
    return " and ".join(f"exists ({word} {form})" for form in forms)


def find_similar(database: Connection, word: str) -> list[str]:
    """Return the word and the known words that contain it, or that are one typing error away.

    Three letters match anywhere in a word, and two must start it.
    """
    similar = [word, *find_similar_words(database, word)]
    if len(word) > 1:
        place = ">= 1" if len(word) >= MIN_PART_LENGTH else "= 1"
        query = f"select word from vocabulary where instr(word, ?) {place}"  # noqa: S608 - a condition of ours
        similar += [longer for (longer,) in database.execute(query, (word,))]
    return similar


def score(rank: int) -> float:
    """Return a score between 0 and 1. All tools of one rank have the same score."""
    return round(1 - rank / len(RANKS), 2)


def open_reader(read: Read) -> IndexReader:
    """Return the reader of one index for `ot.search`."""

    def get_keys(database: Connection, rows: Sequence[int]) -> dict[int, Key]:
        names = (database.execute(CURRENT_NAME, (row,)).fetchone() for row in rows)
        return {name[0]: ("tool", name[1]) for name in names if name}

    return IndexReader(read, get_keys, read(lambda database: read_meta(database, "tools")))
