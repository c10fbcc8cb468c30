"""`httpImpl`: the validated definition of an HTTP tool, as in storage and in the REST API.

Every placeholder must name an argument of the tool: one that no argument fills would be dropped
from the request, and credentials with it. A definition cannot choose a file: only a caller names
the files that are sent or written.

This imports pydantic, so it is only imported when a tool is stored or first called.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain, filterfalse
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from onetool.core.foreign_schema import ForeignSchema, find_arguments
from onetool.core.names import nearest
from onetool.core.schema import Schema
from onetool.errors import ArgumentError
from onetool.settings.sections import CamelSection, to_upper
from onetool.sources.http import credentials
from onetool.sources.http.body import BodyTemplate, parse_body
from onetool.sources.http.placeholders import (
    STEPS,
    Placeholder,
    format_scalar,
    list_placeholders,
    parse,
)
from onetool.sources.http.request import (
    BasicAuth,
    HeaderTemplate,
    ParameterTemplate,
    RequestTemplate,
    check_headers,
    parse_url,
)
from onetool.sources.http.signing import RECIPES, Signer
from onetool.util.text import did_you_mean
from onetool_child.json_types import JsonMapping, JsonObject

MAX_STEPS = 10
MAX_SELECTOR_CHARS = 10_000
MAX_PARAMETERS = 1_000  # in `query`, and headers
MAX_STATUSES = 600
MAX_PLACEHOLDERS = 10_000  # of a request
MAX_EVENTS = 10_000
MAX_NAMES_SHOWN = 20
STEP_PARTS = ("body", "headers", "cookies", "status")
_RANGE = re.compile(r"([1-5][0-9]{2})-([1-5][0-9]{2})")


def _check_with(parse: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that raises if the value cannot be parsed, and keeps it as it is."""

    def check(value: Any) -> Any:
        parse(value)
        return value

    return AfterValidator(check)


def _parse_query(query: Mapping[str, str]) -> list[ParameterTemplate]:
    return [ParameterTemplate.of(name, value) for name, value in query.items()]


def _check_status(code: int | str) -> None:
    if not parse_status_range(code):
        raise ValueError("must be a status code like 200 or a range like 200-299")


def parse_status_range(code: int | str) -> range:
    """Return the status codes of `404` or `"200-299"`, or an empty range if it is invalid."""
    match = _RANGE.fullmatch(f"{code}-{code}" if isinstance(code, int) else code)
    return range(int(match[1]), int(match[2]) + 1) if match else range(0)


def _check_selector(selector: str) -> None:
    import jmespath

    if len(selector) > MAX_SELECTOR_CHARS:
        raise ValueError(f"is longer than {MAX_SELECTOR_CHARS:,} characters")
    try:
        jmespath.compile(selector)
    except (RecursionError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"is not a valid JMESPath expression: {reason}") from None


def _check_argument(text: str) -> None:
    parts = parse(text)
    if len(parts) != 1 or not isinstance(parts[0], Placeholder) or parts[0].is_secret:
        raise ValueError("must be the placeholder of an argument, such as ${name}")


def _find_placeholders(template: Any) -> Iterator[Placeholder]:
    """Yield the placeholders in a template, or in all templates that data contains."""
    if isinstance(template, str):
        yield from list_placeholders(parse(template, allow_file=True))
    elif isinstance(template, Mapping | list):
        for item in template.values() if isinstance(template, Mapping) else template:
            yield from _find_placeholders(item)


_URL: JsonObject = {
    "type": "string",
    "pattern": r"^https?://[^/?#]+",
    "description": (
        "Placeholders are ${argument}, ${csv:list} and ${secret:NAME}; they are not allowed in the"
        " host"
    ),
    "examples": ["https://api.example.com/v1/weather/${city}"],
}
Count = Annotated[int, Field(strict=True, gt=0)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Text = Annotated[str, BeforeValidator(format_scalar)]
Method = Annotated[
    Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"], BeforeValidator(to_upper)
]
ArgumentPlaceholder = Annotated[str, _check_with(_check_argument)]
StepName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Status = Annotated[Annotated[int, Field(strict=True)] | str, _check_with(_check_status)]


class SecretSafeModel(CamelSection):
    """A model whose errors never contain the rejected value, which may be a secret."""

    model_config = ConfigDict(hide_input_in_errors=True)


class OAuthFlow(SecretSafeModel):
    """`auth.oauth`: the endpoints of a sign-in, whose token is used if the secret is not set."""

    authorization_url: str = ""
    token_url: str = ""
    open_id_connect_url: str = ""
    scopes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_endpoints(self) -> Self:
        if not (self.token_url or self.open_id_connect_url):
            raise ValueError("requires tokenUrl or openIdConnectUrl")
        return self


class HttpAuth(SecretSafeModel):
    type: Literal["apiKey", "bearer", "basic"]
    location: Literal["header", "query"] | None = Field(default=None, alias="in")
    name: str | None = None
    value: str = Field(min_length=1, repr=False)
    oauth: OAuthFlow | None = None

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        if self.oauth is not None and (self.type != "bearer" or not self.token_names):
            raise ValueError(
                "has oauth, which requires type bearer and a value like ${secret:NAME}"
            )
        if self.type == "apiKey" and not (self.location and self.name):
            raise ValueError("requires in (header or query) and name for type apiKey")
        if self.type != "apiKey" and (self.location or self.name):
            raise ValueError(
                f"of type {self.type} uses the Authorization header; in and name are only valid for"
                " apiKey"
            )
        self.credential  # noqa: B018 - raises if its templates are invalid
        return self

    @property
    def token_names(self) -> frozenset[str]:
        """The names of the secrets in the value."""
        placeholders = _find_placeholders(self.value)
        return frozenset({part.name for part in placeholders if part.is_secret})

    @cached_property
    def credential(self) -> HeaderTemplate | BasicAuth | ParameterTemplate:
        if self.type == "basic":
            return BasicAuth.of(self.value)
        if self.type == "bearer":
            return HeaderTemplate.of("Authorization", f"Bearer {self.value}", is_credential=True)
        template = ParameterTemplate if self.location == "query" else HeaderTemplate
        return template.of(self.name or "", self.value, is_credential=True)


class HmacSigning(SecretSafeModel):
    """`hmac`: a recipe that signs the request, and its key."""

    recipe: Literal["github-sha256", "slack", "standard-webhooks", "aws-sigv4"]
    key: str = Field(min_length=1, repr=False)
    key_id: str | None = None
    region: str | None = None
    service: str | None = None
    session_token: str | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        recipe = RECIPES[self.recipe]
        names = self.templates.keys() - {"key"}
        if missing := [name for name in recipe.required if name not in names]:
            raise ValueError(f"requires {' and '.join(missing)} for recipe {self.recipe}")
        if extra := sorted(names - {*recipe.required, *recipe.optional}):
            raise ValueError(f"must not have {extra[0]} for recipe {self.recipe}")
        self.signer  # noqa: B018 - raises if its templates are invalid
        return self

    @property
    def templates(self) -> dict[str, str]:
        return self.model_dump(by_alias=True, exclude={"recipe"}, exclude_none=True)

    @cached_property
    def signer(self) -> Signer:
        return Signer(self.recipe, {name: parse(text) for name, text in self.templates.items()})


class StepResponseOptions(SecretSafeModel):
    """`response` of a step: how to parse the response, and which part of it is its body."""

    mode: Literal["auto", "json", "text"] = "auto"
    selector: Annotated[str, _check_with(_check_selector)] | None = None

    @model_validator(mode="after")
    def _check_selector_mode(self) -> Self:
        if self.selector is not None and self.mode in {"text", "base64"}:
            raise ValueError("has a selector, which requires JSON; remove it or set mode to json")
        return self


class ResponseOptions(StepResponseOptions):
    """`response`: how to parse the response, and which part of it is the result."""

    mode: Literal["auto", "json", "text", "base64", "events"] = "auto"  # type: ignore[assignment]  # more than in steps
    full: Annotated[bool, Field(strict=True)] | ArgumentPlaceholder = False
    save_to: ArgumentPlaceholder | None = None
    max_events: Annotated[Count, Field(le=MAX_EVENTS)] = 100

    @cached_property
    def full_argument(self) -> Placeholder | None:
        """The argument that requests the full response."""
        return next(_find_placeholders(self.full), None)

    @cached_property
    def path_argument(self) -> Placeholder | None:
        """The argument that names the file to write."""
        return next(_find_placeholders(self.save_to), None)


class HttpRequest(SecretSafeModel):
    """The fields of a request, which steps and tools have in common."""

    method: Method
    url_template: Annotated[str, _check_with(parse_url), WithJsonSchema(_URL)]
    query: Annotated[
        Mapping[str, Text], _check_with(_parse_query), Field(max_length=MAX_PARAMETERS)
    ] = {}
    headers: Annotated[Mapping[str, Text], _check_with(check_headers)] = Field(
        default={}, max_length=MAX_PARAMETERS, repr=False
    )
    body: Any = Field(default=None, repr=False)
    auth: HttpAuth | None = None
    hmac: HmacSigning | None = None
    success_codes: Annotated[tuple[Status, ...], Field(max_length=MAX_STATUSES)] = ("200-299",)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if not self.success_codes:
            raise ValueError("successCodes must not be empty")
        try:
            self._parse_body()
        except ValueError as error:
            raise ValueError(f"body: {error}") from None
        if len(self.placeholders) > MAX_PLACEHOLDERS:
            raise ValueError(f"has more than {MAX_PLACEHOLDERS:,} placeholders")
        url_parameters = {parameter.name for parameter in parse_url(self.url_template).query}
        parameters = [*url_parameters, *self.query]
        headers = [name.lower() for name in self.headers]
        if self.auth is not None and self.auth.location == "query":
            parameters.append(self.auth.name or "")
        elif self.auth is not None:
            headers.append((self.auth.name or "Authorization").lower())
        if self.hmac is not None:
            headers += map(str.lower, RECIPES[self.hmac.recipe].headers)
        self._reject_duplicates("the query parameter", parameters)
        self._reject_duplicates("the header", headers)
        return self

    @staticmethod
    def _reject_duplicates(kind: str, names: list[str]) -> None:
        for name, count in Counter(names).most_common(1):
            if count > 1:
                raise ValueError(f"{kind} {name} is set twice")

    @property
    def content_type(self) -> str:
        headers = self.headers.items()
        return next((value for name, value in headers if name.lower() == "content-type"), "")

    def is_success(self, status: int) -> bool:
        return status in self._success_statuses

    @cached_property
    def _success_statuses(self) -> frozenset[int]:
        return frozenset(chain.from_iterable(map(parse_status_range, self.success_codes)))

    @cached_property
    def placeholders(self) -> tuple[Placeholder, ...]:
        auth = self.auth.value if self.auth else None
        hmac = self.hmac.templates if self.hmac else None
        templates = [self.url_template, self.query, self.headers, auth, self.body, hmac]
        return tuple(_find_placeholders(templates))

    @property
    def reads_files(self) -> bool:
        return any(placeholder.is_file for placeholder in self.placeholders)

    def _parse_body(self) -> BodyTemplate | None:
        return None if self.body is None else parse_body(self.body, self.content_type)

    @cached_property
    def request(self) -> RequestTemplate:
        """The parsed templates."""
        query = _parse_query(self.query)
        headers: list[HeaderTemplate | BasicAuth] = [
            HeaderTemplate.of(name, value) for name, value in self.headers.items()
        ]
        body = self._parse_body()
        if body and body.content_type:
            headers = [header for header in headers if header.name.lower() != "content-type"]
            headers.append(HeaderTemplate("Content-Type", body.content_type))
        credential = self.auth.credential if self.auth else None
        if isinstance(credential, ParameterTemplate):
            query.append(credential)
        elif credential is not None:
            headers.append(credential)
        signer = self.hmac.signer if self.hmac else None
        return RequestTemplate(
            self.method, parse_url(self.url_template), tuple(query), tuple(headers), body, signer
        )


class HttpStep(HttpRequest):
    """A request before that of the tool. Later ones use `${steps.name.body.key}`, for example."""

    name: StepName
    response: StepResponseOptions = Field(default_factory=StepResponseOptions)


class HttpImpl(HttpRequest):
    steps: tuple[HttpStep, ...] = Field(default=(), max_length=MAX_STEPS)
    timeout_ms: Count | None = None
    retries: Annotated[CountOrZero, Field(le=10)] | None = None
    retry_non_idempotent: Annotated[bool, Field(strict=True)] = False
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
    def _check_steps(self) -> Self:
        """Check that each request uses only the responses of earlier steps."""
        names: list[str] = []
        for index, request in enumerate(self.requests if self.steps else ()):
            prefix = f"steps.{index}: " if isinstance(request, HttpStep) else ""
            for placeholder in filter(_is_step, request.placeholders):
                _check_step_placeholder(placeholder, names, prefix)
            if isinstance(request, HttpStep):
                if request.name in names:
                    raise ValueError(f"{prefix}the name {request.name} is used twice")
                names.append(request.name)
        return self

    @property
    def requests(self) -> tuple[HttpRequest, ...]:
        """The steps and the request of the tool, in the order in which they are sent."""
        return (*self.steps, self)

    @cached_property
    def all_placeholders(self) -> tuple[Placeholder, ...]:
        """All placeholders, except those for the responses of steps."""
        placeholders = list(chain.from_iterable(request.placeholders for request in self.requests))
        placeholders += filter(None, (self.response.full_argument, self.response.path_argument))
        if self.steps:
            return tuple(filterfalse(_is_step, placeholders))
        return tuple(placeholders)

    @property
    def arguments(self) -> frozenset[str]:
        """The names of the arguments that the requests use."""
        return frozenset({part.name for part in self.all_placeholders if not part.is_secret})

    @property
    def file_arguments(self) -> frozenset[str]:
        """The names of the arguments that name files."""
        names = {placeholder.name for placeholder in self.all_placeholders if placeholder.is_file}
        if self.response.path_argument is not None:
            names.add(self.response.path_argument.name)
        return frozenset(names)

    @property
    def required_secrets(self) -> frozenset[str]:
        return frozenset({part.name for part in self.all_placeholders if part.is_secret})


def list_requests(impl: JsonMapping | None) -> tuple[HttpRequest, ...]:
    """Return the requests of a definition; none if it is invalid, which its call reports."""
    try:
        return HttpImpl.model_validate(impl).requests
    except ValidationError:
        return ()


def _is_step(placeholder: Placeholder) -> bool:
    return placeholder.name == STEPS and not placeholder.is_secret


def _check_step_placeholder(placeholder: Placeholder, names: list[str], prefix: str) -> None:
    if placeholder.is_file:
        raise ValueError(f"{prefix}{placeholder} is not allowed: a response cannot choose a file")
    name, part = (*placeholder.path, "", "")[:2]
    if name not in names:
        earlier = ", ".join(names) or "none"
        raise ValueError(
            f"{prefix}{placeholder} does not name an earlier step (earlier steps: {earlier})"
        )
    if part not in STEP_PARTS:
        expected = ", ".join(f"${{steps.{name}.{step_part}}}" for step_part in STEP_PARTS)
        raise ValueError(f"{prefix}{placeholder} is not a part of a response (expected {expected})")


# --- arguments ------------------------------------------------------------------------------------


def find_placeholder_problem(impl: HttpImpl, schema: JsonMapping) -> str | None:
    """Return the problem with the first placeholder that names no argument, or None."""
    arguments, patterns = find_arguments(schema)
    try:
        unknown = _find_unmatched(sorted(impl.arguments - arguments), patterns)
    except ArgumentError as error:
        return f"{error.message}. Hint: declare the arguments in properties"
    if unknown is not None:
        return _format_problem(unknown, sorted(arguments))
    if impl.steps and STEPS in arguments:
        return (
            f"the argument {STEPS} of argSchema conflicts with httpImpl.steps; rename the argument"
        )
    with_default = sorted(impl.file_arguments & Schema.from_json(schema).defaults.keys())
    if with_default:
        return f"argSchema.properties.{with_default[0]} names a file and must not have a default"
    return None


def _format_problem(name: str, arguments: list[str]) -> str:
    suggestion = did_you_mean(f"${{{match}}}" for match in nearest(name, arguments)[:1])
    names = ", ".join(arguments[:MAX_NAMES_SHOWN]) or "none"
    return (
        f"unknown placeholder ${{{name}}}.{suggestion} Arguments in argSchema: {names}. "
        f"Hint: write ${{secret:{name}}} for a secret, or add {name} to the properties of argSchema"
    )


def _find_unmatched(names: Collection[str], patterns: Iterable[str]) -> str | None:
    """Return a name that matches none of the patterns of a foreign schema; None if all do."""
    properties: JsonObject = {pattern: {} for pattern in patterns}
    names_only = {"patternProperties": properties, "additionalProperties": False}
    schema = ForeignSchema.from_json(names_only)
    if schema.is_costly(dict.fromkeys(names)):
        raise ArgumentError("checking the placeholders against patternProperties takes too long")
    return next((name for name in names if schema.problem({name: None}) is not None), None)
