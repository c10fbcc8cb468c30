"""Tells whether an agent may make a call, with the code that decides about real calls.

No call is made.
"""

import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from pydantic import Field

from onetool.admin.model import ApiModel
from onetool.app import OneTool
from onetool.core.agents import DEFAULT, authorize, choose_account, required_permissions
from onetool.core.bus.bind import NO_ARGUMENTS, bind
from onetool.core.names import python_name
from onetool.core.policy.effects import SessionLabels, describe_effects
from onetool.core.policy.rules import Choice, Policy
from onetool.core.tool import Tool
from onetool.errors import ArgumentError, ToolError
from onetool.net import HostRules
from onetool.settings.access import Agent
from onetool.util.context import Caller, Permission
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

EXPECTED = "expected a call with literal arguments, such as fs.read(path='a.txt')"
LATER = "asked as soon as the session has received private and untrusted data"
NO_RULE = "no rule of its policy matches"
MAX_REASON_CHARS = 1_000  # a message may list all tools of the agent
UNLIMITED = "its own requests are not limited to the hosts of the agent"
NETWORKED = frozenset({Permission.NETWORK, Permission.EXEC})
REQUEST_TOOLS = frozenset({"http.get", "http.post"})  # built in, with a URL as an argument


class CallText(NamedTuple):
    """A call whose arguments are literals."""

    name: str
    positional: list[Any]
    keywords: JsonObject


class ToolVerdict(ApiModel):
    tool: str
    decision: Choice
    reason: str
    effects: str
    varies: bool = Field(description="Whether some arguments lead to another decision")
    note: str = Field(
        default="",
        description="Whether the hosts of the agent do not limit the tool; empty if they do",
    )


def parse_call(text: str) -> CallText:
    """Parse a call such as `fs.read(path="a.txt")`. Nothing is executed."""
    try:
        match ast.parse(text.strip(), mode="eval").body:
            case ast.Call(
                func=ast.Name() | ast.Attribute() as function, args=args, keywords=keywords
            ):
                named = {
                    each.arg: ast.literal_eval(each.value)
                    for each in keywords
                    if each.arg is not None
                }
                if len(named) == len(keywords):
                    return CallText(
                        ast.unparse(function), [ast.literal_eval(each) for each in args], named
                    )
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass
    raise ArgumentError(f"invalid call {quote(text)}: {EXPECTED}")


class PermissionCheck:
    """The decisions about the calls of an agent with these settings, which may be a draft."""

    def __init__(self, app: OneTool, name: str, agent: Agent) -> None:
        self._app = app
        opened = name if name in app.settings.agents else DEFAULT
        self._context = replace(
            app.runs.open_context(Caller(opened, is_owner=True)),
            agent_id=name,
            permissions=agent.permissions,
            tools=agent.tools,
            hosts=agent.hosts,
            agent_config=agent.tool_config,
        )
        self._policy = Policy.from_settings(agent)

    async def check_call(self, call: CallText) -> ToolVerdict:
        """Return the decision about a call."""
        await self._app.discover({python_name(call.name).partition(".")[0]})
        tool = await self._app.bus.resolve(call.name)
        configured = self._context.agent_config.get(tool.name, NO_ARGUMENTS)
        args = tool.input.check(dict(bind(tool, call.positional, call.keywords, configured)))
        return self._decide(tool, args)

    def list_tools(self, word: str = "") -> Iterator[ToolVerdict]:
        """Yield the decision about each tool whose name contains the word, without arguments,
        sorted by name.

        Blocks on disk access.
        """
        registry = self._app.registry
        word = word.casefold()
        for entry in registry.entries():
            if word in entry.name.casefold() and (tool := registry.get(entry.name)) is not None:
                varies = bool(tool.argument_permissions) or self._policy.depends_on_arguments(tool)
                varies = varies or _is_request_tool(tool)
                yield self._decide(tool, NO_ARGUMENTS, varies=varies)

    def _decide(self, tool: Tool, args: JsonMapping, *, varies: bool = False) -> ToolVerdict:
        make_verdict = partial(
            ToolVerdict, tool=tool.name, effects=describe_effects(tool, args), varies=varies
        )
        try:
            authorize(tool, args, self._context)
            account = choose_account(tool, self._context).account
            urls = _list_urls(tool, args)
            for rules in (self._app.net.rules, *HostRules.for_agent(self._context)):
                for url in urls or ():
                    rules.check(url)
        except ToolError as error:
            return make_verdict(decision="deny", reason=error.message[:MAX_REASON_CHARS])
        decision, reason = self._policy.decide(tool, args, SessionLabels(), account)
        if self._policy.decide(tool, args, account=account).decision != decision:
            reason = LATER
        is_limited = urls is not None or self._context.hosts is None
        note = "" if is_limited or not NETWORKED & required_permissions(tool, args) else UNLIMITED
        return make_verdict(decision=decision, reason=reason or NO_RULE, note=note)


def _list_urls(tool: Tool, args: JsonMapping) -> list[str] | None:
    """Return the URLs that a call requests, without redirects.

    None for tools whose requests OneTool does not send.
    """
    if _is_request_tool(tool):
        return [str(args["url"])] if "url" in args else []
    list_origins = getattr(tool.backend, "list_origins", None)
    return None if list_origins is None else list_origins()


def _is_request_tool(tool: Tool) -> bool:
    return tool.name in REQUEST_TOOLS and tool.source == "local" and not tool.file
