"""Calls tools of the `ot` pack and prints their results, for the commands `tools`, `search` and
`help`.
"""

from collections.abc import Callable
from typing import Any

from onetool.cli.invocation import Invocation
from onetool_child.json_types import JsonMapping


async def show_result(
    command: Invocation,
    tool: str,
    arguments: JsonMapping,
    progress: str,
    to_text: Callable[[Any], str],
) -> None:
    """Call the tool, print its result, and print the notices of the call to standard error."""
    from onetool.runs.run_output import RunOutput
    from onetool.util.context import Caller
    from onetool.util.render import render

    app = command.app
    run_output = RunOutput()
    with command.output.progress(progress):
        result = (
            await app.bus.call_tool(tool, arguments, app.runs.open_context(Caller(), run_output))
        ).unwrap()
    text = render(result, "json") if command.options.json else to_text(result)
    command.output.write(f"{app.redact(text)}\n")
    command.output.notify(run_output.notices)
