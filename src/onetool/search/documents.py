"""What is searched and what is found: two frozen records, and no behaviour."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

Kind = Literal["tool", "pack", "snippet", "alias"]
Match = Literal["exact", "prefix", "word", "fuzzy", "text"]
Key = tuple[Kind, str]
Scored = list[tuple[Key, float]]
ORDER: Final[tuple[Kind, ...]] = ("tool", "pack", "snippet", "alias")  # of things that have the same name
KINDS: Final[frozenset[Kind]] = frozenset(get_args(Kind))


def by_name(key: Key) -> tuple[str, int]:
    """For sorting what is equal otherwise."""
    kind, name = key
    return name, ORDER.index(kind)


@dataclass(frozen=True, slots=True)
class Document:
    """`arguments` are names with their descriptions; `instructions` are those of a pack."""

    kind: Kind
    name: str
    description: str = ""
    arguments: str = ""
    instructions: str = ""

    @property
    def key(self) -> Key:
        return self.kind, self.name


@dataclass(frozen=True, slots=True)
class Hit:
    """`score` lies between 0 and 1 and orders the hits of one search; it means nothing between two searches."""

    kind: Kind
    name: str
    score: float
    match: Match
