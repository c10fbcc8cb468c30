"""The frozen facts of one call: who calls, from where, and what they may do.

A tool that wants them takes a parameter annotated `ToolContext`; it is filled in by the bus and is no argument of
the tool. `system` is how a tool reaches the running product; programs that use a bus alone leave it out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

OWN_PACK = "ot"


class Permission(StrEnum):
    READ = "read"
    WRITE = "write"
    EXEC = "exec"
    NETWORK = "network"


def permissions(names: object) -> frozenset[Permission]:
    """The permissions of a list of words; `read`, `:read` and `":read"` are the same word."""
    if not isinstance(names, list | tuple | set | frozenset):
        raise TypeError(f"permissions are a list like [read, network], not {names!r}")
    words = [str(name).removeprefix(":") for name in names]
    if unknown := [word for word in words if word not in set(Permission)]:
        raise ValueError(f"unknown permission {unknown[0]!r}: expected some of {', '.join(Permission)}")
    return frozenset(map(Permission, words))


class Foreign(NamedTuple):
    """What a run is to know of an answer that came from somebody else's server, beside the value."""

    source: str
    meta: Mapping[str, Any]
    is_untrusted: bool


@dataclass(frozen=True, slots=True)
class ToolContext:
    agent_id: str = "default"
    agent_config: Mapping[str, Any] = field(default_factory=dict)
    working_dir: Path = field(default_factory=Path.cwd)
    permissions: frozenset[Permission] = frozenset()
    sandbox: Mapping[str, Any] | None = None
    budget_guard: Any = None
    correlation_id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    client: str = ""  # what made the call, by the name that it gives itself
    token_id: str = ""  # of the token that was shown; empty for the owner and on standard input
    tools: tuple[str, ...] | None = None  # names, packs or patterns that the agent may call; None where all
    bus: Any = field(default=None, repr=False, compare=False)  # where a tool calls other tools
    system: object = None  # the running product: see `onetool.system`
    progress: Callable[[str], None] | None = None  # for what takes long: who waits is told what for
    heard: Callable[[Foreign], None] | None = None
    notice: Callable[[str], None] | None = None  # adds a note beside the value of the call
    is_owner: bool = False  # the person at the machine, who may see the statistics of all agents

    def admits(self, tool: Any) -> bool:
        """Whether the agent's list of tools has it. What `ot` tells without needing a right, everybody may ask."""
        if self.tools is None or (tool.pack == OWN_PACK and not tool.permissions):
            return True
        return any(pattern in {tool.name, tool.pack} or fnmatchcase(tool.name, pattern) for pattern in self.tools)

    def admits_some_of(self, pack: str) -> bool:
        """Return whether the agent's list may admit something of the pack, whose tools need not be known yet."""
        return self.tools is None or any(fnmatchcase(pack, pattern.partition(".")[0]) for pattern in self.tools)

    async def call(self, name: str, /, **args: Any) -> Any:
        """Call another tool, under the very limits of this call; what it raises is raised."""
        result = await self.bus.call_tool(name, args, self)
        return result.unwrap()

    def call_sync(self, name: str, /, **args: Any) -> Any:
        """The same for a tool that is no coroutine and so runs in a thread."""
        return self.bus.call_from_thread(name, args, self).unwrap()

    def __post_init__(self) -> None:
        """A tool that could change what is in here could grant itself what it was not given."""
        for name in ("agent_config", "sandbox", "metadata", "tools"):
            object.__setattr__(self, name, _frozen(getattr(self, name)))
        object.__setattr__(self, "permissions", permissions(self.permissions))


def _frozen(value: Any) -> Any:
    if value is None:
        return value
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
