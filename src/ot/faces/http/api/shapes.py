"""The shapes of `/api` as the OpenAPI document tells them. Nothing here decides anything."""

from typing import Any, Final

from ot.faces.http.api.catalogue import KINDS
from ot.faces.http.document import ID, MOMENT, or_null, ref
from ot.faces.http.paging import MOST_ITEMS
from ot.schema import JSON
from ot_child.data import FORMATS

TEXT: Final[JSON] = {"type": "string"}
WHOLE: Final[JSON] = {"type": "integer", "minimum": 0}
YES_OR_NO: Final[JSON] = {"type": "boolean"}
NUMBER: Final[JSON] = {"type": "number"}
COUNTS: Final[JSON] = {"type": "object", "additionalProperties": WHOLE}
BYTES: Final[JSON] = {"type": "string", "format": "binary"}
KIND: Final[JSON] = {"type": "string", "enum": list(KINDS)}
PERMISSIONS: Final[JSON] = {"type": "array", "items": {"type": "string", "enum": ["read", "write", "exec", "network"]}}
PAGE_TOKEN: Final[JSON] = {**TEXT, "description": "Send it as pageToken, with the same filters, for the next page"}


def components() -> dict[str, JSON]:
    return {**_of_tools(), **_of_runs(), **_of_results(), **_of_figures(), **_of_imports()}


def an_object(properties: JSON, *optional: str) -> JSON:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def many(item: JSON, **more: Any) -> JSON:
    return {"type": "array", "items": item, **more}


def _of_tools() -> dict[str, JSON]:
    line: JSON = {
        "name": TEXT,
        "pythonName": {**TEXT, "description": "As code writes it; it stands for the name in a path, too"},
        "pack": TEXT,
        "kind": KIND,
        "source": TEXT,
        "description": TEXT,
        "signature": TEXT,
        "permissions": PERMISSIONS,
        "isEnabled": YES_OR_NO,
        "disabledReason": TEXT,
    }
    last_error = an_object({"type": TEXT, "at": MOMENT})
    used: JSON = {"calls": WHOLE, "errors": WHOLE, "p50Ms": or_null(NUMBER), "lastCalledAt": MOMENT}
    version: JSON = {"id": ID, "bundleID": ID, "version": TEXT, "isEnabled": YES_OR_NO, "disabledReason": TEXT}
    version |= {"modifiedAt": MOMENT, "callCount": WHOLE, "lastCalledAt": or_null(MOMENT)}
    whole: JSON = {
        **line,
        "inputSchema": {"type": "object"},
        "outputSchema": {},
        "example": TEXT,
        "returns": TEXT,
        "observedShape": or_null(TEXT),
        "file": TEXT,
        "timeoutSeconds": or_null(NUMBER),
        "usage": an_object({**used, "lastError": last_error}, "lastCalledAt", "lastError"),
        "versions": many(an_object(version, "disabledReason")),
    }
    pack: JSON = {"name": TEXT, "kind": KIND, "source": TEXT, "description": TEXT, "toolCount": WHOLE}
    pack |= {"isEnabled": YES_OR_NO, "state": TEXT, "bundleID": ID}
    page = {"tools": many(ref("AnyTool"), maxItems=MOST_ITEMS), "total": WHOLE, "nextPageToken": PAGE_TOKEN}
    missing: JSON = an_object({"server": TEXT, "state": TEXT, "reason": TEXT})
    page["unlisted"] = {**many(missing), "description": "Servers whose tools are not known yet"}
    return {
        "AnyTool": an_object(line, "disabledReason"),
        "AnyToolWhole": an_object(whole, "disabledReason", "versions"),
        "AnyTools": an_object(page, "nextPageToken", "unlisted"),
        "Pack": an_object(pack, "state", "bundleID"),
        "Packs": an_object({"packs": many(ref("Pack"))}),
    }


def _of_runs() -> dict[str, JSON]:
    command: JSON = {**TEXT, "description": "Python code, as for the tool `run` over MCP"}
    asked: JSON = {"command": command, "format": {"enum": [*FORMATS, None], "description": "What __format__ is"}}
    media = an_object({"handle": TEXT, "mimeType": TEXT, "data": {**TEXT, "contentEncoding": "base64"}})
    given: JSON = {"runID": or_null(TEXT), "blocks": many(TEXT), "isError": YES_OR_NO, "error": TEXT}
    run: JSON = {
        "id": TEXT,
        "kind": {"type": "string", "enum": ["run", "call"]},
        "name": TEXT,
        "agent": TEXT,
        "startedAt": MOMENT,
        "durationMs": or_null(NUMBER),
        "state": {"type": "string", "enum": ["running", "completed", "failed"]},
        "error": or_null(TEXT),
        "command": TEXT,
        "callCount": WHOLE,
        "failedCount": WHOLE,
    }
    call: JSON = {"name": TEXT, "startMs": NUMBER, "durationMs": or_null(NUMBER), "error": or_null(TEXT), "lane": WHOLE}
    timeline = {**run, "calls": many(an_object(call)), "callsLeftOut": WHOLE, "mostAtOnce": WHOLE}
    return {
        "RunDraft": an_object(asked, "format"),
        "RunAnswer": an_object({**given, "media": many(media)}, "error"),
        "Run": an_object(run),
        "Runs": an_object({"runs": many(ref("Run"))}),
        "Timeline": an_object(timeline),
    }


def _of_results() -> dict[str, JSON]:
    window: JSON = {"lines": many(TEXT), "totalLines": WHOLE, "returned": WHOLE, "offset": WHOLE, "hasMore": YES_OR_NO}
    searched: JSON = {"matchedLines": WHOLE, "positions": many({"type": "integer"})}
    in_chars: JSON = {"unit": {"const": "chars"}, "totalChars": WHOLE}
    return {"ResultWindow": an_object({**window, **searched, **in_chars}, *searched, *in_chars)}


def _of_figures() -> dict[str, JSON]:
    times: JSON = {"p50Ms": or_null(NUMBER), "p95Ms": or_null(NUMBER)}
    rate = or_null(NUMBER)
    runs = an_object({"total": WHOLE, "failed": WHOLE, "successRate": rate, **times})
    of_tool = an_object(
        {"name": TEXT, "calls": WHOLE, "successRate": rate, **times, "resultTokens": WHOLE, "errors": COUNTS}
    )
    saved: JSON = {"definitionTokens": WHOLE, "ownTokens": WHOLE, "resultTokens": WHOLE, "sessions": WHOLE}
    series: JSON = {"start": TEXT, "widthSeconds": WHOLE, "calls": many(WHOLE), "errors": many(WHOLE)}
    by_tool = {"type": "object", "additionalProperties": many(WHOLE)}
    stats: JSON = {
        "generatedAt": TEXT,
        "period": TEXT,
        "tool": or_null(TEXT),
        "agent": or_null(TEXT),
        "totalCalls": WHOLE,
        "successRate": rate,
        "contextSaved": {"type": "integer"},
        "timeSavedMs": WHOLE,
        "runs": runs,
        "errors": COUNTS,
        "savings": an_object({**saved, "roundTrips": NUMBER, "roundTripMs": WHOLE}),
        "tools": many(of_tool),
        "series": an_object({**series, "tools": by_tool}),
        "isEnabled": YES_OR_NO,
        "problem": TEXT,
    }
    states: JSON = {"type": "object", "additionalProperties": TEXT}
    health: JSON = {
        "version": TEXT,
        "python": TEXT,
        "cwd": TEXT,
        "registry": an_object({"status": TEXT, "toolCount": WHOLE}),
        "proxy": an_object({"status": TEXT, "serverCount": WHOLE, "servers": states}),
        "workers": states,
        "isolation": states,
        "problems": many(TEXT),
    }
    return {"Statistics": an_object(stats, "problem"), "Health": {**an_object(health), "additionalProperties": True}}


def _of_imports() -> dict[str, JSON]:
    taken: JSON = {"bundle": ref("Bundle"), "toolCount": WHOLE, "hosts": many(TEXT), "secrets": many(TEXT)}
    taken["hosts"] = {**many(TEXT), "description": "They belong into http.allowedHosts"}
    taken["secrets"] = {**many(TEXT), "description": "They belong into secrets.yaml"}
    taken["warnings"] = {**many(TEXT), "description": "Literal credentials in the tools"}
    return {"ImportedBundle": an_object({**taken, "problems": many(TEXT)})}
