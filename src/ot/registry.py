"""All tools by name. It holds them and finds them; it never calls them.

Names that differ only in characters that Python cannot write (`get-sum`) are also found in their Python form
(`get_sum`).
"""

import re
from collections.abc import Iterator, Mapping

from ot.errors import ToolError, ToolNotFound
from ot.tool import Tool

NAME = re.compile(r"[^\s@.]+(?:\.[^\s@.]+)*")
MOST_SHOWN = 20


class Registry:
    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        self._tools: dict[str, Tool] = {}
        self._python_names: dict[str, str] = {}
        self._packs: dict[str, dict[str, str]] = {}
        self.aliases: Mapping[str, str] = aliases or {}
        self.broken: dict[str, str] = {}  # packs that could not be had, and why
        self.version = 0  # of the set of tools: who keeps something made of it can tell that it has changed

    def add(self, tool: Tool) -> None:
        if not NAME.fullmatch(tool.name):
            raise ToolError(f"{tool.name!r} is no name for a tool; a name is like 'pack.tool' or 'grep'")
        if tool.name in self._tools:
            raise ToolError(
                f"a tool named {tool.name!r} is registered already; unregister it first or choose another name"
            )
        self.version += 1
        self._tools[tool.name] = tool
        self._python_names.setdefault(python_name(tool.name), tool.name)
        self._packs.setdefault(python_name(tool.pack), {})[python_name(tool.short_name)] = tool.name

    def remove(self, name: str) -> Tool:
        tool = self.find(name)
        self.version += 1
        del self._tools[tool.name]
        if self._python_names.get(python_name(tool.name)) == tool.name:
            del self._python_names[python_name(tool.name)]
        pack = self._packs[python_name(tool.pack)]
        pack.pop(python_name(tool.short_name), None)
        if not pack:
            del self._packs[python_name(tool.pack)]
        return tool

    def find(self, name: str) -> Tool:
        """The tool of this name, or of the alias; what is near, where there is none."""
        tool = self._tools.get(name) or self._tools.get(self._python_names.get(name, ""))
        if tool is not None:
            return tool
        if name in self.aliases:
            return self._find_target(name)
        raise self._not_found(name)

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
        """The same, or None."""
        try:
            return self.find(name)
        except ToolNotFound:
            return None

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(list(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    def names(self) -> list[str]:
        return sorted(self._tools)

    def packs(self) -> list[str]:
        return sorted(filter(None, list(self._packs)))  # threads ask too, while tools come and go

    def in_pack(self, pack: str) -> Mapping[str, str]:
        """The tools of a pack, by the name that Python code uses, with their real names."""
        return self._packs.get(pack, {})

    def is_pack(self, name: str) -> bool:
        return bool(name) and name in self._packs

    def _not_found(self, name: str) -> ToolNotFound:
        pack = name.rpartition(".")[0]
        near = nearest(name, self._tools)
        if name.partition(".")[0] in self.broken:
            return ToolNotFound(f"the pack {pack!r} cannot be used: {self.broken[name.partition('.')[0]]}")
        message = f"there is no tool {name!r}."
        if near:
            message += f" Did you mean {' or '.join(near)}?"
        if self.is_pack(pack):
            message += f" {pack} has: {shown(self.in_pack(pack))}."
        else:
            message += f" Packs: {shown(self.packs())}."
        return ToolNotFound(f"{message} Type ot.tools() to see all.", nearest=near)


def python_name(name: str) -> str:
    """The name with every character that cannot stand in a Python identifier made an underscore."""
    return ".".join(re.sub(r"\W", "_", part) for part in name.split("."))


def nearest(name: str, known: Mapping[str, object] | list[str]) -> list[str]:
    from rapidfuzz import fuzz, process

    matches = process.extract(name, list(known), scorer=fuzz.WRatio, limit=3, score_cutoff=75)
    return [match[0] for match in matches]


def shown(names: Mapping[str, object] | list[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - MOST_SHOWN} more" if len(listed) > MOST_SHOWN else ""
    return (", ".join(listed[:MOST_SHOWN]) or "none") + more
