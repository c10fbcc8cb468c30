"""Test the screens Runs, Tokens, Audit and Health as the lead of a team would use them, with
100,000 runs.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.rest_support import make_client, serve_process
from tests.support import configure, eventually, run_cli
from tests.ui_support import (
    NARROW,
    REVERSED,
    SCRIPT,
    Visit,
    check_tasks,
    find_violations,
    open_page,
    screenshot_directory,
)

from onetool.settings.access import new_token
from onetool.state.sqlite_database import Transaction
from onetool.state.stats.database import StatisticsFile
from onetool.state.stats.record import RUN_COLUMNS
from onetool.util.token_ids import hash_token

pytestmark = pytest.mark.slow
BOSS, LAPTOP, SPARE = new_token(), new_token(), new_token()
MANY = 100_000
SETTINGS = f"""
agents:
  default: {{permissions: [read, write, network]}}
  analyst: {{permissions: [read, write]}}
  {json.dumps("zoe<b>")}: {{permissions: [read]}}
projects: {{reports: missing-reports}}
auth:
  tokens:
    - {{name: boss, hash: {hash_token(BOSS)}, agent: default, scope: admin}}
    - {{name: laptop, hash: {hash_token(LAPTOP)}, agent: analyst}}
    - {{name: spare, hash: {hash_token(SPARE)}, agent: analyst}}
"""
SLOW = """\
import time
print("working")
time.sleep(0.4)
total = machine.disk()["total"]
raise ValueError("the report of May is missing")
"""
SCROLL = """async () => {
  const list = document.querySelector(".run-list ot-list");
  for (let step = 0; step < 60; step += 1) {
    list.scrollTop += 2000;
    await new Promise(requestAnimationFrame);
  }
}"""


def fill_history(file: Path) -> None:
    """Create a history of many runs, the last one an hour ago."""
    file.parent.mkdir(parents=True)
    columns = {
        "id": "printf('%032x', i)",
        "agent": "'agent' || (i % 7)",
        "session": "'s'",
        "seconds": "(i % 9973) / 1000.0",
        "error_type": "CASE WHEN i % 10 = 0 THEN 'timeout' END",
        "round_trips": "1",
        "answer_tokens": "10",
        "result_tokens": "20",
        "at": f"{time.time() - MANY - 3600} + i",
        "kind": "'run'",
        "name": "'run'",
        "client": "'editor'",
        "code": "'total = ' || i || char(10) || 'shop.find(words=\"plum\")'",
        "calls": "1",
        "failed": "0",
        "actor": "'token old' || (i % 5)",
        "token_id": "printf('%032x', i % 5)",
        "directory": "'/work/project'",
        "cost": "0",
    }
    assert set(columns) == set(RUN_COLUMNS)

    def insert(database: Transaction) -> None:
        numbers = (
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})"
        )
        database.execute(
            f"INSERT INTO runs ({', '.join(columns)}) {numbers} SELECT"
            f" {', '.join(columns.values())} FROM n"
        )

    StatisticsFile(file).write(insert)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    configure(home, SETTINGS)
    fill_history(home / ".onetool" / "stats" / "stats.db")
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[str]:
    with serve_process(home) as (_, info):
        yield str(info["url"])


@pytest.fixture(scope="module")
def laptop(server: str) -> Iterator[httpx2.Client]:
    with make_client(server) as client:
        client.headers["authorization"] = f"Bearer {LAPTOP}"
        yield client


def sign_in(page: Page, token: str = BOSS) -> None:
    page.evaluate("token => sessionStorage.setItem('onetool.token', JSON.stringify(token))", token)
    page.reload()


@pytest.fixture
def visit(browser: Browser, server: str, tmp_path: Path) -> Iterator[Visit]:
    with open_page(
        browser, server, screenshot_directory(tmp_path), accept_downloads=True, bypass_csp=True
    ) as found:
        sign_in(found.page)
        yield found


def run(client: httpx2.Client, code: str) -> dict[str, Any]:
    response = client.post("/api/run", json={"command": code})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def check_layout(visit: Visit, name: str) -> None:
    """Look for problems in both color schemes and on a narrow screen."""
    page, found = visit.page, list[str]()
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        visit.shoot(f"{scheme}-{name}")
        found += [
            f"{scheme}: {problem}"
            for problem in find_violations(page, ["color-contrast"] if scheme == "dark" else [])
        ]
    wide = page.viewport_size
    page.set_viewport_size(NARROW)
    visit.shoot(f"narrow-{name}")
    width = page.evaluate(
        "Math.max(document.documentElement.scrollWidth, document.querySelector('main').scrollWidth)"
    )
    assert wide is not None
    page.set_viewport_size(wide)
    assert found == [], "\n".join(found)
    assert width <= NARROW["width"], name


def test_the_slowest_run_of_an_agent_says_why_it_failed(
    visit: Visit, laptop: httpx2.Client
) -> None:
    for code in ("machine.disk()", "machine.cpu()", SLOW):
        run(laptop, code)
    page = visit.go("runs")
    page.get_by_label("Agent").fill("analyst")
    page.get_by_label("Order").select_option("Slowest first")
    page.get_by_label("State").select_option("failed")
    expect(page.locator(".run-row")).to_have_count(1)
    page.locator(".run-row").click()
    detail = page.locator(".run-detail")
    expect(detail.locator(".error-text")).to_contain_text(
        "ValueError: the report of May is missing"
    )
    expect(detail.locator(".line[data-error]")).to_contain_text("raise ValueError")
    expect(detail).to_contain_text("working")
    expect(detail.locator(".facts")).to_contain_text("token laptop")
    detail.locator(".call-line summary", has_text="machine.disk").click()
    expect(detail.locator(".call-values")).to_contain_text("GiB")
    check_layout(visit, "run-detail")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export as JSON Lines").click()
    (line,) = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    exported = json.loads(line)
    assert (exported["error"], exported["errorLine"], exported["printed"]) == (
        "execution_error",
        5,
        "working\n",
    )
    assert json.loads(exported["calls"][0]["arguments"]) == {"unit": "GiB"}


def test_a_hundred_thousand_runs_are_listed_searched_and_updated_smoothly(
    visit: Visit, laptop: httpx2.Client
) -> None:
    page = visit.go("runs")
    page.locator(".run-row:not(.waiting)").first.wait_for()
    search = page.get_by_label("Search code, errors and ids")
    with check_tasks(visit):
        page.evaluate(SCROLL)
        expect(page.locator(".run-row").last).to_be_visible()
        assert page.locator(".run-row").count() < 60
        search.fill("total = 4242\n")
        search.fill("= 54242")
        expect(page.locator(".run-row")).to_have_count(1)
        search.fill("")
        expect(page.locator(".run-row").nth(5)).to_be_visible()
        active = page.locator(".run-row.active .label")
        page.get_by_role("grid", name="Runs").press("ArrowDown")
        before = active.inner_text()
        run(laptop, "x = 'live update'")
        expect(page.locator(".run-row", has_text="live update")).to_have_count(1)
        expect(active).to_have_text(before)  # the row that Enter would open
    visit.shoot("many-runs")


def test_a_token_is_created_used_and_revoked_with_a_trace(visit: Visit, server: str) -> None:
    page = visit.go("tokens")
    expect(page.locator("tr[data-token=laptop]")).to_contain_text("use")
    page.get_by_role("button", name="Create token").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Scope").locator("option")).to_have_count(3)  # without owner
    dialog.get_by_label("Name").fill("no spaces allowed")
    dialog.get_by_role("button", name="Create token").click()
    expect(dialog).to_contain_text("invalid token name")
    dialog.get_by_label("Name").fill("tablet")
    dialog.get_by_label("Agent").select_option("analyst")
    dialog.get_by_role("button", name="Create token").click()
    shown = page.get_by_role("dialog", name="Token tablet")
    token = shown.locator("code").inner_text()
    visit.shoot("token-created")
    shown.get_by_role("button", name="Close").last.click()
    with make_client(server) as client:
        client.headers["authorization"] = f"Bearer {token}"
        assert run(client, "machine.cpu()")["isError"] is False
        expect(page.locator("tr[data-token=tablet]")).to_contain_text("analyst")
        assert client.get("/api/tokens").status_code == 403
        assert {each["actor"] for each in client.get("/api/runs").json()["runs"]} == {
            "token tablet"
        }
        check_layout(visit, "tokens")
        page.get_by_role("button", name="Revoke tablet").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(page.locator("tr[data-token=tablet]")).to_have_count(0)
        assert client.post("/api/run", json={"command": "1"}).status_code == 401
    visit.go("audit")
    revoked = page.locator(".audit li", has_text="token.revoke").first
    expect(revoked).to_contain_text("token boss")
    expect(revoked).to_contain_text("tablet")
    page.get_by_label("Tool or action").fill("token.create")
    expect(page.locator(".audit li").first).to_contain_text("token.create")
    page.locator(".audit summary").first.click()
    expect(page.locator(".audit .call-values").first).to_contain_text("analyst")
    check_layout(visit, "audit")
    visit.go("tokens")
    row = page.locator("table", has_text="Model (estimated)").locator("tr", has_text="token tablet")
    expect(row.locator("td").nth(2)).to_have_text("1")  # calls


def test_the_command_line_and_the_ui_see_each_others_changes(
    visit: Visit, home: Path, server: str, laptop: httpx2.Client
) -> None:
    run(laptop, "machine.cpu()")
    page = visit.go("tokens")
    expect(page.locator("tr[data-token=spare]")).to_be_visible()
    assert run_cli(home, "token", "revoke", "spare").returncode == 0
    assert '"token.revoke"' in (home / ".onetool" / "logs" / "audit.jsonl").read_text(
        encoding="utf-8"
    )
    with make_client(server) as client:
        client.headers["authorization"] = f"Bearer {SPARE}"
        assert eventually(lambda: client.get("/api/runs").status_code == 401)
    expect(page.locator("tr[data-token=spare]")).to_have_count(0)
    lines = run_cli(
        home,
        "runs",
        "list",
        "--json-lines",
        "--agent",
        "agent3",
        "--order",
        "slowest",
        "--limit",
        "2",
    )
    assert [json.loads(line)["durationMs"] for line in lines.stdout.splitlines()] == [
        9972.0,
        9971.0,
    ]
    spent = json.loads(run_cli(home, "stats", "--by", "token", "--json").stdout)["spending"]
    assert {row["actor"] for row in spent} >= {"token laptop"}


def test_a_client_is_disconnected_and_problems_are_fixed(
    visit: Visit, server: str, home: Path, laptop: httpx2.Client
) -> None:
    run(laptop, SLOW)
    page = visit.go("health")
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": SCRIPT, "version": "1"},
    }
    with make_client(server) as client:
        client.headers.update(
            {"authorization": f"Bearer {LAPTOP}", "accept": "application/json, text/event-stream"}
        )
        opened = client.post(
            "/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        )
        client.headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert client.post("/mcp", json=listing).status_code == 200
        page.get_by_role("button", name="Refresh").click()
        connected = page.locator(".clients li", has_text="<script>")
        expect(connected).to_contain_text("token laptop")
        expect(page.locator(".errors li", has_text="report of May")).to_be_visible()
        check_layout(visit, "health")
        connected.get_by_role("button", name="Disconnect").click()
        page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
        expect(connected).to_have_count(0)
        assert client.post("/mcp", json=listing).status_code == 404
    problem = page.locator(".problems li", has_text="missing-reports")
    problem.get_by_role("button", name="Fix it").click()
    expect(problem).to_have_count(0)
    assert (home / "missing-reports").is_dir()


def test_hostile_values_are_shown_as_text(visit: Visit, laptop: httpx2.Client) -> None:
    code = f"print({SCRIPT!r})\njson.parse(json={json.dumps(SCRIPT + REVERSED)!r})\nmachine.disk(unit={SCRIPT!r})"
    run(laptop, code)
    page = visit.go("runs")
    page.locator(".run-row", has_text="<script>").first.click()
    expect(page.locator(".run-detail .error-text").first).to_contain_text("<script>")
    for summary in page.locator(".call-line summary").all():
        summary.click()
    expect(page.locator(".run-detail")).to_contain_text("\\u{202e}")
    visit.go("health")
    expect(page.locator(".errors")).to_contain_text("<script>")
    assert page.evaluate("window.hacked") is None


def test_everything_is_reachable_by_keyboard_and_says_who_is_signed_in(visit: Visit) -> None:
    page = visit.go("tools")
    names = page.locator(".head nav a").all_inner_texts()
    expected = [
        "Tools",
        "Run",
        "Bundles",
        "Servers",
        "Agents",
        "Tokens",
        "Runs",
        "Approvals",
        "Audit",
        "Health",
        "Statistics",
    ]
    assert names == expected
    expect(page.locator(".account")).to_contain_text("Signed in as token boss")
    page.set_viewport_size(NARROW)
    page.locator(".brand").focus()
    for name in names:
        page.keyboard.press("Tab")
        link = page.locator(".head nav a:focus")
        expect(link).to_have_text(re.compile(name))
        expect(link).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.locator("ot-statistics .cards").wait_for()
    visit.shoot("narrow-statistics")
    with page.expect_event("load"):
        page.get_by_role("button", name="Sign out").click()
    visit.go("tokens")
    expect(page.locator("ot-tokens")).to_contain_text("needs the scope admin")
