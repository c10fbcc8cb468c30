# ruff: noqa: INP001 - a module of the scripts beside it, not part of a package
"""Draw terminal output as SVG."""

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

WIDTH, MARGIN, BAR, LINE, SIZE = 900, 24, 36, 18, 13
COLORS: Final = {
    "1": 'fill="#f2f5f9" font-weight="bold"',
    "2": 'fill="#7d8896"',
    "31": 'fill="#ff7b72"',
    "32": 'fill="#7ee787"',
    "33": 'fill="#e3b341"',
}
STYLE: Final = re.compile(r"\033\[(\d+)m(.*?)\033\[0m")
CONTROL_CHARACTERS: Final = re.compile(r"\033\[[0-9;]*[A-Za-z]|[^\x20-\x7e\u00a0-\uffff]")


def render_svg(title: str, lines: Sequence[str]) -> str:
    """Return an image of a terminal with these lines, which may contain escape sequences of colors."""
    height = BAR + MARGIN + LINE * len(lines)
    drawn = "\n".join(
        _render_line(BAR + LINE * (number + 1), line) for number, line in enumerate(lines)
    )
    dots = "".join(
        f'<circle cx="{MARGIN + 20 * number}" cy="{BAR // 2}" r="6" fill="{color}"/>'
        for number, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">
<title>{escape(title)}</title>
<rect width="{WIDTH}" height="{height}" rx="10" fill="#12161c"/>
{dots}
<g font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="{SIZE}" fill="#c9d1d9">
{drawn}
</g>
</svg>
"""


def _render_line(top: int, line: str) -> str:
    return (
        f'<text x="{MARGIN}" y="{top}" xml:space="preserve">{"".join(_render_spans(line))}</text>'
    )


def _render_spans(line: str) -> Iterator[str]:
    """Yield the line as colored and plain spans."""
    plain_from = 0
    for match in STYLE.finditer(line):
        yield _escape(line[plain_from : match.start()])
        yield f"<tspan {COLORS[match[1]]}>{_escape(match[2])}</tspan>"
        plain_from = match.end()
    yield _escape(line[plain_from:])


def _escape(text: str) -> str:
    return escape(CONTROL_CHARACTERS.sub("", text), quote=False)
