"""How a request says who is asking: the ways that a document describes, as `auth`, headers and query of an HTTP tool.

Keys and tokens are never arguments: each becomes the name of a secret, for a person to fill in.
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
    """What goes into `httpImpl`. A tool has one `auth`; keys beside it are headers and parameters like others."""

    auth: JSON | None = None
    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)

    def take(self, auth: JSON, name: str) -> None:
        if self.auth is not None and self.auth["type"] == auth["type"] == "bearer":
            return  # two descriptions of one token
        if self.auth is not None and auth["type"] != "apiKey":
            raise invalid("it asks for two kinds of authentication in the same header")
        self.secrets.append(name)
        if self.auth is None:
            self.auth = auth
        else:
            (self.query if auth["in"] == "query" else self.headers)[auth["name"]] = auth["value"]

    def take_cookie(self, cookie: str, name: str) -> None:
        self.secrets.append(name)
        earlier = f"{self.headers['Cookie']}; " if "Cookie" in self.headers else ""
        self.headers["Cookie"] = f"{earlier}{literal(cookie)}=${{secret:{name}}}"

    def places(self) -> list[tuple[str, str]]:
        """Where the keys stand: `header` or `query`, and the name."""
        keys = [(str(self.auth["in"]), str(self.auth["name"]))] if self.auth and self.auth["type"] == "apiKey" else []
        return [*keys, *(("header", name) for name in self.headers), *(("query", name) for name in self.query)]


class Security:
    def __init__(self, schemes: Mapping[str, Any], references: References, bundle: str) -> None:
        self._schemes, self._references, self._bundle = schemes, references, bundle
        self.undefined: set[str] = set()

    def credentials(self, alternatives: Any) -> Credentials:
        """Of the first alternative that can be expressed; none where none is asked for."""
        if not isinstance(alternatives, list) or not alternatives:
            return Credentials()
        reasons: list[str] = []
        for alternative in map(as_mapping, alternatives):
            try:
                return self._all_of(alternative)
            except BundleError as reason:
                reasons.append(reason.message)
        raise invalid(f"its authentication cannot be expressed: {'; '.join(dict.fromkeys(reasons))}")

    def secret_for(self, scheme: str) -> str:
        return secret(self._bundle, scheme)

    def in_the_header(self, header: str) -> Credentials:
        """For a document that describes its authentication as nothing but a header."""
        key = self.secret_for(header)
        value = f"${{secret:{key}}}"
        return Credentials({"type": "apiKey", "in": "header", "name": header, "value": value}, secrets=[key])

    def _all_of(self, alternative: Iterable[str]) -> Credentials:
        made = Credentials()
        for name in alternative:
            self._add(made, name)
        return made

    def _add(self, made: Credentials, name: str) -> None:
        if name not in self._schemes:
            self.undefined.add(name)  # nobody knows what it would be; the tool may well work without
            return
        scheme = self._references.mapping(self._schemes[name])
        kind = as_text(scheme.get("type"))
        handlers: Mapping[str, Callable[[Credentials, str, Mapping[str, Any]], None]] = {
            "apiKey": self._api_key, "http": self._http, "oauth2": self._bearer, "openIdConnect": self._bearer
        }  # fmt: skip
        if kind not in handlers:
            raise invalid(f"the scheme {name[:60]!r} is of the kind {kind[:60]!r}")
        handlers[kind](made, name, scheme)

    def _bearer(self, made: Credentials, name: str, _scheme: Mapping[str, Any]) -> None:
        key = self.secret_for(name)
        made.take({"type": "bearer", "value": f"${{secret:{key}}}"}, key)

    def _http(self, made: Credentials, name: str, scheme: Mapping[str, Any]) -> None:
        kind = as_text(scheme.get("scheme")).lower()
        if kind not in {"bearer", "basic"}:
            raise invalid(f"the scheme {name[:60]!r} is HTTP authentication of the kind {kind[:60]!r}")
        key = self.secret_for(name)
        made.take({"type": kind, "value": f"${{secret:{key}}}"}, key)

    def _api_key(self, made: Credentials, name: str, scheme: Mapping[str, Any]) -> None:
        place, parameter = as_text(scheme.get("in")), as_text(scheme.get("name"))
        if place not in {"header", "query", "cookie"} or not parameter:
            raise invalid(f"the scheme {name[:60]!r} does not say where its key stands")
        key = self.secret_for(name)
        if place == "cookie":
            made.take_cookie(parameter, key)
        else:
            made.take({"type": "apiKey", "in": place, "name": literal(parameter), "value": f"${{secret:{key}}}"}, key)
