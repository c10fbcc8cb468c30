"""Parameters of queries and form bodies: `name=value`, joined by `&`.

Names are literal. Values are percent-encoded, a list repeats its parameter, and a missing value removes it. An object
is written as `name[key]=value` and a list of objects as `name[0][key]=value`, unless the template has parameters that
they could be confused with.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, unquote, unquote_plus

from onetool.backends.http_tool.placeholders import (
    URL_ENCODED,
    Parts,
    Placeholder,
    Values,
    invalid_value_error,
    list_placeholders,
    parse,
    require_literal,
    to_text,
)

MAX_DEPTH: Final = 8  # nested objects and lists
# Limits of an object. Each value repeats all parent keys, so a small object could become very large.
MAX_NAME_CHARS: Final = 2_000
MAX_CHARS: Final = 4 * 1024 * 1024
_SAFE_CHARS = "/?:@!$'()*+,;%"  # not encoded in a query; the percent sign belongs to existing escapes
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_FORBIDDEN_IN_URL = re.compile(r"[\x00-\x20\x7f\\]")
_FORBIDDEN_IN_KEY = re.compile(r"[\[\]\x00]|\A\Z")


@dataclass(frozen=True, slots=True)
class ParameterTemplate:
    """A parameter. `prefix` (the name with the equals sign) and the literal parts of the value are encoded."""

    name: str
    prefix: str
    parts: Parts
    is_credential: bool = False

    @classmethod
    def of(cls, name: str, value: str, *, is_credential: bool = False) -> Self:
        """Create a parameter from an unencoded name and value."""
        name = require_literal(name, "the name of a parameter")
        parts = (part if isinstance(part, Placeholder) else quote(part, safe="") for part in parse(value))
        return cls(name, f"{quote(name, safe='')}=", tuple(parts), is_credential)

    @classmethod
    def from_encoded(cls, text: str) -> Self:
        """Create a parameter from the query of a URL."""
        name, sign, value = text.partition("=")
        name = require_literal(name, "the name of a parameter")
        parts = (part if isinstance(part, Placeholder) else encode_literal(part, _SAFE_CHARS) for part in parse(value))
        return cls(unquote_plus(name), encode_literal(name, _SAFE_CHARS) + sign, tuple(parts))

    @property
    def placeholders(self) -> list[Placeholder]:
        return list_placeholders(self.parts)

    @property
    def is_secret(self) -> bool:
        return self.is_credential or any(part.is_secret or part.may_be_step for part in self.placeholders)

    def encode(self, values: Values, parameters: Sequence["ParameterTemplate"] = ()) -> list[str]:
        if (
            len(self.parts) == 1
            and isinstance(placeholder := self.parts[0], Placeholder)
            and not placeholder.list_format
        ):
            value = values.get(placeholder)
            if isinstance(value, list | tuple | dict) and not self.is_credential:
                encoded = _encode_value(self._encoded_name, value, placeholder)
                if isinstance(value, dict) or _is_nested(value):
                    self._check_conflicts(parameters, placeholder)
                    return _limit_size(encoded, placeholder)
                return list(encoded)
        look_up = values.require_text if self.is_credential else values.get_text
        text = self.prefix
        for part in self.parts:
            value = part if isinstance(part, str) else look_up(part, URL_ENCODED)
            if value is None:
                return []
            if self.is_credential and isinstance(part, Placeholder) and values.is_step(part):
                values.used_secrets.add(unquote(value))
            text += value
        return [text]

    @property
    def _encoded_name(self) -> str:
        return self.prefix.removesuffix("=")

    def _check_conflicts(self, parameters: Sequence["ParameterTemplate"], placeholder: Placeholder) -> None:
        """Raise if a key could set another parameter of the template; some servers read `a[b]` as `a.b`."""
        name = self.name.lower()
        for other in (parameter.name for parameter in parameters if parameter is not self):
            if other.lower() == name or other.lower().startswith((f"{name}[", f"{name}.")):
                raise invalid_value_error([placeholder], f"is an object, which conflicts with the parameter {other}")


def _encode_value(
    name: str, value: Any, placeholder: Placeholder, depth: int = 0, *, is_indexed: bool = False
) -> Iterator[str]:
    """Yield the encoded parameters of a value; `name` is already encoded. Lists in lists of objects have indexes."""
    is_list = isinstance(value, list | tuple)
    is_indexed = is_indexed or (is_list and _is_nested(value))
    if not isinstance(value, dict) and not (is_list and is_indexed):
        for item in value if is_list else [value]:
            if item is not None:
                yield f"{name}={quote(to_text(item, placeholder), safe='')}"
        return
    if depth == MAX_DEPTH or len(name) > MAX_NAME_CHARS:
        raise invalid_value_error(
            [placeholder], f"has more than {MAX_DEPTH} levels of nested objects and lists, or very long keys"
        )
    items = enumerate(item for item in value if item is not None) if is_list else value.items()
    for key, item in items:
        full_name = f"{name}%5B{_encode_key(key, placeholder)}%5D"
        yield from _encode_value(full_name, item, placeholder, depth + 1, is_indexed=is_indexed)


def _is_nested(value: Any) -> bool:
    return any(isinstance(item, dict | list | tuple) for item in value)


def _limit_size(pairs: Iterator[str], placeholder: Placeholder) -> list[str]:
    limited: list[str] = []
    size = 0
    for pair in pairs:
        size += len(pair)
        if size > MAX_CHARS:
            raise invalid_value_error([placeholder], f"has more than {MAX_CHARS:,} characters as parameters")
        limited.append(pair)
    return limited


def _encode_key(key: Any, placeholder: Placeholder) -> str:
    """Encode a key. Brackets are rejected, because the server could not tell them from those around the key."""
    text = to_text(key, placeholder)
    if _FORBIDDEN_IN_KEY.search(text):
        raise invalid_value_error(
            [placeholder], f"has the invalid key {text[:40]!r}: keys cannot be empty or contain brackets or NUL"
        )
    return quote(text, safe="")


def encode_literal(text: str, safe: str) -> str:
    """Encode a literal part of a URL. Escapes are kept; invalid characters are encoded or rejected."""
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"{text!r} has an invalid escape; write %25 for a percent sign")
    if _FORBIDDEN_IN_URL.search(text):
        raise ValueError(f"{text!r} contains a space, backslash or control character; use an escape like %20")
    return quote(text, safe=safe)


def parse_query(text: str) -> tuple[ParameterTemplate, ...]:
    """Parse the parameters of `a=1&b=${b}`."""
    return tuple(ParameterTemplate.from_encoded(part) for part in text.split("&") if part)


def encode_query(parameters: Sequence[ParameterTemplate], values: Values) -> str:
    return "&".join([pair for parameter in parameters for pair in parameter.encode(values, parameters)])


def encode_fields(value: Any, placeholder: Placeholder) -> str:
    """Encode an object as a form whose fields the definition does not name."""
    if not isinstance(value, dict):
        raise invalid_value_error([placeholder], "is not an object: expected the fields of the form")
    names = {quote(to_text(key, placeholder), safe=""): item for key, item in value.items()}
    fields = (field for name, item in names.items() for field in _encode_value(name, item, placeholder))
    return "&".join(_limit_size(fields, placeholder))
