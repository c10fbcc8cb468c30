"""Search for tools, packs, snippets and aliases by name, by a misspelled name, or by purpose.

`search_documents` creates documents from tools, `catalog` ranks them, `index` writes the database,
`index_reader` queries it, and `words` compares words, stems and meanings. `catalog.Search` is
imported with the first query, which hashes the documents, loads SQLite and builds the index.
"""

from typing import Literal, NamedTuple, get_args

Kind = Literal["tool", "pack", "snippet", "alias"]
Match = Literal["exact", "prefix", "word", "fuzzy", "text"]
Key = tuple[Kind, str]
Scored = list[tuple[Key, float]]
ORDER: tuple[Kind, ...] = ("tool", "pack", "snippet", "alias")  # of documents with the same name
MAX_TEXT_SCORE = 0.6  # of the best hit by words and meaning
WEAK_SHARE = 0.4  # of the best score
KINDS: frozenset[Kind] = frozenset(get_args(Kind))


def sort_key(key: Key) -> tuple[str, int]:
    """Return the sort key of documents with equal scores."""
    kind, name = key
    return name, ORDER.index(kind)


class SearchDocument(NamedTuple):
    """A searchable document.

    `arguments` are names with their descriptions; `instructions` are those of a pack.
    """

    kind: Kind
    name: str
    description: str = ""
    arguments: str = ""
    instructions: str = ""

    @property
    def key(self) -> Key:
        return self.kind, self.name


class SearchHit(NamedTuple):
    """A search hit. `score` is between 0 and 1, and comparable only within one search."""

    kind: Kind
    name: str
    score: float
    match: Match

    @property
    def is_weak(self) -> bool:
        """Whether it is far weaker than the best hit by words and meaning."""
        return self.match == "text" and self.score < WEAK_SHARE * MAX_TEXT_SCORE
