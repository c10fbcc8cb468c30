"""List all tools, or those whose name contains PATTERN; enable or disable a tool or a pack."""

from argparse import ArgumentParser
from functools import partial
from typing import Any

from onetool.cli.discovery import show_result
from onetool.cli.invocation import Invocation
from onetool.core.names import python_name
from onetool.errors import ToolNotFound
from onetool.util.render import render
from onetool.util.text import quote, suggest


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "pattern", nargs="?", default="", metavar="PATTERN", help="part of the tool name"
    )
    parser.add_argument(
        "--info",
        choices=("list", "min", "full"),
        default="min",
        help="level of detail (default: min)",
    )
    switch = parser.add_mutually_exclusive_group()
    switch.add_argument(
        "--disable", metavar="NAME", help="disable a tool or a pack, for all clients"
    )
    switch.add_argument("--enable", metavar="NAME", help="enable it again")


async def execute(command: Invocation) -> None:
    options = command.options
    if options.enable is not None or options.disable is not None:
        await _switch(command, options.disable if options.enable is None else options.enable)
        return
    arguments = {"pattern": options.pattern, "info": options.info}
    await show_result(
        command, "ot.tools", arguments, "listing tools", partial(_render, options.pattern)
    )


async def _switch(command: Invocation, name: str) -> None:
    from onetool.admin.packs import set_pack_enabled
    from onetool.admin.tools import set_tool_enabled

    app = command.app
    await app.discover()
    tools = {python_name(tool.name): tool.name for tool in app.registry}
    packs = {python_name(tool.pack): tool.pack for tool in app.registry if tool.pack}
    is_tool = python_name(name) in tools
    full_name = (tools if is_tool else packs).get(python_name(name))
    if full_name is None:
        hint = "for a bundle or a tool of one: onetool bundles enable|disable NAME"
        raise ToolNotFound(
            f"no tool or pack is named {quote(name)}{suggest(name, {**tools, **packs})}", hint=hint
        )
    switch = {"isEnabled": command.options.enable is not None}
    if is_tool:
        await command.do(set_tool_enabled, full_name, switch)
    else:
        await command.do(set_pack_enabled, full_name, switch)
    done = f"{'Enabled' if switch['isEnabled'] else 'Disabled'} {full_name}"
    command.show({"changed": [full_name], **switch}, [done])


def _render(pattern: str, found: list[Any]) -> str:
    if not found:
        return f"No tool name contains {quote(pattern)}. Run `onetool tools` to list all tools."
    if isinstance(found[0], str):
        return "\n".join(found)
    is_full = "signature" in found[0]
    lines = (
        render(each, "yml_h") + "\n" if is_full else f"{each['name']:24} {each['description']}"
        for each in found
    )
    return "\n".join(lines)
