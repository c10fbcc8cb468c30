"""Upstream servers: their states, their definitions in the settings, and their changed tools."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from onetool.admin.action import Person, action
from onetool.admin.model import AdminError, ApiModel, Count, raising
from onetool.admin.precondition import NO_CONDITION, Precondition
from onetool.admin.server_changes import SERVERS, PlannedServers, ServerChanges
from onetool.admin.settings_edits import (
    EditQuery,
    EditResult,
    SettingsEntry,
    SettingsPatch,
    SettingsValues,
    edit,
    edit_entry,
    find_entries,
)
from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.settings.planned_edit import ItemChange, PlannedEdit
from onetool.settings.settings_editor import SettingsEditor
from onetool.sources.upstream.definitions import digest
from onetool.sources.upstream.servers import DefinitionsChanged
from onetool.sources.upstream.upstream import Upstream
from onetool.util.token_ids import ADMIN, APPROVE
from onetool_child.json_types import JsonMapping, JsonObject

START_SECONDS = 60.0
MAX_DESCRIPTION_CHARS = 500
MAX_TEXT_CHARS = 1_000_000


PinKind = Literal["changed", "new", "hints"]


class ServerAddition(ApiModel):
    """Servers to add: one by name and settings, or those of a client's configuration."""

    name: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="Name of the server"
    )
    settings: SettingsValues | None = Field(
        default=None, description="Its settings, as under `servers` in onetool.yaml"
    )
    text: Annotated[str, Field(max_length=MAX_TEXT_CHARS)] | None = Field(
        default=None,
        description="Configuration of a client, as JSON or TOML, with any number of servers",
    )


class PinChange(ApiModel):
    tool: str
    kind: PinKind
    difference: str


class PinAcceptance(ApiModel):
    digest: str = Field(description="`digest` of the server when its changes were shown")


class ServerTool(ApiModel):
    name: str
    description: str
    is_rejected: bool = Field(
        description="Whether calls are rejected until the definition is accepted"
    )


class ServerStatus(ApiModel):
    name: str
    kind: Literal["stdio", "http", "sse"]
    is_enabled: bool
    state: str = Field(
        description=(
            "`connected`, `idle`, `discovering`, `disconnected`, `sign_in_required` or `disabled`"
        )
    )
    problem: str | None = Field(description="Why the last attempt to connect failed")
    tool_count: Count | None = Field(description="Number of its tools; null if they are not known")
    changes: list[PinChange] = Field(description="Tools that differ from their pins")
    digest: str = Field(
        description="Identifies the definitions of its tools, as it listed them last"
    )
    pin: Literal["warn", "strict", "off"]
    entry: SettingsEntry


class ServerDetails(ServerStatus):
    tools: list[ServerTool]
    output: str = Field(description="Last lines that the server printed to standard error")

    @property
    def etag(self) -> str | None:
        return self.entry.etag


class ServerList(ApiModel):
    servers: list[ServerStatus]


class AcceptedPins(ApiModel):
    accepted: dict[str, str] = Field(description="Differences by tool")


@action("GET /api/servers", "The configured servers", needs=APPROVE, purpose="reading servers")
async def list_servers(app: OneTool, person: Person) -> ServerList:
    """List upstream servers and their states."""
    names = list(app.settings.servers)
    await asyncio.gather(*(_load_cached(app, name) for name in names))
    entries = await find_entries(app, SERVERS, names)
    return ServerList(
        servers=[ServerStatus(**_describe(app, name, entries[name])) for name in names]
    )


@action("GET /api/servers/{name}", "The server", needs=APPROVE, purpose="reading servers")
async def get_server(app: OneTool, person: Person, name: str) -> ServerDetails:
    """Get an upstream server."""
    return await _get_details(app, name)


@action("POST /api/servers", "The change", needs=ADMIN, purpose="adding servers")
async def add_servers(
    app: OneTool,
    person: Person,
    query: EditQuery,
    body: ServerAddition,
    *,
    directory: Path | None = None,
) -> EditResult:
    """Add upstream servers."""
    if (body.text is None) == (body.settings is None) or (body.settings is None) != (
        body.name is None
    ):
        raise AdminError("invalid", "expected either `text`, or `name` and `settings`")

    def plan(changes: ServerChanges) -> PlannedServers:
        if body.text is not None:
            return changes.plan_pasted(body.text)
        return changes.plan_new(body.name or "", body.settings or {})

    planned, edited = await edit_servers(app, person, query, plan, directory)
    notes = list(planned.result.notes)
    if planned.result.secrets:
        place = app.state.settings.secrets_place
        notes.append(f"Moved secrets to {place}: {', '.join(planned.result.secrets)}")
    return edited.model_copy(update={"notes": notes, "missing": planned.result.missing})


async def edit_servers(
    app: OneTool,
    person: Person,
    query: EditQuery,
    plan: Callable[[ServerChanges], PlannedServers],
    directory: Path | None,
    *,
    keeps_backups: bool = False,
) -> tuple[PlannedServers, EditResult]:
    """Make an edit that adds servers to a settings directory, by default that of new entries."""
    planned: list[PlannedServers] = []

    def plan_edit(editor: SettingsEditor) -> PlannedEdit:
        planned.append(plan(ServerChanges(editor, app.directories, app.environment, directory)))
        return planned[-1].edit

    edited = await edit(app, person, plan_edit, query, keeps_backups=keeps_backups)
    return planned[-1], edited


@action("PATCH /api/servers/{name}", "The change", needs=ADMIN, purpose="changing servers")
async def change_server(
    app: OneTool,
    person: Person,
    name: str,
    *,
    query: EditQuery,
    body: SettingsPatch,
    precondition: Precondition = NO_CONDITION,
) -> EditResult:
    """Change the settings of an upstream server."""
    _require(app, name)
    kind = "servers.change"
    if body.settings.keys() == {"enabled"}:
        kind = "servers.disable" if body.settings["enabled"] is False else "servers.enable"
    change = ItemChange(SERVERS, name, body.settings)
    return await edit_entry(app, person, kind, change, query, precondition=precondition)


@action("DELETE /api/servers/{name}", "The change", needs=ADMIN, purpose="removing servers")
async def remove_server(
    app: OneTool,
    person: Person,
    name: str,
    query: EditQuery,
    precondition: Precondition = NO_CONDITION,
) -> EditResult:
    """Remove an upstream server."""
    _require(app, name)
    change = ItemChange(SERVERS, name, None)
    return await edit_entry(app, person, "servers.remove", change, query, precondition=precondition)


@action("POST /api/servers/{name}/start", "The server", needs=ADMIN, purpose="starting servers")
async def start_server(app: OneTool, person: Person, name: str) -> ServerDetails:
    """Start an upstream server."""
    upstream = _begin(app, person, "server.start", name)
    with raising("invalid"):
        try:
            async with asyncio.timeout(START_SECONDS):
                await upstream.main.start()
        except TimeoutError:
            raise ToolError(f"{name} did not start within {START_SECONDS:g} s") from None
    return await _get_details(app, name)


@action("POST /api/servers/{name}/stop", "The server", needs=ADMIN, purpose="stopping servers")
async def stop_server(app: OneTool, person: Person, name: str) -> ServerDetails:
    """Stop an upstream server."""
    await _begin(app, person, "server.stop", name).stop()
    return await _get_details(app, name)


@action(
    "POST /api/servers/{name}/accept",
    "The accepted differences",
    needs=ADMIN,
    purpose="accepting changed tools",
    command="onetool servers accept",
    errors=("definitions_changed",),
)
async def accept_tools(
    app: OneTool, person: Person, name: str, body: PinAcceptance, *, accepts_hints: bool = True
) -> AcceptedPins:
    """Accept new and changed tools of an upstream server."""
    _begin(app, person, "server.accept", name)
    with raising("invalid"):
        try:
            accepted = await app.servers.accept(name, body.digest, accepts_hints=accepts_hints)
        except DefinitionsChanged as error:
            raise AdminError("definitions_changed", error.message, {"name": name}) from None
    return AcceptedPins(accepted=accepted)


def _begin(app: OneTool, person: Person, change: str, name: str) -> Upstream:
    """Return the server, and record what is about to be done."""
    upstream = _require(app, name)
    app.audit.change(change, [name], actor=person.name, transport=person.transport)
    return upstream


def _require(app: OneTool, name: str) -> Upstream:
    """Return the server. Raise if there is none with this name."""
    configured = app.settings.servers
    if name not in configured:
        hint = f"configured servers: {', '.join(configured) or 'none'}"
        raise AdminError("not_found", f"no server named {name!r}", {"name": name}, hint=hint)
    return app.servers.upstream(name)


# --- reading --------------------------------------------------------------------------------------


async def _load_cached(app: OneTool, name: str) -> None:
    """Load the known tools of a server. Tools that cannot be used must not hide the server."""
    with suppress(ToolError, ValueError):
        await app.servers.upstream(name).main.load_cached()


async def _get_details(app: OneTool, name: str) -> ServerDetails:
    upstream = _require(app, name)
    await _load_cached(app, name)
    entries = await find_entries(app, SERVERS, [name])
    tools = [
        ServerTool(
            name=tool,
            description=definition.description[:MAX_DESCRIPTION_CHARS],
            is_rejected=tool in upstream.tools.rejected,
        )
        for tool, definition in sorted(upstream.tools.offered.items())
    ]
    return ServerDetails(
        **_describe(app, name, entries[name]), tools=tools, output=upstream.main.output
    )


def _describe(app: OneTool, name: str, entry: SettingsEntry) -> JsonObject:
    """Return the fields of a `ServerStatus`."""
    server = app.settings.servers[name]
    upstream = app.servers.upstream(name)
    tools = upstream.tools
    changed, new = tools.differences
    kinds: dict[PinKind, JsonMapping] = {"changed": changed, "new": new, "hints": tools.claims}
    return {
        "name": name,
        "kind": "stdio" if server.url is None else server.transport,
        "is_enabled": server.enabled,
        "state": upstream.main.state,
        "problem": upstream.main.failure or None,
        "tool_count": len(tools.offered) if upstream.main.is_known else None,
        "changes": [
            PinChange(tool=tool, kind=kind, difference=text)
            for kind, differences in kinds.items()
            for tool, text in differences.items()
        ],
        "digest": digest(tools.definitions),
        "pin": server.pin,
        "entry": entry,
    }
