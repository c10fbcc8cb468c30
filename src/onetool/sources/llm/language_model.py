"""The language model of the settings: which one answers, what it is sent and how much it may use."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import ConfigError, HttpStatusError, NetworkError, OutputInvalid
from onetool.net import ANY_HOST, Net
from onetool.settings.load import Loaded
from onetool.sources.llm.chat_completions import request_completion
from onetool.sources.llm.messages import Completion, Message
from onetool.sources.llm.sampling import sample_client
from onetool.sources.llm.token_budget import TokenBudget
from onetool.state.documents import Documents
from onetool.state.stats.details import count_tokens
from onetool.util.context import Foreign, ToolContext
from onetool.util.redact import Redactor

UNSENT_REASONS = frozenset({"connect", "host_not_allowed", "address_not_allowed"})
EXAMPLE = (
    'llm: {base_url: "https://api.openai.com/v1", model: gpt-4o-mini, api_key:'
    ' "${secret:OPENAI_API_KEY}"}'
)
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
        used = (
            prompt_tokens + answer_tokens
            if completion.tokens is None
            else max(completion.tokens, answer_tokens)
        )
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
        other = (
            ""
            if settings.sampling
            else ", or llm: {sampling: true} to use the model of the MCP client"
        )
        raise ConfigError(
            f"no language model is configured{reason}",
            hint=f"add this to {self._file}: {EXAMPLE}{other}",
        )

    def _redact_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages without secrets, and without unpaired surrogates, which cannot be
        sent.
        """
        texts = (
            self._redact(message.text).encode("utf-8", "replace").decode() for message in messages
        )
        return [message._replace(text=text) for message, text in zip(messages, texts, strict=True)]
