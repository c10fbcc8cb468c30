"""Docstrings of tools, in parts: the description, the arguments and an example.

Descriptions and examples are found by their headings; arguments are parsed only when needed.
"""

import re

HEADING = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Example|Examples|Note|Notes):[ \t]*$", re.MULTILINE
)
EXAMPLES = ("Example", "Examples")


def description(docstring: str) -> str:
    heading = HEADING.search(docstring)
    return docstring[: heading.start()].strip() if heading else docstring.strip()


def example(docstring: str) -> str:
    headings = [*HEADING.finditer(docstring)]
    ends = [*(heading.start() for heading in headings[1:]), len(docstring)]
    for heading, end in zip(headings, ends, strict=False):
        if heading[1] in EXAMPLES:
            return "\n".join(line.strip() for line in docstring[heading.end() : end].strip().splitlines())
    return ""


def arguments(docstring: str | None) -> dict[str, str]:
    if not docstring or ":" not in docstring:
        return {}
    from docstring_parser import parse

    return {part.arg_name: " ".join((part.description or "").split()) for part in parse(docstring).params}
