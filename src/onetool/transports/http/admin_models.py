"""Models of REST requests and responses about servers, agents, secrets and edits of settings."""

from typing import Annotated, Any, Literal

from pydantic import Field

from onetool.admin.imports import SecretUseInfo
from onetool.admin.model import ApiModel, Count, Flag, Query, Size, Text, Time, absent
from onetool.core.policy.rules import Choice
from onetool_child.json_types import JsonObject

SettingsValues = JsonObject
MAX_TEXT_CHARS = 1_000_000


class EditQuery(Query):
    dry_run: Flag = Field(default=False, description="Return the difference without writing it")


class EditResult(ApiModel):
    """A change of settings. Without `id`, nothing was written."""

    id: str | None = Field(default=None, description="Identifies the change in the history")
    action: str
    names: list[str]
    difference: str = Field(description="The change of the files as a unified diff, without secrets")
    notes: list[str] = Field(default=[], description="Messages for the person")
    missing: dict[str, str] = Field(default={}, description="Secrets to set, with their descriptions")
    etag: str | None = Field(default=None, description="ETag of the changed entry")


class SettingsEntry(ApiModel):
    """An entry of the settings as its file has it, without secrets."""

    file: str
    etag: str | None
    values: SettingsValues


# --- servers -------------------------------------------------------------------------------------------------------


class ServerAddition(ApiModel):
    """Servers to add: one by name and settings, or those of a client's configuration."""

    name: Annotated[str, Field(max_length=200)] | None = Field(default=None, description="Name of the server")
    settings: SettingsValues | None = Field(
        default=None, description="Its settings, as under `servers` in onetool.yaml"
    )
    text: Annotated[str, Field(max_length=MAX_TEXT_CHARS)] | None = Field(
        default=None, description="Configuration of a client, as JSON or TOML, with any number of servers"
    )


class SettingsPatch(ApiModel):
    """A JSON merge patch: null removes a key."""

    settings: SettingsValues


class PinChange(ApiModel):
    tool: str
    kind: Literal["changed", "new", "hints"]
    difference: str


class PinAcceptance(ApiModel):
    digest: str = Field(description="`digest` of the server when its changes were shown")


class ServerTool(ApiModel):
    name: str
    description: str
    is_rejected: bool = Field(description="Whether calls are rejected until the definition is accepted")


class ServerStatus(ApiModel):
    name: str
    kind: Literal["stdio", "http", "sse"]
    is_enabled: bool
    state: str = Field(
        description="`connected`, `idle`, `discovering`, `disconnected`, `sign_in_required` or `disabled`"
    )
    problem: str | None = Field(description="Why the last attempt to connect failed")
    tool_count: Count | None = Field(description="Number of its tools; null if they are not known")
    changes: list[PinChange] = Field(description="Tools that differ from their pins")
    digest: str = Field(description="Identifies the definitions of its tools, as it listed them last")
    pin: Literal["warn", "strict", "off"]
    entry: SettingsEntry


class ServerDetails(ServerStatus):
    tools: list[ServerTool]
    output: str = Field(description="Last lines that the server printed to standard error")


class ServerList(ApiModel):
    servers: list[ServerStatus]


class AcceptedPins(ApiModel):
    accepted: dict[str, str] = Field(description="Differences by tool")


# --- agents --------------------------------------------------------------------------------------------------------


class AgentInfo(ApiModel):
    name: str
    permissions: list[str] = Field(description="Permissions in effect")
    tools: list[str] | None = Field(description="Tools that it may call; null for all")
    hosts: list[str] | None = Field(description="Hosts that its HTTP tools may reach; null for all allowed hosts")
    policy: Any = Field(description="Name of the policy, or its rules")
    is_own: bool = Field(description="Whether it is the agent of the caller")
    entry: SettingsEntry


class AgentList(ApiModel):
    agents: list[AgentInfo]
    settings: list[str] = Field(description="Keys of the settings that an agent can have")


class AgentDetails(AgentInfo):
    effective: SettingsValues = Field(description="All settings in effect, with defaults")


class AgentToolsQuery(Query):
    q: Text = Field(default="", description="Only tools whose names contain this text")
    decision: Text = Field(default="", description="Only tools with this decision: `allow`, `ask` or `deny`")
    page_size: Size = Field(default=100, description="Maximum number of tools")


class AgentDraft(ApiModel):
    """Settings of an agent that were not saved yet; without them, those in effect are used."""

    settings: SettingsValues | None = Field(default=None, description="Settings, as under `agents` in onetool.yaml")


class CallCheck(AgentDraft):
    call: Annotated[str, Field(max_length=5_000)] = Field(description="A call such as `fs.read(path='a.txt')`")


class ToolVerdict(ApiModel):
    tool: str
    decision: Choice
    reason: str
    effects: str
    varies: bool = Field(description="Whether some arguments lead to another decision")
    note: str = Field(default="", description="Whether the hosts of the agent do not limit the tool; empty if they do")


class AgentTools(ApiModel):
    """The decisions about tools, without arguments."""

    counts: dict[str, Count] = Field(description="Number of tools by decision, before the filter by decision")
    tools: list[ToolVerdict]
    total: Count = Field(description="Number of tools that match")
    is_complete: bool = Field(description="Whether all tools were checked; if not, use a longer `q`")


# --- secrets and history -------------------------------------------------------------------------------------------


class SecretUserInfo(ApiModel):
    kind: Literal["server", "pack", "bundle", "setting"]
    name: str = Field(description="Name, or the path of the setting")


class SecretInfo(ApiModel):
    name: str
    files: list[str]
    used_by: list[SecretUserInfo]


class SecretList(ApiModel):
    """Names of secrets. Values are never returned."""

    secrets: list[SecretInfo]
    uses: list[SecretUseInfo] = Field(description="Secrets that stored tools send, whether they are set or not")


class SecretValue(ApiModel):
    value: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]


class AllowedHosts(ApiModel):
    hosts: list[str] = Field(description="Hosts that tools may call, as in `http.allowedHosts`")


class AllowedHostsEntry(AllowedHosts):
    etag: str | None = Field(description="For If-Match; null if the settings have no list")


class SettingsChange(ApiModel):
    id: str
    at: Time
    actor: str
    transport: str
    action: str
    names: list[str]
    difference: str
    can_undo: bool
    undoes: str = absent(description="The change that this one undid")


class SettingsHistory(ApiModel):
    version: str = Field(description="Changes with every change of the settings files, by anybody")
    changes: list[SettingsChange]
