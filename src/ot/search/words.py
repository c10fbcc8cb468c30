"""How text becomes words, for documents and for questions alike: one way, so that both sides always agree.

Case and diacritics do not count; names come apart at dots, underscores, dashes and capitals, and also stay whole.
Stemming is left to the index.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache

from ot.search.lexicon import STOP_WORDS, TOPICS

PLAIN_RUN = re.compile(r"[a-z\d]+")
# Scripts without spaces between words: every character stands alone.
RUN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
HUMP = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
STOP = frozenset(STOP_WORDS.split())
VOWELS = "aeiou"
HIDDEN = "\ue000"  # begins the words of the index's own: to it this is a letter, and no text that is asked can have it


def fold(text: str) -> str:
    """The text without case and diacritics."""
    if text.isascii():
        return text.lower()
    marked = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in marked if not unicodedata.combining(letter)).casefold()


def plain(text: str) -> list[str]:
    """All words of the text, none taken apart."""
    folded = fold(text)
    return (PLAIN_RUN if folded.isascii() else RUN).findall(folded)


def words(text: str) -> list[str]:
    """All words of the text; `getUserName` gives itself and its parts."""
    whole, apart = plain(text), HUMP.sub(" ", text)
    if len(apart) == len(text):
        return whole
    known = set(whole)
    return whole + [word for word in plain(apart) if word not in known]


def squeezed(text: str) -> str:
    """The text with nothing between its words: `get-sum`, `getSum` and `get sum` are all `getsum`."""
    return "".join(plain(text))


def telling(found: Iterable[str]) -> list[str]:
    """The words that say what is wanted: no filler and no numbers, unless there is nothing else."""
    listed = list(found)
    return [word for word in listed if word not in STOP and not word.isdecimal()] or listed


def apart(text: str) -> list[str]:
    """All words of the text, with `getUserName` only in its parts."""
    return plain(HUMP.sub(" ", text))


def topics(found: Iterable[str]) -> list[str]:
    """The matters that the words speak of, each once."""
    known = _topics_by_word()
    return list(dict.fromkeys(topic for word in found for topic in known.get(word, ())))


@cache
def _topics_by_word() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for number, line in enumerate(filter(None, TOPICS.splitlines())):
        for form in {form for word in line.split() for form in forms(word)}:
            found.setdefault(form, []).append(f"{HIDDEN}{number}")
    return found


def forms(word: str) -> set[str]:
    """The word with the endings of English; some are no words, and do no harm."""
    if word.endswith("e"):
        return {word[:-1] + ending for ending in ("e", "es", "ed", "ing", "er", "ers", "or", "ors", "ion", "ions")}
    if word.endswith("y") and word[-2] not in VOWELS:
        return {word[:-1] + ending for ending in ("y", "ies", "ied", "ying")}
    doubled = {word + word[-1] + ending for ending in ("ed", "ing", "er", "ers")}
    return doubled | {word + ending for ending in ("", "s", "es", "ed", "ing", "er", "ers", "or", "ors", "ion", "ions")}
