"""Search for stored tools in the order of `/tools/search`: a sort of the index that `ot.search`
uses too.

Ranks, best first:

- the slug, then the display name, starts with the query;
- all words of the query are words of slug, display name, tags, description and bundle names (five
  ranks: the last field that is needed to find all words);
- all words of the query are words, parts of words or one typing error away from words in these
  fields (five ranks).

The newest tool is the first in each rank. All this depends on the tool and the query alone, so that
pages never shift.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onetool.sources.bundles import rules
from onetool.sources.bundles.bundle_index import read_meta
from onetool.sources.bundles.model import Match
from onetool.sources.bundles.rows import CURRENT_NAME, ToolRow, get_tools
from onetool.sources.bundles.search_text import fold_name
from onetool.sources.search import Key
from onetool.sources.search.index import find_similar_words
from onetool.sources.search.index_reader import LAST_CHARACTER, IndexReader, Read
from onetool.sources.search.words import plain

MAX_QUERY_LENGTH = 1_000
MAX_WORDS = 32
MIN_PART_LENGTH = 3  # letters
MAX_STREAMS = 20  # similar words, multiplied by the words of the query, that are read one by one
RANKS: tuple[Match, ...] = (
    "prefix",
    "prefix",
    *("word",) * 5,
    *("fuzzy",) * 5,
)
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
    database: sqlite3.Connection,
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
    words = sorted(
        query.words, key=len, reverse=True
    )  # candidates have the first one: long words are rare
    values |= {f"word{number}": word for number, word in enumerate(words)}
    first, before = after or (0, MAX_KEY)
    candidates = ["= :word0"]
    hits: list[tuple[int, ToolRow]] = []
    for rank in range(first, len(RANKS) if words else len(STARTS)):
        if RANKS[rank] == "fuzzy" and "similar0" not in values:
            similar = [find_similar(database, word) for word in words]
            values |= {
                f"similar{number}": json.dumps(forms) for number, forms in enumerate(similar)
            }
            candidates = [FORMS["fuzzy"].format(0)]
            if (
                len(similar[0]) * len(words) <= MAX_STREAMS
            ):  # each form is in the order of keys, all of them are not
                values |= {f"form{number}": form for number, form in enumerate(similar[0])}
                candidates = [f"= :form{number}" for number in range(len(similar[0]))]
        values |= {"before": before if rank == first else MAX_KEY, "limit": limit - len(hits)}
        statement = (
            f"{' union '.join(_select_rank(rank, len(words), candidates))} order by 1 desc limit"
            " :limit"
        )
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
    found = [_has_all(match, count, field), f"not ({_has_all(match, count, field - 1)})"]
    conditions = " and ".join([*better, *found])
    words = f"select distinct w.key from words w cross join tools t on t.key = w.key {LISTED} w.key < :before"  # noqa: S608
    starts = [
        f"{words} and w.field = {place} and w.word {form}"
        for place in range(field + 1)
        for form in candidates
    ]
    return [f"{start} and {conditions}" for start in starts]


def _has_all(match: Match, count: int, last_field: int) -> str:
    """Return the condition that a tool has all words of the query, or similar ones, in the fields
    up to this one.
    """
    found = f"select 1 from words x where x.key = t.key and x.field <= {last_field} and x.word"  # noqa: S608
    return " and ".join(
        f"exists ({found} {FORMS[match].format(number)})" for number in range(count)
    )


def find_similar(database: sqlite3.Connection, word: str) -> list[str]:
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

    def get_keys(database: sqlite3.Connection, rows: Sequence[int]) -> dict[int, Key]:
        names = (database.execute(CURRENT_NAME, (row,)).fetchone() for row in rows)
        return {name[0]: ("tool", name[1]) for name in names if name}

    return IndexReader(read, get_keys, read(lambda database: read_meta(database, "tools")))
