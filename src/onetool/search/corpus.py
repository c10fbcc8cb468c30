"""What there is to find, as documents of the one search: tools, packs, snippets and aliases.

`IN_CODE` are the functions of the `ot` pack that work on the code's side of the pipe: no tools of the registry, yet to
be found like them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

from onetool._tool import Tool
from onetool.config.model import Settings
from onetool.registry import Entry, Registry, python_name
from onetool.search import Document, Hit, Search
from onetool.util.gc_pauses import no_gc_pauses

if TYPE_CHECKING:
    from onetool.search.index import Shelf


@dataclass(frozen=True, slots=True)
class InCode:
    signature: str
    description: str
    example: str


IN_CODE: Final[Mapping[str, InCode]] = {
    "ot.call": InCode(
        "ot.call(name: str, *args, **kwargs) -> Any",
        "Call a tool by its name, also one whose name Python cannot write.",
        'ot.call("machine.disk", unit="MiB")',
    ),
    "ot.pack": InCode(
        "ot.pack(name: str) -> pack",
        "Return a pack by its name, also one whose name means something else in code: a Python builtin, an imported "
        "module, a variable.",
        'ot.pack("machine").disk()',
    ),
    "ot.parallel": InCode(
        "ot.parallel(functions: list) -> list",
        "Call functions in parallel, at the same time, side by side; their values, in order. An error of one is raised "
        "when all have ended.",
        "ot.parallel([machine.cpu, lambda: machine.disk(unit='MiB')])",
    ),
    "ot.snippet": InCode(
        "ot.snippet(name: str, **values) -> Any",
        "Run a configured snippet from code and give its value. ot.snippets() lists them.",
        'ot.snippet("name", key="value")',
    ),
}


class StoredPack(Protocol):
    """A pack whose tools are no documents of ours: they stand on shelves of their own."""

    @property
    def slug(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def enabled(self) -> bool: ...
    @property
    def is_empty(self) -> bool: ...


class StoredTools(Protocol):
    """The source of those."""

    @property
    def version(self) -> int: ...
    @property
    def packs(self) -> Mapping[str, StoredPack]: ...
    def shelves(self) -> "list[Shelf]": ...


class CatalogSearch:
    """Searches everything there is at this moment; the index is brought up to date when something has changed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._indexed: object = None  # what the index was told about
        self._updating = Lock()

    def search(self, index: Search, query: str, limit: int, settings: Settings, stored: StoredTools) -> list[Hit]:
        """Return what fits. It waits for the disk."""
        packs = stored.packs
        now = (index, self._registry.version - stored.version, packs, settings)
        with self._updating:
            if self._indexed != now:  # packs say something new only together with their tools
                with no_gc_pauses():
                    index.update(documents(self._registry, packs.values(), settings))
                self._indexed = now
        hits = index.search(query, limit, shelves=stored.shelves())
        is_off = self._registry.is_off
        return [hit for hit in hits if hit.kind != "tool" or not is_off(Entry(hit.name, "", enabled=True))]


def documents(registry: Registry, stored: Iterable[StoredPack], settings: Settings) -> Iterator[Document]:
    """Of what is held at this moment: tools may come and go meanwhile, in another thread."""
    tools = [tool for tool in registry if tool.enabled]
    instructions = {python_name(pack): text for pack, text in settings.prompts.packs.items()}
    yield from (Document("tool", name, there.description) for name, there in IN_CODE.items())
    for tool in tools:
        about = instructions.get(python_name(tool.pack), "")
        arguments = " ".join(f"{name} {part.get('description', '')}" for name, part in tool.input.properties.items())
        yield Document("tool", tool.name, tool.description, arguments, about)
    packs = {python_name(pack.slug): pack.description for pack in stored if pack.enabled and not pack.is_empty}
    for pack, words in (packs | _packs(tools)).items():
        yield Document("pack", pack, words, "", instructions.get(pack, ""))
    for name, snippet in settings.snippets.items():
        parameters = " ".join(f"{key} {param.description}" for key, param in snippet.params.items())
        yield Document("snippet", name, snippet.description, parameters)
    for alias, target in settings.aliases.items():
        yield Document("alias", alias, target)


def _packs(tools: Iterable[Tool]) -> dict[str, str]:
    """The names of the tools of each pack, as code writes them."""
    found: dict[str, list[str]] = {}
    for tool in tools:
        pack, _, name = python_name(tool.name).rpartition(".")
        if pack:
            found.setdefault(pack, []).append(name)
    return {pack: " ".join(names) for pack, names in found.items()}
