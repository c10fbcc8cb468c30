"""The language model that tools use: an OpenAI-compatible endpoint or the model of the MCP client.

`LanguageModel.complete` redacts secrets, reserves tokens, sends the messages and marks the answer
as untrusted.
"""

from onetool.sources.llm.language_model import Completion, LanguageModel, Message

__all__ = ["Completion", "LanguageModel", "Message"]
