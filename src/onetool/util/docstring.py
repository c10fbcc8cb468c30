"""Docstrings of tools in Google, NumPy or Sphinx style, in parts.

Descriptions and examples are found by their headings; the other parts are parsed only when needed.
"""

import re
from textwrap import dedent
from typing import NamedTuple

NAMES = (
    "Args|Arguments|Parameters|Returns|Yields|Raises|Example|Examples|Note|Notes|See"
    " Also|Warnings|References"
)
HEADING = re.compile(
    rf"^(?:(?P<google>{NAMES}):[ \t]*|(?P<numpy>{NAMES}|Other Parameters|Attributes)["
    r" \t]*\n-{3,}[ \t]*"
    r"|(?=:(?:param|parameter|arg|argument|type|key|keyword|returns?|rtype|raises?|yields?)\b).*)$",
    re.MULTILINE,
)
EXAMPLES = ("Example", "Examples")


class Outcome(NamedTuple):
    """The result of a function and the exceptions it raises, as its docstring describes them."""

    returns: str
    raises: dict[str, str]


def description(docstring: str) -> str:
    """Return the text before the first section, with the first paragraph, the summary, in one line."""
    heading = HEADING.search(docstring)
    text = (docstring[: heading.start()] if heading else docstring).strip()
    summary, blank, rest = text.partition("\n\n")
    is_prose = all(line[:1].isalnum() or line[:1] in "`(\"'" for line in summary.splitlines())
    return f"{' '.join(summary.split()) if is_prose else summary}{blank}{rest}"


def example(docstring: str) -> str:
    headings = [*HEADING.finditer(docstring)]
    ends = [*(heading.start() for heading in headings[1:]), len(docstring)]
    for heading, end in zip(headings, ends, strict=False):
        if (heading["google"] or heading["numpy"]) in EXAMPLES:
            return dedent(docstring[heading.end() : end]).strip()
    return ""


def arguments(docstring: str | None) -> dict[str, str]:
    if not docstring or not HEADING.search(docstring):
        return {}
    from docstring_parser import parse

    return {part.arg_name.lstrip("*"): _join(part.description) for part in parse(docstring).params}


def outcome(docstring: str) -> Outcome:
    if not HEADING.search(docstring):
        return Outcome("", {})
    from docstring_parser import parse

    parsed = parse(docstring)
    raises = {each.type_name: _join(each.description) for each in parsed.raises if each.type_name}
    return Outcome(_join(parsed.returns.description) if parsed.returns else "", raises)


def _join(text: str | None) -> str:
    return " ".join((text or "").split())
