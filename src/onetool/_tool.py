"""What a tool is, and what carries it out: the two words that everything else is built of.

`Tool` is frozen data: a name, what goes in and out, what it needs to be allowed, and the backend that a call goes
to. A backend has one method. `Result` is what a call gives back to a program.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, overload

from onetool.context import Permission, ToolContext, permissions as permission_set
from onetool.schema import Schema

DECLARED: Final = "__onetool__"
Function = TypeVar("Function", bound=Callable[..., Any])


class Backend(Protocol):
    async def invoke(self, tool: "Tool", args: Mapping[str, Any], context: ToolContext) -> Any: ...


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    backend: Backend
    input: Schema
    output: Schema | None = None
    description: str = ""
    permissions: frozenset[Permission] = frozenset()
    source: str = "local"
    enabled: bool = True
    disabled_reason: str = ""
    disabled_code: str = ""  # `bundle_disabled` if all of its bundle is off
    returns: str = ""
    example: str = ""
    argument_permissions: Mapping[str, frozenset[Permission]] = field(default_factory=dict)  # needed where it is given
    continued_by: str = ""  # an argument that makes a call the continuation of another: both are one call
    timeout: float | None = None  # seconds, after which a call is given up
    limits: tuple[str, ...] = ()  # arguments that a call may set lower than `tool_config` does, never higher
    max_text: int | None = None  # characters of each argument, for tools that look at a text on the event loop
    logged: tuple[str, ...] = ()  # arguments that may stand in the log
    is_audited: bool = False  # whether calls are in the audit log whatever permissions they need
    identity: str = ""  # by which the calls of a stored tool are counted, whatever it is called
    file: str = ""  # where a user's tool is written down
    refresh: Callable[[], Awaitable[object]] | None = None  # has its source be read as it is now

    @property
    def pack(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    def continues(self, args: Mapping[str, Any]) -> bool:
        return bool(self.continued_by and args.get(self.continued_by))

    @property
    def is_foreign(self) -> bool:
        """Whether its words are those of somebody else's server or document."""
        return self.source.startswith(("proxy:", "bundle:"))

    @property
    def summary(self) -> str:
        """The first line of the description."""
        return self.description.strip().partition("\n")[0]


@dataclass(frozen=True, slots=True)
class Result:
    ok: bool
    value: Any = None
    error: Exception | None = None
    ran: bool = True  # whether it came to run; one that was refused did not

    def unwrap(self) -> Any:
        """The value; the original exception is raised where there is none."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, slots=True)
class Declaration:
    """What `@tool` says about a function."""

    name: str | None = None
    permissions: frozenset[Permission] = frozenset()
    options: Mapping[str, Any] = field(default_factory=dict)


@overload
def tool(name: Function) -> Function: ...
@overload
def tool(name: str | None = None, *, permissions: object = (), **options: Any) -> Callable[[Function], Function]: ...
def tool(name: Any = None, *, permissions: object = (), **options: Any) -> Any:
    """Make a function a tool: `@tool`, or `@tool("slack.notify", permissions=["network"])`. It stays a function."""
    if callable(name):
        return tool()(name)
    declaration = Declaration(name, permission_set(permissions), options)

    def declare(function: Function) -> Function:
        setattr(function, DECLARED, declaration)
        return function

    return declare


def declaration_of(function: object) -> Declaration:
    declared = getattr(function, DECLARED, None)
    return declared if isinstance(declared, Declaration) else Declaration()
