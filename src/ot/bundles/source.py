"""Bundles as packs: the enabled tools of the store in the registry, each by its name and by name@version.

Nothing is read before somebody asks, and then only the bundles that are meant. The store tells by a number whether
anything has changed since; a change of another process is seen by the very next call. Storing is `ot.bundles.store`.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from ot.backends.http_tool.rates import SharedRates
from ot.config.load import Loaded
from ot.context import Permission, ToolContext
from ot.errors import ToolError, ToolNotFound
from ot.gc_pauses import no_gc_pauses
from ot.net import Net
from ot.paths import placed
from ot.registry import Registry, python_name
from ot.sanitise import clean, clean_schema
from ot.schema import ANY_OBJECT, Schema
from ot.tool import Backend, Result, Tool

if TYPE_CHECKING:
    from ot.backends.http import HttpBackend
    from ot.backends.http_tool.impl import HttpImpl
    from ot.bundles.model import Bundle, StoredTool
    from ot.bundles.store import BundleStore

BUILT_IN = Path(__file__).with_name("builtin")
PAGE = 256
SOURCE = "bundle"
UNREAD = -1
MOST_ASKED = 1000
STEP = 100  # changes of the registry between two turns of the event loop: some milliseconds
MAX_PACK_NAMES = 10_000


@dataclass(slots=True)
class _Read:
    """What was found in the store, at one moment."""

    made_for: tuple[Path, int] | None  # the store: its directory and its size
    before: int  # the version that was registered when the reading began
    version: int
    is_everything: bool
    made: dict[str, tuple[bool, "StoredTool", Tool]] = field(default_factory=dict)  # by name@version
    plain: dict[str, Tool] = field(default_factory=dict)  # the tools that answer to names without a version
    off: dict[str, str] = field(default_factory=dict)
    described: dict[str, str] = field(default_factory=dict)


def folder_of(loaded: Loaded) -> Path:
    return placed(loaded.settings.bundles.dir, loaded.folders.data, loaded.folders.home)


def store_of(loaded: Loaded) -> "BundleStore":
    """The store that this configuration means, for somebody to close."""
    from ot.bundles.store import BundleStore

    stats_file = loaded.folders.data / "stats" / "stats.db"
    most = loaded.settings.bundles.max_tools
    return BundleStore(folder_of(loaded), max_tools=most, builtin=BUILT_IN, stats_file=stats_file)


class BundleSource:
    def __init__(self, registry: Registry, net: Callable[[], Net]) -> None:
        self._registry, self._net = registry, net
        self._rates: SharedRates | None = None
        self._reading_all, self._reading_some, self._registering = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._store: BundleStore | None = None
        self.described: dict[str, str] = {}
        self.collisions: dict[str, str] = {}
        self._made_for: tuple[Path, int] | None = None  # what the store was made for: its folder and its size
        self._registered: dict[str, Tool] = {}
        self._made: dict[str, tuple[bool, StoredTool, Tool]] = {}  # what the registry has by name@version
        self._off: dict[str, str] = {}  # packs that are switched off, and the words for it
        self._version, self._has_everything = UNREAD, False
        self._asked: set[str] = set()  # packs that may be bundles, and have been looked for
        self.pack_names: list[str] = []  # of all bundles, also those that were not read yet
        self._names_version = UNREAD

    def use(self, loaded: Loaded) -> "BundleStore | None":
        """From now on. The store that is not used any more, for somebody to close."""
        wanted = (folder_of(loaded), loaded.settings.bundles.max_tools)
        self._loaded, made_for = loaded, self._made_for
        if wanted == made_for:
            return None
        self._unregister()
        self._made_for, self._version, self._has_everything = wanted, UNREAD, False
        self.pack_names, self._names_version = [], UNREAD
        self._rates = SharedRates(wanted[0] / ".usage" / "rates.db")
        old, self._store = self._store, None
        return old

    @property
    def store(self) -> "BundleStore":
        if self._store is None:
            self._store = store_of(self._loaded)
        return self._store

    @property
    def problems(self) -> list[str]:
        kept = self._store.problems if self._store is not None else []
        uncounted = [self._rates.problem] if self._rates is not None and self._rates.problem else []
        return [*kept, *uncounted, *self.collisions.values()]

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    # --- the registry -----------------------------------------------------------------------------------------------

    async def discover(self, words: Collection[str] | None = None) -> None:
        """Have in the registry what the store holds now; `words` are the packs that matter, where not all do.

        Reading some packs does not wait for a reading of all. A caller that is cancelled leaves the work to the others.
        """
        task = asyncio.ensure_future(self._update(None if words is None else set(words)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)
        for pack, why in self._off.items():  # others who read their packs anew forget what was said of ours
            self._registry.broken.setdefault(pack, why)

    async def _update(self, words: set[str] | None) -> None:
        async with self._reading_all if words is None else self._reading_some:
            is_done = False
            while not is_done:
                found = await anyio.to_thread.run_sync(self._read, words)
                async with self._registering:
                    is_done = found is None or (not self._is_outdated(found) and await self._register(found))

    def _is_outdated(self, found: _Read) -> bool:
        """Whether something newer, or more of it, was registered since the reading began."""
        is_older = self._version not in {found.before, found.version}
        return is_older or found.made_for != self._made_for or found.is_everything < self._has_everything

    def tool_name(self, stored: "StoredTool") -> str:
        """By which this very version is called."""
        return f"{stored.bundle_slug}.{stored.slug}@{stored.version}"

    def shown(self, stored: "StoredTool") -> "StoredTool":
        """As it is now: a tool without its function is disabled, for as long as that is missing."""
        function = stored.python_impl.function if stored.python_impl else None
        if function is None or self._registry.get(function) is not None:
            return stored
        return stored.disabled(_missing(function))

    def _read(self, words: set[str] | None) -> _Read | None:
        """In a thread. None where all that is asked for is known."""
        if words is not None and not self._made and not self.store.may_have(words):
            return None  # most words are variables, which must not wait for an index that is being built
        made_for, before, version = self._made_for, self._version, self.store.version()
        if version != self._names_version:
            self.pack_names, self._names_version = self.store.pack_names(MAX_PACK_NAMES), version
        if version == self._version and (self._has_everything or (words is not None and words <= self._asked)):
            return None
        if words is None or self._has_everything:
            return self._with_tools(_Read(made_for, before, version, is_everything=True), self.all_bundles())
        wanted = words | self._asked
        meant = {word: bundle for word in wanted if (bundle := self.store.bundle_by_slug(word)) is not None}
        is_known = version == self._version and meant.keys() <= self._asked
        self._asked = wanted if len(wanted) < MOST_ASKED else set(meant)
        is_about_others = bool(words) and words.isdisjoint(meant) and words.isdisjoint(self.described)
        if is_known or is_about_others:  # who asks about others does not wait for a registration
            return None
        return self._with_tools(_Read(made_for, before, version, is_everything=False), meant.values())

    def _with_tools(self, found: _Read, bundles: "Iterable[Bundle]") -> _Read:
        with no_gc_pauses():
            for bundle in bundles:
                found.described[python_name(bundle.slug)] = clean(bundle.description)
                answering = self._add(found, bundle)
                if bundle.is_enabled:
                    found.plain |= answering
                else:  # as a program names it, and as code does
                    found.off |= dict.fromkeys((bundle.slug, python_name(bundle.slug)), _switched_off(bundle))
        return found

    def _add(self, found: _Read, bundle: "Bundle") -> dict[str, Tool]:
        """Make the tools of a bundle, unless they are known. Return those that answer to plain names."""
        answering: dict[str, Tool] = {}
        for each in sorted(self.store.tools_of(bundle.id), key=attrgetter("modified_at")):
            name = self.tool_name(each)
            known = self._made.get(name)
            is_known = known is not None and known[:2] == (bundle.is_enabled, each)
            made = known if known is not None and is_known else (bundle.is_enabled, each, self._tool(bundle, each))
            found.made[name], tool = made, made[2]
            if tool.enabled or not answering.get(tool.name, tool).enabled:
                answering[tool.name] = tool
        return answering

    def all_bundles(self) -> "list[Bundle]":
        bundles, token = [], None
        while True:
            page = self.store.list_bundles(include_disabled=True, size=PAGE, token=token)
            bundles += page.items
            token = page.next_token
            if token is None:
                return bundles

    async def _register(self, found: _Read) -> bool:
        """Bring the registry up to date, tool by tool. Other work gets its turn after every few of them.

        Return False if a reload puts another store in the place of this one meanwhile.
        """
        with no_gc_pauses():
            for count, change in enumerate(self._changes(found)):
                if count % STEP == 0:
                    await asyncio.sleep(0)
                    if self._made_for != found.made_for:
                        return False
                change()
        for pack in self._off.keys() - found.off.keys():
            self._registry.broken.pop(pack, None)
        self._off, self.described = found.off, found.described
        self.collisions = {name: why for name, why in self.collisions.items() if name in found.plain}
        self._version, self._has_everything = found.version, found.is_everything
        return True

    def _changes(self, found: _Read) -> Iterator[Callable[[], None]]:
        for name in [name for name in self._made if name not in found.made]:
            yield partial(self._remove_version, name)
        for name in [name for name in self._registered if name not in found.plain]:
            yield partial(self._remove, name)
        for name, made in found.made.items():
            if self._made.get(name) is not made:
                yield partial(self._add_version, name, made)
        for name, tool in found.plain.items():
            if self._registered.get(name) is not tool:
                yield partial(self._add_by_plain_name, tool)

    def _add_version(self, name: str, made: "tuple[bool, StoredTool, Tool]") -> None:
        self._registry.add_version(made[2], made[1].version)
        self._made[name] = made

    def _remove_version(self, name: str) -> None:
        self._registry.remove_version(name)
        del self._made[name]

    def _remove(self, name: str) -> None:
        del self._registered[name]
        self.collisions.pop(name, None)
        if name in self._registry:
            self._registry.remove(name)

    def _add_by_plain_name(self, tool: Tool) -> None:
        if tool.name in self._registered:
            self._registered[tool.name] = self._registry.replace(tool)
            return
        holder = self._registry.holder_of(tool.name)
        self.collisions.pop(tool.name, None)
        if holder is not None:
            other = f"{tool.name}@version" if holder == tool.name else tool.name
            self.collisions[tool.name] = (
                f"the stored tool {tool.name} and {holder} have one name in code: {python_name(tool.name)} means "
                f"{holder}, and the other is called by ot.call('{other}')"
            )
        if holder != tool.name:
            self._registry.add(tool)
            self._registered[tool.name] = tool

    def _unregister(self) -> None:
        for name in list(self._registered):
            self._remove(name)
        for name in list(self._made):
            self._remove_version(name)
        for pack, why in self._off.items():
            if self._registry.broken.get(pack) == why:
                del self._registry.broken[pack]
        self._off.clear()
        self.collisions.clear()

    # --- one tool ---------------------------------------------------------------------------------------------------

    def _tool(self, bundle: "Bundle", stored: "StoredTool") -> Tool:
        name = f"{stored.bundle_slug}.{stored.slug}"
        is_readable = _is_readable(stored.arg_schema)
        reason = _why_off(bundle, stored) or ("" if is_readable else "the argSchema in its file is no JSON Schema")
        return Tool(
            name=name,
            backend=self._backend(stored),
            input=Schema(lambda: clean_schema(stored.arg_schema if is_readable else ANY_OBJECT)),
            output=Schema.from_json(stored.output_schema) if stored.output_schema is not None else None,
            description=clean(stored.description or stored.display_name),
            permissions=frozenset({Permission.NETWORK}) if stored.type == "http" else frozenset(),
            source=f"{SOURCE}:{bundle.slug}",
            enabled=not reason,
            disabled_reason=reason,
            refresh=self._refresh,
            identity=stored.id,
        )

    def _backend(self, stored: "StoredTool") -> Backend:
        if stored.python_impl is not None:
            return _Function(stored.python_impl.function)
        return _Late(lambda: self._http(stored))

    def _http(self, stored: "StoredTool") -> "HttpBackend":
        from ot.backends.http import HttpBackend

        return HttpBackend(
            _impl_of(stored),
            self._net,
            lambda: self._loaded.settings.http,
            self._secret,
            rates=self._rates,
            identity=stored.id,
        )

    def _secret(self, name: str) -> str | None:
        return self._loaded.secrets.get(name)

    async def _refresh(self) -> None:
        await self.discover(set())


def _switched_off(bundle: "Bundle") -> str:
    return f"the bundle {bundle.slug} is switched off; {_switched_on_by(bundle.slug)}"


class _Late:
    """A backend that is made at its first call: most tools of a large bundle are never called."""

    def __init__(self, make: Callable[[], Backend]) -> None:
        self._make = make
        self._made: Backend | None = None

    async def invoke(self, tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Any:
        if self._made is None:
            self._made = self._make()
        return await self._made.invoke(tool, args, context)


class _Function:
    """A stored tool that stands for one that is registered, under the rights that this one needs."""

    def __init__(self, function: str) -> None:
        self._function = function

    async def invoke(self, tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Any:
        result: Result = await context.bus.call_tool(self._function, args, context)
        if isinstance(result.error, ToolNotFound) and context.bus.registry.get(self._function) is None:
            raise ToolError(f"{tool.name} is disabled: {_missing(self._function)}")
        return result


def _impl_of(stored: "StoredTool") -> "HttpImpl":
    """It was right when it was stored; somebody may have edited the file since."""
    from pydantic import ValidationError

    from ot.backends.http_tool.declared import placeholder_problem
    from ot.backends.http_tool.impl import HttpImpl
    from ot.bundles.model import refusal

    name = f"{stored.bundle_slug}.{stored.slug}"
    try:
        impl = HttpImpl.model_validate(stored.http_impl)
    except ValidationError as error:
        wrong = refusal(error).message.removeprefix("the body is not valid: ")
        raise ToolError(f"{name} has a wrong httpImpl in its file: {wrong}") from None
    if problem := placeholder_problem(impl, stored.arg_schema):
        raise ToolError(f"{name} has a wrong httpImpl in its file: {problem}")
    return impl


def _is_readable(schema: object) -> bool:
    """Whether a reader finds in a schema what it looks for; whether it is right shows when it is used."""
    if not isinstance(schema, Mapping):
        return False
    parts, required = schema.get("properties", {}), schema.get("required", [])
    return isinstance(parts, Mapping) and isinstance(required, list) and all(map(_is_readable_part, parts.values()))


def _is_readable_part(part: object) -> bool:
    if isinstance(part, bool):
        return True
    kinds = {"type": str | list, "enum": list, "description": str}
    return isinstance(part, Mapping) and all(isinstance(part[key], kind) for key, kind in kinds.items() if key in part)


def _why_off(bundle: "Bundle", stored: "StoredTool") -> str:
    if not bundle.is_enabled:
        return _switched_off(bundle)
    name = f"{stored.bundle_slug}.{stored.slug}@{stored.version}"
    return "" if stored.is_enabled else f"it is switched off; {_switched_on_by(name)}"


def _switched_on_by(name: str) -> str:
    return f"a person switches it on with `onetool bundles enable {name}`"


def _missing(function: str) -> str:
    return f"there is no function {function} any more; it works again as soon as there is"
