"""The one path: whoever calls a tool, from whichever door, calls it here. Read `call_tool`; the rest is registration.

There is no middleware, there are no hooks. A step that is missing is one more line.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from ot.bus.adapt import as_tool
from ot.bus.authorise import authorise, in_order
from ot.bus.bind import bind, wrong_call
from ot.context import ToolContext
from ot.errors import ArgumentError, OutputInvalid, ToolError, error_type
from ot.registry import Registry, python_name
from ot.tool import Result, Tool


@dataclass(frozen=True, slots=True)
class Call:
    """What is remembered of a call. Of its arguments only those that its tool declares as `logged`, never its value."""

    name: str
    tool: Tool | None
    context: ToolContext
    seconds: float
    error: str | None
    logged: Mapping[str, Any]
    continues: bool = False


THREADS = 256
Recorder = Callable[[Call, Any], None]
Discover = Callable[[Collection[str]], Awaitable[None]]  # the packs that matter


class ToolBus:
    """Register tools, find them, call them. Needs no configuration and starts empty."""

    def __init__(
        self, registry: Registry | None = None, *, record: Recorder | None = None, discover: Discover | None = None
    ) -> None:
        self.registry = registry if registry is not None else Registry()
        self._record, self._discover = record, discover
        self.threads = anyio.CapacityLimiter(THREADS)  # for tools alone, so that nothing else waits for them

    async def call_tool(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        context: ToolContext | None = None,
        *,
        positional: Sequence[Any] = (),
    ) -> Result:
        """Resolve, bind, validate, authorise, dispatch, check, record. Every error of the call is in the result."""
        context = context or ToolContext()
        started = time.perf_counter()
        tool: Tool | None = None
        args: dict[str, Any] = {}
        value: Any = None
        error: BaseException | None = None
        try:
            tool = await self._resolve(name)
            args = _validated(tool, bind(tool, positional, params or {}))
            authorise(tool, args, context)
            value = await tool.backend.invoke(tool, args, context)
            return _checked(tool, value)
        except Exception as caught:  # noqa: BLE001 - the one place where a tool's error becomes a result
            error = caught
            return Result(ok=False, error=caught)
        except SystemExit as exit_:  # a tool may end itself, not the server
            error = ToolError(f"{name} tried to end the server (SystemExit: {exit_.code})")
            return Result(ok=False, error=error)
        except BaseException as cancelled:
            error = cancelled
            raise
        finally:
            if self._record is not None:
                seconds = time.perf_counter() - started
                continues = tool is not None and tool.continues(args)
                self._record(Call(name, tool, context, seconds, _kind(error), _logged(tool, args), continues), value)

    async def _resolve(self, name: str) -> Tool:
        """The tool of this name as its source is now, which may have been written or edited a moment ago."""
        tool = self.registry.get(name)
        if tool is None and self._discover is not None:
            await self._discover({python_name(name).partition(".")[0]})
        elif tool is not None and tool.refresh is not None:
            await tool.refresh()
        elif tool is not None:
            return tool
        return self.registry.find(name)

    def register_tool(self, thing: object) -> Tool:
        """A `Tool`, a function (with `@tool` or without), or an object with `name`, `permissions` and `call`."""
        tool = as_tool(thing, self.threads)
        self.registry.add(tool)
        return tool

    def unregister_tool(self, name: str) -> None:
        self.registry.remove(name)

    def list_tools(self) -> list[str]:
        return self.registry.names()

    def get_tool(self, name: str) -> Tool:
        return self.registry.find(name)

    def tool_info(self, name: str) -> dict[str, Any]:
        tool = self.registry.find(name)
        return {
            "name": tool.name,
            "description": tool.description,
            "permissions": in_order(tool.permissions),
            "schema": tool.input.json,
            "output_schema": tool.output.json if tool.output else None,
            "source": tool.source,
            "enabled": tool.enabled,
        }


def _validated(tool: Tool, args: dict[str, Any]) -> dict[str, Any]:
    try:
        return tool.input.check(args)
    except ArgumentError as error:
        raise wrong_call(tool, f"{tool.name}(): {error.message}") from None


def _checked(tool: Tool, value: Any) -> Result:
    """What the tool gave: a value, or a result of its own, fitting what the tool promises."""
    if isinstance(value, Result):
        if not value.ok:
            return Result(ok=False, error=value.error or ToolError(f"{tool.name} failed and did not say why"))
        value = value.value
    problem = tool.output.problem(value) if tool.output else None
    if problem:
        raise OutputInvalid(f"{tool.name} gave a value that does not fit its own schema: {problem}")
    return Result(ok=True, value=value)


def _kind(error: BaseException | None) -> str | None:
    return None if error is None else error_type(error) if isinstance(error, Exception) else "cancelled"


def _logged(tool: Tool | None, args: Mapping[str, Any]) -> Mapping[str, Any]:
    return {} if tool is None else {name: args[name] for name in tool.logged if args.get(name) not in (None, "")}
