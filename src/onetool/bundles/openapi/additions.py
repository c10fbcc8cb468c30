"""Authentication and headers that the user adds to a document that lacks them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from onetool.backends.http.placeholders import list_placeholders, parse
from onetool.backends.http.request import check_headers
from onetool.bundles.rules import invalid
from onetool.util.secret_finder import is_secret_name
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping


@dataclass(frozen=True, slots=True)
class Additions:
    """`scheme` is the security scheme of operations that declare none; `headers` are sent by all tools."""

    scheme: JsonMapping | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, auth: str | None, headers: Iterable[str]) -> Self:
        """Parse `bearer`, `basic`, `header:NAME` or `query:NAME`, and headers like `X-Version: 2`."""
        return cls(_parse_scheme(auth) if auth else None, _parse_headers(headers))

    @property
    def secrets(self) -> list[str]:
        """The names of the secrets in the headers."""
        return [part.name for value in self.headers.values() for part in list_placeholders(parse(value))]


def _parse_scheme(auth: str) -> JsonMapping:
    kind, _, name = auth.partition(":")
    if auth in {"bearer", "basic"}:
        return {"type": "http", "scheme": auth}
    if kind not in {"header", "query"} or not name:
        raise invalid(f"invalid auth {quote(auth, 60)} (expected bearer, basic, header:NAME or query:NAME)")
    return {"type": "apiKey", "in": kind, "name": name}


def _parse_headers(headers: Iterable[str]) -> dict[str, str]:
    parsed: dict[str, str] = {}
    for text in headers:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not value:
            raise invalid(f"invalid header {quote(name, 60)} (expected a header like 'X-Version: 2')")
        try:
            check_headers({name: value})
            placeholders = list_placeholders(parse(value))
        except ValueError as error:
            raise invalid(f"invalid header {quote(name, 60)}: {error}") from None
        if argument := next((placeholder for placeholder in placeholders if not placeholder.is_secret), None):
            raise invalid(f"invalid header {quote(name, 60)}: {argument} is not a secret (expected ${{secret:NAME}})")
        if is_secret_name(name, or_key=True) and not placeholders:
            raise invalid(
                f"header {quote(name, 60)} contains a credential; run `onetool secret set NAME`, "
                f"and write '{name}: ${{secret:NAME}}'"
            )
        parsed[name] = value
    return parsed
