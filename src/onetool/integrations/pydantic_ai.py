"""The tools of a bus as a toolset of pydantic-ai. Needs the extra `pydantic-ai`."""

from typing import Any

from anyio.to_thread import run_sync as run_in_thread
from pydantic_ai import AbstractToolset, ModelRetry, RunContext, ToolDefinition, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from onetool.core.bus.bus import ToolBus
from onetool.integrations.providers import call_tool, list_tools
from onetool.util.context import ToolContext

# The bus checks the arguments against the schema of the tool.
ANY_ARGUMENTS = SchemaValidator(
    core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())
)


class OneToolToolset(AbstractToolset[Any]):
    """The tools of a bus; with a context, those that calls with it may use.

    A failed call asks the model to retry.
    """

    def __init__(
        self, bus: ToolBus, context: ToolContext | None = None, *, max_retries: int = 1
    ) -> None:
        self._bus = bus
        self._context = context
        self._max_retries = max_retries

    @property
    def id(self) -> str | None:
        return "onetool"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:  # noqa: ARG002 - as declared there
        definitions = await run_in_thread(list_tools, self._bus, self._context)
        return {
            definition.name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=definition.name,
                    description=definition.description,
                    parameters_json_schema=definition.schema,
                ),
                max_retries=self._max_retries,
                args_validator=ANY_ARGUMENTS,
            )
            for definition in definitions
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],  # noqa: ARG002 - as declared there
        tool: ToolsetTool[Any],  # noqa: ARG002 - as declared there
    ) -> str:
        result = await call_tool(self._bus, name, tool_args, self._context)
        if result.is_error:
            raise ModelRetry(result.text)
        return result.text
