"""List all tools, or those whose name contains PATTERN; enable or disable a tool or a pack."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from onetool.cli.app_runner import check_settings
from onetool.cli.discovery import show_result
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_json
from onetool.cli.terminal import CommandOutput
from onetool.core.names import python_name
from onetool.core.render import render
from onetool.errors import ToolNotFound
from onetool.util.text import quote, suggest

if TYPE_CHECKING:
    from onetool.app import OneTool


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="", metavar="PATTERN", help="part of the tool name")
    parser.add_argument("--info", choices=("list", "min", "full"), default="min", help="level of detail (default: min)")
    add_json(parser)
    switch = parser.add_mutually_exclusive_group()
    switch.add_argument("--disable", metavar="NAME", help="disable a tool or a pack, for all clients")
    switch.add_argument("--enable", metavar="NAME", help="enable it again")


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    on = options.enable is not None
    name = options.enable if on else options.disable
    if name is not None:
        return await _switch(app, name, output, on=on, as_json=options.json)

    def to_text(found: list[Any]) -> str:
        return render(found, "json") if options.json else _text(found, options.pattern)

    arguments = {"pattern": options.pattern, "info": options.info}
    return await show_result(app, output, "ot.tools", arguments, progress="listing tools", to_text=to_text)


async def _switch(app: "OneTool", name: str, output: CommandOutput, *, on: bool, as_json: bool) -> int:
    from onetool.admin.packs import set_pack_enabled
    from onetool.admin.tools import set_tool_enabled

    check_settings(app, output)
    await app.discover()
    tools = {python_name(tool.name): tool.name for tool in app.registry}
    packs = {python_name(tool.pack): tool.pack for tool in app.registry if tool.pack}
    is_tool = python_name(name) in tools
    full_name = (tools if is_tool else packs).get(python_name(name))
    if full_name is None:
        hint = "for a bundle or a tool of one: onetool bundles enable|disable NAME"
        raise ToolNotFound(f"no tool or pack is named {quote(name)}{suggest(name, {**tools, **packs})}", hint=hint)
    await (set_tool_enabled if is_tool else set_pack_enabled)(app, identify_owner(), full_name, {"isEnabled": on})
    if as_json:
        output.write(render({"changed": [full_name], "isEnabled": on}, "json") + "\n")
    else:
        output.write(f"{'Enabled' if on else 'Disabled'} {full_name}\n")
    return 0


def _text(found: list[Any], pattern: str) -> str:
    if not found:
        return f"No tool name contains {quote(pattern)}. Run `onetool tools` to list all tools."
    if isinstance(found[0], str):
        return "\n".join(found)
    is_full = "signature" in found[0]
    lines = (render(each, "yml_h") + "\n" if is_full else f"{each['name']:24} {each['description']}" for each in found)
    return "\n".join(lines)
