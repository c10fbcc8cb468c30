"""Count what passes through the context of a model: rounds, input tokens and bytes."""

import json
from typing import Any

from onetool.state.stats.details import count_tokens

CACHED_SHARE = 0.1  # price of a cached input token, relative to one that is not cached


class ContextMeter:
    """The context of one conversation.

    Each request sends the definitions and everything said so far.
    """

    def __init__(self, fixed: list[str]) -> None:
        self.rounds, self.tokens, self.cached_tokens = 0, 0, 0.0
        self.bytes = 0
        self.text = ""  # what was said so far, in lower case
        self._size, self._sent = 0, 0
        for text in fixed:
            self._count(text)

    def add(self, text: str) -> None:
        """Add a message of the user or the answer of a tool."""
        self._count(text)
        self.text += f"\n{text.lower()}"

    def add_call(self, tool: str, arguments: Any) -> None:
        self.add(json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False))

    def request(self) -> None:
        """Count one request to the model, with all that the context has now."""
        self.rounds += 1
        self.tokens += self._size
        self.cached_tokens += self._size - self._sent + self._sent * CACHED_SHARE
        self._sent = self._size

    def _count(self, text: str) -> None:
        self._size += count_tokens(text)
        self.bytes += len(text.encode("utf-8", "surrogatepass"))
