"""Finding tools, packs, snippets and aliases by name, by a misspelt name, or by what they are for.

One search serves every door. It knows documents only: who makes them of tools, and who shows what is found, stands
above. To import this, or to hold a `Search`, loads nothing that costs time: only at the first question are the
documents hashed, SQLite loaded and the index made (`onetool.search.catalogue`).
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from onetool.search.documents import KINDS, Document, Hit, Key, Kind

if TYPE_CHECKING:
    from onetool.search.catalogue import Catalogue
    from onetool.search.index import Shelf

__all__ = ["Document", "Hit", "Search"]


class Search:
    """Thread-safe. `cache` is a folder, made when it is needed and shared by processes; None: all in memory."""

    def __init__(self, cache: Path | None, *, semantic: bool = True) -> None:
        self._cache = cache
        self._semantic = semantic
        self._documents: dict[Key, Document] = {}
        self._catalogue: Catalogue | None = None
        self._lock = Lock()

    def update(self, documents: Iterable[Document]) -> None:
        """From now on these are all documents there are. What changed is worked out at the next question."""
        self._documents = {document.key: document for document in documents}  # no lock: nobody waits for a question

    def search(
        self, query: str, limit: int = 20, kinds: Collection[Kind] | None = None, shelves: "Sequence[Shelf]" = ()
    ) -> list[Hit]:
        """What fits, the best first, here and on other shelves. Any text may be asked, and none of it is syntax."""
        allowed = KINDS if kinds is None else KINDS.intersection(kinds)
        with self._lock:
            if self._catalogue is None:
                from onetool.search.catalogue import Catalogue

                self._catalogue = Catalogue(self._cache, semantic=self._semantic)
            self._catalogue.hold(self._documents)
            return self._catalogue.search(query, limit, allowed, shelves)

    def close(self) -> None:
        """Let go of the index. Another question opens it again."""
        with self._lock:
            if self._catalogue is not None:
                self._catalogue.close()
            self._catalogue = None
