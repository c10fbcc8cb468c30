"""Tools, backends and sources of tools, on which everything else is built.

`Tool` is immutable data: a name, schemas, permissions and the backend that carries out its calls.
"""

import re
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Set as AbstractSet,
)
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, overload

from onetool.core.names import python_name
from onetool.core.schema import Schema
from onetool.errors import ToolError
from onetool.util.context import (
    Effect,
    Permission,
    ToolContext,
    effects as effect_set,
    permissions as permission_set,
)
from onetool.util.invisible import find_in_name
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.settings.load import Loaded
    from onetool.util.problem import Problem

DECLARED = "__onetool__"
Function = TypeVar("Function", bound=Callable[..., Any])


NAME = re.compile(r"[^\s@.]+(?:\.[^\s@.]+)*")


class Backend(Protocol):
    """Carries out calls.

    It may also have `identify(tool)`: data that changes if a call would do something else.

    `warm_up(context)` starts what calls need, so that `identify` knows it.
    """

    async def invoke(self, tool: "Tool", args: JsonMapping, context: ToolContext) -> Any: ...


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    backend: Backend
    input: Schema
    output: Schema | None = None
    description: str = ""
    permissions: frozenset[Permission] = frozenset()
    effects: frozenset[Effect] | None = (
        None  # None: not declared; see `onetool.core.policy.effects`
    )
    is_idempotent: bool = False
    labels: frozenset[str] | None = (
        None  # `private`, `untrusted`; None: see `onetool.core.policy.effects`
    )
    source: str = "local"
    enabled: bool = True
    disabled_reason: str = ""
    disabled_code: str = ""  # `bundle_disabled` if its whole bundle is disabled
    returns: str = ""
    example: str = ""
    docstring: str = ""  # of its function; `onetool.core.functions` reads its parts
    argument_permissions: Mapping[str, frozenset[Permission]] = field(
        default_factory=dict
    )  # needed if the argument is passed
    continued_by: str = ""  # an argument that continues an earlier call; both count as one
    timeout: float | None = None  # seconds
    limits: tuple[str, ...] = ()  # arguments that a call may only set lower than `tool_config`
    max_text: int | None = (
        None  # maximum characters per argument, for tools that process text on the event loop
    )
    logged: tuple[str, ...] = ()  # arguments that may be logged
    is_audited: bool = False  # whether calls are audited regardless of their permissions
    identity: str = ""  # under which calls of a stored tool are counted, whatever its name
    file: str = ""  # the source file of an extension's tool
    refresh: Callable[[], Awaitable[object]] | None = None  # re-reads its source
    complete: Callable[[JsonMapping, ToolContext], Awaitable[JsonMapping]] | None = None
    # returns the arguments that people are asked about, for arguments that mean something else
    # later

    @property
    def pack(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def is_resumable(self) -> bool:
        """Whether a call that is repeated with the same ticket, by any process, is the same call."""
        return getattr(self.backend, "is_resumable", False)

    def identify(self) -> Any:
        """Return what a call does, as data. The call must not be made if approved data differs."""
        identify = getattr(self.backend, "identify", None)
        return None if identify is None else identify(self)

    async def warm_up(self, context: ToolContext) -> None:
        """Start what a call needs. After this, `identify` describes what the call will do."""
        warm_up = getattr(self.backend, "warm_up", None)
        if warm_up is not None:
            await warm_up(context)

    def continues(self, args: JsonMapping) -> bool:
        return bool(self.continued_by and args.get(self.continued_by))

    @property
    def is_foreign(self) -> bool:
        """Whether its texts come from an upstream server or a document."""
        return self.source.startswith(("proxy:", "bundle:"))

    @property
    def summary(self) -> str:
        """The first line of the description."""
        return self.description.strip().partition("\n")[0]


@dataclass(frozen=True, slots=True)
class Declaration:
    """The arguments of `@tool` for a function."""

    name: str | None = None
    permissions: frozenset[Permission] = frozenset()
    options: JsonMapping = field(default_factory=dict)


@overload
def tool(name: Function) -> Function: ...
@overload
def tool(
    name: str | None = None,
    *,
    permissions: object = (),
    effects: object = None,
    labels: Collection[str] | None = None,
    idempotent: bool = False,
    **options: Any,
) -> Callable[[Function], Function]: ...
def tool(
    name: Any = None,
    *,
    permissions: object = (),
    effects: object = None,
    labels: Collection[str] | None = None,
    idempotent: bool = False,
    **options: Any,
) -> Any:
    """Make a function a tool: `@tool`, or `@tool("slack.notify", permissions=["network"])`.

    It stays a function.

    `effects` are any of "read", "write", "exec" and "external", and `labels` any of "private" and
    "untrusted". Calls of an idempotent tool may be repeated.
    """
    if callable(name):
        return tool()(name)
    facts = {
        "effects": None if effects is None else effect_set(effects),
        "labels": None if labels is None else frozenset(labels),
        "is_idempotent": idempotent,
    }
    declaration = Declaration(name, permission_set(permissions), facts | options)

    def declare(function: Function) -> Function:
        setattr(function, DECLARED, declaration)
        return function

    return declare


def get_declaration(function: object) -> Declaration:
    declared = getattr(function, DECLARED, None)
    return declared if isinstance(declared, Declaration) else Declaration()


# --- sources --------------------------------------------------------------------------------------


class RegistryEntry(NamedTuple):
    """A line in a list of tools."""

    name: str
    summary: str
    enabled: bool
    permissions: frozenset[Permission] = frozenset()

    @property
    def pack(self) -> str:
        return self.name.rpartition(".")[0]


class ToolSource(Protocol):
    """A source of tools. Packs are identified by their Python names.

    `find`, `entries`, `count`, `similar` and `describe` may read the disk; `refresh` and `close`
    run on the event loop; nothing else blocks.
    """

    kind: str  # the kind of source, as shown in lists
    version: int  # changes with the set of tools
    held: Mapping[str, Tool]  # the tools that are always in memory, by name

    @property
    def pack_names(self) -> AbstractSet[str]:
        """The packs that have tools; the empty name holds tools without a pack."""

    def words(self, pack: str) -> AbstractSet[str]:
        """Return the Python names of the tools of a pack that are in memory."""

    def peek(self, name: str) -> Tool | None:
        """Return the tool with this name if it is in memory; it may be slightly out of date."""

    def find(self, name: str) -> Tool | None:
        """Return the current tool with this name."""

    def entries(
        self, pack: str | None = None, *, at_once: int | None = None
    ) -> Iterator[RegistryEntry]:
        """Yield all tools or a pack's, sorted by name; `at_once` is the first batch size."""

    def count(self, pack: str, *, enabled: bool = False) -> int:
        """Return the number of tools of a pack, optionally only enabled ones."""

    def similar(self, name: str, /) -> Iterable[str]:
        """Return names to compare with an unknown name."""

    def describe_kind(self, _pack: str, /) -> str:
        """Return where a pack comes from, as shown in lists."""
        return self.kind

    def describe(self, _pack: str, /) -> str:
        """Return the description of a pack."""
        return ""

    def note_unlisted(self, _context: ToolContext, /) -> str:
        """Return a note on tools that are missing from lists; empty if none are."""
        return ""

    def problems(self) -> "Mapping[str, Problem]":
        """Return the configured packs that have no tools, and why."""
        return {}

    async def refresh(self, words: Collection[str] | None = None, /) -> None:
        """Update the set of tools; `words` are the packs that are needed, None for all."""

    async def load_pack_names(self) -> None:
        """Read the names of all packs, for messages about unknown names. Never waits long."""

    def configure(self, loaded: "Loaded", /) -> None:
        """Apply these settings."""

    async def close(self) -> None:
        """Stop everything that the source has started."""


class HeldTools(ToolSource):
    """A source whose tools are in memory."""

    kind = "local"

    def __init__(self) -> None:
        self.held: dict[str, Tool] = {}
        # Full names by Python names of pack and tool; of several names the one that wins comes
        # first.
        self._names: dict[str, dict[str, list[str]]] = {}
        self.version = 0

    def add(self, tool: Tool) -> None:
        if not NAME.fullmatch(tool.name):
            raise ToolError(f"invalid tool name {quote(tool.name)}: expected 'pack.tool' or 'grep'")
        if character := find_in_name(tool.name):
            raise ToolError(
                f"invalid tool name {tool.name!r}: it contains the invisible character {character}"
            )
        if tool.name in self.held:
            raise ToolError(
                f"a tool named {tool.name!r} is already registered; unregister it first or choose"
                " another name"
            )
        if tool.timeout is not None and not tool.timeout > 0:
            raise ToolError(
                f"invalid timeout {tool.timeout!r} of {tool.name}: expected a positive number of"
                " seconds"
            )
        declared_effects = tool.effects
        if declared_effects is not None or not all(
            isinstance(permission, Permission) for permission in tool.permissions
        ):
            try:  # a program may pass strings
                parsed_effects = None if declared_effects is None else effect_set(declared_effects)
                tool = replace(
                    tool, permissions=permission_set(tool.permissions), effects=parsed_effects
                )
            except (TypeError, ValueError) as error:
                raise ToolError(f"cannot register {tool.name}: {error}") from None
        self.version += 1
        self.held[tool.name] = tool
        pack, _, short = (python := python_name(tool.name)).rpartition(".")
        names = self._names.setdefault(pack, {}).setdefault(short, [])
        names.insert(0 if tool.name == python else len(names), tool.name)

    def remove(self, name: str) -> None:
        self.version += 1
        del self.held[name]
        pack, _, short = python_name(name).rpartition(".")
        self._names[pack][short].remove(name)
        if not self._names[pack][short]:
            del self._names[pack][short]
        if not self._names[pack]:
            del self._names[pack]

    def replace(self, tool: Tool) -> Tool:
        """Replace the tool with the same name."""
        if self.held[tool.name] is not tool:
            self.version += 1
            self.held[tool.name] = tool
        return tool

    @property
    def pack_names(self) -> AbstractSet[str]:
        return self._names.keys()

    def words(self, pack: str) -> AbstractSet[str]:
        return self._names.get(pack, {}).keys()

    def peek(self, name: str) -> Tool | None:
        if (tool := self.held.get(name)) is not None:
            return tool
        pack, _, short = name.rpartition(".")
        names = self._names.get(pack, {}).get(short)
        return self.held.get(names[0]) if names else None

    def find(self, name: str) -> Tool | None:
        return self.peek(name)

    async def load_pack_names(self) -> None:
        """Do nothing: the names are in memory."""

    def list_tools(self, pack: str) -> list[Tool]:
        names = (name for names in list(self._names.get(pack, {}).values()) for name in names)
        return [self.held[name] for name in names]

    def entries(self, pack: str | None = None, **_options: Any) -> Iterator[RegistryEntry]:
        tools = list(self.held.values()) if pack is None else self.list_tools(pack)
        entries = (
            RegistryEntry(tool.name, tool.summary, tool.enabled, tool.permissions) for tool in tools
        )
        return iter(sorted(entries, key=itemgetter(0)))

    def count(self, pack: str, *, enabled: bool = False) -> int:
        return sum(tool.enabled or not enabled for tool in self.list_tools(pack))

    def similar(self, _name: str, /) -> Iterable[str]:
        return list(self.held)
