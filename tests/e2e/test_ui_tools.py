"""Test the screen Tools and the command palette in a real browser."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.conftest import find_program
from tests.proxy_support import MODERN
from tests.rest_support import ServedApp, http_draft
from tests.support import environment, eventually
from tests.ui_support import TIMEOUT_SECONDS, Visit, open_page, screenshot_directory, serve_shop

from onetool.state.document_kinds import DisabledTools
from onetool.state.documents import DocumentFile

pytestmark = pytest.mark.slow
CAPTURED: Any = {"capture_output": True, "timeout": TIMEOUT_SECONDS}
HIDE = """isHidden => {
  Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
EXTENSION = '''"""Says hello."""


def hello(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"
'''


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    directory = tmp_path_factory.mktemp("shop")
    pack = directory / "tools" / "greetings" / "greetings_tools.py"
    pack.parent.mkdir(parents=True)
    pack.write_text(EXTENSION, encoding="utf-8")
    modern = {"command": sys.executable, "args": [str(MODERN)], "timeout": 20}
    with serve_shop(directory, servers={"modern": modern}) as served:
        bundle = served.rest.bundle("weather")
        served.rest.tool(bundle, "now", **http_draft("https://example.com/now"))
        yield served


@pytest.fixture
def visit(browser: Browser, shop: ServedApp, tmp_path: Path) -> Iterator[Visit]:
    url = f"http://127.0.0.1:{shop.rest.port}"
    with open_page(browser, url, screenshot_directory(tmp_path)) as found:
        found.page.locator(".tool-row").first.wait_for()
        yield found


def run(page: Page) -> None:
    page.locator("ot-tester .run").click()


def field(page: Page, label: str) -> Any:
    return page.locator("ot-form").get_by_label(label, exact=True).first


# --- the list -------------------------------------------------------------------------------------


@pytest.mark.spec("bundles.screen.admin")
def test_every_kind_of_tool_is_listed_and_can_be_filtered(visit: Visit) -> None:
    page = visit.page
    names = {
        "built-in": "shop.find",
        "extension": "greetings.hello",
        "proxy": "modern.grow",
        "bundle": "weather.now",
    }
    for kind, name in names.items():
        page.get_by_label("All kinds").select_option(kind)
        page.get_by_label("Search tools").fill(name)
        expect(page.locator(".tool-row", has_text=name)).to_be_visible(
            timeout=TIMEOUT_SECONDS * 1000
        )
        expect(page.locator(f".tool-row .badge:not([data-kind='{kind}'])")).to_have_count(0)
    page.get_by_label("All kinds").select_option("")
    page.get_by_label("Search tools").fill("")
    page.locator(".pack-row", has_text="shop").click()
    expect(page.locator(".count")).to_have_text("8 tools")


def test_the_list_is_filtered_while_typing(visit: Visit) -> None:
    page = visit.page
    page.get_by_label("Search tools").press_sequentially("red square")
    expect(page.locator(".tool-row").first).to_contain_text("shop.picture")
    page.get_by_label("Search tools").fill("xyzzyplugh")
    expect(page.locator(".none")).to_contain_text("No matching tools")
    visit.go("run")
    page.locator("ot-editor").wait_for()
    visit.go("tools")
    expect(page.get_by_label("Search tools")).to_have_value("xyzzyplugh")
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator(".tool-row").first).to_be_visible()


@pytest.mark.spec("bundles.screen.admin")
def test_tools_and_packs_are_disabled_and_enabled_for_all_clients(
    visit: Visit, shop: ServedApp
) -> None:
    page = visit.page
    visit.tool("shop.tree")
    page.get_by_label("Search tools").fill("shop.tree")
    row = page.locator(".tool-row", has_text="shop.tree").first
    row.get_by_role("switch").click()
    expect(page.locator("ot-tool .reason")).to_contain_text("Disabled")
    assert shop.rest.get("/api/tools/shop.tree")["isEnabled"] is False
    run(page)
    expect(page.locator(".outcome")).to_contain_text("tool_disabled")
    page.locator("ot-tool header").get_by_role("switch").click()
    expect(page.locator("ot-tool .reason")).to_be_empty()

    def change_first(route: Route) -> None:
        shop.rest.send("PATCH", "/api/tools/shop.tree", {"isEnabled": False})  # another person
        route.continue_()

    page.route("**/api/tools/shop.tree", change_first, times=1)
    row.get_by_role("switch").click()
    expect(page.locator("#notices")).to_contain_text("Somebody else has changed shop.tree")
    expect(row.get_by_role("switch")).not_to_be_checked()
    expect(page.locator("ot-tool .reason")).to_contain_text("Disabled")
    row.get_by_role("switch").click()
    expect(page.locator("ot-tool .reason")).to_be_empty()
    for name in ("weather", "modern", "shop"):
        switch = page.get_by_role("switch", name=f"Enable pack {name}")
        switch.click()
        expect(page.locator("#notices")).to_contain_text(f"{name} disabled")
        packs = {pack["name"]: pack["isEnabled"] for pack in shop.rest.get("/api/packs")["packs"]}
        assert packs[name] is False
        switch.click()
        expect(page.locator("#notices")).to_contain_text(f"{name} enabled")


def test_changes_of_others_appear_without_a_reload(visit: Visit, shop: ServedApp) -> None:
    page = visit.tool("shop.tree")
    page.get_by_label("Search tools").fill("shop.")
    expect(page.locator(".tool-row").first).to_contain_text("shop")
    tree = page.get_by_role("switch", name="Enable shop.tree").first
    find = page.get_by_role("switch", name="Enable shop.find")
    weather = page.get_by_role("switch", name="Enable pack weather")
    shop.rest.send("PATCH", "/api/tools/shop.tree", {"isEnabled": False})  # another browser
    expect(tree).not_to_be_checked()
    expect(page.locator("ot-tool .reason")).to_contain_text("Disabled")
    DisabledTools(DocumentFile(shop.onetool.directories.data)).set(
        "shop.find", on=False
    )  # another process
    expect(find).not_to_be_checked()
    [bundle] = [
        one for one in shop.rest.get("/tools/bundles")["bundles"] if one["slug"] == "weather"
    ]
    shop.rest.send("PATCH", f"/tools/bundles/{bundle['id']}", {"isEnabled": False})
    expect(weather).not_to_be_checked()
    page.get_by_label("All states").select_option("false")
    expect(page.locator(".tool-row")).to_have_count(2)
    shop.rest.send("PATCH", "/api/tools/shop.tree", {"isEnabled": True})
    expect(page.locator(".tool-row")).to_have_count(1)
    DisabledTools(DocumentFile(shop.onetool.directories.data)).set("shop.find", on=True)
    expect(page.locator(".none")).to_contain_text("No matching tools")
    shop.rest.send("PATCH", "/api/packs/shop", {"isEnabled": False})
    expect(page.locator(".tool-row")).to_have_count(8)
    shop.rest.send("PATCH", "/api/packs/shop", {"isEnabled": True})
    shop.rest.send("PATCH", f"/tools/bundles/{bundle['id']}", {"isEnabled": True})
    expect(weather).to_be_checked()


def test_a_hidden_tab_is_not_connected_and_catches_up(visit: Visit, shop: ServedApp) -> None:
    page = visit.page
    page.get_by_label("Search tools").fill("shop.text")
    switch = page.get_by_role("switch", name="Enable shop.text")
    expect(switch).to_be_checked()
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/api/changes")):
        page.evaluate(HIDE, True)
    shop.rest.send("PATCH", "/api/tools/shop.text", {"isEnabled": False})
    page.evaluate(HIDE, False)
    expect(switch).not_to_be_checked()
    shop.rest.send("PATCH", "/api/tools/shop.text", {"isEnabled": True})
    expect(switch).to_be_checked()


def test_the_details_of_a_tool_are_shown(visit: Visit, shop: ServedApp) -> None:
    assert shop.rest.send("POST", "/api/tools/shop.find/call", {"args": {"words": "plum"}}).json()[
        "ok"
    ]
    assert not shop.rest.send("POST", "/api/tools/shop.fail/call", {"args": {}}).json()["ok"]
    page = visit.tool("shop.find")
    page.get_by_role("tab", name="About").click()
    details = page.locator(".about .facts")
    expect(details).to_contain_text("local")
    expect(details).to_contain_text("Permissions")
    expect(details).to_contain_text("Effects")
    expect(details).to_contain_text("list[{name: str, price: float, inStock: bool}]")
    visit.tool("shop.fail").get_by_role("tab", name="About").click()
    expect(page.locator(".about .facts")).to_contain_text("(1 failed)")
    expect(page.locator(".about .facts")).to_contain_text("execution_error")
    visit.tool("weather.now").get_by_role("tab", name="About").click()
    expect(page.locator(".about .facts")).to_contain_text("1.0")
    expect(page.locator(".about .facts")).to_contain_text("network")


# --- the tester -----------------------------------------------------------------------------------


@pytest.mark.spec("bundles.screen.live-tester")
def test_a_form_has_a_field_for_every_type_and_sends_its_values(visit: Visit) -> None:
    page = visit.tool("shop.everything")
    _fill_in_everything(page)
    run(page)
    page.locator(".result").get_by_role("tab", name="Text").click()
    shown = json.loads(page.locator(".result .long-text pre").inner_text())
    assert shown["args"] == {
        "title": "A chair",
        "kind": 3,
        "count": 4,
        "ratio": 1.5,
        "loud": True,
        "when": "2026-11-15",
        "mail": "a@example.com",
        "maybe": None,
        "labels": ["red", "blue"],
        "points": [{"x": 1, "y": 2.5}],
        "place": {"city": "Bern"},
        "target": {"name": "lamp"},
        "free": {"any": ["thing"]},
        "extra": {"weight": 7},
        "node": {"name": "first", "next": {"name": "second"}},
    }


def _fill_in_everything(page: Page) -> None:
    for label, text in {
        "title *": "A chair",
        "city *": "Bern",
        "count": "4",
        "ratio": "1.5",
        "when": "2026-11-15",
        "mail": "a@example.com",
        "free": '{"any": ["thing"]}',
    }.items():
        field(page, label).fill(text)
    field(page, "kind *").select_option("3")
    field(page, "loud").select_option("true")
    page.locator(".nullable input[type=checkbox]").check()
    labels = page.locator("fieldset", has_text="labels")
    for text in ("red", "blue"):
        labels.get_by_role("button", name="Add item").click()
        labels.locator("textarea").last.fill(text)
    points = page.locator("fieldset", has_text="points")
    points.get_by_role("button", name="Add item").click()
    points.get_by_label("x *").fill("1")
    points.get_by_label("y *").fill("2.5")
    field(page, "target").select_option("By name")
    page.locator(".variant").get_by_label("name *").fill("lamp")
    extra = page.locator("details.nested", has=page.locator("> summary", has_text="extra"))
    extra.locator("> summary").click()
    extra.get_by_label("Property name").fill("weight")
    extra.get_by_role("button", name="Add").click()
    extra.get_by_label("weight", exact=True).fill("7")
    node = page.locator("details.nested", has=page.locator("> summary", has_text="node"))
    node.locator("> summary").click()
    node.get_by_label("name", exact=True).first.fill("first")
    node.locator("details > summary").first.click()
    node.locator("details").first.get_by_label("name", exact=True).first.fill("second")


def test_problems_are_shown_beside_their_fields(visit: Visit) -> None:
    page = visit.tool("shop.everything")
    run(page)
    for label in ("title *", "kind *", "maybe *", "city *"):
        expect(field(page, label)).to_have_attribute("aria-invalid", "true")
    expect(field(page, "title *")).to_be_focused()
    for label, text, problem in [
        ("title *", "ab", "At least 3 characters"),
        ("count", "11", "Must be 10 or less"),
        ("count", "1.5", "Must be an integer"),
        ("count", "many", "Must be a number"),
        ("count", "12345678901234567890", "Too large for the browser"),
        ("ratio", "0", "Must be greater than 0"),
        ("ratio", "0.7", "Must be a multiple of 0.5"),
        ("mail", "nobody", "Not a valid email"),
        ("free", "{", "Invalid JSON"),
    ]:
        field(page, label).fill(text)
        expect(field(page, label).locator("xpath=..").locator(".problem")).to_contain_text(problem)
    assert page.locator(".result, .outcome").count() == 0


def test_problems_found_by_the_server_are_shown_beside_their_fields(visit: Visit) -> None:
    page = visit.tool("shop.everything")
    page.locator("details.raw summary").click()
    given = {
        "title": "A chair",
        "kind": "small",
        "maybe": "x",
        "place": {"city": "Bern"},
        "code": "abc",
    }
    page.locator("details.raw textarea").fill(json.dumps(given))
    run(page)
    expect(page.locator(".outcome")).to_contain_text("invalid")
    expect(field(page, "code")).to_have_attribute("aria-invalid", "true")


def test_the_form_and_its_json_are_synchronized(visit: Visit) -> None:
    page = visit.tool("shop.everything")
    page.locator("details.raw summary").click()
    raw = page.locator("details.raw textarea")
    field(page, "title *").fill("A chair")
    assert json.loads(raw.input_value())["title"] == "A chair"
    raw.fill('{"title": "", "labels": ["a"], "target": 5, "maybe": null, "unknown": 1}')
    expect(field(page, "target")).to_have_value("0")
    expect(page.locator("fieldset", has_text="labels").locator("textarea")).to_have_value("a")
    expect(page.locator(".nullable input[type=checkbox]")).to_be_checked()
    raw.fill('{"title": ')
    expect(page.locator("details.raw .problem")).to_contain_text("Invalid JSON")
    raw.fill('{"title": "A lamp", "unknown": 1}')
    run(page)
    expect(page.locator("ot-form")).to_contain_text("Unknown property unknown")


def test_results_are_shown_as_table_tree_text_or_media(visit: Visit) -> None:
    page = visit.tool("shop.find")
    field(page, "words *").fill("pear")
    run(page)
    expect(page.locator(".result table tbody tr")).to_have_count(5)
    expect(page.locator(".result table")).to_contain_text("pear 5")
    visit.shoot("table")
    visit.tool("shop.tree")
    run(page)
    expect(page.locator(".tree")).to_contain_text("shelves")
    visit.tool("shop.picture")
    run(page)
    picture = page.locator(".picture img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") == 48
    visit.tool("shop.pictures")
    run(page)
    expect(page.locator(".picture img")).to_have_count(2)
    visit.tool("shop.text")
    run(page)
    expect(page.locator(".long-text pre")).to_have_text("x" * 20)
    visit.tool("shop.fail")
    run(page)
    expect(page.locator(".outcome")).to_contain_text("the shop is closed")
    visit.shoot("failed-call")


def test_a_call_shows_its_progress_and_can_be_cancelled(visit: Visit, shop: ServedApp) -> None:
    page = visit.tool("shop.wait")
    field(page, "seconds *").fill("60")
    run(page)
    expect(page.locator("ot-tester .progress")).to_contain_text("step")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".outcome")).to_contain_text("Cancelled after")
    assert eventually(lambda: _last_run(shop) == ("shop.wait", "cancelled", "cancelled")), (
        _last_run(shop)
    )


def _last_run(shop: ServedApp) -> tuple[str, str, str | None]:
    last = shop.rest.get("/api/runs")["runs"][0]
    return last["name"], last["state"], last["error"]


def test_the_call_is_shown_as_three_snippets_that_work(
    visit: Visit, shop: ServedApp, tmp_path: Path
) -> None:
    page = visit.tool("shop.find")
    field(page, "words *").fill('it\'s "quoted" \\ and ünïcode \u202e')
    field(page, "limit").fill("1")
    wanted = [{"name": 'it\'s "quoted" \\ and ünïcode \u202e 1', "price": 1.5, "inStock": False}]
    code = _snippet(page, "Python for run")
    assert (
        json.loads(shop.rest.send("POST", "/api/run", {"command": code}).json()["blocks"][-1])
        == wanted
    )
    find_program("curl")
    shell = subprocess.run(["sh", "-c", _snippet(page, "curl")], check=True, **CAPTURED)
    assert json.loads(shell.stdout)["value"] == wanted
    program = _snippet(visit.tool("machine.now"), "ToolBus")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(tmp_path),
        check=True,
        **CAPTURED,
    )
    assert done.stdout.startswith(b"20"), done


def _snippet(page: Page, name: str) -> str:
    """Return the snippet that the copy button copies; the UI shows it with invisible characters
    escaped.
    """
    page.get_by_role("tab", name=name).click()
    code: str = page.locator(".snippet:visible code").evaluate("code => code.textContent")
    return code.replace("\\u{202e}", "\u202e")


def test_earlier_calls_can_be_reused(visit: Visit) -> None:
    page = visit.tool("shop.find")
    field(page, "words *").fill("cherry")
    run(page)
    page.locator(".result").wait_for()
    field(page, "words *").fill("something else")
    page.get_by_role("tab", name="History").click()
    page.locator("ot-history").get_by_role("button", name="Reuse").first.click()
    expect(field(page, "words *")).to_have_value("cherry")
    page.reload()
    page.get_by_role("tab", name="History").click()
    expect(page.locator("ot-history li")).to_have_count(1)


# --- the palette ----------------------------------------------------------------------------------


@pytest.mark.spec("bundles.screen.palette")
def test_the_palette_finds_opens_and_runs_a_tool_by_keyboard(visit: Visit) -> None:
    page = visit.go("runs")
    page.locator("ot-runs").wait_for()
    page.keyboard.press("Control+k")
    expect(page.locator("ot-palette input")).to_be_focused()
    page.keyboard.type("find shelves")
    expect(page.locator(".found [aria-selected=true]")).to_contain_text("shop.find")
    visit.shoot("palette")
    page.keyboard.press("Enter")
    expect(page.locator("ot-palette").get_by_label("words *")).to_be_focused()
    page.keyboard.type("fig")
    page.keyboard.press("Control+Enter")
    expect(page.locator("ot-palette .result")).to_contain_text("fig 1")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


@pytest.mark.spec("bundles.screen.palette")
def test_plus_opens_the_palette_except_in_inputs(visit: Visit) -> None:
    page = visit.page
    page.get_by_label("Search tools").press_sequentially("a+b")
    expect(page.get_by_label("Search tools")).to_have_value("a+b")
    expect(page.locator("dialog")).to_have_count(0)
    page.locator(".brand").focus()
    page.keyboard.press("+")
    page.locator("ot-palette input").fill("small red square")
    page.locator(".found li", has_text="A small red square").click()
    page.locator("ot-palette").get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("ot-palette .picture img")).to_be_visible()
