"""Models of bundles and stored tools: drafts, stored values, and their JSON.

A draft is validated when it is created. Values from the store were validated when they were stored,
and are immutable. JSON is camelCase, Python snake_case. Nothing here touches the disk.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from operator import not_
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from onetool.core.foreign_schema import ForeignSchema
from onetool.core.schema import ANY_OBJECT
from onetool.errors import ArgumentError, BundleError
from onetool.sources.bundles import rules
from onetool.util.problem import MAX_LISTED_PROBLEMS
from onetool.util.text import MAX_QUOTED_CHARS, describe_problem, shorten
from onetool_child.json_types import JsonMapping, JsonObject

T = TypeVar("T")
MAX_NESTING = 100  # nested objects and lists
MAX_COUNTED_PROBLEMS = 10_000  # listing more of them, to show the first, would take long
Match = Literal["prefix", "word", "fuzzy"]
ToolType = Literal["http", "python", "go"]
Origin = Literal["openapi"]  # of an imported version; one that a person wrote or edited has none


def now() -> datetime:
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """Return the time in RFC 3339, in UTC and of fixed length, so that strings sort like times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _to_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("must have a time zone, like 2026-11-15T12:00:00Z")
    return moment.astimezone(UTC)


def _raise_problem(problem: str | None) -> None:
    if problem:
        raise ValueError(problem)


def _make_validator(find_problem: Callable[[Any], str | None]) -> AfterValidator:
    def check(value: Any) -> Any:
        _raise_problem(find_problem(value))
        return value

    return AfterValidator(check)


# The rules of the validators, as far as JSON Schema can express them.
_DISPLAY_NAME: JsonObject = {
    "type": "string",
    "minLength": 1,
    "maxLength": rules.MAX_DISPLAY_NAME_LENGTH,
    "allOf": [{"pattern": r"\S"}, {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"}],
    "description": "One line, not blank",
}
_NAME: JsonObject = {"type": "string", "minLength": 1, "maxLength": rules.MAX_NAME_LENGTH}
_SLUG: JsonObject = {
    **_NAME,
    "pattern": r"^[\p{L}\p{Nd}-]+$",
    "description": "Letters and decimal digits of any script, and hyphens",
}
_VERSION: JsonObject = {
    **_NAME,
    "pattern": r"^(?!\.{1,2}$)[\p{L}\p{Nd}.-]+$",
    "description": "Like a slug, but with dots; an opaque label without an order",
}
_ID: JsonObject = {
    "type": "string",
    "format": "uuid",
    "pattern": (
        "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"
    ),
    "description": "A UUID of version 7",
    "examples": [rules.EXAMPLE_ID],
}
_MOMENT: JsonObject = {"type": "string", "format": "date-time", "description": "RFC 3339, in UTC"}
_TAG: JsonObject = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"}

Moment = Annotated[
    datetime,
    Field(strict=False),
    AfterValidator(_to_utc),
    PlainSerializer(timestamp, when_used="json"),
    WithJsonSchema(_MOMENT),
]
Slug = Annotated[str, _make_validator(rules.slug_problem), WithJsonSchema(_SLUG)]
PackSlug = Annotated[str, _make_validator(rules.bundle_slug_problem), WithJsonSchema(_SLUG)]
Version = Annotated[str, _make_validator(rules.version_problem), WithJsonSchema(_VERSION)]
DisplayName = Annotated[
    str, _make_validator(rules.display_name_problem), WithJsonSchema(_DISPLAY_NAME)
]
Description = Annotated[
    str,
    _make_validator(rules.description_problem),
    WithJsonSchema({"type": "string", "maxLength": rules.MAX_DESCRIPTION_LENGTH}),
]
Tag = Annotated[str, WithJsonSchema(_TAG)]
Tags = Annotated[
    list[Tag],
    _make_validator(rules.tags_problem),
    Field(json_schema_extra={"uniqueItems": True, "maxItems": rules.MAX_TAGS}),
]
Id = Annotated[
    str, AfterValidator(partial(rules.check_id, what="bundle or tool")), WithJsonSchema(_ID)
]


camel_case = ConfigDict(
    extra="forbid",
    frozen=True,
    strict=True,
    defer_build=True,
    alias_generator=to_camel,
    json_schema_serialization_defaults_required=True,
)


def is_none(value: object) -> bool:
    return value is None


class StoredModel(BaseModel):
    """A model whose JSON is camelCase."""

    model_config = camel_case

    def as_json(self) -> JsonObject:
        """Return the REST representation."""
        return self.model_dump(mode="json", by_alias=True)


# --- requests -------------------------------------------------------------------------------------


class _Draft(StoredModel):
    @classmethod
    def of(cls, body: Self | JsonMapping) -> Self:
        """Return the draft for a JSON body. Raise BundleError if it is not valid."""
        if isinstance(body, cls):
            return body
        if not isinstance(body, Mapping):
            raise rules.invalid("the body must be a JSON object")
        check_depth(body)
        try:
            return cls.model_validate(dict(body))
        except ValidationError as error:
            raise to_bundle_error(error) from None


class BundleDraft(_Draft):
    slug: PackSlug
    display_name: DisplayName
    is_enabled: bool
    description: Description = ""


class Switch(_Draft):
    """The body of a PATCH."""

    is_enabled: bool


class PythonImpl(StoredModel):
    function: Annotated[str, Field(min_length=1, max_length=256)]


class ToolDraft(_Draft):
    display_name: DisplayName
    is_enabled: bool
    type: ToolType
    http_impl: JsonObject | None = None
    python_impl: PythonImpl | None = None
    description: Description = ""
    tags: Tags = Field(default_factory=list)
    arg_schema: JsonObject = Field(default_factory=lambda: dict(ANY_OBJECT))
    output_schema: JsonObject | None = None
    origin: Origin | None = None

    @model_validator(mode="after")
    def _check_implementation(self) -> Self:
        _raise_problem(impl_problem(self.type, self.http_impl, self.python_impl))
        return self

    @field_validator("http_impl")
    @classmethod
    def _check_http_impl(cls, impl: JsonObject | None) -> JsonObject | None:
        """Validate the implementation, but keep it as it was sent."""
        if impl is not None:
            from onetool.sources.http.definition import HttpImpl

            HttpImpl.model_validate(impl)
        return impl

    @model_validator(mode="after")
    def _check_placeholders(self) -> Self:
        if self.http_impl is not None:
            from onetool.sources.http.definition import HttpImpl, find_placeholder_problem

            _raise_problem(
                find_placeholder_problem(HttpImpl.model_validate(self.http_impl), self.arg_schema)
            )
        return self

    @field_validator("arg_schema")
    @classmethod
    def _check_arg_schema(cls, schema: JsonObject) -> JsonObject:
        from onetool.sources.http import credentials

        kinds = schema.get("type", "object")
        if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
            raise ValueError(
                'must be the schema of an object, {"type": "object", ...}, because arguments are'
                " named"
            )
        _raise_problem(credentials.find_mask_problem(schema))
        return _validate_schema(schema)

    @field_validator("output_schema")
    @classmethod
    def _check_output_schema(cls, schema: JsonObject | None) -> JsonObject | None:
        return None if schema is None else _validate_schema(schema)


def impl_problem(kind: ToolType, http: JsonObject | None, python: PythonImpl | None) -> str | None:
    expected, other = ("httpImpl", "pythonImpl") if kind == "http" else ("pythonImpl", "httpImpl")
    impls = {"httpImpl": http, "pythonImpl": python}
    if impls[expected] is None:
        return f"a tool of type {kind} requires {expected}"
    return f"a tool of type {kind} must not have {other}" if impls[other] is not None else None


def list_warnings(bundle_slug: str, impl: JsonMapping | None, schema: object) -> list[str]:
    """Return the warnings about literal credentials in a tool."""
    from onetool.sources.http import credentials
    from onetool.util.secret_finder import secret_name

    effect = "contains a literal credential, which is masked in responses and removed from exports"
    warnings = []
    for location, _ in credentials.find(impl):
        name = secret_name(
            bundle_slug, "auth" if location.endswith("auth.value") else location.rpartition(".")[2]
        )
        hint = f"run `onetool secret set {name}`, and write ${{secret:{name}}}"
        warnings.append(f"httpImpl.{location} {effect}. Hint: {hint}")
    hint = "remove it, and write ${secret:NAME} in httpImpl"
    places = (location for location, _ in credentials.find_in_schema(schema))
    return [*warnings, *(f"argSchema.{location} {effect}. Hint: {hint}" for location in places)]


def _validate_schema(schema: JsonObject) -> JsonObject:
    try:
        foreign = ForeignSchema.from_json(schema)
        if foreign.unsupported_patterns:
            raise ValueError(f"invalid schema: {foreign.pattern_problem}")
        foreign.problem({})
    except ArgumentError as error:
        reason = str(error.fields["reason"]).partition("\n")[0]
        raise ValueError(f"invalid schema: {reason}") from None
    return schema


def check_depth(value: Any, level: int = 0) -> None:
    """Reject nesting that would break a parser, and text that UTF-8 cannot encode."""
    if level > MAX_NESTING:
        raise rules.invalid(
            f"the body is nested too deeply (at most {MAX_NESTING} levels of objects and lists)"
        )
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_text(key)
            check_depth(item, level + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            check_depth(item, level + 1)
    elif isinstance(value, str):
        _check_text(value)
    elif not (
        value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value))
    ):
        raise rules.invalid(f"the body cannot be stored: {value!r} is not a JSON value")


def _check_text(text: Any) -> None:
    problem = rules.unwritable_problem(text) if isinstance(text, str) else "a key is not a string"
    if problem:
        raise rules.invalid(f"the body cannot be stored: {problem}")


def to_bundle_error(error: ValidationError) -> BundleError:
    """Return the first problems and their fields, without values, which may be secrets."""
    count = error.error_count()
    if count > MAX_COUNTED_PROBLEMS:
        return BundleError(
            f"invalid body: {count:,} problems", code="invalid", details={"problems": []}
        )
    problems = []
    for item in error.errors(include_url=False, include_context=False, include_input=False)[
        :MAX_LISTED_PROBLEMS
    ]:
        field = shorten(".".join(map(str, item["loc"])), MAX_QUOTED_CHARS) or "body"
        problems.append({"field": field, "problem": describe_problem(item)})
    text = "; ".join(f"{problem['field']}: {problem['problem']}" for problem in problems)
    if count > MAX_LISTED_PROBLEMS:
        text += f"; and {count - MAX_LISTED_PROBLEMS:,} more"
    return BundleError(f"invalid body: {text}", code="invalid", details={"problems": problems})


# --- responses ------------------------------------------------------------------------------------


class Bundle(StoredModel):
    id: Id
    slug: Slug
    display_name: str
    description: str = ""
    is_enabled: bool
    is_built_in: bool = False
    created_at: Moment
    modified_at: Moment


class StoredTool(StoredModel):
    """A version of a stored tool.

    A tool can be called if `is_enabled` and `bundle_enabled` are both true. REST does not show
    `bundle_enabled`.
    """

    id: Id
    bundle_id: Annotated[Id, Field(alias="bundleID")]
    bundle_slug: Slug
    slug: Slug
    version: Version
    display_name: str
    description: str = ""
    tags: list[str] = Field(default_factory=list)
    type: ToolType
    arg_schema: JsonObject
    output_schema: JsonObject | None = None
    http_impl: JsonObject | None = Field(default=None, exclude_if=is_none)
    python_impl: PythonImpl | None = Field(default=None, exclude_if=is_none)
    origin: Origin | None = Field(default=None, exclude_if=is_none)
    is_enabled: bool
    is_built_in: bool = False
    created_at: Moment
    modified_at: Moment
    call_count: int = 0
    last_called_at: Moment | None = None
    disabled_reason: str | None = Field(default=None, exclude_if=is_none)
    problems: list[str] = Field(default_factory=list, exclude_if=not_)
    bundle_enabled: bool = Field(default=True, exclude=True)

    @property
    def in_use(self) -> bool:
        return self.is_enabled and self.bundle_enabled and self.disabled_reason is None

    def to_view(self) -> "StoredToolView":
        """Return the tool for clients: literal credentials are masked, with warnings about them."""
        from onetool.sources.http import credentials

        warnings = list_warnings(self.bundle_slug, self.http_impl, self.arg_schema)
        fields = dict(self)
        if warnings:
            fields["http_impl"] = credentials.mask(self.http_impl)
            fields["arg_schema"] = credentials.replace_in_schema(
                self.arg_schema, lambda *_: credentials.MASK
            )
        return StoredToolView.model_construct(**fields, warnings=warnings)

    def as_json(self) -> JsonObject:
        """Return the REST representation."""
        return self.to_view().as_stored()

    def as_stored(self) -> JsonObject:
        """Return the tool with its credentials. Never show this to a client."""
        return super().as_json()

    def as_disabled(self, reason: str) -> Self:
        """Return a copy that is shown as disabled; its file is not changed."""
        return self.model_copy(update={"disabled_reason": reason})


class StoredToolView(StoredTool):
    """A stored tool. Literal credentials are masked."""

    warnings: list[str] = Field(
        default=[], exclude_if=not_, description="Literal credentials in the tool"
    )

    def to_view(self) -> "StoredToolView":
        return self


class FoundTool(StoredToolView):
    score: float
    match: Match


@dataclass(frozen=True, slots=True)
class ToolHit:
    """A search hit. Hits are ordered by descending `score`."""

    tool: StoredTool
    score: float
    match: Match

    def to_view(self) -> FoundTool:
        return FoundTool.model_construct(
            **dict(self.tool.to_view()), score=self.score, match=self.match
        )

    def as_json(self) -> JsonObject:
        return self.to_view().as_json()


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of items, and the token of the next page; None on the last page."""

    items: list[T]
    next_token: str | None = None
