"""Calls tools of the `ot` pack and prints their results, for the commands `tools`, `search` and `help`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onetool.cli.app_runner import check_settings
from onetool.cli.terminal import CommandOutput
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.app import OneTool


async def show_result(
    app: "OneTool",
    output: CommandOutput,
    tool: str,
    arguments: JsonMapping,
    *,
    progress: str,
    to_text: Callable[[Any], str],
) -> int:
    """Call the tool, print its result as text, and print the notices of the call to standard error."""
    from onetool.core.context import Caller
    from onetool.runner.run_output import RunOutput

    check_settings(app, output)
    run_output = RunOutput()
    with output.progress(progress):
        found = (await app.bus.call_tool(tool, arguments, app.runs.open_context(Caller(), run_output))).unwrap()
    output.write(app.redact(to_text(found)) + "\n")
    output.notify(run_output.notices)
    return 0
