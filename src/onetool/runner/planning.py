"""Plans: runs of code whose calls with effects are listed instead of made."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from onetool.core.bus.authorize import authorize, choose_account
from onetool.core.bus.bind import NO_ARGUMENTS, bind
from onetool.core.bus.bus import ToolBus
from onetool.core.context import ToolContext
from onetool.core.tool import Result
from onetool.errors import ToolError
from onetool.runner.run_output import RunOutput
from onetool.runner.runner import Runner
from onetool.runs.plan import PlanGate, PlannedCall, is_listed


def reject_nested(context: ToolContext) -> None:
    """Raise if the caller is a plan, which would wait for its own turn."""
    if isinstance(context.gate, PlanGate | PlannedCall):
        raise ToolError("a plan cannot contain another plan", hint="put all code into one ot.plan(code=...)")


async def plan(runner: Runner, code: str, context: ToolContext, redact: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the calls with effects that the code would make, and its value or why the plan ended."""
    used_memory = 0 if context.split_memory is None else context.split_memory()
    gate = PlanGate(context.gate, used_memory)
    answer = await runner.run(code, replace(context, gate=gate), RunOutput(keeps_value=True))
    calls = redact(gate.calls)  # bound arguments may come from settings
    if gate.ended is not None or answer.is_error:
        return {"calls": calls, "ended": gate.ended.message if gate.ended is not None else answer.text}
    return {"calls": calls, "value": gate.show(answer.value)}


async def call_planned(
    bus: ToolBus, name: str, args: list[Any], kwargs: dict[str, Any], context: ToolContext
) -> Result:
    """Call a tool that reads, or list the call. Raise if the plan has ended."""
    gate: PlanGate = context.gate
    if any(gate.find_markers([args, kwargs])):
        try:
            result = await _list_with_placeholders(bus, name, args, kwargs, context)
        except ToolError as error:
            result = Result(ok=False, error=error)
    else:
        context = replace(context, gate=PlannedCall(gate))
        result = await bus.call_tool(name, kwargs, context, positional=args, raw=True)
    if gate.ended is not None:
        raise gate.ended
    return result


async def _list_with_placeholders(
    bus: ToolBus, name: str, args: list[Any], kwargs: dict[str, Any], context: ToolContext
) -> Result:
    """List a call whose arguments cannot be validated, because some are unknown."""
    gate: PlanGate = context.gate
    tool = await bus.resolve(name)
    bound = bind(tool, args, kwargs, context.agent_config.get(tool.name, NO_ARGUMENTS))
    authorize(tool, bound, context)
    account = choose_account(tool, context).account
    if not is_listed(tool, bound):
        raise gate.end_at_use([args, kwargs])
    return gate.list_call(tool, bound, account)
