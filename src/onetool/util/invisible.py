"""Invisible characters: controls, direction marks, zero-width and tag characters, variation
selectors.

Names must not contain any. In other text, joiners and variation selectors are accepted where emoji
and scripts need them: one at a time, after a character that is not ASCII (a variation selector also
after a keycap digit).
"""

import re

# Soft hyphen, joiners, direction marks, fillers, variation selectors, annotation marks, tag
# characters.
INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
_VISIBLE_NON_ASCII = f"[^\x00-\xa0{INVISIBLE}\u2028\u2029\ud800-\udfff]"
_ANY = re.compile(f"[{INVISIBLE}{_CONTROLS}\n\r\t]")
_OUT_OF_PLACE = re.compile(
    f"(?<={_VISIBLE_NON_ASCII})[\u200c\u200d](?={_VISIBLE_NON_ASCII})"
    f"|(?<={_VISIBLE_NON_ASCII})\ufe0f(?:\u200d(?={_VISIBLE_NON_ASCII}))?|(?<={_VISIBLE_NON_ASCII})\ufe0e|(?<=[#*0-9])\ufe0f(?=\u20e3)"
    f"|(?P<bad>[{INVISIBLE}{_CONTROLS}]|\r(?!\n))"
)


def find_in_name(name: str) -> str:
    """Return the first invisible character of a name, as `U+200B`; empty if there is none."""
    match = _ANY.search(name)
    return f"U+{ord(match[0]):04X}" if match else ""


def replace_in_name(name: str) -> str:
    """Return the name with `_` for each invisible character."""
    return _ANY.sub("_", name)


def escape_invisible(text: str) -> str:
    r"""Return the text with invisible characters as escapes, like `\u202e`.

    Line ends and tabs stay.
    """
    return _OUT_OF_PLACE.sub(
        lambda match: (
            match[0].encode("unicode_escape").decode("ascii") if match["bad"] else match[0]
        ),
        text,
    )


def redact_invisible(text: str, marker: str) -> str:
    """Return the text with the marker for each run of invisible characters."""
    parts: list[str] = []
    position = 0
    for match in _OUT_OF_PLACE.finditer(text):
        if not match["bad"]:
            continue
        if not parts or match.start() > position:
            parts += [text[position : match.start()], marker]
        position = match.end()
    return "".join([*parts, text[position:]])
