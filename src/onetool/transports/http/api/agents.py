"""`/api/agents`: agents, their settings, and what they may call."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.permission_check import PermissionCheck, Verdict, parse_call
from onetool.admin.tool_refresh import refresh_tools
from onetool.config.model import Agent
from onetool.config.settings_reader import validate_settings
from onetool.core.context import sort_permissions
from onetool.editing.planned_edit import ItemChange, PlannedEdit, SettingsItem
from onetool.editing.settings_editor import AGENTS, SettingsEditor
from onetool.errors import ToolError
from onetool.transports.http import identity
from onetool.transports.http.admin_models import (
    AgentDetails,
    AgentDraft,
    AgentInfo,
    AgentList,
    AgentTools,
    AgentToolsQuery,
    CallCheck,
    EditQuery,
    EditResult,
    SettingsPatch,
    ToolVerdict,
)
from onetool.transports.http.api.common import Api
from onetool.transports.http.api.settings_edits import EDIT_ERRORS, SettingsEdits, check_precondition, merge_patch
from onetool.transports.http.errors import ApiError
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import Operation, ResponseSpec, read_query
from onetool_child.json_types import JsonMapping, JsonObject

ROOT = "/api/agents"
MANAGE = "admin"
MAX_CHECKED_TOOLS = 20_000


class AgentHandlers:
    def __init__(self, api: Api, edits: SettingsEdits) -> None:
        self._api = api
        self._edits = edits

    def operations(self) -> Iterator[Operation]:
        one = f"{ROOT}/{{name}}"
        missing = ("not_found",)
        listed = {200: ResponseSpec("The agents that the caller may see", AgentList)}
        yield Operation("GET", ROOT, self.list_agents, "List agents and their permissions", listed)
        details = {200: ResponseSpec("The agent", AgentDetails)}
        edited = {200: ResponseSpec("The change", EditResult)}
        yield Operation("GET", one, self.show, "Get an agent", details, errors=missing)
        options = {"errors": (*EDIT_ERRORS, "read_only"), "is_conditional": True}
        summary = "Create an agent or change its settings"
        yield Operation("PATCH", one, self.change, summary, edited, EditQuery, SettingsPatch, **options)  # type: ignore[arg-type]
        yield Operation("DELETE", one, self.remove, "Remove an agent", edited, EditQuery, **options)  # type: ignore[arg-type]
        tools = {200: ResponseSpec("The tools and the decisions about them", AgentTools)}
        summary = "List what an agent may call"
        query = AgentToolsQuery
        path = f"{one}/tools"
        yield Operation("GET", path, self.list_tools, summary, tools, query, errors=missing)
        summary = "List what an agent could call with other settings"
        yield Operation("POST", path, self.preview_tools, summary, tools, query, AgentDraft, errors=missing)
        checked = {200: ResponseSpec("The decision", ToolVerdict)}
        summary = "Check whether an agent may make a call"
        yield Operation("POST", f"{one}/check", self.check, summary, checked, body=CallCheck, errors=missing)

    # --- reading --------------------------------------------------------------------------------------------------

    async def list_agents(self, request: Request) -> Response:
        visible = _require_visible(request)
        names = [name for name in self._api.app.settings.agents if visible in {None, name}]
        items = await self._api.run_in_thread(lambda: {name: self._edits.find(AGENTS, name) for name in names})
        agents = [AgentInfo(**self._describe(request, name, item)) for name, item in items.items()]
        return self._api.respond(AgentList(agents=agents, settings=list(Agent.model_fields)))

    async def show(self, request: Request) -> Response:
        name = self._name(request)
        item = await self._api.run_in_thread(lambda: self._edits.find(AGENTS, name))
        details = AgentDetails(**self._describe(request, name, item), effective=self._get_effective(name))
        return json_response(self._api.to_json(details), headers={"etag": item.etag} if item.etag else None)

    def _get_effective(self, name: str) -> JsonObject:
        """Return all settings of an agent as they are written: a reference may be an environment variable's value."""
        app = self._api.app
        values = _to_values(app.settings.agents[name])
        written = app.live_settings.loaded.agents.get(name) or {}
        return {**values, **self._edits.mask(merge_patch(values, written))}

    def _describe(self, request: Request, name: str, item: SettingsItem) -> JsonObject:
        effective = self._get_effective(name)
        return {
            "name": name,
            "permissions": sort_permissions(self._api.app.settings.agents[name].permissions),
            "tools": effective.get("tools"),
            "hosts": effective.get("hosts"),
            "policy": effective["policy"],
            "is_own": name == request.scope["state"]["agent"],
            "entry": self._edits.describe(item),
        }

    def _name(self, request: Request) -> str:
        """Return the name of an agent that exists and that the caller may see."""
        name = str(request.path_params["name"])
        visible = _require_visible(request)
        known = self._api.app.settings.agents
        if name not in known or visible not in {None, name}:
            listed = ", ".join(agent for agent in known if visible in {None, agent})
            raise ApiError("not_found", f"no agent named {name!r}", {"name": name}, hint=f"agents: {listed}")
        return name

    # --- what an agent may call -----------------------------------------------------------------------------------

    async def list_tools(self, request: Request) -> Response:
        return await self._list_tools(request, PermissionCheck(self._api.app, self._name(request)))

    async def preview_tools(self, request: Request) -> Response:
        body = await self._api.parse(request, AgentDraft.parse)
        return await self._list_tools(request, await self._check_draft(request, body.settings))

    async def _list_tools(self, request: Request, check: PermissionCheck) -> Response:
        query = read_query(AgentToolsQuery, request)
        if query.decision not in {"", "allow", "ask", "deny"}:
            raise ApiError("invalid", f"decision: {query.decision!r} is not one of allow, ask, deny")
        await refresh_tools(self._api.app)
        return await self._api.run_in_thread(lambda: self._api.respond(_select(check.list_tools(query.q), query)))

    async def check(self, request: Request) -> Response:
        body = await self._api.parse(request, CallCheck.parse)
        check = await self._check_draft(request, body.settings)
        verdict = await check.check_call(parse_call(body.call))
        return self._api.respond(ToolVerdict(**verdict._asdict()))

    async def _check_draft(self, request: Request, draft: JsonMapping | None) -> PermissionCheck:
        """Return a check with other settings of the agent, which may be large; without them, with its own."""
        name = str(request.path_params["name"])
        if draft is None:
            return PermissionCheck(self._api.app, self._name(request))
        identity.get_person(request).require(MANAGE, "checking a draft")
        agents = {"agents": {name: draft}}
        agent: Agent = await self._api.run_in_thread(lambda: validate_settings(agents).agents[name])
        return PermissionCheck(self._api.app, name, agent)

    # --- editing --------------------------------------------------------------------------------------------------

    async def change(self, request: Request) -> Response:
        identity.get_person(request).require(MANAGE, "changing agents")
        body = await self._api.parse(request, SettingsPatch.parse)
        name = str(request.path_params["name"])

        def plan(editor: SettingsEditor) -> PlannedEdit:
            item = editor.find(AGENTS, name)
            check_precondition(request, item)
            action = "agents.add" if name not in self._api.app.settings.agents else "agents.change"
            return editor.plan(action, [ItemChange(AGENTS, name, merge_patch(item.value, body.settings))])

        return self._api.respond(await self._edits.edit(request, plan))

    async def remove(self, request: Request) -> Response:
        identity.get_person(request).require(MANAGE, "removing agents")
        name = self._name(request)

        def plan(editor: SettingsEditor) -> PlannedEdit:
            item = editor.find(AGENTS, name)
            check_precondition(request, item)
            if item.value is None:
                raise ToolError(f"agent {name} is built in", hint="change its permissions instead")
            return editor.plan("agents.remove", [ItemChange(AGENTS, name, None)])

        return self._api.respond(await self._edits.edit(request, plan))


def _require_visible(request: Request) -> str | None:
    """Return the only agent that the caller may see; None for all. Raise for requests without a token or session."""
    identity.get_person(request).require("use", "reading agents")
    return identity.get_person(request).visible_agent


def _to_values(agent: Agent) -> JsonObject:
    values: JsonObject = agent.model_dump(mode="json", exclude_none=True)
    values["permissions"] = sort_permissions(agent.permissions)
    if not isinstance(agent.policy, str):
        values["policy"] = [rule.model_dump(mode="json", exclude_defaults=True) for rule in agent.policy]
    return values


def _select(verdicts: Iterator[Verdict], query: AgentToolsQuery) -> AgentTools:
    """Return the first matching tools, and count them, up to a limit that a request can afford."""
    found = list(islice(verdicts, MAX_CHECKED_TOOLS + 1))
    matching = found[:MAX_CHECKED_TOOLS]
    is_complete = len(found) <= MAX_CHECKED_TOOLS
    counts = Counter[str](verdict.decision for verdict in matching)
    chosen = [verdict for verdict in matching if query.decision in {"", verdict.decision}]
    tools = [ToolVerdict(**verdict._asdict()) for verdict in chosen[: query.page_size]]
    return AgentTools(counts=dict(counts), tools=tools, total=len(chosen), is_complete=is_complete)
