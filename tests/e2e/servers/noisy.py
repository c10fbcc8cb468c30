"""An upstream server that sends a lot beside its results: progress, log messages, questions and
standard error.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

LEVEL = "notifications/message"
PROGRESS = "notifications/progress"
TEXT = "%2525" * 1_400_000  # 7 MB: a message may have 8 MiB
KINDS = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}
waiting: list[Any] = []  # IDs of calls that wait for the answer to a question


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(ident: Any, text: str) -> None:
    send(id=ident, result={"content": [{"type": "text", "text": text}]})


def report(token: Any, count: int, message: str) -> None:
    for number in range(1, count + 1):
        send(
            method=PROGRESS, params={"progressToken": token, "progress": number, "message": message}
        )


def log(count: int, data: str) -> None:
    for _ in range(count):
        send(method=LEVEL, params={"level": "error", "data": data})


def print_output(data: bytes) -> None:
    for _ in range(200):
        os.write(2, data)


FLOODS: dict[str, Callable[[Any], None]] = {
    "progress": lambda token: report(token, 5, TEXT),
    "much progress": lambda token: report(token, 2_000, "%2525" * 20),
    "logs": lambda _token: log(5, TEXT),
    "many logs": lambda _token: log(2_000, "%2525" * 20),
    "output": lambda _token: print_output(b"%2525" * 20_000 + b"\n"),
    "a line": lambda _token: print_output(b"%2525" * 20_000),
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "a form": (
        "%2525" * 1_000_000,
        {f"f{n}": {"type": "string", "pattern": "(a|a)*b"} for n in range(20_000)},
    ),
    "a pattern": ("?", {"x": {"type": "string", "pattern": "^(a|a)*(?=x)$"}}),
}


def call(ident: Any, kind: str, token: Any) -> None:
    if kind in FORMS:
        message, fields = FORMS[kind]
        ask(ident, message, {"type": "object", "properties": fields})
        return
    if kind in FLOODS:
        FLOODS[kind](token)
    answer(ident, "done")


def ask(ident: Any, message: str, schema: Any) -> None:
    waiting.append(ident)
    send(
        id="question",
        method="elicitation/create",
        params={"message": message, "requestedSchema": schema},
    )


def handle(message: dict[str, Any]) -> None:
    ident = message.get("id")
    params = message.get("params") or {}
    match message.get("method"):
        case None:
            answer(waiting.pop(), json.dumps(message.get("result", message.get("error")))[:100])
        case "initialize":
            info = {"name": "noisy", "version": "1"}
            capabilities: dict[str, Any] = {"tools": {}, "logging": {}}
            version = params["protocolVersion"]
            send(
                id=ident,
                result={
                    "protocolVersion": version,
                    "capabilities": capabilities,
                    "serverInfo": info,
                },
            )
        case "tools/list":
            send(id=ident, result={"tools": [{"name": "send", "inputSchema": KINDS}]})
        case "tools/call":
            call(
                ident, params["arguments"]["kind"], (params.get("_meta") or {}).get("progressToken")
            )
        case method if ident is not None:
            is_known = method == "logging/setLevel"
            send(
                id=ident,
                **({"result": {}} if is_known else {"error": {"code": -32601, "message": "?"}}),
            )


if __name__ == "__main__":
    for line in sys.stdin:
        handle(json.loads(line))
