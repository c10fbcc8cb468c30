"""Build the request of a call from the templates of an HTTP tool and its values.

Constant parts are computed once. Secrets in the request are marked, so that they are not sent to other hosts or shown.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from onetool.backends.http_tool.body import BodyTemplate
from onetool.backends.http_tool.headers import BasicAuth, HeaderTemplate, MultipartType
from onetool.backends.http_tool.placeholders import Placeholder, Values
from onetool.backends.http_tool.query import ParameterTemplate, encode_query
from onetool.backends.http_tool.signing import Signer
from onetool.backends.http_tool.url import UrlTemplate
from onetool.net.messages import Request


@dataclass(frozen=True)
class RequestTemplate:
    """The parsed templates of a request."""

    method: str
    url: UrlTemplate
    query: tuple[ParameterTemplate, ...]
    headers: tuple[HeaderTemplate | BasicAuth | MultipartType, ...]
    body: BodyTemplate | None = None
    signer: Signer | None = None

    @property
    def placeholders(self) -> list[Placeholder]:
        templates = [self.url, *self.query, *self.headers]
        optional = [template.placeholders for template in (self.body, self.signer) if template]
        return list(chain.from_iterable([*(template.placeholders for template in templates), *optional]))

    def fill(self, values: Values) -> Request:
        content = self.body.fill(values) if self.body else None
        headers = self._fill_headers(values)
        if self.body and content is None:
            headers = [(name, text) for name, text in headers if name.lower() != "content-type"]
        request = Request(self.method, self._build_url(values), headers, content, *self._secret_names)
        return self.signer.sign(request, values) if self.signer else request

    def _build_url(self, values: Values) -> str:
        query = encode_query(self._parameters, values)
        return f"{self.url.origin}{self.url.fill_path(values)}{'?' if query else ''}{query}"

    def _fill_headers(self, values: Values) -> list[tuple[str, str]]:
        filled = [(header.name, header.fill(values)) for header in self.headers]
        return [(name, text) for name, text in filled if text is not None]

    @cached_property
    def _parameters(self) -> tuple[ParameterTemplate, ...]:
        return (*self.url.query, *self.query)

    @cached_property
    def _secret_names(self) -> tuple[frozenset[str], frozenset[str]]:
        headers = frozenset(header.name.lower() for header in self.headers if header.is_secret)
        return headers, frozenset(parameter.name for parameter in self._parameters if parameter.is_secret)


def measure_bytes(request: Request) -> int:
    """Return the size of the URL, the headers and the body in bytes."""
    headers = sum(len(name) + len(value.encode()) + len(": \r\n") for name, value in request.headers)
    return len(request.url) + headers + len(request.content or b"")
