"""Extraction of code from the text of a model: removes call prefixes, Markdown fences and
backticks.

It does not parse Python and does not change indentation. Line breaks before the code are kept, so
that line numbers in errors match the text that was sent.
"""

import re

from onetool.errors import ToolError

# `__ot = 1` is an assignment; a call prefix is never followed by an equals sign.
_WORD_ENDS = r"(?=[\s`~]|\Z)(?![ \t]*=)"

# Possessive quantifiers prevent backtracking over millions of backticks.
_PREFIX = re.compile(
    rf"\s*+(?:mcp__onetool__run|__onetool(?:__run)?|__ot(?:__run)?){_WORD_ENDS}[ \t]*+"
)
_OLD_PREFIX = re.compile(rf"\s*+(!onetool\b|mcp__ot__run{_WORD_ENDS})")

# An info string may contain anything, but a call or literal on the line of the fence is code and is
# kept.
_INFO = r"""[ \t]*+[^\s`(='"\[]*+(?:[ \t][^`()\r\n]*+)?+"""
_FENCE_LINE = re.compile(rf"\s*+(?P<fence>`{{3,}}+|~{{3,}}+){_INFO}(?:\r\n?|\n)")
_LANGUAGE = rf"(?<=``)(?i:python3?|py){_WORD_ENDS}"
_BACKTICKS = re.compile(rf"\s*+(?P<ticks>`++)(?:{_LANGUAGE})?+[ \t]*+")
_LINE_OF_FENCE = re.compile(r"^[ \t]*+(?:```|~~~)", re.MULTILINE)
_LINE_OF_SNIPPET = re.compile(r"^[ \t]*+\$\w", re.MULTILINE)
_NO_CODE = re.compile(r"[\s`~]*+")


def strip(command: str) -> str:
    text = command.removeprefix("\ufeff")
    # The prefix may also be inside the fence, as in documentation: `__ot ot.health()`.
    code = _remove_prefix(_remove_fence(_remove_prefix(text)))
    if _NO_CODE.fullmatch(code):
        raise ToolError("the command is empty", hint="send Python code, for example ot.tools()")
    return code


def find_hint(code: str) -> str:
    """Return what to change in code that has other text in it; empty if nothing is found."""
    if _LINE_OF_FENCE.search(code):
        return "send one block of code, without text before or after it and without a second fence"
    if _LINE_OF_SNIPPET.search(code):
        return (
            'a command that runs a snippet has only that line; in code, call ot.snippet("name",'
            ' key="value")'
        )
    return ""


def _remove_prefix(text: str) -> str:
    if old := _OLD_PREFIX.match(text):
        raise ToolError(
            f"invalid syntax: a command does not start with {old[1]}",
            hint=(
                "send only the code, for example ot.tools(), or use the prefix __ot: __ot"
                " ot.tools()"
            ),
        )
    prefix = _PREFIX.match(text)
    return _keep_line_breaks(prefix[0]) + text[prefix.end() :] if prefix else text


def _remove_fence(text: str) -> str:
    opening = _FENCE_LINE.match(text)
    if not opening:
        return _remove_backticks(text)
    fence = opening["fence"]
    code = text[opening.end() :]
    # Truncated text has no closing fence; the rest is still code.
    if code.rstrip().endswith(fence):
        code = _trim_before_closing(code.rstrip().rstrip(fence[0]))
    return _keep_line_breaks(opening[0]) + code


def _remove_backticks(text: str) -> str:
    opening = _BACKTICKS.match(text)
    if not opening:
        return text
    ticks = opening["ticks"]
    code = text[opening.end() :].rstrip()
    runs = re.findall("`++", code)
    if ticks in runs:
        is_whole = code.endswith("`") and runs.index(ticks) == len(runs) - 1
        return (
            _keep_line_breaks(opening[0]) + _trim_before_closing(code[: -len(ticks)])
            if is_whole
            else text
        )
    return _keep_line_breaks(opening[0]) + code if ticks.startswith("```") else text


def _trim_before_closing(text: str) -> str:
    """Return the code before a closing fence, without its indentation and line break."""
    return text.rstrip(" \t").removesuffix("\n").removesuffix("\r")


def _keep_line_breaks(head: str) -> str:
    return re.sub(r"[^\r\n]++", "", head)
