"""Regular expressions in linear time, made to match inside of lines only, so that many lines are searched at once."""

import re
from typing import Any

from ot.errors import ArgumentError

_MEMORY = 1 << 18  # bytes for RE2; it bounds the states of a pattern, and so what each byte of text can cost
_SHOWN = 500
_TOKEN = re.compile(r"\\.|\(\?[a-zA-Z]*-[a-zA-Z]*m", re.DOTALL)
_ANCHORS = {r"\A": "^", r"\Z": "$", r"\z": "$"}
_BEYOND_RE2 = re.compile(r"invalid perl operator|invalid escape sequence: \\[1-9]")


def compiled(pattern: str, ignore_case: bool) -> Any:
    import re2

    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.never_capture = options.never_nl = True
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        return re2.compile(f"(?m){_line_by_line(pattern)}", options)
    except re2.error as error:
        raise _refused(pattern, error.args[0].decode(errors="replace").replace("(?m)", "", 1)) from None
    except UnicodeEncodeError:
        raise _refused(pattern, "it holds half a character") from None


def _line_by_line(pattern: str) -> str:
    """The pattern in which the start and the end are those of a line, however it is written."""

    def changed(token: re.Match[str]) -> str:
        if token[0] == r"\C" or token[0].startswith("("):  # half a character, or ^ and $ for the whole text
            raise _refused(pattern, f"{token[0]} has no meaning, because each line is searched by itself")
        return _ANCHORS.get(token[0], token[0])

    return _TOKEN.sub(changed, pattern)


def _refused(pattern: str, reason: str) -> ArgumentError:
    shown, reason = pattern[:_SHOWN], reason[:_SHOWN]  # RE2 repeats the pattern in its reason
    if not _BEYOND_RE2.match(reason):
        return ArgumentError(f"{shown!r} is not a valid regular expression: {reason}", pattern=shown)
    rule = "searches take linear time (RE2), so lookaround, atomic groups and backreferences are not supported"
    return ArgumentError(f"{shown!r} cannot be searched for: {reason}; {rule}", pattern=shown)
