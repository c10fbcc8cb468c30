"""Names as people type them: whole, the beginning of one, or with a typing error. Nothing but names is looked at."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from ot.search.documents import Key, Scored, by_name
from ot.search.words import squeezed

SHORTEST_TYPO: Final = 4
LEAST_LIKENESS: Final = 0.8
FORMS_AT_ONCE: Final = 20_000  # compared in one call, which holds the interpreter lock
LAST_CHARACTER: Final = "\U0010ffff"


class Names:
    """`brave.web_search` answers to all of its name, to what stands after the last dot, and to what before it."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._wholes = {key: squeezed(key[1]) for key in keys}
        self._holders: dict[str, list[Key]] = {}
        for key in self._wholes:
            for form in {self._wholes[key], *map(squeezed, key[1].rpartition("."))}:
                self._holders.setdefault(form, []).append(key)
        self._holders.pop("", None)
        self._forms = sorted(self._holders)
        self._all = "\n".join(self._forms)

    def are(self, keys: Collection[Key]) -> bool:
        return self._wholes.keys() == set(keys)

    def exact(self, query: str) -> list[Key]:
        wanted = squeezed(query)
        found = [key for key in self._holders.get(wanted, ()) if self._wholes[key] == wanted]
        return sorted(found, key=lambda key: (key[1] != query, by_name(key)))

    def beginning(self, query: str) -> Scored:
        """With the share of the name that the query covers."""
        wanted = squeezed(query)
        first, last = bisect_left(self._forms, wanted), bisect_right(self._forms, wanted + LAST_CHARACTER)
        return self._best_first((form, len(wanted) / len(form)) for form in self._forms[first:last])

    def alike(self, texts: Iterable[str]) -> Scored:
        """With the likeness, 1 at most; a name that contains one of the texts is like it too."""
        wanted = {squeezed(text) for text in texts}
        return self._best_first(pair for text in wanted if len(text) >= SHORTEST_TYPO for pair in self._alike(text))

    def _alike(self, wanted: str) -> Iterator[tuple[str, float]]:
        from rapidfuzz import fuzz, process

        for start in range(0, len(self._forms), FORMS_AT_ONCE):
            part = self._forms[start : start + FORMS_AT_ONCE]
            near = process.extract(wanted, part, scorer=fuzz.ratio, score_cutoff=100 * LEAST_LIKENESS, limit=None)
            yield from ((form, likeness / 100) for form, likeness, _ in near)
        if wanted in self._all:
            yield from ((form, LEAST_LIKENESS) for form in self._forms if wanted in form)

    def _best_first(self, scores: Iterable[tuple[str, float]]) -> Scored:
        best: dict[Key, float] = {}
        for form, score in scores:
            for key in self._holders[form]:
                best[key] = max(score, best.get(key, 0.0))
        return sorted(best.items(), key=lambda pair: (-pair[1], by_name(pair[0])))
