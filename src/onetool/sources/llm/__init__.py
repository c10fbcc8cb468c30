"""The language model that tools use: an OpenAI-compatible endpoint or the model of the MCP client.

`LanguageModel.complete` redacts secrets, reserves tokens, sends the messages and marks the answer
as untrusted. `chat_completions` speaks to an endpoint, `sampling` to a client, and `token_budget`
limits the tokens.
"""

from onetool.sources.llm.language_model import LanguageModel
from onetool.sources.llm.messages import Completion, Message

__all__ = ["Completion", "LanguageModel", "Message"]
