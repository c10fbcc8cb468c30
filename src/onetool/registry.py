"""All tools by name: an ordered view over the sources of tools. It finds them; it never calls them.

One rule decides conflicts: the first source in order that has a tool of exactly this name; without one, the first that
has a tool whose name code writes like this (`get-sum` is `get_sum` in Python). `peek`, `is_pack`, `packs`, `problems`
and iterating wait for nobody; everything else may wait for the disk, and is for threads.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set as AbstractSet
from copy import copy
from dataclasses import replace
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from onetool._tool import Tool
from onetool.context import Permission, ToolContext, permissions
from onetool.errors import ToolError, ToolNotFound
from onetool.switches import EVERYTHING
from onetool.util.invisible import find_in_name

if TYPE_CHECKING:
    from onetool.config.load import Loaded
    from onetool.problem import Problem
    from onetool.storage import SwitchStorage

NAME = re.compile(r"[^\s@.]+(?:\.[^\s@.]+)*")
NOT_IN_IDENTIFIERS = re.compile(r"[^\w.]")
MOST_SHOWN = 20
MAX_NAME_LENGTH = 500
NAMES_AT_ONCE = 5_000  # compared in one call, which holds the interpreter lock
ALWAYS_ON = frozenset({"ot.health", "ot.help", "ot.packs", "ot.reload", "ot.tools", "ot.version"})


class Entry(NamedTuple):
    """A line in a list of tools."""

    name: str
    summary: str
    enabled: bool
    permissions: frozenset[Permission] = frozenset()

    @property
    def pack(self) -> str:
        return self.name.rpartition(".")[0]


class ToolSource(Protocol):
    """Where tools come from. Packs are known by the names that code writes.

    `find`, `entries`, `count`, `similar` and `describe` may wait for the disk; `refresh` and `close` are for the event
    loop; nothing else waits.
    """

    kind: str  # what lists call it
    version: int  # changes with the set of tools
    held: Mapping[str, Tool]  # the tools that are always in memory, by name

    @property
    def pack_names(self) -> AbstractSet[str]:
        """The packs that have tools; the empty one holds tools without a pack."""

    def words(self, pack: str) -> AbstractSet[str]:
        """Return the tools of a pack that are in memory, as code writes them."""

    def peek(self, name: str) -> Tool | None:
        """Return the tool of this name if it is in memory, perhaps as it was a moment ago."""

    def find(self, name: str) -> Tool | None:
        """Return the tool of this name as it is now."""

    def entries(
        self, pack: str | None = None, *, described: bool = False, at_once: int | None = None
    ) -> Iterator[Entry]:
        """Yield all tools, or those of a pack, by name; `at_once` is how many the caller wants to begin with."""

    def count(self, pack: str, *, enabled: bool = False) -> int:
        """Return how many tools a pack has, or how many that can be called."""

    def similar(self, name: str, /) -> Iterable[str]:
        """Return the names to compare with an unknown one."""

    def describe(self, _pack: str, /) -> str:
        """Return what a pack says about itself."""
        return ""

    def note_unlisted(self, _context: ToolContext, /) -> str:
        """Return a sentence on what is missing from lists; empty if nothing is."""
        return ""

    def problems(self) -> "Mapping[str, Problem]":
        """Return the packs that are meant to be here and have no tools, and why."""
        return {}

    async def refresh(self, words: Collection[str] | None = None, /) -> None:
        """Know what is there now; `words` are the packs that are needed, if not all are."""

    def configure(self, loaded: "Loaded", /) -> None:
        """Use these settings from now on."""

    async def close(self) -> None:
        """End what it has started."""


class HeldTools(ToolSource):
    """A source whose tools are in memory."""

    kind = "local"

    def __init__(self) -> None:
        self.held: dict[str, Tool] = {}
        # Pack, tool and full names, as code writes them; of several names the one that is meant comes first.
        self._written: dict[str, dict[str, list[str]]] = {}
        self.version = 0

    def add(self, tool: Tool) -> None:
        if not NAME.fullmatch(tool.name):
            raise ToolError(f"{tool.name!r} is no name for a tool; a name is like 'pack.tool' or 'grep'")
        if character := find_in_name(tool.name):
            raise ToolError(f"{tool.name!a} is not a valid tool name: it contains the invisible character {character}")
        if tool.name in self.held:
            raise ToolError(
                f"a tool named {tool.name!r} is registered already; unregister it first or choose another name"
            )
        if tool.timeout is not None and not tool.timeout > 0:
            raise ToolError(f"invalid timeout {tool.timeout!r} of {tool.name}: expected a number of seconds above 0")
        if not all(isinstance(each, Permission) for each in tool.permissions):  # a program may write them as words
            try:
                tool = replace(tool, permissions=permissions(tool.permissions))
            except (TypeError, ValueError) as error:
                raise ToolError(f"{tool.name} cannot be registered: {error}") from None
        self.version += 1
        self.held[tool.name] = tool
        pack, _, short = (written := python_name(tool.name)).rpartition(".")
        names = self._written.setdefault(pack, {}).setdefault(short, [])
        names.insert(0 if tool.name == written else len(names), tool.name)

    def remove(self, name: str) -> None:
        self.version += 1
        del self.held[name]
        pack, _, short = python_name(name).rpartition(".")
        self._written[pack][short].remove(name)
        if not self._written[pack][short]:
            del self._written[pack][short]
        if not self._written[pack]:
            del self._written[pack]

    def replace(self, tool: Tool) -> Tool:
        """Put the tool in the place of the one that has its name."""
        if self.held[tool.name] is not tool:
            self.version += 1
            self.held[tool.name] = tool
        return tool

    @property
    def pack_names(self) -> AbstractSet[str]:
        return self._written.keys()

    def words(self, pack: str) -> AbstractSet[str]:
        return self._written.get(pack, {}).keys()

    def peek(self, name: str) -> Tool | None:
        if (tool := self.held.get(name)) is not None:
            return tool
        pack, _, short = name.rpartition(".")
        names = self._written.get(pack, {}).get(short)
        return self.held.get(names[0]) if names else None

    def find(self, name: str) -> Tool | None:
        return self.peek(name)

    def tools_of(self, pack: str) -> list[Tool]:
        names = (name for names in list(self._written.get(pack, {}).values()) for name in names)
        return [self.held[name] for name in names]

    def entries(self, pack: str | None = None, **_options: Any) -> Iterator[Entry]:
        tools = list(self.held.values()) if pack is None else self.tools_of(pack)
        made = (Entry(tool.name, tool.summary, tool.enabled, tool.permissions) for tool in tools)
        return iter(sorted(made, key=itemgetter(0)))

    def count(self, pack: str, *, enabled: bool = False) -> int:
        return sum(tool.enabled or not enabled for tool in self.tools_of(pack))

    def similar(self, _name: str, /) -> Iterable[str]:
        return list(self.held)


class Registry:
    """The tools of the sources, in the order of these."""

    def __init__(self, *sources: ToolSource, aliases: Mapping[str, str] | None = None) -> None:
        self.sources = sources
        self.aliases: Mapping[str, str] = aliases or {}
        self.switches: SwitchStorage | None = None
        self._admits: Callable[[Tool | Entry], bool] | None = None  # which tools a view has
        self._off: frozenset[str] = frozenset()
        self._off_reason, self._off_version = "", 0

    @property
    def version(self) -> int:
        """Of the set of tools: who keeps something made of it can tell that it has changed."""
        return self._off_version + sum(source.version for source in self.sources)

    async def refresh(self, words: Collection[str] | None = None) -> None:
        """Know what is there now; `words` are the packs that are needed, if not all are."""
        for source in self.sources:  # in order, because a pack that an earlier one has may be refused by a later one
            await source.refresh(words)
        self.apply_switches()

    def apply_switches(self) -> None:
        """Disable the tools and packs that are switched off at this moment, and no others."""
        if self.switches is not None:
            off, problem = self.switches.off(), self.switches.problem
            reason = "it is switched off" if problem is None else str(problem)
            if (off, reason) != (self._off, self._off_reason):
                self._off, self._off_reason = off, reason
                self._off_version += 1

    def switched(self, tool: Tool) -> Tool:
        """Return the tool, disabled if it or its pack is switched off."""
        if self.is_off(tool):
            return replace(tool, enabled=False, disabled_reason=self._off_reason, disabled_code="")
        return tool

    def is_off(self, tool: Tool | Entry) -> bool:
        """Return whether it or its pack is switched off; if that is not known, all but what reports on the system."""
        if not self._off:
            return False
        if EVERYTHING in self._off:
            return tool.name not in ALWAYS_ON
        return not self._off.isdisjoint((tool.name, tool.pack))

    def only(self, admits: Callable[[Tool | Entry], bool]) -> "Registry":
        """Return a view of the tools that are admitted, and the aliases of those."""
        some = copy(self)
        targets = {alias: self.get(alias) for alias in self.aliases}
        some.aliases = {alias: self.aliases[alias] for alias, tool in targets.items() if tool is None or admits(tool)}
        some._admits = admits  # noqa: SLF001 - it is one of us
        return some

    # --- one tool -------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Tool:
        """Return the tool of this name, or of the alias; raise what is near if there is none."""
        check_name(name)
        target, circle = self._target(name)
        if circle:
            raise ToolNotFound(f"the aliases go round in a circle: {' -> '.join(circle)}.")
        if (tool := self.known(target)) is not None:
            return tool
        error = self._not_found(target)
        if target == name:
            raise error
        raise ToolNotFound(f"the alias {name!r} stands for {target!r}, and {error.message}", hint=error.hint)

    def peek(self, name: str) -> Tool | None:
        """Return the tool of this name, or of the alias, if it is in memory."""
        return self._first(self._target(name)[0], lambda source, target: source.peek(target))

    def known(self, name: str) -> Tool | None:
        """Return the tool of this name; no alias."""
        return self._first(name, lambda source, target: source.find(target))

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, or of the alias, or None, which costs less than saying what is near."""
        return self.known(self._target(name)[0]) if len(name) <= MAX_NAME_LENGTH else None

    def _first(self, name: str, find: Callable[[ToolSource, str], Tool | None]) -> Tool | None:
        """Return the tool that is meant by the name: see the rule above."""
        for source in self.sources:
            if (tool := source.held.get(name)) is not None:
                break
        else:
            for source in self.sources:
                if (tool := find(source, name)) is not None:
                    break
        if tool is None or (self._admits is not None and not self._admits(tool)):
            return None
        return self.switched(tool)

    def _target(self, name: str) -> tuple[str, list[str]]:
        """Return the name that an alias stands for in the end; and the circle, if the aliases go round in one."""
        chain = [name]
        while chain[-1] in self.aliases and chain[-1] not in self:
            chain.append(self.aliases[chain[-1]])
            if chain[-1] in chain[:-1]:
                return name, chain
        return chain[-1], []

    def __contains__(self, name: object) -> bool:
        """Return whether a tool of exactly this name is always in memory."""
        return any(name in source.held for source in self.sources)

    def __iter__(self) -> Iterator[Tool]:
        """Yield the tools that are always in memory."""
        held: dict[str, Tool] = {}
        for source in reversed(self.sources):
            held.update(source.held)
        return map(self.switched, filter(self._admits, held.values()))

    # --- lists ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(map(self.count, {pack for source in self.sources for pack in list(source.pack_names)}))

    def count(self, pack: str, *, enabled: bool = False) -> int:
        """Return how many tools a pack has, or how many that can be called.

        If some of them may not count, each has to be looked at.
        """
        sources = self.sources_of(pack)
        if len(sources) > 1 or self._admits is not None or self._off:
            return sum(entry.enabled or not enabled for entry in self.entries(pack))
        return sources[0].count(pack, enabled=enabled) if sources else 0

    def names(self) -> list[str]:
        return [entry.name for entry in self.entries()]

    def entries(
        self, pack: str | None = None, *, described: bool = False, at_once: int | None = None
    ) -> Iterator[Entry]:
        """Yield all tools, or those of a pack, in the order of their names."""
        parts = (source.entries(pack, described=described, at_once=at_once) for source in self.sources)
        last = ""
        for entry in merge(*parts, key=itemgetter(0)):  # of equal ones, that of the first source comes first
            if entry.name != last and (self._admits is None or self._admits(entry)):
                yield entry._replace(enabled=False) if self.is_off(entry) else entry
            last = entry.name

    def packs(self) -> list[str]:
        names = {name for source in self.sources for name in list(source.pack_names)} - {""}
        return sorted(names if self._admits is None else filter(self.is_pack, names))

    def all_packs(self) -> list[str]:
        """Return the names of all packs, also of those that have no tools or cannot be used."""
        return sorted({*self.packs(), *self.problems()})

    def problems(self) -> "dict[str, Problem]":
        """Return the packs that cannot be used, and why."""
        return {name: why for source in reversed(self.sources) for name, why in source.problems().items()}

    def describe(self, pack: str) -> str:
        """Return what a pack says about itself."""
        return next(filter(None, (source.describe(pack) for source in self.sources)), "")

    def note_unlisted(self, context: ToolContext) -> str:
        """Return sentences on what is missing from lists; empty if nothing is."""
        return " ".join(filter(None, (source.note_unlisted(context) for source in self.sources)))

    def in_pack(self, pack: str) -> Mapping[str, str]:
        """Return the tools of a pack, by the name that Python code uses, with their real names."""
        found: dict[str, str] = {}
        for entry in self.entries(pack):
            written = python_name(entry.name)
            short = written.rpartition(".")[2]
            if short not in found or entry.name == written:
                found[short] = entry.name
        return found

    def words(self, pack: str, wanted: AbstractSet[str]) -> set[str]:
        """Return which of the words are tools of the pack that are in memory."""
        return set().union(*(wanted & source.words(pack) for source in self.sources))

    def sources_of(self, pack: str) -> list[ToolSource]:
        return [source for source in self.sources if pack in source.pack_names]

    def is_pack(self, name: str) -> bool:
        """Return whether there is such a pack. A view has the packs of its tools, which are looked for."""
        if not name or not self.sources_of(name):
            return False
        return self._admits is None or any(True for _ in self.entries(name))

    # --- what is near ---------------------------------------------------------------------------------------------

    def nearest(self, name: str) -> list[str]:
        """Return up to three tools with names like this one, the nearest first."""
        names = [other for source in self.sources for other in source.similar(name)]
        if self._admits is not None:
            names = [other for other in names if self._admits(Entry(other, "", enabled=True))]
        return nearest(name, names)

    def pack_not_found(self, name: str) -> ToolNotFound:
        """Return the error for an unknown pack, with the nearest names."""
        check_name(name, "pack")
        if name in self.aliases:
            return ToolNotFound(f"{name!r} is an alias, not a pack", hint=f"ot.call({name!r}, ...)")
        packs = self.all_packs()
        near = nearest(name, packs)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        return ToolNotFound(f"there is no pack {name!r}.{meant} Packs: {shown(packs)}.", nearest=near)

    def _not_found(self, name: str) -> ToolNotFound:
        pack = name.rpartition(".")[0]
        if (problem := self.problems().get(name.partition(".")[0])) is not None:
            return ToolNotFound(f"the pack {pack!r} cannot be used: {problem.message}", hint=problem.hint)
        is_pack, packs = self.is_pack(pack), self.all_packs()
        near = self.nearest(name) or ([] if is_pack else nearest(name.partition(".")[0], packs))
        message = f"there is no tool {name!r}."
        if near:
            message += f" Did you mean {' or '.join(near)}?"
        if is_pack:
            some = islice(self.entries(pack, at_once=MOST_SHOWN), MOST_SHOWN)
            names = [python_name(entry.name).rpartition(".")[2] for entry in some]
            message += f" {pack} has: {shown(names, self.count(pack))}."
        else:
            message += f" Packs: {shown(packs)}."
        return ToolNotFound(f"{message} Type ot.tools() to see all.", nearest=near)


def check_name(name: str, kind: str = "tool") -> None:
    """Raise ToolNotFound if the name is longer than any can be; comparing and showing it would take long."""
    if len(name) > MAX_NAME_LENGTH:
        raise ToolNotFound(f"the name is too long: no {kind} has one of more than {MAX_NAME_LENGTH} characters")


def python_name(name: str) -> str:
    """The name with every character that cannot stand in a Python identifier made an underscore."""
    return NOT_IN_IDENTIFIERS.sub("_", name)


def nearest(name: str, known: Mapping[str, object] | list[str]) -> list[str]:
    """Return up to three known names that are like this one, the nearest first."""
    from rapidfuzz import fuzz, process

    if len(name) > MAX_NAME_LENGTH:
        return []
    names = list(known)
    matches = []
    for start in range(0, len(names), NAMES_AT_ONCE):  # other threads get their turn after each part
        part = names[start : start + NAMES_AT_ONCE]
        matches += process.extract(name, part, scorer=fuzz.WRatio, limit=3, score_cutoff=75)
    best = sorted(matches, key=itemgetter(1), reverse=True)
    return [match[0] for match in best[:3]]


def shown(names: Mapping[str, object] | list[str], total: int = 0) -> str:
    """The first of the names in a row; `total` is how many there are if not all are given."""
    listed = sorted(names)
    total = max(total, len(listed))
    more = f" and {total - MOST_SHOWN} more" if total > MOST_SHOWN else ""
    return (", ".join(listed[:MOST_SHOWN]) or "none") + more
