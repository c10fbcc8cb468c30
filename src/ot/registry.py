"""All tools by name. It holds or finds them; it never calls them.

Names that differ only in characters that Python cannot write (`get-sum`) are also found in their Python form
(`get_sum`). Stored tools may be many: they are not held but asked for (`StoredTools`), and a tool that is held comes
before a stored one of the same name. `held` and what starts with it, `is_pack` and `packs` wait for nobody; everything
else may wait for the disk, and is for threads.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ot.context import Permission, permissions
from ot.errors import ToolError, ToolNotFound
from ot.sanitise import clean
from ot.switches import EVERYTHING
from ot.tool import Tool
from ot.util.invisible import find_in_name

if TYPE_CHECKING:
    from ot.problem import Problem

NAME = re.compile(r"[^\s@.]+(?:\.[^\s@.]+)*")
NOT_IN_IDENTIFIERS = re.compile(r"[^\w.]")
MOST_SHOWN = 20
MAX_NAME_LENGTH = 500
NAMES_AT_ONCE = 5_000  # compared in one call, which holds the interpreter lock
ALWAYS_ON = frozenset({"ot.health", "ot.help", "ot.packs", "ot.reload", "ot.tools", "ot.version"})


class Entry(NamedTuple):
    """A line in a list of tools, held or stored."""

    name: str
    summary: str
    enabled: bool
    permissions: frozenset[Permission] = frozenset()

    @property
    def pack(self) -> str:
        return self.name.rpartition(".")[0]


class StoredTools(Protocol):
    """A source of tools that are not held in memory. Packs are known by the names that code writes."""

    @property
    def version(self) -> int: ...
    @property
    def packs(self) -> Mapping[str, object]: ...
    def is_pack(self, name: str) -> bool: ...
    def recent(self, name: str) -> Tool | None: ...
    def recent_in(self, name: str) -> Mapping[str, str]: ...
    def find(self, name: str) -> Tool | None: ...
    def names(
        self, pack: str | None = None, *, described: bool = False, at_once: int | None = None
    ) -> Iterator[tuple[str, str, bool]]: ...
    def count(self, name: str, *, enabled: bool = False) -> int: ...
    def definition_tokens(self) -> Iterator[tuple[str, int]]: ...
    def nearest(self, name: str) -> list[str]: ...


class Registry:
    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        self._tools: dict[str, Tool] = {}
        self._namesakes: dict[str, list[str]] = {}  # tools by the name that code writes, the one that is meant first
        self._packs: dict[str, dict[str, str]] = {}
        self.stored: StoredTools | None = None
        self._admits: Callable[[Tool | Entry], bool] = lambda _: True  # which of the stored tools are seen
        self._sees_all = True
        self.aliases: Mapping[str, str] = aliases or {}
        self._off: frozenset[str] = frozenset()
        self._off_reason = ""
        self.broken: dict[str, Problem] = {}  # packs that could not be had, and why
        self.elsewhere: Callable[[], Iterable[str]] = tuple  # packs that exist and may not be loaded yet
        self.changes = 0  # of the tools that are held

    @property
    def version(self) -> int:
        """Of the set of tools: who keeps something made of it can tell that it has changed."""
        return self.changes + (self.stored.version if self.stored is not None else 0)

    def add(self, tool: Tool) -> None:
        if not NAME.fullmatch(tool.name):
            raise ToolError(f"{tool.name!r} is no name for a tool; a name is like 'pack.tool' or 'grep'")
        if character := find_in_name(tool.name):
            raise ToolError(f"{tool.name!a} is not a valid tool name: it contains the invisible character {character}")
        if tool.name in self._tools:
            raise ToolError(
                f"a tool named {tool.name!r} is registered already; unregister it first or choose another name"
            )
        if "<lambda>" in tool.name:
            raise ToolError("a lambda has no name to register it by", hint="use def, or @tool('pack.tool')")
        if tool.timeout is not None and not tool.timeout > 0:
            raise ToolError(f"invalid timeout {tool.timeout!r} of {tool.name}: expected a number of seconds above 0")
        tool = _with_permissions(tool)
        self.changes += 1
        self._tools[tool.name] = tool
        written = python_name(tool.name)
        others = self._namesakes.setdefault(written, [])
        others.insert(0 if tool.name == written else len(others), tool.name)
        self._packs.setdefault(python_name(tool.pack), {})[python_name(tool.short_name)] = others[0]

    def switch_off(self, names: frozenset[str], reason: str = "it is switched off") -> None:
        """Tools and packs of these names, and no others, are disabled, now and when they come again.

        `EVERYTHING` disables all but what reports on the system and reloads it.
        """
        if (names, reason) != (self._off, self._off_reason):
            self._off, self._off_reason = names, reason
            self.changes += 1

    def switched(self, tool: Tool) -> Tool:
        """Return the tool, disabled if it or its pack is switched off."""
        if self._off and self._is_off(tool):
            return dataclasses.replace(tool, enabled=False, disabled_reason=self._off_reason, disabled_code="")
        return tool

    def is_off(self, name: str) -> bool:
        """Whether a tool of this name is switched off, or its pack is."""
        return bool(self._off) and self._is_off(Entry(name, "", enabled=True))

    def _is_off(self, tool: Tool | Entry) -> bool:
        if EVERYTHING in self._off:
            return tool.name not in ALWAYS_ON
        return not self._off.isdisjoint((tool.name, tool.pack))

    def holder_of(self, name: str) -> str | None:
        """The tool that code means by this name, however it is really called, if it is held or was used lately."""
        if name in self._tools:
            return name
        if (meant := self._meant_by(python_name(name))) is None and self.stored is not None:
            recent = self.stored.recent(name)
            return None if recent is None else recent.name
        return meant

    def _meant_by(self, written: str) -> str | None:
        return next(iter(self._namesakes.get(written, ())), None)

    def remove(self, name: str) -> Tool:
        tool = self.find(name)
        self.changes += 1
        del self._tools[tool.name]
        written, pack = python_name(tool.name), self._packs[python_name(tool.pack)]
        self._namesakes[written].remove(tool.name)
        if self._namesakes[written]:
            pack[python_name(tool.short_name)] = self._namesakes[written][0]
            return tool
        del self._namesakes[written], pack[python_name(tool.short_name)]
        if not pack:
            del self._packs[python_name(tool.pack)]
        return tool

    def replace(self, tool: Tool) -> Tool:
        """Put the tool in the place of the one that has its name."""
        if self._tools[tool.name] is not tool:
            self.changes += 1
            self._tools[tool.name] = tool
        return tool

    def only(self, admits: Callable[[Tool | Entry], bool]) -> "Registry":
        """A registry of its own with some of the tools, and the aliases of those."""
        some = Registry()
        for tool in filter(admits, self):
            some.add(tool)
        some.stored, some._admits, some._sees_all = self.stored, admits, False
        some._off, some._off_reason = self._off, self._off_reason
        targets = {alias: self.get(alias) for alias in self.aliases}
        some.aliases = {alias: self.aliases[alias] for alias, tool in targets.items() if tool is None or admits(tool)}
        some.broken, some.elsewhere = self.broken, self.elsewhere
        return some

    # --- one tool -------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Tool:
        """The tool of this name, or of the alias; what is near, where there is none."""
        check_name(name)
        tool = self.known(name)
        if tool is not None:
            return tool
        if name in self.aliases:
            return self._find_target(name)
        raise self._not_found(name)

    def held(self, name: str) -> Tool | None:
        """The tool of this name, or of the alias, if it is held."""
        chain: list[str] = []
        while name in self.aliases and name not in self._tools and name not in chain:
            chain.append(name)
            name = self.aliases[name]
        tool = self._tools.get(name) or self._tools.get(self._meant_by(name) or "")
        return None if tool is None else self.switched(tool)

    def known(self, name: str) -> Tool | None:
        """The tool of this name; no alias."""
        tool = self._tools.get(name) or self._tools.get(self._meant_by(name) or "") or self._find_stored(name)
        return None if tool is None else self.switched(tool)

    def _find_stored(self, name: str) -> Tool | None:
        tool = self.stored.find(name) if self.stored is not None else None
        return tool if tool is not None and self._admits(tool) else None

    def _find_target(self, alias: str) -> Tool:
        chain = [alias]
        while chain[-1] in self.aliases and chain[-1] not in self._tools:
            target = self.aliases[chain[-1]]
            if target in chain:
                circle = " -> ".join([*chain, target])
                raise ToolNotFound(f"the aliases go round in a circle: {circle}.")
            chain.append(target)
        try:
            return self.find(chain[-1])
        except ToolNotFound as error:
            message = f"the alias {alias!r} stands for {chain[-1]!r}, and {error.message}"
            raise ToolNotFound(message, hint=error.hint) from None

    def get(self, name: str) -> Tool | None:
        """The same, or None, which costs less than saying what is near."""
        if len(name) > MAX_NAME_LENGTH:
            return None
        if name not in self.aliases:
            return self.known(name)
        try:
            return self.find(name)
        except ToolNotFound:
            return None

    def __contains__(self, name: object) -> bool:
        """Whether a tool of this name is held."""
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        """The tools that are held."""
        return map(self.switched, list(self._tools.values()))

    # --- lists ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._tools) + sum(map(self._count_stored, self.stored.packs if self.stored is not None else ()))

    def count_in(self, pack: str) -> int:
        """How many tools of a pack can be called."""
        return sum(tool.enabled for tool in self._held_tools(pack)) + self._count_stored(pack, enabled=True)

    def _count_stored(self, pack: str, *, enabled: bool = False) -> int:
        """If some of them may not count, each has to be looked at."""
        if self.stored is None or not self.stored.is_pack(pack):
            return 0
        if self._sees_all and not self._off and pack not in self._packs:
            return self.stored.count(pack, enabled=enabled)
        return sum(entry.enabled or not enabled for entry in self._stored_entries(pack))

    def names(self) -> list[str]:
        return [entry.name for entry in self.entries()]

    def entries(self, pack: str | None = None, *, described: bool = False) -> list[Entry]:
        """All tools, or those of a pack, in the order of their names."""
        tools = self if pack is None else self._held_tools(pack)
        held = [Entry(tool.name, tool.summary, tool.enabled, tool.permissions) for tool in tools]
        return sorted([*held, *self._stored_entries(pack, described=described)], key=itemgetter(0))

    def _held_tools(self, pack: str) -> Iterator[Tool]:
        return (self.switched(self._tools[name]) for name in list(self.held_in(pack).values()))

    def _stored_entries(
        self, pack: str | None = None, *, described: bool = False, at_once: int | None = None
    ) -> Iterator[Entry]:
        rows = self.stored.names(pack, described=described, at_once=at_once) if self.stored is not None else ()
        for name, text, enabled in rows:
            entry = Entry(name, clean(text).strip().partition("\n")[0] if text else "", enabled)
            if name not in self._tools and self._admits(entry):
                yield entry._replace(enabled=False) if self._off and self._is_off(entry) else entry

    def is_stored(self, pack: str) -> bool:
        return self.stored is not None and pack in self.stored.packs

    def packs(self) -> list[str]:
        stored = filter(self.is_pack, self.stored.packs) if self.stored is not None else ()
        return sorted({*filter(None, list(self._packs)), *stored})  # threads ask too, while tools come and go

    def all_packs(self) -> list[str]:
        """Return the names of all packs, also of those that are not loaded or cannot be used."""
        return sorted({*self.packs(), *list(self.broken), *self.elsewhere()})

    def in_pack(self, pack: str) -> Mapping[str, str]:
        """The tools of a pack, by the name that Python code uses, with their real names."""
        stored = {python_name(entry.name).rpartition(".")[2]: entry.name for entry in self._stored_entries(pack)}
        return {**stored, **self._packs.get(pack, {})}

    def held_in(self, pack: str) -> Mapping[str, str]:
        """The same of the tools that are held."""
        return self._packs.get(pack, {})

    def at_hand_in(self, pack: str) -> Mapping[str, str]:
        """The same of the tools that are held or were used lately."""
        recent = self.stored.recent_in(pack) if self.stored is not None else {}
        return {**recent, **self._packs.get(pack, {})}

    def may_grow(self, pack: str) -> bool:
        """Whether the tools of the pack come from a place that others write to."""
        return self.is_stored(pack) or any(
            self._tools[name].refresh is not None for name in self.held_in(pack).values()
        )

    def is_pack(self, name: str) -> bool:
        """Whether there is such a pack. An agent that sees some tools sees the packs of those, which are looked for."""
        if name in self._packs:
            return bool(name)
        is_stored = self.stored is not None and self.stored.is_pack(name)
        return is_stored and (self._sees_all or any(True for _ in self._stored_entries(name)))

    def _shown_in(self, pack: str) -> str:
        """The first tools of a pack, as code writes them, and how many more there are."""
        some = islice(self._stored_entries(pack, at_once=MOST_SHOWN), MOST_SHOWN)
        names = {*self.held_in(pack), *(python_name(entry.name).rpartition(".")[2] for entry in some)}
        return shown(list(names), len(self.held_in(pack)) + self._count_stored(pack))

    # --- what is near ---------------------------------------------------------------------------------------------

    def nearest(self, name: str) -> list[str]:
        """Return up to three tools with names like this one, the nearest first."""
        stored = self.stored.nearest(name) if self.stored is not None else []
        seen = [other for other in islice(stored, 20) if self._admits(Entry(other, "", enabled=True))]
        return nearest(name, [*self._tools, *seen])

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
        if (broken := self.broken.get(name.partition(".")[0])) is not None:
            return ToolNotFound(f"the pack {pack!r} cannot be used: {broken.message}", hint=broken.hint)
        is_pack, packs = self.is_pack(pack), self.all_packs()
        near = self.nearest(name) or ([] if is_pack else nearest(name.partition(".")[0], packs))
        message = f"there is no tool {name!r}."
        if near:
            message += f" Did you mean {' or '.join(near)}?"
        message += f" {pack} has: {self._shown_in(pack)}." if is_pack else f" Packs: {shown(packs)}."
        return ToolNotFound(f"{message} Type ot.tools() to see all.", nearest=near)


def _with_permissions(tool: Tool) -> Tool:
    """Return the tool with permissions as such, if it was made with words; unknown ones are an error."""
    if all(isinstance(each, Permission) for each in tool.permissions):
        return tool
    try:
        return dataclasses.replace(tool, permissions=permissions(tool.permissions))
    except (TypeError, ValueError) as error:
        raise ToolError(f"{tool.name} cannot be registered: {error}") from None


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
