"""Agents: their settings, and what they may call with the rule that decides."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import Person, action
from onetool.admin.catalog import refresh_tools
from onetool.admin.model import AdminError, ApiModel, Count, Query, Size
from onetool.admin.precondition import NO_CONDITION, Precondition
from onetool.admin.settings_edits import (
    EditQuery,
    EditResult,
    SettingsEntry,
    SettingsPatch,
    SettingsValues,
    edit_entry,
    find_entries,
    mask,
    merge_patch,
)
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
from onetool.settings.planned_edit import ItemChange
from onetool.settings.settings_editor import AGENTS
from onetool.settings.settings_reader import validate_settings
from onetool.util.context import Caller, Permission, sort_permissions
from onetool.util.text import quote
from onetool.util.token_ids import ADMIN, USE
from onetool_child.json_types import JsonMapping, JsonObject

MAX_CHECKED_TOOLS = 20_000
DECISIONS = ("allow", "ask", "deny")
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
                    argument.arg: ast.literal_eval(argument.value)
                    for argument in keywords
                    if argument.arg is not None
                }
                if len(named) == len(keywords):
                    return CallText(
                        ast.unparse(function),
                        [ast.literal_eval(argument) for argument in args],
                        named,
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
        """Yield the decision about each tool whose name contains the word, sorted by name.

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


class AgentInfo(ApiModel):
    name: str
    permissions: list[str] = Field(description="Permissions in effect")
    tools: list[str] | None = Field(description="Tools that it may call; null for all")
    hosts: list[str] | None = Field(
        description="Hosts that its HTTP tools may reach; null for all allowed hosts"
    )
    policy: Any = Field(description="Name of the policy, or its rules")
    is_own: bool = Field(description="Whether it is the agent of the caller")
    entry: SettingsEntry


class AgentList(ApiModel):
    agents: list[AgentInfo]
    settings: list[str] = Field(description="Keys of the settings that an agent can have")


class AgentDetails(AgentInfo):
    effective: SettingsValues = Field(description="All settings in effect, with defaults")

    @property
    def etag(self) -> str | None:
        return self.entry.etag


class AgentToolsQuery(Query):
    q: str = Field(default="", description="Only tools whose names contain this text")
    decision: str = Field(
        default="", description="Only tools with this decision: `allow`, `ask` or `deny`"
    )
    page_size: Size = Field(default=100, description="Maximum number of tools")


class AgentDraft(ApiModel):
    """Settings of an agent that were not saved yet; without them, those in effect are used."""

    settings: SettingsValues | None = Field(
        default=None, description="Settings, as under `agents` in onetool.yaml"
    )


class CallCheck(AgentDraft):
    call: Annotated[str, Field(max_length=5_000)] = Field(
        description="A call such as `fs.read(path='a.txt')`"
    )


class AgentTools(ApiModel):
    """The decisions about tools, without arguments."""

    counts: dict[str, Count] = Field(
        description="Number of tools by decision, before the filter by decision"
    )
    tools: list[ToolVerdict]
    total: Count = Field(description="Number of tools that match")
    is_complete: bool = Field(
        description="Whether all tools were checked; if not, use a longer `q`"
    )


@action(
    "GET /api/agents", "The agents that the caller may see", needs=USE, purpose="reading agents"
)
async def list_agents(app: OneTool, person: Person) -> AgentList:
    """List agents and their permissions."""
    names = _list_visible(app, person)
    entries = await find_entries(app, AGENTS, names)
    agents = [AgentInfo(**_describe(app, person, name, entries[name])) for name in names]
    return AgentList(agents=agents, settings=list(Agent.model_fields))


@action("GET /api/agents/{name}", "The agent", needs=USE, purpose="reading agents")
async def get_agent(app: OneTool, person: Person, name: str) -> AgentDetails:
    """Get an agent."""
    _require(app, person, name)
    entries = await find_entries(app, AGENTS, [name])
    return AgentDetails(
        **_describe(app, person, name, entries[name]), effective=_get_effective(app, name)
    )


@action("PATCH /api/agents/{name}", "The change", needs=ADMIN, purpose="changing agents")
async def change_agent(
    app: OneTool,
    person: Person,
    name: str,
    *,
    query: EditQuery,
    body: SettingsPatch,
    precondition: Precondition = NO_CONDITION,
    directory: Path | None = None,
) -> EditResult:
    """Create an agent or change its settings."""
    kind = "agents.set" if name in app.settings.agents else "agents.add"
    change = ItemChange(AGENTS, name, body.settings)
    return await edit_entry(
        app, person, kind, change, query, precondition=precondition, directory=directory
    )


@action("DELETE /api/agents/{name}", "The change", needs=ADMIN, purpose="removing agents")
async def remove_agent(
    app: OneTool,
    person: Person,
    name: str,
    query: EditQuery,
    precondition: Precondition = NO_CONDITION,
) -> EditResult:
    """Remove an agent."""
    _require(app, person, name)
    change = ItemChange(AGENTS, name, None)
    return await edit_entry(app, person, "agents.remove", change, query, precondition=precondition)


# --- what an agent may call -----------------------------------------------------------------------


@action(
    "GET /api/agents/{name}/tools",
    "The tools and the decisions about them",
    needs=USE,
    purpose="reading agents",
)
async def list_agent_tools(
    app: OneTool, person: Person, name: str, query: AgentToolsQuery
) -> AgentTools:
    """List what an agent may call."""
    return await _list_tools(app, await _open_check(app, person, name, None), query)


@action(
    "POST /api/agents/{name}/tools",
    "The tools and the decisions about them",
    needs=USE,
    purpose="reading agents",
)
async def preview_agent_tools(
    app: OneTool, person: Person, name: str, query: AgentToolsQuery, body: AgentDraft
) -> AgentTools:
    """List what an agent could call with other settings."""
    return await _list_tools(app, await _open_check(app, person, name, body.settings), query)


@action("POST /api/agents/{name}/check", "The decision", needs=USE, purpose="reading agents")
async def check_call(app: OneTool, person: Person, name: str, body: CallCheck) -> ToolVerdict:
    """Check whether an agent may make a call."""
    check = await _open_check(app, person, name, body.settings)
    return await check.check_call(parse_call(body.call))


async def _open_check(
    app: OneTool, person: Person, name: str, draft: JsonMapping | None
) -> PermissionCheck:
    """Return a check with the agent's own settings, or with other ones that may be large."""
    if draft is None:
        _require(app, person, name)
        return PermissionCheck(app, name, app.settings.agents[name])
    person.require(ADMIN, "checking a draft")
    settings = await run_in_thread(validate_settings, {"agents": {name: draft}})
    return PermissionCheck(app, name, settings.agents[name])


async def _list_tools(app: OneTool, check: PermissionCheck, query: AgentToolsQuery) -> AgentTools:
    if query.decision not in {"", *DECISIONS}:
        raise AdminError(
            "invalid", f"decision: {query.decision!r} is not one of {', '.join(DECISIONS)}"
        )
    await refresh_tools(app)
    return await run_in_thread(lambda: _select(check.list_tools(query.q), query))


def _select(verdicts: Iterator[ToolVerdict], query: AgentToolsQuery) -> AgentTools:
    """Return the first matching tools, and count them, up to a limit that a request can afford."""
    checked = list(islice(verdicts, MAX_CHECKED_TOOLS + 1))
    matching = checked[:MAX_CHECKED_TOOLS]
    selected = [verdict for verdict in matching if query.decision in {"", verdict.decision}]
    return AgentTools(
        counts=Counter[str](verdict.decision for verdict in matching),
        tools=selected[: query.page_size],
        total=len(selected),
        is_complete=len(checked) <= MAX_CHECKED_TOOLS,
    )


# --- reading --------------------------------------------------------------------------------------


def _list_visible(app: OneTool, person: Person) -> list[str]:
    return [name for name in app.settings.agents if person.visible_agent in {None, name}]


def _require(app: OneTool, person: Person, name: str) -> None:
    """Raise if the agent does not exist, or if the person may not see it."""
    visible = _list_visible(app, person)
    if name not in visible:
        raise AdminError(
            "not_found",
            f"no agent named {name!r}",
            {"name": name},
            hint=f"agents: {', '.join(visible)}",
        )


def _get_effective(app: OneTool, name: str) -> JsonObject:
    """Return all agent settings as written, without values of environment variables."""
    agent = app.settings.agents[name]
    values: JsonObject = agent.model_dump(mode="json", exclude_none=True)
    values["permissions"] = sort_permissions(agent.permissions)
    if not isinstance(agent.policy, str):
        values["policy"] = [
            rule.model_dump(mode="json", exclude_defaults=True) for rule in agent.policy
        ]
    written = app.live_settings.loaded.agents.get(name) or {}
    return {**values, **mask(app, merge_patch(values, written))}


def _describe(app: OneTool, person: Person, name: str, entry: SettingsEntry) -> JsonObject:
    """Return the fields of an `AgentInfo`."""
    effective = _get_effective(app, name)
    return {
        "name": name,
        "permissions": sort_permissions(app.settings.agents[name].permissions),
        "tools": effective.get("tools"),
        "hosts": effective.get("hosts"),
        "policy": effective["policy"],
        "is_own": name == person.agent,
        "entry": entry,
    }
