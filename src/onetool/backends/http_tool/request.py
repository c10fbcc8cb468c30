"""Build the request of a call from the templates of an HTTP tool and its values.

Constant parts are computed once. Secrets in the request are marked, so that they are not sent to other hosts or shown.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from onetool.backends.http_tool.body import BodyTemplate
from onetool.backends.http_tool.entries import Entry, encoded
from onetool.backends.http_tool.headers import Basic, Header
from onetool.backends.http_tool.placeholders import Placeholder, Values
from onetool.backends.http_tool.url import UrlTemplate
from onetool.net.exchange import Request


@dataclass(frozen=True)
class RequestTemplate:
    method: str
    url: UrlTemplate
    query: tuple[Entry, ...]
    headers: tuple[Header | Basic, ...]
    body: BodyTemplate | None = None

    @property
    def placeholders(self) -> list[Placeholder]:
        places = [self.url, *self.query, *self.headers, *([self.body] if self.body else [])]
        return list(chain.from_iterable(place.placeholders for place in places))

    def filled(self, values: Values) -> Request:
        content = self.body.fill(values) if self.body else None
        lines = self._lines(values)
        if self.body and content is None:
            lines = [(name, text) for name, text in lines if name.lower() != "content-type"]
        return Request(self.method, self._address(values), lines, content, *self._secret_names)

    def _address(self, values: Values) -> str:
        query = encoded(self._entries, values)
        return f"{self.url.origin}{self.url.path(values)}{'?' if query else ''}{query}"

    def _lines(self, values: Values) -> list[tuple[str, str]]:
        filled = [(header.name, header.filled(values)) for header in self.headers]
        return [(name, text) for name, text in filled if text is not None]

    @cached_property
    def _entries(self) -> tuple[Entry, ...]:
        return (*self.url.query, *self.query)

    @cached_property
    def _secret_names(self) -> tuple[frozenset[str], frozenset[str]]:
        headers = frozenset(header.name.lower() for header in self.headers if header.is_secret)
        return headers, frozenset(entry.name for entry in self._entries if entry.is_secret)


def measure(request: Request) -> int:
    """Return the size of the URL, the headers and the body in bytes."""
    lines = sum(len(name) + len(value.encode()) + len(": \r\n") for name, value in request.headers)
    return len(request.url) + lines + len(request.content or b"")
