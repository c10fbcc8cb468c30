"""Models of the records that people look at: spending, errors, the audit log and connected clients."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from onetool.admin.model import (
    SIZE_DESCRIPTION,
    ApiModel,
    Count,
    Moments,
    Query,
    Size,
    Text,
    Time,
    absent,
    take_single,
)
from onetool_child.json_types import JsonObject


class SpendingQuery(Query):
    month: Text = Field(default="", description="Only this month (UTC), such as 2027-01")


class SpendingRow(ApiModel):
    """The use of a token or subject in a month. `actor` is empty for clients of the machine, without a token."""

    month: str
    actor: str
    agent: str
    runs: Count
    calls: Count
    failed: Count
    answer_tokens: Count = Field(description="Tokens of answers, which the model of the client read (estimated)")
    result_tokens: Count = Field(description="Tokens of the results of tools (estimated)")
    cost: float = Field(description="Sum of `cost_per_call` of the called tools")
    last_used: Time


class SpendingList(ApiModel):
    spending: list[SpendingRow]


class ErrorGroup(ApiModel):
    """Failures with the same tool, type and message, apart from numbers in it."""

    name: str
    type: str
    message: str = Field(description="Message of the last failure")
    count: Count
    agent: str
    actor: str
    first_at: Time
    last_at: Time
    run_id: str = Field(description="Run of the last failure")


class ErrorGroupList(ApiModel):
    errors: list[ErrorGroup]


class AuditQuery(Query):
    kind: Annotated[Literal["", "call", "change", "decision", "started"], BeforeValidator(take_single)] = Field(
        default="", description="Only records of this kind; `started` are those written before a call or change"
    )
    actor: Text = Field(default="", description="Only records of this token or person")
    agent: Text = Field(default="", description="Only records of this agent")
    name: Text = Field(default="", description="Only records of this tool or action")
    outcome: Text = Field(default="", description="Only records with this outcome, such as `ok`")
    text: Text = Field(default="", description="Only records that contain this text")
    since: Moments = Field(default=None, description="Only records from this time on (RFC 3339)")
    until: Moments = Field(default=None, description="Only records before this time (RFC 3339)")


class AuditPageQuery(AuditQuery):
    page_size: Size = Field(default=100, description=SIZE_DESCRIPTION)
    page_token: Text = Field(default="", description="nextPageToken of the previous page, with the same filters")


class AuditRecord(ApiModel):
    time: Time
    kind: str
    actor: str
    agent: str
    name: str = Field(description="Tool of a call, or action of a change")
    outcome: str
    details: JsonObject = Field(description="Further fields of the record")


class AuditList(ApiModel):
    records: list[AuditRecord]
    next_page_token: str | None = absent(None, "Token of the next page, if there is one")


class ConnectedClientInfo(ApiModel):
    id: str
    name: str = Field(description="Name that the client reports")
    kind: Literal["http", "stdio", "command"]
    agent: str
    actor: str
    since: Time
    last_call: Time | None
    directory: str
    process: int | None = Field(description="Process of a client of this machine")


class ConnectedClientList(ApiModel):
    clients: list[ConnectedClientInfo]


class DisconnectedClient(ApiModel):
    disconnected: str


class FixRequest(ApiModel):
    fix: Annotated[str, Field(max_length=500, description="Identifier of the fix, from a finding")]


class FixResponse(ApiModel):
    done: str = Field(description="What was done")
