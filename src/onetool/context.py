"""The context of a call: the agent, its permissions and limits, and access to the application.

A tool with a parameter annotated `ToolContext` gets it from the bus; callers do not see that parameter. `system` gives
access to the running application; programs that only use a bus leave it out.
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
    """Return the permissions with these names; a leading colon is ignored."""
    if not isinstance(names, list | tuple | set | frozenset):
        raise TypeError(f"invalid permissions {names!r}: expected a list like [read, network]")
    words = [str(name).removeprefix(":") for name in names]
    if unknown := [word for word in words if word not in set(Permission)]:
        raise ValueError(f"unknown permission {unknown[0]!r}: expected some of {', '.join(Permission)}")
    return frozenset(map(Permission, words))


class Foreign(NamedTuple):
    """The source, metadata and trust of a value from an upstream server."""

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
    client: str = ""  # the name of the client, as it calls itself
    token_id: str = ""  # of the token used; empty for the owner and over stdio
    tools: tuple[str, ...] | None = None  # names, packs or patterns that the agent may call; None for all
    bus: Any = field(default=None, repr=False, compare=False)  # for tools that call other tools
    system: object = None  # the running application: see `onetool.system`
    progress: Callable[[str], None] | None = None  # reports progress to the caller
    on_foreign_value: Callable[[Foreign], None] | None = None
    notice: Callable[[str], None] | None = None  # adds a note beside the value of the call
    is_owner: bool = False  # whether the caller may see the statistics of all agents

    def admits(self, tool: Any) -> bool:
        """Return whether the agent may call the tool. Tools of `ot` without permissions are always allowed."""
        if self.tools is None or (tool.pack == OWN_PACK and not tool.permissions):
            return True
        return any(pattern in {tool.name, tool.pack} or fnmatchcase(tool.name, pattern) for pattern in self.tools)

    def admits_pack(self, pack: str) -> bool:
        """Return whether the agent may call any tool of the pack, whose tools need not be known yet."""
        return self.tools is None or any(fnmatchcase(pack, pattern.partition(".")[0]) for pattern in self.tools)

    async def call(self, name: str, /, **args: Any) -> Any:
        """Call another tool with the same context and return its value or raise its error."""
        result = await self.bus.call_tool(name, args, self)
        return result.unwrap()

    def call_sync(self, name: str, /, **args: Any) -> Any:
        """Call another tool from a synchronous tool, which runs in a thread."""
        return self.bus.call_from_thread(name, args, self).unwrap()

    def __post_init__(self) -> None:
        """Freeze the fields, so that a tool cannot grant itself permissions."""
        for name in ("agent_config", "sandbox", "metadata", "tools"):
            object.__setattr__(self, name, _freeze(getattr(self, name)))
        object.__setattr__(self, "permissions", permissions(self.permissions))


def _freeze(value: Any) -> Any:
    if value is None:
        return value
    if isinstance(value, Mapping):
        return MappingProxyType({key: _freeze(item) for key, item in value.items()})
    return tuple(map(_freeze, value)) if isinstance(value, list | tuple) else value
