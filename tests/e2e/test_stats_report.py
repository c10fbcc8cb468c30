"""Test the statistics report in a real browser: light and dark, empty and large."""

import subprocess
import zlib
from collections import Counter
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.ui_support import SWITCHES, find_browser

from onetool.state.run_records import RunRecord
from onetool.state.stats.database import StatisticsFile
from onetool.state.stats.record import CallRecord, Recorder, SessionRecord
from onetool.state.stats.report import render_html
from onetool.state.stats.summary import summarize

NOW = 1_800_000_000.0
HOSTILE = (
    '</td></table><script>document.title="owned"</script><img src=x onerror=alert(1)>&lt;\u202e'
)
DARK = "--blink-settings=preferredColorScheme=0"

Browser = Callable[..., str]


@pytest.fixture
def browse(tmp_path: Path) -> Browser:
    """Open a page in a new browser with these flags, and return the output of the browser."""
    program = find_browser()

    def show(page: str, *flags: str) -> str:
        file = tmp_path / "report.html"
        file.write_text(page, encoding="utf-8")
        command = [
            program,
            "--headless",
            *SWITCHES,
            f"--user-data-dir={tmp_path / 'profile'}",
            *flags,
            file.as_uri(),
        ]
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=100, check=True
        ).stdout

    return show


def make_page(directory: Path, tools: list[str]) -> str:
    statistics = StatisticsFile(directory / "stats.db")
    recorder = Recorder(statistics, clock=lambda: NOW)
    recorder.add(SessionRecord("s", "default", dict.fromkeys(tools, 200), 300))
    for number, name in enumerate(tools):
        for call in range(len(tools) - number):
            failure = HOSTILE if call % 7 == 3 else None
            at = NOW - 3600.0 * ((number + 5 * call) % 700)
            recorder.add(CallRecord(name, "default", "s", "r", 0.05 * call, failure, 100, at))
    count = len(tools)
    run = RunRecord(
        "r", "default", seconds=2.0, round_trips=count, answer_tokens=50, result_tokens=100 * count
    )
    recorder.add(run)
    recorder.close()
    return render_html(summarize(statistics, now=NOW))


def take_screenshot(browse: Browser, page: str, file: Path, *flags: str) -> tuple[bytes, int]:
    """Return the color of the top left pixel and the number of distinct pixel rows."""
    browse(page, f"--screenshot={file}", "--window-size=1200,1600", "--hide-scrollbars", *flags)
    width, height, pixels = decode_png(file.read_bytes())
    assert (width, height) == (1200, 1600)
    line = len(pixels) // height
    lines = {pixels[start : start + line] for start in range(0, len(pixels), line)}
    return pixels[1:4], len(lines)


def decode_png(png: bytes) -> tuple[int, int, bytes]:
    """Return the width, the height and the filtered rows. The first pixel is never filtered."""
    offset, data = 8, b""
    while offset < len(png):
        size = int.from_bytes(png[offset : offset + 4], "big")
        if png[offset + 4 : offset + 8] == b"IDAT":
            data += png[offset + 8 : offset + 8 + size]
        offset += 12 + size
    return (
        int.from_bytes(png[16:20], "big"),
        int.from_bytes(png[20:24], "big"),
        zlib.decompress(data),
    )


class Elements(HTMLParser):
    """The elements of a page, and the names in its table of tools."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.tools: list[str] = []
        self.title = ""
        self._path: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1
        assert not any(name.startswith("on") or name in {"src", "href"} for name, _ in attrs)
        self._path.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._path and self._path.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._path[-2:] == ["th", "code"]:
            self.tools.append(data)
        if self._path[-1:] == ["title"] and "svg" not in self._path:
            self.title += data


def test_the_report_supports_light_and_dark_mode(browse: Browser, tmp_path: Path) -> None:
    page = make_page(tmp_path, ["brave.search", "db.query", "github.list_issues"])
    light, lines = take_screenshot(browse, page, tmp_path / "light.png")
    assert min(light) > 200
    assert lines > 100
    dark, lines = take_screenshot(browse, page, tmp_path / "dark.png", DARK)
    assert max(dark) < 60
    assert lines > 100


# A page that shows another in a frame as wide as a phone, and sets its title to the right edge of
# the elements.
PHONE = """<!doctype html><title>?</title><iframe style="width:360px;height:3000px;border:0" srcdoc="{page}"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const parts = [...frame.contentDocument.querySelectorAll("body *")];
  document.title = Math.max(...parts.map((part) => Math.ceil(part.getBoundingClientRect().right)));
}};
</script>"""


@pytest.mark.parametrize("count", [0, 40])
def test_the_report_fits_the_width_of_a_phone(browse: Browser, tmp_path: Path, count: int) -> None:
    page = make_page(
        tmp_path, [f"pack{number}.tool{'_long' * (number % 30)}" for number in range(count)]
    )
    reach = Elements(browse(PHONE.format(page=escape(page)), "--dump-dom")).title
    assert 300 < int(reach) <= 360


def test_an_empty_report_is_rendered(browse: Browser, tmp_path: Path) -> None:
    page = render_html(summarize(StatisticsFile(tmp_path / "none.db"), now=NOW))
    _, lines = take_screenshot(browse, page, tmp_path / "empty.png")
    assert lines > 100
    assert "<h2>No calls</h2>" in browse(page, "--dump-dom")


def test_hostile_tool_names_are_escaped_in_a_large_report(browse: Browser, tmp_path: Path) -> None:
    names = [HOSTILE, *(f"pack{number}.tool{'_long' * (number % 30)}" for number in range(199))]
    page = make_page(tmp_path, names)
    seen = Elements(browse(page, "--dump-dom"))
    assert seen.tools == [HOSTILE.replace("\u202e", "\ufffd"), *names[1:]]
    assert seen.title == "OneTool statistics"
    assert seen.count["svg"] == 1 + 200
    assert not any(seen.count[tag] for tag in ("script", "img", "link", "iframe", "form"))
    _, lines = take_screenshot(browse, page, tmp_path / "many.png")
    assert lines > 100
