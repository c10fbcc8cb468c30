"""Test the code editor in a real browser, as a person writes a script: completion, help, errors at
their line, keys.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.rest_support import ServedApp
from tests.ui_support import (
    NARROW,
    REVERSED,
    SCRIPT,
    Visit,
    check_tasks,
    find_violations,
    make_tools,
    open_page,
    screenshot_directory,
    serve_shop,
)

pytestmark = pytest.mark.slow
TOOLS = 10_000
PASTE = (
    "(area, text) => { area.value = text; area.dispatchEvent(new InputEvent('input', { bubbles:"
    " true })) }"
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    with serve_shop(tmp_path_factory.mktemp("shop"), make_tools(TOOLS)) as served:
        yield served


@pytest.fixture
def visit(browser: Browser, shop: ServedApp, tmp_path: Path) -> Iterator[Visit]:
    with open_page(
        browser, f"http://127.0.0.1:{shop.rest.port}", screenshot_directory(tmp_path), "run"
    ) as found:
        found.page.locator("ot-editor textarea").fill("")
        yield found


def area(page: Page) -> Locator:
    return page.locator("ot-editor textarea")


def type_keys(page: Page, *parts: str) -> None:
    """Type text; parts in angle brackets are keys, such as `<Enter>`."""
    for part in parts:
        if part.startswith("<") and len(part) > 1:
            page.keyboard.press(part.strip("<>"))
        else:
            page.keyboard.type(part)


def select(page: Page, name: str) -> None:
    """Wait for an option and accept the first one, which must be it."""
    expect(page.locator("[role=option][aria-selected=true] .name")).to_have_text(name)
    page.keyboard.press("Enter")


def test_a_script_is_written_with_help_fixed_and_run(visit: Visit) -> None:
    page = visit.page
    type_keys(page, "sho")
    select(page, "shop")
    type_keys(page, ".fin")
    select(page, "find")
    type_keys(page, "(")
    expect(area(page)).to_have_value("shop.find()")
    help_line = page.locator(".signature-line")
    expect(help_line.locator("strong")).to_have_text("words: str")
    expect(help_line).to_contain_text("Search text")
    type_keys(page, "'lamp', li")
    select(page, "limit=")
    expect(help_line.locator("strong")).to_have_text("limit: int = 5")
    expect(help_line).to_contain_text("Maximum number of items")
    visit.shoot("editor-signature")
    type_keys(page, "2)")
    expect(area(page)).to_have_value("shop.find('lamp', limit=2)")
    type_keys(
        page,
        "<Home>",
        "found = ",
        "<End>",
        "<Enter>",
        "for one in found:",
        "<Enter>",
        "print(one['nam'])",
    )
    expect(area(page)).to_have_value(
        "found = shop.find('lamp', limit=2)\nfor one in found:\n    print(one['nam'])"
    )
    page.keyboard.press("Control+Enter")
    problem = page.locator(".code-problem")
    expect(problem).to_contain_text("Line 3")
    expect(problem).to_contain_text("KeyError: 'nam'")
    expect(page.locator(".line-of-code.marked")).to_have_text("    print(one['nam'])")
    expect(area(page)).to_have_attribute("aria-invalid", "true")
    assert (
        problem.get_attribute("id") in (area(page).get_attribute("aria-describedby") or "").split()
    )
    visit.shoot("editor-problem")
    page.keyboard.press("Control+Home")
    type_keys(page, "# lamps", "<Enter>")
    expect(problem).to_contain_text("Line 4")
    page.keyboard.press("F8")
    assert page.evaluate("getSelection().toString()") == "    print(one['nam'])"
    type_keys(page, "<End>", "<ArrowLeft>", "<ArrowLeft>", "<ArrowLeft>", "e")
    expect(problem).to_be_hidden()
    expect(area(page)).not_to_have_attribute("aria-invalid", "true")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".run-output")).to_contain_text("lamp 2")


def test_syntax_errors_are_marked_and_reached_by_keyboard(visit: Visit) -> None:
    page = visit.page
    area(page).fill("x = 1\nif x\n    print(x)")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".code-problem")).to_contain_text("SyntaxError: expected ':'")
    expect(page.locator(".line-of-code.marked")).to_have_text("if x")
    for key in ("Escape", "Tab", "Enter"):
        page.keyboard.press(key)
    assert page.evaluate("[document.activeElement.localName, getSelection().toString()]") == [
        "textarea",
        "if x",
    ]


def test_values_and_nested_keys_come_from_the_schema(visit: Visit) -> None:
    page = visit.page
    type_keys(page, "shop.everything(kind=")
    expect(page.locator("[role=option] .name")).to_have_text(['"small"', '"large"', "3", "None"])
    type_keys(page, '"la')
    select(page, "large")
    type_keys(page, '", loud=T')
    select(page, "True")
    type_keys(page, ', place={"')
    expect(page.locator("[role=option] .name")).to_have_text(["city", "point"])
    type_keys(page, "po")
    select(page, "point")
    type_keys(page, '": {"')
    expect(page.locator("[role=option] .name")).to_have_text(["x", "y"])
    select(page, "x")
    type_keys(page, '": 1}}, points=[{"')
    select(page, "x")
    expect(area(page)).to_have_value(
        'shop.everything(kind="large", loud=True, place={"point": {"x": 1}}, points=[{"x}])'
    )
    area(page).fill("")
    type_keys(page, '"a string" # shop.')
    expect(page.locator(".backdrop .py-string")).to_have_text('"a string"')
    expect(page.locator(".backdrop .py-comment")).to_have_text("# shop.")
    page.wait_for_timeout(100)
    expect(page.locator(".completions")).to_be_hidden()


def test_keys_edit_lines_and_every_edit_can_be_undone(visit: Visit) -> None:
    page = visit.page
    code = "for n in range(3):\n    print(n)"
    type_keys(page, "for n in range(3):", "<Enter>", "print(n)")
    expect(area(page)).to_have_value(code)
    type_keys(page, "<Control+a>", "<Control+/>")
    expect(area(page)).to_have_value("# for n in range(3):\n#     print(n)")
    page.keyboard.press("Control+/")
    expect(area(page)).to_have_value(code)
    page.keyboard.press("Tab")
    expect(area(page)).to_have_value("    for n in range(3):\n        print(n)")
    page.keyboard.press("Shift+Tab")
    expect(area(page)).to_have_value(code)
    type_keys(page, "<Control+End>", "<Enter>", "values = [", "<Enter>")
    expect(area(page)).to_have_value(f"{code}\n    values = [\n        \n    ]")
    for _ in range(100):
        if not area(page).input_value():
            break
        page.keyboard.press("Control+z")
    expect(area(page)).to_have_value("")
    type_keys(page, "f(", "<Backspace>", " '(' [1]", "<ArrowLeft>", "]")
    expect(area(page)).to_have_value("f '(' [1]")
    for key in ("Escape", "Tab"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.textContent") == "Run"


def test_ten_thousand_tools_and_a_long_script_never_block_the_page(visit: Visit) -> None:
    page = visit.page
    lines = "\n".join(
        f"value_{n} = shop.find(words='item {n}', limit={n})  # note" for n in range(600)
    )
    area(page).evaluate(PASTE, lines)
    page.keyboard.press("Control+Home")
    visit.requests.clear()
    with check_tasks(visit):
        type_keys(page, "bulk")
        expect(page.locator("[role=option]")).to_have_count(50)
        type_keys(page, "099.action_9")
        expect(page.locator("[role=option]")).to_have_count(10)
        select(page, "action_90")
    assert not [url for url in visit.requests if "/api/packs" in url or "/api/tools?" in url]
    assert len([url for url in visit.requests if "/api/completions" in url]) < 20


def test_hostile_names_are_shown_as_text(visit: Visit) -> None:
    page = visit.page
    type_keys(page, "hostile.schema(deep={'")
    type_keys(page, "<Escape>", "<Control+a>", "hostile.words(")
    expect(page.locator(".signature-line")).to_contain_text("<script>window.hacked")
    type_keys(page, "<Control+a>", "hostile.schema(choice='option 1")
    expect(page.locator("[role=option]").first).to_be_visible()
    type_keys(
        page,
        "<Control+a>",
        f"raise ValueError({SCRIPT + REVERSED!r})",
        "<Escape>",
        "<Control+Enter>",
    )
    expect(page.locator(".code-problem")).to_contain_text("\\u202e")
    assert page.evaluate("window.hacked") is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_editor_is_accessible_and_fits(
    browser: Browser, shop: ServedApp, tmp_path: Path, scheme: str
) -> None:
    url = f"http://127.0.0.1:{shop.rest.port}"
    with open_page(
        browser,
        url,
        screenshot_directory(tmp_path),
        "run",
        viewport=NARROW,
        color_scheme=scheme,
        bypass_csp=True,
    ) as visit:
        page = visit.page
        area(page).fill("x = 1\n1 / 0  # " + "long " * 20)
        page.keyboard.press("Control+Enter")
        expect(page.locator(".code-problem")).to_contain_text("Line 2")
        type_keys(page, "<Control+End>", "<Enter>", "shop.find(li")
        expect(page.locator("[role=option]")).to_have_count(1)
        assert find_violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        visit.shoot(f"editor-{scheme}")
