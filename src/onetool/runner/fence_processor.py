"""Taking the code out of what a model sent: off come call prefixes, Markdown fences and backticks around it.

Pure text: it does not parse Python, knows no snippets and mends no indentation. What it removes before the
code leaves its line breaks behind, so that the line in an error is a line of the text that was sent.
"""

import re

from onetool.errors import ToolError

# `__ot = 1` assigns to a name of the user's; a call never goes on with an equals sign.
_WORD_ENDS = r"(?=[\s`~]|\Z)(?![ \t]*=)"

# The quantifiers are possessive: a million backticks must not send the matcher back over each of them.
_PREFIX = re.compile(rf"\s*+(?:mcp__onetool__run|__onetool(?:__run)?|__ot(?:__run)?){_WORD_ENDS}[ \t]*+")
_OLD_PREFIX = re.compile(rf"\s*+(!onetool\b|mcp__ot__run{_WORD_ENDS})")

# An info string may say anything, but a call or a literal on the fence's line is code and must not get lost.
_INFO = r"""[ \t]*+[^\s`(='"\[]*+(?:[ \t][^`()\r\n]*+)?+"""
_FENCE_LINE = re.compile(rf"\s*+(?P<fence>`{{3,}}+|~{{3,}}+){_INFO}(?:\r\n?|\n)")
_LANGUAGE = rf"(?<=``)(?i:python3?|py){_WORD_ENDS}"
_BACKTICKS = re.compile(rf"\s*+(?P<ticks>`++)(?:{_LANGUAGE})?+[ \t]*+")
_NO_CODE = re.compile(r"[\s`~]*+")


def strip(command: str) -> str:
    text = command.removeprefix("\ufeff")
    # Once more behind the fence: people copy `__ot ot.health()` from a page with the fence around it.
    code = _without_prefix(_without_fence(_without_prefix(text)))
    if _NO_CODE.fullmatch(code):
        raise ToolError("The command is empty. Send Python code, for example: ot.tools()")
    return code


def _without_prefix(text: str) -> str:
    if old := _OLD_PREFIX.match(text):
        raise ToolError(
            f"Invalid syntax: a command does not start with {old[1]}. "
            "Send the code alone, for example ot.tools(), or with the prefix __ot: __ot ot.tools()"
        )
    prefix = _PREFIX.match(text)
    return _line_breaks(prefix[0]) + text[prefix.end() :] if prefix else text


def _without_fence(text: str) -> str:
    opening = _FENCE_LINE.match(text)
    if not opening:
        return _without_backticks(text)
    fence, code = opening["fence"], text[opening.end() :]
    # An answer that was cut off has no closing fence; what arrived of it is code all the same.
    if code.rstrip().endswith(fence):
        code = _before_closing(code.rstrip().rstrip(fence[0]))
    return _line_breaks(opening[0]) + code


def _without_backticks(text: str) -> str:
    opening = _BACKTICKS.match(text)
    if not opening:
        return text
    ticks, code = opening["ticks"], text[opening.end() :].rstrip()
    runs = re.findall("`++", code)
    if ticks in runs:
        is_whole = code.endswith("`") and runs.index(ticks) == len(runs) - 1
        return _line_breaks(opening[0]) + _before_closing(code[: -len(ticks)]) if is_whole else text
    return _line_breaks(opening[0]) + code if ticks.startswith("```") else text


def _before_closing(text: str) -> str:
    """The code before a closing fence, without that fence's indentation and the one break before it."""
    return text.rstrip(" \t").removesuffix("\n").removesuffix("\r")


def _line_breaks(head: str) -> str:
    return re.sub(r"[^\r\n]++", "", head)
