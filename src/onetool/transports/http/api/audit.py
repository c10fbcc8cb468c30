"""`/api/audit`: who changed or called what, newest first, and an export as JSON Lines."""

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from onetool.errors import ToolError
from onetool.state.audit_records import AuditFilter, AuditPage
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.api.runs import JSON_LINES
from onetool.transports.http.errors import ApiError
from onetool.transports.http.record_models import AuditList, AuditPageQuery, AuditQuery, AuditRecord
from onetool.transports.http.routing import TEXT, Operation, ResponseSpec, read_query
from onetool_child.data import text as to_json_text
from onetool_child.json_types import JsonMapping

ROOT = "/api/audit"
SCOPE = "admin"
EXPORT_RECORDS = 500
POSITION = re.compile(r"[0-9]{1,20}(:[0-9]{1,18})?", re.ASCII)
OWN_FIELDS = frozenset({"time", "level", "name", "actor", "agent", "tool", "action", "outcome"})


class AuditHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        records = {200: ResponseSpec("Records, newest first", AuditList)}
        yield Operation("GET", ROOT, self.list_records, "List the audit log", records, AuditPageQuery)
        lines = {200: ResponseSpec("Records, newest first, one per line", media={JSON_LINES: TEXT})}
        path = f"{ROOT}/export"
        summary = "Export the audit log as JSON Lines"
        yield Operation("GET", path, self.export, summary, lines, AuditQuery)

    async def list_records(self, request: Request) -> Response:
        identity.get_person(request).require(SCOPE, "reading the audit log")
        query = read_query(AuditPageQuery, request)
        if query.page_token and not POSITION.fullmatch(query.page_token):
            message = "pageToken: expected the nextPageToken of the previous page"
            raise ApiError("invalid", message, {"parameter": "pageToken"})
        page = await self._read(build_filter(query), query.page_token or None, query.page_size)
        records = [build_record(record) for record in page.records]
        found = AuditList(records=records, next_page_token=page.next)
        return await self._api.run_in_thread(lambda: self._api.respond(found))

    async def export(self, request: Request) -> Response:
        identity.get_person(request).require(SCOPE, "reading the audit log")
        criteria = build_filter(read_query(AuditQuery, request))
        first = await self._read(criteria, None, EXPORT_RECORDS)

        async def send() -> AsyncIterator[bytes]:
            page = first
            while True:
                yield await self._api.run_in_thread(partial(_render_lines, page.records))
                if page.next is None:
                    return
                page = await self._read(criteria, page.next, EXPORT_RECORDS)

        headers = {"content-disposition": 'attachment; filename="audit.jsonl"'}
        return StreamingResponse(send(), media_type=JSON_LINES, headers=headers)

    async def _read(self, criteria: AuditFilter, position: str | None, size: int) -> AuditPage:
        audit = self._api.app.audit
        try:
            return await self._api.run_in_thread(lambda: audit.list_page(criteria, position, size))
        except (ToolError, OSError) as error:
            raise ApiError("busy", f"cannot read the audit log: {error}") from None


def _render_lines(records: Iterable[JsonMapping]) -> bytes:
    return "".join(f"{to_json_text(record)}\n" for record in records).encode("utf-8", "replace")


def build_filter(query: AuditQuery) -> AuditFilter:
    return AuditFilter(**{name: getattr(query, name) for name in AuditFilter._fields})


def build_record(record: JsonMapping) -> AuditRecord:
    texts = {name: str(record.get(name) or "") for name in ("time", "actor", "agent", "outcome")}
    return AuditRecord(
        **texts,
        kind=str(record.get("name") or ""),
        name=str(record.get("tool") or record.get("action") or record.get("decision") or ""),
        details={name: value for name, value in record.items() if name not in OWN_FIELDS},
    )
