"""List and export the audit log: who changed or called what, newest first."""

import re
from collections.abc import AsyncIterator
from typing import Literal

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import Person, action
from onetool.admin.model import (
    SIZE_DESCRIPTION,
    AdminError,
    ApiModel,
    Moments,
    Query,
    Size,
    Time,
    absent,
)
from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.state.audit_records import AuditFilter, AuditPage
from onetool.util.token_ids import ADMIN
from onetool_child.json_types import JsonMapping, JsonObject

PURPOSE = "reading the audit log"
EXPORT_RECORDS = 500
POSITION = re.compile(r"[0-9]{1,20}(:[0-9]{1,18})?", re.ASCII)
OWN_FIELDS = frozenset({"time", "level", "name", "actor", "agent", "tool", "action", "outcome"})


class AuditQuery(Query):
    kind: Literal["", "call", "change", "decision", "started"] = Field(
        default="",
        description=(
            "Only records of this kind; `started` are those written before a call or change"
        ),
    )
    actor: str = Field(default="", description="Only records of this token or person")
    agent: str = Field(default="", description="Only records of this agent")
    name: str = Field(default="", description="Only records of this tool or action")
    outcome: str = Field(default="", description="Only records with this outcome, such as `ok`")
    text: str = Field(default="", description="Only records that contain this text")
    since: Moments = Field(default=None, description="Only records from this time on (RFC 3339)")
    until: Moments = Field(default=None, description="Only records before this time (RFC 3339)")


class AuditPageQuery(AuditQuery):
    page_size: Size = Field(default=100, description=SIZE_DESCRIPTION)
    page_token: str = Field(
        default="", description="nextPageToken of the previous page, with the same filters"
    )


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


@action("GET /api/audit", "Records, newest first", needs=ADMIN, purpose=PURPOSE)
async def list_records(app: OneTool, person: Person, query: AuditPageQuery) -> AuditList:
    """List the audit log."""
    if query.page_token and not POSITION.fullmatch(query.page_token):
        message = "pageToken: expected the nextPageToken of the previous page"
        raise AdminError("invalid", message, {"parameter": "pageToken"})
    page = await _read(app, query, query.page_token or None, query.page_size)
    return AuditList(
        records=[_build_record(record) for record in page.records], next_page_token=page.next
    )


@action(
    "GET /api/audit/export", "Records, newest first, one per line", needs=ADMIN, purpose=PURPOSE
)
async def export_records(
    app: OneTool,
    person: Person,
    query: AuditQuery,
) -> AsyncIterator[list[JsonObject]]:
    """Export the audit log as JSON Lines."""
    first = await _read(app, query, None, EXPORT_RECORDS)

    async def iter_batches() -> AsyncIterator[list[JsonObject]]:
        page = first
        while True:
            yield page.records
            if page.next is None:
                return
            page = await _read(app, query, page.next, EXPORT_RECORDS)

    return iter_batches()


async def _read(app: OneTool, query: AuditQuery, position: str | None, size: int) -> AuditPage:
    criteria = AuditFilter(**{name: getattr(query, name) for name in AuditQuery.model_fields})
    try:
        return await run_in_thread(app.audit.list_page, criteria, position, size)
    except (ToolError, OSError) as error:
        raise AdminError("busy", f"cannot read the audit log: {error}") from None


def _build_record(record: JsonMapping) -> AuditRecord:
    texts = {name: str(record.get(name) or "") for name in ("time", "actor", "agent", "outcome")}
    return AuditRecord(
        **texts,
        kind=str(record.get("name") or ""),
        name=str(record.get("tool") or record.get("action") or record.get("decision") or ""),
        details={name: value for name, value in record.items() if name not in OWN_FIELDS},
    )
