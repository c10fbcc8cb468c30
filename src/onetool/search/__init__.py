"""Search for tools, packs, snippets and aliases by name, by a misspelled name, or by purpose.

The search works on documents; `search_documents` creates them from tools. Importing this package and creating a
`Search` are cheap: the first query hashes the documents, loads SQLite and builds the index (`onetool.search.catalog`).
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from onetool.search.documents import KINDS, Key, Kind, SearchDocument, SearchHit

if TYPE_CHECKING:
    from onetool.search.catalog import SearchCatalog
    from onetool.search.index_reader import IndexReader

__all__ = ["Search", "SearchDocument", "SearchHit"]


class Search:
    """A thread-safe search.

    `cache` is a directory that is created when needed and may be shared by processes; None keeps the index in memory.
    """

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._documents: dict[Key, SearchDocument] = {}
        self._catalog: SearchCatalog | None = None
        self._lock = Lock()

    def update(self, documents: Iterable[SearchDocument]) -> None:
        """Replace all documents. The index is updated at the next query."""
        self._documents = {
            (document.kind, document.name): document for document in documents
        }  # no lock, so that it never waits

    def search(
        self,
        query: str,
        limit: int = 20,
        kinds: Collection[Kind] | None = None,
        readers: "Sequence[IndexReader]" = (),
        more: Iterable[SearchDocument] = (),
    ) -> list[SearchHit]:
        """Return the best hits first, from these documents, from `readers` and from `more`. A query has no syntax."""
        allowed = KINDS if kinds is None else KINDS.intersection(kinds)
        with self._lock:
            if self._catalog is None:
                from onetool.search.catalog import SearchCatalog

                self._catalog = SearchCatalog(self._cache)
            self._catalog.set_documents(self._documents)
            return self._catalog.search(query, limit, allowed, readers, tuple(more))

    def close(self) -> None:
        """Close the index. The next query opens it again."""
        with self._lock:
            if self._catalog is not None:
                self._catalog.close()
            self._catalog = None
