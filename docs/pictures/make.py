# ruff: noqa: INP001, S603 - a script, not part of a package; it starts only OneTool
"""Generate the images of the documentation: `uv run python docs/pictures/make.py [DIRECTORY]`.

`demo.svg` shows selected steps of `onetool demo` in a terminal. `ui.png` is a screenshot of the admin UI in Chromium
after a run of the demonstration.
"""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # for the browser helpers of the tests

from tests.rest_support import serve_app  # noqa: E402
from tests.ui_support import launch_chromium, open_page  # noqa: E402 - needs the line above

from onetool import paths  # noqa: E402
from onetool.cli.demo import environment, steps  # noqa: E402

PROGRAM: Final = Path(sys.executable).with_name("onetool")
SHOWN_STEPS: Final = (" 2", " 6", " 8", "10", "11", "Savings")
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


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.svg").write_text(render_svg(select_steps(record_demo())), encoding="utf-8")
    take_screenshot(folder)


# --- the terminal ----------------------------------------------------------------------------------------------------


def record_demo() -> str:
    """Return the terminal output of the demonstration, with colors and without progress."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": ""}
    with subprocess.Popen([PROGRAM, "demo"], stdout=theirs, stderr=subprocess.DEVNULL, env=variables) as process:
        os.close(theirs)
        text = b"".join(iter(lambda: _read(ours), b"")).decode()
    os.close(ours)
    if process.returncode or "Skipped: " in text:
        raise SystemExit(f"onetool demo failed:\n{text}")
    return text.replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux raises this when the other end is closed
        return b""


def select_steps(text: str) -> list[str]:
    blocks = text.split("\n\n")
    kept = [block for block in blocks[1:] if CONTROL_CHARACTERS.sub("", block).startswith(SHOWN_STEPS)]
    shown = "\n\n".join([f"\033[2m$\033[0m onetool demo\n{blocks[0]}", *kept])
    return shown.splitlines()


def render_svg(lines: list[str]) -> str:
    height = BAR + MARGIN + LINE * len(lines)
    drawn = "\n".join(_render_line(BAR + LINE * (number + 1), line) for number, line in enumerate(lines))
    dots = "".join(
        f'<circle cx="{MARGIN + 20 * number}" cy="{BAR // 2}" r="6" fill="{color}"/>'
        for number, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">
<title>onetool demo</title>
<rect width="{WIDTH}" height="{height}" rx="10" fill="#12161c"/>
{dots}
<g font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="{SIZE}" fill="#c9d1d9">
{drawn}
</g>
</svg>
"""


def _render_line(top: int, line: str) -> str:
    return f'<text x="{MARGIN}" y="{top}" xml:space="preserve">{"".join(_render_spans(line))}</text>'


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


# --- the admin UI ----------------------------------------------------------------------------------------------------


def take_screenshot(folder: Path) -> None:
    with environment.create_environment() as built:
        own = built.home / paths.FOLDER
        settings = json.loads((own / paths.CONFIG).read_text(encoding="utf-8"))
        with serve_app(own, settings) as served, launch_chromium() as browser:
            built.import_api(served.onetool)
            served.rest.send("POST", "/api/run", {"command": steps.OLD_TICKETS})
            url = f"http://127.0.0.1:{served.rest.port}"
            with open_page(browser, url, folder) as visit:
                visit.page.locator(".pack-row", has_text="tickets").click()
                page = visit.tool("tickets.list_tickets")
                page.locator("ot-tester .run").click()
                page.locator(".result table").wait_for()
                visit.shoot("ui")


if __name__ == "__main__":
    main()
