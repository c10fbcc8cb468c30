"""Test the admin UI with hostile content and failing servers: markup, control characters, large
data, restarts.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.rest_support import ServedApp, http_draft, serve_process
from tests.support import configure
from tests.ui_support import (
    SCRIPT,
    TIMEOUT_SECONDS,
    Visit,
    check_tasks,
    open_page,
    screenshot_directory,
    serve_shop,
)

from onetool.settings.access import new_token
from onetool.util.token_ids import hash_token

pytestmark = pytest.mark.slow
LARGE = 10_000_000


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    with serve_shop(tmp_path_factory.mktemp("shop")) as served:
        yield served


@pytest.fixture
def visit(browser: Browser, shop: ServedApp, tmp_path: Path) -> Iterator[Visit]:
    url = f"http://127.0.0.1:{shop.rest.port}"
    with open_page(browser, url, screenshot_directory(tmp_path)) as found:
        yield found


def is_hacked(page: Page) -> bool:
    return bool(page.evaluate("'hacked' in window"))


def test_text_of_tools_is_never_parsed_as_markup(visit: Visit, shop: ServedApp) -> None:
    bundle = shop.rest.bundle("evil")
    shop.rest.tool(
        bundle,
        "now",
        **{**http_draft("https://example.com"), "displayName": SCRIPT, "description": SCRIPT},
    )
    page = visit.tool("hostile.words")
    expect(page.locator("ot-tool .description")).to_contain_text(
        "<script>window.hacked = 1</script>"
    )
    expect(page.locator("ot-form label").first).to_contain_text("<img src=x onerror=")
    page.locator("ot-form textarea").first.fill(SCRIPT)
    page.locator("ot-tester .run").click()
    expect(page.locator(".tree")).to_contain_text("<script>")
    page.get_by_role("tab", name="About").click()
    visit.shoot("hostile")
    visit.tool("hostile.result")
    page.locator("ot-tester .run").click()
    for view in ("Table", "Tree", "Text"):
        page.locator(".result").get_by_role("tab", name=view).click()
        expect(page.locator(".result .panel:visible")).to_contain_text(
            "<script>window.hacked = 1</script>"
        )
    visit.go(f"bundles/{bundle.rpartition('/')[2]}")
    expect(page.locator("ot-bundle ot-list")).to_contain_text("<script>")
    page.keyboard.press("Control+k")
    page.locator("ot-palette input").fill("hostile")
    expect(page.locator(".found")).to_contain_text("hostile.words")
    assert page.locator("script:not([src])").count() == 0
    assert page.locator("img:not([src^='page/'])").count() == 0
    assert not is_hacked(page)


def test_bidirectional_and_control_characters_are_escaped(visit: Visit) -> None:
    page = visit.tool("hostile.result")
    page.locator("ot-tester .run").click()
    expect(page.locator(".result table")).to_contain_text(
        "\\u{202e}gnp.exe\\u{2066} hidden\\u{2069}"
    )
    expect(page.locator(".result table")).to_contain_text("\\u{0}\\u{1b}[31m")
    shown = page.locator("main").inner_text()
    assert not set(shown) & {"\u202e", "\u2066", "\u2069", "\0", "\x1b"}


def test_a_recursive_schema_becomes_a_finite_form(visit: Visit) -> None:
    page = visit.tool("hostile.schema")
    page.get_by_label("property1", exact=True).fill("x")
    page.get_by_label("constructor", exact=True).fill("a" * 40 + "!")
    page.locator("ot-tester .run").click()
    expect(page.locator("ot-form .problem:visible").first).to_be_visible()
    expect(page.locator("ot-form")).to_contain_text("more arguments are available as JSON")
    assert page.locator("ot-form *").count() < 5000
    expect(page.locator("ot-snippets:visible code").first).to_contain_text("property1")


def test_invalid_routes_show_an_error(visit: Visit) -> None:
    page = visit.go("nowhere")
    expect(page.locator("main")).to_contain_text("Page not found")
    for index in (
        "constructor",
        "__proto__",
        "%E0%A4%A",
        "tools/%3Cscript%3E",
        "tools/no.such",
        "runs/none",
    ):
        visit.go(index)
        expect(page.locator("main")).not_to_be_empty()
    expect(page.locator("main")).to_contain_text("or it has expired")
    visit.go("tools/no.such")
    expect(page.locator(".detail")).to_contain_text("no.such")


def test_a_result_of_ten_megabytes_is_shown_in_parts(visit: Visit) -> None:
    page = visit.tool("shop.text")
    page.get_by_label("size", exact=True).fill(str(LARGE))
    with check_tasks(visit):
        page.locator("ot-tester .run").click()
        more = page.locator(".long-text button")
        expect(more).to_contain_text("more characters", timeout=TIMEOUT_SECONDS * 1000)
        assert page.locator(".long-text pre").evaluate("pre => pre.textContent.length") <= 20_000
        more.click()
    assert page.locator(".long-text pre").evaluate("pre => pre.textContent.length") <= 40_000
    expect(page.locator(".result .size")).to_contain_text("10 MB")
    page.get_by_role("tab", name="About").click()
    expect(page.locator(".about .facts")).to_be_visible()


def test_the_content_security_policy_is_strict(visit: Visit, shop: ServedApp) -> None:
    headers = shop.rest.client.get("/").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    visit.page.locator(".tool-row").first.wait_for()
    rejected = visit.page.evaluate(INLINE)
    assert rejected == "script-src-elem"
    assert visit.errors.pop().startswith("Executing inline script violates")
    for index in ("run", "bundles", "statistics"):
        visit.go(index)
    assert visit.foreign == []


INLINE = """() => new Promise((resolve) => {
  addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective), { once: true });
  const script = document.createElement("script");
  script.textContent = "window.hacked = 1";
  document.body.append(script);
})"""


def test_an_open_ui_survives_a_restart_of_the_server(browser: Browser, tmp_path: Path) -> None:
    with serve_process(tmp_path) as (server, info):
        url = info["url"]
        with open_page(browser, url, screenshot_directory(tmp_path)) as visit:
            page = visit.go("run")
            page.locator("ot-editor textarea").fill("ot.version()")
            visit.go("runs")
            expect(page.locator("ot-runs")).to_contain_text("No runs yet")
            server.send_signal(signal.SIGTERM)
            server.wait(TIMEOUT_SECONDS)
            expect(page.get_by_role("alert")).to_contain_text("Connection lost")
            visit.shoot("server-gone")
            visit.go("health")
            expect(page.locator("main")).to_contain_text("onetool serve --http")
            with serve_process(tmp_path, "--port", str(info["port"])):
                expect(page.locator("ot-health")).to_contain_text(
                    "Isolation", timeout=TIMEOUT_SECONDS * 1000
                )
                expect(page.locator("p.offline")).to_be_hidden()
                visit.go("run")
                expect(page.locator("ot-editor textarea")).to_have_value("ot.version()")
                page.locator("ot-run .run").click()
                expect(page.locator(".outcome-bar")).to_contain_text(
                    "Done", timeout=TIMEOUT_SECONDS * 1000
                )
                visit.go("runs")
                expect(page.locator(".run-list")).to_contain_text("ot.version()")
            visit.errors[:] = [
                text for text in visit.errors if "ERR_CONNECTION_REFUSED" not in text
            ]


def test_the_ui_asks_for_a_token_and_keeps_it_for_the_tab(browser: Browser, tmp_path: Path) -> None:
    token = new_token()
    configure(
        tmp_path, f"auth: {{tokens: [{{name: me, hash: {hash_token(token)}, agent: default}}]}}"
    )
    with serve_process(tmp_path, "--host", "0.0.0.0") as (_, info):
        url = f"http://127.0.0.1:{info['port']}"
        with open_page(browser, url, screenshot_directory(tmp_path)) as visit:
            page = visit.page
            dialog = page.get_by_role("dialog", name="This server needs a token")
            dialog.get_by_label("Token").fill("ot_wrong")
            dialog.get_by_role("button", name="Sign in").click()
            expect(dialog).to_contain_text("unknown token")
            visit.shoot("token")
            dialog.get_by_label("Token").fill(token)
            dialog.get_by_label("Token").press("Enter")
            expect(page.locator(".tool-row").first).to_be_visible()
            page.reload()
            expect(page.locator(".tool-row").first).to_be_visible()
            visit.go("runs")
            expect(page.locator("ot-runs")).to_contain_text("No runs yet")
            visit.tool("machine.now").get_by_role("tab", name="curl").click()
            expect(page.locator(".snippet:visible")).to_contain_text("Bearer $ONETOOL_TOKEN")
            assert token not in page.content()


def test_a_screen_loads_when_the_network_is_back(visit: Visit) -> None:
    page = visit.page
    page.locator(".tool-row").first.wait_for()
    page.context.set_offline(True)
    visit.go("bundles")
    expect(page.locator("main")).to_contain_text("Cannot reach the server")
    page.context.set_offline(False)
    expect(page.locator("main h1")).to_have_text("Bundles", timeout=TIMEOUT_SECONDS * 1000)
