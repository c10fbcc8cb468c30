"""The URL, query, headers and authentication of an HTTP tool, and the request of a call.

The host of a URL is literal. Values in the path are percent-encoded, and a segment with a value
cannot be empty, `.` or `..`, so no value can change the number or the order of the segments.

Names of parameters are literal, in queries and in form bodies. A list repeats its parameter, and a
missing value removes it. An object is written as `name[key]=value` and a list of objects as
`name[0][key]=value`, unless the template has parameters that they could be confused with.

Secrets in the request are marked, so that they are not sent to other hosts or shown.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import quote as quote_url, unquote, unquote_plus

from onetool.net.client import FORBIDDEN_IN_VALUES, RESERVED_HEADERS, TOKEN, Request
from onetool.sources.http.placeholders import (
    Parts,
    Placeholder,
    Values,
    fill_parts,
    invalid_value_error,
    list_placeholders,
    parse,
    require_literal,
    to_text,
)
from onetool.util.text import quote

if TYPE_CHECKING:
    from onetool.sources.http.body import BodyTemplate
    from onetool.sources.http.signing import Signer

MAX_PORT = 65_535
MAX_URL_CHARS = 65_536  # the limit of the HTTP library
MAX_DEPTH = 8  # nested objects and lists in a parameter
# Limits of an object. Each value repeats all parent keys, so a small object could become very
# large.
MAX_NAME_CHARS = 2_000
MAX_CHARS = 4 * 1024 * 1024
_URL_PATTERN = re.compile(
    r"(?P<scheme>https?)://(?P<authority>[^/?#\\]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?P<rest>#?)"
)
_AUTHORITY_PATTERN = re.compile(
    r"(?:\[[0-9A-Fa-f:.]+\]|[^\x00-\x20\x7f\[\]:@%$&'()*+,;={}<>^`|\"!]+)(?::(?P<port>[0-9]{1,5}))?"
)
# Characters that are not encoded; the percent sign belongs to existing escapes.
_SAFE_IN_PATH = ":@!$&'()*+,;=%"
_SAFE_IN_QUERY = "/?:@!$'()*+,;%"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_FORBIDDEN_IN_URL = re.compile(r"[\x00-\x20\x7f\\]")
_FORBIDDEN_IN_KEY = re.compile(r"[\[\]\x00]|\A\Z")
_FORBIDDEN_IN_COOKIE = re.compile(r"[\x00-\x20\x7f;,\"\\]")
encode_value = partial(quote_url, safe="")


def encode_literal(text: str, safe: str) -> str:
    """Encode a literal part of a URL. Escapes are kept; invalid characters are encoded or rejected."""
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"{text!r} has an invalid escape; write %25 for a percent sign")
    if _FORBIDDEN_IN_URL.search(text):
        raise ValueError(
            f"{text!r} contains a space, backslash or control character; use an escape like %20"
        )
    return quote_url(text, safe=safe)


def _parse_encoded(text: str, safe: str) -> Parts:
    return tuple(
        part if isinstance(part, Placeholder) else encode_literal(part, safe)
        for part in parse(text)
    )


def _may_be_secret(parts: Parts) -> bool:
    """Return whether a value may be a secret: from the settings, or in a step's response."""
    return any(part.is_secret or part.may_be_step for part in list_placeholders(parts))


# --- URLs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    """A URL whose path and query may contain placeholders. The segments and the query are encoded."""

    origin: str
    segments: tuple[Parts, ...]
    query: "tuple[ParameterTemplate, ...]"

    def fill_path(self, values: Values) -> str:
        return "".join([f"/{_fill_segment(segment, values)}" for segment in self.segments])


def _fill_segment(segment: Parts, values: Values) -> str:
    text = values.fill(segment, encode_value)
    placeholders = list_placeholders(segment)
    if placeholders and unquote(text) in {"", ".", ".."}:
        problem = "would make a path segment empty, . or .., which changes the path"
        raise invalid_value_error(problem, *placeholders)
    return text


def parse_url(text: str) -> UrlTemplate:
    if len(text) > MAX_URL_CHARS:
        raise ValueError(f"is longer than {MAX_URL_CHARS:,} characters")
    match = _URL_PATTERN.match(text)
    if match is None:
        raise ValueError("must start with http:// or https://")
    if match["rest"]:
        raise ValueError("has a fragment, which is never sent; write %23 for a literal #")
    _check_authority(match["authority"])
    segments = tuple(map(_parse_segment, match["path"].removeprefix("/").split("/")))
    return UrlTemplate(
        f"{match['scheme']}://{match['authority']}", segments, parse_query(match["query"] or "")
    )


def _check_authority(authority: str) -> None:
    if "${" in authority:
        raise ValueError(
            "has a placeholder in the host; placeholders are only allowed in the path and the query"
        )
    if "@" in authority:
        raise ValueError("has a user name or password; use auth instead")
    match = _AUTHORITY_PATTERN.fullmatch(authority)
    if match is None or int(match["port"] or 0) > MAX_PORT:
        raise ValueError(
            "has no valid host (expected one like api.example.com or api.example.com:8080)"
        )


def _parse_segment(text: str) -> Parts:
    segment = _parse_encoded(text, _SAFE_IN_PATH)
    if unquote("".join(map(str, segment))) in {".", ".."}:
        raise ValueError("has a . or .. segment in its path; write the resolved path")
    return segment


# --- parameters -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParameterTemplate:
    """A parameter. `prefix` (the name with `=`) and literal value parts are encoded."""

    name: str
    prefix: str
    parts: Parts
    is_credential: bool = False

    @classmethod
    def of(cls, name: str, value: str, *, is_credential: bool = False) -> Self:
        """Create a parameter from an unencoded name and value."""
        name = require_literal(name, "the name of a parameter")
        parts = (
            part if isinstance(part, Placeholder) else encode_value(part) for part in parse(value)
        )
        return cls(name, f"{encode_value(name)}=", tuple(parts), is_credential)

    @classmethod
    def from_encoded(cls, text: str) -> Self:
        """Create a parameter from the query of a URL."""
        name, sign, value = text.partition("=")
        name = require_literal(name, "the name of a parameter")
        prefix = encode_literal(name, _SAFE_IN_QUERY) + sign
        return cls(unquote_plus(name), prefix, _parse_encoded(value, _SAFE_IN_QUERY))

    @property
    def is_secret(self) -> bool:
        return self.is_credential or _may_be_secret(self.parts)

    def encode(self, values: Values, parameters: Iterable["ParameterTemplate"]) -> list[str]:
        """Return the encoded parameters. `parameters` are all of the template."""
        single = self.parts[0] if len(self.parts) == 1 and not self.is_credential else None
        if isinstance(single, Placeholder) and not single.kind:
            value = values.get(single)
            if isinstance(value, list | tuple | dict):
                fields = _iterate_fields(self.prefix.removesuffix("="), value, single)
                if not isinstance(value, dict) and not _is_nested(value):
                    return list(fields)
                self._check_conflicts(parameters, single)
                return _limit_size(fields, single)
        text = fill_parts(self.parts, lambda placeholder: self._encode_part(placeholder, values))
        return [] if text is None else [self.prefix + text]

    def _encode_part(self, placeholder: Placeholder, values: Values) -> str | None:
        if not self.is_credential:
            return values.get_text(placeholder, encode_value)
        text = values.require_text(placeholder, encode_value)
        if values.is_step(placeholder):
            values.used_secrets.add(unquote(text))
        return text

    def _check_conflicts(
        self, parameters: Iterable["ParameterTemplate"], placeholder: Placeholder
    ) -> None:
        """Raise if a key could set another parameter; some servers read `a[b]` as `a.b`."""
        name = self.name.lower()
        for other in (parameter.name for parameter in parameters if parameter is not self):
            if other.lower() == name or other.lower().startswith((f"{name}[", f"{name}.")):
                raise invalid_value_error(
                    f"is an object, which conflicts with the parameter {other}", placeholder
                )


def parse_query(text: str) -> tuple[ParameterTemplate, ...]:
    """Parse the parameters of `a=1&b=${b}`."""
    return tuple(ParameterTemplate.from_encoded(part) for part in text.split("&") if part)


def encode_query(parameters: Sequence[ParameterTemplate], values: Values) -> str:
    return "&".join(
        [pair for parameter in parameters for pair in parameter.encode(values, parameters)]
    )


def encode_form(value: Any, placeholder: Placeholder) -> str:
    """Encode an object as a form whose fields the definition does not name."""
    if not isinstance(value, dict):
        raise invalid_value_error("is not an object: expected the fields of the form", placeholder)
    names = {encode_value(to_text(key, placeholder)): item for key, item in value.items()}
    fields = (
        field for name, item in names.items() for field in _iterate_fields(name, item, placeholder)
    )
    return "&".join(_limit_size(fields, placeholder))


def _limit_size(fields: Iterator[str], placeholder: Placeholder) -> list[str]:
    limited: list[str] = []
    size = 0
    for field in fields:
        size += len(field)
        if size > MAX_CHARS:
            raise invalid_value_error(
                f"has more than {MAX_CHARS:,} characters as parameters", placeholder
            )
        limited.append(field)
    return limited


def _iterate_fields(
    name: str, value: Any, placeholder: Placeholder, depth: int = 0, *, is_indexed: bool = False
) -> Iterator[str]:
    """Yield the encoded parameters of a value. Lists in lists of objects have indexes."""
    is_list = isinstance(value, list | tuple)
    is_indexed = is_indexed or (is_list and _is_nested(value))
    if not isinstance(value, dict) and not (is_list and is_indexed):
        for item in value if is_list else [value]:
            if item is not None:
                yield f"{name}={encode_value(to_text(item, placeholder))}"
        return
    if depth == MAX_DEPTH or len(name) > MAX_NAME_CHARS:
        problem = f"has more than {MAX_DEPTH} levels of nested objects and lists, or very long keys"
        raise invalid_value_error(problem, placeholder)
    items = enumerate(item for item in value if item is not None) if is_list else value.items()
    for key, item in items:
        full_name = f"{name}%5B{_encode_key(key, placeholder)}%5D"
        yield from _iterate_fields(full_name, item, placeholder, depth + 1, is_indexed=is_indexed)


def _is_nested(value: Any) -> bool:
    return any(isinstance(item, dict | list | tuple) for item in value)


def _encode_key(key: Any, placeholder: Placeholder) -> str:
    """Encode a key.

    Brackets are rejected, because the server could not tell them from those around the key.
    """
    text = to_text(key, placeholder)
    if _FORBIDDEN_IN_KEY.search(text):
        problem = (
            f"has the invalid key {text[:40]!r}: keys cannot be empty or contain brackets or NUL"
        )
        raise invalid_value_error(problem, placeholder)
    return encode_value(text)


# --- headers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeaderTemplate:
    """A header. A missing value removes it, unless the value is required."""

    name: str
    parts: Parts
    is_credential: bool = False

    @classmethod
    def of(cls, name: str, value: str, *, is_credential: bool = False) -> Self:
        parts = parse(value)
        if any(isinstance(part, str) and FORBIDDEN_IN_VALUES.search(part) for part in parts):
            raise ValueError(f"header {name} contains a line break or control character")
        return cls(_check_header_name(name), parts, is_credential)

    @property
    def is_secret(self) -> bool:
        return self.is_credential or _may_be_secret(self.parts)

    def fill(self, values: Values) -> str | None:
        text = fill_parts(self.parts, lambda placeholder: self._fill_part(placeholder, values))
        return None if text is None else text.strip(" \t")

    def _fill_part(self, placeholder: Placeholder, values: Values) -> str | None:
        get_text = values.require_text if self.is_credential else values.get_text
        text = get_text(placeholder)
        if text is None:
            return None
        if values.is_step(placeholder):  # a token, most likely
            values.used_secrets.add(text)
        pattern = _FORBIDDEN_IN_COOKIE if self.name.lower() == "cookie" else FORBIDDEN_IN_VALUES
        if match := pattern.search(text):
            problem = f"contains {match[0]!r}, which is not allowed in the header {self.name}"
            raise invalid_value_error(problem, placeholder)
        return text


def _check_header_name(name: str) -> str:
    name = require_literal(name, "the name of a header")
    if not TOKEN.fullmatch(name):
        raise ValueError(f"invalid header name {quote(name)}")
    if name.lower() in RESERVED_HEADERS or name.lower().startswith("proxy-"):
        raise ValueError(f"header {name} cannot be set: OneTool sets it")
    return name


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise if a header is invalid."""
    seen: set[str] = set()
    for name, value in headers.items():
        HeaderTemplate.of(name, value)
        if name.lower() == "content-type":
            require_literal(value, "Content-Type")
        if name.lower() in seen:
            raise ValueError(f"duplicate header {name}")
        seen.add(name.lower())


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """Basic authentication.

    A value in the user name cannot contain the colon that separates the password.
    """

    name: ClassVar[str] = "Authorization"
    is_secret: ClassVar[bool] = True
    user: Parts
    password: Parts | None

    @classmethod
    def of(cls, value: str) -> Self:
        parts = parse(value)
        for index, part in enumerate(parts):
            if isinstance(part, str) and ":" in part:
                before, _, after = part.partition(":")
                return cls((*parts[:index], before), (after, *parts[index + 1 :]))
        if not list_placeholders(parts):
            raise ValueError("must be user:password")
        return cls(parts, None)

    def fill(self, values: Values) -> str:
        pair = values.fill(self.user)
        if (":" in pair) == (self.password is not None):
            problem = "must be user:password" if self.password is None else "cannot contain a colon"
            raise invalid_value_error(problem, *list_placeholders(self.user))
        if self.password is not None:
            pair = f"{pair}:{values.fill(self.password)}"
        token = base64.b64encode(pair.encode()).decode()
        values.used_secrets |= {token, pair, pair.partition(":")[2]}
        return f"Basic {token}"


# --- requests -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RequestTemplate:
    """The parsed templates of a request."""

    method: str
    url: UrlTemplate
    query: tuple[ParameterTemplate, ...]
    headers: tuple[HeaderTemplate | BasicAuth, ...]
    body: "BodyTemplate | None" = None
    signer: "Signer | None" = None

    def fill(self, values: Values) -> Request:
        content = self.body.fill(values) if self.body else None
        filled = [(header.name, header.fill(values)) for header in self.headers]
        headers = [(name, text) for name, text in filled if text is not None]
        if self.body and content is None:
            headers = [(name, text) for name, text in headers if name.lower() != "content-type"]
        query = encode_query(self._parameters, values)
        url = f"{self.url.origin}{self.url.fill_path(values)}{'?' if query else ''}{query}"
        request = Request(
            self.method, url, headers, content, self._secret_headers, self._secret_parameters
        )
        return self.signer.sign(request, values) if self.signer else request

    @cached_property
    def _parameters(self) -> tuple[ParameterTemplate, ...]:
        return (*self.url.query, *self.query)

    @cached_property
    def _secret_headers(self) -> frozenset[str]:
        return frozenset(header.name.lower() for header in self.headers if header.is_secret)

    @cached_property
    def _secret_parameters(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self._parameters if parameter.is_secret)


def measure_bytes(request: Request) -> int:
    """Return the size of the URL, the headers and the body in bytes."""
    size = len(request.url) + len(request.content or b"")
    for name, value in request.headers:
        size += len(name) + len(value.encode()) + len(": \r\n")
    return size
