"""The models of what people send and get, and the errors that they can get.

Models validate input, serialize output and define the OpenAPI schemas. Names are snake_case here
and camelCase in JSON over REST. A response has every field, except `absent` fields that are empty.
A command prints the fields by their own names.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import not_
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic.json_schema import GenerateJsonSchema

from onetool.errors import StorageError, ToolError
from onetool.sources.bundles import rules
from onetool.sources.bundles.model import Id, Tag, check_depth, to_bundle_error
from onetool.util.text import describe_problem
from onetool.util.time_format import in_utc, parse_time
from onetool_child.json_types import JsonMapping, JsonObject

DEFAULT_PAGE_SIZE = 25
MAX_PAGE_SIZE = 256
MAX_NUMBER = 10**15


def camel_case(name: str) -> str:
    """Return the name as JSON spells it: `bundleID` for `bundle_id`."""
    first, *rest = name.split("_")
    return first + "".join({"id": "ID", "ids": "IDs"}.get(word, word.capitalize()) for word in rest)


def absent(default: Any = "", description: str | None = None) -> Any:
    """Return a field that is omitted from the response if it is empty."""
    return Field(default=default, exclude_if=not_, description=description)


class ApiSchemas(GenerateJsonSchema):
    """JSON Schema without titles."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


class _Parameters(ApiSchemas):
    """JSON Schema for query parameters: an optional one may be omitted but is never null."""

    def nullable_schema(self, schema: Any) -> JsonObject:
        return self.generate_inner(schema["schema"])


class ApiModel(BaseModel):
    model_config = ConfigDict(
        alias_generator=camel_case,
        defer_build=True,
        extra="forbid",
        from_attributes=True,
        json_schema_serialization_defaults_required=True,
        validate_by_name=True,
        validate_by_alias=True,
    )

    @classmethod
    def parse(cls, body: JsonMapping) -> Self:
        """Validate a request body."""
        check_depth(body)
        try:
            return cls.model_validate(dict(body))
        except ValidationError as error:
            raise to_bundle_error(error) from None

    def as_json(self) -> JsonObject:
        return self.model_dump(mode="json", by_alias=True)


Count = Annotated[int, Field(ge=0)]


def _format_time(value: object) -> object:
    return in_utc(value, "seconds") if isinstance(value, float) else value


Time = Annotated[
    str,
    BeforeValidator(_format_time),
    WithJsonSchema({"type": "string", "format": "date-time", "description": "RFC 3339, in UTC"}),
]
# --- queries --------------------------------------------------------------------------------------


def _parse_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not text.strip("0"):
        raise ValueError(f"{text!r} is not a positive integer")
    return int(text) if len(text) <= len(str(MAX_NUMBER)) else MAX_NUMBER


def _parse_flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError(f"invalid boolean {text!r} (expected true or false)")
    return text == "true"


def _parse_milliseconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", text, re.ASCII):
        raise ValueError(f"{text!r} is not a number of milliseconds")
    return float(text)


def _parse_moment(text: str) -> float:
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"invalid time {text!r} (expected RFC 3339, such as 2027-01-31T12:00:00Z)"
        ) from None


def _check_tag(text: str) -> str:
    if problem := rules.tags_problem([text]):
        raise ValueError(problem)
    return text


def _split(values: list[str]) -> list[str]:
    return [item for text in values for item in text.split(",")]


Flag = Annotated[bool, BeforeValidator(_parse_flag)]
Number = Annotated[
    int, BeforeValidator(_parse_number), WithJsonSchema({"type": "integer", "minimum": 1})
]
Size = Annotated[Number, AfterValidator(lambda size: min(size, MAX_PAGE_SIZE))]
Milliseconds = Annotated[
    float | None,
    BeforeValidator(_parse_milliseconds),
    WithJsonSchema({"type": "number", "minimum": 0}),
]
Moments = Annotated[
    float | None,
    BeforeValidator(_parse_moment),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
Ids = Annotated[list[Id], BeforeValidator(_split)]
Tags = Annotated[list[Annotated[Tag, AfterValidator(_check_tag)]], BeforeValidator(_split)]
SIZE_DESCRIPTION = f"Maximum number of items (up to {MAX_PAGE_SIZE})"
LIST_DESCRIPTION = "repeated or comma-separated"
BUNDLE_IDS = Field(default=None, description=f"Only these bundles; {LIST_DESCRIPTION}")


class Query(ApiModel):
    """The query parameters of a request.

    Unknown ones are rejected before, and so are repeated ones except `LISTS`.
    """

    model_config = ConfigDict(extra="ignore", validate_by_name=False)
    ALIASES: ClassVar[tuple[str, ...]] = ()  # other names that are accepted
    LISTS: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def parameters(cls) -> JsonObject:
        return cls.model_json_schema(by_alias=True, schema_generator=_Parameters)

    @classmethod
    def read(cls, values: Mapping[str, list[str]]) -> Self:
        """Validate the values of the parameters."""
        parameters: dict[str, object] = {}
        for name, texts in values.items():
            if name not in cls.LISTS and len(texts) > 1:
                raise AdminError(
                    "invalid",
                    f"{name}: given {len(texts)} times, expected once",
                    {"parameter": name},
                )
            parameters[name] = texts if name in cls.LISTS else texts[0]
        try:
            return cls.model_validate(parameters)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            name = str(first["loc"][0])
            raise AdminError(
                "invalid", f"{name}: {describe_problem(first)}", {"parameter": name}
            ) from None


class PageQuery(Query):
    page_size: Size = Field(default=DEFAULT_PAGE_SIZE, description=SIZE_DESCRIPTION)
    page_token: str = Field(
        default="", description="nextPageToken of the previous page, with the same filters"
    )


class FindingLocation(ApiModel):
    file: str
    line: int | None


class Finding(ApiModel):
    """A problem or warning."""

    message: str
    hint: str
    location: FindingLocation | None
    code: str
    level: Literal["problem", "warning"]
    fix: str = absent("", "Fix that is safe to make, for POST /api/health/fixes")


class PageResponse(ApiModel):
    next_page_token: str = absent(
        description="Send as pageToken with the same filters to get the next page"
    )


# --- errors ---------------------------------------------------------------------------------------


class AdminError(ToolError):
    """An error with a code of `onetool.server.http.errors.STATUS`. REST shows the details."""

    type = "admin_error"

    def __init__(
        self, code: str, message: str, details: JsonMapping | None = None, *, hint: str = ""
    ) -> None:
        super().__init__(message, code=code, hint=hint, details=dict(details or {}))


@contextmanager
def raising(code: str, **details: Any) -> Iterator[None]:
    """Give errors of the block this code, unless they have one for REST."""
    try:
        yield
    except (AdminError, StorageError):
        raise
    except ToolError as error:
        raise AdminError(code, error.message, details, hint=error.hint) from None
