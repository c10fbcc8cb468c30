"""The admin UI in Chromium with ten thousand tools: time to the first tool, and the longest tasks.

The targets are absolute, because a person waits for them. Every visit has an empty cache.
"""

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.lib import Row
from playwright.sync_api import Browser, Page
from tests.ui_support import TIMEOUT_SECONDS, launch_chromium, make_tools, serve_shop

TOOLS = 10_000
FIRST_VIEW_MS, MAX_TASK_MS = 1000, 100
WATCH = """
  window.longTasks = [0];
  new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((one) => one.duration)))
    .observe({ type: "longtask", buffered: true });
"""
FORGET = "() => { window.longTasks = [0] }"
LONGEST = "() => Math.max(...window.longTasks)"
SCROLL = """async () => {
  const list = document.querySelector(".browse ot-list");
  for (let step = 0; step < 200; step += 1) {
    list.scrollTop += 700;
    await new Promise(requestAnimationFrame);
  }
}"""
Visited = tuple[
    float, float, float, float
]  # milliseconds: the first row, and the longest task of each part


def measure(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="onetool-bench-") as name:
        visits = list(measure_visits(rounds, Path(name)))
    first, starting, scrolling, searching = zip(*visits, strict=True)
    return [
        Row(f"admin UI: first of {TOOLS:,} tools shown", first, target=FIRST_VIEW_MS),
        Row("admin UI: longest task until then", starting, target=MAX_TASK_MS),
        Row("admin UI: longest task while scrolling", scrolling, target=MAX_TASK_MS),
        Row("admin UI: longest task while searching", searching, target=MAX_TASK_MS),
    ]


def measure_visits(rounds: int, folder: Path) -> Iterator[Visited]:
    """Visit the UI several times; the first visit is a warm-up."""
    with serve_shop(folder, make_tools(TOOLS)) as served, launch_chromium() as browser:
        address = f"http://127.0.0.1:{served.rest.port}"
        visits = (measure_visit(browser, address) for _ in range(rounds + 1))
        yield from itertools.islice(visits, 1, None)


def measure_visit(browser: Browser, address: str) -> Visited:
    with browser.new_context(viewport={"width": 1360, "height": 820}) as context:
        page = context.new_page()
        page.add_init_script(WATCH)
        started = time.perf_counter()
        page.goto(address)
        page.locator(".tool-row:not(.waiting)").first.wait_for()
        first = (time.perf_counter() - started) * 1000
        page.locator(".pack-row").nth(1).wait_for()
        return first, read_longest_task(page), scroll(page), search(page)


def read_longest_task(page: Page) -> float:
    found: float = page.evaluate(LONGEST)
    page.evaluate(FORGET)
    return found


def scroll(page: Page) -> float:
    page.evaluate(SCROLL)
    return read_longest_task(page)


def search(page: Page) -> float:
    page.get_by_label("Search tools").press_sequentially("7777", delay=60)
    page.locator(".tool-row", has_text="7777").first.wait_for(timeout=TIMEOUT_SECONDS * 1000)
    return read_longest_task(page)
