"""Literal credentials in HTTP tool definitions: find, mask, and replace with references.

`onetool.util.secret_finder` recognizes secrets. References to secrets and arguments are never
changed.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from onetool.util.secret_finder import (
    HARMLESS_ENDINGS,
    HARMLESS_VALUE,
    SECRET_VALUE,
    WORD,
    is_secret_name,
    split_scheme,
)
from onetool_child.json_types import JsonMapping, JsonObject

MASK = "[masked]"
Replacement = Callable[[str, str], str]  # location and literal value -> replacement

_REFERENCE = re.compile(r"((?<!\$)\$\{[^{}]*\})")
# Next to a reference, only text that looks like a key is a credential.
_KEY_PATTERN = re.compile(
    r"(?<![A-Za-z0-9+/_=.~-])(?=[A-Za-z+/_=.~-]*[0-9])[A-Za-z0-9+/_=.~-]{12,}"
)
# The secret settings of fields.
SECRET_FIELDS = {"auth": {"value"}, "hmac": {"key", "sessionToken"}}
_SCHEMA_VALUES = ("default", "const", "enum", "examples", "example")
_ORIGIN = re.compile(r"(https?)://([^/?#\\]+)", re.IGNORECASE)
_USER_INFO = re.compile(r"(?i)^(\s*[a-z][a-z0-9+.-]*://)([^/?#]*)@")
# Every repetition is bounded or does not backtrack, so that matching is fast on any text.
_PAIR = re.compile(
    r"(?<![\w.%-])(?P<key>[\w.%-]{2,}+)(?P<sign>[\"']?\s{0,9}[:=]\s{0,9}[\"']?)"
    r"(?P<value>(?:\$\{[^{}]{0,200}\}|[^\"'&\s,;<>}]){1,4000})"
)
_ELEMENT = re.compile(
    r"(?<=<)(?P<key>[\w.:-]{2,}+)(?P<sign>(?:\s[^<>]{0,200})?>)(?P<value>[^<]{1,4000})(?=</)"
)


class LiteralCredential(NamedTuple):
    """A credential that a definition contains as text, and where it does."""

    location: str
    value: str


def find(impl: JsonMapping | None) -> list[LiteralCredential]:
    """Return the literal credentials of a definition, with their locations."""
    return _collect(lambda record: replace(impl, record))


def find_in_schema(schema: Any) -> list[LiteralCredential]:
    """Return the literal credentials among the values of a schema, with their locations."""
    return _collect(lambda record: replace_in_schema(schema, record))


def _collect(walk: Callable[[Replacement], Any]) -> list[LiteralCredential]:
    credentials: list[LiteralCredential] = []

    def record(location: str, value: str) -> str:
        credentials.append(LiteralCredential(location, value))
        return value

    walk(record)
    return credentials


def mask(impl: JsonMapping | None) -> JsonObject | None:
    """Return the definition with its literal credentials masked."""
    return replace(impl, lambda _location, _value: MASK)


def mask_url(url: str) -> str:
    masked = mask({"urlTemplate": url}) or {}
    return str(masked["urlTemplate"])


def replace(impl: JsonMapping | None, replacement: Replacement) -> JsonObject | None:
    """Replace each literal credential by `replacement(location, value)`."""
    return None if impl is None else _CredentialReplacer(replacement).replace_in_impl(impl)


def replace_in_schema(schema: Any, replacement: Replacement) -> Any:
    """Return a schema of arguments with each literal credential among its values replaced."""
    return _CredentialReplacer(replacement).replace_in_schema("", schema, is_credential=False)


def restore(impl: JsonMapping, stored: JsonMapping | None) -> JsonObject | None:
    """Replace masks with the credentials that the stored definition has in the same locations.

    Masks are only replaced for the same origins. Otherwise, anyone who can write tools could send
    the credential to another host.
    """
    if stored is None or list_origins(impl) != list_origins(stored):
        return dict(impl)
    originals: dict[str, list[str]] = {}
    for location, value in find(stored):
        originals.setdefault(location, []).append(value)
    seen: dict[str, int] = {}

    def restore_mask(location: str, value: str) -> str:
        number = seen[location] = seen.get(location, -1) + 1
        if value == MASK and number < len(originals.get(location, ())):
            return originals[location][number]
        return value

    return replace(impl, restore_mask)


def list_origins(impl: JsonMapping) -> list[tuple[str, ...]]:
    """Return the origins of the steps and of the tool, in the order of their requests."""
    steps = impl.get("steps")
    listed = steps if isinstance(steps, list) else []
    requests = [step for step in listed if isinstance(step, Mapping)]
    matches = (_ORIGIN.match(str(request.get("urlTemplate", ""))) for request in (*requests, impl))
    return [tuple(part.lower() for part in match.groups("")) if match else () for match in matches]


def find_mask_problem(value: Any, location: str = "") -> str | None:
    """Return the problem if a value contains the mask of a credential, or None."""
    if isinstance(value, str):
        if MASK not in value:
            return None
        subject = location or "a value"
        return f"{subject} is {MASK}, the mask of a credential; use ${{secret:NAME}} instead"
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for key, member in members:
        problem = find_mask_problem(member, f"{location}.{key}" if location else str(key))
        if problem:
            return problem
    return None


@dataclass(frozen=True, slots=True)
class _CredentialReplacer:
    """A copy of definitions and schemas in which `replacement` replaces each literal credential."""

    replacement: Replacement

    def replace_in_impl(self, impl: JsonMapping, prefix: str = "") -> JsonObject:
        return {
            key: self._replace_in_field(prefix + key, key, value) for key, value in impl.items()
        }

    def _replace_in_field(self, location: str, key: str, value: Any) -> Any:
        if key in SECRET_FIELDS:
            return self._replace_in_secrets(location, value, SECRET_FIELDS[key])
        if key in {"headers", "query"} and isinstance(value, Mapping):
            return {
                name: self._replace_in_pair(f"{location}.{name}", str(name), text)
                for name, text in value.items()
            }
        if key == "steps" and isinstance(value, list):
            steps = enumerate(value)
            return [self._replace_in_step(f"{location}.{index}", step) for index, step in steps]
        if key == "urlTemplate" and isinstance(value, str):
            return self._replace_in_url(location, value)
        return self._replace_in_value(location, value)

    def _replace_in_step(self, location: str, step: Any) -> Any:
        if isinstance(step, Mapping):
            return self.replace_in_impl(step, f"{location}.")
        return self._replace_in_value(location, step)

    def _replace_in_secrets(self, location: str, settings: Any, names: Collection[str]) -> Any:
        """Replace the secret settings of `auth` or `hmac`."""
        if not isinstance(settings, Mapping):
            return self._replace_in_value(location, settings, is_credential=True)
        replaced = {}
        for name, value in settings.items():
            inner = f"{location}.{name}"
            if name not in names or not isinstance(value, str):
                replaced[name] = self._replace_in_value(inner, value, is_credential=name in names)
            elif settings.get("type") == "basic":
                replaced[name] = self._replace_after(":", inner, value)
            else:
                replaced[name] = self._replace_literals(inner, value)
        return replaced

    def _replace_in_pair(self, location: str, name: str, value: Any) -> Any:
        """Replace credentials in a header or a parameter."""
        if not isinstance(value, str):
            return value
        if name.lower() == "cookie":
            cookies = re.split(r";\s*", value)
            return "; ".join(self._replace_after("=", location, cookie) for cookie in cookies)
        is_credential = is_secret_name(name, or_key=True)
        return self._replace_in_string(location, value, is_credential=is_credential)

    def _replace_after(self, sign: str, location: str, text: str) -> str:
        """Replace the literal parts after the sign, or all without it."""
        name, sign, value = text.partition(sign)
        if not sign:
            return self._replace_literals(location, text)
        return f"{name}{sign}{self._replace_literals(location, value)}"

    def _replace_in_url(self, location: str, url: str) -> str:
        def replace_user_info(match: re.Match[str]) -> str:
            return f"{match[1]}{self._replace_after(':', location, match[2])}@"

        start, sign, query = _USER_INFO.sub(replace_user_info, url).partition("?")
        pairs = "&".join(self._replace_in_parameter(location, pair) for pair in query.split("&"))
        return self._replace_known_formats(location, start) + sign + pairs

    def _replace_in_parameter(self, location: str, pair: str) -> str:
        name, sign, value = pair.partition("=")
        plain = unquote_plus(name)
        is_credential = is_secret_name(plain, or_key=True)
        location = f"{location}?{plain}"
        return name + sign + self._replace_in_string(location, value, is_credential=is_credential)

    def replace_in_schema(self, location: str, schema: Any, *, is_credential: bool) -> Any:
        """Replace credentials in a schema, recognized by property name or format."""
        if isinstance(schema, list):
            items = enumerate(schema)
            return [
                self.replace_in_schema(f"{location}[{at}]", item, is_credential=is_credential)
                for at, item in items
            ]
        if not isinstance(schema, Mapping):
            return schema
        return {
            key: self._replace_in_keyword(
                f"{location}.{key}".lstrip("."), key, value, is_credential
            )
            for key, value in schema.items()
        }

    def _replace_in_keyword(self, location: str, key: str, value: Any, is_credential: bool) -> Any:
        if key in _SCHEMA_VALUES:
            is_credential = is_credential and key != "enum"
            return self._replace_in_value(location, value, is_credential=is_credential)
        if key != "properties" or not isinstance(value, Mapping):
            return self.replace_in_schema(location, value, is_credential=is_credential)
        return {
            name: self.replace_in_schema(
                f"{location}.{name}", inner, is_credential=is_secret_name(name, or_key=True)
            )
            for name, inner in value.items()
        }

    def _replace_in_value(self, location: str, value: Any, *, is_credential: bool = False) -> Any:
        if isinstance(value, Mapping):
            return {
                key: self._replace_in_member(location, key, value, is_credential=is_credential)
                for key in value
            }
        if isinstance(value, list):
            items = enumerate(value)
            return [
                self._replace_in_value(f"{location}[{at}]", item, is_credential=is_credential)
                for at, item in items
            ]
        if not isinstance(value, str):
            return value
        if is_credential:
            return self._replace_in_string(location, value)
        return self._replace_in_text(location, value)

    def _replace_in_member(
        self, location: str, key: Any, parent: Mapping[Any, Any], *, is_credential: bool
    ) -> Any:
        """Replace credentials in a member, named by its key, a parent, or a sibling `name`."""
        words = [word.lower() for word in WORD.findall(str(key))]
        sibling_name = next(
            (parent[name] for name in ("name", "key") if isinstance(parent.get(name), str)), ""
        )
        is_named_secret = is_secret_name(str(key)) or (
            key == "value" and is_secret_name(sibling_name)
        )
        inherits = is_credential and bool(words) and words[-1] not in HARMLESS_ENDINGS
        return self._replace_in_value(
            f"{location}.{key}", parent[key], is_credential=is_named_secret or inherits
        )

    # --- text -------------------------------------------------------------------------------------

    def _replace_in_text(self, location: str, text: str) -> str:
        """Replace credentials in a string, which may be JSON, a form or XML."""
        if (data := _parse_json(text)) is not None:
            changed = self._replace_in_value(location, data)
            return text if changed == data else json.dumps(changed, ensure_ascii=False)

        def replace_pair(match: re.Match[str]) -> str:
            is_reference = match.string.endswith("${", 0, match.start())
            if match["key"] == "secret" and is_reference:
                return match[0]
            key = unquote_plus(match["key"])
            value = self._replace_in_string(
                f"{location}.{key}", match["value"], is_credential=is_secret_name(key)
            )
            return match["key"] + match["sign"] + value

        for pattern in (_PAIR, _ELEMENT):
            text = pattern.sub(replace_pair, text)
        return self._replace_known_formats(location, text)

    def _replace_in_string(self, location: str, text: str, *, is_credential: bool = True) -> str:
        if is_credential and not HARMLESS_VALUE.fullmatch(text):
            return self._replace_literals(location, text)
        return self._replace_known_formats(location, text)

    def _replace_known_formats(self, location: str, text: str) -> str:
        return SECRET_VALUE.sub(lambda match: self.replacement(location, match[0]), text)

    def _replace_literals(self, location: str, text: str) -> str:
        """Replace the literal parts; keep references and a scheme such as `Bearer`."""
        start, rest = split_scheme(text)
        parts = _REFERENCE.split(rest)  # literal parts and references in turn
        if len(parts) == 1:
            return start + self.replacement(location, rest) if rest.strip() else text
        for index in range(0, len(parts), 2):
            parts[index] = _KEY_PATTERN.sub(
                lambda match: self.replacement(location, match[0]), parts[index]
            )
        return start + "".join(parts)


def _parse_json(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
