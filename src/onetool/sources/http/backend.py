"""The backend of HTTP tools: a call sends steps and one more request, and converts the response.

Secrets are looked up when a request is built and redacted from responses. Errors show the template
of the URL, never the URL itself. Files are sent and written by the permissions and the file rules
of the caller. This module imports little; `definition`, which defines the tool, needs pydantic.
"""

import random as standard_random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.core.tool import Tool
from onetool.errors import ArgumentError, HttpStatusError, NetworkError, ToolTimeout
from onetool.net import HostRules, Net
from onetool.net.client import IDEMPOTENT_METHODS, Request, Response
from onetool.sources.http import credentials
from onetool.sources.http.body import OTHER_TYPE, FileUploads, require_permission
from onetool.sources.http.placeholders import (
    MISSING,
    Values,
)
from onetool.sources.http.request import MAX_URL_CHARS, measure_bytes
from onetool.sources.http.response import (
    EventCollector,
    ResponseReader,
    ResponseRedactor,
    StoreBinary,
    encode_binary,
    join_headers,
    read_cookies,
    read_headers,
)
from onetool.state.counters import RateLimiter
from onetool.util.clock_watch import Clock
from onetool.util.context import Permission, ToolContext
from onetool.util.large_data import is_large, run_in_thread_if
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.media import describe_media

if TYPE_CHECKING:
    from onetool.runs.results.blobs import Media
    from onetool.settings.model import Http
    from onetool.sources.http.definition import (
        HttpImpl,
        HttpRequest,
        HttpStep,
        OAuthFlow,
        StepResponseOptions,
    )

MAX_HEADER_CHARS = 65_536
MAX_BODY_CHARS = 2_000  # of the body of an error response
MAX_MESSAGE_CHARS = 200
MAX_SCANNED_BYTES = 65_536  # of an error response; a secret in the shown part is never cut in two
STREAM_GRACE_SECONDS = 1.0  # for closing a stream after its time is over
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
FIRST_PAUSE_SECONDS = 0.25  # doubled each time
MAX_PAUSE_SECONDS = 10.0
# Returns the sign-in for an API: its endpoints, the origin that gets the token, and the caller.
FindTokenSource = Callable[["OAuthFlow", str, ToolContext], "RenewableToken"]


class RenewableToken(Protocol):
    """The token of a sign-in. `replace` returns another one after the API has rejected it."""

    async def get(self) -> str: ...
    async def replace(self, used: str) -> str: ...


@dataclass(frozen=True)
class HttpBackend:
    """The backend of one HTTP tool.

    `rate_limiter` counts its calls under `identity`; both outlive this object.

    `get_secret` returns a secret for requests to an origin, and raises if it must not be sent
    there. `media` stores binary responses; without it, they are returned as base64.
    """

    impl: "HttpImpl"
    net: Callable[[], Net]
    defaults: Callable[[], "Http"]
    get_secret: Callable[[str, str], str | None]
    media: Callable[[], "Media"] | None = None
    sign_in: FindTokenSource | None = None
    rate_limiter: RateLimiter = field(default_factory=RateLimiter)
    identity: str = ""
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    random: Callable[[], float] = standard_random.random
    clock: Clock = time.monotonic

    def identify(self, _tool: Tool) -> Any:
        return self.impl.model_dump(mode="json", by_alias=True)

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        return await _Call(self, tool, args, context).run()

    @cached_property
    def literal_credentials(self) -> frozenset[str]:
        literals = credentials.find(self.impl.model_dump(by_alias=True))
        return frozenset(literal.value for literal in literals)

    @cached_property
    def make_redactor(self) -> Callable[[frozenset[str]], ResponseRedactor]:
        """Return the redactor of secrets.

        That of the last call is kept: most calls use the same secrets.
        """
        return lru_cache(maxsize=1)(ResponseRedactor)


class _Call:
    """One call of an HTTP tool."""

    def __init__(
        self, backend: HttpBackend, tool: Tool, args: JsonMapping, context: ToolContext
    ) -> None:
        self.backend = backend
        self.impl = backend.impl
        self.context = context
        self.settings = backend.defaults()
        self.identity = backend.identity or tool.name
        self.timeout_ms = self.impl.timeout_ms or self.settings.timeout_ms
        self.deadline = backend.clock() + self.timeout_ms / 1000
        max_bytes = self.settings.max_response_bytes
        self.max_bytes = min(self.impl.max_response_bytes or max_bytes, max_bytes)
        self.part: HttpRequest = self.impl.requests[0]  # that is being sent
        self.tokens: Mapping[
            str, str
        ] = {}  # of a sign-in, by the names of the secrets that they stand for
        self.steps: JsonObject = {}
        self.events: EventCollector | None = None
        self.media = backend.media() if backend.media else None
        files = FileUploads(context, self.media, self.impl.max_request_bytes)
        steps = self.steps if self.impl.steps else None
        self.values = Values(
            args, tool.input.required, self._get_secret, steps=steps, read_file=files
        )

    async def run(self) -> Any:
        impl = self.impl
        for part in impl.requests[1:]:  # raises before anything is sent
            for placeholder in part.placeholders:
                if placeholder.is_secret:
                    self.backend.get_secret(part.request.url.origin, placeholder.name)
        for step in impl.steps:
            response = await self._request(step)
            if not step.is_success(response.status):
                raise await self._make_status_error(response)
            self.steps[step.name] = await self._read_step(step, response)
        response = await self._request(impl)
        if impl.is_success(response.status):
            return await self._read_result(response)
        if impl.error_mode == "empty":
            return None
        raise await self._make_status_error(response)

    # --- requests ---------------------------------------------------------------------------------

    async def _request(self, part: "HttpRequest") -> Response:
        """Send a request, and again if the API rejects the sign-in token."""
        self.part = part
        self.tokens = await self._find_tokens()
        request = await self._build()
        if part is self.impl.requests[0]:
            await self._check_rate_limit()
        response = await self._send(request)
        if response.status != HTTPStatus.UNAUTHORIZED or not self.tokens:
            return response
        self.tokens = await self._find_tokens(rejected=next(iter(self.tokens.values())))
        return await self._send(await self._build())

    def _get_secret(self, name: str) -> str | None:
        return self.backend.get_secret(self.part.request.url.origin, name) or self.tokens.get(name)

    async def _find_tokens(self, rejected: str = "") -> dict[str, str]:
        """Return the token of a sign-in, by the name of the secret that it stands for.

        It is for this request only.
        """
        auth = self.part.auth
        if auth is None or auth.oauth is None or self.backend.sign_in is None:
            return {}
        origin = self.part.request.url.origin
        names = [name for name in auth.token_names if not self.backend.get_secret(origin, name)]
        if not names:
            return {}
        source = self.backend.sign_in(auth.oauth, origin, self.context)
        return dict.fromkeys(names, await (source.replace(rejected) if rejected else source.get()))

    async def _build(self) -> Request:
        part = self.part
        is_slow = part.reads_files or self.values.is_large(len(part.placeholders))
        request = await run_in_thread_if(is_slow, partial(part.request.fill, self.values))
        if len(request.url) > MAX_URL_CHARS:
            raise ArgumentError(
                f"URL too long: more than {MAX_URL_CHARS:,} characters",
                hint="send long values in the request body",
            )
        for name, text in request.headers:
            if len(text) > MAX_HEADER_CHARS:
                raise ArgumentError(
                    f"header {name} too long: more than {MAX_HEADER_CHARS:,} characters"
                )
        limit = self.impl.max_request_bytes
        if limit is not None and (size := measure_bytes(request)) > limit:
            raise ArgumentError(
                f"request not sent: it has {size:,} bytes (maxRequestBytes of the tool is"
                f" {limit:,})",
                size=size,
                limit=limit,
            )
        return request

    async def _check_rate_limit(self) -> None:
        limit = self.impl.max_calls_per_minute
        limiter = self.backend.rate_limiter
        if limit is not None:
            await run_in_thread(limiter.acquire, self.identity, limit)

    @property
    def _seconds_left(self) -> float:
        return max(0.0, self.deadline - self.backend.clock())

    async def _send(self, request: Request) -> Response:
        """Send a request, and again as the retry settings allow.

        No attempt starts after the timeout of the call.
        """
        retries = self.settings.retries if self.impl.retries is None else self.impl.retries
        if not (self.impl.retry_non_idempotent or self.part.method in IDEMPOTENT_METHODS):
            retries = 0
        for attempt in range(retries + 1):
            response: Response | NetworkError
            try:
                response = await self._send_once(request)
            except NetworkError as error:
                if error.fields.get("reason") != "connect":
                    raise
                response = error
            is_retried = isinstance(response, NetworkError) or response.status in RETRIED_STATUSES
            pause = self._compute_pause(attempt, response)
            if not is_retried or attempt == retries or pause >= self._seconds_left:
                break
            await self.backend.sleep(pause)
        if isinstance(response, NetworkError):
            raise response
        return response

    def _compute_pause(self, attempt: int, response: Response | NetworkError) -> float:
        """Return the pause: doubled each time, with jitter, and at least what the server requests."""
        max_pause: float = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**attempt)
        pause = max_pause * (1 - self.backend.random() / 2)
        if isinstance(response, NetworkError):
            return pause
        return max(pause, response.parse_retry_after())

    async def _send_once(self, request: Request) -> Response:
        seconds = self._seconds_left
        read_stream = None
        if self.part is self.impl and self.impl.response.mode == "events":
            self.events = EventCollector(self.impl.response.max_events, self.max_bytes, seconds)
            read_stream = self.events.read
            seconds += STREAM_GRACE_SECONDS
        try:
            return await self.backend.net().send(
                request,
                timeout=seconds,
                max_bytes=self.max_bytes,
                rules=HostRules.for_agent(self.context),
                read_stream=read_stream,
            )
        except ToolTimeout:
            message = f"{self._label} timed out after {self.timeout_ms:,} ms"
            raise ToolTimeout(message, timeout_ms=self.timeout_ms) from None
        except NetworkError as error:
            raise self._redact_error(error) from None

    def _redact_error(self, error: NetworkError) -> NetworkError:
        """Redact the error: the host of a redirect may contain what the request sent."""
        message = error.message
        fields = error.fields
        if (
            fields.get("reason") == "too_large"
            and fields.get("limit") == self.impl.max_response_bytes
        ):
            message = f"response larger than {error.limit:,} bytes (maxResponseBytes of the tool)"
            fields = {**fields, "hint": ""}  # it names the setting, which is not the limit here
        redactor = self._make_redactor()
        return NetworkError(redactor(message), **redactor.redact_data(fields))

    # --- responses --------------------------------------------------------------------------------

    def _make_redactor(self) -> ResponseRedactor:
        return self.backend.make_redactor(
            self.backend.literal_credentials | self.values.used_secrets
        )

    def _make_reader(
        self, options: "StepResponseOptions", store: StoreBinary = encode_binary
    ) -> ResponseReader:
        max_bytes = self.settings.max_response_bytes
        return ResponseReader(
            options.mode, options.selector, self._make_redactor(), max_bytes, store
        )

    async def _read_step(self, step: "HttpStep", response: Response) -> JsonObject:
        """Return what later requests may use, such as a token.

        It contains none of the secrets sent so far.
        """
        reader = self._make_reader(step.response)

        def read() -> JsonObject:
            received = {"headers": join_headers(response), "cookies": read_cookies(response)}
            body = reader.read(response)
            return {
                "status": response.status,
                "body": body,
                **reader.redactor.redact_data(received),
            }

        return await run_in_thread_if(reader.is_slow(response), read)

    async def _read_result(self, response: Response) -> Any:
        options = self.impl.response
        reader = self._make_reader(
            options, encode_binary if self.media is None else self._store_binary
        )
        events = self.events
        path = self._find_path()
        if events is not None and events.is_stream:
            body = await run_in_thread(
                lambda: reader.read_events(events.parse()), abandon_on_cancel=True
            )
            if events.limit:
                self.context.note(
                    f"the event stream was closed after {events.limit}; there may be more events"
                )
        elif path is not None:
            body = await run_in_thread(
                lambda: self._save(path, reader.redactor, response), abandon_on_cancel=True
            )
        else:
            body = await run_in_thread_if(reader.is_slow(response), partial(reader.read, response))
        full = options.full_argument
        is_full = options.full is True
        if full is not None:
            is_full = self.values.get(full) is True
        if not is_full:
            return body
        read = partial(reader.redactor.redact_data, read_headers(response))
        fields = await run_in_thread_if(reader.is_slow(response), read)
        return {**fields, "body": body}

    def _save(self, path: str, redactor: ResponseRedactor, response: Response) -> JsonObject:
        """Write the response to a file. Blocks on disk access."""
        from onetool.sources.files import Files, write

        require_permission(self.context, Permission.WRITE, "the response is written to a file")
        content = redactor.redact_bytes(response.body)
        written = write(Files(self.context), path, content)
        return {
            "path": written.path,
            "size": len(content),
            "content_type": response.media_type or OTHER_TYPE,
        }

    def _find_path(self) -> str | None:
        """Return the file to write the response to."""
        argument = self.impl.response.path_argument
        value = self.values.get(argument) if argument else None
        if value is None or value is MISSING:
            return None
        if not isinstance(value, str):
            raise ArgumentError(f"{argument} is not the path of a file")
        return value

    def _store_binary(self, content: bytes, media_type: str) -> JsonObject:
        """Store a binary response and return its description with the handle."""
        assert self.media is not None
        media_type = media_type or OTHER_TYPE
        handle = self.media.put(content, media_type, self.context.agent_id, self.context.token_id)
        return describe_media(content, media_type, "", handle)

    async def _make_status_error(self, response: Response) -> HttpStatusError:
        text = ""
        if not response.compression:
            text = replace(response, body=response.body[:MAX_SCANNED_BYTES]).text()
        redacted = await run_in_thread_if(is_large(text), lambda: self._make_redactor()(text))
        body = redacted[:MAX_BODY_CHARS]
        excerpt = " ".join(body[:MAX_MESSAGE_CHARS].split())
        detail = f": {excerpt}" if excerpt else ""
        seconds = response.parse_retry_after()
        return HttpStatusError(
            f"{self._label} returned {_format_status(response.status)}{detail}",
            status=response.status,
            body=body,
            **({"retry_after": seconds} if seconds else {}),
        )

    @property
    def _label(self) -> str:
        """The method and the URL for errors, with the name of a step."""
        label = f"{self.part.method} {credentials.mask_url(self.part.url_template)}"
        step = getattr(self.part, "name", "")
        return f"step {step}: {label}" if step else label


def _format_status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
