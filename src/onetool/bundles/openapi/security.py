"""Conversion of security schemes to `auth`, headers and query of an HTTP tool.

Keys and tokens are never arguments: each becomes a secret, whose value the user adds.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onetool.bundles.openapi.document import as_mapping, as_text
from onetool.bundles.openapi.names import secret
from onetool.bundles.openapi.references import References
from onetool.bundles.openapi.request import literal
from onetool.bundles.rules import invalid
from onetool.errors import BundleError

JSON = dict[str, Any]


@dataclass(slots=True)
class Credentials:
    """The credentials of `httpImpl`. A tool has one `auth`; further keys are headers and query parameters."""

    auth: JSON | None = None
    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)

    def take(self, auth: JSON, name: str) -> None:
        if self.auth is not None and self.auth["type"] == auth["type"] == "bearer":
            return  # two descriptions of one token
        if self.auth is not None and auth["type"] != "apiKey":
            raise invalid("it requires two kinds of authentication in the same header")
        self.secrets.append(name)
        if self.auth is None:
            self.auth = auth
        else:
            (self.query if auth["in"] == "query" else self.headers)[auth["name"]] = auth["value"]

    def add_cookie(self, cookie: str, name: str) -> None:
        self.secrets.append(name)
        earlier = f"{self.headers['Cookie']}; " if "Cookie" in self.headers else ""
        self.headers["Cookie"] = f"{earlier}{literal(cookie)}=${{secret:{name}}}"

    def places(self) -> list[tuple[str, str]]:
        """Return the locations of keys: `header` or `query`, and the name."""
        keys = [(str(self.auth["in"]), str(self.auth["name"]))] if self.auth and self.auth["type"] == "apiKey" else []
        return [*keys, *(("header", name) for name in self.headers), *(("query", name) for name in self.query)]


class Security:
    def __init__(self, schemes: Mapping[str, Any], references: References, bundle: str) -> None:
        self._schemes, self._references, self._bundle = schemes, references, bundle
        self.undefined: set[str] = set()

    def credentials(self, alternatives: Any) -> Credentials:
        """Return the credentials of the first supported alternative; empty if none is required."""
        if not isinstance(alternatives, list) or not alternatives:
            return Credentials()
        reasons: list[str] = []
        for alternative in map(as_mapping, alternatives):
            try:
                return self._combine(alternative)
            except BundleError as reason:
                reasons.append(reason.message)
        raise invalid(f"unsupported authentication: {'; '.join(dict.fromkeys(reasons))}")

    def secret_for(self, scheme: str) -> str:
        return secret(self._bundle, scheme)

    def header_credentials(self, header: str) -> Credentials:
        """Return credentials for a document that describes its authentication only as a header parameter."""
        key = self.secret_for(header)
        value = f"${{secret:{key}}}"
        return Credentials({"type": "apiKey", "in": "header", "name": header, "value": value}, secrets=[key])

    def _combine(self, alternative: Iterable[str]) -> Credentials:
        made = Credentials()
        for name in alternative:
            self._add(made, name)
        return made

    def _add(self, made: Credentials, name: str) -> None:
        if name not in self._schemes:
            self.undefined.add(name)  # its kind is unknown; the tool may work without it
            return
        scheme = self._references.mapping(self._schemes[name])
        kind = as_text(scheme.get("type"))
        handlers: Mapping[str, Callable[[Credentials, str, Mapping[str, Any]], None]] = {
            "apiKey": self._api_key, "http": self._http, "oauth2": self._bearer, "openIdConnect": self._bearer
        }  # fmt: skip
        if kind not in handlers:
            raise invalid(f"the scheme {name[:60]!r} has the type {kind[:60]!r}")
        handlers[kind](made, name, scheme)

    def _bearer(self, made: Credentials, name: str, _scheme: Mapping[str, Any]) -> None:
        key = self.secret_for(name)
        made.take({"type": "bearer", "value": f"${{secret:{key}}}"}, key)

    def _http(self, made: Credentials, name: str, scheme: Mapping[str, Any]) -> None:
        kind = as_text(scheme.get("scheme")).lower()
        if kind not in {"bearer", "basic"}:
            raise invalid(f"the scheme {name[:60]!r} is HTTP authentication of type {kind[:60]!r}")
        key = self.secret_for(name)
        made.take({"type": kind, "value": f"${{secret:{key}}}"}, key)

    def _api_key(self, made: Credentials, name: str, scheme: Mapping[str, Any]) -> None:
        place, parameter = as_text(scheme.get("in")), as_text(scheme.get("name"))
        if place not in {"header", "query", "cookie"} or not parameter:
            raise invalid(f"the scheme {name[:60]!r} does not declare the location of its key")
        key = self.secret_for(name)
        if place == "cookie":
            made.add_cookie(parameter, key)
        else:
            made.take({"type": "apiKey", "in": place, "name": literal(parameter), "value": f"${{secret:{key}}}"}, key)
