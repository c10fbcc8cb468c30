"""Glob patterns for paths: `*` matches inside a name, `**` any number of directories, including
none.

A pattern is matched name by name, so that a walk knows early whether anything below a directory can
still match. The time is bounded by the length of the pattern times that of the path. Names are
compared in Unicode normal form C.
"""

import fnmatch
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from unicodedata import normalize

from onetool.errors import ArgumentError

ANY = "**"
States = frozenset[int]
_BRACES = re.compile(r"\{([^{},]*+,[^{}]*+)\}")
_STARS = re.compile(r"\*+")
_TOKEN = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
_PLAIN_CLASS = re.compile(r"\[(!?[\w.,@~+-]+|[*?[])\]", re.ASCII)
_MAX_ALTERNATIVES = 256
_MAX_RIPGREP_CHARS = 1_000
_SPECIAL = {"\\": r"\\", "{": "[{]", "}": "[}]", "[": "[[]", "]": "[]]", " ": "[ ]"}


class Glob:
    """A pattern. A path matches if its last name leads to a complete state."""

    def __init__(self, pattern: str) -> None:
        self._parts = _parts(pattern)
        self._tests = [None if part == ANY else _compile_part(part) for part in self._parts]

    @cached_property
    def start(self) -> States:
        return self._skip_wildcards({0})

    def advance(self, states: States, name: str) -> States:
        """Return the states that a name leads to from these."""
        name = normalize("NFC", name)
        reached = set[int]()
        for state in states:
            if state < len(self._tests):
                test = self._tests[state]
                if test is None:
                    reached.add(state)
                elif test.match(name):
                    reached.add(state + 1)
        return self._skip_wildcards(reached)

    def is_complete(self, states: States) -> bool:
        return len(self._parts) in states

    def iter_states(self, names: Sequence[str]) -> Iterator[States]:
        """Yield the states before the first name and after each name."""
        states = self.start
        yield states
        for name in names:
            states = self.advance(states, name)
            yield states

    def covers(self, names: Sequence[str]) -> bool:
        """Return whether the path or one of its parent directories matches."""
        return any(map(self.is_complete, self.iter_states(names)))

    def depends_on(self, names: Sequence[str]) -> bool:
        """Return whether a match below this directory depends on the name of the directory."""
        *_, states = self.iter_states(names)
        return bool(states - self.start)

    def remainders(self, names: Sequence[str]) -> list[str]:
        """Return equivalent patterns relative to this directory."""
        *_, states = self.iter_states(names)
        return [
            "/".join(self._parts[state:]) for state in sorted(states) if state < len(self._parts)
        ]

    def _skip_wildcards(self, states: set[int]) -> States:
        for state in range(len(self._parts)):
            if state in states and self._parts[state] == ANY:
                states.add(state + 1)
        return frozenset(states)


def _parts(pattern: str) -> tuple[str, ...]:
    names = [name for name in pattern.split("/") if name not in {"", "."}]
    parts = [name if name == ANY else _STARS.sub("*", normalize("NFC", name)) for name in names]
    if parts and parts[-1] == ANY:  # `a/**` matches everything in a, but not a itself
        parts.append("*")
    return tuple(
        part for index, part in enumerate(parts) if part != ANY or parts[index - 1 : index] != [ANY]
    )


@lru_cache(maxsize=1024)
def _compile_part(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))


def expand_braces(pattern: str) -> list[str]:
    """Expand `{a,b}` into a list of patterns."""
    done = set[str]()
    waiting = [pattern]
    while waiting:
        text = waiting.pop()
        braces = _BRACES.search(text)
        if braces is None:
            done.add(text)
        else:
            waiting += [
                text[: braces.start()] + choice + text[braces.end() :]
                for choice in braces[1].split(",")
            ]
        if len(waiting) + len(done) > _MAX_ALTERNATIVES:
            raise ArgumentError(
                f"pattern {pattern[:100]!r} expands to more than {_MAX_ALTERNATIVES} patterns"
            )
    return sorted(done)


def to_ripgrep(pattern: str) -> list[str]:
    """Return the pattern for `--glob` in both Unicode normal forms; nothing if ripgrep would read
    it differently.
    """
    if len(pattern) > _MAX_RIPGREP_CHARS:
        return []
    tokens = [token[0] for token in _TOKEN.finditer(pattern)]
    for token in tokens:
        ranges = re.findall(r"(.)-(.)", token)
        if len(token) > 1 and not (
            _PLAIN_CLASS.fullmatch(token) and all(first <= last for first, last in ranges)
        ):
            return []
    text = "".join(token if len(token) > 1 else _SPECIAL.get(token, token) for token in tokens)
    return sorted({normalize(form, text) for form in ("NFC", "NFD")})
