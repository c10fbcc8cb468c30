"""Search documents for tools, packs, snippets and aliases.

`IN_CODE` are `ot` functions that run inside the cell: they are searchable, but not registered.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.names import python_name
from onetool.core.registry import Registry
from onetool.core.tool import RegistryEntry, Tool
from onetool.settings.model import Settings, Snippet
from onetool.sources.search import SearchDocument, SearchHit
from onetool.util.gc_pauses import no_gc_pauses

if TYPE_CHECKING:
    from pathlib import Path

    from onetool.sources.search.catalog import Search
    from onetool.sources.search.index_reader import IndexReader
    from onetool.state.storage import State


class CodeFunction(NamedTuple):
    signature: str
    description: str
    example: str


IN_CODE: Mapping[str, CodeFunction] = {
    "ot.call": CodeFunction(
        "ot.call(name: str, *args, **kwargs) -> Any",
        "Call a tool by name, even if the name is not a valid Python identifier.",
        'ot.call("machine.disk", unit="MiB")',
    ),
    "ot.pack": CodeFunction(
        "ot.pack(name: str) -> pack",
        "Return a pack by name, even if the name means something else in code: a Python builtin, an"
        " imported module, a variable.",
        'ot.pack("machine").disk()',
    ),
    "ot.account": CodeFunction(
        "ot.account(pack: str, account: str) -> pack",
        "Return a pack whose calls use another account of its server, such as work or home.",
        'ot.account("gh", "work").whoami()',
    ),
    "ot.parallel": CodeFunction(
        "ot.parallel(functions: list) -> list",
        "Call functions in parallel, at the same time, side by side, and return their values in"
        " order. An error is raised when all have ended.",
        "ot.parallel([machine.cpu, lambda: machine.disk(unit='MiB')])",
    ),
    "ot.snippet": CodeFunction(
        "ot.snippet(name: str, **values) -> Any",
        "Run a configured snippet from code and return its value. ot.snippets() lists them.",
        'ot.snippet("name", key="value")',
    ),
}


DocumentCache = dict[str, tuple[Tool, SearchDocument]]


class StoredTools(NamedTuple):
    """The stored tools: their version, pack descriptions, and indexes."""

    version: int
    packs: Mapping[str, str]
    readers: "Sequence[IndexReader]"


class CatalogSearch:
    """A search over the current registry and settings, indexed again when they have changed.

    `get_stored` returns the stored tools; it blocks on disk access.
    """

    def __init__(self, registry: Registry, get_stored: Callable[[], StoredTools]) -> None:
        self._registry = registry
        self._get_stored = get_stored
        self._indexed: object = None  # the state for which the index was built
        self._document_cache: DocumentCache = {}
        self._update_lock = Lock()
        self._index: Search | None = None
        self._index_directory: Path | None = None

    def configure(self, settings: Settings, state: "State") -> None:
        """Apply new settings. The index is a cache in a directory of the state."""
        self._settings = settings
        self._state = state

    def close(self) -> None:
        """Close the index. Blocks."""
        if self._index is not None:
            self._index.close()

    async def search(
        self, query: str, limit: int = 20, agent: str | None = None
    ) -> list[SearchHit]:
        """Search all tools, packs, snippets and aliases, with the saved snippets of `agent`."""
        await self._registry.refresh()
        return await run_in_thread(self._search, query, limit, agent)

    def _search(self, query: str, limit: int, agent: str | None) -> list[SearchHit]:
        settings = self._settings
        index = self._open_index()
        stored = self._get_stored()
        saved = {} if agent is None else self._state.snippets.merge({}, agent)
        saved = {name: snippet for name, snippet in saved.items() if name not in settings.snippets}
        state = (index, self._registry.version - stored.version, stored.packs, settings)
        with self._update_lock:
            if self._indexed != state:  # documents of packs change only together with their tools
                with no_gc_pauses():
                    index.update(
                        documents(self._registry, stored.packs, settings, self._document_cache)
                    )
                self._indexed = state
        more = (snippet_document(name, snippet) for name, snippet in sorted(saved.items()))
        hits = index.search(query, limit, readers=stored.readers, more=more)
        return [hit for hit in hits if hit.kind != "tool" or self._is_enabled(hit.name)]

    def _is_enabled(self, tool: str) -> bool:
        return not self._registry.is_disabled(RegistryEntry(tool, "", enabled=True))

    def _open_index(self) -> "Search":
        from onetool.sources.search.catalog import Search  # takes some milliseconds

        directory = self._state.search_directory
        with self._update_lock:
            if self._index is None or self._index_directory != directory:
                self.close()
                self._index = Search(directory)
                self._index_directory = directory
            return self._index


def documents(
    registry: Registry, stored: Mapping[str, str], settings: Settings, cache: DocumentCache
) -> Iterator[SearchDocument]:
    """Yield the documents of the current tools, which another thread may change meanwhile.

    `cache` has the previous documents, and is updated: an unchanged tool keeps its document.
    """
    tools = [tool for tool in registry if tool.enabled]
    instructions = {python_name(pack): text for pack, text in settings.prompts.packs.items()}
    for name, function in IN_CODE.items():
        yield SearchDocument("tool", name, function.description)
    for tool in tools:
        about = instructions.get(python_name(tool.pack), "") if instructions else ""
        before, document = cache.get(tool.name, (None, None))
        if document is None or before is not tool or document.instructions != about:
            document = tool_document(tool, about)
            cache[tool.name] = tool, document
        yield document
    for name in cache.keys() - {tool.name for tool in tools}:
        del cache[name]
    for pack, text in {**stored, **_tool_names_by_pack(tools)}.items():
        yield SearchDocument("pack", pack, text, "", instructions.get(pack, ""))
    for name, snippet in settings.snippets.items():
        yield snippet_document(name, snippet)
    for alias, target in settings.aliases.items():
        yield SearchDocument("alias", alias, target)


def tool_document(tool: Tool, about: str) -> SearchDocument:
    properties = tool.input.properties.items()
    arguments = " ".join(f"{name} {part.get('description', '')}" for name, part in properties)
    return SearchDocument("tool", tool.name, tool.description, arguments, about)


def snippet_document(name: str, snippet: Snippet) -> SearchDocument:
    parameters = " ".join(f"{key} {param.description}" for key, param in snippet.params.items())
    return SearchDocument("snippet", name, snippet.description, parameters)


def _tool_names_by_pack(tools: Iterable[Tool]) -> dict[str, str]:
    """Return the tool names of each pack, as written in code."""
    names_by_pack: dict[str, list[str]] = {}
    for tool in tools:
        pack, _, name = python_name(tool.name).rpartition(".")
        if pack:
            names_by_pack.setdefault(pack, []).append(name)
    return {pack: " ".join(names) for pack, names in names_by_pack.items()}
