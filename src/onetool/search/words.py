"""How text becomes words, for documents and for questions alike: one way, so that both sides always agree.

Case and diacritics do not count; names come apart at dots, underscores, dashes and capitals, and also stay whole.
Stemming is left to the index.
"""

import re
import unicodedata
from collections.abc import Iterable

PLAIN_RUN = re.compile(r"[a-z\d]+")
# Scripts without spaces between words: every character stands alone.
RUN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
HUMP = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Words that say nothing in a request.
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
SHORTEST_TYPO, LONGEST_TYPO = 4, 32  # letters of a word that may be misspelt
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


def may_be_misspelt(word: str) -> bool:
    """Numbers are not: `v12` is no slip of the finger for `v13`."""
    return SHORTEST_TYPO <= len(word) <= LONGEST_TYPO and word.isalpha()


def cuts(word: str) -> set[str]:
    """The word, and the word without each one of its letters. Two words that are one slip apart share one of these."""
    return {word, *(word[:at] + word[at + 1 :] for at in range(len(word)))}


def is_one_slip_away(word: str, other: str) -> bool:
    """One letter too many, too few or wrong, or two that have changed places."""
    from rapidfuzz.distance import OSA

    return may_be_misspelt(word) and may_be_misspelt(other) and OSA.distance(word, other, score_cutoff=1) <= 1
