"""Test the screens Servers and Agents in a real browser, as people use them: alone, and two at a
time.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.proxy_support import HOSTILE
from tests.rest_support import http_draft, new_id, serve_app
from tests.settings_support import EditedHome, serve_home
from tests.support import run_cli
from tests.ui_support import (
    NARROW,
    REVERSED,
    SCRIPT,
    Visit,
    find_violations,
    open_page,
    screenshot_directory,
)

from onetool.settings.edit_history import EditHistory, new_entry
from onetool.util import atomic
from onetool.util.running_servers import create_code

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EditedHome]:
    with serve_home(tmp_path_factory.mktemp("home")) as served:
        yield served


@pytest.fixture
def visit(browser: Browser, home: EditedHome, tmp_path: Path) -> Iterator[Visit]:
    with open_page(browser, home.url, screenshot_directory(tmp_path)) as opened:
        sign_in(opened, home)
        yield opened


def sign_in(visit: Visit, home: EditedHome) -> None:
    visit.go(f"code/{create_code(home.onetool.directories.user)}")
    expect(visit.page.get_by_role("button", name="Sign out")).to_be_visible()


def save(page: Page) -> None:
    """Confirm the difference that is shown."""
    page.locator("dialog.review").get_by_role("button", name="Save").press("Enter")
    expect(page.locator("dialog.review")).to_have_count(0)


def test_a_person_adds_a_server_by_its_command(visit: Visit, home: EditedHome) -> None:
    page = visit.go("servers")
    page.get_by_role("button", name="Add server").press("Enter")
    page.get_by_role("tab", name="Command").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name", exact=True).fill("tools_of_mine")
    dialog.get_by_role("textbox", name="Command").fill(sys.executable)
    dialog.get_by_label("Arguments").fill(f"{HOSTILE}\ngood")
    dialog.get_by_role("button", name="Add row").click()
    dialog.get_by_placeholder("Name").filter(visible=True).fill("API_TOKEN")
    dialog.get_by_placeholder("Value").filter(visible=True).fill("t0ken-of-the-browser")
    dialog.get_by_role("button", name="Review").click()
    review = page.locator("dialog.review")
    expect(review).to_contain_text("+  tools_of_mine:")
    expect(review).not_to_contain_text("t0ken-of-the-browser")
    visit.shoot("servers-review")
    assert "tools_of_mine" not in home.text
    save(page)
    card = page.get_by_role("article", name="tools_of_mine")
    card.get_by_role("button", name="Start tools_of_mine").press("Enter")
    expect(card).to_contain_text("connected")
    expect(card.get_by_role("button", name="Stop tools_of_mine")).to_be_focused()
    card.get_by_text("Tools and output").click()
    expect(card).to_contain_text("tools_of_mine.echo")
    visit.shoot("servers-details")
    answer = home.rest.send(
        "POST", "/api/run", {"command": "tools_of_mine.echo(text='hello')"}
    ).json()
    assert answer["blocks"] == ["hello"]
    assert "${API_TOKEN}" in home.text
    card.get_by_role("switch", name="Enable tools_of_mine").click()
    expect(card).to_contain_text("disabled")
    card.get_by_role("button", name="Remove tools_of_mine").click()
    save(page)
    expect(card).to_have_count(0)
    page.get_by_role("button", name="History").click()
    page.get_by_role("button", name="Undo: Remove server tools_of_mine").click()
    page.locator("dialog.review").last.get_by_role("button", name="Save").click()
    expect(page.locator("dialog.review")).to_have_count(1)
    visit.shoot("settings-history")
    page.keyboard.press("Escape")
    expect(card).to_contain_text("disabled")


def test_a_person_pastes_the_configuration_of_an_assistant(
    visit: Visit, home: EditedHome, tmp_path: Path
) -> None:
    with serve_app(tmp_path / "other") as other:
        url = f"http://127.0.0.1:{other.rest.port}/mcp"
        page = visit.go("servers")
        page.get_by_role("button", name="Add server").click()
        page.get_by_role("tab", name="Paste configuration").click()
        page.get_by_role("textbox", name="Configuration").fill(
            '{"mcpServers": {"far away": {"url": '
        )
        page.get_by_role("button", name="Review").click()
        expect(page.get_by_role("alert").filter(has_text="the pasted text")).to_be_visible()
        page.get_by_role("textbox", name="Configuration").fill(
            json.dumps({"mcpServers": {"far away": {"url": url}}})
        )
        page.get_by_role("button", name="Review").click()
        expect(page.locator("dialog.review")).to_contain_text("renamed to far_away")
        save(page)
        card = page.get_by_role("article", name="far_away")
        card.get_by_role("button", name="Start far_away").click()
        expect(card).to_contain_text("1 tool")
        card.get_by_role("button", name="Stop far_away").click()
        expect(card.get_by_role("button", name="Start far_away")).to_be_visible()
    assert url in home.text


def test_a_person_reads_and_accepts_a_changed_tool(visit: Visit, home: EditedHome) -> None:
    page = visit.go("servers")
    card = page.get_by_role("article", name="moody")
    card.get_by_role("button", name="Start moody").click()
    card.get_by_role("button", name="Stop moody").click()
    (home.home / "changed").touch()
    card.get_by_role("button", name="Start moody").click()
    changes = card.get_by_role("region", name="Changed tools of moody")
    expect(changes).to_contain_text("1 change to accept")
    expect(changes).to_contain_text("What it was given.")
    expect(changes).to_contain_text("delete everything")
    visit.shoot("servers-changes")
    accept = changes.get_by_role("button", name="Accept the changed tools of moody")
    accept.click()
    (home.home / "changed").unlink()
    home.send(
        "POST", "/api/servers/moody/stop"
    )  # the next start lists other tools than the page shows
    page.get_by_role("dialog").get_by_role("button", name="Accept changes").click()
    expect(page.get_by_role("status")).to_contain_text("nothing was accepted")
    expect(changes).to_have_count(0)
    home.send("POST", "/api/servers/moody/stop")
    (home.home / "changed").touch()
    card.get_by_role("button", name="Start moody").click()
    accept.click()
    page.get_by_role("dialog").get_by_role("button", name="Accept changes").click()
    expect(changes).to_have_count(0)
    assert home.get("/api/servers/moody")["tools"][0]["isRejected"] is False


def test_a_person_edits_a_server_and_its_secret(visit: Visit, home: EditedHome) -> None:
    page = visit.go("servers")
    secrets = page.get_by_role("region", name="Secrets")
    secrets.get_by_role("button", name="Add secret").press("Enter")
    for text in ("MOOD_TOKEN", "cheerful-4711"):
        page.keyboard.type(text)
        page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    row = secrets.get_by_role("listitem").filter(has_text="MOOD_TOKEN")
    expect(row).to_be_visible()
    assert "cheerful-4711" in (home.home / ".onetool" / "secrets.yaml").read_text("utf-8")
    assert "cheerful-4711" not in page.content()
    page.get_by_role("button", name="Edit moody").press("Enter")
    dialog = page.get_by_role("dialog", name="Settings of moody")
    dialog.get_by_label("Timeout of a start or a call in seconds").fill("45")
    dialog.get_by_label("Tools to exclude").fill("delete_*\nwipe")
    dialog.get_by_label("New and changed tools").select_option("print a notice")
    dialog.get_by_role("button", name="Add").press("Enter")
    dialog.get_by_role("textbox", name="Name").fill("MOOD")
    dialog.get_by_role("textbox", name="Value").fill("${secret:MOOD_TOKEN}")
    answer = home.send(
        "PATCH", "/api/servers/moody", {"settings": {"idle_timeout": 60}}
    )  # another person
    assert answer.status_code == 200, answer.text
    expect(dialog.locator(".banner")).to_contain_text(
        "token owner changed moody while you were editing it."
    )
    expect(dialog.get_by_label("Seconds without a call")).to_have_value("60")
    visit.shoot("servers-edit")
    dialog.get_by_role("button", name="Review").press("Enter")
    expect(page.locator("dialog.review")).to_contain_text("timeout: 45")
    save(page)
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Edit moody")).to_be_focused()
    values = home.get("/api/servers/moody")["entry"]["values"]
    assert (values["timeout"], values["idle_timeout"], values.get("pin")) == (45, 60, None)
    assert (values["tools"], values["env"]) == (
        {"exclude": ["delete_*", "wipe"]},
        {"MOOD": "${secret:MOOD_TOKEN}"},
    )
    expect(row).to_contain_text("used by server moody")
    visit.shoot("servers-secrets")
    row.get_by_role("button", name="Remove the secret MOOD_TOKEN").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.locator("#notices")).to_contain_text("servers.moody.env.MOOD refers to MOOD_TOKEN")
    changed = {"timeout": None, "idle_timeout": None, "tools": None, "env": None, "pin": "strict"}
    assert home.send("PATCH", "/api/servers/moody", {"settings": changed}).status_code == 200
    expect(row).not_to_contain_text("used by moody")
    row.get_by_role("button", name="Remove the secret MOOD_TOKEN").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)


def test_a_notice_names_the_person_when_the_history_is_written(
    visit: Visit, home: EditedHome
) -> None:
    page = visit.go("servers")
    page.get_by_role("button", name="Edit moody").press("Enter")
    banner = page.get_by_role("dialog", name="Settings of moody").locator(".banner")
    expect(page.get_by_label("Seconds without a call")).to_be_visible()
    before = home.text
    atomic.write(
        home.home / ".onetool" / "onetool.yaml", before.replace("pin: strict", "pin: warn")
    )
    expect(banner).to_contain_text('pin":"warn')
    history = EditHistory(home.onetool.directories.user)
    history.add(new_entry("servers.edit", ["moody"], actor="grace", transport="cli"))
    expect(banner).to_contain_text("grace changed moody while you were editing it.")
    atomic.write(home.home / ".onetool" / "onetool.yaml", before)


def test_a_secret_names_everything_that_uses_it(visit: Visit, home: EditedHome) -> None:
    directory = home.home / ".onetool"
    pack = directory / "tools" / "letters" / "letters_tools.py"
    pack.parent.mkdir(parents=True)
    pack.write_text(
        '"""Letters."""\nsecrets = ["SHARED_KEY"]\n\n\ndef send() -> None:\n    """Send."""\n',
        "utf-8",
    )
    bundle = f"/tools/bundles/{new_id()}"
    tool = http_draft("https://example.com/now", headers={"X-Key": "${secret:SHARED_KEY}"})
    for path, body in [
        (bundle, {"slug": "rain", "displayName": "Rain", "isEnabled": True}),
        (f"{bundle}/tools/now/version/1", tool),
        ("/api/secrets/SHARED_KEY", {"value": "hush-4711"}),
    ]:
        assert home.send("PUT", path, body).is_success
    before = home.text
    more = (
        "llm: {model: small, base_url: 'https://llm.example.com', api_key:"
        " '${secret:SHARED_KEY}'}\n"
    )
    more += "tools: {mail: {secrets: [SHARED_KEY]}}\n"
    atomic.write(
        directory / "onetool.yaml", before + more
    )  # the server watches it and must not see half a file
    assert (
        home.send("PUT", "/api/secrets/SHARED_KEY", {"value": "hush-4712"}).status_code == 200
    )  # reads the files
    row = (
        visit.go("servers")
        .get_by_role("region", name="Secrets")
        .get_by_role("listitem")
        .filter(has_text="SHARED_KEY")
    )
    used = "used by bundle rain, pack letters, pack mail, setting llm.api_key"
    expect(row.first).to_contain_text(used)
    use = row.filter(has_text="rain sends SHARED_KEY to https://example.com")
    use.get_by_role("button", name="Allow").click()
    expect(visit.page.locator("dialog.review")).to_contain_text("+bundle_secrets:")
    save(visit.page)
    use.get_by_role("button", name="No longer allow").click()
    expect(visit.page.locator("dialog.review")).to_contain_text("SHARED_KEY")
    save(visit.page)
    expect(use.get_by_role("button", name="Allow:")).to_be_visible()
    assert (
        f"SHARED_KEY  {directory / 'secrets.yaml'}\n  {used}\n"
        in run_cli(home.home, "secret", "list").stdout
    )
    atomic.write(directory / "onetool.yaml", before)
    shutil.rmtree(pack.parent)
    assert home.send("DELETE", "/api/secrets/SHARED_KEY").status_code == 200


def test_the_focus_survives_answers_that_overtake_each_other(
    visit: Visit, home: EditedHome
) -> None:
    page = visit.go("servers")
    card = page.get_by_role("article", name="moody")
    held: list[Route] = []

    def hold(route: Route) -> None:  # until a second list is requested, which is answered first
        held.append(route)
        if len(held) == 2:
            held[1].continue_()
            held[0].continue_()
        elif len(held) > 2:
            route.continue_()

    card.get_by_role("button", name="Start moody").focus()
    with page.expect_response("**/api/servers/moody/start"):
        page.route("**/api/servers", hold)
        page.keyboard.press("Enter")
    assert (
        home.send(
            "PATCH", "/api/agents/reviewer", {"settings": {"budgets": {"calls": 5}}}
        ).status_code
        == 200
    )
    expect(card.get_by_role("button", name="Stop moody")).to_be_focused()
    page.keyboard.press("Enter")
    expect(card.get_by_role("button", name="Start moody")).to_be_focused()
    assert (
        home.send("PATCH", "/api/agents/reviewer", {"settings": {"budgets": None}}).status_code
        == 200
    )


def test_a_live_update_keeps_what_a_person_is_doing(visit: Visit, home: EditedHome) -> None:
    page = visit.go("servers")
    card = page.get_by_role("article", name="moody")
    card.get_by_text("Tools and output").click()
    card.get_by_role("button", name="Remove moody").press("Enter")
    expect(page.locator("dialog.review")).to_be_visible()
    assert (
        home.send("PATCH", "/api/servers/moody", {"settings": {"enabled": False}}).status_code
        == 200
    )
    expect(card).to_contain_text("disabled")
    page.keyboard.press("Escape")
    expect(card.get_by_role("button", name="Remove moody")).to_be_focused()
    expect(card.get_by_text("Output (stderr)")).to_be_visible()
    assert (
        home.send("PATCH", "/api/servers/moody", {"settings": {"enabled": None}}).status_code == 200
    )
    visit.go("agents/reviewer")
    clients = page.get_by_label("Clients")
    clients.fill("desk\n ")
    clients.evaluate("area => area.setSelectionRange(1, 3)")
    assert (
        home.send(
            "PATCH", "/api/agents/reviewer", {"settings": {"budgets": {"tokens": 9}}}
        ).status_code
        == 200
    )
    expect(page.get_by_label("Tokens of results")).to_have_value("9")
    expect(clients).to_be_focused()
    expect(clients).to_have_value("desk\n ")
    assert clients.evaluate("area => [area.selectionStart, area.selectionEnd]") == [1, 3]
    visit.go("agents/default")
    expect(page.get_by_role("form", name="Settings of default")).to_be_visible()
    expect(clients).not_to_have_value("desk\n ")  # which belongs to the other agent
    assert (
        home.send("PATCH", "/api/agents/reviewer", {"settings": {"budgets": None}}).status_code
        == 200
    )


def test_content_that_is_replaced_keeps_its_state(visit: Visit) -> None:
    """Replace content that is in use, as every screen does for a live update."""
    assert visit.page.evaluate(REPLACE) == {
        "focus": "old text",
        "selection": [1, 4],
        "text": "typed",
        "checked": False,
        "open": True,
        "top": 40,
        "stays": True,
        "nearest": "card",
    }


REPLACE = """async () => {
  const { refill } = await import("/page/core/refill.js");
  const { h } = await import("/page/core/h.js");
  const main = document.querySelector("main");
  const kept = h("button", {}, "kept");
  const card = (text) => h("article", { data: { key: "card" }, tabindex: "-1" },
    h("input", { type: "text", "aria-label": "text", value: text }),
    h("input", { type: "checkbox", "aria-label": "box", checked: true }),
    h("details", {}, h("summary", {}, "more"), "…"),
    h("pre", { tabindex: "0" }, "line\\n".repeat(100)));
  main.replaceChildren(h("button", {}, "before"), kept, card("old"));
  const find = (selector) => main.querySelector(selector);
  find("pre").style.cssText = "height: 50px; overflow: auto";
  find("details").open = true;
  find("pre").scrollTop = 40;
  find("[type=checkbox]").click();
  find("[type=text]").focus();
  document.execCommand("selectAll");
  document.execCommand("insertText", false, "typed");
  find("[type=text]").setSelectionRange(1, 4);
  const replacement = card("new");
  replacement.querySelector("pre").style.cssText = "height: 50px; overflow: auto";
  refill(main, replacement, kept);
  const text = find("[type=text]");
  const found = {
    focus: text === document.activeElement && text === replacement.querySelector("input") ? "old text" : "lost",
    selection: [text.selectionStart, text.selectionEnd],
    text: text.value,
    checked: find("[type=checkbox]").checked,
    open: find("details").open,
    top: find("pre").scrollTop,
  };
  kept.focus();
  refill(main, h("p", {}, "new"), kept, h("p", {}, "end"));
  found.stays = document.activeElement === kept;
  refill(main, card("x"));
  find("summary").focus();
  refill(main, h("article", { data: { key: "card" } }, "gone"));
  found.nearest = document.activeElement.dataset.key;
  return found;
}"""


def test_a_person_changes_an_agent_and_sees_what_it_may_call(
    visit: Visit, home: EditedHome
) -> None:
    page = visit.go("agents/reviewer")
    form, view = page.get_by_role("form", name="Settings of reviewer"), page.locator("ot-call-view")
    expect(view.get_by_role("button", name="deny")).to_be_visible()
    view.get_by_label("Search tools").fill("fs.write")
    verdict = view.locator(".verdicts li", has_text="fs.write").first
    expect(verdict).to_contain_text("deny")
    form.get_by_label("write", exact=True).check()
    form.get_by_label("Policy").select_option("rules")
    rule = form.locator(".rule").first
    rule.get_by_label("Tools, such as gh.*").fill("fs.write")
    rule.get_by_label("Patterns of arguments (JSON)").fill('{"path": "drafts/*"}')
    rule.get_by_label("Decision").select_option("allow")
    form.get_by_role("button", name="Add rule").click()
    form.locator(".rule").nth(1).get_by_label("writes").check()
    expect(verdict).to_contain_text("ask")
    expect(verdict).to_contain_text("depends on arguments")
    view.get_by_label("Call", exact=True).fill("fs.write(path='drafts/a', content='x')")
    view.get_by_role("button", name="Check").click()
    expect(view.locator(".verdict")).to_contain_text("rule 1 of its policy allows")
    visit.shoot("agents")
    form.get_by_label("All allowed hosts").uncheck()
    form.get_by_label("Hosts", exact=True).fill("api.example.com")
    form.get_by_label("Calls").fill("50")
    form.get_by_role("button", name="Review and save").click()
    expect(page.locator("dialog.review")).to_contain_text("drafts/*")
    save(page)
    expect(form.get_by_role("button", name="Review and save")).to_be_disabled()
    saved = home.get("/api/agents/reviewer")["entry"]["values"]
    assert (saved["permissions"], saved["hosts"]) == (["read", "write"], ["api.example.com"])
    assert saved["budgets"] == {"calls": 50}
    assert saved["policy"][0] == {
        "decision": "allow",
        "tools": "fs.write",
        "effect": ["write", "exec"],
        "arguments": {"path": "drafts/*"},
    }
    assert home.audited()[-1]["actor"] == "admin UI"
    assert "# no writing" in home.text


def test_two_people_who_edit_at_once_lose_nothing(
    browser: Browser, visit: Visit, home: EditedHome, tmp_path: Path
) -> None:
    one = visit.go("agents/default")
    with open_page(browser, home.url, screenshot_directory(tmp_path)) as other:
        sign_in(other, home)
        two = other.go("agents/default")
        for page in (one, two):
            expect(page.get_by_role("form", name="Settings of default")).to_be_visible()
        one.get_by_label("Clients").fill("desk")
        one.get_by_role("button", name="Review and save").click()
        expect(one.locator("dialog.review")).to_contain_text("desk")
        two.get_by_label("Calls").fill("7")
        two.get_by_role("button", name="Review and save").click()
        save(two)
        one.locator("dialog.review").get_by_role(
            "button", name="Save"
        ).click()  # the other person was faster
        banner = one.locator(".banner")
        expect(banner).to_contain_text("Your input is kept, and so is the other change.")
        expect(one.get_by_label("Calls")).to_have_value("7")
        expect(one.get_by_label("Clients")).to_have_value("desk")
        visit.shoot("agents-conflict")
        one.get_by_role("button", name="Review and save").click()
        save(one)
        two.get_by_label("Tokens of results").fill("100")
        expect(two.get_by_label("Clients")).to_have_value(
            "desk"
        )  # the change of the other person arrives
        two.get_by_role("button", name="Discard input").click()
    values = home.get("/api/agents/default")["entry"]["values"]
    assert values == {
        "permissions": ["read", "network"],
        "clients": ["desk"],
        "budgets": {"calls": 7},
    }


def test_a_preset_makes_an_agent_read_only(visit: Visit, home: EditedHome) -> None:
    page = visit.go("agents")
    page.get_by_role("button", name="Add agent").click()
    page.get_by_label("Name", exact=True).fill("watcher")
    page.get_by_role("button", name="Next").click()
    page.get_by_role("checkbox", name="execute programs").check()
    page.get_by_role("button", name="read-only").click()
    page.get_by_role("button", name="Review and save").click()
    save(page)
    expect(page.locator(".agent-list")).to_contain_text("watcher")
    values = home.get("/api/agents/watcher")["entry"]["values"]
    assert values == {"permissions": ["read", "network"], "policy": "read-only"}
    check = {"call": "fs.write('a', 'b')"}
    assert home.send("POST", "/api/agents/watcher/check", check).json()["decision"] == "deny"
    assert home.send("DELETE", "/api/agents/watcher").status_code == 200


def test_hostile_names_and_values_are_shown_as_text(visit: Visit) -> None:
    page = visit.go("agents")
    page.get_by_role("button", name="Add agent").click()
    page.get_by_label("Name", exact=True).fill(SCRIPT[:90].replace("/", ""))
    page.get_by_role("button", name="Next").click()
    page.get_by_label("Clients").fill(f"{SCRIPT}\n{REVERSED}")
    page.get_by_role("button", name="Review and save").click()
    expect(page.locator("dialog.review")).to_contain_text("window.hacked")
    save(page)
    expect(page.locator(".agent-list")).to_contain_text("<script>window.hacked")
    page.get_by_role("button", name="Add agent").click()
    page.get_by_label("Name", exact=True).fill(REVERSED)
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Review and save").click()
    expect(page.locator("#notices")).to_contain_text("invisible characters")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0


def test_an_admin_cannot_add_a_program(browser: Browser, home: EditedHome, tmp_path: Path) -> None:
    before = home.text
    with open_page(browser, home.url, screenshot_directory(tmp_path), place="servers") as visit:
        page = visit.page
        page.get_by_role("button", name="Use a token").click()
        page.get_by_role("textbox", name="Token").fill("ot_admin-token-of-ada")
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("article", name="moody")).to_be_visible()
        page.get_by_role("button", name="Add server").click()
        page.get_by_role("tab", name="Command").click()
        page.get_by_role("textbox", name="Name", exact=True).fill("shell")
        page.get_by_role("textbox", name="Command").fill("sh")
        page.get_by_role("button", name="Review").click()
        expect(
            page.get_by_role("alert").filter(has_text="needs a token of scope 'owner'")
        ).to_be_visible()
    assert home.text == before


@pytest.mark.parametrize("screen", ["servers", "agents"])
def test_the_screens_are_accessible_and_fit(
    browser: Browser, home: EditedHome, tmp_path: Path, screen: str
) -> None:
    with open_page(browser, home.url, screenshot_directory(tmp_path), bypass_csp=True) as visit:
        sign_in(visit, home)
        page = visit.go(screen)
        expect(page.locator("article, form.card").first).to_be_visible()
        if screen == "agents":
            expect(page.locator(".verdicts li").first).to_be_visible()
        assert find_violations(page) == []
        page.emulate_media(color_scheme="dark")
        assert find_violations(page, ["color-contrast"]) == []
        visit.shoot(f"{screen}-dark")
        page.set_viewport_size(NARROW)
        visit.shoot(f"{screen}-narrow")
        wide = (
            "Math.max(document.documentElement.scrollWidth,"
            f" document.querySelector('ot-{screen}').scrollWidth)"
        )
        assert page.evaluate(wide) <= NARROW["width"]
        if screen == "servers":
            page.get_by_role("button", name="Edit moody").click()
            visit.shoot("servers-edit-narrow")
            assert find_violations(page) == []
            assert (
                page.locator("dialog").evaluate("dialog => dialog.scrollWidth - dialog.clientWidth")
                <= 0
            )
