"""A server over raw lines that says which process it is, and answers calls when another call says
so.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [
    {"name": name, "inputSchema": TEXT}
    for name in ("facts", "wait", "finish", "crash", "ask", "add")
]
waiting: dict[str, Any] = {}  # id of a call by its text
cancelled: list[str] = []
state = {"level": ""}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(call: Any, value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    send(id=call, result={"content": [{"type": "text", "text": text}]})


def call_tool(call: Any, name: str, text: str, meta: dict[str, Any]) -> None:
    match name:
        case "facts":
            facts = {
                "pid": os.getpid(),
                "directory": str(Path.cwd()),
                "variable": os.environ.get("VARIABLE"),
            }
            answer(call, {**facts, **state, "cancelled": cancelled})
        case "wait":
            waiting[text] = call
            if (token := meta.get("progressToken")) is not None:
                send(
                    method="notifications/progress",
                    params={"progressToken": token, "progress": 1, "message": text},
                )
        case "finish":
            answer(waiting.pop(text), text)
            answer(call, "done")
        case "crash":
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
            os._exit(3)
        case "ask":
            waiting["ask"] = call
            params = {"message": text, "requestedSchema": {"type": "object", "properties": {}}}
            send(id="question", method="elicitation/create", params=params)
        case "add":
            TOOLS.append({"name": text, "inputSchema": TEXT})
            send(method="notifications/tools/list_changed")
            answer(call, "added")


def handle(message: dict[str, Any]) -> None:
    ident, params = message.get("id"), message.get("params") or {}
    match message.get("method"):
        case None:
            answer(waiting.pop("ask"), message.get("result") or message["error"]["message"])
        case "initialize":
            capabilities = {"tools": {"listChanged": True}, "logging": {}}
            info = {"name": "neighbor", "version": "1"}
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
            send(id=ident, result={"tools": TOOLS})
        case "tools/call":
            call_tool(
                ident,
                params["name"],
                (params.get("arguments") or {}).get("text", ""),
                params.get("_meta") or {},
            )
        case "logging/setLevel":
            state["level"] = params["level"]
            send(id=ident, result={})
        case "notifications/cancelled":
            cancelled.extend(text for text, call in waiting.items() if call == params["requestId"])
        case method if ident is not None:
            send(id=ident, error={"code": -32601, "message": f"no method {method}"})


if __name__ == "__main__":
    for line in sys.stdin:
        handle(json.loads(line))
