"""Tools and backends, on which everything else is built.

`Tool` is immutable data: a name, schemas, permissions and the backend that carries out its calls.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, overload

from onetool.core.schema import Schema
from onetool.util.context import (
    Effect,
    Permission,
    ToolContext,
    effects as effect_set,
    permissions as permission_set,
)
from onetool_child.json_types import JsonMapping

DECLARED = "__onetool__"
Function = TypeVar("Function", bound=Callable[..., Any])


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
    docstring: str = ""  # of its function; `onetool.util.docstring` reads its parts
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
        """Return what a call does, as data: if it differs from what a person approved, the call
        must not be made.
        """
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
