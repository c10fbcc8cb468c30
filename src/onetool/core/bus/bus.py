"""The tool bus, through which every call of a tool goes. Start reading at `call_tool`.

There is no middleware and there are no hooks: a new step is one more line in `_run_steps`.
Observers subscribe.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.core.agents import authorize, choose_account
from onetool.core.bus.bind import NO_ARGUMENTS, bind, call_error
from onetool.core.bus.events import CallFinished, Events, Listener, Tracing
from onetool.core.bus.sources import RegisteredTools
from onetool.core.foreign_schema import ForeignSchema, check_arguments, find_problem
from onetool.core.names import MAX_NAME_LENGTH, check_name, python_name
from onetool.core.policy.effects import get_effects, get_labels, sort_effects
from onetool.core.registry import Registry
from onetool.core.threads import ToolThreads, call_blocking, nesting_guard, wait_for
from onetool.core.tool import Tool
from onetool.errors import (
    ArgumentError,
    Cancelled,
    OutputInvalid,
    ToolError,
    ToolTimeout,
    error_type,
)
from onetool.util.context import CallGates, Result, ToolContext, sort_permissions, unfreeze
from onetool.util.deadline import PausableDeadline
from onetool.util.large_data import RawJson
from onetool_child.errors import make_error
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal


@dataclass(slots=True)
class _Call:
    """The state of a call."""

    context: ToolContext
    is_exact: bool = False
    tool: Tool | None = None
    args: JsonMapping | None = None
    is_allowed: bool | None = None
    admitted: Any = None


CANCELLED = Result(ok=False, error=Cancelled("the call was cancelled"))
VERSION = "__version__"
# Raises if the call must not be made; its return value is part of `CallFinished`.
Admit = Callable[[Tool, JsonMapping, ToolContext], Awaitable[object]]


class ToolBus:
    """A bus that registers, finds and calls tools. It needs no configuration and starts empty."""

    def __init__(
        self,
        *,
        get_cost: Callable[[Tool], float] = lambda _tool: 0,
    ) -> None:
        self.threads = ToolThreads()  # used only by tools, so that nothing else waits for them
        self.registered = RegisteredTools(self.threads)
        self.registry = Registry(self.registered)
        self.events = Events()
        self._get_cost = get_cost
        self.admit: Admit | None = None
        self._tracing = Tracing(self.events)
        self.portal: BlockingPortal | None = (
            None  # the event loop of an application that a program opened with `with`
        )
        self._bound = (
            ToolContext(),
            ToolContext(),
        )  # the last context without a bus, and the same with this bus

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call the listener with the events of every call and run from now on.

        Return a function that unsubscribes.
        """
        return self.events.subscribe(listener)

    async def call_tool(
        self,
        name: str,
        params: JsonMapping | None = None,
        context: ToolContext | None = None,
        *,
        positional: Sequence[Any] = (),
        raw: bool = False,
        exact: bool = False,
    ) -> Result:
        """Resolve, authorize, bind, validate, decide, admit, dispatch, check, record.

        Errors are in the result.

        With `raw`, a large value may be a `RawJson`, for callers that pass it to another process.
        With `exact`, the arguments are validated as they are: names are complete and declared, and
        strings are not converted.
        """
        call = _Call(self._bind_context(context), is_exact=exact)
        result = await self._call_observed(name, params or NO_ARGUMENTS, positional, call)
        if raw or not isinstance(result.value, RawJson):
            return result
        try:
            value = await run_in_thread(result.value.parse, name)
        except ToolError as error:
            return Result(ok=False, error=error)
        return replace(result, value=value)

    def call_tool_sync(
        self, name: str, params: JsonMapping | None = None, context: ToolContext | None = None
    ) -> Result:
        """Call a tool in a program without an event loop, and wait for the result."""
        call = partial(self.call_tool, name, params, context)
        result: Result = call_blocking(call, self.portal, "await bus.call_tool(...)")
        return result

    def call_from_thread(self, name: str, params: JsonMapping, context: ToolContext) -> Result:
        """Call a tool from a thread and wait for the result."""
        result: Result = wait_for(partial(self.call_tool, name, params, context))
        return result

    async def _call_observed(
        self, name: str, params: JsonMapping, positional: Sequence[Any], call: _Call
    ) -> Result:
        if not self._tracing.is_decided:
            self._tracing.detect()
        name = name[: MAX_NAME_LENGTH + 1]
        call_id, redacted_name = self.events.start_call(
            name, call.context, is_known=name in self.registry
        )
        at = time.time()
        started = time.perf_counter()
        result = CANCELLED
        try:
            result = await self._call_safely(name, params, positional, call)
            return result
        finally:
            if self.events.has_listeners(CallFinished):
                seconds = time.perf_counter() - started
                failed = result.error
                error = None if failed is None else error_type(failed)
                fields = call.tool, call.args, call.is_allowed, result.value, call.admitted
                event = CallFinished(
                    call_id, redacted_name, call.context, seconds, error, *fields, at, failed
                )
                self.events.emit(event)

    async def _call_safely(
        self, name: str, params: JsonMapping, positional: Sequence[Any], call: _Call
    ) -> Result:
        gate = None
        result = CANCELLED
        try:
            run = call.context.run
            if isinstance(run.gate, CallGates):
                gate = run.gate.open()
                call.context = replace(call.context, run=run._replace(gate=gate))
            result = await self._run_steps(name, params, positional, call)
        except Exception as raised:  # noqa: BLE001 - the one place where a tool's error becomes a result
            result = Result(ok=False, error=raised, ran=call.is_allowed is True)
        except SystemExit as exit_:  # a tool must not exit the server
            error = ToolError(f"{name} tried to exit the server (SystemExit: {exit_.code})")
            result = Result(ok=False, error=error)
        finally:
            if gate is not None:
                gate.close(result.error)
        return result

    async def _run_steps(
        self, name: str, params: JsonMapping, positional: Sequence[Any], call: _Call
    ) -> Result:
        context = call.context
        name, params = _split_version(name, params)
        tool = call.tool = await self.resolve(name)
        call.args = params
        call.is_allowed = False
        authorize(tool, NO_ARGUMENTS, context)  # before validation, which a schema can make slow
        call.is_allowed = None
        configured = context.agent_config.get(tool.name, NO_ARGUMENTS)
        args = call.args = bind(tool, positional, params, configured, is_exact=call.is_exact)
        args = call.args = await _validate(
            tool, dict(args), configured, context, is_exact=call.is_exact
        )
        call.is_allowed = False
        if tool.argument_permissions:
            authorize(tool, args, context)
        if tool.complete is not None:
            args = call.args = dict(await tool.complete(args, context))
        context = call.context = choose_account(tool, context)
        gate = context.run.gate
        ticket = (
            None
            if gate is None or isinstance(gate, CallGates)
            else await gate.decide(tool, args, context)
        )
        if ticket is not None and ticket.recorded is not None:
            recorded: Result = ticket.recorded
            return recorded
        if self.admit is not None:
            call.admitted = await self.admit(tool, args, context)
        if ticket is not None:
            await ticket.send()
            if tool.is_resumable and ticket.is_repeatable:
                context = replace(context, run=context.run._replace(ticket=ticket))
        call.is_allowed = True
        if ticket is None:
            return await _check_output(tool, await self._dispatch(tool, args, context))
        try:
            result = await _check_output(tool, await self._dispatch(tool, args, context))
        except Exception as error:  # noqa: BLE001 - recorded like any other result
            result = Result(ok=False, error=error)
        finished: Result = await ticket.finish(result)
        return finished

    async def _dispatch(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        invoke = partial(tool.backend.invoke, tool, args, context)
        if tool.timeout is not None:
            invoke = partial(_invoke_with_timeout, tool.timeout, tool, args, context)
        with nesting_guard(tool.name):
            if context.budget_guard is None:
                return await invoke()
            return await context.budget_guard.spend(invoke, self._get_cost(tool))

    def _bind_context(self, context: ToolContext | None) -> ToolContext:
        """Return the context with this bus in it, for tools that call tools."""
        if context is None:
            return ToolContext(bus=self)
        if context.bus is self:
            return context
        if self._bound[0] is not context:
            self._bound = context, replace(context, bus=self)
        return self._bound[1]

    async def resolve(self, name: str) -> Tool:
        """Return the tool with this name after refreshing its source, if needed."""
        check_name(name)
        registry = self.registry
        tool = registry.peek(name)
        if tool is not None and tool.refresh is not None:
            await tool.refresh()
            tool = registry.peek(name)
        elif tool is None and registry.is_pack(
            python_name(registry.aliases.get(name, name)).partition(".")[0]
        ):
            tool = await run_in_thread(registry.get, name)
        if tool is None:
            pack = registry.match_pack(python_name(name).partition(".")[0])
            await registry.refresh({pack})
            if not registry.is_pack(pack):
                await registry.load_pack_names()
            tool = await self.find_tool(name)
        return tool

    async def find_tool(self, name: str) -> Tool:
        """Return the tool with this name. Tools that are not in memory are looked up in a thread."""
        tool = self.registry.peek(name)
        return tool if tool is not None else await run_in_thread(self.registry.find, name)

    @overload
    def register_tool(self, thing: ModuleType) -> list[Tool]: ...  # type: ignore[overload-overlap]  # a module has many tools
    @overload
    def register_tool(
        self, thing: object, *, name: str = "", permissions: Collection[str] = ()
    ) -> Tool: ...
    def register_tool(
        self, thing: object, *, name: str = "", permissions: Collection[str] = ()
    ) -> Tool | list[Tool]:
        """Register a function (`@tool` is optional), a tool object or class, a module, a `Tool`.

        Tools of LangChain, pydantic-ai and FastMCP keep their name, description and schema. `name`
        and `permissions` replace those of the tool, which a tool of another framework does not
        declare.
        """
        return self.registered.register(thing, name, permissions)

    register = register_tool

    def register_installed(self) -> list[str]:
        """Register the entry points `onetool.packs` of installed packages. Return the problems."""
        return self.registered.register_installed()

    def unregister_tool(self, name: str) -> None:
        self.registered.remove(self.registry.find(name).name)

    def reload_tool(self, name: str) -> Tool:
        """Reload a tool from its source.

        If that fails, the old one stays; current calls finish with the old code.
        """
        return self.registered.reload(self.registry.find(name).name)

    def list_tools(self) -> list[str]:
        return self.registry.names()

    def get_tool(self, name: str) -> Tool:
        return self.registry.find(name)

    def tool_info(self, name: str) -> JsonObject:
        tool = self.registry.find(name)
        return {
            "name": tool.name,
            "module": getattr(tool.backend, "module", None) or tool.file or None,
            "description": tool.description,
            "permissions": sort_permissions(tool.permissions),
            "effects": sort_effects(get_effects(tool)),
            "idempotent": tool.is_idempotent,
            "labels": sorted(get_labels(tool)),
            "schema": tool.input.json,
            "output_schema": tool.output.json if tool.output else None,
            "source": tool.source,
            "enabled": tool.enabled,
        }


def _split_version(name: str, params: JsonMapping) -> tuple[str, JsonMapping]:
    """Move the argument `__version__` into the name."""
    if VERSION not in params:
        return name, params
    rest = {key: value for key, value in params.items() if key != VERSION}
    return f"{name}@{str(params[VERSION])[: MAX_NAME_LENGTH + 1]}", rest


async def _validate(
    tool: Tool, args: JsonObject, configured: JsonMapping, context: ToolContext, *, is_exact: bool
) -> JsonObject:
    try:
        if isinstance(tool.input, ForeignSchema):
            return await check_arguments(tool.input, args, is_exact=is_exact)
        return tool.input.check(args, is_exact=is_exact)
    except ArgumentError as error:
        path = error.fields.get("path") or [""]
        setting = (
            path[0]
            if path[0] in configured and args.get(path[0]) == unfreeze(configured[path[0]])
            else None
        )
        location = f"agent_config: {{{tool.name}: {{{setting}: ...}}}} of ToolContext"
        if context.system is not None:
            location = (
                f"agents: {{{context.agent_id}: {{tool_config: {{{tool.name}: {{{setting}:"
                " ...}}}} in onetool.yaml"
            )
        source = f" (the value comes from {location})" if setting else ""
        fields = {name: error.fields[name] for name in ("path", "reason") if name in error.fields}
        raise call_error(tool, f"{tool.name}(): {error.message}{source}", **fields) from None


async def _check_output(tool: Tool, value: Any) -> Result:
    """Return the result of a tool after checking its value against the output schema."""
    if isinstance(value, Result):
        if not value.ok:
            return replace(value, error=make_error(unfreeze(value.error), tool.name))
        value = value.value
    if tool.output is None or isinstance(value, RawJson):
        return Result(ok=True, value=value)
    if isinstance(tool.output, ForeignSchema):
        problem = await find_problem(tool.output, value)
    else:
        problem = tool.output.problem(value)
    if problem:
        raise OutputInvalid(
            f"{tool.name} returned a value that does not match its output schema: {problem}"
        )
    return Result(ok=True, value=value)


async def _invoke_with_timeout(
    seconds: float, tool: Tool, args: JsonMapping, context: ToolContext
) -> Any:
    with anyio.move_on_after(seconds) as scope:
        if context.can_wait:
            deadline = PausableDeadline(
                scope.deadline, partial(setattr, scope, "deadline"), context.client.waiting
            )
            context = context.stop_timers(deadline.paused)
        return await tool.backend.invoke(tool, args, context)
    assert scope.cancelled_caught
    raise ToolTimeout(
        f"{tool.name} timed out after {seconds:g} s", timeout_ms=round(seconds * 1000)
    )
