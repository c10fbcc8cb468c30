"""How well a tool fits a question, decided by the tool and the question alone, so that pages never shift.

Places, the best first: the slug, then the display name, starts with the whole question; all its words are whole words
of slug, display name, tags, description, names of the bundle, or of these fields down to that one; all are parts of
words in one of these fields, or one slip of the finger away from words in the fields down to that one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from onetool.bundles import rules
from onetool.bundles.model import Match
from onetool.bundles.texts import Texts, folded
from onetool.search.words import is_one_slip_away, plain

MOST_CHARACTERS: Final = 1_000
MOST_WORDS: Final = 32
SHORTEST_PART: Final = 3  # letters
PLACES: Final[tuple[Match, ...]] = (
    "prefix",
    "prefix",
    *("word",) * 5,
    *("fuzzy",) * 5,
)
FIRST_WORD, FIRST_FUZZY = PLACES.index("word"), PLACES.index("fuzzy")


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    words: tuple[str, ...]

    @classmethod
    def of(cls, q: object) -> "Question":
        if not isinstance(q, str) or not q.strip():
            raise rules.invalid("a search needs words; q is blank")
        if len(q) > MOST_CHARACTERS:
            raise rules.invalid(f"q has {len(q)} characters, and {MOST_CHARACTERS} are the most")
        text = folded(q)
        return cls(text, tuple(dict.fromkeys(plain(q)))[:MOST_WORDS])

    def starts(self, start: str) -> bool:
        return bool(self.text) and start.startswith(self.text)


def locate(question: Question, slug_start: str, name_start: str, texts: Texts) -> int | None:
    """The number of the best place, 0 the best of all; None where the tool does not fit."""
    if question.starts(slug_start):
        return 0
    if question.starts(name_start):
        return 1
    if not question.words:
        return None
    fields = [field.split() for field in texts.fields()]
    whole = _reach(question.words, fields, lambda word, other: word == other)
    if whole is not None:
        return FIRST_WORD + whole
    found = [_field_with_parts(question.words, texts), _reach(question.words, fields, is_like)]
    return min((FIRST_FUZZY + field for field in found if field is not None), default=None)


def _reach(words: Sequence[str], fields: Sequence[list[str]], fits: Callable[[str, str], bool]) -> int | None:
    """The field down to which one has to go to meet all words."""
    furthest = 0
    for word in words:
        met = [number for number, field in enumerate(fields) if any(fits(word, other) for other in field)]
        if not met:
            return None
        furthest = max(furthest, met[0])
    return furthest


def _field_with_parts(words: Sequence[str], texts: Texts) -> int | None:
    """The first field that has all words as parts of its own."""
    for number, field in enumerate(texts.for_parts()):
        own = field.split()
        if all(any(is_part(word, other) for other in own) for word in words):
            return number
    return None


def is_part(word: str, other: str) -> bool:
    """Three letters may stand anywhere, two must begin a word, and one must be all of it."""
    if len(word) >= SHORTEST_PART:
        return word in other
    return other.startswith(word) if len(word) > 1 else other == word


def is_like(word: str, other: str) -> bool:
    return word == other or is_one_slip_away(word, other)


def score(place: int) -> float:
    """Between 0 and 1, and the same for all tools in one place."""
    return round(1 - place / len(PLACES), 2)
