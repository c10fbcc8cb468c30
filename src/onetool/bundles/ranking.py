"""Ranking of stored tools. A rank depends on the tool and the query alone, so that pages never shift.

Ranks, best first:

- the slug, then the display name, starts with the query;
- all words of the query are words of slug, display name, tags, description and bundle names (five ranks: the last field
  that is needed to find all words);
- all words of the query are parts of words in one of these fields, or one typing error away from words in the fields up
  to that one (five ranks).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from onetool.bundles import rules
from onetool.bundles.model import Match
from onetool.bundles.search_text import SearchText, fold_name
from onetool.search.words import is_one_typo_away, plain

MAX_QUERY_LENGTH: Final = 1_000
MAX_WORDS: Final = 32
MIN_PART_LENGTH: Final = 3  # letters
RANKS: Final[tuple[Match, ...]] = (
    "prefix",
    "prefix",
    *("word",) * 5,
    *("fuzzy",) * 5,
)
FIRST_WORD, FIRST_FUZZY = RANKS.index("word"), RANKS.index("fuzzy")


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
        text = fold_name(q)
        return cls(text, tuple(dict.fromkeys(plain(q)))[:MAX_WORDS])

    def starts(self, start: str) -> bool:
        return bool(self.text) and start.startswith(self.text)


def find_rank(query: ToolQuery, slug_start: str, name_start: str, texts: SearchText) -> int | None:
    """Return the rank of a tool, 0 is best; None if the tool does not match."""
    if query.starts(slug_start):
        return 0
    if query.starts(name_start):
        return 1
    if not query.words:
        return None
    fields = [field.split() for field in texts.fields()]
    whole = _last_field(query.words, fields, lambda word, other: word == other)
    if whole is not None:
        return FIRST_WORD + whole
    found = [_field_with_parts(query.words, texts), _last_field(query.words, fields, is_similar)]
    return min((FIRST_FUZZY + field for field in found if field is not None), default=None)


def _last_field(words: Sequence[str], fields: Sequence[list[str]], fits: Callable[[str, str], bool]) -> int | None:
    """Return the last field that is needed to find all words; None if a word is missing."""
    furthest = 0
    for word in words:
        met = [number for number, field in enumerate(fields) if any(fits(word, other) for other in field)]
        if not met:
            return None
        furthest = max(furthest, met[0])
    return furthest


def _field_with_parts(words: Sequence[str], texts: SearchText) -> int | None:
    """Return the first field in which all words are parts of words."""
    for number, field in enumerate(texts.for_parts()):
        own = field.split()
        if all(any(is_part(word, other) for other in own) for word in words):
            return number
    return None


def is_part(word: str, other: str) -> bool:
    """Return whether `word` matches part of `other`.

    Three letters match anywhere, two must start the word, and one must be the whole word.
    """
    if len(word) >= MIN_PART_LENGTH:
        return word in other
    return other.startswith(word) if len(word) > 1 else other == word


def is_similar(word: str, other: str) -> bool:
    return word == other or is_one_typo_away(word, other)


def score(rank: int) -> float:
    """Return a score between 0 and 1. All tools of one rank have the same score."""
    return round(1 - rank / len(RANKS), 2)
