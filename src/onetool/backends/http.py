"""The backend of HTTP tools: each call sends the requests of its steps and one more, and converts the last response.

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
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, quote_plus

import anyio
import anyio.to_thread

from onetool.backends.http_tool import credentials
from onetool.backends.http_tool.event_stream import EventCollector
from onetool.backends.http_tool.placeholders import MISSING, Values
from onetool.backends.http_tool.rate_limit import RateLimiter, SharedRateLimiter
from onetool.backends.http_tool.request import measure_bytes
from onetool.backends.http_tool.response_reader import (
    OTHER_TYPE,
    ResponseReader,
    SecretRedactor,
    get_unsupported_encoding,
    join_headers,
    read_cookies,
    read_headers,
    redact_body,
)
from onetool.backends.http_tool.retry import RetryPolicy
from onetool.backends.http_tool.transfers import FileUploads, save_file
from onetool.core.context import ToolContext
from onetool.core.tool import Tool
from onetool.errors import ArgumentError, HttpStatusError, NetworkError, ToolTimeout
from onetool.net import HostRules, Net
from onetool.net.messages import Request, Response
from onetool.net.outgoing import IDEMPOTENT_METHODS
from onetool.net.retry_after import parse_retry_after
from onetool.util.redact import MIN_LINE_CHARS, MIN_SECRET_CHARS, Redactor, list_encodings

if TYPE_CHECKING:
    from onetool.backends.http_tool.impl import HttpImpl, HttpRequest, OAuthFlow
    from onetool.config.model import Http
    from onetool.state.storage import MediaStorage

LARGE_RESPONSE_BYTES: Final = 100_000  # larger responses are parsed in a thread
MAX_URL_CHARS: Final = 65_536  # the limit of the HTTP library
MAX_BODY_CHARS: Final = 2_000  # of the body of an error response
MAX_MESSAGE_CHARS: Final = 200
MAX_SCANNED_BYTES: Final = 65_536  # of an error response; a secret in the shown part is never cut in two
STREAM_GRACE_SECONDS: Final = 1.0  # for closing a stream after its time is over
# Returns the sign-in for an API: its endpoints, the origin that gets the token, and the caller.
FindTokenSource = Callable[["OAuthFlow", str, ToolContext], "RenewableToken"]


class RenewableToken(Protocol):
    """The token of a sign-in. `replace` returns another one after the API has rejected it."""

    async def get(self) -> str: ...
    async def replace(self, used: str) -> str: ...


class HttpBackend:
    """The backend of one HTTP tool. `rate_limiter` counts its calls under `identity`; both outlive this object.

    `get_secret` returns a secret for requests to an origin, and raises if it must not be sent there.
    `media` stores binary responses; without it, they are returned as base64.
    """

    def __init__(
        self,
        impl: "HttpImpl",
        net: Callable[[], Net],
        defaults: Callable[[], "Http"],
        get_secret: Callable[[str, str], str | None],
        *,
        media: Callable[[], "MediaStorage"] | None = None,
        sign_in: "FindTokenSource | None" = None,
        rate_limiter: RateLimiter | SharedRateLimiter | None = None,
        identity: str = "",
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        random: Callable[[], float] = standard_random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.impl = impl
        self._net, self._defaults, self._get_secret, self._media = net, defaults, get_secret, media
        self._sign_in = sign_in
        self._rate_limiter, self._identity = rate_limiter or RateLimiter(clock), identity
        self._retry_policy, self._clock = RetryPolicy(sleep, random, clock), clock
        self._steps = tuple((step, ResponseReader(step.response.mode, step.response.selector)) for step in impl.steps)
        self._reader = ResponseReader(impl.response.mode, impl.response.selector)
        self._literals = {credential.value for credential in credentials.find(impl.model_dump(by_alias=True))}
        self._redactor: tuple[frozenset[str], SecretRedactor | None] = (frozenset(), None)

    def identify(self, _tool: Tool) -> Any:
        return self.impl.model_dump(mode="json", by_alias=True)

    async def invoke(self, tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Any:
        impl, media = self.impl, self._media() if self._media else None
        steps: dict[str, Any] | None = {} if impl.steps else None
        files = FileUploads(context, media, impl.max_request_bytes)
        get_secret = self._bind_secrets(impl.requests[0])
        values = Values(args, tool.input.required, get_secret, steps=steps, read_file=files)
        call = _Call(values, context, self._defaults(), impl, self._clock())
        for part in impl.requests[1:]:  # before anything is sent
            self._check_secrets(part)
        request = await self._build_request(impl.requests[0], call)
        if impl.max_calls_per_minute is not None:
            await self._check_rate_limit(self._identity or tool.name, impl.max_calls_per_minute)
        for index, (step, reader) in enumerate(self._steps):
            response = await self._send(call, step, request)
            if not step.is_success(response.status):
                raise self._status_error(call, step, response)
            values.steps = {**(values.steps or {}), step.name: await self._read_step(call, reader, response)}
            request = await self._build_request(impl.requests[index + 1], call)
        events = EventCollector(impl.response.max_events, call.max_bytes, call.seconds_left(self._clock()))
        response = await self._send(call, impl, request, events if impl.response.mode == "events" else None)
        if impl.is_success(response.status):
            return await self._read_result(call, response, events)
        if impl.error_mode == "empty":
            return None
        raise self._status_error(call, impl, response)

    def _bind_secrets(self, part: "HttpRequest") -> Callable[[str], str | None]:
        """Return a function that returns the secrets of one request."""
        return functools.partial(self._get_secret, part.request.url.origin)

    def _check_secrets(self, part: "HttpRequest") -> None:
        """Raise if the request uses a secret that must not be sent to its origin."""
        for placeholder in part.request.placeholders:
            if placeholder.is_secret:
                self._bind_secrets(part)(placeholder.name)

    async def _build_request(self, part: "HttpRequest", call: "_Call", rejected: str = "") -> Request:
        """Build a request. `rejected` is the token of a sign-in that the API has rejected."""
        values = call.values
        values.get_secret = self._bind_secrets(part)
        values.tokens = await self._find_tokens(part, call.context, rejected)
        body = part.request.body
        if body and body.is_blocking:
            request = await anyio.to_thread.run_sync(part.request.fill, values, abandon_on_cancel=True)
        else:
            request = part.request.fill(values)
        self._check_size(request)
        return request

    async def _find_tokens(self, part: "HttpRequest", context: ToolContext, rejected: str) -> dict[str, str]:
        """Return the token of a sign-in, by the name of the secret that it stands for. It is for this request only."""
        auth = part.auth
        if auth is None or auth.oauth is None or self._sign_in is None:
            return {}
        names = [name for name in auth.token_names if not self._bind_secrets(part)(name)]
        if not names:
            return {}
        source = self._sign_in(auth.oauth, part.request.url.origin, context)
        return dict.fromkeys(names, await (source.replace(rejected) if rejected else source.get()))

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

    async def _send(
        self, call: "_Call", part: "HttpRequest", request: Request, events: EventCollector | None = None
    ) -> Response:
        """Send a request, and again with a new token if the API rejects that of a sign-in."""
        tokens = call.values.tokens
        response = await self._send_once(call, part, request, events)
        if response.status != HTTPStatus.UNAUTHORIZED or not tokens:
            return response
        request = await self._build_request(part, call, next(iter(tokens.values())))
        return await self._send_once(call, part, request, events)

    async def _send_once(
        self, call: "_Call", part: "HttpRequest", request: Request, events: EventCollector | None = None
    ) -> Response:
        impl, net, rules = self.impl, self._net(), HostRules.for_agent(call.context)
        retries = call.settings.retries if impl.retries is None else impl.retries
        can_retry = impl.retry_non_idempotent or part.method in IDEMPOTENT_METHODS
        read_stream, grace = (events.read, STREAM_GRACE_SECONDS) if events else (None, 0.0)
        try:
            return await self._retry_policy.run(
                lambda seconds: net.send(
                    request, timeout=seconds + grace, max_bytes=call.max_bytes, rules=rules, read_stream=read_stream
                ),
                retries if can_retry else 0,
                call.seconds_left(self._clock()),
            )
        except ToolTimeout:
            message = f"{_format_label(part)} timed out after {call.timeout_ms:,} ms"
            raise ToolTimeout(message, timeout_ms=call.timeout_ms) from None
        except NetworkError as error:
            raise self._redact_error(error, self._get_redactor(call.values.used_secrets)) from None

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

    # --- responses ---------------------------------------------------------------------------------------------

    async def _read_step(self, call: "_Call", reader: ResponseReader, response: Response) -> dict[str, Any]:
        """Return what later requests may use, such as a token. It contains none of the secrets sent so far."""
        redactor = self._get_redactor(call.values.used_secrets)
        read = functools.partial(reader.read, response, redactor, call.settings.max_response_bytes)
        is_slow = len(response.body) >= LARGE_RESPONSE_BYTES or reader.has_selector
        body = await anyio.to_thread.run_sync(read, abandon_on_cancel=True) if is_slow else read()
        received = {"headers": join_headers(response), "cookies": read_cookies(response)}
        redacted = redactor.redact.redact_data(received) if redactor else received
        return {"status": response.status, "body": body, **redacted}

    async def _read_result(self, call: "_Call", response: Response, events: EventCollector) -> Any:
        redactor = self._get_redactor(call.values.used_secrets)
        if events.limit:
            call.context.note(f"the event stream was closed after {events.limit}; there may be more events")
        read = functools.partial(self._read_body, call, response, redactor, events)
        is_small = len(response.body) < LARGE_RESPONSE_BYTES and not events.is_stream
        is_slow = not is_small or self._reader.has_selector or call.path or self._reader.is_binary(response)
        body = await anyio.to_thread.run_sync(read, abandon_on_cancel=True) if is_slow else read()
        return {**read_headers(response, redactor), "body": body} if call.is_full else body

    def _read_body(
        self, call: "_Call", response: Response, redactor: SecretRedactor | None, events: EventCollector
    ) -> Any:
        max_bytes = call.settings.max_response_bytes
        if events.is_stream:
            return self._reader.read_events(events.parse(), redactor, max_bytes)
        if call.path:
            saved = save_file(call.context, call.path, redact_body(response, redactor))
            return {**saved, "content_type": response.media_type or OTHER_TYPE}
        store = functools.partial(self._store_binary, call.context) if self._media else None
        return self._reader.read(response, redactor, max_bytes, store)

    def _store_binary(self, context: ToolContext, content: bytes, media_type: str) -> dict[str, Any]:
        """Store a binary response and return its handle, in the form of the results of upstream servers."""
        assert self._media is not None
        media_type = media_type or OTHER_TYPE
        kind = media_type.partition("/")[0]
        handle = self._media().put(content, media_type, context.agent_id, context.token_id)
        return {
            "type": kind if kind in {"image", "audio"} else "blob",
            "mimeType": media_type,
            "size": len(content),
            "media": handle,
        }

    def _status_error(self, call: "_Call", part: "HttpRequest", response: Response) -> HttpStatusError:
        redactor = self._get_redactor(call.values.used_secrets)
        text = (
            ""
            if get_unsupported_encoding(response)
            else dataclasses.replace(response, body=response.body[:MAX_SCANNED_BYTES]).text()
        )
        body = (redactor.redact(text) if redactor else text)[:MAX_BODY_CHARS]
        excerpt = " ".join(body[:MAX_MESSAGE_CHARS].split())
        detail = f": {excerpt}" if excerpt else ""
        seconds = parse_retry_after(response)
        return HttpStatusError(
            f"{_format_label(part)} returned {_format_status(response.status)}{detail}",
            status=response.status,
            body=body,
            **({"retry_after": seconds} if seconds else {}),
        )

    def _get_redactor(self, used_secrets: set[str]) -> SecretRedactor | None:
        """Return the redactor; it is rebuilt only when the secrets have changed."""
        secrets = frozenset(used_secrets | self._literals)
        if self._redactor[0] != secrets:
            self._redactor = (secrets, build_redactor(secrets))
        return self._redactor[1]


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """One call: its values, its limits, and the time at which it started."""

    values: Values
    context: ToolContext
    settings: "Http"
    impl: "HttpImpl"
    started: float

    @property
    def timeout_ms(self) -> int:
        return self.impl.timeout_ms or self.settings.timeout_ms

    def seconds_left(self, now: float) -> float:
        return max(0.0, self.started + self.timeout_ms / 1000 - now)

    @property
    def max_bytes(self) -> int:
        limit = self.settings.max_response_bytes
        return min(self.impl.max_response_bytes or limit, limit)

    @property
    def is_full(self) -> bool:
        """Whether to return the status and the headers as well."""
        argument = self.impl.response.full_argument
        return self.values.get(argument) is True if argument else self.impl.response.full is True

    @property
    def path(self) -> str | None:
        """The file to write the response to."""
        argument = self.impl.response.path_argument
        value = self.values.get(argument) if argument else None
        if argument and not (value is None or value is MISSING or isinstance(value, str)):
            raise ArgumentError(f"{argument} is not the path of a file")
        return value if isinstance(value, str) else None


def _format_label(part: "HttpRequest") -> str:
    """Return the method and the URL for errors; the name of a step."""
    from onetool.backends.http_tool.impl import HttpStep

    step = f"step {part.name}: " if isinstance(part, HttpStep) else ""
    return f"{step}{part.method} {credentials.mask_url(part.url_template)}"


def build_redactor(secrets: frozenset[str]) -> SecretRedactor:
    """Build a redactor for secrets, also in the encodings in which APIs return them."""
    encoders: list[Callable[[str], str]] = [str, functools.partial(quote, safe=""), quote_plus, html.escape]
    values = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
    values |= {line.strip() for secret in values for line in secret.splitlines() if len(line.strip()) >= MIN_LINE_CHARS}
    forms = {encode(secret) for secret in values for encode in encoders}
    encoded = forms.union(*map(list_encodings, values))
    return SecretRedactor(Redactor(forms), tuple(sorted((text.encode() for text in encoded), key=len, reverse=True)))


def _format_status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
