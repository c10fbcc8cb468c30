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
from onetool.backends.http_tool.placeholders import Values
from onetool.backends.http_tool.rate_limit import RateLimiter, SharedRateLimiter
from onetool.backends.http_tool.request import measure_bytes
from onetool.backends.http_tool.response_reader import ResponseReader, SecretRedactor, get_unsupported_encoding
from onetool.backends.http_tool.retry import RetryPolicy
from onetool.context import ToolContext
from onetool.errors import ArgumentError, HttpStatusError, NetworkError, ToolTimeout
from onetool.net import Net
from onetool.net.messages import Request, Response
from onetool.net.outgoing import IDEMPOTENT_METHODS
from onetool.redact import MIN_LINE_CHARS, MIN_SECRET_CHARS, Redactor

if TYPE_CHECKING:
    from onetool.backends.http_tool.impl import HttpImpl
    from onetool.config.model import Http

LARGE_RESPONSE_BYTES: Final = 100_000  # larger responses are parsed in a thread
MAX_URL_CHARS: Final = 65_536  # the limit of the HTTP library
MAX_BODY_CHARS: Final = 2_000  # of the body of an error response
MAX_MESSAGE_CHARS: Final = 200
MAX_SCANNED_BYTES: Final = 65_536  # of an error response; a secret in the shown part is never cut in two


class HttpBackend:
    """The backend of one HTTP tool. `rate_limiter` counts its calls under `identity`; both outlive this object."""

    def __init__(
        self,
        impl: "HttpImpl",
        net: Callable[[], Net],
        defaults: Callable[[], "Http"],
        secrets: Callable[[str], str | None],
        *,
        rate_limiter: RateLimiter | SharedRateLimiter | None = None,
        identity: str = "",
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        random: Callable[[], float] = standard_random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.impl = impl
        self._net, self._defaults, self._secrets = net, defaults, secrets
        self._rate_limiter, self._identity = rate_limiter or RateLimiter(clock), identity
        self._retry_policy = RetryPolicy(sleep, random, clock)
        self._template = impl.request
        self._reader = ResponseReader(impl.response.mode, impl.response.selector)
        self._label = f"{impl.method} {credentials.mask_url(impl.url_template)}"
        self._literals = {credential.value for credential in credentials.find(impl.model_dump(by_alias=True))}
        self._can_retry = impl.retry_non_idempotent or impl.method in IDEMPOTENT_METHODS
        self._redactor: tuple[frozenset[str], SecretRedactor | None] = (frozenset(), None)

    async def invoke(self, tool: Tool, args: Mapping[str, Any], _context: ToolContext) -> Any:
        values = Values(args, tool.input.required, self._secrets)
        request = self._template.fill(values)
        self._check_size(request)
        if self.impl.max_calls_per_minute is not None:
            await self._check_rate_limit(self._identity or tool.name, self.impl.max_calls_per_minute)
        settings, redactor = self._defaults(), self._get_redactor(values.used_secrets)
        response = await self._send(request, settings, redactor)
        if self.impl.is_success(response.status):
            return await self._read_value(response, redactor, settings.max_response_bytes)
        if self.impl.error_mode == "empty":
            return None
        raise self._status_error(response, redactor)

    async def _check_rate_limit(self, identity: str, limit: int) -> None:
        if isinstance(self._rate_limiter, SharedRateLimiter):
            await anyio.to_thread.run_sync(self._rate_limiter.acquire, identity, limit)
        else:
            self._rate_limiter.acquire(identity, limit)

    def _check_size(self, request: Request) -> None:
        if len(request.url) > MAX_URL_CHARS:
            raise ArgumentError(
                f"URL too long: more than {MAX_URL_CHARS:,} characters", hint="send long values in the request body"
            )
        limit = self.impl.max_request_bytes
        if limit is not None and (size := measure_bytes(request)) > limit:
            raise ArgumentError(
                f"request not sent: it has {size:,} bytes (maxRequestBytes of the tool is {limit:,})",
                size=size,
                limit=limit,
            )

    async def _send(self, request: Request, settings: "Http", redactor: SecretRedactor | None) -> Response:
        impl, net = self.impl, self._net()
        timeout_ms = impl.timeout_ms or settings.timeout_ms
        max_bytes = min(impl.max_response_bytes or settings.max_response_bytes, settings.max_response_bytes)
        retries = settings.retries if impl.retries is None else impl.retries
        try:
            return await self._retry_policy.run(
                lambda seconds: net.send(request, timeout=seconds, max_bytes=max_bytes),
                retries if self._can_retry else 0,
                timeout_ms / 1000,
            )
        except ToolTimeout:
            message = f"{self._label} timed out after {timeout_ms:,} ms"
            raise ToolTimeout(message, timeout_ms=timeout_ms) from None
        except NetworkError as error:
            raise self._redact_error(error, redactor) from None

    def _redact_error(self, error: NetworkError, redactor: SecretRedactor | None) -> NetworkError:
        """Redact the error: the host of a redirect may contain what the request sent."""
        message, fields = error.message, error.fields
        if error.fields.get("reason") == "too_large" and error.fields.get("limit") == self.impl.max_response_bytes:
            message = f"response larger than {error.limit:,} bytes (maxResponseBytes of the tool)"
            fields = {**fields, "hint": ""}  # it names the setting, which is not the limit here
        return (
            NetworkError(redactor.redact(message), **redactor.redact.redact_data(fields))
            if redactor
            else NetworkError(message, **fields)
        )

    async def _read_value(self, response: Response, redactor: SecretRedactor | None, max_bytes: int) -> Any:
        if len(response.body) < LARGE_RESPONSE_BYTES:
            return self._reader.read(response, redactor, max_bytes)
        read = functools.partial(self._reader.read, response, redactor, max_bytes)
        return await anyio.to_thread.run_sync(read, abandon_on_cancel=True)

    def _status_error(self, response: Response, redactor: SecretRedactor | None) -> HttpStatusError:
        text = (
            ""
            if get_unsupported_encoding(response)
            else dataclasses.replace(response, body=response.body[:MAX_SCANNED_BYTES]).text()
        )
        body = (redactor.redact(text) if redactor else text)[:MAX_BODY_CHARS]
        excerpt = " ".join(body[:MAX_MESSAGE_CHARS].split())
        detail = f": {excerpt}" if excerpt else ""
        return HttpStatusError(
            f"{self._label} returned {_format_status(response.status)}{detail}", status=response.status, body=body
        )

    def _get_redactor(self, used_secrets: set[str]) -> SecretRedactor | None:
        """Return the redactor; it is rebuilt only when the secrets have changed."""
        secrets = frozenset(used_secrets | self._literals)
        if self._redactor[0] != secrets:
            self._redactor = (secrets, build_redactor(secrets))
        return self._redactor[1]


def build_redactor(secrets: frozenset[str]) -> SecretRedactor:
    """Build a redactor for secrets, also in URL-encoded and HTML-escaped form."""
    encoders: list[Callable[[str], str]] = [str, functools.partial(quote, safe=""), quote_plus, html.escape]
    values = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
    values |= {line.strip() for secret in values for line in secret.splitlines() if len(line.strip()) >= MIN_LINE_CHARS}
    forms = {encode(secret) for secret in values for encode in encoders}
    return SecretRedactor(Redactor(forms), tuple(sorted((text.encode() for text in forms), key=len, reverse=True)))


def _format_status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
