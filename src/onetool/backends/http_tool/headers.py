"""Headers and authentication of an HTTP tool. Values with line breaks or other control characters are rejected."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from onetool.backends.http_tool.placeholders import (
    Parts,
    Placeholder,
    Values,
    invalid_value_error,
    list_placeholders,
    parse,
    require_literal,
)
from onetool.net.outgoing import FORBIDDEN_IN_VALUES, RESERVED_HEADERS, TOKEN
from onetool.util.text import quote

_FORBIDDEN_IN_COOKIE = re.compile(r"[\x00-\x20\x7f;,\"\\]")


@dataclass(frozen=True, slots=True)
class HeaderTemplate:
    """A header. A missing value removes it, unless the value is required."""

    name: str
    parts: Parts
    is_credential: bool = False

    @classmethod
    def of(cls, name: str, value: str, *, is_credential: bool = False) -> Self:
        parts = parse(value)
        if FORBIDDEN_IN_VALUES.search("".join(part for part in parts if isinstance(part, str))):
            raise ValueError(f"header {name} contains a line break or control character")
        return cls(check_header_name(name), parts, is_credential)

    @property
    def placeholders(self) -> list[Placeholder]:
        return list_placeholders(self.parts)

    @property
    def is_secret(self) -> bool:
        return self.is_credential or any(part.is_secret or part.may_be_step for part in self.placeholders)

    def fill(self, values: Values) -> str | None:
        look_up = values.require_text if self.is_credential else values.get_text
        texts: list[str] = []
        for part in self.parts:
            text = part if isinstance(part, str) else look_up(part)
            if text is None:
                return None
            if not isinstance(part, str) and values.is_step(part):  # a token, most likely
                values.used_secrets.add(text)
            texts.append(text if isinstance(part, str) else self._check_value(part, text))
        return "".join(texts).strip(" \t")

    def _check_value(self, placeholder: Placeholder, text: str) -> str:
        forbidden = _FORBIDDEN_IN_COOKIE if self.name.lower() == "cookie" else FORBIDDEN_IN_VALUES
        if found := forbidden.search(text):
            raise invalid_value_error(
                [placeholder], f"contains {found[0]!r}, which is not allowed in the header {self.name}"
            )
        return text


def check_header_name(name: str) -> str:
    name = require_literal(name, "the name of a header")
    if not TOKEN.fullmatch(name):
        raise ValueError(f"invalid header name {quote(name)}")
    if name.lower() in RESERVED_HEADERS or name.lower().startswith("proxy-"):
        raise ValueError(f"header {name} cannot be set: OneTool sets it")
    return name


def check_headers(headers: Mapping[str, str]) -> None:
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
    """Basic authentication. A value in the user name cannot contain the colon that separates the password."""

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

    @property
    def placeholders(self) -> list[Placeholder]:
        return list_placeholders([*self.user, *(self.password or ())])

    def fill(self, values: Values) -> str:
        user, password = values.fill(self.user), values.fill(self.password or ())
        if (":" in user) == (self.password is not None):
            problem = "cannot contain a colon" if self.password is not None else "must be user:password"
            raise invalid_value_error(list_placeholders(self.user), problem)
        pair = user if self.password is None else f"{user}:{password}"
        token = base64.b64encode(pair.encode()).decode()
        values.used_secrets |= {token, pair, pair.partition(":")[2]}
        return f"Basic {token}"


@dataclass(frozen=True, slots=True)
class MultipartType:
    """The Content-Type of a multipart body, with the boundary of the call."""

    name: ClassVar[str] = "Content-Type"
    is_secret: ClassVar[bool] = False
    placeholders: ClassVar[list[Placeholder]] = []
    media_type: str

    def fill(self, values: Values) -> str:
        return f"{self.media_type}; boundary={values.boundary}"
