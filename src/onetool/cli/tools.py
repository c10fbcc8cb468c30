"""Commands that find tools: tools, search and help."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

from onetool.cli.command import Command
from onetool.cli.invocation import Invocation
from onetool.core.names import python_name
from onetool.errors import ToolNotFound
from onetool.util.render import render
from onetool.util.text import quote, suggest
from onetool_child.json_types import JsonMapping, JsonObject

DEFAULT_LIMIT = 10


# --- tools ----------------------------------------------------------------------------------------


def _add_tools_arguments(parser: ArgumentParser) -> None:
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


async def _list_or_switch(command: Invocation) -> None:
    options = command.options
    if options.enable is not None or options.disable is not None:
        await _switch(command, options.disable if options.enable is None else options.enable)
        return
    arguments = {"pattern": options.pattern, "info": options.info}
    await show_result(
        command, "ot.tools", arguments, "listing tools", partial(_render_tools, options.pattern)
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


def _render_tools(pattern: str, tools: list[Any]) -> str:
    if not tools:
        return f"No tool name contains {quote(pattern)}. Run `onetool tools` to list all tools."
    if isinstance(tools[0], str):
        return "\n".join(tools)
    is_full = "signature" in tools[0]
    lines = (
        render(tool, "yml_h") + "\n" if is_full else f"{tool['name']:24} {tool['description']}"
        for tool in tools
    )
    return "\n".join(lines)


# --- search ---------------------------------------------------------------------------------------


def _add_search_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "query", nargs="+", metavar="QUERY", help="name or keywords, such as: free disk space"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"maximum number of hits (default: {DEFAULT_LIMIT})",
    )


async def _search(command: Invocation) -> None:
    query = " ".join(command.options.query)
    arguments = {"query": query, "limit": command.options.limit}
    await show_result(command, "ot.search", arguments, "searching", partial(_render_search, query))


def _check_search(options: Namespace) -> None:
    if not " ".join(options.query).strip():
        options.usage_error(
            "the query is empty: describe what you need, such as: onetool search free disk space"
        )
    if options.limit < 1:
        options.usage_error(f"invalid limit {options.limit} (expected 1 or more)")


def _render_search(query: str, hits: list[JsonObject]) -> str:
    if not hits:
        return f"Nothing matches {quote(query)}. Run `onetool tools` to list all tools."
    names = [f"${hit['name']}" if hit["kind"] == "snippet" else str(hit["name"]) for hit in hits]
    return "\n".join(
        f"{name:24} {hit['description']}" for name, hit in zip(names, hits, strict=True)
    )


# --- help -----------------------------------------------------------------------------------------


def _add_help_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "query",
        nargs="*",
        metavar="QUERY",
        help="name of a tool, pack or alias, or search words; an overview by default",
    )


async def _show_help(command: Invocation) -> None:
    arguments = {"query": " ".join(command.options.query)}
    await show_result(command, "ot.help", arguments, "searching for help", str)


# --- tools of the `ot` pack -------------------------------------------------------------------------


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


COMMANDS = {
    "tools": Command(
        "List all tools, or those whose name contains PATTERN; enable or disable a tool or a pack.",
        _add_tools_arguments,
        execute=_list_or_switch,
    ),
    "search": Command(
        "Search for tools, packs, snippets and aliases by name, misspelled name or purpose.",
        _add_search_arguments,
        check=_check_search,
        execute=_search,
    ),
    "help": Command(
        "Show help for a tool, a pack or an alias, or search for tools.",
        _add_help_arguments,
        execute=_show_help,
    ),
}
