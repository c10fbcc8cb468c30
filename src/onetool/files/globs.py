"""Patterns for paths: `*` stays inside a name, `**` stands for any number of folders, also none.

A pattern is stepped through name by name, so that it tells early whether anything below a folder can still fit, and
no pattern takes longer than its length times the path's. Names that differ only in how Unicode spells them are one.
"""

import fnmatch
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from unicodedata import normalize

from onetool.errors import ArgumentError

ANY = "**"
States = frozenset[int]
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_STARS = re.compile(r"\*+")
_TOKEN = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
_PLAIN_CLASS = re.compile(r"\[(!?[\w.,@~+-]+|[*?[])\]", re.ASCII)
_MOST_ALTERNATIVES = 256
_SPECIAL = {"\\": r"\\", "{": "[{]", "}": "[}]", "[": "[[]", "]": "[]]", " ": "[ ]"}


class Glob:
    """One pattern. A path fits when its last name leads to a state that is `complete`."""

    def __init__(self, pattern: str) -> None:
        self._parts = _parts(pattern)
        self._tests = [None if part == ANY else _test(part) for part in self._parts]

    @cached_property
    def start(self) -> States:
        return self._reached({0})

    def after(self, states: States, name: str) -> States:
        """Where a name leads from these states."""
        name, reached = normalize("NFC", name), set[int]()
        for state in states:
            if state < len(self._tests):
                test = self._tests[state]
                if test is None:
                    reached.add(state)
                elif test.match(name):
                    reached.add(state + 1)
        return self._reached(reached)

    def complete(self, states: States) -> bool:
        return len(self._parts) in states

    def through(self, names: Sequence[str]) -> Iterator[States]:
        """The states before the first name and after each."""
        states = self.start
        yield states
        for name in names:
            states = self.after(states, name)
            yield states

    def covers(self, names: Sequence[str]) -> bool:
        """Whether the path, or a folder on the way to it, fits."""
        return any(map(self.complete, self.through(names)))

    def bound_to(self, names: Sequence[str]) -> bool:
        """Whether what fits below this folder would not fit any more if the folder had another name."""
        *_, states = self.through(names)
        return bool(states - self.start)

    def rests(self, names: Sequence[str]) -> list[str]:
        """The patterns that say the same seen from this folder."""
        *_, states = self.through(names)
        return ["/".join(self._parts[state:]) for state in sorted(states) if state < len(self._parts)]

    def _reached(self, states: set[int]) -> States:
        for state in range(len(self._parts)):
            if state in states and self._parts[state] == ANY:
                states.add(state + 1)
        return frozenset(states)


def _parts(pattern: str) -> tuple[str, ...]:
    names = [name for name in pattern.split("/") if name not in {"", "."}]
    parts = [name if name == ANY else _STARS.sub("*", normalize("NFC", name)) for name in names]
    if parts and parts[-1] == ANY:  # `a/**` is all that is in a, and not a
        parts.append("*")
    return tuple(part for place, part in enumerate(parts) if part != ANY or parts[place - 1 : place] != [ANY])


@lru_cache(maxsize=1024)
def _test(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))


def alternatives(pattern: str) -> list[str]:
    """The patterns that `{a,b}` stands for."""
    done = set[str]()
    waiting = [pattern]
    while waiting:
        text = waiting.pop()
        braces = _BRACES.search(text)
        if braces is None:
            done.add(text)
        else:
            waiting += [text[: braces.start()] + choice + text[braces.end() :] for choice in braces[1].split(",")]
        if len(waiting) + len(done) > _MOST_ALTERNATIVES:
            raise ArgumentError(f"the pattern {pattern[:100]!r} stands for more than {_MOST_ALTERNATIVES} patterns")
    return sorted(done)


def for_ripgrep(pattern: str) -> list[str]:
    """The pattern as `--glob` takes it, in both spellings of Unicode; none where ripgrep would read it differently."""
    tokens = [token[0] for token in _TOKEN.finditer(pattern)]
    for token in tokens:
        ranges = re.findall(r"(.)-(.)", token)
        if len(token) > 1 and not (_PLAIN_CLASS.fullmatch(token) and all(first <= last for first, last in ranges)):
            return []
    text = "".join(token if len(token) > 1 else _SPECIAL.get(token, token) for token in tokens)
    return sorted({normalize(form, text) for form in ("NFC", "NFD")})
