"""Agents: their settings, and what they may call."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import action
from onetool.admin.errors import AdminError
from onetool.admin.model import ApiModel, Count, Query, Size
from onetool.admin.permission_check import PermissionCheck, ToolVerdict, parse_call
from onetool.admin.person import Person
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
from onetool.admin.tool_refresh import refresh_tools
from onetool.app import OneTool
from onetool.settings.access import Agent
from onetool.settings.planned_edit import ItemChange
from onetool.settings.settings_editor import AGENTS
from onetool.settings.settings_reader import validate_settings
from onetool.util.context import sort_permissions
from onetool.util.token_ids import ADMIN, USE
from onetool_child.json_types import JsonMapping, JsonObject

MAX_CHECKED_TOOLS = 20_000
DECISIONS = ("allow", "ask", "deny")


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
    "GET /api/agents",
    "The agents that the caller may see",
    USE,
    "reading agents",
)
async def list_agents(app: OneTool, person: Person) -> AgentList:
    """List agents and their permissions."""
    names = _list_visible(app, person)
    entries = await find_entries(app, AGENTS, names)
    agents = [AgentInfo(**_describe(app, person, name, entries[name])) for name in names]
    return AgentList(agents=agents, settings=list(Agent.model_fields))


@action(
    "GET /api/agents/{name}",
    "The agent",
    USE,
    "reading agents",
)
async def get_agent(app: OneTool, person: Person, name: str) -> AgentDetails:
    """Get an agent."""
    _require(app, person, name)
    entries = await find_entries(app, AGENTS, [name])
    return AgentDetails(
        **_describe(app, person, name, entries[name]), effective=_get_effective(app, name)
    )


@action(
    "PATCH /api/agents/{name}",
    "The change",
    ADMIN,
    "changing agents",
)
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


@action(
    "DELETE /api/agents/{name}",
    "The change",
    ADMIN,
    "removing agents",
)
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
    USE,
    "reading agents",
)
async def list_agent_tools(
    app: OneTool, person: Person, name: str, query: AgentToolsQuery
) -> AgentTools:
    """List what an agent may call."""
    return await _list_tools(app, await _open_check(app, person, name, None), query)


@action(
    "POST /api/agents/{name}/tools",
    "The tools and the decisions about them",
    USE,
    "reading agents",
)
async def preview_agent_tools(
    app: OneTool, person: Person, name: str, query: AgentToolsQuery, body: AgentDraft
) -> AgentTools:
    """List what an agent could call with other settings."""
    return await _list_tools(app, await _open_check(app, person, name, body.settings), query)


@action(
    "POST /api/agents/{name}/check",
    "The decision",
    USE,
    "reading agents",
)
async def check_call(app: OneTool, person: Person, name: str, body: CallCheck) -> ToolVerdict:
    """Check whether an agent may make a call."""
    check = await _open_check(app, person, name, body.settings)
    return await check.check_call(parse_call(body.call))


async def _open_check(
    app: OneTool, person: Person, name: str, draft: JsonMapping | None
) -> PermissionCheck:
    """Return a check with other settings of the agent, which may be large; without them, with its
    own.
    """
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
    """Return all settings of an agent as they are written: a reference may be an environment
    variable's value.
    """
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
