"""All tools by name. It holds them and finds them; it never calls them.

Names that differ only in characters that Python cannot write (`get-sum`) are also found in their Python form
(`get_sum`).
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter

from ot.context import Permission, permissions
from ot.errors import ToolError, ToolNotFound
from ot.invisible import find_in_name
from ot.switches import EVERYTHING
from ot.tool import Tool

NAME = re.compile(r"[^\s@.]+(?:\.[^\s@.]+)*")
NOT_IN_IDENTIFIERS = re.compile(r"[^\w.]")
MOST_SHOWN = 20
MAX_NAME_LENGTH = 500
NAMES_AT_ONCE = 5_000  # compared in one call, which holds the interpreter lock
ALWAYS_ON = frozenset({"ot.health", "ot.help", "ot.packs", "ot.reload", "ot.tools", "ot.version"})


class Registry:
    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        self._tools: dict[str, Tool] = {}
        self._namesakes: dict[str, list[str]] = {}  # tools by the name that code writes, the one that is meant first
        self._packs: dict[str, dict[str, str]] = {}
        self._versions: dict[str, Tool] = {}  # by name@version, whether the plain name is theirs or not
        self.aliases: Mapping[str, str] = aliases or {}
        self._off: frozenset[str] = frozenset()
        self._off_reason = ""
        self.broken: dict[str, str] = {}  # packs that could not be had, and why
        self.elsewhere: Callable[[], Iterable[str]] = tuple  # packs that exist and may not be loaded yet
        self.version = 0  # of the set of tools: who keeps something made of it can tell that it has changed

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
            raise ToolError("a lambda has no name to register it by. Hint: use def, or @tool('pack.tool')")
        if tool.timeout is not None and not tool.timeout > 0:
            raise ToolError(f"invalid timeout {tool.timeout!r} of {tool.name}: expected a number of seconds above 0")
        tool = _with_permissions(tool)
        self.version += 1
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
            self.version += 1

    def switched(self, tool: Tool) -> Tool:
        """Return the tool, disabled if it or its pack is switched off."""
        if self._off and self._is_off(tool):
            return dataclasses.replace(tool, enabled=False, disabled_reason=self._off_reason)
        return tool

    def _is_off(self, tool: Tool) -> bool:
        if EVERYTHING in self._off:
            return tool.name not in ALWAYS_ON
        return not self._off.isdisjoint((tool.name, tool.pack))

    def add_version(self, tool: Tool, version: str) -> None:
        """A tool that is called by `name@version` only."""
        self._versions[f"{tool.name}@{version}"] = tool

    def remove_version(self, name: str) -> None:
        self._versions.pop(name, None)

    def holder_of(self, name: str) -> str | None:
        """The tool that code means by this name, however it is really called."""
        return name if name in self._tools else self._meant_by(python_name(name))

    def _meant_by(self, written: str) -> str | None:
        return next(iter(self._namesakes.get(written, ())), None)

    def remove(self, name: str) -> Tool:
        tool = self.find(name)
        self.version += 1
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
            self.version += 1
            self._tools[tool.name] = tool
        return tool

    def only(self, admits: Callable[[Tool], bool]) -> "Registry":
        """A registry of its own with some of the tools, and the aliases of those."""
        some = Registry()
        for tool in filter(admits, self):
            some.add(tool)
        targets = {alias: self.get(alias) for alias in self.aliases}
        some.aliases = {alias: self.aliases[alias] for alias, tool in targets.items() if tool is None or admits(tool)}
        some.broken, some.elsewhere = self.broken, self.elsewhere
        return some

    def find(self, name: str) -> Tool:
        """The tool of this name, or of the alias; what is near, where there is none."""
        check_name(name)
        tool = self._known(name)
        if tool is not None:
            return tool
        if name in self.aliases:
            return self._find_target(name)
        raise self._not_found(name)

    def _known(self, name: str) -> Tool | None:
        tool = self._tools.get(name) or self._tools.get(self._meant_by(name) or "") or self._version_of(name)
        return None if tool is None else self.switched(tool)

    def _version_of(self, name: str) -> Tool | None:
        plain, _, version = name.partition("@")
        return self._versions.get(name) or self._versions.get(f"{self._meant_by(plain)}@{version}")

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
            raise ToolNotFound(f"the alias {alias!r} stands for {chain[-1]!r}, and {error.message}") from None

    def get(self, name: str) -> Tool | None:
        """The same, or None, which costs less than saying what is near."""
        if len(name) > MAX_NAME_LENGTH:
            return None
        if name not in self.aliases:
            return self._known(name)
        try:
            return self.find(name)
        except ToolNotFound:
            return None

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return map(self.switched, list(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    def names(self) -> list[str]:
        return sorted(self._tools)

    def packs(self) -> list[str]:
        return sorted(filter(None, list(self._packs)))  # threads ask too, while tools come and go

    def all_packs(self) -> list[str]:
        """Return the names of all packs, also of those that are not loaded or cannot be used."""
        return sorted({*self.packs(), *list(self.broken), *self.elsewhere()})

    def in_pack(self, pack: str) -> Mapping[str, str]:
        """The tools of a pack, by the name that Python code uses, with their real names."""
        return self._packs.get(pack, {})

    def may_grow(self, pack: str) -> bool:
        """Whether the tools of the pack come from a place that others write to."""
        return any(self._tools[name].refresh is not None for name in self.in_pack(pack).values())

    def is_pack(self, name: str) -> bool:
        return bool(name) and name in self._packs

    def pack_not_found(self, name: str) -> ToolNotFound:
        """Return the error for an unknown pack, with the nearest names."""
        check_name(name, "pack")
        if name in self.aliases:
            return ToolNotFound(f"{name!r} is an alias, not a pack. Hint: ot.call({name!r}, ...)")
        packs = self.all_packs()
        near = nearest(name, packs)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        return ToolNotFound(f"there is no pack {name!r}.{meant} Packs: {shown(packs)}.", nearest=near)

    def _not_found(self, name: str) -> ToolNotFound:
        pack = name.rpartition(".")[0]
        if name.partition(".")[0] in self.broken:
            return ToolNotFound(f"the pack {pack!r} cannot be used: {self.broken[name.partition('.')[0]]}")
        is_pack, packs = self.is_pack(pack), self.all_packs()
        near = nearest(name, self._tools) or ([] if is_pack else nearest(name.partition(".")[0], packs))
        message = f"there is no tool {name!r}."
        if near:
            message += f" Did you mean {' or '.join(near)}?"
        message += f" {pack} has: {shown(self.in_pack(pack))}." if is_pack else f" Packs: {shown(packs)}."
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


def shown(names: Mapping[str, object] | list[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - MOST_SHOWN} more" if len(listed) > MOST_SHOWN else ""
    return (", ".join(listed[:MOST_SHOWN]) or "none") + more
