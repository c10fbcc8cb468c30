"""The language model of the settings: which one answers, what it is sent and how much it may use.

It is an API that is compatible with OpenAI's chat completions, or the model of the MCP client,
which the protocol calls sampling.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import (
    BudgetExceeded,
    ConfigError,
    HttpStatusError,
    NetworkError,
    OutputInvalid,
    StorageError,
    ToolError,
    ToolTimeout,
)
from onetool.net import ANY_HOST, HostRules, Net, Request, Response
from onetool.settings.load import Loaded
from onetool.settings.model import Llm
from onetool.state.documents import Documents
from onetool.state.stats.details import count_tokens
from onetool.util.bounded_dict import BoundedDict
from onetool.util.context import AskClient, Foreign, ToolContext
from onetool.util.redact import Redactor
from onetool_child.json_types import JsonObject

UNSENT_REASONS = frozenset({"connect", "host_not_allowed", "address_not_allowed"})
EXAMPLE = (
    'llm: {base_url: "https://api.openai.com/v1", model: gpt-4o-mini, api_key:'
    ' "${secret:OPENAI_API_KEY}"}'
)
MAX_RUNS = 10_000  # in memory
OK = 200
RETRIED_STATUSES = frozenset({429, 503})
DEFAULT_PAUSE_SECONDS = 1.0  # before the second attempt
MAX_RESPONSE_BYTES = 1 << 20
MAX_ERROR_CHARS = 500
MAX_TOKENS = 10**9  # of a plausible response
HINTS = {
    401: "check llm.api_key",
    403: "check llm.api_key",
    404: "check llm.base_url, which usually ends with /v1, and llm.model",
    429: "retry later, or check the quota of the provider",
}


class Message(NamedTuple):
    role: Literal["system", "user", "assistant"]
    text: str


class Completion(NamedTuple):
    """An answer. `tokens` is the number of tokens of prompt and answer, None if it is not known."""

    text: str
    tokens: int | None = None
    is_complete: bool = True  # False if it was cut off at the token limit


Send = Callable[[Sequence[Message]], Awaitable[Completion]]


class LanguageModel:
    """A language model.

    `own_ports` are the ports of OneTool's own servers, which it must not reach.
    """

    def __init__(self, own_ports: Callable[[], set[int]]) -> None:
        self._net = Net(ANY_HOST, own_ports=own_ports)
        self._budget = TokenBudget()

    def configure(self, loaded: Loaded, redact: Redactor, usage: Documents) -> None:
        """Apply new settings. What runs have used still counts."""
        self._settings = loaded.settings.llm
        self._redact = redact
        self._allow_private_addresses = loaded.settings.http.allow_private_addresses
        self._file = loaded.directories.config_path(loaded.directories.user)
        self._usage = usage

    async def close(self) -> None:
        await self._net.close()

    async def complete(self, messages: Sequence[Message], context: ToolContext, source: str) -> str:
        """Return the answer.

        `source` is the tool that asks; the result of its run is marked as untrusted.
        """
        send = self._choose_model(context)
        settings = self._settings
        usage = self._usage
        run = context.correlation_id
        prompt_tokens = sum(count_tokens(message.text) for message in messages)
        reserved = prompt_tokens + settings.max_tokens
        await self._budget.reserve(run, reserved, settings, usage)
        context.run.record_foreign(Foreign(source, {}, is_untrusted=True))
        try:
            completion = await send(await run_in_thread(self._redact_messages, messages))
        except (HttpStatusError, NetworkError) as error:
            if isinstance(error, HttpStatusError) or error.fields.get("reason") in UNSENT_REASONS:
                await self._budget.correct(run, -reserved, usage)
            raise
        answer_tokens = count_tokens(completion.text)
        used = prompt_tokens + answer_tokens
        if completion.tokens is not None:
            used = max(completion.tokens, answer_tokens)
        await self._budget.correct(run, used - reserved, usage)
        if not completion.is_complete:
            message = (
                f"the answer of the language model was cut off after {settings.max_tokens:,} tokens"
            )
            raise OutputInvalid(
                message, hint=f"ask for less, or raise llm.max_tokens in {self._file}"
            )
        return completion.text

    def _choose_model(self, context: ToolContext) -> Send:
        settings = self._settings
        if settings.base_url is not None:
            private = self._allow_private_addresses
            return partial(request_completion, self._net, settings, allow_private_addresses=private)
        if settings.sampling and context.client.send_request is not None:
            return partial(sample_client, context.client.send_request, settings)
        reason = ": the client does not support sampling" if settings.sampling else ""
        other = ""
        if not settings.sampling:
            other = ", or llm: {sampling: true} to use the model of the MCP client"
        raise ConfigError(
            f"no language model is configured{reason}",
            hint=f"add this to {self._file}: {EXAMPLE}{other}",
        )

    def _redact_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages without secrets and unpaired surrogates, which cannot be sent."""
        texts = (
            self._redact(message.text).encode("utf-8", "replace").decode() for message in messages
        )
        return [message._replace(text=text) for message, text in zip(messages, texts, strict=True)]


# --- Budget ---------------------------------------------------------------------------------------


class TokenBudget:
    """The tokens that runs and days have used."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._runs: BoundedDict[str, int] = BoundedDict(MAX_RUNS)

    async def reserve(self, run: str, tokens: int, settings: Llm, usage: Documents) -> None:
        """Count a request's tokens, or raise if a limit does not allow them."""
        used = self._runs.get(run, 0)
        _check_limit("max_tokens_per_run", settings.max_tokens_per_run, used, tokens)
        self._add_to_run(run, tokens)
        try:
            await run_in_thread(self._reserve_day, tokens, settings.max_tokens_per_day, usage)
        except BaseException:
            self._add_to_run(run, -tokens)
            raise

    async def correct(self, run: str, difference: int, usage: Documents) -> None:
        """Add the difference between the tokens that were used and those that were reserved.

        If it cannot be stored, more is counted than was used, which needs no error.
        """
        self._add_to_run(run, difference)
        with suppress(StorageError):
            await run_in_thread(
                usage.update, self._today(), lambda used: max(0, (used or 0) + difference)
            )

    def _reserve_day(self, tokens: int, limit: int, usage: Documents) -> None:
        def add(used: int | None) -> int:
            _check_limit("max_tokens_per_day", limit, used or 0, tokens)
            return (used or 0) + tokens

        usage.update(self._today(), add)

    def _add_to_run(self, run: str, tokens: int) -> None:
        self._runs[run] = max(0, self._runs.get(run, 0) + tokens)

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock()))


def _check_limit(setting: str, limit: int, used: int, tokens: int) -> None:
    if used + tokens > limit:
        period = "run" if setting == "max_tokens_per_run" else "day"
        raise BudgetExceeded(
            f"the language model was not asked: the request needs up to {tokens:,} tokens, and"
            f" {used:,} of {limit:,} tokens of this {period} are used",
            hint=f"send less data, or raise llm.{setting} in ~/.onetool/onetool.yaml",
            budget=setting,
            limit=limit,
            spent=used,
        )


# --- Chat completions -----------------------------------------------------------------------------


async def request_completion(
    net: Net, settings: Llm, messages: Sequence[Message], *, allow_private_addresses: bool
) -> Completion:
    """Send the messages and return the answer.

    Redirects are not followed; a busy model is asked once more.
    """
    assert settings.base_url is not None
    url = f"{settings.base_url.rstrip('/')}/chat/completions"
    key = [("Authorization", f"Bearer {settings.api_key}")] if settings.api_key else []
    content = await run_in_thread(_encode_body, settings, messages)
    request = Request("POST", url, [("Content-Type", "application/json"), *key], content)
    rules = HostRules.for_url(url, allow_private_addresses=allow_private_addresses)
    send = partial(
        net.send, request, max_bytes=MAX_RESPONSE_BYTES, follow_redirects=False, rules=(rules,)
    )
    deadline = time.monotonic() + settings.timeout
    response = await send(timeout=settings.timeout)
    pause = response.parse_retry_after() or DEFAULT_PAUSE_SECONDS
    if response.status in RETRIED_STATUSES and time.monotonic() + pause < deadline:
        await anyio.sleep(pause)
        response = await send(timeout=max(0.0, deadline - time.monotonic()))
    if response.status != OK:
        raise _make_status_error(response)
    return _parse_completion(response.parse_object() or {})


def _encode_body(settings: Llm, messages: Sequence[Message]) -> bytes:
    body = {
        "model": settings.model,
        "messages": [{"role": message.role, "content": message.text} for message in messages],
        "max_tokens": settings.max_tokens,
        **settings.options,
    }
    return json.dumps({key: value for key, value in body.items() if value is not None}).encode()


def _make_status_error(response: Response) -> HttpStatusError:
    error = (response.parse_object() or {}).get("error")
    reason = error.get("message") if isinstance(error, dict) else error
    detail = f": {reason[:MAX_ERROR_CHARS]}" if isinstance(reason, str) and reason else ""
    return HttpStatusError(
        f"the language model returned status {response.status}{detail}",
        hint=HINTS.get(response.status, ""),
        status=response.status,
    )


def _parse_completion(body: JsonObject) -> Completion:
    try:
        choice = body["choices"][0]
        message = choice["message"]
        text = message.get("content")
        refusal = message.get("refusal")
    except (LookupError, TypeError, AttributeError):
        raise OutputInvalid(
            "the language model returned an invalid response", hint="check llm.base_url"
        ) from None
    if isinstance(refusal, str) and refusal:
        raise ToolError(f"the language model refused: {refusal[:MAX_ERROR_CHARS]}")
    if not isinstance(text, str):
        raise OutputInvalid("the language model returned no text")
    usage = body.get("usage")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    is_count = (
        isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens <= MAX_TOKENS
    )
    return Completion(
        text, tokens if is_count else None, is_complete=choice.get("finish_reason") != "length"
    )


# --- Sampling -------------------------------------------------------------------------------------


async def sample_client(
    ask_client: AskClient, settings: Llm, messages: Sequence[Message]
) -> Completion:
    """Send the messages to the calling client and return its model's answer."""
    try:
        async with asyncio.timeout(settings.timeout):
            response = await ask_client(_make_request(settings, messages))
    except TimeoutError:
        raise ToolTimeout(
            f"the client did not answer within {settings.timeout:g} s",
            timeout_ms=round(settings.timeout * 1000),
        ) from None
    return _parse_response(response)


def _make_request(settings: Llm, messages: Sequence[Message]) -> Any:
    import mcp_types as types

    system = "\n\n".join(message.text for message in messages if message.role == "system")
    conversation = [
        types.SamplingMessage(
            role=message.role, content=types.TextContent(type="text", text=message.text)
        )
        for message in messages
        if message.role != "system"
    ]
    params = types.CreateMessageRequestParams(
        messages=conversation, system_prompt=system or None, max_tokens=settings.max_tokens
    )
    return types.CreateMessageRequest(params=params)


def _parse_response(response: Any) -> Completion:
    import mcp_types as types

    if isinstance(response, types.ErrorData):
        raise ToolError(f"the client did not answer: {response.message[:MAX_ERROR_CHARS]}")
    content = getattr(response, "content", None)
    if not isinstance(content, types.TextContent):
        raise OutputInvalid("the client returned no text")
    return Completion(content.text, is_complete=response.stop_reason != "maxTokens")
