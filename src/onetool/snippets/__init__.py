"""Snippets: code with blanks, from the configuration. `expansion` is the way in; nothing here runs code."""

from onetool.snippets.expansion import describe, expand, expand_call, is_snippet, signature

__all__ = ["describe", "expand", "expand_call", "is_snippet", "signature"]
