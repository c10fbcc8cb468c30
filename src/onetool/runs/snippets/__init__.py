"""Snippets: code templates from the settings. This package expands them and never runs code."""

from onetool.runs.snippets.expansion import (
    describe,
    expand,
    expand_call,
    is_snippet,
    render_signature,
)

__all__ = ["describe", "expand", "expand_call", "is_snippet", "render_signature"]
