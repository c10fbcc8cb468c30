"""Bundles as packs: a tool source that reads from the index of the store.

A tool is read when its name is used; lists and searches read the index page by page. The store has
a version number, so that a change by another process is seen by the next call.
`onetool.sources.bundles.bundle_store` stores bundles.
"""

import asyncio
import gc
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set as AbstractSet
from contextlib import suppress
from functools import partial
from heapq import nlargest
from operator import itemgetter
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync as run_in_thread

from onetool.core.foreign_schema import ForeignSchema
from onetool.core.names import python_name
from onetool.core.policy.effects import PRIVATE, READ_ONLY, UNTRUSTED, apply_settings
from onetool.core.registry import Registry, RegistryEntry, ToolSource
from onetool.core.schema import ANY_OBJECT
from onetool.core.tool import Backend, Tool
from onetool.errors import BundleError, ToolError, ToolNotFound
from onetool.net import Net
from onetool.net.oauth.credential import SignInTarget
from onetool.net.oauth.sign_ins import SignIns, identify
from onetool.net.oauth.token_source import TokenSource
from onetool.runs.results.blobs import Media
from onetool.settings.access import OAuth
from onetool.settings.load import Loaded
from onetool.settings.model import PackSettings
from onetool.settings.paths import resolve_path
from onetool.sources.bundles.secret_bindings import (
    REFERENCE,
    SecretUse,
    find_secret_uses,
    list_uses,
)
from onetool.sources.search.search_documents import StoredTools
from onetool.state.stats.details import BYTES_PER_TOKEN
from onetool.state.storage import State
from onetool.util.background import BackgroundTasks
from onetool.util.bounded_dict import BoundedDict
from onetool.util.context import Effect, Permission, Result, ToolContext
from onetool.util.problem import DISABLED, Problem
from onetool.util.sanitize import clean, clean_schema
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.sources.bundles.bundle_store import BundleStore
    from onetool.sources.bundles.model import Bundle, StoredTool
    from onetool.sources.bundles.rows import StoredPack, ToolRow
    from onetool.sources.http.backend import HttpBackend
    from onetool.sources.http.definition import HttpImpl, OAuthFlow
    from onetool.state.counters import RateLimiter
    from onetool_child.json_types import JsonObject

T = TypeVar("T")
BUILT_IN = Path(__file__).with_name("builtin")
PAGE_SIZE = 256
SOURCE = "bundle"
NOT_READ = -1
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
IDEMPOTENT_METHODS = SAFE_METHODS | {"PUT", "DELETE"}
MAX_RECENT = 1_000  # cached tools
MAX_SIMILAR = 20
MAX_READERS = 16
MAX_WRITERS = 8
LIST_TIMEOUT_SECONDS = (
    1.0  # how long lists and searches of a server wait for an index that is being built
)
CLOSE_TIMEOUT_SECONDS = 2.0  # time to complete the batch of an index that is being built


def bundles_directory(loaded: Loaded) -> Path:
    return resolve_path(
        loaded.settings.bundles.dir, loaded.directories.data, loaded.directories.home
    )


def open_store(loaded: Loaded, state: State) -> "BundleStore":
    """Return the configured store. The caller closes it."""
    return open_bundles(
        state, bundles_directory(loaded), loaded.settings.bundles.max_tools, BUILT_IN
    )


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
        self._net = net
        self._media = media
        self._sign_ins = sign_ins
        self._get_state = state
        self.held: Mapping[str, Tool] = {}
        self._rates: RateLimiter | None = None
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
        self._recent = BoundedDict(MAX_RECENT)  # made with the old settings
        if options == self._store_options:
            return
        self._apply(NOT_READ, {})
        self._store_options = options
        self._building = None
        self._rates = state.call_rates(directory)
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
        """Return what the function reads from the store, in a thread.

        Readers never wait for another process.
        """
        return await run_in_thread(work, self.store, limiter=self._readers)

    async def write(self, work: "Callable[[BundleStore], T]") -> T:
        """Change the store in a thread."""
        return await run_in_thread(work, self.store, limiter=self._writers)

    @property
    def is_building(self) -> bool:
        """Whether stored tools are missing from lists, because their index is being built."""
        return self._building is not None and not self._building.done()

    def note_unlisted(self, _context: ToolContext, /) -> str:
        return (
            "stored tools are not listed yet: their index is being built."
            if self.is_building
            else ""
        )

    def findings(self) -> list[Problem]:
        """Return the problems of the store and of names in it. Blocks on disk access."""
        stored = self._store.problems if self._store is not None and not self.is_building else []
        rates = (
            [Problem(self._rates.problem)]
            if self._rates is not None and self._rates.problem
            else []
        )
        conflicts = [
            _describe_conflict(self.packs[name].slug) for name in sorted(self._find_conflicts())
        ]
        unallowed = [use.problem for use in self.list_secret_uses() if self._is_withheld(use)]
        return [*stored, *rates, *conflicts, *unallowed]

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
        is_brief = words is None and self.keeps_running
        max_seconds = (
            LIST_TIMEOUT_SECONDS if is_brief else self._loaded.settings.execution.timeout / 2
        )
        await self._read_or_build(words, max_seconds)

    async def load_pack_names(self) -> None:
        await self._read_or_build(None, LIST_TIMEOUT_SECONDS)

    async def _read_or_build(self, words: Collection[str] | None, max_seconds: float) -> None:
        """Read the packs.

        Wait for a missing index: lists until it has been built for `max_seconds`, others as long.
        """
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
                problem = Problem(_bundle_disabled_reason(pack.slug), code=DISABLED)
                unusable |= dict.fromkeys((pack.slug, name), problem)
            elif pack.is_empty:
                unusable |= dict.fromkeys(
                    (pack.slug, name), Problem(f"bundle {pack.slug} has no tools")
                )
        if packs != self.packs:
            self.packs = packs
            self._usable = packs.keys() - unusable.keys()
        self._unusable = unusable
        self.version = version

    def problems(self) -> Mapping[str, Problem]:
        conflicts = {
            name: _describe_conflict(self.packs[name].slug) for name in self._find_conflicts()
        }
        return {**self._unusable, **conflicts}

    def _find_conflicts(self) -> set[str]:
        """Return the names of bundles that are packs of another source: rights to that pack must
        not cover them.
        """
        return self._list_other_packs() & self.packs.keys()

    def _list_other_packs(self) -> set[str]:
        others = [source for source in self._registry.sources if source is not self]
        return {
            python_name(name)
            for source in others
            for name in (*source.pack_names, *source.problems())
        }

    def find_sign_in_target(self, name: str) -> SignInTarget | None:
        """Return what to sign in to for the tools of a bundle, or None. Blocks on disk access."""
        bundle = self.store.bundle_by_slug(name)
        tools = [] if bundle is None else self.store.list_bundle_tools(bundle.id)
        flows = [flow for tool in tools for flow in find_flows(tool.http_impl)]
        if not flows:
            return None
        origin, flow = flows[0]
        scopes = dict.fromkeys(
            scope for place, other in flows if place == origin for scope in other.scopes
        )
        return self._make_target(name, origin, flow.model_copy(update={"scopes": tuple(scopes)}))

    def _make_target(self, slug: str, origin: str, flow: "OAuthFlow") -> SignInTarget:
        pack = self._pack_settings(slug) or PackSettings()
        settings = pack.auth or OAuth()
        return SignInTarget(slug, origin, settings, tuple(pack.accounts), endpoints=flow)

    def _pack_settings(self, slug: str) -> PackSettings | None:
        packs = self._loaded.settings.tools
        return packs.get(slug) or packs.get(python_name(slug))

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

        Tools of a disabled bundle are found only by name and version, unless `include_disabled` is
        set.
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
                recent[1] if recent is not None and recent[0] == row else self._make_tool(row, key)
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
        names = (
            self.packs.keys() if pack is None else {pack} & self.packs.keys()
        ) - self._find_conflicts()
        for stored in sorted(
            (self.packs[name] for name in names), key=lambda stored: f"{stored.slug}."
        ):
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
            yield from (
                (name, -(-size // BYTES_PER_TOKEN))
                for name, size in self.store.definition_sizes(pack)
            )

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
        """Return the tool with its current state: it is disabled while its Python function is
        missing.
        """
        function = stored.python_impl.function if stored.python_impl else None
        if function is None or self._registry.get(function) is not None:
            return stored
        return stored.as_disabled(_missing_function_reason(function))

    # --- one tool ---------------------------------------------------------------------------------

    def _make_tool(self, row: "ToolRow", key: str) -> Tool:
        from onetool.sources.bundles.reader import to_stored_tool
        from onetool.sources.bundles.search_text import has_valid_structure

        stored = to_stored_tool(row)
        name = f"{stored.bundle_slug}.{stored.slug}"
        is_readable = has_valid_structure(stored.arg_schema)
        reason = _disabled_reason(stored) or (
            "" if is_readable else "the argSchema in its file is not a valid JSON Schema"
        )
        effects, is_idempotent, labels = _read_effects(stored.http_impl)
        tool = Tool(
            name=name,
            backend=self._make_backend(stored),
            input=ForeignSchema(
                lambda: clean_schema(stored.arg_schema if is_readable else ANY_OBJECT)
            ),
            output=(
                ForeignSchema.from_json(stored.output_schema)
                if stored.output_schema is not None
                else None
            ),
            description=clean(stored.description or stored.display_name),
            permissions=frozenset({Permission.NETWORK}) if stored.type == "http" else frozenset(),
            effects=effects,
            is_idempotent=is_idempotent,
            labels=labels,
            source=f"{SOURCE}:{stored.bundle_slug}",
            enabled=not reason,
            disabled_reason=reason,
            disabled_code="" if stored.bundle_enabled else "bundle_disabled",
            identity=stored.id,
            refresh=partial(run_in_thread, self.find, key),
        )
        return apply_settings(tool, self._pack_settings(stored.bundle_slug))

    def _make_backend(self, stored: "StoredTool") -> Backend:
        if stored.python_impl is not None:
            return _FunctionBackend(stored.python_impl.function)
        pack = self._pack_settings(stored.bundle_slug) or PackSettings()
        return _LazyBackend(
            lambda: self._make_http_backend(stored), stored.http_impl or {}, tuple(pack.accounts)
        )

    def _make_http_backend(self, stored: "StoredTool") -> "HttpBackend":
        from onetool.sources.http.backend import HttpBackend

        def sign_in(flow: "OAuthFlow", origin: str, context: ToolContext) -> TokenSource:
            target = self._make_target(stored.bundle_slug, origin, flow)
            return self._sign_ins.get_source(identify(target, context.account, context.agent_id))

        assert self._rates is not None  # a tool comes from a store
        return HttpBackend(
            _validate_impl(stored),
            self._net,
            lambda: self._loaded.settings.http,
            partial(self._get_secret, stored.bundle_slug),
            media=self._media,
            sign_in=sign_in,
            rate_limiter=self._rates,
            identity=stored.id,
        )

    def list_secret_uses(self) -> list[SecretUse]:
        """Return which secrets the tools of each bundle use, and where they send them.

        Blocks on disk access.
        """
        if self._secret_uses[0] != self.version:
            self._secret_uses = (
                self.version,
                find_secret_uses(self.store.list_tools_with(REFERENCE)),
            )
        return self._secret_uses[1]

    def add_problems(self, stored: "StoredTool") -> "StoredTool":
        """Return the tool with its current problems: secrets that it may not send."""
        uses = list_uses(stored.bundle_slug, stored.http_impl)
        problems = [str(use.problem) for use in uses if not use.is_allowed(self._loaded.settings)]
        return stored.model_copy(update={"problems": problems}) if problems else stored

    def list_missing_secrets(self, names: Iterable[str]) -> list[str]:
        """Return the secrets that have no value."""
        return [name for name in names if name not in self._loaded.secrets]

    def _get_secret(self, bundle: str, origin: str, name: str) -> str | None:
        """Return a secret for a request to an origin, or None if it is not set.

        Raise if no owner allowed it.
        """
        value = self._loaded.secrets.get(name)
        if value is not None:
            SecretUse(bundle, name, origin).require_allowed(self._loaded.settings)
        return value


def _is_busy(store: "BundleStore") -> bool:
    """Build a missing index.

    Return whether another process still does that; the next read raises other errors.
    """
    try:
        store.version()
    except BundleError as error:
        return error.fields.get("code") == "busy"
    return False


def find_flows(impl: "JsonObject | None") -> "Iterator[tuple[str, OAuthFlow]]":
    """Yield the origin and the endpoints of each request of a tool that a sign-in can authenticate."""
    from onetool.sources.http.definition import list_requests

    if impl is None or '"oauth"' not in json.dumps(impl, default=str):
        return
    for request in list_requests(impl):
        if request.auth is not None and request.auth.oauth is not None:
            yield request.request.url.origin, request.auth.oauth


def _read_effects(impl: "JsonObject | None") -> tuple[frozenset[Effect], bool, frozenset[str]]:
    """Return effects, idempotence and labels by the methods of all requests, which may be invalid.

    A stored tool without requests calls a function, and that call has the effects.
    """
    if impl is None:
        return READ_ONLY, False, frozenset()
    steps = impl.get("steps")
    requests = [impl, *(steps if isinstance(steps, list) else [])]
    methods = {
        str(request.get("method")).upper() for request in requests if isinstance(request, Mapping)
    }
    options = impl.get("response")
    text = json.dumps(impl, default=str)
    saves = isinstance(options, Mapping) and bool(options.get("saveTo"))
    kind = Effect.READ if methods <= SAFE_METHODS and not saves else Effect.WRITE
    is_private = any(
        mark in text for mark in ("${secret:", "${file:", '"auth":', '"hmac":', "uthorization")
    )
    labels = frozenset({UNTRUSTED, PRIVATE} if is_private else {UNTRUSTED})
    return frozenset({kind, Effect.EXTERNAL}), methods <= IDEMPOTENT_METHODS, labels


class StoredName(NamedTuple):
    """The slugs of a pack and a tool, and a version."""

    pack: str
    tool: str
    version: str | None

    def __str__(self) -> str:
        return f"{self.pack}.{self.tool}" + ("" if self.version is None else f"@{self.version}")

    @classmethod
    def of(cls, tool: "StoredTool") -> "StoredName":
        return cls(tool.bundle_slug, tool.slug, tool.version)

    @classmethod
    def parse(cls, name: str) -> "StoredName | None":
        """Parse a name, or a name as in code: slugs have hyphens, but no underscores."""
        base, at, version = name.partition("@")
        slug, dot, tool = base.replace("_", "-").partition(".")
        stored = f"{slug}{dot}{tool}"
        if not tool or "." in tool or base not in {stored, python_name(stored)}:
            return None
        return cls(slug, tool, version if at else None)


def _describe_conflict(slug: str) -> Problem:
    message = f"bundle {slug} is not used: another pack has its name"
    return Problem(message, "change the slug of the bundle, or rename the other pack")


def _bundle_disabled_reason(slug: str) -> str:
    return f"bundle {slug} is disabled; {_enable_hint(slug)}"


class _LazyBackend:
    """A backend that is created at the first call: most tools of a large bundle are never called."""

    def __init__(
        self, make: Callable[[], Backend], impl: "JsonObject", accounts: tuple[str, ...]
    ) -> None:
        self._make = make
        self._impl = impl
        self.accounts = accounts
        self._made: Backend | None = None

    def identify(self, _tool: Tool) -> Any:
        return self._impl

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        if self._made is None:
            self._made = await run_in_thread(
                self._make
            )  # a large definition takes long to validate
        return await self._made.invoke(tool, args, context)

    def list_origins(self) -> list[str]:
        """Return the origins of its requests, without redirects."""
        from onetool.sources.http.credentials import list_origins

        return ["://".join(origin) for origin in list_origins(self._impl) if origin]


class _FunctionBackend:
    """The backend of a stored tool that calls a registered function, which needs its own
    permissions.
    """

    def __init__(self, function: str) -> None:
        self._function = function

    def identify(self, _tool: Tool) -> Any:
        return self._function

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        bus = context.require_bus()
        result: Result = await bus.call_tool(self._function, args, context)
        if isinstance(result.error, ToolNotFound) and bus.registry.get(self._function) is None:
            raise ToolError(f"{tool.name} is disabled: {_missing_function_reason(self._function)}")
        return result


def _validate_impl(stored: "StoredTool") -> "HttpImpl":
    """Return the validated implementation: the file may have been edited since it was stored."""
    from pydantic import ValidationError

    from onetool.sources.bundles.model import to_bundle_error
    from onetool.sources.http.definition import HttpImpl, find_placeholder_problem

    name = f"{stored.bundle_slug}.{stored.slug}"
    try:
        impl = HttpImpl.model_validate(stored.http_impl)
    except ValidationError as error:
        problems = to_bundle_error(error).fields["details"]["problems"]
        reason = "; ".join(f"{problem['field']}: {problem['problem']}" for problem in problems)
        raise ToolError(f"invalid httpImpl in the file of {name}: {reason}") from None
    if problem := find_placeholder_problem(impl, stored.arg_schema):
        raise ToolError(f"invalid httpImpl in the file of {name}: {problem}")
    return impl


def _disabled_reason(stored: "StoredTool") -> str:
    if not stored.bundle_enabled:
        return _bundle_disabled_reason(stored.bundle_slug)
    return "" if stored.is_enabled else _enable_hint(str(StoredName.of(stored)))


def _enable_hint(name: str) -> str:
    return f"a user can enable it with `onetool bundles enable {name}`"


def _missing_function_reason(function: str) -> str:
    return f"its function {function} does not exist; it works again when the function is registered"
