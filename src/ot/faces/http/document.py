"""The words of the OpenAPI document: parameters, bodies, answers and refusals, for routes to be described with.

Shapes come from the models that check them; what a model checks in code (a slug, a tag, an id) is said here as a
pattern. Nothing here decides anything.
"""

from typing import TYPE_CHECKING, Any, Final

from ot.bundles import rules
from ot.bundles.model import Bundle, BundleDraft, PythonImpl, StoredTool, Switch, ToolDraft
from ot.faces.http.answers import MEDIA_TYPE
from ot.faces.http.paging import DEFAULT_SIZE, MOST_ITEMS
from ot.faces.http.refusals import STATUS
from ot.schema import JSON

if TYPE_CHECKING:
    from pydantic import BaseModel

SCHEMAS: Final = "#/components/schemas/"
EVERYWHERE: Final = (
    *("invalid", "unauthorized", "forbidden", "too_large", "rate_limited", "internal", "busy", "storage_unavailable"),
)
SLUG: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": rules.MOST_CODE_POINTS,
    "pattern": r"^[\p{L}\p{Nd}-]+$",
    "description": "Letters and decimal digits of any script, and dashes",
}
VERSION: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": rules.MOST_CODE_POINTS,
    "pattern": r"^(?!\.{1,2}$)[\p{L}\p{Nd}.-]+$",
    "description": "Like a slug, and with dots; an opaque label without an order",
}
ID: Final = {
    "type": "string",
    "format": "uuid",
    "pattern": "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$",
    "description": "A UUID of version 7",
    "examples": [rules.EXAMPLE_ID],
}
TAG: Final = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"}
MOMENT: Final = {"type": "string", "format": "date-time", "description": "RFC 3339, in UTC"}
SAID_MORE_EXACTLY: Final[dict[str, JSON]] = {
    "id": ID,
    "bundleID": ID,
    "slug": SLUG,
    "bundleSlug": SLUG,
    "version": VERSION,
    "displayName": {
        "type": "string",
        "minLength": 1,
        "maxLength": rules.MOST_IN_DISPLAY_NAME,
        "allOf": [{"pattern": r"\S"}, {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"}],
        "description": "One line, not blank",
    },
    "description": {"type": "string", "default": "", "maxLength": rules.MOST_IN_DESCRIPTION},
    "tags": {"type": "array", "items": TAG, "uniqueItems": True, "maxItems": rules.MOST_TAGS},
    "urlTemplate": {
        "type": "string",
        "pattern": r"^https?://[^/?#]+",
        "description": "With ${argument}, ${csv:list} and ${secret:NAME} as placeholders, never where the host stands",
        "examples": ["https://api.example.com/v1/weather/${city}"],
    },
    "createdAt": MOMENT,
    "modifiedAt": {**MOMENT, "description": "When the content was last changed; switching on or off does not count"},
}
SOMETIMES_ABSENT: Final = frozenset({"disabledReason", "httpImpl", "pythonImpl", "warnings"})


def ref(name: str) -> JSON:
    return {"$ref": SCHEMAS + name}


def components() -> dict[str, JSON]:
    from ot.backends.http_tool.impl import Answer, Auth, HttpImpl

    taken: dict[str, type[BaseModel]] = {"BundleDraft": BundleDraft, "Switch": Switch, "PythonImpl": PythonImpl}
    taken |= {"HttpImpl": HttpImpl, "HttpAuth": Auth, "HttpResponse": Answer}
    schemas = {name: _schema(model.model_json_schema(by_alias=True)) for name, model in taken.items()}
    schemas |= {"ToolDraft": _tool_draft(), "Bundle": _given(Bundle), "Tool": _tool(), "FoundTool": _found()}
    schemas |= {"Bundles": _list("bundles", "Bundle"), "Tools": _list("tools", "Tool")}
    schemas |= {"FoundTools": _list("tools", "FoundTool"), "Call": CALL, "Outcome": OUTCOME, "Error": _error()}
    return schemas


# --- shapes --------------------------------------------------------------------------------------------------------


def _schema(made: JSON) -> JSON:
    """As pydantic tells it, with names that stand in the document, and exacter."""
    properties = {name: _property(name, schema) for name, schema in made.get("properties", {}).items()}
    left_out = {"$defs", "properties", "title"}
    return {**{key: value for key, value in made.items() if key not in left_out}, "properties": properties}


def _property(name: str, schema: JSON) -> JSON:
    exact = SAID_MORE_EXACTLY.get(name)
    return exact if exact is not None else _renamed(schema)


def _renamed(schema: Any) -> Any:
    names = {"#/$defs/Auth": "HttpAuth", "#/$defs/Answer": "HttpResponse", "#/$defs/PythonImpl": "PythonImpl"}
    if isinstance(schema, dict):
        kept = {key: _renamed(value) for key, value in schema.items() if key != "title"}
        return ref(names[kept["$ref"]]) if kept.get("$ref") in names else kept
    return [_renamed(item) for item in schema] if isinstance(schema, list) else schema


def _tool_draft() -> JSON:
    schema = _schema(ToolDraft.model_json_schema(by_alias=True))
    schema["properties"] |= {"httpImpl": or_null(ref("HttpImpl")), "argSchema": ARGUMENTS}
    http, python = {"type": {"const": "http"}}, {"type": {"enum": ["python", "go"]}}
    schema["oneOf"] = [
        {"properties": {**http, "httpImpl": ref("HttpImpl"), "pythonImpl": {"type": "null"}}, "required": ["httpImpl"]},
        {
            "properties": {**python, "pythonImpl": ref("PythonImpl"), "httpImpl": {"type": "null"}},
            "required": ["pythonImpl"],
        },
    ]
    return schema


def _given(model: type[Bundle] | type[StoredTool]) -> JSON:
    """What the store gives has every field, whether a person sent it or not."""
    schema = _schema(model.model_json_schema(by_alias=True, mode="serialization"))
    schema["required"] = [name for name in schema["properties"] if name not in SOMETIMES_ABSENT]
    schema.pop("description", None)
    return schema


def _tool() -> JSON:
    schema = _given(StoredTool)
    schema["properties"] |= {
        "lastCalledAt": or_null(MOMENT),
        "disabledReason": {"type": "string", "description": "Why it cannot be called although it is switched on"},
        "httpImpl": {"type": "object", "description": "As it was sent, with literal credentials masked; see HttpImpl"},
        "warnings": {"type": "array", "items": {"type": "string"}, "description": "Literal credentials that it holds"},
        "pythonImpl": ref("PythonImpl"),
    }
    return schema


def _found() -> JSON:
    """Written out, because `additionalProperties: false` cannot be added to."""
    schema = _tool()
    more = {"score": {"type": "number"}, "match": {"type": "string", "enum": ["prefix", "word", "fuzzy"]}}
    return {**schema, "properties": {**schema["properties"], **more}, "required": [*schema["required"], *more]}


def _list(name: str, item: str) -> JSON:
    token = {"type": "string", "description": "Send it as pageToken, with the same filters, for the next page"}
    items = {"type": "array", "items": ref(item), "maxItems": MOST_ITEMS}
    properties = {name: items, "nextPageToken": token}
    return {"type": "object", "properties": properties, "required": [name], "additionalProperties": False}


def or_null(schema: JSON) -> JSON:
    return {"anyOf": [schema, {"type": "null"}]}


def _error() -> JSON:
    code = {"type": "string", "enum": sorted(STATUS)}
    properties = {"code": code, "message": {"type": "string"}, "details": {"type": "object"}}
    inside = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "object", "properties": {"error": inside}, "required": ["error"], "additionalProperties": False}


ARGUMENTS: Final[JSON] = {"type": "object", "description": "The JSON Schema of the arguments, which are an object"}
CALL: Final[JSON] = {
    "type": "object",
    "properties": {"args": {"type": "object", "default": {}, "description": "They must fit the tool's argSchema"}},
    "additionalProperties": False,
}
OUTCOME: Final[JSON] = {
    "description": "The tool ran: its value, or what went wrong",
    "oneOf": [
        {
            "type": "object",
            "properties": {"ok": {"const": True}, "value": {}},
            "required": ["ok", "value"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "ok": {"const": False},
                "error": {
                    "type": "object",
                    "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
                    "required": ["type", "message"],
                },
            },
            "required": ["ok", "error"],
            "additionalProperties": False,
        },
    ],
}


# --- parts of an operation -----------------------------------------------------------------------------------------


def in_path(name: str, schema: JSON) -> JSON:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def in_query(name: str, schema: JSON, description: str, *, required: bool = False) -> JSON:
    return {"name": name, "in": "query", "required": required, "description": description, "schema": schema}


BUNDLE_ID: Final = in_path("bundleID", ID)
TOOL_PATH: Final = (BUNDLE_ID, in_path("toolSlug", SLUG), in_path("version", VERSION))
SIZE: Final[JSON] = {"type": "integer", "minimum": 1, "default": DEFAULT_SIZE}
SIZE_WORDS: Final = f"How many at most; more than {MOST_ITEMS} means {MOST_ITEMS}"
PAGING: Final = (
    in_query("includeDisabled", {"type": "boolean", "default": False}, "Show what is switched off too"),
    in_query("pageToken", {"type": "string"}, "nextPageToken of the page before; it belongs to the same filters"),
)
LIST_WORDS: Final = "repeated, or with commas between"
BUNDLE_IDS: Final = in_query("bundleIDs", {"type": "array", "items": ID}, f"Only these bundles; {LIST_WORDS}")
TAGS: Final = in_query("tags", {"type": "array", "items": TAG}, f"Only tools with any of these tags; {LIST_WORDS}")
KNOWN_TAG: Final[JSON] = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "The ETag of what one has: where it is still the same, the answer is 304 without a body",
    "schema": {"type": "string"},
}


PRECONDITIONS: Final[tuple[JSON, ...]] = tuple(
    {"name": name, "in": "header", "required": False, "description": words, "schema": {"type": "string"}}
    for name, words in (
        ("If-Match", "Change it only if its ETag is one of these; otherwise the answer is 412"),
        ("If-None-Match", "Change it only if its ETag is none of these; `*` creates it only if it does not exist"),
    )
)


def body(name: str) -> JSON:
    return {"required": True, "content": {MEDIA_TYPE: {"schema": ref(name)}}}


def given(name: str, description: str) -> JSON:
    return {"description": description, "content": {MEDIA_TYPE: {"schema": ref(name)}}}


def with_tag(answer: JSON) -> JSON:
    return {**answer, "headers": {"ETag": {"schema": {"type": "string"}, "description": "Changes with the content"}}}


def refused(*codes: str) -> dict[int, JSON]:
    """The refusals of an operation, and those that every one has."""
    by_status: dict[int, list[str]] = {}
    for code in sorted({*codes, *EVERYWHERE}):
        by_status.setdefault(STATUS[code], []).append(code)
    return {status: given("Error", f"Refused: {' or '.join(of_it)}") for status, of_it in sorted(by_status.items())}
