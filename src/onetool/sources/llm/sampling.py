"""Requests to the model of the MCP client, which the protocol calls sampling."""

import asyncio
from collections.abc import Sequence
from typing import Any

from onetool.errors import OutputInvalid, ToolError, ToolTimeout
from onetool.settings.model import Llm
from onetool.sources.llm.messages import Completion, Message
from onetool.util.context import AskClient

MAX_ERROR_CHARS = 500


async def sample_client(
    ask_client: AskClient, settings: Llm, messages: Sequence[Message]
) -> Completion:
    """Send the messages to the client of the call and return the answer of its model."""
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
