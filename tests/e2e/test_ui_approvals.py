"""Test the screen Approvals in a real browser: signing in, answering, and live updates."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect
from tests.rest_support import ServedApp
from tests.support import eventually
from tests.ui_support import REVERSED, SCRIPT, open_page, screenshot_directory, serve_shop

from onetool import tool
from onetool.util.running_servers import create_code
from onetool.util.token_ids import hash_token

pytestmark = pytest.mark.slow
TOKEN = "ot_phone"


@tool("mail.send", permissions=["write"])
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent to {to}: {len(text)}"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    settings = {
        "agents": {"default": {"permissions": ["read", "write"], "policy": "ask-writes"}},
        "approvals": {"wait": 0.1},
        "auth": {"tokens": [{"name": "phone", "hash": hash_token(TOKEN), "scope": "approve"}]},
    }
    with serve_shop(tmp_path_factory.mktemp("shop"), [send_mail], **settings) as served:
        yield served


def ask(shop: ServedApp, code: str) -> str:
    (block,) = shop.rest.send("POST", "/api/run", {"command": code}).json()["blocks"]
    return str(block.split()[2])


def get_state(shop: ServedApp, run: str) -> str:
    return str(shop.rest.get(f"/api/runs/{run}")["state"])


def test_a_person_signs_in_and_answers_calls(
    browser: Browser, shop: ServedApp, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{shop.rest.port}"
    first = ask(shop, f"mail.send(to='ada', text={SCRIPT + REVERSED!r})")
    with open_page(browser, url, screenshot_directory(tmp_path), place="approvals") as visit:
        page = visit.page
        expect(page.locator("ot-approvals")).to_contain_text("Sign in to approve calls")
        expect(page.locator("ot-approvals")).to_contain_text("onetool ui")
        visit.go(f"code/{create_code(shop.onetool.directories.user)}")
        expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        expect(page.locator("ot-tools")).to_be_visible()
        assert page.evaluate("location.hash") == "#/tools", "the code is not in the history"
        visit.go("approvals")
        shown = page.locator(f"section[data-run='{first}']")
        expect(shown).to_contain_text("Agent default asks to make 1 call")
        expect(shown).to_contain_text('to: "ada"')
        expect(shown).to_contain_text("\\u202e")
        expect(page.locator("nav .count")).to_have_text("1")
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("document.cookie") == ""
        visit.shoot("approvals")
        second = ask(shop, "for n in range(3):\n    mail.send(to='bob', text=str(n))")
        expect(page.locator("nav .count")).to_have_text("2")  # without a reload
        shown.get_by_role("button", name="Reject…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("not to Ada")
        dialog.get_by_role("button", name="Reject", exact=True).click()
        expect(shown).to_have_count(0)
        assert eventually(lambda: get_state(shop, first) == "failed")
        assert shop.rest.get(f"/api/runs/{first}")["recorded"][0]["reason"] == "not to Ada"
        page.reload()  # the session stays
        page.locator(f"section[data-run='{second}']").get_by_role(
            "button", name="Allow similar…"
        ).click()
        expect(dialog.get_by_label("Number of further calls")).to_have_value("1")
        expect(dialog).to_contain_text('"0"')
        dialog.get_by_label("text").check()
        dialog.get_by_label("Patterns (JSON)").fill('{"to": "b*"}')
        dialog.get_by_label("Number of further calls").fill("2")
        dialog.get_by_role("button", name="Approve and allow").click()
        expect(page.locator("ot-approvals")).to_contain_text("No calls wait")
        expect(page.locator("nav .count")).to_be_hidden()
        assert eventually(lambda: get_state(shop, second) == "done")
        calls = shop.rest.get(f"/api/runs/{second}")["recorded"]
        assert [call["by"].partition(" g_")[0] for call in calls] == ["admin UI", "grant", "grant"]


def test_a_denial_that_arrives_after_the_sign_in_is_ignored(
    browser: Browser, shop: ServedApp, tmp_path: Path
) -> None:
    held: list[Route] = []
    url = f"http://127.0.0.1:{shop.rest.port}"
    with open_page(browser, url, screenshot_directory(tmp_path)) as visit:
        visit.page.route("**/api/approvals", lambda route: held.append(route), times=1)  # noqa: PLW0108 - has attributes
        visit.go("approvals")
        eventually(lambda: visit.page.evaluate("1") and held)
        visit.go(f"code/{create_code(shop.onetool.directories.user)}")
        expect(visit.page.get_by_role("button", name="Sign out")).to_be_visible()
        visit.go("approvals")
        held[0].continue_()
        expect(visit.page.locator("ot-approvals")).to_contain_text("No calls wait")


def test_a_token_of_scope_approve_signs_in(
    browser: Browser, shop: ServedApp, tmp_path: Path
) -> None:
    run = ask(shop, "mail.send(to='eve', text='hello')")
    url = f"http://127.0.0.1:{shop.rest.port}"
    with open_page(browser, url, screenshot_directory(tmp_path), place="approvals") as visit:
        page = visit.page
        page.get_by_role("button", name="Use a token").click()
        page.get_by_role("dialog").get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("nav .count")).to_have_text("1")
        page.locator(f"section[data-run='{run}']").get_by_role("button", name="Approve").click()
        expect(page.locator("ot-approvals")).to_contain_text("No calls wait")
        assert eventually(lambda: get_state(shop, run) == "done")
        visit.go("tools")
        expect(page.locator(".tool-row").first).to_be_visible()
