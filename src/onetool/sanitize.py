"""Text from outside, made safe to show to a model: wrapped in a boundary nobody can guess, and without traps in it.

Redactions are visible, also those of characters that people cannot see; everything else in a result stays as it was.
Descriptions lose such characters. This marks and defuses; what a run may do after it read such text is limited
elsewhere.
"""

import re
import secrets
from bisect import bisect_right
from collections.abc import Mapping
from html import escape
from typing import Any

from onetool.util.invisible import UNSEEN, redact_invisible

TRIGGER, TAG, INVISIBLE = "[REDACTED:trigger]", "[REDACTED:tag]", "[REDACTED:invisible]"
MAX_DESCRIPTION = 2_000
MAX_SOURCE = 200
READ_BY_MODELS = {"title", "description", "$comment"}

_UNSEEN_CHARACTER = re.compile(f"[{UNSEEN}]")
_TERMINAL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]?"  # colours, cursor
    r"|(?:\x1b[\]P^_X]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?"  # titles, links
    r"|\x1b[ -/]*+[0-~]?"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# Characters that a model reads as the plain ones: full-width forms, tag characters, dashes.
_LOOK_ALIKES = {
    **{code + 0xFEE0: code for code in range(0x21, 0x7F)},
    **{code + 0xE0000: code for code in range(0x20, 0x7F)},
    **dict.fromkeys([*range(0x2010, 0x2016), 0x2212, 0xFE58, 0xFE63], ord("-")),
}

# In JSON and in quoted YAML the end of a line is an escape, whose letter is no part of the word behind it.
_START, _GAP = r"(?:(?<!\w)|(?<=\\[nrt]))", r"(?:\s|\\[nrt])"

_TRAPS = re.compile(
    rf"""(?=[<_m!\[idfo]) (?:
    (?P<tag> <{_GAP}*+/?+{_GAP}*+external{_GAP}*+[-_]?+{_GAP}*+content (?: [^<>]{{0,300}}+> | [\w-]*+ ) )
    # A call to us, in the spellings that `run` strips or explains.
    | {_START} (?: __(?:ot|onetool)(?:__run)?+ | mcp__(?:ot|onetool)__run | !onetool ) (?!\w)
    # The marks of a turn or of a tool call in the formats that models are trained on.
    | <{_GAP}*+/?+{_GAP}*+
      (?: system(?:[-_]reminder)?+ | assistant | developer | invoke | (?:tool|function)_(?:call|result)s?+ ) (?![\w.:-])
      (?: [^<>]{{0,300}}+> )?+
    | <\|[\w\ ]{{1,30}}+\|> | \[/?+INST\] | <</?+SYS>>
    # "Ignore all previous instructions" and its family.
    | {_START} (?:ignore|disregard|forget|override) {_GAP}++
      (?:(?:all|any|every|of|the|my|your|these|those) {_GAP}++){{0,3}}+
      (?:previous|prior|above|earlier|preceding|foregoing) {_GAP}++
      (?:instruction|prompt|message|direction|rule|command)s?+
    )""",
    re.IGNORECASE | re.VERBOSE,
)


def sanitize_text(text: str, source: str) -> str:
    """The text between a pair of tags that carry a random number and where the text comes from."""
    name = f"external-content-{secrets.token_hex(6)}"
    origin = escape(" ".join(clean(source, MAX_SOURCE).split()))
    seen = _redacted(text)
    shown = redact_invisible(seen, INVISIBLE)
    defused = seen if shown == seen else _redacted(shown)  # a trap may begin where an invisible character was
    return f'<{name} source="{origin}">\n{defused}\n</{name}>'


def clean(text: str, limit: int = MAX_DESCRIPTION) -> str:
    """A description that somebody else wrote, for a model to read."""
    seen = _CONTROL.sub("", _UNSEEN_CHARACTER.sub("", _TERMINAL.sub("", text)))
    defused = _redacted(seen)
    return defused if len(defused) <= limit else f"{defused[: limit - 1]}…"


def clean_schema(schema: Any, *, are_names: bool = False) -> Any:
    """A schema that somebody else wrote, with the words in it that models read cleaned. Names are no words."""
    if isinstance(schema, list):
        return [clean_schema(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: clean(part)
        if key in READ_BY_MODELS and isinstance(part, str) and not are_names
        else clean_schema(part, are_names=key == "properties" and not are_names)
        for key, part in schema.items()
    }


def _redacted(text: str) -> str:
    """Traps are found in the text as a model reads it, and cut out of the text as it is."""
    read = text if text.isascii() else text.translate(_LOOK_ALIKES)
    # How many characters are in the text before the n-th one that is seen: n and the unseen ones up to there.
    shifts = [unseen.start() - index for index, unseen in enumerate(_UNSEEN_CHARACTER.finditer(read))]
    parts, position = [], 0
    for trap in _TRAPS.finditer(_UNSEEN_CHARACTER.sub("", read) if shifts else read):
        first, last = (seen + bisect_right(shifts, seen) for seen in (trap.start(), trap.end() - 1))
        parts += [text[position:first], TAG if trap["tag"] else TRIGGER]
        position = last + 1
    return "".join([*parts, text[position:]])
