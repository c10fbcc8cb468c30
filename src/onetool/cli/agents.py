"""Check what an agent may call."""

import argparse
import ast
from typing import TYPE_CHECKING, Any, NamedTuple

from onetool.bus.authorize import authorize, choose_account
from onetool.bus.bind import NO_ARGUMENTS, bind
from onetool.cli.app_runner import run_with_settings
from onetool.errors import ToolError
from onetool.policy.effects import describe_effects
from onetool.policy.labels import SessionLabels
from onetool.policy.rules import Policy
from onetool.registry import python_name
from onetool.render import render
from onetool.util.text import quote

if TYPE_CHECKING:
    from onetool.app import OneTool

EXIT_STATUS = {"allow": 0, "ask": 3, "deny": 1}


class _CallText(NamedTuple):
    name: str
    positional: list[Any]
    keywords: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = commands.add_parser("check", help="Show whether an agent may make a call, without making it")
    check.add_argument("call", metavar="CALL", help="the call as code, such as 'fs.read(path=\"a.txt\")'")
    check.add_argument("--agent", default="default", metavar="NAME", help="name of the agent (default: default)")
    check.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    call = _parse(options)

    async def check(app: "OneTool") -> int:
        found = await _decide(app, call, options.agent)
        if options.json:
            print(app.redact(render(found, "json")))
        else:
            details = [f"{name}: {found[name]}" for name in ("tool", "effects") if name in found]
            print(app.redact("\n".join([f"{found['decision']}: {found['reason']}", *details])))
        return EXIT_STATUS[found["decision"]]

    return run_with_settings(options, check)


async def _decide(app: "OneTool", call: _CallText, agent: str) -> dict[str, str]:
    await app.discover({python_name(call.name).partition(".")[0]})
    context = app.context(agent, is_owner=True, client="cli")
    tool = await app.bus.resolve(call.name)
    configured = context.agent_config.get(tool.name, NO_ARGUMENTS)
    args = tool.input.check(dict(bind(tool, call.positional, call.keywords, configured)))
    facts = {"tool": tool.name, "effects": describe_effects(tool, args), "agent": agent}
    try:
        authorize(tool, args, context)
    except ToolError as error:
        return {"decision": "deny", "reason": str(error), **facts}
    policy, account = Policy.from_settings(app.settings.agents[agent]), choose_account(tool, context).account
    decision, reason = policy.decide(tool, args, SessionLabels(), account)
    if policy.decide(tool, args, account=account).decision != decision:
        reason = "asked as soon as the session has received private and untrusted data"
    return {"decision": decision, "reason": reason or "no rule of its policy matches", **facts}


def _parse(options: argparse.Namespace) -> _CallText:
    """Parse a call whose arguments are literals."""
    try:
        match ast.parse(options.call.strip(), mode="eval").body:
            case ast.Call(func=ast.Name() | ast.Attribute() as function, args=args, keywords=keywords):
                named = {each.arg: ast.literal_eval(each.value) for each in keywords if each.arg is not None}
                if len(named) == len(keywords):
                    return _CallText(ast.unparse(function), [ast.literal_eval(each) for each in args], named)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass
    expected = "expected a call with literal arguments, such as fs.read(path='a.txt')"
    options.usage_error(f"invalid call {quote(options.call)}: {expected}")
    raise AssertionError
