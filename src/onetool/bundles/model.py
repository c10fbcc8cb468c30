"""Bundles and stored tools as data: what a person sends, what the store gives, and how both are spelt in JSON.

A draft is checked whole when it is made. What the store gives was checked when it was stored; it is never written to.
JSON is camelCase, Python snake_case. Nothing here touches a disk.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

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

from onetool.bundles import rules
from onetool.errors import ArgumentError, BundleError
from onetool.schema import ANY_OBJECT, JSON, Schema

T = TypeVar("T")
MOST_LEVELS: Final = 100  # of objects and lists inside each other
Match = Literal["prefix", "word", "fuzzy"]
ToolType = Literal["http", "python", "go"]


def now() -> datetime:
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """RFC 3339, always in UTC and always of the same length, so that texts sort as moments do."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("must say its zone, like 2026-11-15T12:00:00Z")
    return moment.astimezone(UTC)


def _refused(problem: str | None) -> None:
    if problem:
        raise ValueError(problem)


def _checked_by(find_problem: Callable[[Any], str | None]) -> AfterValidator:
    def check(value: Any) -> Any:
        _refused(find_problem(value))
        return value

    return AfterValidator(check)


# What validators check, as JSON Schema can say it.
_DISPLAY_NAME: Final[JSON] = {
    "type": "string",
    "minLength": 1,
    "maxLength": rules.MOST_IN_DISPLAY_NAME,
    "allOf": [{"pattern": r"\S"}, {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"}],
    "description": "One line, not blank",
}
_NAME: Final[JSON] = {"type": "string", "minLength": 1, "maxLength": rules.MOST_CODE_POINTS}
_SLUG: Final[JSON] = {
    **_NAME,
    "pattern": r"^[\p{L}\p{Nd}-]+$",
    "description": "Letters and decimal digits of any script, and dashes",
}
_VERSION: Final[JSON] = {
    **_NAME,
    "pattern": r"^(?!\.{1,2}$)[\p{L}\p{Nd}.-]+$",
    "description": "Like a slug, and with dots; an opaque label without an order",
}
_ID: Final[JSON] = {
    "type": "string",
    "format": "uuid",
    "pattern": "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$",
    "description": "A UUID of version 7",
    "examples": [rules.EXAMPLE_ID],
}
_MOMENT: Final[JSON] = {"type": "string", "format": "date-time", "description": "RFC 3339, in UTC"}
_TAG: Final[JSON] = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"}

Moment = Annotated[
    datetime,
    Field(strict=False),
    AfterValidator(_in_utc),
    PlainSerializer(timestamp, when_used="json"),
    WithJsonSchema(_MOMENT),
]
Slug = Annotated[str, _checked_by(rules.slug_problem), WithJsonSchema(_SLUG)]
Version = Annotated[str, _checked_by(rules.version_problem), WithJsonSchema(_VERSION)]
DisplayName = Annotated[str, _checked_by(rules.display_name_problem), WithJsonSchema(_DISPLAY_NAME)]
Description = Annotated[
    str,
    _checked_by(rules.description_problem),
    WithJsonSchema({"type": "string", "maxLength": rules.MOST_IN_DESCRIPTION}),
]
Tag = Annotated[str, WithJsonSchema(_TAG)]
Tags = Annotated[
    list[Tag],
    _checked_by(rules.tags_problem),
    Field(json_schema_extra={"uniqueItems": True, "maxItems": rules.MOST_TAGS}),
]
Id = Annotated[str, AfterValidator(partial(rules.an_id, what="bundle or tool")), WithJsonSchema(_ID)]


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


class _Model(BaseModel):
    model_config = camel_case

    def as_json(self) -> JSON:
        """As REST shows it."""
        return self.model_dump(mode="json", by_alias=True)


# --- what is sent --------------------------------------------------------------------------------------------------


class _Draft(_Model):
    @classmethod
    def of(cls, body: Self | Mapping[str, Any]) -> Self:
        """The draft that a body of JSON is, or a BundleError that says what is wrong with it."""
        if isinstance(body, cls):
            return body
        if not isinstance(body, Mapping):
            raise rules.invalid("the body must be a JSON object")
        check_depth(body)
        try:
            return cls.model_validate(dict(body))
        except ValidationError as error:
            raise refusal(error) from None


class BundleDraft(_Draft):
    slug: Slug
    display_name: DisplayName
    is_enabled: bool
    description: Description = ""


class Switch(_Draft):
    """The body of a PATCH."""

    is_enabled: bool


class PythonImpl(_Model):
    function: Annotated[str, Field(min_length=1, max_length=256)]


class ToolDraft(_Draft):
    display_name: DisplayName
    is_enabled: bool
    type: ToolType
    http_impl: JSON | None = None
    python_impl: PythonImpl | None = None
    description: Description = ""
    tags: Tags = Field(default_factory=list)
    arg_schema: JSON = Field(default_factory=lambda: dict(ANY_OBJECT))
    output_schema: JSON | None = None

    @model_validator(mode="after")
    def _has_the_impl_of_its_type(self) -> Self:
        _refused(impl_problem(self.type, self.http_impl, self.python_impl))
        return self

    @field_validator("http_impl")
    @classmethod
    def _http_impl_is_right(cls, impl: JSON | None) -> JSON | None:
        """Kept as it was sent: what it stands for is made of it when the tool is called."""
        if impl is not None:
            from onetool.backends.http_tool.impl import HttpImpl

            HttpImpl.model_validate(impl)
        return impl

    @model_validator(mode="after")
    def _declares_its_placeholders(self) -> Self:
        if self.http_impl is not None:
            from onetool.backends.http_tool.declared import placeholder_problem
            from onetool.backends.http_tool.impl import HttpImpl

            _refused(placeholder_problem(HttpImpl.model_validate(self.http_impl), self.arg_schema))
        return self

    @field_validator("arg_schema")
    @classmethod
    def _takes_an_object(cls, schema: JSON) -> JSON:
        from onetool.backends.http_tool import credentials

        kinds = schema.get("type", "object")
        if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
            raise ValueError('must be the schema of an object, {"type": "object", ...}, because arguments have names')
        _refused(credentials.mask_problem(schema))
        return _checked_schema(schema)

    @field_validator("output_schema")
    @classmethod
    def _is_a_schema(cls, schema: JSON | None) -> JSON | None:
        return None if schema is None else _checked_schema(schema)


def impl_problem(kind: ToolType, http: JSON | None, python: PythonImpl | None) -> str | None:
    wanted, other = ("httpImpl", "pythonImpl") if kind == "http" else ("pythonImpl", "httpImpl")
    given = {"httpImpl": http, "pythonImpl": python}
    if given[wanted] is None:
        return f"a tool of type {kind} needs {wanted}"
    return f"a tool of type {kind} has no {other}" if given[other] is not None else None


def credential_warning(bundle_slug: str, place: str) -> str:
    from onetool.util.secret_finder import secret_name

    name = secret_name(bundle_slug, place.rpartition(".")[2] if place != "auth.value" else "auth")
    return (
        f"httpImpl.{place} holds a literal credential: it is masked when it is shown and left out of exports. "
        f"Hint: put it into secrets.yaml as {name}, and write ${{secret:{name}}}"
    )


def schema_warning(place: str) -> str:
    return (
        f"argSchema.{place} holds a literal credential: it is masked when it is shown and left out of exports. "
        "Hint: remove it, and write ${secret:NAME} in httpImpl"
    )


def _checked_schema(schema: JSON) -> JSON:
    try:
        Schema.from_json(schema).problem({})
    except ArgumentError as error:
        reason = str(error.fields["reason"]).partition("\n")[0]
        raise ValueError(f"the schema is not valid: {reason}") from None
    return schema


def check_depth(value: Any, level: int = 0) -> None:
    """What is deeper than any schema a person writes is meant to break somebody's parser."""
    if level > MOST_LEVELS:
        raise rules.invalid(f"the body has more than {MOST_LEVELS} levels of objects and lists inside each other")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_text(key)
            check_depth(item, level + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            check_depth(item, level + 1)
    elif isinstance(value, str):
        _check_text(value)
    elif not (value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value))):
        raise rules.invalid(f"the body cannot be written down: {value!r} is no value of JSON")


def _check_text(text: Any) -> None:
    problem = rules.unwritable_problem(text) if isinstance(text, str) else "a key is no text"
    if problem:
        raise rules.invalid(f"the body cannot be written down: {problem}")


def refusal(error: ValidationError) -> BundleError:
    """All that is wrong, with the place of each; never the values, because they may be secrets."""
    problems = [
        {"field": ".".join(map(str, one["loc"])) or "body", "problem": one["msg"].removeprefix("Value error, ")}
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    text = "; ".join(f"{one['field']}: {one['problem']}" for one in problems)
    return BundleError(f"the body is not valid: {text}", code="invalid", details={"problems": problems})


# --- what the store gives ------------------------------------------------------------------------------------------


class Bundle(_Model):
    id: Id
    slug: Slug
    display_name: str
    description: str = ""
    is_enabled: bool
    is_built_in: bool = False
    created_at: Moment
    modified_at: Moment


class StoredTool(_Model):
    """`bundle_enabled` is the switch of its bundle: a tool is in use where both are on. REST does not show it."""

    id: Id
    bundle_id: Annotated[Id, Field(alias="bundleID")]
    bundle_slug: Slug
    slug: Slug
    version: Version
    display_name: str
    description: str = ""
    tags: list[str] = Field(default_factory=list)
    type: ToolType
    arg_schema: JSON
    output_schema: JSON | None = None
    http_impl: JSON | None = Field(default=None, exclude_if=is_none)
    python_impl: PythonImpl | None = Field(default=None, exclude_if=is_none)
    is_enabled: bool
    is_built_in: bool = False
    created_at: Moment
    modified_at: Moment
    call_count: int = 0
    last_called_at: Moment | None = None
    disabled_reason: str | None = Field(default=None, exclude_if=is_none)
    bundle_enabled: bool = Field(default=True, exclude=True)

    @property
    def in_use(self) -> bool:
        return self.is_enabled and self.bundle_enabled and self.disabled_reason is None

    def as_json(self) -> JSON:
        """As REST shows it: literal credentials are masked, and there are warnings about them."""
        from onetool.backends.http_tool import credentials

        shown = self.as_stored()
        if found := credentials.find(self.http_impl):
            shown["httpImpl"] = credentials.mask(self.http_impl)
            shown["warnings"] = [credential_warning(self.bundle_slug, place) for place, _ in found]
        if found := credentials.find_in_schema(self.arg_schema):
            shown["argSchema"] = credentials.replace_in_schema(self.arg_schema, lambda _place, _value: credentials.MASK)
            shown["warnings"] = [*shown.get("warnings", ()), *(schema_warning(place) for place, _ in found)]
        return shown

    def as_stored(self) -> JSON:
        """With credentials, so never for anybody to see."""
        return super().as_json()

    def disabled(self, reason: str) -> Self:
        """The same tool, shown as disabled; its file is not touched."""
        return self.model_copy(update={"disabled_reason": reason})


@dataclass(frozen=True, slots=True)
class Found:
    """One hit of a search. `score` never rises from one hit to the next."""

    tool: StoredTool
    score: float
    match: Match

    def as_json(self) -> JSON:
        return {**self.tool.as_json(), "score": self.score, "match": self.match}


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items, and the token that gives the next ones; None where there are no more."""

    items: list[T]
    next_token: str | None = None
