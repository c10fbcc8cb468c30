"""Test accessibility, layout and performance of the admin UI: axe, keyboard, color schemes, narrow
screens.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect
from tests.rest_support import ServedApp, http_draft
from tests.runs_support import make_call, store_run
from tests.support import eventually
from tests.ui_support import (
    NARROW,
    TIMEOUT_SECONDS,
    Visit,
    check_tasks,
    find_violations,
    make_tools,
    open_page,
    screenshot_directory,
    serve_shop,
)

from onetool.state.run_records import CallState
from onetool.util.running_servers import create_code

pytestmark = pytest.mark.slow
RULES: dict[str, list[str]] = {
    "light": [],
    "dark": ["color-contrast"],
}  # an empty list means all rules; only colors differ in dark mode
MOST_BYTES = 100_000
MANY = 10_000


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    with serve_shop(tmp_path_factory.mktemp("shop"), make_tools(MANY)) as served:
        bundle = served.rest.bundle("weather")
        served.rest.tool(bundle, "now", "1", **http_draft("https://example.com/now"))
        code = (
            'ot.parallel([lambda: shop.find(words="plum", limit=40) for _ in'
            " range(4)])\nshop.tree()"
        )
        served.rest.send("POST", "/api/run", {"command": code})
        served.rest.send("POST", "/api/tools/shop.fail/call", {"args": {}})
        calls = (
            make_call(1, "mail.send", to="ada", text="x" * 300),
            make_call(2, "mail.send", CallState.UNKNOWN),
        )
        store_run(served.onetool.directories.data, *calls)
        yield served


@pytest.fixture
def address(shop: ServedApp) -> str:
    return f"http://127.0.0.1:{shop.rest.port}"


@pytest.fixture
def visit(browser: Browser, address: str, tmp_path: Path) -> Iterator[Visit]:
    with open_page(browser, address, screenshot_directory(tmp_path)) as found:
        found.page.locator(".tool-row").first.wait_for()
        yield found


def screens(visit: Visit, shop: ServedApp) -> Iterator[str]:
    """Open each screen, with content, and yield its name."""
    page = visit.page
    page.locator(".tool-row").first.wait_for()
    yield "tools"
    visit.tool("shop.everything")
    page.locator("ot-tester .run").click()
    yield "form"
    visit.tool("shop.find").get_by_role("tab", name="About").click()
    yield "about"
    _run(visit)
    yield "run"
    run_id = shop.rest.get("/api/runs")["runs"][0]["id"]
    visit.go(f"runs/{run_id}")
    page.locator(".timeline summary").first.click()
    page.locator(".call-values").wait_for()
    yield "runs"
    visit.go("statistics")
    page.locator(".cards").wait_for()
    yield "statistics"
    visit.go(f"code/{create_code(shop.onetool.directories.user)}")
    page.get_by_role("button", name="Sign out").wait_for()
    visit.go("approvals")
    page.locator("ot-approvals section").wait_for()
    yield "approvals"
    visit.go("health")
    page.locator("ot-health .facts").first.wait_for()
    page.locator(".errors li").first.wait_for()
    yield "health"
    bundle = next(
        one for one in shop.rest.get("/tools/bundles")["bundles"] if one["slug"] == "weather"
    )
    visit.go(f"bundles/{bundle['id']}")
    page.locator("ot-bundle ot-list").wait_for()
    yield "bundle"
    visit.go(f"bundles/{bundle['id']}/now/1")
    page.locator("ot-http").wait_for()
    yield "tool-editor"
    page.keyboard.press("Control+k")
    page.locator(".found li").first.wait_for()
    yield "palette"


def _run(visit: Visit) -> None:
    page = visit.go("run")
    page.locator("ot-editor textarea").fill(
        'for n in range(3):\n    print(n)  # as it comes\nshop.find(words="plum", limit=2)'
    )
    page.locator("ot-run .run").click()
    page.locator(".outcome-bar").wait_for()


# --- accessibility and layout ---------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_problems(
    browser: Browser, address: str, shop: ServedApp, tmp_path: Path, scheme: str
) -> None:
    found: list[str] = []
    with open_page(
        browser, address, screenshot_directory(tmp_path), color_scheme=scheme, bypass_csp=True
    ) as visit:
        for name in screens(visit, shop):
            visit.shoot(f"{scheme}-{name}")
            found += [
                f"{name}: {problem}" for problem in find_violations(visit.page, RULES[scheme])
            ]
    assert found == [], "\n".join(found)


def test_the_ui_fits_a_narrow_screen(
    browser: Browser, address: str, shop: ServedApp, tmp_path: Path
) -> None:
    with open_page(
        browser, address, screenshot_directory(tmp_path), viewport=NARROW, has_touch=True
    ) as visit:
        for name in screens(visit, shop):
            visit.shoot(f"narrow-{name}")
            wide = visit.page.evaluate(
                "Math.max(document.documentElement.scrollWidth,"
                " document.querySelector('main').scrollWidth)"
            )
            assert wide <= NARROW["width"], name
        visit.page.keyboard.press("Escape")
        visit.tool("shop.find")
        expect(visit.page.locator(".browse")).to_be_hidden()
        visit.page.get_by_role("link", name="All tools").click()
        expect(visit.page.locator(".tool-row").first).to_be_visible()


@pytest.mark.spec("bundles.screen.languages")
def test_a_language_is_one_file_and_one_line(
    browser: Browser, address: str, tmp_path: Path
) -> None:
    def add_language(route: Route) -> None:
        text = route.fetch().text()
        line = 'const TRANSLATIONS = { de: () => import("../messages.de.js") };'
        route.fulfill(
            body=text.replace("const TRANSLATIONS = {};", line), content_type="text/javascript"
        )

    german = (
        'export const messages = { "screen.tools": "Werkzeuge", '
        '"tools.count": { one: "{n} Werkzeug", other: "{n} da" } };'
    )
    with open_page(
        browser, address, screenshot_directory(tmp_path), place="run", locale="de-DE"
    ) as visit:
        visit.page.route("**/core/i18n.js", add_language)
        visit.page.route(
            "**/messages.de.js",
            lambda route: route.fulfill(body=german, content_type="text/javascript"),
        )
        visit.page.goto(f"{address}/?german")
        expect(visit.page.locator("nav a").first).to_have_text("Werkzeuge")
        expect(visit.page.locator(".count")).to_have_text(re.compile(r"^10\.\d{3} da$"))
        expect(visit.page.locator("html")).to_have_attribute("lang", "de")
        expect(visit.page.locator("nav a").nth(1)).to_have_text("Run")


# --- keyboard -------------------------------------------------------------------------------------


def test_everything_is_reachable_by_keyboard(visit: Visit) -> None:
    page = visit.page
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Search tools")).to_be_focused()
    page.keyboard.type("shop.")
    expect(page.locator(".tool-row").first).to_contain_text("shop")
    grid = page.get_by_role("grid", name="Tool list")
    while not grid.evaluate("grid => grid === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    name = page.locator(".tool-row.active .name").inner_text()
    expect(grid).to_have_attribute(
        "aria-activedescendant", page.locator(".tool-row.active").get_attribute("id") or ""
    )
    page.keyboard.press("Space")
    expect(page.locator("#notices")).to_contain_text(f"{name} disabled")
    page.keyboard.press("Space")
    expect(page.locator("#notices")).to_contain_text(f"{name} enabled")
    page.keyboard.press("Enter")
    expect(page.locator("ot-tool h2")).to_have_text(name)
    expect(page.locator("ot-tool h2")).to_be_focused()
    page.locator("body").press("2")
    expect(page.locator("ot-editor textarea")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(page.locator("ot-run .run")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_contain_text("Ctrl")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


# --- ten thousand tools ---------------------------------------------------------------------------


def test_the_first_view_of_ten_thousand_tools_is_small(
    browser: Browser, address: str, tmp_path: Path
) -> None:
    with open_page(browser, address, screenshot_directory(tmp_path), place="tools/none") as visit:
        page = visit.page
        received: list[int] = []
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on(
            "Network.loadingFinished", lambda event: received.append(event["encodedDataLength"])
        )
        page.goto(f"{address}/?again")
        page.locator(".tool-row:not(.waiting)").first.wait_for()
        page.locator(".pack-row").nth(1).wait_for()
        assert sum(received) < MOST_BYTES
        assert len(received) < 60  # idle work may have been done, too
        assert page.locator(".tool-row").count() < 60


def test_scrolling_and_searching_ten_thousand_rows_stays_smooth(visit: Visit) -> None:
    page = visit.page
    rows = page.locator(".browse ot-list")

    def scroll_to_end() -> bool:  # again and again, because the list grows while its pages arrive
        rows.evaluate("list => { list.scrollTop = list.scrollHeight }")
        return page.locator(".tool-row", has_text="yaml").first.is_visible()

    with check_tasks(visit):
        page.evaluate(SCROLL)
        assert eventually(scroll_to_end)
        assert page.locator(".tool-row").count() < 60
        page.get_by_label("Search tools").press_sequentially("7777", delay=30)
        expect(page.locator(".tool-row").first).to_contain_text(
            "7777", timeout=TIMEOUT_SECONDS * 1000
        )


def test_a_change_fetches_only_the_page_of_tools_that_is_shown(
    visit: Visit, shop: ServedApp
) -> None:
    page = visit.page
    rows = page.locator(".browse ot-list")
    switch = page.get_by_role("switch", name="Enable bulk011.action_50")

    def scroll_to_middle() -> bool:
        rows.evaluate("list => { list.scrollTop = 1150 * 58 }")
        return switch.is_visible()

    assert eventually(scroll_to_middle)
    top = rows.evaluate("list => list.scrollTop")
    visit.requests.clear()
    shop.rest.send("PATCH", "/api/packs/bulk011", {"isEnabled": False})
    expect(switch).not_to_be_checked()
    pages = [url for url in visit.requests if "/api/tools?" in url]
    assert len(pages) == 1, pages
    assert rows.evaluate("list => list.scrollTop") == top
    shop.rest.send("PATCH", "/api/packs/bulk011", {"isEnabled": True})
    expect(switch).to_be_checked()


SCROLL = """async () => {
  const list = document.querySelector(".browse ot-list");
  for (let step = 0; step < 100; step += 1) {
    list.scrollTop += 700;
    await new Promise(requestAnimationFrame);
  }
}"""
