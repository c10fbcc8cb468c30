"""Bundles as packs: a tool source that reads from the index of the store.

A tool is read when its name is used; lists and searches read the index page by page. The store has
a version number, so that a change by another process is seen by the next call.
`onetool.sources.bundles.bundle_store` stores bundles.
"""

import asyncio
import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set as AbstractSet
from contextlib import suppress
from functools import partial
from heapq import nlargest
from operator import itemgetter
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync as run_in_thread

from onetool.core.names import python_name
from onetool.core.registry import Registry
from onetool.core.tool import RegistryEntry, Tool, ToolSource
from onetool.errors import BundleError
from onetool.net import Net
from onetool.net.oauth.credential import SignInTarget
from onetool.net.oauth.sign_ins import SignIns
from onetool.runs.results.blobs import Media
from onetool.settings.load import Loaded
from onetool.settings.paths import resolve_path
from onetool.sources.bundles.stored_tools import (
    REFERENCE,
    SOURCE,
    SecretUse,
    StoredName,
    ToolFactory,
    bundle_disabled_reason,
    describe_conflict,
    find_flows,
    find_secret_uses,
    list_uses,
    missing_function_reason,
)
from onetool.sources.search.search_documents import StoredTools
from onetool.state.stats.details import BYTES_PER_TOKEN
from onetool.state.storage import State
from onetool.util.bounded_dict import BoundedDict
from onetool.util.context import ToolContext
from onetool.util.problem import DISABLED, Problem
from onetool.util.sanitize import clean
from onetool.util.tasks import BackgroundTasks

if TYPE_CHECKING:
    from onetool.sources.bundles.bundle_store import BundleStore
    from onetool.sources.bundles.model import Bundle, StoredTool
    from onetool.sources.bundles.queries import StoredPack, ToolRow

T = TypeVar("T")
BUILT_IN = Path(__file__).with_name("builtin")
PAGE_SIZE = 256
NOT_READ = -1
MAX_RECENT = 1_000  # cached tools
MAX_SIMILAR = 20
MAX_READERS = 16
MAX_WRITERS = 8
# How long lists and searches of a server wait for an index that is being built.
LIST_TIMEOUT_SECONDS = 1.0
CLOSE_TIMEOUT_SECONDS = 2.0  # time to complete the batch of an index that is being built


def bundles_directory(loaded: Loaded) -> Path:
    directories = loaded.directories
    return resolve_path(loaded.settings.bundles.dir, directories.data, directories.home)


def open_store(loaded: Loaded, state: State) -> "BundleStore":
    """Return the configured store. The caller closes it."""
    max_tools = loaded.settings.bundles.max_tools
    return open_bundles(state, bundles_directory(loaded), max_tools, BUILT_IN)


def open_bundles(
    state: State, directory: Path, max_tools: int, builtin: Path | None = None
) -> "BundleStore":
    """Return the store in this directory, or in the database that replicas share."""
    from onetool.sources.bundles.bundle_storage import BundleDirectory  # needs SQLite and pydantic
    from onetool.sources.bundles.bundle_store import BundleStore
    from onetool.sources.bundles.reader import UsageCounts

    files = state.bundle_files(directory)
    return BundleStore(
        files.root,
        max_tools=max_tools,
        builtin=builtin,
        usage=UsageCounts(state.recorder.database),
        make_directory=partial(BundleDirectory, files=files),
    )


class BundleSource(ToolSource):
    """The tools of the bundle store.

    Only the names of packs and recently used tools are kept in memory.

    Methods that block on disk access say so: call them in a thread.
    """

    kind = SOURCE

    def __init__(
        self,
        registry: Registry,
        net: Callable[[], Net],
        media: Callable[[], Media],
        sign_ins: SignIns,
        state: Callable[[], State],
    ) -> None:
        self._registry = registry
        self._factory = ToolFactory(net, media, sign_ins, self.find)
        self._get_state = state
        self.held: Mapping[str, Tool] = {}
        self._store: BundleStore | None = None
        self._store_options: tuple[Path, int, State] | None = None  # what decides about the store
        self.packs: Mapping[str, StoredPack] = {}  # by the names that code writes
        self._usable: AbstractSet[str] = frozenset()  # the packs that have tools and are enabled
        self._unusable: dict[str, Problem] = {}  # the other packs, with the reason
        self.version = NOT_READ  # of the store, when it was last read
        self._recent: BoundedDict[str, tuple[ToolRow, Tool]] = BoundedDict(MAX_RECENT)
        self._lock = Lock()
        self._counted: tuple[int, dict[str, tuple[int, int]]] = (NOT_READ, {})
        self._secret_uses: tuple[int, list[SecretUse]] = (NOT_READ, [])
        self._building: asyncio.Future[None] | None = None
        self._building_since = 0.0
        self.keeps_running = False  # whether this process outlives one command
        self._closing_stores = BackgroundTasks()
        self._readers = CapacityLimiter(MAX_READERS)
        self._writers = CapacityLimiter(MAX_WRITERS)

    def configure(self, loaded: Loaded, /) -> None:
        state = self._get_state()
        directory = bundles_directory(loaded)
        options = directory, loaded.settings.bundles.max_tools, state
        self._loaded = loaded
        self._factory.settings = loaded.settings
        self._factory.secrets = loaded.secrets
        self._recent = BoundedDict(MAX_RECENT)  # made with the old settings
        if options == self._store_options:
            return
        self._apply(NOT_READ, {})
        self._store_options = options
        self._building = None
        self._factory.rates = state.call_rates(directory)
        old = self._store
        self._store = None
        if old is not None:
            self._closing_stores.start(run_in_thread(old.close))

    @property
    def store(self) -> "BundleStore":
        if self._store is None:
            self._store = open_store(self._loaded, self._get_state())
        return self._store

    async def read(self, work: "Callable[[BundleStore], T]") -> T:
        """Read from the store in a thread. Readers never wait for another process."""
        return await run_in_thread(work, self.store, limiter=self._readers)

    async def write(self, work: "Callable[[BundleStore], T]") -> T:
        """Change the store in a thread."""
        return await run_in_thread(work, self.store, limiter=self._writers)

    @property
    def is_building(self) -> bool:
        """Whether stored tools are missing from lists, because their index is being built."""
        return self._building is not None and not self._building.done()

    def note_unlisted(self, _context: ToolContext, /) -> str:
        if not self.is_building:
            return ""
        return "stored tools are not listed yet: their index is being built."

    def findings(self) -> list[Problem]:
        """Return the problems of the store and of names in it. Blocks on disk access."""
        stored = self._store.problems if self._store is not None and not self.is_building else []
        problems = list(stored)
        rates = self._factory.rates
        if rates is not None and rates.problem:
            problems.append(Problem(rates.problem))
        conflicts = sorted(self._find_conflicts())
        problems += [describe_conflict(self.packs[name].slug) for name in conflicts]
        problems += [use.problem for use in self.list_secret_uses() if self._is_withheld(use)]
        return problems

    def _is_withheld(self, use: SecretUse) -> bool:
        """Return whether a secret has a value that may not be sent."""
        return use.name in self._loaded.secrets and not use.is_allowed(self._loaded.settings)

    async def close(self) -> None:
        """Close the store. What an index being built has so far is kept for the next process."""
        await self._closing_stores.wait()
        building = self._building
        self._building = None
        if self._store is not None:
            await run_in_thread(self._store.close)
        if building is not None:
            await asyncio.wait((building,), timeout=CLOSE_TIMEOUT_SECONDS)

    # --- packs ------------------------------------------------------------------------------------

    async def refresh(self, words: Collection[str] | None = None, /) -> None:
        """Read the packs of the store; `words`, if given, are the only names that matter.

        A missing index is built in a thread. A list waits for it for a limited time. Who names a
        pack waits longer, and so does a process that cannot list the tools later.
        """
        max_seconds = self._loaded.settings.execution.timeout / 2
        if words is None and self.keeps_running:
            max_seconds = LIST_TIMEOUT_SECONDS
        await self._read_or_build(words, max_seconds)

    async def load_pack_names(self) -> None:
        await self._read_or_build(None, LIST_TIMEOUT_SECONDS)

    async def _read_or_build(self, words: Collection[str] | None, max_seconds: float) -> None:
        """Read the packs, and wait for a missing index: lists since its building began."""
        if await run_in_thread(self._read_packs):
            return
        slugs: set[str] = set()
        if words is not None:
            slugs = await run_in_thread(self.store.find_slugs, words)
            if not slugs:  # most words are variables, not packs
                return
        building = self._start_building()
        if words is None:
            max_seconds -= asyncio.get_running_loop().time() - self._building_since
        await asyncio.wait((building,), timeout=max(0.0, max_seconds))
        if not self.is_building:
            await run_in_thread(self._read_packs)
        else:
            problem = Problem("the index of stored tools is being built", "try again in a minute")
            self._unusable |= dict.fromkeys([*slugs, *map(python_name, slugs)], problem)

    def _read_packs(self) -> bool:
        """Return whether there is an index to read."""
        store = self.store
        store_options = self._store_options
        if not store.is_indexed:
            return False
        if (version := store.version()) != self.version:
            packs = {python_name(pack.slug): pack for pack in reversed(store.packs())}
            with self._lock:
                if store_options == self._store_options:
                    self._apply(version, packs)
        return True

    def _apply(self, version: int, packs: "Mapping[str, StoredPack]") -> None:
        unusable: dict[str, Problem] = {}
        for name, pack in packs.items():  # the slug, and the name in code
            if not pack.enabled:
                problem = Problem(bundle_disabled_reason(pack.slug), code=DISABLED)
            elif pack.is_empty:
                problem = Problem(f"bundle {pack.slug} has no tools")
            else:
                continue
            unusable |= dict.fromkeys((pack.slug, name), problem)
        if packs != self.packs:
            self.packs = packs
            self._usable = packs.keys() - unusable.keys()
        self._unusable = unusable
        self.version = version

    def problems(self) -> Mapping[str, Problem]:
        problems = dict(self._unusable)
        for name in self._find_conflicts():
            problems[name] = describe_conflict(self.packs[name].slug)
        return problems

    def _find_conflicts(self) -> set[str]:
        """Return bundle names that other sources use: rights to their packs do not cover bundles."""
        return self._list_other_packs() & self.packs.keys()

    def _list_other_packs(self) -> set[str]:
        names: set[str] = set()
        for source in self._registry.sources:
            if source is not self:
                names.update(source.pack_names, source.problems())
        return set(map(python_name, names))

    def find_sign_in_target(self, name: str) -> SignInTarget | None:
        """Return what to sign in to for the tools of a bundle, or None. Blocks on disk access."""
        bundle = self.store.bundle_by_slug(name)
        tools = [] if bundle is None else self.store.list_bundle_tools(bundle.id)
        flows = [flow for tool in tools for flow in find_flows(tool.http_impl)]
        if not flows:
            return None
        origin, flow = flows[0]
        scopes: dict[str, None] = {}
        for place, other in flows:
            if place == origin:
                scopes |= dict.fromkeys(other.scopes)
        return self._factory.make_target(
            name, origin, flow.model_copy(update={"scopes": tuple(scopes)})
        )

    def _start_building(self) -> "asyncio.Future[None]":
        """Start building the index, or waiting for the process that builds it, in a daemon thread."""
        if self._building is None or self._building.done():
            loop = asyncio.get_running_loop()
            building = self._building = loop.create_future()
            self._building_since = loop.time()

            def build(store: "BundleStore") -> None:
                # building triggers many garbage collections, which must not scan all live objects
                gc.freeze()
                is_busy = True
                while is_busy and self._building is building:
                    is_busy = _is_busy(store)
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(building.set_result, None)

            Thread(target=build, args=[self.store], name="onetool-index", daemon=True).start()
        return self._building

    @property
    def pack_names(self) -> AbstractSet[str]:
        return self._usable - self._find_conflicts()

    @property
    def custom_pack_names(self) -> AbstractSet[str]:
        """The packs that are not built in."""
        return {name for name in self.pack_names if not self.packs[name].built_in}

    def describe(self, name: str, /) -> str:
        pack = self.packs.get(name)
        bundle = self.store.bundle_by_slug(pack.slug) if pack is not None else None
        return "" if bundle is None else clean(bundle.description)

    def count(self, pack: str, *, enabled: bool = False) -> int:
        """Return the number of tools of a pack, or only of those that can be called.

        Blocks on disk access.
        """
        if self._counted[0] != self.version:
            self._counted = self.version, self.store.count_tools()
        stored = self.packs.get(pack)
        return 0 if stored is None else self._counted[1].get(stored.id, (0, 0))[enabled]

    def list_bundles(self) -> "list[Bundle]":
        bundles = []
        token = None
        while True:
            page = self.store.list_bundles(include_disabled=True, size=PAGE_SIZE, token=token)
            bundles += page.items
            token = page.next_token
            if token is None:
                return bundles

    # --- tools ------------------------------------------------------------------------------------

    def find(self, name: str, *, include_disabled: bool = False) -> Tool | None:
        """Return the current tool with this name, or this name and version. Blocks on disk access.

        Without `include_disabled`, tools of a disabled bundle are found only with their version.
        """
        stored_name = self._parse_name(name)
        if stored_name is None or self.is_building:
            return None
        row = self.store.find_tool(stored_name.pack, stored_name.tool, stored_name.version)
        key = str(stored_name)
        with self._lock:
            recent = self._recent.get(key)
            if row is None or not (
                row.bundle_enabled or stored_name.version is not None or include_disabled
            ):
                self._recent.pop(key, None)
                return None
            tool = (
                recent[1]
                if recent is not None and recent[0] == row
                else self._factory.make(row, key)
            )
            self._recent[key] = row, tool
        return tool

    def peek(self, name: str) -> Tool | None:
        """Return the tool as it was last used, if it is cached."""
        recent = self._recent.get(str(self._parse_name(name)))
        return recent[1] if recent is not None else None

    def _parse_name(self, name: str) -> "StoredName | None":
        """Return the stored tool that a name may mean, unless another source has its pack."""
        stored_name = StoredName.parse(name)
        if stored_name is None or python_name(stored_name.pack) in self._list_other_packs():
            return None
        return stored_name

    def words(self, pack: str) -> AbstractSet[str]:
        stored = self.packs.get(pack)
        start = f"{stored.slug}." if stored is not None else "."
        recent = [name for name in list(self._recent) if name.startswith(start) and "@" not in name]
        return {python_name(name.removeprefix(start)) for name in recent}

    def entries(
        self, pack: str | None = None, *, at_once: int | None = None
    ) -> Iterator[RegistryEntry]:
        return self.names(pack, at_once=at_once)

    def names(
        self,
        pack: str | None = None,
        after: str = "",
        *,
        include_disabled: bool = False,
        at_once: int | None = None,
    ) -> Iterator[RegistryEntry]:
        """Yield the tools that can be called by name, ordered by name. Blocks on disk access.

        With `include_disabled`, tools of disabled bundles are included.
        """
        names = self.packs.keys() - self._find_conflicts()
        if pack is not None:
            names &= {pack}
        packs = [self.packs[name] for name in names]
        for stored in sorted(packs, key=lambda stored: f"{stored.slug}."):
            start = f"{stored.slug}."
            is_before = start < after and not after.startswith(start)
            if is_before or stored.is_empty or not (include_disabled or stored.enabled):
                continue
            last = after.removeprefix(start) if after.startswith(start) else ""
            while page := self.store.list_names(stored, last, at_once):
                yield from page
                last = page[-1].name.partition(".")[2]

    def definition_tokens(self) -> Iterator[tuple[str, int]]:
        """Yield the approximate number of tokens of each definition. Blocks on disk access."""
        for pack in self.packs.values():
            for name, size in self.store.definition_sizes(pack):
                yield name, -(-size // BYTES_PER_TOKEN)

    def searchable(self) -> StoredTools:
        """Return what a search needs. Blocks on disk access."""
        packs = {
            name: pack.description for name, pack in self.packs.items() if name in self._usable
        }
        return StoredTools(self.version, packs, self.store.readers())

    def similar(self, name: str, /) -> list[str]:
        """Return the names of stored tools that are similar to this one, the most similar first."""
        names = [pair for reader in self.store.readers() for pair in reader.find_similar([name])]
        return [key[1] for key, _ in nlargest(MAX_SIMILAR, names, key=itemgetter(1))]

    def tool_name(self, stored: "StoredTool") -> str:
        """Return the name by which this version is called."""
        return str(StoredName.of(stored))

    def apply_state(self, stored: "StoredTool") -> "StoredTool":
        """Return the tool, disabled if its Python function is missing."""
        function = stored.python_impl.function if stored.python_impl else None
        if function is None or self._registry.get(function) is not None:
            return stored
        return stored.as_disabled(missing_function_reason(function))

    # --- secrets -------------------------------------------------------------------------------------

    def list_secret_uses(self) -> list[SecretUse]:
        """Return which secrets the tools of each bundle use, and where they send them.

        Blocks on disk access.
        """
        if self._secret_uses[0] != self.version:
            uses = find_secret_uses(self.store.list_tools_with(REFERENCE))
            self._secret_uses = self.version, uses
        return self._secret_uses[1]

    def add_problems(self, stored: "StoredTool") -> "StoredTool":
        """Return the tool with its current problems: secrets that it may not send."""
        uses = list_uses(stored.bundle_slug, stored.http_impl)
        problems = [str(use.problem) for use in uses if not use.is_allowed(self._loaded.settings)]
        return stored.model_copy(update={"problems": problems}) if problems else stored

    def list_missing_secrets(self, names: Iterable[str]) -> list[str]:
        """Return the secrets that have no value."""
        return [name for name in names if name not in self._loaded.secrets]


def _is_busy(store: "BundleStore") -> bool:
    """Build a missing index.

    Return whether another process still does that; the next read raises other errors.
    """
    try:
        store.version()
    except BundleError as error:
        return error.fields.get("code") == "busy"
    return False
