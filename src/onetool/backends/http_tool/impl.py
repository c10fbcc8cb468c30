"""`httpImpl`: the validated definition of an HTTP tool, as in storage and in the REST API.

This imports pydantic, so it is only imported when a tool is stored or first called.
"""

import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from onetool.backends.http_tool import credentials
from onetool.backends.http_tool.body import parse_body
from onetool.backends.http_tool.headers import BasicAuth, HeaderTemplate, check_headers
from onetool.backends.http_tool.query import ParameterTemplate
from onetool.backends.http_tool.request import RequestTemplate
from onetool.backends.http_tool.url import parse_url
from onetool.config.model import CamelSection, to_upper
from onetool.schema import JSON

_RANGE = re.compile(r"([1-5][0-9]{2})-([1-5][0-9]{2})")


def _to_string(value: Any) -> Any:
    """Convert numbers and booleans to strings."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else value


def _check_url(text: str) -> str:
    parse_url(text)
    return text


def _check_query(query: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in query.items():
        ParameterTemplate.of(name, value)
    return query


def _check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    check_headers(headers)
    return headers


def _check_status(code: int | str) -> int | str:
    span = parse_status_range(code)
    if span is None or not span:
        raise ValueError("must be a status code like 200 or a range like 200-299")
    return code


def parse_status_range(code: int | str) -> range | None:
    """Return the status codes of `404` or `"200-299"`, or None if it is invalid."""
    if isinstance(code, int):
        return range(code, code + 1) if 100 <= code <= 599 else None  # noqa: PLR2004 - status codes of HTTP
    match = _RANGE.fullmatch(code)
    return range(int(match[1]), int(match[2]) + 1) if match else None


def _check_selector(selector: str) -> str:
    import jmespath
    from jmespath.exceptions import JMESPathError

    try:
        jmespath.compile(selector)
    except (JMESPathError, RecursionError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"is not a valid JMESPath expression: {reason}") from None
    return selector


_URL: Final[JSON] = {
    "type": "string",
    "pattern": r"^https?://[^/?#]+",
    "description": "Placeholders are ${argument}, ${csv:list} and ${secret:NAME}; they are not allowed in the host",
    "examples": ["https://api.example.com/v1/weather/${city}"],
}
Count = Annotated[int, Field(strict=True, gt=0)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Text = Annotated[str, BeforeValidator(_to_string)]
Method = Annotated[Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"], BeforeValidator(to_upper)]
Status = Annotated[Annotated[int, Field(strict=True)] | str, AfterValidator(_check_status)]


class SecretSafeModel(CamelSection):
    """A model whose errors never contain the rejected value, which may be a secret."""

    model_config = ConfigDict(hide_input_in_errors=True)


class HttpAuth(SecretSafeModel):
    type: Literal["apiKey", "bearer", "basic"]
    location: Literal["header", "query"] | None = Field(default=None, alias="in")
    name: str | None = None
    value: str = Field(min_length=1, repr=False)

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        if self.type == "apiKey" and not (self.location and self.name):
            raise ValueError("requires in (header or query) and name for type apiKey")
        if self.type != "apiKey" and (self.location or self.name):
            raise ValueError(
                f"of type {self.type} uses the Authorization header; in and name are only valid for apiKey"
            )
        self.credential  # noqa: B018 - raises if its templates are invalid
        return self

    @functools.cached_property
    def credential(self) -> HeaderTemplate | BasicAuth | ParameterTemplate:
        if self.type == "basic":
            return BasicAuth.of(self.value)
        if self.type == "bearer":
            return HeaderTemplate.of("Authorization", f"Bearer {self.value}", is_credential=True)
        return (ParameterTemplate if self.location == "query" else HeaderTemplate).of(
            self.name or "", self.value, is_credential=True
        )


class ResponseOptions(SecretSafeModel):
    """`response`: how to parse the response, and which part of it is the result."""

    mode: Literal["auto", "json", "text"] = "auto"
    selector: Annotated[str, AfterValidator(_check_selector)] | None = None

    @model_validator(mode="after")
    def _check_selector_mode(self) -> Self:
        if self.selector is not None and self.mode == "text":
            raise ValueError("has a selector, which requires JSON; remove it or set mode to json")
        return self


class HttpImpl(SecretSafeModel):
    method: Method
    url_template: Annotated[str, AfterValidator(_check_url), WithJsonSchema(_URL)]
    query: Annotated[Mapping[str, Text], AfterValidator(_check_query)] = {}
    headers: Annotated[Mapping[str, Text], AfterValidator(_check_headers)] = Field(default={}, repr=False)
    body: Any = Field(default=None, repr=False)
    auth: HttpAuth | None = None
    timeout_ms: Count | None = None
    retries: Annotated[CountOrZero, Field(le=10)] | None = None
    retry_non_idempotent: Annotated[bool, Field(strict=True)] = False
    success_codes: tuple[Status, ...] = ("200-299",)
    error_mode: Literal["fail", "empty"] = "fail"
    response: ResponseOptions = Field(default_factory=ResponseOptions)
    max_calls_per_minute: Count | None = None
    max_request_bytes: Count | None = None
    max_response_bytes: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _reject_masks(cls, data: Any) -> Any:
        try:
            problem = credentials.find_mask_problem(data)
        except RecursionError:
            problem = "is nested too deeply"
        if problem:
            raise ValueError(problem)
        return data

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if not self.success_codes:
            raise ValueError("successCodes must not be empty")
        if self.body is not None:
            parse_body(self.body, self.content_type)
        parameters = [*{parameter.name for parameter in parse_url(self.url_template).query}, *self.query]
        headers = [name.lower() for name in self.headers]
        if self.auth is not None and self.auth.location == "query":
            parameters.append(self.auth.name or "")
        elif self.auth is not None:
            headers.append((self.auth.name or "Authorization").lower())
        self._reject_duplicates("the query parameter", parameters)
        self._reject_duplicates("the header", headers)
        return self

    @staticmethod
    def _reject_duplicates(kind: str, names: list[str]) -> None:
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise ValueError(f"{kind} {duplicate} is set twice")

    @property
    def content_type(self) -> str:
        return next((value for name, value in self.headers.items() if name.lower() == "content-type"), "")

    def is_success(self, status: int) -> bool:
        return status in self._success_statuses

    @functools.cached_property
    def _success_statuses(self) -> frozenset[int]:
        return frozenset(status for code in self.success_codes for status in parse_status_range(code) or ())

    @functools.cached_property
    def request(self) -> RequestTemplate:
        """The parsed templates."""
        query = [ParameterTemplate.of(name, value) for name, value in self.query.items()]
        headers: list[HeaderTemplate | BasicAuth] = [
            HeaderTemplate.of(name, value) for name, value in self.headers.items()
        ]
        body = None if self.body is None else parse_body(self.body, self.content_type)
        if body and body.content_type and not self.content_type:
            headers.append(HeaderTemplate.of("Content-Type", body.content_type))
        credential = self.auth.credential if self.auth else None
        if isinstance(credential, ParameterTemplate):
            query.append(credential)
        elif credential is not None:
            headers.append(credential)
        return RequestTemplate(self.method, parse_url(self.url_template), tuple(query), tuple(headers), body)

    @property
    def placeholders(self) -> frozenset[str]:
        """The names of the arguments that the request uses."""
        return frozenset(placeholder.name for placeholder in self.request.placeholders if not placeholder.is_secret)

    @property
    def required_secrets(self) -> frozenset[str]:
        return frozenset(placeholder.name for placeholder in self.request.placeholders if placeholder.is_secret)
