"""Parameters, as they stand in a query and in the body of a form: `name=value`, joined by `&`.

Names are fixed. A value is percent-encoded whole, a list repeats its parameter, and a missing value drops it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, unquote_plus

from ot.backends.http_tool.placeholders import (
    Parts,
    Placeholder,
    Values,
    fixed,
    parse,
    placeholders_in,
    text_of,
)

_LITERAL = "/?:@!$'()*+,;%"  # what may stand in a query as it is; with the percent sign of what is encoded already
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NEVER_IN_A_URL = re.compile(r"[\x00-\x20\x7f\\]")


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter. The literal parts of its value, and its name with the equals sign, are encoded already."""

    name: str
    prefix: str
    parts: Parts
    is_credential: bool = False

    @classmethod
    def of(cls, name: str, value: str, *, is_credential: bool = False) -> Self:
        """From texts that are not encoded."""
        name = fixed(name, "the name of a parameter")
        parts = (part if isinstance(part, Placeholder) else quote(part, safe="") for part in parse(value))
        return cls(name, f"{quote(name, safe='')}=", tuple(parts), is_credential)

    @classmethod
    def from_encoded(cls, text: str) -> Self:
        """From a part of a URL."""
        name, sign, value = text.partition("=")
        name = fixed(name, "the name of a parameter")
        parts = (part if isinstance(part, Placeholder) else literal(part, _LITERAL) for part in parse(value))
        return cls(unquote_plus(name), literal(name, _LITERAL) + sign, tuple(parts))

    @property
    def placeholders(self) -> list[Placeholder]:
        return placeholders_in(self.parts)

    @property
    def is_secret(self) -> bool:
        return self.is_credential or any(placeholder.is_secret for placeholder in self.placeholders)

    def filled(self, values: Values) -> list[str]:
        if len(self.parts) == 1 and isinstance(placeholder := self.parts[0], Placeholder):
            found = values.of(placeholder)
            if isinstance(found, list | tuple) and not self.is_credential:
                return [self.prefix + quote(text, safe="") for text in _texts(found, placeholder)]
        look_up = values.needed if self.is_credential else values.text
        text = self.prefix
        for part in self.parts:
            value = part if isinstance(part, str) else look_up(part)
            if value is None:
                return []
            text += value if isinstance(part, str) else quote(value, safe="")
        return [text]


def _texts(items: Iterable[Any], placeholder: Placeholder) -> list[str]:
    return [text_of(item, placeholder) for item in items if item is not None]


def literal(text: str, safe: str) -> str:
    """A part of a URL as the author wrote it: escapes stay, what cannot stand in a URL is encoded or refused."""
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"{text!r} has a % that begins no escape; write %25 for the character")
    if _NEVER_IN_A_URL.search(text):
        raise ValueError(f"{text!r} has a space, a backslash or a control character; write it as an escape like %20")
    return quote(text, safe=safe)


def entries_of(text: str) -> tuple[Entry, ...]:
    """The parameters of `a=1&b=${b}`."""
    return tuple(Entry.from_encoded(part) for part in text.split("&") if part)


def encoded(entries: Iterable[Entry], values: Values) -> str:
    return "&".join(pair for entry in entries for pair in entry.filled(values))
