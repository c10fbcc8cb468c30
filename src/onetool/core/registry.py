"""The registry of tools: an ordered view over the sources of tools.

If several sources have a tool, the first source with exactly this name wins; without one, the first
source with a tool whose Python name is equal (`get-sum` is `get_sum` in Python). `peek`, `is_pack`,
`packs`, `problems` and iteration never block; everything else may read the disk and belongs in
threads.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Set as AbstractSet
from copy import copy
from dataclasses import replace
from functools import partial
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.names import (
    MAX_LIST_CHARS,
    MAX_LISTED_NAMES,
    MAX_NAME_LENGTH,
    check_name,
    find_by_words,
    fold,
    join_packs,
    nearest,
    python_name,
    split_words,
)
from onetool.core.tool import RegistryEntry, Tool, ToolSource
from onetool.errors import SignInRequired, ToolError, ToolNotFound
from onetool.state.document_kinds import EVERYTHING
from onetool.util.context import ToolContext
from onetool.util.problem import DISABLED
from onetool.util.text import did_you_mean, quote
from onetool_child.names import IN_CODE, OWN_PACK

if TYPE_CHECKING:
    from onetool.settings.load import Loaded
    from onetool.state.document_kinds import DisabledTools
    from onetool.util.problem import Problem

MAX_COMPARED_NAMES = 2_000  # of one pack, with the words of an unknown name
ALWAYS_ON = frozenset({"ot.health", "ot.help", "ot.packs", "ot.reload", "ot.tools", "ot.version"})


class Registry:
    """The tools of all sources, in the order of the sources."""

    def __init__(self, *sources: ToolSource, aliases: Mapping[str, str] | None = None) -> None:
        self.sources = sources
        self.aliases = aliases or {}
        self.switches: DisabledTools | None = None
        self.switch_lock = asyncio.Lock()  # of changes that depend on what is enabled
        self._admits: Callable[[Tool | RegistryEntry], bool] | None = (
            None  # filters the tools of a view
        )
        self._off: frozenset[str] = frozenset()
        self._off_reason = ""
        self._off_version = 0
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The version of the set of tools; changes with the set."""
        return self._off_version + sum(source.version for source in self.sources)

    async def refresh(self, words: Collection[str] | None = None) -> None:
        """Update the set of tools; `words` are the packs that are needed, None for all."""
        for source in self.sources:  # in order: a later source may reject a pack of an earlier one
            await source.refresh(words)
        self.apply_switches()

    async def refresh_within(self, seconds: float) -> bool:
        """Update the set of tools, together with other callers.

        Return whether it took less than this time.

        Otherwise, slow sources finish in the background.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self.refresh())
        done, _ = await asyncio.wait((self._refreshing,), timeout=seconds)
        for task in done:
            task.result()
        return bool(done)

    def configure(self, loaded: "Loaded", switches: "DisabledTools") -> None:
        """Apply new settings to all sources.

        `switches` are the tools and packs that people disabled.
        """
        self.aliases = loaded.settings.aliases
        self.switches = switches
        for source in self.sources:
            source.configure(loaded)

    async def close(self) -> None:
        await asyncio.gather(*(source.close() for source in self.sources))

    async def switch(self, name: str, *, on: bool) -> None:
        """Enable or disable a tool or pack permanently."""
        assert self.switches is not None
        await run_in_thread(partial(self.switches.set, name, on=on))
        self.apply_switches()

    async def load_pack_names(self) -> None:
        """Read the names of all packs, for messages about unknown names. Never waits long."""
        for source in self.sources:
            await source.load_pack_names()

    def apply_switches(self) -> None:
        """Re-read which tools and packs are disabled."""
        if self.switches is not None:
            off = self.switches.off()
            problem = self.switches.problem
            reason = "" if problem is None else str(problem)
            if (off, reason) != (self._off, self._off_reason):
                self._off = off
                self._off_reason = reason
                self._off_version += 1

    def mark_disabled(self, tool: Tool) -> Tool:
        """Return the tool, marked as disabled if it or its pack is."""
        if self.is_disabled(tool):
            return replace(tool, enabled=False, disabled_reason=self._off_reason, disabled_code="")
        return tool

    def is_disabled(self, tool: Tool | RegistryEntry) -> bool:
        """Return whether the tool or its pack is disabled.

        If unknown, all tools except `ALWAYS_ON` are.
        """
        if not self._off:
            return False
        if EVERYTHING in self._off:
            return tool.name not in ALWAYS_ON
        return not self._off.isdisjoint((tool.name, tool.pack))

    def only(self, admits: Callable[[Tool | RegistryEntry], bool]) -> "Registry":
        """Return a view with only the admitted tools and their aliases."""
        view = copy(self)
        targets = {alias: self.get(alias) for alias in self.aliases}
        view.aliases = {
            alias: self.aliases[alias]
            for alias, tool in targets.items()
            if tool is None or admits(tool)
        }
        view._admits = admits  # noqa: SLF001 - the same class
        return view

    # --- one tool ---------------------------------------------------------------------------------

    def find(self, name: str) -> Tool:
        """Return the tool with this name or alias; the error for none has similar names."""
        check_name(name)
        target, cycle = self._target(name)
        if cycle:
            raise ToolNotFound(f"circular aliases: {' -> '.join(cycle)}")
        if (tool := self.find_exact(target) or self.find_folded(target)) is not None:
            return tool
        error = self._not_found(target)
        if target == name:
            raise error
        raise ToolNotFound(
            f"the alias {name!r} refers to {target!r}: {error.message}", hint=error.hint
        )

    def peek(self, name: str) -> Tool | None:
        """Return the tool with this name or alias if it is in memory."""
        return self._first(self._target(name)[0], lambda source, target: source.peek(target))

    def find_exact(self, name: str) -> Tool | None:
        """Return the tool with this name; aliases are ignored."""
        return self._first(name, lambda source, target: source.find(target))

    def get(self, name: str) -> Tool | None:
        """Return the tool with this name or alias, or None.

        Cheaper than `find`, which compares names.
        """
        return self.find_exact(self._target(name)[0]) if len(name) <= MAX_NAME_LENGTH else None

    def find_folded(self, name: str) -> Tool | None:
        """Return the only tool whose name differs just in case and underscores: `Files.readText`."""
        pack, _, short = python_name(name).rpartition(".")
        pack = self.match_pack(pack) if pack else pack
        names = [
            full
            for python, full in self.map_python_names(pack).items()
            if fold(python) == fold(short)
        ]
        return self.find_exact(names[0]) if len(names) == 1 else None

    def match_pack(self, name: str) -> str:
        """Return the pack with this name, or the only one that differs in case and underscores.

        Packs that have no tools, such as servers that were not listed yet, are included.
        """
        return self.match_packs([name])[name]

    def match_packs(self, names: Collection[str]) -> dict[str, str]:
        """Return the result of `match_pack` for each name."""
        unknown = {fold(name) for name in names if not self.is_pack(name)}
        packs_by_folded: dict[str, list[str]] = {}
        for pack in self.all_packs() if unknown else ():
            packs_by_folded.setdefault(fold(pack), []).append(pack)
        similar = {
            folded: packs[0]
            for folded, packs in packs_by_folded.items()
            if folded in unknown and len(packs) == 1
        }
        return {
            name: name if self.is_pack(name) else similar.get(fold(name), name) for name in names
        }

    def _first(self, name: str, find: Callable[[ToolSource, str], Tool | None]) -> Tool | None:
        """Return the tool that the name refers to, by the rule of this module."""
        for source in self.sources:
            if (tool := source.held.get(name)) is not None:
                break
        else:
            for source in self.sources:
                if (tool := find(source, name)) is not None:
                    break
        if tool is None or (self._admits is not None and not self._admits(tool)):
            return None
        return self.mark_disabled(tool)

    def _target(self, name: str) -> tuple[str, list[str]]:
        """Return the final target of an alias, and the cycle if the aliases are circular."""
        chain = [name]
        while chain[-1] in self.aliases and chain[-1] not in self:
            chain.append(self.aliases[chain[-1]])
            if chain[-1] in chain[:-1]:
                return name, chain
        return chain[-1], []

    def __contains__(self, name: object) -> bool:
        """Return whether a tool with exactly this name is always in memory."""
        return any(name in source.held for source in self.sources)

    def __iter__(self) -> Iterator[Tool]:
        """Yield the tools that are always in memory."""
        held: dict[str, Tool] = {}
        for source in reversed(self.sources):
            held.update(source.held)
        return map(self.mark_disabled, filter(self._admits, held.values()))

    # --- lists ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(
            map(self.count, {pack for source in self.sources for pack in list(source.pack_names)})
        )

    def count(self, pack: str, *, enabled: bool = False) -> int:
        """Return the number of tools of a pack, optionally only enabled ones.

        Views and disabled tools require counting entry by entry.
        """
        sources = self.find_sources(pack)
        if len(sources) > 1 or self._admits is not None or self._off:
            return sum(entry.enabled or not enabled for entry in self.entries(pack))
        return sources[0].count(pack, enabled=enabled) if sources else 0

    def names(self) -> list[str]:
        return [entry.name for entry in self.entries()]

    def entries(self, pack: str | None = None, **options: Any) -> Iterator[RegistryEntry]:
        """Yield all tools, or those of a pack, sorted by name. `options` are those of the sources."""
        parts = (source.entries(pack, **options) for source in self.sources)
        last = ""
        for entry in merge(
            *parts, key=itemgetter(0)
        ):  # for equal names, the first source comes first
            if entry.name != last and (self._admits is None or self._admits(entry)):
                yield entry._replace(enabled=False) if self.is_disabled(entry) else entry
            last = entry.name

    def packs(self) -> list[str]:
        names = {name for source in self.sources for name in list(source.pack_names)} - {""}
        return sorted(names if self._admits is None else filter(self.is_pack, names))

    def all_packs(self) -> list[str]:
        """Return the names of all packs, including unusable ones."""
        return sorted({*self.packs(), *self.problems()})

    def enabled_packs(self) -> list[str]:
        """Return the packs to list in messages: all but disabled ones."""
        disabled = {pack for pack, problem in self.problems().items() if problem.code == DISABLED}
        if self._off:
            disabled |= {
                pack
                for pack in self.packs()
                if not any(entry.enabled for entry in self.entries(pack))
            }
        return [pack for pack in self.all_packs() if pack not in disabled]

    def problems(self) -> "dict[str, Problem]":
        """Return the packs that cannot be used, and why."""
        return {
            name: why
            for source in reversed(self.sources)
            for name, why in source.problems().items()
        }

    def describe(self, pack: str) -> str:
        """Return the description of a pack."""
        return next(filter(None, (source.describe(pack) for source in self.sources)), "")

    def note_unlisted(self, context: ToolContext) -> str:
        """Return notes on tools that are missing from lists; empty if none are."""
        return " ".join(filter(None, (source.note_unlisted(context) for source in self.sources)))

    def map_python_names(self, pack: str) -> Mapping[str, str]:
        """Return the names of the tools of a pack by their Python names."""
        names: dict[str, str] = {}
        for entry in self.entries(pack):
            python = python_name(entry.name)
            short = python.rpartition(".")[2]
            if short not in names or entry.name == python:
                names[short] = entry.name
        return names

    def words(self, pack: str, wanted: AbstractSet[str]) -> set[str]:
        """Return which of the words are Python names of tools of the pack that are in memory."""
        return set().union(*(wanted & source.words(pack) for source in self.sources))

    def find_sources(self, pack: str) -> list[ToolSource]:
        return [source for source in self.sources if pack in source.pack_names]

    def is_pack(self, name: str) -> bool:
        """Return whether the pack exists. A view has only the packs of its tools."""
        if not name or not self.find_sources(name):
            return False
        return self._admits is None or any(True for _ in self.entries(name))

    # --- similar names ----------------------------------------------------------------------------

    def nearest(self, name: str) -> list[str]:
        """Return up to three tools with similar names, best match first."""
        names = [other for source in self.sources for other in source.similar(name)]
        if self._admits is not None:
            names = [
                other for other in names if self._admits(RegistryEntry(other, "", enabled=True))
            ]
        if self.is_pack(OWN_PACK):
            names += [f"{OWN_PACK}.{function}" for function in IN_CODE]
        return nearest(name, names)

    def pack_not_found(self, name: str) -> ToolNotFound:
        """Return the error for an unknown pack, with similar names."""
        check_name(name, "pack")
        if name in self.aliases:
            return ToolNotFound(f"{name!r} is an alias, not a pack", hint=f"ot.call({name!r}, ...)")
        near = nearest(name, self.all_packs())
        message = (
            f"unknown pack {quote(name)}.{did_you_mean(near)} Packs:"
            f" {join_packs(self.enabled_packs())}."
        )
        return ToolNotFound(message, nearest=near)

    def _not_found(self, name: str) -> ToolError:
        pack = name.rpartition(".")[0]
        if (problem := self.problems().get(name.partition(".")[0])) is not None:
            if problem.code == SignInRequired.type:
                return SignInRequired(problem.message, hint=problem.hint, server=pack)
            return ToolNotFound(
                f"cannot use the pack {pack!r}: {problem.message}", hint=problem.hint
            )
        near = self.nearest(name)
        if not self.is_pack(pack):
            near = near or nearest(name.partition(".")[0], self.all_packs())
            packs = join_packs(self.enabled_packs())
            message = (
                f"unknown tool {quote(name)}.{did_you_mean(map(python_name, near))} Packs: {packs}."
            )
            return ToolNotFound(f"{message} Call ot.tools() to list all.", nearest=near)
        entries = islice(self.entries(pack, at_once=MAX_LISTED_NAMES), MAX_COMPARED_NAMES)
        summaries = {python_name(entry.name).rpartition(".")[2]: entry.summary for entry in entries}
        if pack == OWN_PACK:
            summaries |= dict.fromkeys(IN_CODE, "")
        short = name.rpartition(".")[2]
        near = near or [f"{pack}.{other}" for other in find_by_words(short, summaries)]
        # names that code can call
        message = f"unknown tool {quote(name)}.{did_you_mean(map(python_name, near))}"
        listed = ", ".join(sorted(summaries))
        if len(listed) <= MAX_LIST_CHARS:
            return ToolNotFound(f"{message} {pack} has: {listed}.", nearest=near)
        query = f"{pack} {' '.join(sorted(split_words(short)))}"
        message = (
            f"{message} {pack} has {self.count(pack)} tools; ot.search(query={query!r}) finds some."
        )
        return ToolNotFound(message, nearest=near, unlisted_pack=pack)


def find_hidden_error(tool: Tool, context: ToolContext) -> ToolNotFound | None:
    """Return the error for a tool that code cannot call, because the client calls it directly."""
    if python_name(tool.pack) not in context.run.hidden:
        return None
    hint = (
        f"call the tool {tool.short_name} of the client directly, or set expose: both for"
        f" {tool.pack}"
    )
    return ToolNotFound(
        f"{tool.name} is not available in code: it is published directly", hint=hint
    )
