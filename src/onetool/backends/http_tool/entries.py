"""Parameters of queries and form bodies: `name=value`, joined by `&`.

Names are fixed. Values are percent-encoded, a list repeats its parameter, and a missing value removes it. An object is
written as `name[key]=value`, unless the template has parameters that it could be confused with.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, unquote_plus

from onetool.backends.http_tool.placeholders import (
    IN_A_URL,
    Parts,
    Placeholder,
    Values,
    fixed,
    parse,
    placeholders_in,
    text_of,
    unfit,
)

MAX_DEPTH: Final = 8  # nested objects
# Limits of an object. Each value repeats the keys above it, so that a small object could become very large.
MAX_NAME_CHARS: Final = 2_000
MAX_CHARS: Final = 4 * 1024 * 1024
_LITERAL = "/?:@!$'()*+,;%"  # allowed in a query unencoded; with the percent sign of existing escapes
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NEVER_IN_A_URL = re.compile(r"[\x00-\x20\x7f\\]")
_NEVER_IN_A_KEY = re.compile(r"[\[\]\x00]|\A\Z")


@dataclass(frozen=True, slots=True)
class Entry:
    """A parameter. `prefix` (the name with the equals sign) and the literal parts of the value are encoded."""

    name: str
    prefix: str
    parts: Parts
    is_credential: bool = False

    @classmethod
    def of(cls, name: str, value: str, *, is_credential: bool = False) -> Self:
        """Create a parameter from an unencoded name and value."""
        name = fixed(name, "the name of a parameter")
        parts = (part if isinstance(part, Placeholder) else quote(part, safe="") for part in parse(value))
        return cls(name, f"{quote(name, safe='')}=", tuple(parts), is_credential)

    @classmethod
    def from_encoded(cls, text: str) -> Self:
        """Create a parameter from the query of a URL."""
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

    def filled(self, values: Values, all_of_them: Sequence["Entry"] = ()) -> list[str]:
        if len(self.parts) == 1 and isinstance(placeholder := self.parts[0], Placeholder) and not placeholder.joined:
            found = values.of(placeholder)
            if isinstance(found, list | tuple | dict) and not self.is_credential:
                if isinstance(found, dict):
                    self._check_alone(all_of_them, placeholder)
                    return _bounded(_pairs(self._encoded_name, found, placeholder), placeholder)
                return list(_pairs(self._encoded_name, found, placeholder))
        look_up = values.needed if self.is_credential else values.text
        text = self.prefix
        for part in self.parts:
            value = part if isinstance(part, str) else look_up(part, IN_A_URL)
            if value is None:
                return []
            text += value
        return [text]

    @property
    def _encoded_name(self) -> str:
        return self.prefix.removesuffix("=")

    def _check_alone(self, all_of_them: Sequence["Entry"], placeholder: Placeholder) -> None:
        """Raise if a key could set another parameter of the template; some servers read `a[b]` as `a.b`."""
        name = self.name.lower()
        for other in (entry.name for entry in all_of_them if entry is not self):
            if other.lower() == name or other.lower().startswith((f"{name}[", f"{name}.")):
                raise unfit([placeholder], f"is an object, which conflicts with the parameter {other}")


def _pairs(name: str, value: Any, placeholder: Placeholder, depth: int = 0) -> Iterator[str]:
    """Yield the encoded parameters of a value; `name` is already encoded."""
    if isinstance(value, dict):
        if depth == MAX_DEPTH or len(name) > MAX_NAME_CHARS:
            raise unfit([placeholder], f"has more than {MAX_DEPTH} levels of nested objects, or very long keys")
        for key, item in value.items():
            yield from _pairs(f"{name}%5B{_key(key, placeholder)}%5D", item, placeholder, depth + 1)
        return
    for item in value if isinstance(value, list | tuple) else [value]:
        if item is not None:
            yield f"{name}={quote(text_of(item, placeholder), safe='')}"


def _bounded(pairs: Iterator[str], placeholder: Placeholder) -> list[str]:
    kept: list[str] = []
    size = 0
    for pair in pairs:
        size += len(pair)
        if size > MAX_CHARS:
            raise unfit([placeholder], f"has more than {MAX_CHARS:,} characters as parameters")
        kept.append(pair)
    return kept


def _key(key: Any, placeholder: Placeholder) -> str:
    """Encode a key. Brackets are rejected, because the server could not tell them from those around the key."""
    text = text_of(key, placeholder)
    if _NEVER_IN_A_KEY.search(text):
        raise unfit(
            [placeholder], f"has the invalid key {text[:40]!r}: keys cannot be empty or contain brackets or NUL"
        )
    return quote(text, safe="")


def literal(text: str, safe: str) -> str:
    """Encode a literal part of a URL. Escapes are kept; invalid characters are encoded or rejected."""
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"{text!r} has an invalid escape; write %25 for a percent sign")
    if _NEVER_IN_A_URL.search(text):
        raise ValueError(f"{text!r} contains a space, backslash or control character; use an escape like %20")
    return quote(text, safe=safe)


def entries_of(text: str) -> tuple[Entry, ...]:
    """Parse the parameters of `a=1&b=${b}`."""
    return tuple(Entry.from_encoded(part) for part in text.split("&") if part)


def encoded(entries: Sequence[Entry], values: Values) -> str:
    return "&".join([pair for entry in entries for pair in entry.filled(values, entries)])
