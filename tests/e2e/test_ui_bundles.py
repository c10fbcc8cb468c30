"""Test the screen Bundles in a real browser: import and update APIs, edit and test tools, two
people at once.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.http_support import Site, page as web_page, serve_site
from tests.rest_support import Rest, make_client, serve_process
from tests.ui_support import (
    NARROW,
    REVERSED,
    SCRIPT,
    Visit,
    find_violations,
    open_page,
    screenshot_directory,
)

from onetool.util.running_servers import create_code
from onetool_child.json_types import JsonObject

pytestmark = pytest.mark.slow
SECRET: Final = "k-91c2aa07f3"  # a value that no page may show


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve_site() as found:
        found.pages["/pets"] = web_page(b'[{"name": "Rex"}]', ("Content-Type", "application/json"))
        yield found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / ".onetool").mkdir()
    (home / ".onetool" / "onetool.yaml").write_text(
        "# ours\nhttp: {allowPrivateAddresses: true}\nagents: {default: {permissions: [read, write,"
        " network]}}\n"
    )
    return home


@pytest.fixture(scope="module")
def rest(home: Path) -> Iterator[Rest]:
    with serve_process(home) as (_, started), make_client(started["url"]) as client:
        yield Rest(client)


OpenTab = Callable[..., Visit]


@pytest.fixture
def open_tab(browser: Browser, rest: Rest, home: Path, tmp_path: Path) -> Iterator[OpenTab]:
    """Return a function that opens the screen in a new tab, signed in."""
    with ExitStack() as stack:

        def open_signed_in(**options: Any) -> Visit:
            url = f"http://127.0.0.1:{rest.port}"
            visit = stack.enter_context(
                open_page(browser, url, screenshot_directory(tmp_path), **options)
            )
            visit.go(f"code/{create_code(home / '.onetool')}")
            visit.page.get_by_role("button", name="Sign out").wait_for()
            visit.go("bundles")
            visit.page.locator("ot-bundles h1").wait_for()
            return visit

        yield open_signed_in


@pytest.fixture
def visit(open_tab: OpenTab) -> Visit:
    return open_tab()


def document(site: Site, title: str, version: str = "1", **changes: JsonObject | None) -> str:
    """Return an API of the site with hostile texts.

    `changes` replace operations by path; None removes one.
    """
    color = {"name": "color", "in": "query", "description": SCRIPT, "schema": {"type": "string"}}
    operation = {
        "operationId": "listPets",
        "summary": f"{SCRIPT}{REVERSED}",
        "parameters": [color],
        "responses": {},
    }
    old = {"operationId": "oldPets", "description": SCRIPT, "responses": {}}
    paths = {"pets": {"get": operation}, "old": {"get": old}, **changes}
    scheme = {"type": "apiKey", "in": "header", "name": "X-Key", "description": SCRIPT}
    return json.dumps(
        {
            "openapi": "3.0.0",
            "info": {"title": title, "version": version, "description": SCRIPT},
            "servers": [{"url": f"http://127.0.0.1:{site.port}"}],
            "components": {"securitySchemes": {"key": scheme}},
            "security": [{"key": []}],
            "paths": {f"/{path}": item for path, item in paths.items() if item is not None},
        }
    )


def import_document(rest: Rest, text: str, **query: str) -> str:
    """Import a document over REST and return the ID of the bundle."""
    answer = rest.client.post("/api/import", params=query, content=text)
    assert answer.is_success, answer.text
    return str(answer.json()["bundle"]["id"])


def paste(page: Page, opener: str, text: str) -> Locator:
    """Open the dialog of an import, paste a document, and return the dialog with its difference."""
    page.get_by_role("button", name=opener, exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Or paste an OpenAPI document").fill(text)
    dialog.get_by_role("button", name="Continue").click()
    return dialog


def test_an_api_is_imported_with_hosts_and_secrets_and_called(
    visit: Visit, site: Site, home: Path
) -> None:
    page, host = visit.page, f"127.0.0.1:{site.port}"
    dialog = paste(page, "Import", document(site, f"Zoo {SCRIPT}"))
    expect(dialog).to_contain_text("2 tools to import")
    dialog.get_by_label("Slug").fill("zoo")
    dialog.get_by_label("Slug").press("Enter")
    dialog.get_by_label("Slug").blur()
    expect(dialog.get_by_role("textbox", name="ZOO_KEY")).to_be_visible()
    expect(dialog.get_by_label(host, exact=True)).to_be_checked()
    expect(dialog.get_by_label(f"zoo sends ZOO_KEY to http://{host}")).to_be_checked()
    dialog.get_by_role("textbox", name="ZOO_KEY").fill(SECRET)
    visit.shoot("import")
    dialog.get_by_role("button", name="Import", exact=True).click()
    expect(dialog).to_have_count(0)
    settings = (home / ".onetool" / "onetool.yaml").read_text()
    assert settings.startswith("# ours\n")
    assert host in settings
    page.locator("ot-bundle .name").first.click()
    page.get_by_role("button", name="Try it").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("color").fill("red & blue")
    dialog.get_by_role("button", name="Run").click()
    expect(dialog.locator(".request pre")).to_contain_text(
        f"GET http://{host}/pets?color=red%20%26%20blue"
    )
    expect(dialog.locator(".request pre")).to_contain_text("X-Key: ${secret:ZOO_KEY}")
    expect(dialog.locator(".result table")).to_contain_text("Rex")
    visit.shoot("tool-tester")
    assert (site.last.header("x-key"), site.last.query["color"]) == (SECRET, ["red & blue"])
    assert SECRET not in page.content()
    assert page.evaluate("window.hacked") is None


def test_a_tool_is_edited_saved_and_tested(visit: Visit, site: Site, rest: Rest) -> None:
    bundle, page = import_document(rest, document(site, "Farm")), visit.page
    visit.go(f"bundles/{bundle}/list-pets/1")
    editor = page.locator("ot-tool-editor")
    editor.get_by_label("Response selector").fill("[0].name")
    expect(editor.get_by_label("Version *")).to_have_value("2")
    editor.get_by_role("button", name="Save as new version").click()
    expect(page.locator("ot-bundle .tool-row")).to_have_count(3)
    visit.go(f"bundles/{bundle}/list-pets/2")
    page.get_by_role("button", name="Try it").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Run").click()
    expect(dialog.locator(".output")).to_contain_text("FARM_KEY")
    dialog.get_by_role("button", name="Close").click()
    versions = rest.get("/api/tools/farm.list-pets")["versions"]
    assert [one["version"] for one in versions] == [
        "1",
        "2",
    ], "a test of the stored version stores nothing"


def test_an_api_is_updated_after_its_difference_was_shown(
    visit: Visit, site: Site, rest: Rest
) -> None:
    bundle, page = import_document(rest, document(site, "Park")), visit.page
    stored = rest.get(f"/tools/bundles/{bundle}/tools/list-pets/version/1")
    ours = {key: stored[key] for key in ("isEnabled", "type", "httpImpl", "argSchema")} | {
        "displayName": "Ours"
    }
    path = f"/tools/bundles/{bundle}/tools/list-pets/version/ours"
    assert rest.send("PUT", path, ours).status_code == 201
    size = {"name": "size", "in": "query", "required": True, "schema": {"type": "integer"}}
    newer = {"operationId": "listPets", "parameters": [size], "responses": {}}
    text = document(
        site,
        "Park",
        pets={"get": newer},
        old=None,
        new={"post": {"operationId": "addPet", "responses": {}}},
    )
    visit.go(f"bundles/{bundle}")
    dialog = paste(page, "Update from document", text)
    expect(dialog).to_contain_text("1 new tool")
    expect(dialog).to_contain_text("1 tool is not in the document")
    expect(dialog).to_contain_text("list-pets ours → 1-2")
    expect(dialog).to_contain_text('{"type": "integer"} (required)')
    expect(dialog.locator("del", has_text="<script>").first).to_be_visible()
    visit.shoot("difference")
    rest.send("PATCH", f"/tools/bundles/{bundle}/tools/old-pets/version/1", {"isEnabled": False})
    dialog.get_by_role("button", name="Update", exact=True).click()
    expect(dialog).to_contain_text("The bundle has changed meanwhile")
    dialog.get_by_role("button", name="Update", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(page.locator("ot-bundle ot-list")).to_contain_text("addPet")
    assert rest.get("/api/tools/park.list-pets")["inputSchema"]["properties"].keys() == {"color"}
    dialog = paste(page, "Update from document", text)
    dialog.get_by_label("Replace version ours").check()
    dialog.get_by_role("button", name="Update", exact=True).click()
    expect(dialog).to_have_count(0)
    assert rest.get("/api/tools/park.list-pets")["inputSchema"]["properties"].keys() == {"size"}


def test_two_people_see_each_others_changes(open_tab: OpenTab, rest: Rest, site: Site) -> None:
    bundle = import_document(rest, document(site, "Duo"))
    ada, bob = (open_tab() for _ in range(2))
    for visit in (ada, bob):
        visit.go(f"bundles/{bundle}/list-pets/1")
        visit.page.get_by_label("Version *").wait_for()
    bob.page.get_by_label("Response selector").fill("[1]")
    ada.page.get_by_label("Response selector").fill("[0]")
    ada.page.get_by_role("button", name="Save as new version").click()
    conflict = bob.page.locator(".conflict")
    expect(conflict).to_contain_text("Somebody else has saved version 2")
    expect(conflict.locator("del", has_text="[0]")).to_be_visible()
    expect(conflict.locator("ins", has_text="[1]")).to_be_visible()
    bob.shoot("conflict")
    expect(bob.page.get_by_label("Response selector")).to_have_value("[1]")
    expect(bob.page.get_by_label("Version *")).to_have_value("3")
    bob.page.get_by_role("button", name="Save as new version").click()
    expect(ada.page.locator("ot-bundle .tool-row")).to_have_count(4)
    for visit, text in ((ada, "Ada's"), (bob, "Bob's")):
        visit.go(f"bundles/{bundle}")
        visit.page.get_by_role("button", name="Edit", exact=True).click()
        visit.page.get_by_role("dialog").get_by_label("Description").fill(text)
    ada.page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(bob.page.locator("ot-bundle .description")).to_contain_text("Ada's")
    dialog = bob.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.locator(".conflict del")).to_contain_text("Ada's")
    expect(dialog.get_by_label("Description")).to_have_value("Bob's")
    dialog.get_by_role("button", name="Save").click()
    expect(ada.page.locator("ot-bundle .description")).to_contain_text("Bob's")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_dialogs_are_accessible_and_fit(
    open_tab: OpenTab, rest: Rest, site: Site, scheme: str
) -> None:
    bundle = import_document(rest, document(site, f"Fit {scheme}"))
    visit = open_tab(viewport=NARROW, color_scheme=scheme, bypass_csp=True)
    page = visit.page
    page.get_by_role("button", name="Import", exact=True).press("Enter")
    assert find_violations(page) == []
    page.keyboard.press("Escape")
    visit.go(f"bundles/{bundle}")
    newer = document(
        site, "Fit", pets={"get": {"operationId": "listPets", "responses": {}}}, old=None
    )
    dialog = paste(page, "Update from document", newer)
    expect(dialog).to_contain_text("changed tool")
    expect(dialog).not_to_contain_text("null")
    assert find_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    assert dialog.evaluate("one => one.scrollWidth <= one.clientWidth + 1")
    visit.shoot(f"difference-{scheme}")
    page.keyboard.press("Escape")
    visit.go(f"bundles/{bundle}/list-pets/1")
    page.get_by_role("button", name="Try it").click()
    page.get_by_role("dialog").get_by_role("button", name="Run").click()
    page.locator(".request pre").wait_for()
    page.locator(".output > *").first.wait_for()
    assert find_violations(page) == []
    visit.shoot(f"tool-tester-{scheme}")
