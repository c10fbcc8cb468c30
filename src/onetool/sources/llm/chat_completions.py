"""Requests to an API that is compatible with OpenAI's chat completions."""

import json
import time
from collections.abc import Sequence
from functools import partial

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import HttpStatusError, OutputInvalid, ToolError
from onetool.net import HostRules, Net, Request, Response
from onetool.settings.model import Llm
from onetool.sources.llm.messages import Completion, Message
from onetool_child.json_types import JsonObject

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
