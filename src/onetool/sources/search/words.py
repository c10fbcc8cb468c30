"""Tokenization, the same for documents and queries.

Case and diacritics are ignored; names are split at dots, underscores, hyphens and capitals, and
also kept whole. Stemming is done by the index.
"""

import re
import unicodedata
from collections.abc import Iterable

PLAIN_RUN = re.compile(r"[a-z\d]+")
# In scripts without spaces between words, every character is a word.
RUN = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)
HUMP = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Words without meaning in a query.
STOP_WORDS = """
a about above after again against all also am an and any anyone anything are as at be because been before being
below between both but by can cannot could did do does doing down during each especially ever everything exactly
few for from further going got had has have having he her here hers herself him himself his how i if in into is
it its itself just let lot lots many maybe me might mind more most much must my myself no nor not now of off on
once only or other ought our ours ourselves out over own possible possibly quite rather really regarding same
she should so some someone something stuff such sure than that the their theirs them themselves then there these
they thing things this those through to too under until up very was way ways we well were what when where
whether which while who whom why will with within without would yes yet you your yours yourself yourselves
assist assistance curious currently give heard hello help hey hi hope idea interested interesting kindly know
like looking need okay please right seek seeking seem seems specifically tell thank thanks think today tomorrow
try trying upcoming want wanted wants wondering
aren couldn d didn doesn don hadn hasn haven isn ll m mustn o re s shan shouldn t ve wasn weren won wouldn y
"""
STOP = frozenset(STOP_WORDS.split())
BETWEEN_INTENTS = re.compile(
    r"[;\n]|,\s++and\s++|(?:,|(?<!\s)\s)\s*+(?:and\s++)?then\s++|(?<!\s)\s++and\s++(?:also|afterwards|finally)\s++",
    re.IGNORECASE,
)
# Words that tools have other words for. If a word is in no document, the other one is searched for.
# Word vectors find words of similar meaning: this list is for what they do not know.
OTHER_WORDS = {
    "uncommitted": "status",
    "untracked": "status",
    "ram": "memory",
    "cpu": "processor",
    "processor": "cpu",
    "repo": "repository",
    "repos": "repository",
    "db": "database",
    "env": "environment",
    "config": "configuration",
    "auth": "authentication",
    "dir": "directory",
    "pic": "image",
    "postgres": "postgresql",
    "k8s": "kubernetes",
}
NEGATION = re.compile(r"(?:un|non)(?=[a-z]{4})")
MIN_INTENT_WORDS = 2  # fewer words say too little
MAX_INTENTS = 4  # more searches take too long
MIN_TYPO_LENGTH = 4  # letters of a word that may be misspelled
MAX_TYPO_LENGTH = 32
HIDDEN = "\ue000"  # starts internal words of the index: a letter to FTS5, and never part of a query


def fold(text: str) -> str:
    """Remove case and diacritics."""
    if text.isascii():
        return text.lower()
    marked = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in marked if not unicodedata.combining(letter)).casefold()


def plain(text: str) -> list[str]:
    """Return all words of the text, without splitting names."""
    folded = fold(text)
    return (PLAIN_RUN if folded.isascii() else RUN).findall(folded)


def words(text: str) -> list[str]:
    """Return all words of the text; `getUserName` yields itself and its parts."""
    whole = plain(text)
    apart = HUMP.sub(" ", text)
    if len(apart) == len(text):
        return whole
    whole_words = set(whole)
    return whole + [word for word in plain(apart) if word not in whole_words]


def squeeze(text: str) -> str:
    """Join all words of the text: `get-sum`, `getSum` and `get sum` are all `getsum`."""
    return "".join(plain(text))


def drop_stop_words(text_words: Iterable[str]) -> list[str]:
    """Return the words without stop words and numbers, unless there is nothing else."""
    listed = list(text_words)
    return [word for word in listed if word not in STOP and not word.isdecimal()] or listed


def split_names(text: str) -> list[str]:
    """Return all words of the text, with `getUserName` only as its parts."""
    return plain(HUMP.sub(" ", text))


def split_intents(text: str) -> list[str]:
    """Return the parts of a request that may each need a tool; empty if there is only one.

    A part without enough words of its own belongs to the part before it.
    """
    parts: list[str] = []
    for part in BETWEEN_INTENTS.split(text):
        if parts and min(map(_count_words, (part, parts[-1]))) < MIN_INTENT_WORDS:
            parts[-1] += f" {part}"
        elif part.strip():
            parts.append(part)
    return parts[:MAX_INTENTS] if len(parts) > 1 else []


def _count_words(text: str) -> int:
    return sum(word not in STOP and not word.isdecimal() for word in split_names(text))


def strip_negation(word: str) -> str:
    """Return the word without a negation: `uncommitted` yields `committed`.

    Return other words unchanged.
    """
    match = NEGATION.match(word)
    return word[match.end() :] if match else word


def may_be_misspelled(word: str) -> bool:
    """Return whether the word may be misspelled.

    Numbers are not: `v12` is not a typing error for `v13`.
    """
    return MIN_TYPO_LENGTH <= len(word) <= MAX_TYPO_LENGTH and word.isalpha()


def deletions(word: str) -> set[str]:
    """Return the word and its one-letter deletions.

    Words that are one typing error apart share one of these.
    """
    return {word, *(word[:at] + word[at + 1 :] for at in range(len(word)))}


def is_one_typo_away(word: str, other: str) -> bool:
    """Return whether one letter is missing, added or wrong, or two neighbors are swapped."""
    from rapidfuzz.distance import OSA

    return (
        may_be_misspelled(word)
        and may_be_misspelled(other)
        and OSA.distance(word, other, score_cutoff=1) <= 1
    )
