"""The admin UI in a real browser: Chromium, a server with tools of every kind, and screenshots.

`ONETOOL_SCREENSHOTS` is the directory for screenshots; the default is the temporary directory of
the test.
"""

import base64
import contextlib
import json
import os
import shutil
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright
from tests.conftest import find_program
from tests.proxy_support import CACHE, install_once
from tests.rest_support import ServedApp, serve_app

from onetool import ToolContext, tool
from onetool.core.schema import Schema
from onetool.core.tool import Tool
from onetool.sources.system import get_system
from onetool_child.json_types import JsonObject

SWITCHES: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
AXE: Final = "axe-core@4.14.0"
WIDE: Final[ViewportSize] = {"width": 1360, "height": 820}
NARROW: Final[ViewportSize] = {"width": 320, "height": 640}
TIMEOUT_SECONDS: Final = 40  # of a machine that is busy with other work
MAX_TASK_MS: Final = 100.0  # of processor time
GRANTED: Final = {"agents": {"default": {"permissions": ["read", "write", "network", "exec"]}}}
SETTLED: Final = """() => !document.querySelector("[aria-busy=true]")
  && !document.getAnimations().some((each) => each instanceof CSSTransition)"""
SCRIPT: Final = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
REVERSED: Final = "\u202egnp.exe\u2066 hidden\u2069"
EVERYTHING: Final[JsonObject] = {
    "type": "object",
    "required": ["title", "kind", "place", "maybe"],
    "additionalProperties": False,
    "properties": {
        "title": {
            "type": "string",
            "minLength": 3,
            "maxLength": 40,
            "description": "Name of the item",
        },
        "kind": {"enum": ["small", "large", 3, None], "description": "One of a few values"},
        "count": {"type": "integer", "minimum": 1, "maximum": 10, "default": 2},
        "ratio": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5},
        "loud": {"type": "boolean", "default": False},
        "when": {"type": "string", "format": "date"},
        "mail": {"type": "string", "format": "email"},
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
        "maybe": {"type": ["string", "null"]},
        "labels": {
            "type": "array",
            "items": {"type": "string"},
            "maxItems": 3,
            "uniqueItems": True,
        },
        "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
        "place": {
            "type": "object",
            "required": ["city"],
            "properties": {"city": {"type": "string"}, "point": {"$ref": "#/$defs/Point"}},
        },
        "target": {
            "oneOf": [
                {"title": "By number", "type": "integer"},
                {
                    "title": "By name",
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}},
                },
            ]
        },
        "free": {"description": "Any value"},
        "extra": {"type": "object", "additionalProperties": {"type": "integer"}},
        "node": {"$ref": "#/$defs/Node"},
    },
    "$defs": {
        "Point": {
            "type": "object",
            "required": ["x", "y"],
            "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
        },
        "Node": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}},
        },
    },
}


# --- tools ----------------------------------------------------------------------------------------


class _Echo:
    async def invoke(self, tool: Tool, args: Mapping[str, Any], _context: ToolContext) -> Any:
        return {"tool": tool.name, "args": dict(args)}


@tool("shop.find")
def _find(words: str, limit: int = 5) -> list[dict[str, Any]]:
    """Find items on the shelves.

    Args:
        words: Search text
        limit: Maximum number of items
    """
    return [
        {"name": f"{words} {n}", "price": n * 1.5, "inStock": n % 2 == 0}
        for n in range(1, limit + 1)
    ]


@tool("shop.tree")
def _tree() -> dict[str, Any]:
    """Return nested data."""
    return {
        "shop": {"shelves": [{"name": "left", "boxes": [1, 2, 3]}, {"name": "right", "boxes": []}]},
        "open": True,
    }


@tool("shop.picture")
def _picture() -> dict[str, str]:
    """Return a small red square."""
    return {"mimeType": "image/png", "data": base64.b64encode(red_square()).decode()}


@tool("shop.pictures")
def _pictures(context: ToolContext) -> list[Any]:
    """Return text, an image by handle and an image as base64 data."""
    kept = get_system(context).media.put(red_square(), "image/png", context.agent_id)
    return ["Two squares:", {"type": "image", "media": kept}, _picture()]


@tool("shop.text")
def _text(size: int = 20) -> str:
    """Return a string of this length."""
    return "x" * size


@tool("shop.fail")
def _fail() -> None:
    """Always fail."""
    raise ValueError("the shop is closed")


@tool("shop.wait")
def _wait(seconds: float, context: ToolContext) -> str:
    """Wait and report progress."""
    for step in range(int(seconds * 10)):
        context.progress(f"step {step + 1}")
        time.sleep(0.1)
    return "waited"


@tool("hostile.result")
def _hostile() -> list[dict[str, str]]:
    """Return markup, bidirectional characters and control characters."""
    return [
        {"<b>key</b>": SCRIPT, REVERSED: "javascript:window.hacked=1"},
        {"<b>key</b>": REVERSED, REVERSED: "\0\x1b[31m"},
    ]


def make_hostile_schema() -> JsonObject:
    """Return a small schema with endless references and invalid parts."""
    levels = {
        f"Level{n}": {
            "allOf": [{"$ref": f"#/$defs/Level{n + 1}"}] * 2,
            "anyOf": [{"$ref": f"#/$defs/Level{n + 1}"}] * 2,
        }
        for n in range(40)
    }
    row = {"type": "array", "minItems": 20, "items": {"$ref": "#/$defs/Row"}}
    return {
        "type": "object",
        "required": ["deep", "rows", "self"],
        "properties": {
            "deep": {"$ref": "#/$defs/Level0"},
            "rows": {"$ref": "#/$defs/Row"},
            "self": {"$ref": "#/$defs/Self"},
            "choice": {"enum": [f"option {n}" for n in range(20_000)]},
            "odd": {
                "type": 5,
                "properties": [],
                "required": "x",
                "enum": "abc",
                "items": 7,
                "anyOf": {},
            },
            "nothing": False,
            "anything": True,
            "__proto__": {"type": "string"},
            "constructor": {"type": "string", "pattern": "(a+)+$", "default": {"a": 1}},
            **{f"property{n}": {"type": "string"} for n in range(2000)},
        },
        "$defs": {
            **levels,
            "Level40": {"type": "string"},
            "Row": row,
            "Self": {
                "type": "object",
                "required": ["one", "two"],
                "properties": {"one": {"$ref": "#/$defs/Self"}, "two": {"$ref": "#/$defs/Self"}},
            },
            "Loop": {"$ref": "#/$defs/Loop"},
        },
    }


def shop_tools() -> Iterable[object]:
    """Yield the tools of a shop, and hostile tools."""
    yield from (_find, _tree, _picture, _pictures, _text, _fail, _wait, _hostile)
    yield Tool(
        "shop.everything",
        _Echo(),
        Schema.from_json(EVERYTHING),
        description="A field of every type.",
    )
    yield Tool(
        "hostile.schema", _Echo(), Schema.from_json(make_hostile_schema()), description="Endless."
    )
    yield Tool(
        "hostile.words",
        _Echo(),
        Schema.from_json(
            {
                "type": "object",
                "properties": {
                    SCRIPT: {"type": "string", "description": SCRIPT, "default": SCRIPT}
                },
            }
        ),
        description=f"{SCRIPT} {REVERSED}\n\n{'long ' * 1000}",
        returns=SCRIPT,
        example=SCRIPT,
    )


def make_tools(count: int) -> Iterable[Tool]:
    """Yield tools in packs of 100."""
    schema = Schema.from_json(
        {"type": "object", "properties": {"id": {"type": "integer"}, "text": {"type": "string"}}}
    )
    for number in range(count):
        name = f"bulk{number // 100:03}.action_{number % 100:02}"
        yield Tool(
            name,
            _Echo(),
            schema,
            description=f"Performs action {number} and returns its arguments.",
        )


def red_square() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + b"\xc0\x30\x30" * 48) * 48
    head = struct.pack(">IIBBBBB", 48, 48, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


# --- the browser ----------------------------------------------------------------------------------


@dataclass
class Visit:
    """An open tab and its errors."""

    page: Page
    url: str
    folder: Path
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def go(self, place: str) -> Page:
        """Open a screen by its route."""
        self.page.evaluate("place => { location.hash = place }", f"#/{place}")
        return self.page

    def tool(self, name: str) -> Page:
        """Open a tool and wait for its tester."""
        self.go(f"tools/{name}")
        self.page.locator("ot-tool h2", has_text=name).wait_for()
        self.page.locator("ot-tester").wait_for()
        return self.page

    def shoot(self, name: str) -> None:
        self.page.evaluate("document.fonts.ready.then(() => new Promise(requestAnimationFrame))")
        self.page.screenshot(path=self.folder / f"{name}.png")

    @property
    def foreign(self) -> list[str]:
        return [
            address
            for address in self.requests
            if not address.startswith((self.url, "data:", "blob:"))
        ]


def find_browser() -> str:
    """Return the path of Chromium, if possible of its headless shell, which takes about half the
    processor time.
    """
    return shutil.which("chromium-headless-shell") or find_program("chromium")


@contextlib.contextmanager
def launch_chromium() -> Iterator[Browser]:
    program = find_browser()
    expect.set_options(timeout=TIMEOUT_SECONDS * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(SWITCHES))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def open_page(
    browser: Browser, url: str, folder: Path, place: str = "", **options: Any
) -> Iterator[Visit]:
    """Open the UI in a new tab. Errors in it, and requests to other hosts, fail the test."""
    context: BrowserContext = browser.new_context(viewport=options.pop("viewport", WIDE), **options)
    context.set_default_timeout(TIMEOUT_SECONDS * 1000)
    page = context.new_page()
    visit = Visit(page, url, folder)
    page.on("pageerror", lambda error: visit.errors.append(str(error)))
    page.on(
        "console",
        lambda message: (
            visit.errors.append(message.text) if _is_error(message.type, message.text) else None
        ),
    )
    page.on("request", lambda request: visit.requests.append(request.url))
    try:
        page.goto(f"{url}/#/{place}")
        yield visit
    finally:
        context.close()
    assert visit.errors == [], visit.errors
    assert visit.foreign == []


@contextlib.contextmanager
def check_tasks(visit: Visit) -> Iterator[None]:
    """Fail if a task of the page takes longer than 100 ms of processor time, which other programs
    do not lengthen.
    """
    browser = visit.page.context.browser
    assert browser is not None
    browser.start_tracing(page=visit.page, categories=["toplevel"])
    try:
        yield
    finally:
        events = json.loads(browser.stop_tracing())["traceEvents"]
    names = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in events
        if each["name"] == "thread_name"
    }
    tasks = [
        each["tdur"] / 1000
        for each in events
        if each["name"].endswith("::RunTask")
        and "tdur" in each
        and names.get((each["pid"], each["tid"])) == "CrRendererMain"
    ]
    assert len(tasks) > 10, "the browser recorded no tasks"
    assert max(tasks) < MAX_TASK_MS, sorted(tasks)[-5:]


def _is_error(kind: str, text: str) -> bool:
    """Tell whether a console message is an error.

    Rejected requests are logged as "Failed to load resource".
    """
    return kind in {"error", "warning"} and "Failed to load resource" not in text


def screenshot_directory(default: Path) -> Path:
    folder = Path(os.environ.get("ONETOOL_SCREENSHOTS") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def install_axe() -> Path:
    """Return the path of axe, which checks accessibility. Installs it on first use."""
    folder = CACHE / "axe"
    install_once(
        folder,
        [find_program("npm"), "install", "--no-audit", "--no-fund", "--prefix", str(folder), AXE],
        [AXE],
    )
    return folder / "node_modules" / "axe-core" / "axe.min.js"


def find_violations(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """Return the problems that axe finds with these rules, or with all if there are none."""
    page.wait_for_function(SETTLED)  # content that is being replaced is shown with less contrast
    page.add_script_tag(path=install_axe())
    chosen = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    result: dict[str, Any] = page.evaluate("chosen => axe.run(document, chosen)", chosen)
    return [
        f"{one['id']} ({one['impact']}): {[node['html'][:200] for node in one['nodes'][:3]]}"
        for one in result["violations"]
        if one["impact"] in {"serious", "critical", "moderate"}
    ]


@contextlib.contextmanager
def serve_shop(folder: Path, tools: Iterable[object] = (), **settings: Any) -> Iterator[ServedApp]:
    """Start a server with the tools of the shop, whose default agent has all permissions."""
    with serve_app(folder, {**GRANTED, **settings}, [*shop_tools(), *tools]) as served:
        yield served
