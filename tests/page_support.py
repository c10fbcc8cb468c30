"""The admin UI in a real browser: Chromium, a server with tools of every kind, and screenshots for review.

`ONETOOL_SCREENSHOTS` is the directory for screenshots; by default, a temporary directory of pytest.
"""

import base64
import contextlib
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.conftest import find_program
from tests.proxy_support import CACHE, install_once
from tests.rest_support import ServedApp, serve_app

from onetool import ToolContext, tool
from onetool._tool import Tool
from onetool.schema import JSON, Schema
from onetool.system import get_system

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
WIDE: Final = {"width": 1360, "height": 820}
TIMEOUT_SECONDS: Final = 15  # seconds: two cores, a browser and a server
GRANTED: Final = {"agents": {"default": {"permissions": ["read", "write", "network", "exec"]}}}
SCRIPT: Final = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
REVERSED: Final = "\u202egnp.exe\u2066 hidden\u2069"
EVERYTHING: Final[JSON] = {
    "type": "object",
    "required": ["title", "kind", "place", "maybe"],
    "additionalProperties": False,
    "properties": {
        "title": {"type": "string", "minLength": 3, "maxLength": 40, "description": "What it is called"},
        "kind": {"enum": ["small", "large", 3, None], "description": "One of a few values"},
        "count": {"type": "integer", "minimum": 1, "maximum": 10, "default": 2},
        "ratio": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5},
        "loud": {"type": "boolean", "default": False},
        "when": {"type": "string", "format": "date"},
        "mail": {"type": "string", "format": "email"},
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
        "maybe": {"type": ["string", "null"]},
        "labels": {"type": "array", "items": {"type": "string"}, "maxItems": 3, "uniqueItems": True},
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
        "free": {"description": "Whatever you like"},
        "extra": {"type": "object", "additionalProperties": {"type": "integer"}},
        "node": {"$ref": "#/$defs/Node"},
    },
    "$defs": {
        "Point": {
            "type": "object",
            "required": ["x", "y"],
            "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
        },
        "Node": {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}}},
    },
}


# --- tools -----------------------------------------------------------------------------------------------------------


class _Echo:
    async def invoke(self, tool: Tool, args: Mapping[str, Any], _context: ToolContext) -> Any:
        return {"tool": tool.name, "args": dict(args)}


@tool("shop.find")
def _find(words: str, limit: int = 5) -> list[dict[str, Any]]:
    """Find what is on the shelves.

    Args:
        words: What to look for
        limit: How many at most
    """
    return [{"name": f"{words} {n}", "price": n * 1.5, "inStock": n % 2 == 0} for n in range(1, limit + 1)]


@tool("shop.tree")
def _tree() -> dict[str, Any]:
    """Data inside data."""
    return {"shop": {"shelves": [{"name": "left", "boxes": [1, 2, 3]}, {"name": "right", "boxes": []}]}, "open": True}


@tool("shop.picture")
def _picture() -> dict[str, str]:
    """A small red square."""
    return {"mimeType": "image/png", "data": base64.b64encode(red_square()).decode()}


@tool("shop.pictures")
def _pictures(context: ToolContext) -> list[Any]:
    """Words, a picture that the server keeps, and one that is written down."""
    kept = get_system(context).media.put(red_square(), "image/png", context.agent_id)
    return ["Two squares:", {"type": "image", "media": kept}, _picture()]


@tool("shop.text")
def _text(size: int = 20) -> str:
    """As many letters as you like."""
    return "x" * size


@tool("shop.fail")
def _fail() -> None:
    """Always goes wrong."""
    raise ValueError("the shop is closed")


@tool("shop.wait")
def _wait(seconds: float, context: ToolContext) -> str:
    """Takes its time and says what it is doing."""
    for step in range(int(seconds * 10)):
        if context.progress:
            context.progress(f"step {step + 1}")
        time.sleep(0.1)
    return "waited"


@tool("hostile.result")
def _hostile() -> list[dict[str, str]]:
    """Markup and marks of direction in what it gives."""
    return [
        {"<b>key</b>": SCRIPT, REVERSED: "javascript:window.hacked=1"},
        {"<b>key</b>": REVERSED, REVERSED: "\0\x1b[31m"},
    ]


def make_hostile_schema() -> JSON:
    """Return a small schema that expands without end, and is partly invalid."""
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
            "odd": {"type": 5, "properties": [], "required": "x", "enum": "abc", "items": 7, "anyOf": {}},
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
    """Yield the tools of a small shop, and hostile ones."""
    yield from (_find, _tree, _picture, _pictures, _text, _fail, _wait, _hostile)
    yield Tool("shop.everything", _Echo(), Schema.from_json(EVERYTHING), description="A field of every sort.")
    yield Tool("hostile.schema", _Echo(), Schema.from_json(make_hostile_schema()), description="Endless.")
    yield Tool(
        "hostile.words",
        _Echo(),
        Schema.from_json(
            {"type": "object", "properties": {SCRIPT: {"type": "string", "description": SCRIPT, "default": SCRIPT}}}
        ),
        description=f"{SCRIPT} {REVERSED}\n\n{'long ' * 1000}",
        returns=SCRIPT,
        example=SCRIPT,
    )


def make_tools(count: int) -> Iterable[Tool]:
    """Yield many tools, in packs of a hundred."""
    schema = Schema.from_json({"type": "object", "properties": {"id": {"type": "integer"}, "text": {"type": "string"}}})
    for number in range(count):
        name = f"bulk{number // 100:03}.action_{number % 100:02}"
        yield Tool(
            name,
            _Echo(),
            schema,
            description=f"Does number {number} of many things, and answers with what it was given.",
        )


def red_square() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xc0\x30\x30" * 48) * 48
    head = struct.pack(">IIBBBBB", 48, 48, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# --- the browser -----------------------------------------------------------------------------------------------------


@dataclass
class Visit:
    """An open tab, with its errors and requests."""

    page: Page
    url: str
    folder: Path
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def go(self, place: str) -> Page:
        """Go to another screen, like a link."""
        self.page.evaluate("place => { location.hash = place }", f"#/{place}")
        return self.page

    def tool(self, name: str) -> Page:
        """Open the screen of a tool."""
        self.go(f"tools/{name}")
        self.page.locator("ot-tool h2", has_text=name).wait_for()
        self.page.locator("ot-tester").wait_for()
        return self.page

    def shoot(self, name: str) -> None:
        self.page.evaluate("document.fonts.ready.then(() => new Promise(requestAnimationFrame))")
        self.page.screenshot(path=self.folder / f"{name}.png")

    @property
    def foreign(self) -> list[str]:
        return [address for address in self.requests if not address.startswith((self.url, "data:", "blob:"))]


@contextlib.contextmanager
def launch_chromium() -> Iterator[Browser]:
    program = find_program("chromium")
    expect.set_options(timeout=TIMEOUT_SECONDS * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(SWITCHES))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def open_page(browser: Browser, url: str, folder: Path, place: str = "", **options: Any) -> Iterator[Visit]:
    """Open the admin UI in a new tab, without errors and without requests to other hosts."""
    context: BrowserContext = browser.new_context(viewport=options.pop("viewport", WIDE), **options)
    context.set_default_timeout(TIMEOUT_SECONDS * 1000)
    page = context.new_page()
    visit = Visit(page, url, folder)
    page.on("pageerror", lambda error: visit.errors.append(str(error)))
    page.on("console", lambda said: visit.errors.append(said.text) if _is_wrong(said.type, said.text) else None)
    page.on("request", lambda request: visit.requests.append(request.url))
    try:
        page.goto(f"{url}/#/{place}")
        yield visit
    finally:
        context.close()
    assert visit.errors == [], visit.errors
    assert visit.foreign == []


def _is_wrong(kind: str, text: str) -> bool:
    """Return whether a console message is an error. Chromium logs one for every error response."""
    return kind in {"error", "warning"} and "Failed to load resource" not in text


def screenshot_directory(otherwise: Path) -> Path:
    folder = Path(os.environ.get("ONETOOL_SCREENSHOTS") or otherwise)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def install_axe() -> Path:
    """Install axe-core and return its script, which checks accessibility."""
    folder = CACHE / "axe"
    install_once(
        folder, [find_program("npm"), "install", "--no-audit", "--no-fund", "--prefix", str(folder), AXE], [AXE]
    )
    return folder / "node_modules" / "axe-core" / "axe.min.js"


@contextlib.contextmanager
def serve_shop(folder: Path, tools: Iterable[object] = (), **settings: Any) -> Iterator[ServedApp]:
    """Start a server with the tools of the shop, whose default agent has all permissions."""
    with serve_app(folder, {**GRANTED, **settings}, [*shop_tools(), *tools]) as served:
        yield served
