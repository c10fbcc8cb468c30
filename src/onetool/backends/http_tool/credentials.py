"""Literal credentials in the definition of an HTTP tool: find them, mask them, replace them with references.

`onetool.util.secret_finder` knows what counts. References to secrets and arguments are never touched.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus

from onetool.util.secret_finder import (
    HARMLESS_ENDINGS,
    HARMLESS_VALUE,
    SECRET_VALUE,
    WORD,
    is_secret_name,
    split_scheme,
)

MASK: Final = "[masked]"
JSON = dict[str, Any]
Replace = Callable[[str, str], str]  # place and literal value -> replacement

_REFERENCE = re.compile(r"((?<!\$)\$\{[^{}]*\})")
# Next to a reference, only what looks like a key counts.
_RUN = re.compile(r"(?<![A-Za-z0-9+/_=.~-])(?=[A-Za-z+/_=.~-]*[0-9])[A-Za-z0-9+/_=.~-]{12,}")
_SCHEMA_VALUES: Final = ("default", "const", "enum", "examples", "example")
_ORIGIN = re.compile(r"(https?)://([^/?#\\]+)", re.IGNORECASE)
_USER_INFO = re.compile(r"(?i)^(\s*[a-z][a-z0-9+.-]*://)([^/?#]*)@")
# Every repetition is bounded, so that matching is fast on any text.
_PAIR = re.compile(
    r"(?P<key>[\w.%-]{2,64})(?P<sign>[\"']?\s{0,9}[:=]\s{0,9}[\"']?)"
    r"(?P<value>(?:\$\{[^{}]{0,200}\}|[^\"'&\s,;<>}]){1,4000})"
)
_ELEMENT = re.compile(r"(?P<key>[\w.-]{2,64})(?P<sign>(?:\s[^<>]{0,200})?>)(?P<value>[^<]{1,4000})(?=</)")


class Found(NamedTuple):
    place: str
    value: str


def find(impl: Mapping[str, Any] | None) -> list[Found]:
    """Return the literal credentials of a definition, with their places."""
    return _collect(lambda note: replace(impl, note))


def find_in_schema(schema: Any) -> list[Found]:
    """Return the literal credentials among the values of a schema, with their places."""
    return _collect(lambda note: replace_in_schema(schema, note))


def _collect(walk: Callable[[Replace], Any]) -> list[Found]:
    found: list[Found] = []

    def note(place: str, value: str) -> str:
        found.append(Found(place, value))
        return value

    walk(note)
    return found


def mask(impl: Mapping[str, Any] | None) -> JSON | None:
    """Return the definition with its literal credentials masked."""
    return replace(impl, lambda _place, _value: MASK)


def mask_url(url: str) -> str:
    masked = mask({"urlTemplate": url}) or {}
    return str(masked["urlTemplate"])


def replace(impl: Mapping[str, Any] | None, by: Replace) -> JSON | None:
    """Return the definition with each literal credential replaced by what `by` gives for its place and value."""
    return None if impl is None else _Walk(by).impl(impl)


def replace_in_schema(schema: Any, by: Replace) -> Any:
    """Return a schema of arguments with each literal credential among its values replaced."""
    return _Walk(by).schema("", schema, is_credential=False)


def restore(impl: Mapping[str, Any], stored: Mapping[str, Any] | None) -> JSON | None:
    """Return the definition with masks replaced by the credentials that the stored one has in the same places.

    Only for the same origin: otherwise whoever may write tools could send the credential to another host.
    """
    if stored is None or _origin(impl) != _origin(stored):
        return dict(impl)
    known: dict[str, list[str]] = {}
    for place, value in find(stored):
        known.setdefault(place, []).append(value)
    seen: dict[str, int] = {}

    def put_back(place: str, value: str) -> str:
        number = seen[place] = seen.get(place, -1) + 1
        return known[place][number] if value == MASK and number < len(known.get(place, ())) else value

    return replace(impl, put_back)


def _origin(impl: Mapping[str, Any]) -> tuple[str, ...]:
    found = _ORIGIN.match(str(impl.get("urlTemplate", "")))
    return tuple(part.lower() for part in found.groups("")) if found else ()


def mask_problem(value: Any, place: str = "") -> str | None:
    """Return the problem if a value contains the mask that is shown in place of a credential, or None."""
    if isinstance(value, str):
        shown = f"{place} is" if place else "a value is"
        return f"{shown} {MASK}, the mask of a credential; use ${{secret:NAME}} instead" if MASK in value else None
    inside = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    problems = (mask_problem(item, f"{place}.{key}" if place else str(key)) for key, item in inside)
    return next(filter(None, problems), None)


@dataclass(frozen=True, slots=True)
class _Walk:
    by: Replace

    def impl(self, impl: Mapping[str, Any]) -> JSON:
        known = {"auth": self._auth, "headers": self._named, "query": self._named, "urlTemplate": self._url}
        return {key: known.get(key, self._value)(key, value) for key, value in impl.items()}

    def schema(self, place: str, schema: Any, *, is_credential: bool) -> Any:
        """Replace credentials in a schema: recognized by the name of the property or by their format."""
        if isinstance(schema, list):
            items = enumerate(schema)
            return [self.schema(f"{place}[{index}]", item, is_credential=is_credential) for index, item in items]
        if not isinstance(schema, Mapping):
            return schema
        return {key: self._keyword(f"{place}.{key}".lstrip("."), key, schema[key], is_credential) for key in schema}

    def _keyword(self, place: str, key: str, value: Any, is_credential: bool) -> Any:
        if key in _SCHEMA_VALUES:
            return self._value(place, value, is_credential=is_credential and key != "enum")
        if key != "properties" or not isinstance(value, Mapping):
            return self.schema(place, value, is_credential=is_credential)
        return {
            name: self.schema(f"{place}.{name}", inner, is_credential=is_secret_name(name, or_key=True))
            for name, inner in value.items()
        }

    def _auth(self, place: str, auth: Any) -> Any:
        if not isinstance(auth, Mapping) or not isinstance(auth.get("value"), str):
            return self._value(place, auth, is_credential=True)
        value, user = auth["value"], ""
        if auth.get("type") == "basic" and ":" in value:
            name, _, value = value.partition(":")
            user = f"{name}:"
        return {**auth, "value": user + self._secret(f"{place}.value", value)}

    def _named(self, place: str, pairs: Any) -> Any:
        """Replace credentials in headers or parameters."""
        if not isinstance(pairs, Mapping):
            return self._value(place, pairs)
        return {name: self._header(f"{place}.{name}", str(name), value) for name, value in pairs.items()}

    def _header(self, place: str, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if name.lower() == "cookie":
            return "; ".join(self._cookie(place, cookie) for cookie in re.split(r";\s*", value))
        return self._text(place, value, is_credential=is_secret_name(name, or_key=True))

    def _cookie(self, place: str, cookie: str) -> str:
        name, sign, value = cookie.partition("=")
        return f"{name}={self._secret(place, value)}" if sign else self._secret(place, name)

    def _url(self, place: str, url: Any) -> Any:
        if not isinstance(url, str):
            return self._value(place, url)

        def user_info(found: re.Match[str]) -> str:
            user, sign, password = found[2].partition(":")
            shown = f"{user}:{self._secret(place, password)}" if sign else self._secret(place, user)
            return f"{found[1]}{shown}@"

        start, sign, query = _USER_INFO.sub(user_info, url).partition("?")
        pairs = "&".join(self._parameter(place, pair) for pair in query.split("&"))
        return self._by_value(place, start) + sign + pairs

    def _parameter(self, place: str, pair: str) -> str:
        name, sign, value = pair.partition("=")
        plain = unquote_plus(name)
        is_credential = is_secret_name(plain, or_key=True)
        return name + sign + self._text(f"{place}?{plain}", value, is_credential=is_credential)

    def _value(self, place: str, value: Any, *, is_credential: bool = False) -> Any:
        if isinstance(value, Mapping):
            return {key: self._member(place, key, value, is_credential=is_credential) for key in value}
        if isinstance(value, list):
            items = enumerate(value)
            return [self._value(f"{place}[{index}]", item, is_credential=is_credential) for index, item in items]
        if not isinstance(value, str):
            return value
        return self._text(place, value, is_credential=is_credential) if is_credential else self._in_text(place, value)

    def _member(self, place: str, key: Any, around: Mapping[Any, Any], *, is_credential: bool) -> Any:
        """Replace credentials in a member, named by its key, an enclosing key or a sibling `name` or `key`."""
        words = [word.lower() for word in WORD.findall(str(key))]
        named = next((around[name] for name in ("name", "key") if isinstance(around.get(name), str)), "")
        is_one = is_secret_name(str(key)) or (key == "value" and is_secret_name(named))
        inherits = is_credential and bool(words) and words[-1] not in HARMLESS_ENDINGS
        return self._value(f"{place}.{key}", around[key], is_credential=is_one or inherits)

    # --- texts -------------------------------------------------------------------------------------------------

    def _in_text(self, place: str, text: str) -> str:
        """Replace credentials in a string, which may be JSON, a form or XML."""
        if (data := _document(text)) is not None:
            changed = self._value(place, data)
            return text if changed == data else json.dumps(changed, ensure_ascii=False)

        def pair(found: re.Match[str]) -> str:
            key = unquote_plus(found["key"])
            value = self._text(f"{place}.{key}", found["value"], is_credential=is_secret_name(key))
            return found["key"] + found["sign"] + value

        for pattern in (_PAIR, _ELEMENT):
            text = pattern.sub(pair, text)
        return self._by_value(place, text)

    def _text(self, place: str, text: str, *, is_credential: bool) -> str:
        if is_credential and not HARMLESS_VALUE.fullmatch(text):
            return self._secret(place, text)
        return self._by_value(place, text)

    def _by_value(self, place: str, text: str) -> str:
        return SECRET_VALUE.sub(lambda found: self.by(place, found[0]), text)

    def _secret(self, place: str, text: str) -> str:
        """Replace what is literal; keep a scheme such as `Bearer` and references."""
        start, rest = split_scheme(text)
        parts = _REFERENCE.split(rest)
        if len(parts) == 1:
            return start + self.by(place, rest) if rest.strip() else text
        return start + "".join(
            part if number % 2 else _RUN.sub(lambda found: self.by(place, found[0]), part)
            for number, part in enumerate(parts)
        )


def _document(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
