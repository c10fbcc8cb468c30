"""Show agents and what they may call, and change their settings."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.admin.permission_check import PermissionCheck, parse_call
from onetool.cli.app_runner import run_with_settings
from onetool.cli.options import add_actions, add_json, print_json
from onetool.cli.settings_changes import SettingsCommand, add_edit_options
from onetool.core.render import render
from onetool.errors import ArgumentError, ToolError
from onetool.util.text import quote
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.config.model import Agent
    from onetool.editing.planned_edit import PlannedEdit
    from onetool.editing.settings_editor import SettingsEditor

EXIT_STATUS = {"allow": 0, "ask": 3, "deny": 1}
SECTION = "agents"


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
    add_json(listing)
    check.add_argument("call", metavar="CALL", help="the call as code, such as 'fs.read(path=\"a.txt\")'")
    check.add_argument("--agent", default="default", metavar="NAME", help="name of the agent (default: default)")
    add_json(check)
    change.add_argument("name", metavar="NAME", help="name of the agent")
    change.add_argument(
        "values",
        nargs="+",
        metavar="KEY=VALUE",
        help="setting and value, such as 'permissions=[read, network]', budgets.calls=100 or tools=null to unset it",
    )
    remove.add_argument("name", metavar="NAME", help="name of the agent")
    for action in (change, remove):
        add_edit_options(action, chooses_file=True)


def main(options: Namespace) -> int:
    if options.action == "check":
        return _check(options)
    with SettingsCommand(options) as command:
        if options.action == "list":
            return _list(command, as_json=options.json)
        return _edit(command, options)


# --- reading ---------------------------------------------------------------------------------------------------------


def _list(command: SettingsCommand, *, as_json: bool) -> int:
    agents = command.loaded.settings.agents
    if as_json:
        print_json({"agents": [_describe(name, agent) for name, agent in agents.items()]})
        return 0
    for name, agent in agents.items():
        tools = "all tools" if agent.tools is None else f"tools {', '.join(agent.tools) or 'none'}"
        hosts = "" if agent.hosts is None else f", hosts {', '.join(agent.hosts) or 'none'}"
        policy = agent.policy if isinstance(agent.policy, str) else f"{len(agent.policy)} rules"
        print(f"{name}  [{', '.join(sorted(agent.permissions))}], {tools}{hosts}, policy {policy}")
    return 0


def _describe(name: str, agent: "Agent") -> JsonObject:
    return {"name": name, **agent.model_dump(mode="json", exclude_none=True)}


def _check(options: Namespace) -> int:
    try:
        call = parse_call(options.call)
    except ArgumentError as error:
        options.usage_error(error.message)
        raise AssertionError from None

    async def check(app: "OneTool") -> int:
        verdict = await PermissionCheck(app, options.agent).check_call(call)
        decision = {"decision": verdict.decision, "reason": verdict.reason, "tool": verdict.tool}
        decision |= {"effects": verdict.effects, "note": verdict.note, "agent": options.agent}
        if options.json:
            print(app.redact(render(decision, "json")))
        else:
            details = [f"{name}: {decision[name]}" for name in ("tool", "effects", "note") if decision[name]]
            print(app.redact("\n".join([f"{verdict.decision}: {verdict.reason}", *details])))
        return EXIT_STATUS[verdict.decision]

    return run_with_settings(options, check)


# --- editing ---------------------------------------------------------------------------------------------------------


def _edit(command: SettingsCommand, options: Namespace) -> int:
    from onetool.editing.planned_edit import ItemChange

    def plan(editor: "SettingsEditor") -> "PlannedEdit":
        item = editor.find(SECTION, options.name, command.directory)
        if options.action == "remove":
            if item.value is None:
                known = ", ".join(command.loaded.settings.agents)
                raise ToolError(f"no agent named {quote(options.name)} in the settings", hint=f"agents: {known}")
            values = None
        else:
            values = dict(item.value or {})
            for text in options.values:
                _set_value(values, text)
        change = ItemChange(SECTION, options.name, values)
        return editor.plan(f"agents.{options.action}", [change], directory=command.directory)

    return command.edit(plan)


def _set_value(values: JsonObject, text: str) -> None:
    """Set the value of a dotted key; null removes it. Values are YAML, as in the settings file."""
    from onetool.util import yaml_loader

    key, equals, value = text.partition("=")
    *parents, last = key.split(".")
    if not equals or not all([*parents, last]):
        raise ToolError(f"invalid setting {quote(text)}: expected KEY=VALUE, such as policy=read-only")
    for parent in parents:
        inside = values.get(parent)
        values[parent] = dict(inside) if isinstance(inside, dict) else {}
        values = values[parent]
    data = yaml_loader.read(value, key).data if value.strip() else ""
    if data is None:
        values.pop(last, None)
    else:
        values[last] = data
