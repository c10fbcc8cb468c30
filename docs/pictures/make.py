# ruff: noqa: INP001, S603 - a script, not part of a package; it starts only OneTool
"""Generate the images of the documentation: `uv run python docs/pictures/make.py [DIRECTORY]`.

`demo.svg` shows selected steps of `onetool demo` in a terminal. `ui.png` is a screenshot of the
admin UI in Chromium after a run of the demonstration. `make_approvals.py` generates
`approvals.svg`.
"""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # for the browser helpers of the tests

from docs.pictures.terminal_svg import CONTROL_CHARACTERS, render_svg  # noqa: E402
from tests.rest_support import serve_app  # noqa: E402
from tests.ui_support import launch_chromium, open_page  # noqa: E402 - needs the line above

from onetool.cli import demo  # noqa: E402
from onetool.settings import paths  # noqa: E402

PROGRAM: Final = Path(sys.executable).with_name("onetool")
SHOWN_STEPS: Final = (" 2", " 6", " 8", "10", "11", "Savings")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.svg").write_text(
        render_svg("onetool demo", select_steps(record_demo())), encoding="utf-8"
    )
    take_screenshot(folder)


# --- the terminal ---------------------------------------------------------------------------------


def record_demo() -> str:
    """Return the terminal output of the demonstration, with colors and without progress."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": ""}
    with subprocess.Popen(
        [PROGRAM, "demo"], stdout=theirs, stderr=subprocess.DEVNULL, env=variables
    ) as process:
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
    kept = [
        block for block in blocks[1:] if CONTROL_CHARACTERS.sub("", block).startswith(SHOWN_STEPS)
    ]
    shown = "\n\n".join([f"\033[2m$\033[0m onetool demo\n{blocks[0]}", *kept])
    return shown.splitlines()


# --- the admin UI ---------------------------------------------------------------------------------


def take_screenshot(folder: Path) -> None:
    with demo.create_environment() as environment:
        own = environment.home / paths.FOLDER
        settings = json.loads((own / paths.CONFIG).read_text(encoding="utf-8"))
        with serve_app(own, settings) as served, launch_chromium() as browser:
            environment.import_api(served.onetool)
            served.rest.send("POST", "/api/run", {"command": demo.OLD_TICKETS})
            url = f"http://127.0.0.1:{served.rest.port}"
            with open_page(browser, url, folder) as visit:
                visit.page.locator(".pack-row", has_text="tickets").click()
                page = visit.tool("tickets.list_tickets")
                page.locator("ot-tester .run").click()
                page.locator(".result table").wait_for()
                visit.shoot("ui")


if __name__ == "__main__":
    main()
