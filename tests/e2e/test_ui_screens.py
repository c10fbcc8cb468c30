"""Test the screens Run, Runs, Statistics, Health and Bundles in a real browser."""

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.http_support import Site, page as web_page, serve_site as web_served
from tests.rest_support import ServedApp, http_draft
from tests.support import eventually
from tests.ui_support import (
    NARROW,
    TIMEOUT_SECONDS,
    WIDE,
    Visit,
    open_page,
    screenshot_directory,
    serve_shop,
)

pytestmark = pytest.mark.slow
SECRET = "k-7d1f0c55aa"  # a value that no page may show


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with web_served() as found:
        found.pages["/items"] = web_page(
            b'[{"name": "lamp"}, {"name": "rug"}]', ("Content-Type", "application/json")
        )
        yield found


@pytest.fixture(scope="module")
def shop(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    local = {"allowedHosts": [f"127.0.0.1:{site.port}"], "allowPrivateAddresses": True}
    with serve_shop(
        tmp_path_factory.mktemp("shop"), http=local, output={"max_inline_size": 5000}
    ) as serve_site:
        yield serve_site


@pytest.fixture
def visit(browser: Browser, shop: ServedApp, tmp_path: Path) -> Iterator[Visit]:
    url = f"http://127.0.0.1:{shop.rest.port}"
    with open_page(browser, url, screenshot_directory(tmp_path)) as found:
        yield found


def write(visit: Visit, code: str) -> Page:
    page = visit.go("run")
    page.locator("ot-editor textarea").fill(code)
    return page


def run(visit: Visit, code: str) -> Page:
    page = write(visit, code)
    page.keyboard.press("Control+Enter")
    return page


# --- run ------------------------------------------------------------------------------------------


def test_output_is_shown_live_and_a_run_can_be_cancelled(visit: Visit, shop: ServedApp) -> None:
    page = run(
        visit,
        'import time\nprint("begun")\ntime.sleep(1)\nprint("half way")\nshop.wait(seconds=60)',
    )
    expect(page.locator(".live")).to_have_text("begun\n")
    expect(page.locator(".live")).to_contain_text("half way")
    expect(page.locator(".live-calls")).to_contain_text("shop.wait")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".outcome")).to_contain_text("Cancelled after")
    assert eventually(lambda: shop.rest.get("/api/runs")["runs"][0]["error"] == "cancelled")


def test_the_result_or_error_of_a_run_is_shown(visit: Visit) -> None:
    page = run(visit, 'print("three plums:")\nshop.find(words="plum", limit=3)')
    expect(page.locator(".outcome-bar")).to_contain_text("Done")
    expect(page.locator(".run-output")).to_contain_text("three plums:")
    expect(page.locator(".run-output table tbody tr")).to_have_count(3)
    visit.shoot("run")
    run(visit, "shop.find(wrong=1)")
    expect(page.locator(".outcome-bar")).to_contain_text("validation_error")
    expect(page.locator("pre.outcome")).to_contain_text("words")
    page.locator(".history summary").click()
    page.locator(".history").get_by_role("button", name="Reuse").last.click()
    expect(page.locator("ot-editor textarea")).to_have_value(
        'print("three plums:")\nshop.find(words="plum", limit=3)'
    )


def test_a_large_result_is_read_page_by_page(visit: Visit) -> None:
    page = run(visit, '[{"number": n, "text": f"line {n}"} for n in range(3000)]')
    stored = page.locator("ot-stored").first
    expect(stored.get_by_role("status")).to_contain_text("1 to", timeout=TIMEOUT_SECONDS * 1000)
    first = stored.locator("pre").inner_text()
    stored.get_by_role("button", name="Next").click()
    expect(stored.get_by_role("button", name="Previous")).to_be_enabled()
    assert stored.locator("pre").inner_text() != first
    stored.get_by_label("Search the full result").fill("line 2999")
    stored.get_by_label("Search the full result").press("Enter")
    expect(stored.locator("pre")).to_contain_text("line 2999")
    run(visit, 'print("\\n".join(f"row {n}" for n in range(3000)))')
    expect(page.locator("ot-stored").get_by_role("status")).to_have_text("lines 1 to 200 of 3,000")


# --- runs -----------------------------------------------------------------------------------------


def test_runs_appear_live_with_a_timeline_of_concurrent_calls(
    visit: Visit, shop: ServedApp
) -> None:
    page = visit.go("activity")  # a URL of an older version
    page.locator("ot-runs").wait_for()
    code = (
        "marker = 1\not.parallel([lambda: shop.wait(seconds=0.5) for _ in range(3)])\nshop.tree()"
    )
    shop.rest.send("POST", "/api/run", {"command": code})
    row = page.locator(".run-row", has_text="marker = 1").first
    expect(row).to_contain_text("4 calls")
    row.get_by_role("link").click()
    expect(page.locator(".timeline li")).to_have_count(4)
    expect(page.locator(".run-detail .facts")).to_contain_text("4, up to 3 concurrent")
    visit.shoot("timeline")
    shop.rest.send("POST", "/api/tools/shop.fail/call", {"args": {}})
    failed = page.locator(".run-row", has_text="shop.fail").first
    expect(failed).to_contain_text("execution_error")
    expect(failed.get_by_role("img", name="failed")).to_be_visible()


def test_a_run_links_to_its_timeline(visit: Visit) -> None:
    page = run(visit, "shop.tree()")
    page.get_by_role("link", name="Timeline of this run").click()
    expect(page.locator(".run-detail pre.command")).to_have_text("shop.tree()\n")


def test_statistics_show_a_chart_and_savings_at_a_price(visit: Visit, shop: ServedApp) -> None:
    code = 'len([shop.find(words="plum", limit=200) for _ in range(5)])'
    shop.rest.send("POST", "/api/run", {"command": code})
    stats = shop.rest.get("/api/stats")
    page = visit.go("statistics")
    expect(page.locator(".cards")).to_contain_text("Tokens saved")
    page.get_by_label("Price per 1M tokens (USD)").first.fill("1000000")
    saved = f"{stats['contextSaved']:,}"
    expect(page.locator(".figure-card", has_text="Money saved")).to_contain_text(f"${saved}")
    newest = page.locator(".plot rect.calls").last
    assert newest.is_visible()
    page.set_viewport_size(NARROW)
    box = newest.bounding_box()
    assert box is not None
    assert 0 <= box["x"] < NARROW["width"], "a phone shows the newest bars first"
    page.set_viewport_size(WIDE)
    expect(page.locator(".sum .total").first).to_contain_text(saved)
    visit.shoot("statistics")
    page.get_by_label("Period", exact=True).select_option("day")
    expect(page.locator(".figures .table")).to_contain_text("shop.find")


def test_health_shows_all_components(visit: Visit) -> None:
    page = visit.go("health")
    for label in ("Version", "Isolation", "Upstream servers", "Workers"):
        expect(page.locator("ot-health")).to_contain_text(label)
    visit.shoot("health")


# --- bundles --------------------------------------------------------------------------------------


@pytest.mark.spec("bundles.screen.admin", "bundles.screen.recipe-form")
def test_a_bundle_is_created_tried_changed_exported_and_deleted(
    visit: Visit, shop: ServedApp, site: Site
) -> None:
    page = visit.go("bundles")
    _create_bundle(page)
    _create_tool(page, site)
    _try(page)
    page.get_by_role("button", name="Save", exact=True).click()
    page.locator("ot-bundle .name", has_text="List items").click()
    _save_a_version(page, site)
    expect(page.locator("ot-bundle .tool-row")).to_have_count(2)
    visit.shoot("bundle")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export as ZIP").click()
    packed = zipfile.ZipFile(io.BytesIO(Path(download.value.path()).read_bytes()))
    stored = [packed.read(name) for name in packed.namelist() if "list-items" in name]
    assert any("photo" in json.loads(tool)["argSchema"]["properties"] for tool in stored)
    page.get_by_role("button", name="Delete list-items 1", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("ot-bundle .tool-row")).to_have_count(1)
    page.get_by_role("button", name="Delete bundle").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete bundle").click()
    expect(page.locator(".bundle-list")).not_to_contain_text("My furniture")
    assert [
        one["slug"]
        for one in shop.rest.get("/tools/bundles", includeDisabled="true")["bundles"]
        if not one["isBuiltIn"]
    ] == []


def _create_bundle(page: Page) -> None:
    page.get_by_role("button", name="New bundle").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name *", exact=True).fill("My furniture")
    dialog.get_by_label("Slug *").fill("not a slug")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.locator(".problem:visible")).to_be_visible()
    dialog.get_by_label("Slug *").fill("my-furniture")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator("ot-bundle h2")).to_have_text("My furniture")


def _create_tool(page: Page, site: Site) -> None:
    page.get_by_role("button", name="New HTTP tool").click()
    editor = page.locator("ot-tool-editor")
    editor.get_by_label("Name *", exact=True).fill("List items")
    expect(editor.get_by_label("Slug *")).to_have_value("list-items")
    editor.get_by_label("URL *").fill("ftp://example.com")
    editor.get_by_role("button", name="Save", exact=True).click()
    expect(editor.get_by_label("URL *")).to_have_attribute("aria-invalid", "true")
    editor.get_by_label("URL *").fill(f"{site.url('/items')}")
    query = editor.locator("ot-pairs", has_text="Query")
    query.get_by_role("button", name="Add row").click()
    query.get_by_label("Name").fill("color")
    query.get_by_label("Value").fill("${colour}")


def _try(page: Page) -> None:
    page.locator("ot-tool-editor").get_by_role("button", name="Try it").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("colour *").fill("red")
    dialog.get_by_role("button", name="Run").click()
    expect(dialog.locator(".result table")).to_contain_text("rug")
    dialog.get_by_role("button", name="Close").click()
    expect(page.locator("dialog")).to_have_count(0)


def _save_a_version(page: Page, site: Site) -> None:
    editor = page.locator("ot-tool-editor")
    expect(editor.get_by_label("Version *")).to_have_value("2")
    editor.get_by_label("Response selector").fill("[0].name")
    editor.get_by_label("Method").select_option("POST")
    editor.get_by_label("Body").fill("${file:photo}")
    editor.get_by_role("button", name="Save as new version").click()
    assert site.last.query["color"] == ["red"]


def test_an_existing_version_is_rejected_beside_its_field(visit: Visit, shop: ServedApp) -> None:
    bundle = shop.rest.bundle()
    shop.rest.tool(bundle, "now", "1", **http_draft("https://example.com/now"))
    page = visit.go(f"bundles/{bundle.rpartition('/')[2]}/now/1")
    page.get_by_label("Version *").fill("1")
    page.get_by_role("button", name="Save as new version").click()
    expect(page.get_by_label("Version *")).to_have_attribute("aria-invalid", "true")


def test_a_literal_secret_is_kept_and_not_shown(visit: Visit, shop: ServedApp) -> None:
    bundle = shop.rest.bundle()
    auth = {"type": "bearer", "value": SECRET}
    impl = {"auth": auth, "headers": {"X-Api-Key": SECRET, "X-Plain": "seen"}, "errorMode": "empty"}
    shop.rest.tool(bundle, "now", "1", **http_draft("https://example.com/now", **impl))
    page = visit.go(f"bundles/{bundle.rpartition('/')[2]}/now/1")
    value = page.locator(".auth").get_by_label("Value", exact=True)
    expect(value).to_have_value("")
    expect(value).to_have_attribute("placeholder", "stored, hidden")
    fields = page.locator("ot-tool-editor input, ot-tool-editor textarea")
    values = fields.evaluate_all("all => all.map((one) => one.value)")
    assert "seen" in values
    assert not any(SECRET in value for value in values)
    assert SECRET not in page.content()
    page.get_by_role("button", name="Save as new version").click()
    page.locator("ot-bundle .tool-row").nth(1).wait_for()
    stored = shop.onetool.bundles.store.get_tool(bundle.rpartition("/")[2], "now", "2").http_impl
    assert stored is not None
    assert {name: stored[name] for name in impl} == impl


def test_documents_and_archives_can_be_dropped(visit: Visit, shop: ServedApp) -> None:
    page = visit.page
    page.locator(".tool-row").first.wait_for()
    _drop(page, "petstore.json", json.dumps(PETSTORE).encode())
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("pets.example.com")
    dialog.get_by_role("button", name="Import", exact=True).click()
    expect(page.locator("ot-bundle ot-list")).to_contain_text("pets")
    address = page.url
    archive = shop.rest.client.get(f"/api/bundles/{address.rpartition('/')[2]}/export").content
    _drop(page, "again.zip", archive)
    expect(dialog).to_contain_text("1 tool unchanged")
    dialog.get_by_label("Slug").fill("more-pets")
    dialog.get_by_label("Slug").press("Tab")
    dialog.get_by_role("button", name="Import", exact=True).click()
    expect(page.locator(".bundle-list")).to_contain_text("more-pets")
    _drop(page, "nonsense.json", b"[]")
    expect(dialog.get_by_role("alert")).to_contain_text("OpenAPI")


PETSTORE: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "https://pets.example.com"}],
    "paths": {
        "/pets": {"get": {"operationId": "listPets", "responses": {"200": {"description": "Pets"}}}}
    },
}
DROP = """([name, bytes]) => {
  const files = new DataTransfer();
  files.items.add(new File([new Uint8Array(bytes)], name));
  const given = { dataTransfer: files, bubbles: true, cancelable: true };
  for (const kind of ["dragover", "drop"]) document.body.dispatchEvent(new DragEvent(kind, given));
}"""


def _drop(page: Page, name: str, content: bytes) -> None:
    page.evaluate(DROP, [name, list(content)])
