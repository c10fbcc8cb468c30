"""Plans: tools that only read are called, and all other calls of the code are listed instead of
made.

The result of a listed call is a marker: an object whose only key is random and known to this plan.
The cell makes it a placeholder. Code that forges a marker only changes what is shown, because no
call with an effect is ever made.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from onetool.core.agents import authorize, choose_account
from onetool.core.bus.bind import NO_ARGUMENTS, bind
from onetool.core.bus.bus import ToolBus
from onetool.core.policy.effects import get_effects, has_effect, sort_effects
from onetool.core.tool import Tool
from onetool.errors import ToolError
from onetool.runs.run_output import RunOutput
from onetool.util.context import Effect, Result, ToolContext
from onetool_child.data import encode
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.runs.runner import Runner

MAX_PLAN_BYTES = 16 << 20  # of the arguments of all listed calls
# These change only the state of OneTool, which is not an effect for policies. A plan must not
# change it either.
CHANGING_TOOLS = frozenset({"ot.background", "ot.reload", "ot.session_update"})


class ListedCall(NamedTuple):
    """A ticket for a call that is not made: its result is a marker."""

    recorded: Result


@dataclass(slots=True)
class PlanGate:
    """The calls that a plan lists.

    `outer` is the gate of the run that asked for the plan; it decides about reads.
    """

    is_replayable: ClassVar[bool] = False
    outer: Any = None
    used_memory: int = 0  # bytes of the memory of the run, which the plan must not use
    calls: list[JsonObject] = field(default_factory=list)
    ended: ToolError | None = None  # why the plan ended early
    _marker: str = field(default_factory=lambda: f"result-{secrets.token_hex(16)}")
    _bytes: int = 0

    @property
    def cell_params(self) -> JsonObject:
        return {"placeholder": self._marker, "used_memory": self.used_memory}

    @property
    def labels(self) -> Any:
        return getattr(self.outer, "labels", None)

    async def decide(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        """Decide about a call that a tool makes.

        It must only read, because the tool could not use a placeholder.
        """
        if is_listed(tool, args):
            raise self.end(
                f"a tool that only reads tried to call {tool.name}, which a plan does not call"
            )
        return None if self.outer is None else await self.outer.decide(tool, args, context)

    async def call(
        self, bus: ToolBus, name: str, args: list[Any], kwargs: JsonObject, context: ToolContext
    ) -> Result:
        """Call a tool that reads, or list the call. Raise if the plan has ended."""
        if any(self.find_markers([args, kwargs])):
            try:
                result = await self._list_with_placeholders(bus, name, args, kwargs, context)
            except ToolError as error:
                result = Result(ok=False, error=error)
        else:
            context = replace(context, run=context.run._replace(gate=PlannedCall(self)))
            result = await bus.call_tool(name, kwargs, context, positional=args, raw=True)
        if self.ended is not None:
            raise self.ended
        return result

    async def _list_with_placeholders(
        self, bus: ToolBus, name: str, args: list[Any], kwargs: JsonObject, context: ToolContext
    ) -> Result:
        """List a call whose arguments cannot be validated, because some are unknown."""
        tool = await bus.resolve(name)
        bound = bind(tool, args, kwargs, context.agent_config.get(tool.name, NO_ARGUMENTS))
        authorize(tool, bound, context)
        account = choose_account(tool, context).account
        if not is_listed(tool, bound):
            raise self.end_at_use([args, kwargs])
        return self.list_call(tool, bound, account)

    def list_call(self, tool: Tool, args: JsonMapping, account: str) -> Result:
        """Add a call to the plan. Return the marker of its result."""
        defaults = tool.input.defaults
        call_arguments = {
            name: value
            for name, value in args.items()
            if name not in defaults or value != defaults[name]
        }
        arguments = self.show(call_arguments)
        self._bytes += len(encode(arguments))
        if self.ended is not None or self._bytes > MAX_PLAN_BYTES:
            raise self.end(f"the listed arguments have more than {MAX_PLAN_BYTES} bytes")
        effects = sort_effects(get_effects(tool, args) - {Effect.READ} or {Effect.WRITE})
        chosen = {"account": account} if account else {}
        self.calls.append({"tool": tool.name, **chosen, "arguments": arguments, "effects": effects})
        return Result(ok=True, value={self._marker: len(self.calls)})

    def end(self, reason: str, line: object = None) -> ToolError:
        """End the plan. Return the error that ends its run."""
        place = f"line {line}: " if isinstance(line, int) else ""
        self.ended = self.ended or ToolError(f"{place}{reason}", type="plan_ended")
        return self.ended

    def end_at_use(self, value: Any, line: object = None) -> ToolError:
        """End the plan where code uses a placeholder."""
        numbers = self.find_markers(value)
        calls = (f"{self.calls[number - 1]['tool']} (call {number})" for number in numbers)
        return self.end(f"depends on the result of {next(calls, 'a call')}", line)

    def find_markers(self, value: Any) -> Iterator[int]:
        """Yield the numbers of the listed calls whose results are in the value."""
        if isinstance(value, dict):
            if (number := self._read_marker(value)) is not None:
                yield number
            value = list(value.values())
        for item in value if isinstance(value, list) else ():
            yield from self.find_markers(item)

    def show(self, value: Any) -> Any:
        """Return the value with a text for each marker."""
        if isinstance(value, dict):
            if (number := self._read_marker(value)) is not None:
                return f"<result of {self.calls[number - 1]['tool']} #{number}>"
            return {key: self.show(item) for key, item in value.items()}
        return [self.show(item) for item in value] if isinstance(value, list) else value

    def _read_marker(self, value: JsonObject) -> int | None:
        number = value.get(self._marker)
        return (
            number
            if type(number) is int and 0 < number <= len(self.calls) and len(value) == 1
            else None
        )


@dataclass(slots=True)
class PlannedCall:
    """The gate of one call that code makes. Later decisions are about calls that its tool makes."""

    is_replayable: ClassVar[bool] = False
    cell_params: ClassVar[JsonObject] = {}
    plan: PlanGate
    is_decided: bool = False

    @property
    def labels(self) -> Any:
        return self.plan.labels

    async def decide(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        is_first = not self.is_decided
        self.is_decided = True
        if is_first and is_listed(tool, args):
            return ListedCall(self.plan.list_call(tool, args, context.account))
        return await self.plan.decide(tool, args, context)


def is_listed(tool: Tool, args: JsonMapping) -> bool:
    """Return whether a plan lists a call of the tool instead of making it."""
    return has_effect(tool, args) or tool.name in CHANGING_TOOLS


def reject_nested(context: ToolContext) -> None:
    """Raise if the caller is a plan, which would wait for its own turn."""
    if isinstance(context.run.gate, PlanGate | PlannedCall):
        raise ToolError(
            "a plan cannot contain another plan", hint="put all code into one ot.plan(code=...)"
        )


async def make_plan(
    runner: "Runner", code: str, context: ToolContext, redact: Callable[[Any], Any]
) -> JsonObject:
    """Return the calls with effects that the code would make, and its value or why the plan ended."""
    gate = PlanGate(context.run.gate, context.run.split_memory())
    planned = replace(context, run=context.run._replace(gate=gate))
    answer = await runner.run(code, planned, RunOutput(keeps_value=True))
    calls = redact(gate.calls)  # bound arguments may come from settings
    if gate.ended is not None or answer.is_error:
        return {
            "calls": calls,
            "ended": gate.ended.message if gate.ended is not None else answer.text,
        }
    return {"calls": calls, "value": gate.show(answer.value)}
