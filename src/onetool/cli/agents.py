"""Show agents and what they may call, and change their settings."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.app_runner import check_settings
from onetool.cli.identity import identify_owner
from onetool.cli.options import add_actions, add_json
from onetool.cli.settings_edits import add_edit_options, choose_directory, print_edit, read_query
from onetool.cli.terminal import CommandOutput
from onetool.errors import ArgumentError, ToolError
from onetool.util.text import quote
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.admin.agents import AgentInfo
    from onetool.app import OneTool

EXIT_STATUS = {"allow": 0, "ask": 3, "deny": 1}


def add_arguments(parser: ArgumentParser) -> None:
    listing, check, change, remove = add_actions(
        parser,
        {
            "list": "List agents and their permissions",
            "check": "Show whether an agent may make a call, without making it",
            "set": "Create an agent, or change its settings",
            "remove": "Remove an agent from the settings",
        },
    )
    check.add_argument("call", metavar="CALL", help="the call as code, such as 'fs.read(path=\"a.txt\")'")
    check.add_argument("--agent", default="default", metavar="NAME", help="name of the agent (default: default)")
    add_json(listing, check)
    change.add_argument("name", metavar="NAME", help="name of the agent")
    change.add_argument(
        "values",
        nargs="+",
        metavar="KEY=VALUE",
        help="setting and value, such as 'permissions=[read, network]', budgets.calls=100 or tools=null to unset it",
    )
    remove.add_argument("name", metavar="NAME", help="name of the agent")
    add_edit_options(change, chooses_file=True)
    add_edit_options(remove)


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    check_settings(app, output)
    actions = {"list": _list, "check": _check, "set": _set, "remove": _remove}
    return await actions[options.action](app, options, output)


async def _list(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    from onetool.admin.agents import get_agent, list_agents

    person = identify_owner()
    agents = (await list_agents(app, person)).agents
    if options.json:
        details = [await get_agent(app, person, agent.name) for agent in agents]
        output.write_json({"agents": [{"name": agent.name, **agent.effective} for agent in details]})
    else:
        output.write_lines(map(_render, agents))
    return 0


def _render(agent: "AgentInfo") -> str:
    tools = "all tools" if agent.tools is None else f"tools {', '.join(agent.tools) or 'none'}"
    hosts = "" if agent.hosts is None else f", hosts {', '.join(agent.hosts) or 'none'}"
    policy = agent.policy if isinstance(agent.policy, str) else f"{len(agent.policy)} rules"
    return f"{agent.name}  [{', '.join(sorted(agent.permissions))}], {tools}{hosts}, policy {policy}"


async def _check(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    from onetool.admin.agents import CallCheck, check_call
    from onetool.admin.permission_check import parse_call

    try:
        parse_call(options.call)
    except ArgumentError as error:
        options.usage_error(error.message)
    verdict = await check_call(app, identify_owner(), options.agent, CallCheck.parse({"call": options.call}))
    fields = ("tool", "effects", "note")
    if options.json:
        decision = verdict.model_dump(include={"decision", "reason", *fields})
        output.write_json(app.redact.redact_data({**decision, "agent": options.agent}))
    else:
        details = [f"{name}: {getattr(verdict, name)}" for name in fields if getattr(verdict, name)]
        output.write(app.redact("\n".join([f"{verdict.decision}: {verdict.reason}", *details, ""])))
    return EXIT_STATUS[verdict.decision]


async def _set(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    from onetool.admin.agents import change_agent
    from onetool.admin.settings_edits import SettingsPatch

    patch = SettingsPatch(settings=_read_patch(options.values))
    directory = choose_directory(app, options)
    edited = await change_agent(
        app, identify_owner(), options.name, query=read_query(options), body=patch, directory=directory
    )
    print_edit(app, options, output, edited)
    return 0


def _read_patch(texts: list[str]) -> JsonObject:
    """Return a JSON merge patch from values of dotted keys. Values are YAML, as in the settings file."""
    from onetool.util import yaml_loader

    patch: JsonObject = {}
    for text in texts:
        key, equals, value = text.partition("=")
        *parents, last = key.split(".")
        if not equals or not all([*parents, last]):
            raise ToolError(f"invalid setting {quote(text)}: expected KEY=VALUE, such as policy=read-only")
        inner = patch
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = yaml_loader.read(value, key).data if value.strip() else ""
    return patch


async def _remove(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    from onetool.admin.agents import remove_agent

    print_edit(app, options, output, await remove_agent(app, identify_owner(), options.name, read_query(options)))
    return 0
