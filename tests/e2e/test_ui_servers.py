"""Test the screen Servers in a real browser: signing in to servers and out of them, with hostile
names.
"""

from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from playwright.sync_api import Browser, expect
from tests.authorization_server import AuthorizationServer, authorization_server
from tests.rest_support import ServedApp
from tests.ui_support import (
    NARROW,
    REVERSED,
    SCRIPT,
    Visit,
    find_violations,
    open_page,
    screenshot_directory,
    serve_shop,
)

from onetool.util.running_servers import create_code

pytestmark = pytest.mark.slow
HOSTILE = f"<img src=x onerror='window.hacked = 1'>{REVERSED}{'long' * 30}"
ESCAPED = "<img src=x onerror='window.hacked = 1'>\\u{202e}gnp.exe"


@pytest.fixture(scope="module")
def server() -> Iterator[AuthorizationServer]:
    token = jwt.encode({"name": SCRIPT}, "k" * 32)
    with authorization_server(token_response={"id_token": token}) as running:
        yield running


@pytest.fixture
def shop(tmp_path: Path, server: AuthorizationServer) -> Iterator[ServedApp]:
    gh = {"url": server.url, "auth": "oauth", "accounts": ["work", "home"]}
    machine = {"grant": "client_credentials", "issuer": server.issuer}
    robot = {"client_id": "robot", "client_secret": "hush-hush", **machine}
    servers = {
        "gh": gh,
        HOSTILE: {"url": f"{server.url}?x", "auth": "oauth"},
        "robot": {"url": server.url, "auth": {"type": "oauth", **robot}},
    }
    with serve_shop(tmp_path, servers=servers) as served:
        yield served


def open_servers(visit: Visit, shop: ServedApp) -> None:
    """Sign in to the admin UI and open the screen with the keyboard."""
    visit.go(f"code/{create_code(shop.onetool.directories.user)}")
    expect(visit.page.get_by_role("button", name="Sign out")).to_be_visible()
    expect(visit.page.locator("ot-tools")).to_be_visible()
    visit.page.keyboard.press("4")
    expect(visit.page.locator("ot-servers section.sign-in")).to_have_count(3)


def test_a_person_signs_in_to_servers_and_out(
    browser: Browser, shop: ServedApp, server: AuthorizationServer, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{shop.rest.port}"
    with open_page(browser, url, screenshot_directory(tmp_path), place="servers") as visit:
        page = visit.page
        expect(page.locator("ot-servers")).to_contain_text("onetool ui")
        expect(page.get_by_role("button", name="Sign in to")).to_have_count(0)
        open_servers(visit, shop)
        home = page.get_by_role("region", name="gh · home")
        expect(home).to_contain_text("not signed in")
        home.get_by_role("button", name="Sign in to gh · home").press("Enter")
        expect(page.locator("body")).to_contain_text("You are signed in to gh (account home)")
        assert page.url.startswith(f"{url}/oauth/callback?")
        page.get_by_role("link", name="Servers in the admin UI").click()
        expect(home).to_contain_text(SCRIPT)  # the name of the user
        expect(home).to_contain_text("refreshed automatically")
        expect(page.get_by_role("region", name="gh · work")).to_contain_text("not signed in")
        answer = shop.rest.send(
            "POST", "/api/run", {"command": "ot.account('gh', 'home').whoami()"}
        ).json()
        assert answer["blocks"] == ["ada"]
        hostile = page.get_by_role("region", name=ESCAPED)
        hostile.get_by_role("button", name="Sign in to").click()
        expect(page.locator("body")).to_contain_text("You are signed in to <img src=x")
        page.get_by_role("link", name="Servers in the admin UI").click()
        expect(hostile.get_by_role("button", name="Sign out of")).to_be_visible()
        visit.shoot("servers")
        assert page.locator("main img, main script").count() == 0
        assert page.evaluate("window.hacked") is None
        home.get_by_role("button", name="Sign out of gh · home").press("Enter")
        page.get_by_role("dialog").get_by_role("button", name="Sign out").click()
        expect(home).to_contain_text("not signed in")
        expect(home.get_by_role("button", name="Sign in to gh · home")).to_be_focused()
        assert server.counts["revoke"] == 1
        visit.requests[:] = [
            each for each in visit.requests if not each.startswith(f"{server.issuer}/authorize?")
        ]


def test_the_screen_is_accessible_and_fits(
    browser: Browser, shop: ServedApp, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{shop.rest.port}"
    with open_page(
        browser, url, screenshot_directory(tmp_path), place="servers", bypass_csp=True
    ) as visit:
        open_servers(visit, shop)
        assert find_violations(visit.page) == []
        visit.page.emulate_media(color_scheme="dark")
        assert find_violations(visit.page, ["color-contrast"]) == []
        visit.shoot("servers-dark")
        visit.page.set_viewport_size(NARROW)
        visit.shoot("servers-narrow")
        wide = (
            "Math.max(document.documentElement.scrollWidth,"
            " document.querySelector('ot-servers').scrollWidth)"
        )
        assert visit.page.evaluate(wide) <= NARROW["width"]
