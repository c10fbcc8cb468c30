"""Messages to a language model and its answers."""

from typing import Literal, NamedTuple


class Message(NamedTuple):
    role: Literal["system", "user", "assistant"]
    text: str


class Completion(NamedTuple):
    """An answer. `tokens` is the number of tokens of prompt and answer, None if it is not known."""

    text: str
    tokens: int | None = None
    is_complete: bool = True  # False if it was cut off at the token limit
