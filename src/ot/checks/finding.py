"""One thing that the doctor has found: how bad it is, what it is, and what to type."""

import re
from dataclasses import dataclass
from typing import Final

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"
LONGEST: Final = 2000
NO_ADVICE: Final = "correct what is named here"
MARKS = {OK: "ok  ", WARNING: "warn", PROBLEM: "FAIL"}
# Messages of the product end with what to do. Here that stands on a line of its own.
_ADVICE = re.compile(
    r"(?P<what>.*\S)[;:.] (?P<advice>(?i:look at|type|did you mean|known here|put|take|write|keep|check|save|delete"
    r"|mend|indent|upgrade|change|give|name the|correct)\b.*)",
    re.DOTALL,
)
_PLACE = re.compile(r"(?P<file>/[^\n]*?)(?:, line |:)(?P<line>[0-9]+)\b")


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    what: str
    advice: str = ""


def ok(what: str, advice: str = "") -> Finding:
    return Finding(OK, what, advice)


def warning(what: str, advice: str) -> Finding:
    return Finding(WARNING, what, advice)


def problem(what: str, advice: str) -> Finding:
    return Finding(PROBLEM, what, advice)


def told(level: str, message: str, otherwise: str = "") -> Finding:
    """A message of the product; `otherwise` is the advice where it has none."""
    parts = _ADVICE.fullmatch(message)
    if parts is None:
        return Finding(level, message, otherwise or _correct(message))
    return Finding(level, parts["what"], _at(message, parts["advice"]))


def shortened(text: str) -> str:
    """For a person to read: what is wrong may be a value of any length."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


def _at(message: str, advice: str) -> str:
    """With the place, where the advice is to write something."""
    place = _PLACE.search(message)
    advice = re.sub(r"\Adid you mean (.+)\?\Z", r"write \1", advice)
    is_edit = re.match(r"known here|put |take |write |keep |indent |change ", advice)
    return f"in {place['file']}, line {place['line']}: {advice}" if place and is_edit else advice


def _correct(message: str) -> str:
    place = _PLACE.search(message)
    return f"correct line {place['line']} of {place['file']}" if place else NO_ADVICE
