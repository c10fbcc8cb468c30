"""The headers of an HTTP tool, and its authentication, which is a header or a parameter of the query.

A value ends where its header ends: line breaks and other control characters in it are refused.
"""

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
    """One header. A missing value drops it, unless it must be there."""

    name: str
    parts: Parts
    is_credential: bool = False

    @classmethod
    def of(cls, name: str, value: str, *, is_credential: bool = False) -> Self:
        parts = parse(value)
        if FORBIDDEN_IN_VALUES.search("".join(part for part in parts if isinstance(part, str))):
            raise ValueError(f"the header {name} has a line break or another control character in it")
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
            raise unfit([placeholder], f"has {found[0]!a} in it, which cannot stand in the header {self.name}")
        return text


def check_name(name: str) -> str:
    name = fixed(name, "the name of a header")
    if not TOKEN.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a header")
    if name.lower() in OURS or name.lower().startswith("proxy-"):
        raise ValueError(f"the header {name} is written by the sender and cannot be set")
    return name


def check_headers(headers: Mapping[str, str]) -> None:
    seen: set[str] = set()
    for name, value in headers.items():
        Header.of(name, value)
        if name.lower() == "content-type":
            fixed(value, "Content-Type")
        if name.lower() in seen:
            raise ValueError(f"the header {name} is given twice")
        seen.add(name.lower())


@dataclass(frozen=True, slots=True)
class Basic:
    """`user:password` as a header. No value in the user's part can bring the colon that ends it."""

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
            wrong = "must have no colon" if self.password is not None else "must be user:password"
            raise unfit(placeholders_in(self.user), wrong)
        pair = user if self.password is None else f"{user}:{password}"
        token = base64.b64encode(pair.encode()).decode()
        values.revealed |= {token, pair, pair.partition(":")[2]}
        return f"Basic {token}"
