"""An upstream server that sends oversized responses. The argument `kind` names the flood.

It serves MCP over stdio, or over HTTP if a port is passed: `flooding.py 0` prints the port that it
has chosen.
"""

import gzip
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOL = {
    "name": "flood",
    "description": "Answer with a flood.",
    "inputSchema": {
        "type": "object",
        "properties": {"kind": {"type": "string"}},
        "required": ["kind"],
    },
}
LISTS = ",".join(["[]"] * 300_000)
BLOCK = '{"type":"text","text":""}'


def _content(text: str) -> str:
    return json.dumps({"content": [{"type": "text", "text": text}]})


RESULTS: dict[str, str] = {
    "small": _content("small"),
    "large": _content("x" * (9 << 20)),
    "escapes": _content("\n" * (5 << 20)),
    "values": f'{{"content":[],"structuredContent":{{"a":[{LISTS}]}}}}',
    "keys": (
        f'{{"content":[],"structuredContent":{{{",".join(f"{chr(34)}{n}{chr(34)}:0" for n in range(300_000))}}}}}'
    ),
    "blocks": f'{{"content":[{",".join([BLOCK] * 30_000)}]}}',
    "deep": f'{{"content":[],"structuredContent":{{"a":{"[" * 250_000}{"]" * 250_000}}}}}',
    "deeper than parsers go": (
        f'{{"content":[],"structuredContent":{{"a":{"[" * 5000}{"]" * 5000}}}}}'
    ),
    "quotes": f'{{"content":[{chr(34) * 1_000_000}]}}',
    "text": _content("x" * (5 << 20)),
    "json": _content(json.dumps([{"id": n, "name": "x"} for n in range(200_000)])),
    "almost json": _content("[" + "1," * 300_000),
    "noise": _content("after the noise"),
    "large noise": _content("after the noise"),
    "id last": _content("x" * (9 << 20)),
    "no id": "",
}


def build_lines(kind: str, ident: Any) -> list[str]:
    """Return the lines of the response to a call."""
    if kind == "no id":
        return [json.dumps({"jsonrpc": "2.0", "result": {"x": "y" * (9 << 20)}})]
    if kind == "id last":
        return [f'{{"result":{RESULTS[kind]},"jsonrpc":"2.0","id":{json.dumps(ident)}}}']
    log = {
        "jsonrpc": "2.0",
        "method": "notifications/message",
        "params": {"level": "info", "data": "x"},
    }
    noise = ["not JSON", json.dumps(log), "[]"] * 1000 if kind == "noise" else []
    if kind == "large noise":
        noise = [json.dumps({**log, "params": {"level": "info", "data": "y" * (9 << 20)}})]
    return [*noise, f'{{"jsonrpc":"2.0","id":{json.dumps(ident)},"result":{RESULTS[kind]}}}']


def respond(message: dict[str, Any]) -> list[str]:
    match message["method"]:
        case "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "flooding", "version": "1"}
            result: Any = {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": info,
            }
        case "tools/list":
            result = {"tools": [TOOL]}
        case "tools/call":
            return build_lines(
                message["params"]["arguments"]["kind"].partition(":")[2], message["id"]
            )
        case _:
            error = {"code": -32601, "message": "Method not found"}
            return [json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error})]
    return [json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})]


class Handler(BaseHTTPRequestHandler):
    """Send responses as the prefix of the kind says: `json:`, `events:` or `gzip:`."""

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            self._send(202, "application/json", b"")
            return
        encoding = (
            message.get("params", {}).get("arguments", {}).get("kind", "json:").partition(":")[0]
        )
        lines = respond(message)
        if encoding == "events":
            self._send(
                200,
                "text/event-stream",
                b"".join(f"event: message\ndata: {line}\n\n".encode() for line in lines),
            )
        elif encoding == "gzip":
            self._send(
                200,
                "application/json",
                gzip.compress(lines[-1].encode()),
                ("content-encoding", "gzip"),
            )
        else:
            self._send(200, "application/json", lines[-1].encode())

    def do_GET(self) -> None:
        self._send(405, "application/json", b"")

    def _send(self, status: int, kind: str, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("content-type", kind), ("content-length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def main() -> None:
    if len(sys.argv) > 1:
        server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()
    while line := sys.stdin.readline():
        message = json.loads(line)
        if "id" in message:
            for each in respond(message):
                sys.stdout.write(each + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
