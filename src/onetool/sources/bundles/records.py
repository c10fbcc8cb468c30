"""The file formats of the store: `bundle.json` and one file for each tool.

Files with a newer schema version or invalid content raise `Unreadable` with a reason. Reading
checks the structure, but not the content of schemas and requests: their errors are reported when
the tool is called. The words by which a tool is found come from its file.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import ClassVar, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from onetool.core.schema import ANY_OBJECT
from onetool.sources.bundles.model import (
    Bundle,
    BundleDraft,
    Description,
    DisplayName,
    Id,
    Moment,
    Origin,
    PythonImpl,
    Slug,
    Tags,
    ToolDraft,
    ToolType,
    Version,
    camel_case,
    impl_problem,
)
from onetool.sources.search import SearchDocument
from onetool.sources.search.words import HIDDEN, fold, squeeze, words
from onetool.util.problem import UPGRADE
from onetool_child.json_types import JsonObject

SCHEMA_VERSION = 1
MAX_FILE_BYTES = 1 << 20
MAX_INDEXED_LENGTH = 4_000  # of a description


class Unreadable(Exception):
    """The file is damaged, or is not a file of the store."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


class _File(BaseModel):
    model_config = camel_case
    what: ClassVar[str]
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def read(cls, content: bytes) -> Self:
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"is not valid JSON: {error}") from None
        check_version(data)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or "content"
            problem = f"{field}: {first['msg'].removeprefix('Value error, ')}"
            raise Unreadable(f"is not a valid {cls.what} file: {problem}") from None

    def text(self) -> bytes:
        """Return the content of the file: indented JSON, with non-ASCII characters unescaped."""
        import orjson

        data = self.data()
        try:
            return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # an integer of more than 64 bits
            return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()

    def data(self) -> JsonObject:
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def check_version(data: object) -> None:
    version = data.get("schemaVersion") if isinstance(data, dict) else None
    if type(version) is not int or version < 1:
        raise Unreadable("has no schemaVersion")
    if version > SCHEMA_VERSION:
        reason = (
            f"was written by a newer OneTool (schemaVersion {version}; this one supports"
            f" {SCHEMA_VERSION})"
        )
        raise Unreadable(reason, UPGRADE)


class BundleFile(_File):
    what = "bundle"
    id: Id
    slug: Slug
    display_name: DisplayName
    description: Description = ""
    is_enabled: bool
    created_at: Moment
    modified_at: Moment
    soft_deleted_at: Moment | None = None

    @classmethod
    def new(cls, bundle_id: str, draft: BundleDraft, moment: datetime) -> Self:
        return cls.model_construct(
            id=bundle_id, created_at=moment, modified_at=moment, **dict(draft)
        )

    def replace_with(self, draft: BundleDraft, moment: datetime) -> Self:
        """Return the bundle with the values of the draft, restored if it was deleted.

        Enabling or disabling it does not change `modified_at`.
        """
        sent = {name: value for name, value in draft if name != "is_enabled"}
        update = {**dict(draft), "soft_deleted_at": None}
        if any(getattr(self, name) != value for name, value in sent.items()):
            update["modified_at"] = moment
        return self.model_copy(update=update)

    def to_bundle(self, *, built_in: bool) -> Bundle:
        fields = {
            name: getattr(self, name) for name in Bundle.model_fields if name != "is_built_in"
        }
        return Bundle.model_construct(**fields, is_built_in=built_in)


class ToolFile(_File):
    what = "tool"
    id: Id
    slug: Slug
    version: Version
    display_name: DisplayName
    description: Description = ""
    tags: Tags = Field(default_factory=list)
    type: ToolType
    arg_schema: JsonObject = Field(default_factory=lambda: dict(ANY_OBJECT))
    output_schema: JsonObject | None = None
    http_impl: JsonObject | None = None
    python_impl: PythonImpl | None = None
    origin: Origin | None = None
    is_enabled: bool
    created_at: Moment
    modified_at: Moment

    @classmethod
    def new(cls, tool_id: str, slug: str, version: str, draft: ToolDraft, moment: datetime) -> Self:
        times = {"created_at": moment, "modified_at": moment}
        return cls.model_construct(
            None, id=tool_id, slug=slug, version=version, **times, **dict(draft)
        )

    @model_validator(mode="after")
    def _check_implementation(self) -> Self:
        problem = impl_problem(self.type, self.http_impl, self.python_impl)
        if problem:
            raise ValueError(problem)
        return self


# --- search text ----------------------------------------------------------------------------------


def list_words(tool: ToolFile, bundle: tuple[str, str]) -> list[list[str]]:
    """Return the words of each field. `bundle` are the names of its bundle.

    Names of several words are included without separators too, for matches inside words.
    """
    names = [words(name) for name in (tool.slug, tool.display_name)]
    for name_words, name in zip(names, (tool.slug, tool.display_name), strict=True):
        name_words.append(f"{HIDDEN}{squeeze(name)}")
    others = (" ".join(tool.tags), tool.description[:MAX_INDEXED_LENGTH], " ".join(bundle))
    return [*names, *map(words, others)]


def fold_name(text: str) -> str:
    return fold(text.strip())


def to_document(tool: ToolFile, bundle_slug: str) -> SearchDocument:
    """Return the tool as a document for `ot.search`."""
    about = f"{tool.display_name}. {tool.description} {' '.join(tool.tags)}"
    properties: JsonObject = {}
    if has_valid_structure(tool.arg_schema):
        properties = tool.arg_schema.get("properties", {})
    arguments = (
        f"{name} {part.get('description', '')}" if isinstance(part, Mapping) else name
        for name, part in properties.items()
    )
    return SearchDocument("tool", f"{bundle_slug}.{tool.slug}", about, " ".join(arguments))


def has_valid_structure(schema: object) -> bool:
    """Return whether a schema has the structure that signatures and searches rely on.

    It may still be invalid.
    """
    if not isinstance(schema, Mapping):
        return False
    parts = schema.get("properties", {})
    required = schema.get("required", [])
    return (
        isinstance(parts, Mapping)
        and isinstance(required, list)
        and all(map(_is_valid_property, parts.values()))
    )


def _is_valid_property(part: object) -> bool:
    if isinstance(part, bool):
        return True
    kinds = {"type": str | list, "enum": list, "description": str}
    return isinstance(part, Mapping) and all(
        isinstance(part[key], kind) for key, kind in kinds.items() if key in part
    )
