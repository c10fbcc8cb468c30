"""The difference between a stored bundle and a newer document: what an update would add, change and
remove.

A tool is compared with the version that is called by its name. Literal credentials are masked.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice, takewhile
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from onetool.sources.bundles.model import StoredModel, StoredTool, ToolDraft
from onetool.sources.http import credentials
from onetool.util.sanitize import clean
from onetool_child.json_types import JsonMapping, JsonObject

Part = Literal["request", "parameter", "description", "output"]
Content = StoredTool | ToolDraft
MAX_CHANGES = 100  # of one tool
MAX_VALUE_CHARS = 300
CONTEXT_CHARS = 40  # before the first difference of long values
FIELDS = tuple(name for name in ToolDraft.model_fields if name not in {"is_enabled", "origin"})


class _Part(StoredModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)


class FieldChange(_Part):
    """A changed part of a tool."""

    part: Part
    name: str
    before: str | None = Field(description="null if it is new")
    after: str | None = Field(description="null if it is removed")


class ToolChange(_Part):
    """A tool that the document changes."""

    slug: str
    version: str = Field(description="Version that is called now")
    new_version: str
    is_edited: bool = Field(
        description="Whether the current version was not imported, but written here"
    )
    changes: list[FieldChange]


class ToolOutline(_Part):
    slug: str
    version: str
    request: str


class BundleDifference(_Part):
    """The changes that the document makes in the bundle."""

    added: list[ToolOutline] = Field(default_factory=list)
    removed: list[ToolOutline] = Field(default_factory=list)
    changed: list[ToolChange] = Field(default_factory=list)
    unchanged: Annotated[int, Field(ge=0)] = 0


def find_current(versions: Iterable[StoredTool]) -> StoredTool:
    """Return the version that is called by the name of the tool: the newest one that is enabled, if
    any.
    """
    return max(versions, key=lambda tool: (tool.is_enabled, tool.created_at))


def has_same_content(one: Content, other: Content) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in FIELDS)


def outline_tool(slug: str, version: str, tool: Content) -> ToolOutline:
    impl = _mask(tool)
    request = f"{impl.get('method', 'GET')} {impl.get('urlTemplate', '')}" if impl else tool.type
    return ToolOutline(slug=slug, version=version, request=_shorten(request))


def list_changes(old: Content, new: Content) -> list[FieldChange]:
    """Return what differs between two versions of a tool."""
    changes = (
        _compare("request", _mask(old), _mask(new), _render),
        _compare(
            "parameter", _list_parameters(old.arg_schema), _list_parameters(new.arg_schema), str
        ),
        _compare("description", _list_texts(old), _list_texts(new), str),
        _compare(
            "output",
            {"outputSchema": old.output_schema},
            {"outputSchema": new.output_schema},
            _render,
        ),
    )
    return [*islice(chain.from_iterable(changes), MAX_CHANGES)]


def _list_texts(tool: Content) -> dict[str, str | None]:
    tags = ", ".join(tool.tags)
    return {
        "displayName": tool.display_name,
        "description": tool.description or None,
        "tags": tags or None,
    }


def _compare(part: Part, old: JsonMapping, new: JsonMapping, render: Any) -> Iterator[FieldChange]:
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            texts = (None if side.get(name) is None else render(side[name]) for side in (old, new))
            before, after = _shorten_pair(*texts)
            yield FieldChange(part=part, name=_shorten(name), before=before, after=after)


def _list_parameters(schema: JsonObject) -> dict[str, str]:
    """Return the parameters with their schemas as text; other parts of the schema are one entry."""
    properties = schema.get("properties")
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    parameters = {
        str(name): f"{_render(part)}{' (required)' if name in needed else ''}"
        for name, part in (properties.items() if isinstance(properties, dict) else ())
    }
    rest = {
        key: value for key, value in schema.items() if key not in {"properties", "required", "type"}
    }
    return {**parameters, **({"(schema)": _render(rest)} if rest else {})}


def _mask(tool: Content) -> JsonObject:
    return credentials.mask(tool.http_impl) or {}


def _render(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shorten_pair(before: str | None, after: str | None) -> tuple[str | None, str | None]:
    """Return both texts, from shortly before the first difference if they are long."""
    if before is None or after is None:
        return (
            None if before is None else _shorten(before),
            None if after is None else _shorten(after),
        )
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    )
    start = max(0, same - CONTEXT_CHARS) if max(len(before), len(after)) > MAX_VALUE_CHARS else 0
    dots = "…" if start else ""
    return _shorten(dots + before[start:]), _shorten(dots + after[start:])


def _shorten(text: str) -> str:
    return clean(text, MAX_VALUE_CHARS)
