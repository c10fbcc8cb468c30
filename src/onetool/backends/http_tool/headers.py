"""Headers and authentication of an HTTP tool. Values with line breaks or other control characters are rejected."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from onetool.backends.http_tool.placeholders import Parts, Placeholder, Values, fixed, parse, placeholders_in, unfit
from onetool.net.outgoing import FORBIDDEN_IN_VALUES, OURS, TOKEN

_NEVER_IN_A_COOKIE = re.compile(r"[\x00-\x20\x7f;,\"\\]")


@dataclass(frozen=True, slots=True)
class Header:
    """A header. A missing value removes it, unless the value is required."""

    name: str
    parts: Parts
    is_credential: bool = False

    @classmethod
    def of(cls, name: str, value: str, *, is_credential: bool = False) -> Self:
        parts = parse(value)
        if FORBIDDEN_IN_VALUES.search("".join(part for part in parts if isinstance(part, str))):
            raise ValueError(f"header {name} contains a line break or control character")
        return cls(check_name(name), parts, is_credential)

    @property
    def placeholders(self) -> list[Placeholder]:
        return placeholders_in(self.parts)

    @property
    def is_secret(self) -> bool:
        return self.is_credential or any(placeholder.is_secret for placeholder in self.placeholders)

    def filled(self, values: Values) -> str | None:
        look_up = values.needed if self.is_credential else values.text
        texts: list[str] = []
        for part in self.parts:
            text = part if isinstance(part, str) else look_up(part)
            if text is None:
                return None
            texts.append(text if isinstance(part, str) else self._checked(part, text))
        return "".join(texts).strip(" \t")

    def _checked(self, placeholder: Placeholder, text: str) -> str:
        never = _NEVER_IN_A_COOKIE if self.name.lower() == "cookie" else FORBIDDEN_IN_VALUES
        if found := never.search(text):
            raise unfit([placeholder], f"contains {found[0]!a}, which is not allowed in the header {self.name}")
        return text


def check_name(name: str) -> str:
    name = fixed(name, "the name of a header")
    if not TOKEN.fullmatch(name):
        raise ValueError(f"invalid header name {name!r}")
    if name.lower() in OURS or name.lower().startswith("proxy-"):
        raise ValueError(f"header {name} cannot be set: OneTool sets it")
    return name


def check_headers(headers: Mapping[str, str]) -> None:
    seen: set[str] = set()
    for name, value in headers.items():
        Header.of(name, value)
        if name.lower() == "content-type":
            fixed(value, "Content-Type")
        if name.lower() in seen:
            raise ValueError(f"duplicate header {name}")
        seen.add(name.lower())


@dataclass(frozen=True, slots=True)
class Basic:
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
        if not placeholders_in(parts):
            raise ValueError("must be user:password")
        return cls(parts, None)

    @property
    def placeholders(self) -> list[Placeholder]:
        return placeholders_in([*self.user, *(self.password or ())])

    def filled(self, values: Values) -> str:
        user, password = values.joined(self.user), values.joined(self.password or ())
        if (":" in user) == (self.password is not None):
            wrong = "cannot contain a colon" if self.password is not None else "must be user:password"
            raise unfit(placeholders_in(self.user), wrong)
        pair = user if self.password is None else f"{user}:{password}"
        token = base64.b64encode(pair.encode()).decode()
        values.revealed |= {token, pair, pair.partition(":")[2]}
        return f"Basic {token}"
