"""Show agents and what they may call, and change their settings."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.invocation import Invocation
from onetool.cli.options import Actions, add_edit_options
from onetool.errors import ArgumentError, ToolError
from onetool.util.text import quote
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.admin.agents import AgentInfo

EXIT_STATUS = {"allow": 0, "ask": 3, "deny": 1}


def add_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add("list", _list, "List agents and their permissions")
    check = actions.add("check", _check, "Show whether an agent may make a call, without making it")
    change = actions.add("set", _set, "Create an agent, or change its settings")
    remove = actions.add("remove", _remove, "Remove an agent from the settings")
    check.add_argument(
        "call", metavar="CALL", help="the call as code, such as 'fs.read(path=\"a.txt\")'"
    )
    check.add_argument(
        "--agent", default="default", metavar="NAME", help="name of the agent (default: default)"
    )
    change.add_argument("name", metavar="NAME", help="name of the agent")
    change.add_argument(
        "values",
        nargs="+",
        metavar="KEY=VALUE",
        help=(
            "setting and value, such as 'permissions=[read, network]', budgets.calls=100 or"
            " tools=null to unset it"
        ),
    )
    remove.add_argument("name", metavar="NAME", help="name of the agent")
    add_edit_options(change, chooses_file=True)
    add_edit_options(remove)


def check(options: Namespace) -> None:
    if options.action == "check":
        from onetool.admin.permission_check import parse_call

        try:
            parse_call(options.call)
        except ArgumentError as error:
            options.usage_error(error.message)


async def _list(command: Invocation) -> None:
    from onetool.admin.agents import get_agent, list_agents

    agents = (await command.do(list_agents)).agents
    details = [await command.do(get_agent, agent.name) for agent in agents]
    command.show(
        {"agents": [{"name": agent.name, **agent.effective} for agent in details]},
        map(_render, agents),
    )


def _render(agent: "AgentInfo") -> str:
    tools = "all tools" if agent.tools is None else f"tools {', '.join(agent.tools) or 'none'}"
    hosts = "" if agent.hosts is None else f", hosts {', '.join(agent.hosts) or 'none'}"
    policy = agent.policy if isinstance(agent.policy, str) else f"{len(agent.policy)} rules"
    return (
        f"{agent.name}  [{', '.join(sorted(agent.permissions))}], {tools}{hosts}, policy {policy}"
    )


async def _check(command: Invocation) -> int:
    from onetool.admin.agents import CallCheck, check_call

    agent = command.options.agent
    verdict = await command.do(check_call, agent, CallCheck.parse({"call": command.options.call}))
    data = verdict.model_dump(include={"decision", "reason", "tool", "effects", "note"})
    details = (f"{name}: {data[name]}" for name in ("tool", "effects", "note") if data[name])
    command.show({**data, "agent": agent}, [f"{verdict.decision}: {verdict.reason}", *details])
    return EXIT_STATUS[verdict.decision]


async def _set(command: Invocation) -> None:
    from onetool.admin.agents import change_agent
    from onetool.admin.settings_edits import SettingsPatch

    patch = SettingsPatch(settings=_read_patch(command.options.values))
    query = command.edit_query
    edited = await command.do(
        change_agent, command.options.name, query=query, body=patch, directory=command.directory
    )
    command.show_edit(edited)


def _read_patch(texts: list[str]) -> JsonObject:
    """Return a JSON merge patch from values of dotted keys.

    Values are YAML, as in the settings file.
    """
    from onetool.util import yaml_loader

    patch: JsonObject = {}
    for text in texts:
        key, equals, value = text.partition("=")
        *parents, last = key.split(".")
        if not equals or not all([*parents, last]):
            raise ToolError(
                f"invalid setting {quote(text)}: expected KEY=VALUE, such as policy=read-only"
            )
        inner = patch
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = yaml_loader.read(value, key).data if value.strip() else ""
    return patch


async def _remove(command: Invocation) -> None:
    from onetool.admin.agents import remove_agent

    edited = await command.do(remove_agent, command.options.name, command.edit_query)
    command.show_edit(edited)
