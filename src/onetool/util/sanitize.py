"""Sanitize external text for a model: wrap it in an unguessable boundary and redact injection
patterns.

Redactions are visible, including those of invisible characters; the rest of a result is unchanged.
Descriptions lose invisible characters. Sanitizing marks and defuses text; the permissions of a run
are limited elsewhere.
"""

import re
import secrets
from bisect import bisect_right
from collections.abc import Mapping
from html import escape
from typing import Any

from onetool.util.invisible import INVISIBLE, redact_invisible

TRIGGER = "[REDACTED:trigger]"
TAG = "[REDACTED:tag]"
INVISIBLE_MARK = "[REDACTED:invisible]"
MAX_DESCRIPTION_CHARS = 2_000
MAX_SOURCE_CHARS = 200
READ_BY_MODELS = {"title", "description", "$comment"}

_INVISIBLE_CHARACTER = re.compile(f"[{INVISIBLE}]")
_TERMINAL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]?"  # colors, cursor
    r"|(?:\x1b[\]P^_X]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?"  # titles, links
    r"|\x1b[ -/]*+[0-~]?"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# Characters that a model reads like ASCII: full-width forms, tag characters, dashes.
_LOOK_ALIKES = {
    **{code + 0xFEE0: code for code in range(0x21, 0x7F)},
    **{code + 0xE0000: code for code in range(0x20, 0x7F)},
    **dict.fromkeys([*range(0x2010, 0x2016), 0x2212, 0xFE58, 0xFE63], ord("-")),
}

# In JSON and quoted YAML, a line break is an escape, and in errors, an invisible character: their
# letters are not part of the word that follows.
_START = r"(?:(?<!\w)|(?<=\\[nrt])|(?<=\\x[0-9a-f]{2})|(?<=\\u[0-9a-f]{4})|(?<=\\U[0-9a-f]{8}))"
_GAP = r"(?:\s|\\[nrt])"

_TRAPS = re.compile(
    rf"""(?=[<_m!\[idfo]) (?:
    (?P<tag> <{_GAP}*+/?+{_GAP}*+external{_GAP}*+[-_]?+{_GAP}*+content (?: [^<>]{{0,300}}+> | [\w-]*+ ) )
    # A call of OneTool, in the spellings that `run` strips or explains.
    | {_START} (?: __(?:ot|onetool)(?:__run)?+ | mcp__(?:ot|onetool)__run | !onetool ) (?!\w)
    # Markers of turns and tool calls in the formats that models are trained on.
    | <{_GAP}*+/?+{_GAP}*+
      (?: system(?:[-_]reminder)?+ | assistant | developer | invoke | (?:tool|function)_(?:call|result)s?+ ) (?![\w.:-])
      (?: [^<>]{{0,300}}+> )?+
    | <\|[\w\ ]{{1,30}}+\|> | \[/?+INST\] | <</?+SYS>>
    # "Ignore all previous instructions" and variants.
    | {_START} (?:ignore|disregard|forget|override) {_GAP}++
      (?:(?:all|any|every|of|the|my|your|these|those) {_GAP}++){{0,3}}+
      (?:previous|prior|above|earlier|preceding|foregoing) {_GAP}++
      (?:instruction|prompt|message|direction|rule|command)s?+
    )""",
    re.IGNORECASE | re.VERBOSE,
)


def make_tag() -> str:
    """Return the name of a tag that the text cannot contain, because it is random.

    Create one for each answer, not for each text: each one releases the interpreter lock for a
    moment, and a thread that does so all the time keeps others from ever getting the lock.
    """
    return f"external-content-{secrets.token_hex(6)}"


def sanitize_text(text: str, source: str, tag: str = "") -> str:
    """Return the text between tags that contain a random number and the source of the text."""
    name = tag or make_tag()
    origin = escape(" ".join(clean(source, MAX_SOURCE_CHARS).split()))
    return f'<{name} source="{origin}">\n{_defuse(text)}\n</{name}>'


def defuse_data(data: Any) -> Any:
    """Return data with redacted strings and names, but without tags, because programs read it."""
    if isinstance(data, str):
        return _defuse(data)
    if isinstance(data, list):
        return [defuse_data(member) for member in data]
    return (
        {_defuse(name): defuse_data(member) for name, member in data.items()}
        if isinstance(data, dict)
        else data
    )


def _defuse(text: str) -> str:
    redacted = _redact_traps(text)
    visible = redact_invisible(redacted, INVISIBLE_MARK)
    # A trap may begin at the position of an invisible character.
    return redacted if visible == redacted else _redact_traps(visible)


def clean(text: str, limit: int = MAX_DESCRIPTION_CHARS) -> str:
    """Return an external description that is safe for a model to read."""
    visible = _CONTROL.sub("", _INVISIBLE_CHARACTER.sub("", _TERMINAL.sub("", text)))
    defused = _redact_traps(visible)
    return defused if len(defused) <= limit else f"{defused[: limit - 1]}…"


def clean_schema(schema: Any, *, are_names: bool = False) -> Any:
    """Return an external schema whose texts for models are cleaned.

    Names of properties are not changed.
    """
    if isinstance(schema, list):
        return [clean_schema(member) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: (
            clean(part)
            if key in READ_BY_MODELS and isinstance(part, str) and not are_names
            else clean_schema(part, are_names=key == "properties" and not are_names)
        )
        for key, part in schema.items()
    }


def _redact_traps(text: str) -> str:
    """Find traps in the text as a model reads it, and redact them in the original text."""
    readable = text if text.isascii() else text.translate(_LOOK_ALIKES)
    # Maps the index of a visible character to its index in the text: add the invisible ones before
    # it.
    shifts = [
        match.start() - index for index, match in enumerate(_INVISIBLE_CHARACTER.finditer(readable))
    ]
    parts = []
    position = 0
    for trap in _TRAPS.finditer(_INVISIBLE_CHARACTER.sub("", readable) if shifts else readable):
        first, last = (
            index + bisect_right(shifts, index) for index in (trap.start(), trap.end() - 1)
        )
        parts += [text[position:first], TAG if trap["tag"] else TRIGGER]
        position = last + 1
    return "".join([*parts, text[position:]])
