"""The backend of HTTP tools: each call sends one request, with retries, and converts the response to a value.

Secrets are looked up when a request is built and redacted from responses. Errors show the template of the URL, never
the URL itself. This module imports little; `http_tool.impl`, which defines the tool, needs pydantic.
"""

import dataclasses
import functools
import html
import random as standard_random
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus

import anyio
import anyio.to_thread

from onetool._tool import Tool
from onetool.backends.http_tool import credentials
from onetool.backends.http_tool.answer import Hiding, Reader, get_unsupported_encoding
from onetool.backends.http_tool.placeholders import Values
from onetool.backends.http_tool.rates import Rates, SharedRates
from onetool.backends.http_tool.request import measure
from onetool.backends.http_tool.retry import Repetition
from onetool.context import ToolContext
from onetool.errors import ArgumentError, HttpStatusError, NetworkError, ToolTimeout
from onetool.net import Net
from onetool.net.exchange import Request, Response
from onetool.net.outgoing import IDEMPOTENT
from onetool.redact import SHORTEST_LINE, SHORTEST_SECRET, Redactor

if TYPE_CHECKING:
    from onetool.backends.http_tool.impl import HttpImpl
    from onetool.config.model import Http

LARGE: Final = 100_000  # bytes of a response that is parsed in a thread
MAX_URL_CHARS: Final = 65_536  # the limit of the HTTP library
SHOWN: Final = 2_000  # characters of the body of an error response
IN_MESSAGE: Final = 200
LOOKED_AT: Final = 65_536  # bytes; enough that a secret in the shown part is never cut in two


class HttpBackend:
    """The backend of one HTTP tool. Calls are counted by `identity` in `rates`; both outlive this object."""

    def __init__(
        self,
        impl: "HttpImpl",
        net: Callable[[], Net],
        defaults: Callable[[], "Http"],
        secrets: Callable[[str], str | None],
        *,
        rates: Rates | SharedRates | None = None,
        identity: str = "",
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        random: Callable[[], float] = standard_random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.impl = impl
        self._net, self._defaults, self._secrets = net, defaults, secrets
        self._rates, self._identity = rates or Rates(clock), identity
        self._repetition = Repetition(sleep, random, clock)
        self._template = impl.request
        self._reader = Reader(impl.response.mode, impl.response.selector)
        self._name = f"{impl.method} {credentials.mask_url(impl.url_template)}"
        self._literals = {found.value for found in credentials.find(impl.model_dump(by_alias=True))}
        self._repeats = impl.retry_non_idempotent or impl.method in IDEMPOTENT
        self._hidden: tuple[frozenset[str], Hiding | None] = (frozenset(), None)

    async def invoke(self, tool: Tool, args: Mapping[str, Any], _context: ToolContext) -> Any:
        values = Values(args, tool.input.required, self._secrets)
        request = self._template.filled(values)
        self._check_size(request)
        if self.impl.max_calls_per_minute is not None:
            await self._count(self._identity or tool.name, self.impl.max_calls_per_minute)
        settings, hiding = self._defaults(), self._get_redactor(values.revealed)
        response = await self._send(request, settings, hiding)
        if self.impl.succeeds(response.status):
            return await self._value(response, hiding, settings.max_response_bytes)
        if self.impl.error_mode == "empty":
            return None
        raise self._failure(response, hiding)

    async def _count(self, identity: str, limit: int) -> None:
        if isinstance(self._rates, SharedRates):
            await anyio.to_thread.run_sync(self._rates.take, identity, limit)
        else:
            self._rates.take(identity, limit)

    def _check_size(self, request: Request) -> None:
        if len(request.url) > MAX_URL_CHARS:
            raise ArgumentError(
                f"URL too long: more than {MAX_URL_CHARS:,} characters", hint="send long values in the request body"
            )
        limit = self.impl.max_request_bytes
        if limit is not None and (size := measure(request)) > limit:
            raise ArgumentError(
                f"request not sent: it has {size:,} bytes (maxRequestBytes of the tool is {limit:,})",
                size=size,
                limit=limit,
            )

    async def _send(self, request: Request, settings: "Http", hiding: Hiding | None) -> Response:
        impl, net = self.impl, self._net()
        milliseconds = impl.timeout_ms or settings.timeout_ms
        limit = min(impl.max_response_bytes or settings.max_response_bytes, settings.max_response_bytes)
        retries = settings.retries if impl.retries is None else impl.retries
        try:
            return await self._repetition.run(
                lambda seconds: net.send(request, timeout=seconds, max_bytes=limit),
                retries if self._repeats else 0,
                milliseconds / 1000,
            )
        except ToolTimeout:
            message = f"{self._name} timed out after {milliseconds:,} ms"
            raise ToolTimeout(message, timeout_ms=milliseconds) from None
        except NetworkError as error:
            raise self._redact_error(error, hiding) from None

    def _redact_error(self, error: NetworkError, hiding: Hiding | None) -> NetworkError:
        """Redact the error: the host of a redirect may contain what the request sent."""
        message, fields = error.message, error.fields
        if error.fields.get("reason") == "too_large" and error.fields.get("limit") == self.impl.max_response_bytes:
            message = f"response larger than {error.limit:,} bytes (maxResponseBytes of the tool)"
            fields = {**fields, "hint": ""}  # it names the setting, which is not the limit here
        return (
            NetworkError(hiding.redact(message), **hiding.redact.in_data(fields))
            if hiding
            else NetworkError(message, **fields)
        )

    async def _value(self, response: Response, hiding: Hiding | None, max_bytes: int) -> Any:
        if len(response.body) < LARGE:
            return self._reader.value(response, hiding, max_bytes)
        read = functools.partial(self._reader.value, response, hiding, max_bytes)
        return await anyio.to_thread.run_sync(read, abandon_on_cancel=True)

    def _failure(self, response: Response, hiding: Hiding | None) -> HttpStatusError:
        text = (
            ""
            if get_unsupported_encoding(response)
            else dataclasses.replace(response, body=response.body[:LOOKED_AT]).text()
        )
        body = (hiding.redact(text) if hiding else text)[:SHOWN]
        shown = " ".join(body[:IN_MESSAGE].split())
        said = f": {shown}" if shown else ""
        return HttpStatusError(
            f"{self._name} returned {_status(response.status)}{said}", status=response.status, body=body
        )

    def _get_redactor(self, revealed: set[str]) -> Hiding | None:
        """Return the redactor; it is rebuilt only when the secrets have changed."""
        secrets = frozenset(revealed | self._literals)
        if self._hidden[0] != secrets:
            self._hidden = (secrets, hiding(secrets))
        return self._hidden[1]


def hiding(secrets: frozenset[str]) -> Hiding:
    """Build a redactor for secrets, also in URL-encoded and HTML-escaped form."""
    writers: list[Callable[[str], str]] = [str, functools.partial(quote, safe=""), quote_plus, html.escape]
    known = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
    known |= {line.strip() for secret in known for line in secret.splitlines() if len(line.strip()) >= SHORTEST_LINE}
    spellings = {write(secret) for secret in known for write in writers}
    return Hiding(Redactor(spellings), tuple(sorted((text.encode() for text in spellings), key=len, reverse=True)))


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
