"""The context of a call: the agent, its permissions and limits, and access to the application.

A tool with a parameter annotated `Context` or `ToolContext` gets it from the bus; callers do not
see that parameter. `system` gives access to the running application; programs that only use a bus
leave it out.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

from onetool.errors import CannotAsk, ConfigError, PermissionDenied, SignInRequired, ToolError
from onetool_child.interface import DONE, Context, Done, check_form, check_level, describe_progress
from onetool_child.json_types import JsonMapping, JsonObject

__all__ = ["Context", "Effect", "Foreign", "Permission", "ToolContext", "effects", "permissions"]
OWN_PACK = "ot"
NAME_COLLECTIONS = (list, tuple, set, frozenset)
SANDBOX_RULES = ("enabled", "allowed_paths", "denied_patterns")
CANNOT_ASK = "no client can show the question: only MCP clients that support elicitation can"
# Called with the message; progress also with the part done and the total, if known.
OnProgress = Callable[..., None]
OnLog = Callable[[str, str], None]  # message and level
OnAsk = Callable[[str, JsonMapping], Awaitable[Any]]  # question and JSON Schema of the answer
# Sends an MCP request, such as sampling, and returns the response of the client or an error.
AskClient = Callable[[Any], Awaitable[Any]]
Waiting = Callable[[], AbstractContextManager[None]]


class Permission(StrEnum):
    READ = "read"
    WRITE = "write"
    EXEC = "exec"
    NETWORK = "network"


def sort_permissions(permissions: frozenset[Permission]) -> list[str]:
    return [str(permission) for permission in Permission if permission in permissions]


class Effect(StrEnum):
    """An effect of a call besides returning a value."""

    READ = "read"
    WRITE = "write"
    EXEC = "exec"
    EXTERNAL = "external"  # sends data out


def permissions(names: object) -> frozenset[Permission]:
    """Return the permissions with these names; a leading colon is ignored."""
    if isinstance(names, frozenset) and {Permission}.issuperset(map(type, names)):
        return names
    if not isinstance(names, NAME_COLLECTIONS):
        raise TypeError(f"invalid permissions {names!r}: expected a list like [read, network]")
    words = [str(name).removeprefix(":") for name in names]
    if unknown := [word for word in words if word not in set(Permission)]:
        raise ValueError(
            f"unknown permission {unknown[0]!r}: expected some of {', '.join(Permission)}"
        )
    return frozenset(map(Permission, words))


def effects(names: object) -> frozenset[Effect]:
    """Return the effects with these names."""
    if not isinstance(names, NAME_COLLECTIONS):
        raise TypeError(f"invalid effects {names!r}: expected a list like [read, external]")
    if unknown := [name for name in names if name not in set(Effect)]:
        raise ValueError(f"unknown effect {unknown[0]!r}: expected some of {', '.join(Effect)}")
    return frozenset(map(Effect, names))


class Foreign(NamedTuple):
    """The source, metadata and trust of a value from an upstream server."""

    source: str
    meta: JsonMapping
    is_untrusted: bool


@dataclass(frozen=True, slots=True)
class Caller:
    """The agent, client and token that run code or call a tool.

    The default is the owner of this process.
    """

    agent: str = "default"
    is_owner: bool = False  # whether the caller may see the statistics of all agents
    token_id: str = ""  # of the token used; empty for the owner and over stdio
    actor: str = ""  # the name of the token, or the subject of the issuer
    client: str = ""  # the name of the client, as it calls itself
    session: str = ""  # identifies the session of the client


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a call: its value or its error."""

    ok: bool
    value: Any = None
    error: Exception | None = None
    ran: bool = True  # False if the call was rejected before it ran
    clock: float = 0.0  # the time that a replayable run sees from now on
    is_replayed: bool = False  # whether it comes from the journal of the run

    def unwrap(self) -> Any:
        """Return the value, or raise the original exception."""
        if self.error is not None:
            raise self.error
        return self.value


class CallTicket(Protocol):
    """A call that another process may repeat when it continues the run."""

    is_repeated: bool  # whether a process that has ended sent the call

    @property
    def call_id(self) -> str: ...  # the same in that process
    @property
    def is_detached(self) -> bool: ...  # whether no request waits for the run
    @property
    def continues_elsewhere(
        self,
    ) -> bool: ...  # whether the call was cancelled only because this process ends


class RunGate(Protocol):
    """Decides about the calls of one run: see `onetool.runs.gate`."""

    @property
    def labels(self) -> Any: ...  # of the client session
    @property
    def is_replayable(self) -> bool: ...
    @property
    def cell_params(
        self,
    ) -> JsonObject: ...  # the parameters of the cell that make the run repeatable
    async def decide(self, tool: Any, args: JsonMapping, context: "ToolContext", /) -> Any:
        """Return a ticket for the call, or None if nothing about it is recorded.

        Raise if it must not be made.
        """
        ...


class Budget(Protocol):
    """The budget of an agent: see `onetool.state.counters`."""

    def check_remaining(self) -> None: ...
    async def spend(self, call: Callable[[], Awaitable[Any]], cost: float = 0, /) -> Any: ...


class Bus(Protocol):
    """The bus that calls tools: see `onetool.core.bus.bus`."""

    threads: Any
    registry: Any

    async def call_tool(
        self,
        name: str,
        params: JsonMapping,
        context: "ToolContext",
        /,
        *,
        positional: Sequence[Any] = (),
    ) -> Any: ...
    def call_from_thread(
        self, name: str, params: JsonMapping, context: "ToolContext", /
    ) -> Any: ...
    async def resolve(self, name: str, /) -> Any: ...


class ClientSignIns(Protocol):
    async def ask_client(self, error: SignInRequired, context: "ToolContext", /) -> bool: ...


class Application(Protocol):
    """The running application: see `onetool.sources.system`."""

    @property
    def sign_ins(self) -> ClientSignIns: ...


@dataclass(frozen=True, slots=True)
class CallGates:
    """Opens a gate for each call that is made with a context outside of runs."""

    is_replayable: ClassVar[bool] = False
    cell_params: ClassVar[JsonObject] = {}
    labels: Any  # of the client session
    open: Callable[[], Any]


class CallClient(NamedTuple):
    """The messages between a call and its client.

    A client that supports none of them has the default.
    """

    progress: OnProgress | None = None  # may be called from any thread, like `log`
    log: OnLog | None = None
    ask: OnAsk | None = None  # asks the person at the client
    send_request: AskClient | None = None
    waiting: Waiting = nullcontext  # entered while a person is asked: stops timers


NO_CLIENT = CallClient()


def _ignore(_value: object) -> None:
    """Drop a note or a record."""


class RunScope(NamedTuple):
    """Functions of the run of a call. Calls of a program that only uses a bus have the default."""

    gate: RunGate | CallGates | None = None
    ticket: CallTicket | None = None  # of a call that may be repeated
    hidden: frozenset[str] = frozenset()  # packs that the code cannot call or find
    store_media: Callable[[bytes, str], str] | None = (
        None  # content and MIME type -> handle; in a thread
    )
    get_settings: Callable[[str], JsonMapping] | None = None  # of a pack
    record_foreign: Callable[[Foreign], None] = (
        _ignore  # a value from an upstream server was received
    )
    is_untrusted: Callable[[], bool] = lambda: (
        False
    )  # whether the run has received an untrusted value
    notify: Callable[[str], None] = _ignore  # shows a note beside the value
    split_memory: Callable[[], int] = lambda: 0  # for a plan; returns the bytes that the run keeps

    @property
    def labels(self) -> Any:
        """The labels of the client session, if the policy of the agent needs them."""
        return None if self.gate is None else self.gate.labels


NO_RUN = RunScope()


@dataclass(frozen=True, slots=True)
class ToolContext(Context):
    agent_id: str = "default"
    agent_config: JsonMapping = field(default_factory=dict)
    working_dir: Path = field(default_factory=Path.cwd)
    permissions: frozenset[Permission] = frozenset()
    sandbox: JsonMapping | None = None
    budget_guard: Budget | None = None
    correlation_id: str = ""
    metadata: JsonMapping = field(default_factory=dict)
    caller: Caller = Caller()
    account: str = ""  # of the upstream server or API that the call uses; empty for the default
    tools: tuple[str, ...] | None = (
        None  # names, packs or patterns that the agent may call; None for all
    )
    hosts: tuple[str, ...] | None = (
        None  # that HTTP tools may reach, among those of the settings; None for all
    )
    bus: Bus | None = field(
        default=None, repr=False, compare=False
    )  # for tools that call other tools
    system: Application | None = None
    settings: JsonMapping = field(default_factory=dict)  # of the tool's pack
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # that the tool may read
    client: CallClient = field(default=NO_CLIENT, repr=False, compare=False)
    run: RunScope = field(default=NO_RUN, repr=False, compare=False)

    @property
    def token_id(self) -> str:
        return self.caller.token_id

    @property
    def actor(self) -> str:
        return self.caller.actor

    def explain_setting(self, setting: str, field: str) -> str:
        """Return how a person allows a rejected call: in the settings, or in the context."""
        if self.system is None:
            return f"To allow it, pass {field} to ToolContext"
        return f"To allow it, add this to onetool.yaml: {setting}"

    def explain_permissions(self, needed: frozenset[Permission]) -> str:
        """Return the setting that grants the agent these permissions."""
        names = ", ".join(sort_permissions(needed | self.permissions))
        return f"agents: {{{self.agent_id}: {{permissions: [{names}]}}}}"

    def permission_error(self, needed: frozenset[Permission], problem: str) -> PermissionDenied:
        """Return the error for a call that needs these permissions."""
        granted = sort_permissions(self.permissions)
        return PermissionDenied(
            f"{problem} but agent only has [{', '.join(granted)}]. "
            f"{self.explain_setting(self.explain_permissions(needed), 'permissions')}",
            required=sort_permissions(needed),
            granted=granted,
        )

    def admits(self, tool: Any) -> bool:
        """Return whether the agent may call the tool.

        Tools of `ot` without permissions are always allowed.
        """
        if self.tools is None or (tool.pack == OWN_PACK and not tool.permissions):
            return True
        return any(
            pattern in {tool.name, tool.pack} or fnmatchcase(tool.name, pattern)
            for pattern in self.tools
        )

    def admits_pack(self, pack: str) -> bool:
        """Return whether the agent may call any tool of the pack, loaded or not."""
        return self.tools is None or any(
            fnmatchcase(pack, pattern.partition(".")[0]) for pattern in self.tools
        )

    @property
    def can_wait(self) -> bool:
        """Whether the call, or a call that it makes, may wait for a person."""
        return self.client.ask is not None or self.run.gate is not None

    def stop_timers(self, waiting: Waiting) -> "ToolContext":
        """Return the context of a call that stops these timers while a person is asked."""
        return replace(self, client=self.client._replace(waiting=waiting))

    def require_bus(self) -> Bus:
        if self.bus is None:
            raise ToolError(
                "this call needs a bus: pass ToolContext(bus=...), or call the tool through a bus"
            )
        return self.bus

    @property
    def cancelled(self) -> bool:
        return self.bus is not None and self.bus.threads.is_cancelled

    def progress(self, done: float | str, total: float | None = None, message: str = "") -> Done:
        if self.client.progress is not None:
            text = describe_progress(done, total, message)
            self.client.progress(text, *(() if isinstance(done, str) else (done, total)))
        return DONE

    def note(self, text: str) -> None:
        """Show a note beside the value of the run. Calls outside a run have no place for notes."""
        self.run.notify(text)

    def log(self, message: object, level: str = "info") -> Done:
        check_level(level)
        if self.client.log is not None:
            self.client.log(str(message), level)
        else:
            import logging

            levels = {
                "debug": logging.DEBUG,
                "warning": logging.WARNING,
                "info": logging.INFO,
                "notice": logging.INFO,
            }
            logging.getLogger("onetool.sources.builtin").log(
                levels.get(level, logging.ERROR), "%s", message
            )
        return DONE

    def secret(self, name: str) -> str:
        if name not in self.secrets:
            raise ConfigError(
                f"no secret {name!r}", hint=f"pass ToolContext(secrets={{{name!r}: ...}})"
            )
        return self.secrets[name]

    def ask(self, message: str, schema: Any = None) -> Any:
        if self.client.ask is None:
            raise CannotAsk(CANNOT_ASK)
        asking = partial(self._ask, self.client.ask, message, check_form(schema))
        return self.bus.threads.wait_or_return(asking) if self.bus is not None else asking()

    async def _ask(self, ask: OnAsk, message: str, schema: JsonMapping) -> Any:
        with self.client.waiting():
            return await ask(message, schema)

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call another tool with the same context and return its value or raise its error."""
        bus = self.require_bus()
        return bus.threads.wait_or_return(partial(self._call, bus, name, args, kwargs))

    async def _call(self, bus: Bus, name: str, args: tuple[Any, ...], kwargs: JsonObject) -> Any:
        result = await bus.call_tool(name, kwargs, self, positional=args)
        return result.unwrap()

    def call_sync(self, name: str, /, **args: Any) -> Any:
        """Call another tool from a synchronous tool, which runs in a thread."""
        return self.require_bus().call_from_thread(name, args, self).unwrap()

    def to_data(self, pack: str) -> JsonObject:
        """Return the fields for a process of this pack, without other packs' settings."""
        sandbox = self.sandbox and {
            name: self.sandbox[name] for name in SANDBOX_RULES if name in self.sandbox
        }
        return {
            "agent_id": self.agent_id,
            "agent_config": {
                name: unfreeze(config)
                for name, config in self.agent_config.items()
                if name.partition(".")[0] == pack
            },
            "working_dir": str(self.working_dir),
            "permissions": sorted(self.permissions),
            "sandbox": unfreeze(sandbox),
            "correlation_id": self.correlation_id,
            "metadata": {
                name: unfreeze(item) for name, item in self.metadata.items() if is_data(item)
            },
        }

    def __post_init__(self) -> None:
        """Freeze the fields, so that a tool cannot grant itself permissions.

        A string is accepted as a path.
        """
        for name in (
            "agent_config",
            "sandbox",
            "metadata",
            "tools",
            "hosts",
            "settings",
            "secrets",
        ):
            object.__setattr__(self, name, freeze(getattr(self, name)))
        working_dir: object = self.working_dir
        if not isinstance(working_dir, Path):
            object.__setattr__(self, "working_dir", Path(str(working_dir)))
        object.__setattr__(self, "permissions", permissions(self.permissions))


def freeze(value: Any) -> Any:
    """Return a value that cannot be changed. A mapping proxy counts as frozen."""
    if value is None or type(value) is MappingProxyType:
        return value
    if isinstance(value, Mapping):
        return MappingProxyType({key: freeze(item) for key, item in value.items()})
    return tuple(map(freeze, value)) if isinstance(value, list | tuple) else value


def unfreeze(value: Any) -> Any:
    """Return a frozen value as lists and dicts."""
    if isinstance(value, Mapping):
        return {key: unfreeze(item) for key, item in value.items()}
    return [unfreeze(item) for item in value] if isinstance(value, tuple) else value


def is_data(value: Any) -> bool:
    """Return whether a value, which may be frozen, is JSON data."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_data(item) for key, item in value.items())
    return (
        all(map(is_data, value))
        if isinstance(value, list | tuple)
        else isinstance(value, str | int | float | None)
    )
