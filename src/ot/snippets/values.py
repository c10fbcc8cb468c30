"""Putting values into Python code where placeholders stand, so that no value ever becomes code.

The code is read as Python's tokenizer reads it, as far as literals, comments and names go. Inside a literal a value is
escaped for that literal, in a comment it stays on its line, as part of a name it must be a name, and elsewhere it
becomes a literal itself. Nothing is parsed or run; code that is wrong stays wrong and is refused by Python later.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from keyword import iskeyword
from typing import Any

from ot.errors import ArgumentError

MAX_DEPTH = 50
_LONGEST_SHOWN = 40

# With private-use characters around it, it is no part of a word. The key is random hexadecimal digits.
PLACEHOLDER = re.compile("\ue000[0-9a-f]+-[0-9]+\ue001")
_V = PLACEHOLDER.pattern
_W = r"(?:\w|[^\x00-\x7f\ue000])"
_ONLY_VALUES = re.compile(f"(?:{_V})+")
_BLANKS = re.compile(r"(?:[ \t\f]|\\\n)*+")
_BLANKS_IN_BRACKETS = re.compile(r"(?:[ \t\f\n]|\\\n|\#[^\n]*+)*+")
_IN_CODE = re.compile(
    rf"""(?P<comment>\#[^\n]*+)
    | (?P<values>(?:{_W}*+{_V})++{_W}*+)
    | (?P<prefix>{_W}*+)(?P<quote>\"{{3}}|'{{3}}|["'])
    | (?P<mark>[(\[{{)\]}}:])
    | {_W}++ | [^\w"'\#()\[\]{{}}:\x80-\U0010ffff]++ | [\s\S]""",
    re.VERBOSE,
)
_PREFIXES = frozenset({"r", "u", "b", "br", "rb", "f", "fr", "rf", "t", "tr", "rt"})
_STRING_ENDS, _STRING_STARTS = frozenset("'\"\ue001"), frozenset("'\"\ue000")
# Behind a number: -5 ** 2 and 5.real mean something else than (-5) ** 2 and (5).real.
_BINDS_CLOSER = frozenset("*.([")
_FORBIDDEN_IN_FIELDS = frozenset("\\'\"{}")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}


class Name(str):
    """A text that is wanted as a name, such as `brave.search`."""

    __slots__ = ()


def placeholder(key: str, number: int) -> str:
    return f"\ue000{key}-{number}\ue001"


def insert(code: str, values: Mapping[str, Any]) -> str:
    """The code with every placeholder that is a key of `values` replaced."""
    return _Reader(values).read(code)


def restored(text: str, values: Mapping[str, Any]) -> Any:
    """A text that is no code: the value itself where it is one placeholder, else the text with texts put in."""
    if text in values:
        return values[text]
    return PLACEHOLDER.sub(lambda found: str(values.get(found[0], found[0])), text)


def exactly(text: str) -> Any:
    """The number, switch, None or JSON that a text is exactly; else the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if text != text.strip():
        return text
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
        literal(value)
    except (ValueError, RecursionError, ArgumentError):
        return text
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def literal(value: Any, depth: int = 0) -> str:
    """A value as a Python literal."""
    if depth > MAX_DEPTH:
        raise ArgumentError(f"a value is nested more than {MAX_DEPTH} deep")
    match value:
        case None | bool() | int():
            return repr(value)
        case float():
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        case list() | tuple():
            return f"[{', '.join(literal(item, depth + 1) for item in value)}]"
        case dict():
            pairs = (f"{literal(key, depth + 1)}: {literal(item, depth + 1)}" for key, item in value.items())
            return f"{{{', '.join(pairs)}}}"
    return repr(str(value))


@dataclass(slots=True)
class _Frame:
    """What is being read: code (no quote), a string literal, or what follows the colon in a field of an f-string."""

    quote: str = ""
    prefix: str = ""
    opened_at: int = 0
    backslashes: list[int] = field(default_factory=list)
    is_spec: bool = False
    has_values: bool = False
    brackets: int = 0
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        self.pattern = _in_text(self.quote, self.has_fields, self.is_raw, self.is_spec) if self.quote else _IN_CODE

    @property
    def has_fields(self) -> bool:
        return "f" in self.prefix or "t" in self.prefix

    @property
    def is_raw(self) -> bool:
        return "r" in self.prefix


@cache
def _in_text(quote: str, has_fields: bool, is_raw: bool, is_spec: bool) -> re.Pattern[str]:
    # In an f-string a brace counts behind a backslash too, but for \N{EM DASH}.
    plain = r"\\N\{[^{}\ue000]*+\} |" if has_fields and not is_raw else ""
    doubled = r"\{\{|\}\} |" if has_fields and not is_spec else ""
    braces = r"(?P<open>\{) | (?P<close>\}) |" if has_fields else ""
    behind = rf"(?!{_V}|[{{}}])" if has_fields else f"(?!{_V})"
    return re.compile(
        rf"""(?P<values>{_V}) | (?P<end>{quote}) | (?P<inner>{quote[0]}(?={_V})) | (?P<line>\n) | {plain}
        (?P<backslash>\\(?:{behind}[\s\S])?) | {doubled} {braces} [^\\"'{{}}\n\ue000]++ | [\s\S]""",
        re.VERBOSE,
    )


class _Reader:
    """Where a string is never closed it reads on somehow: Python will refuse the whole of such code."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._frames = [_Frame()]
        self._done: list[str] = []
        self._before = ""  # the last character of code that is no blank and in no comment

    def read(self, code: str) -> str:
        position = 0
        while position < len(code):
            frame = self._frames[-1]
            token = frame.pattern.match(code, position)
            assert token is not None
            self._done.append(self._of_text(frame, token) if frame.quote else self._of_code(frame, token))
            if not frame.quote and token.lastgroup != "comment":
                self._before = self._last_of(token[0]) or self._before
            position = token.end()
        return "".join(self._done)

    # --- tokens: what takes their place, and what is read next --------------------------------------------------

    def _of_code(self, frame: _Frame, token: re.Match[str]) -> str:
        match token.lastgroup:
            case "comment":
                return self._checked(PLACEHOLDER.sub(lambda found: _printable(self._text(found[0])), token[0]))
            case "values":
                return self._checked(self._in_code(token))
            case "quote":
                prefix = token["prefix"].lower()
                self._frames.append(_Frame(token["quote"], prefix if prefix in _PREFIXES else "", len(self._done)))
            case "mark":
                self._punctuate(frame, token[0])
        return token[0]

    def _punctuate(self, frame: _Frame, mark: str) -> None:
        if mark in "([{":
            frame.brackets += 1
        elif len(self._frames) == 1 or frame.brackets:
            frame.brackets -= mark != ":"
        elif mark == "}":
            self._frames.pop()
        elif mark == ":":
            string = self._frames[-2]
            self._frames[-1] = _Frame(string.quote, string.prefix, backslashes=string.backslashes, is_spec=True)

    def _of_text(self, frame: _Frame, token: re.Match[str]) -> str:
        match token.lastgroup:
            case "values":
                frame.has_values = True
                text = self._text(token[0])
                return self._checked(text if self._in_field else _escaped(text, frame))
            case "inner" if not self._in_field:  # with an empty value behind it, it could become a triple quote
                return f"\\{token[0]}"
            case "backslash":
                frame.backslashes.append(len(self._done))
            case "end":
                return self._closed(frame, token)
            case "open":
                self._frames.append(_Frame())
                self._before = token[0]
            case "close" if frame.is_spec:
                self._frames.pop()
            case "line" if len(frame.quote) == 1:
                self._frames.pop()
        return token[0]

    def _closed(self, frame: _Frame, token: re.Match[str]) -> str:
        """A literal with values in it does not stay raw: a raw one could not hold them all."""
        if frame.has_values and not self._in_field:
            if frame.is_raw:
                self._done[frame.opened_at] = re.sub("[rR]", "", self._done[frame.opened_at])
            for index in frame.backslashes:
                self._done[index] = _backslash(self._done[index], frame)
        self._frames.pop()
        self._before = frame.quote[0]
        # An empty literal and a quote behind it would be a triple quote.
        return f"{token[0]} " if token.string.startswith(token[0], token.end()) else token[0]

    @property
    def _in_field(self) -> bool:
        """Between the braces of an f-string, where Python 3.11 allows no backslash and no quote of the string's."""
        return len(self._frames) > len(("code", "string"))

    # --- neighbours ---------------------------------------------------------------------------------------------

    @property
    def _in_brackets(self) -> bool:
        """Where the end of a line is a blank."""
        return self._frames[-1].brackets > 0 or len(self._frames) > 1

    def _last_of(self, code: str) -> str:
        return code.replace("\\\n", "").rstrip(" \t\f\n" if self._in_brackets else " \t\f")[-1:]

    def _after(self, token: re.Match[str]) -> str:
        blanks = (_BLANKS_IN_BRACKETS if self._in_brackets else _BLANKS).match(token.string, token.end())
        return token.string[blanks.end() : blanks.end() + 1] if blanks else ""

    # --- values -------------------------------------------------------------------------------------------------

    def _text(self, placeholder: str) -> str:
        return str(self._values.get(placeholder, placeholder))

    def _in_code(self, token: re.Match[str]) -> str:
        values = [self._values.get(found, found) for found in PLACEHOLDER.findall(token[0])]
        text = PLACEHOLDER.sub(lambda found: self._text(found[0]), token[0])
        before, after = self._before, self._after(token)
        is_asked_for = all(isinstance(value, Name) for value in values)
        if is_asked_for or before == "." or not _ONLY_VALUES.fullmatch(token[0]):
            return _as_name(
                text, text.split(".") if is_asked_for else [text], token.string[token.end() : token.end() + 1]
            )
        if before in _STRING_ENDS or after in _STRING_STARTS:  # strings side by side are one string
            return f"{' ' if before in _STRING_ENDS else ''}{text!r} "
        found = literal(exactly(text) if isinstance(values[0], str) or len(values) > 1 else values[0])
        return f"({found})" if after in _BINDS_CLOSER and found[-1].isdigit() else found

    def _checked(self, text: str) -> str:
        if self._in_field and not (text.isprintable() and _FORBIDDEN_IN_FIELDS.isdisjoint(text)):
            raise _misplaced(text, "between the braces of an f-string; assign it before: value = {{ … }}")
        return text


def _as_name(text: str, parts: list[str], after: str) -> str:
    # With a quote behind it, a name would be the prefix of a string.
    if after in {"'", '"'} or any(not part.isidentifier() or iskeyword(part) for part in parts):
        raise _misplaced(text, "where only a name can stand")
    return text


def _misplaced(text: str, where: str) -> ArgumentError:
    return ArgumentError(f"the value {shortened(text)!r} stands {where}")


def shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _escaped(text: str, frame: _Frame) -> str:
    is_bytes = "b" in frame.prefix
    if is_bytes:
        text = text.encode("utf-8", "surrogatepass").decode("latin-1")
    marks = {"\\": r"\\", frame.quote[0]: f"\\{frame.quote[0]}"}
    if frame.has_fields:
        marks |= {"{": "{{", "}": "}}"}
    is_plain = str.isascii if is_bytes else bool
    return "".join(marks.get(c) or (c if c.isprintable() and is_plain(c) else _escape(c)) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _backslash(text: str, frame: _Frame) -> str:
    """A backslash of the code itself and what follows it. Before a value it can only mean itself."""
    if len(text) == 1:
        return r"\\"
    if not frame.is_raw:
        return text
    return r"\\" + {"\\": r"\\", "\n": r"\n", frame.quote[0]: f"\\{frame.quote[0]}"}.get(text[1], text[1])


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
