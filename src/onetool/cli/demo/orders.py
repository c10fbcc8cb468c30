"""The HTTP API of the demonstration, which serves the orders of a small shop on loopback, and its OpenAPI document."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

ORDERS = [
    {"id": number, "customer": ("Ada", "Alan", "Grace")[number % 3], "total": 12.5 + number, "paid": number % 4 != 0}
    for number in range(1, 25)
]
UNUSED_URL = "http://127.0.0.1:9"
TEXT = {"type": "string"}
LIST: dict[str, Any] = {
    "operationId": "list-orders",
    "summary": "List the orders of a customer.",
    "parameters": [{"name": "customer", "in": "query", "required": True, "schema": TEXT}],
    "responses": {"200": {"description": "The orders"}},
}
ARCHIVED: dict[str, Any] = {"type": "object", "required": ["text"], "properties": {"text": TEXT}}
ARCHIVE: dict[str, Any] = {
    "operationId": "archive-log",
    "summary": "Keep the text of a log.",
    "requestBody": {"required": True, "content": {"application/json": {"schema": ARCHIVED}}},
    "responses": {"200": {"description": "How much was kept"}},
}


def document(address: str) -> bytes:
    """Return the OpenAPI document of the API."""
    described = {
        "openapi": "3.1.0",
        "info": {"title": "Orders", "version": "1.0", "description": "The orders of a small shop."},
        "servers": [{"url": address}],
        "paths": {"/orders": {"get": LIST}, "/archive": {"post": ARCHIVE}},
    }
    return json.dumps(described).encode()


@contextmanager
def run_server() -> Iterator[str]:
    """Start the server and yield its URL, or an unused URL if it cannot listen on loopback."""
    try:
        server = _Server(("127.0.0.1", 0), _Shop)
    except OSError:
        yield UNUSED_URL
        return
    thread = Thread(target=server.serve_forever, args=(0.05,), name="demo-orders", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Ignore errors of connections."""


class _Shop(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        customers = parse_qs(urlsplit(self.path).query).get("customer", [])
        self._answer([order for order in ORDERS if order["customer"] in customers])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({"kept_lines": len(json.loads(body)["text"].splitlines()), "kept_bytes": len(body)})

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing, because the demonstration uses the terminal."""
